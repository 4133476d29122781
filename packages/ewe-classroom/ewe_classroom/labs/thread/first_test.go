// The first test of this lab: go test -failfast. It sends a few requests, and stops at the first failure.
package main

import "testing"

const (
	descriptors = 64  // that the server may have in the last step
	manyClients = 100 // that connect to it there
)

// Step 1. One client gets hello.txt.
func TestStep1OneClient(test *testing.T) {
	server := start(test, 0, 0)
	client := server.connect()
	client.send(getAndClose)
	client.expect(helloBody, "The client has sent a request, and gets no response.")
}

// Step 2. Two clients are served at once.
func TestStep2TwoClients(test *testing.T) {
	server := start(test, 0, 0)
	slow, client := server.connect(), server.connect()
	slow.send(half)
	client.send(getAndClose)
	client.expect(helloBody, "One client has sent half a request, and the second client waits for it.")
	slow.send(rest)
	slow.expect(helloBody, "The first client has sent the rest of its request, and gets no response.")
}

// Step 3. The server survives its limit of descriptors.
func TestStep3Limit(test *testing.T) {
	server := start(test, descriptors, 0)
	var clients []*testClient
	for len(clients) < manyClients {
		clients = append(clients, server.connect())
		clients[len(clients)-1].send(half)
	}
	for _, client := range clients {
		client.connection.Close()
	}
	client := server.connect()
	client.send(getAndClose)
	client.expect(helloBody,
		"100 clients came while the server may have 64 descriptors, and have left. The next client gets no response.")
}
