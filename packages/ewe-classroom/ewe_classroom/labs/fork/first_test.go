// The first test of this lab: go test -failfast. It sends a few requests, and stops at the first failure.
package main

import (
	"testing"
	"time"
)

// Step 1. One client gets hello.txt, and its connection ends.
func TestStep1OneClient(test *testing.T) {
	server := start(test, 0, 0)
	client := server.connect()
	client.send(getAndClose)
	client.expect(helloBody, "The client has sent a request, and gets no response.")
	client.expectEnd(0, "The connection stays open after the response: a process still has a copy of it.")
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

// Step 3. Each child that has ended is reaped.
func TestStep3Reaped(test *testing.T) {
	server := start(test, 0, 0)
	var clients []*testClient
	for len(clients) < 10 {
		clients = append(clients, server.connect())
		clients[len(clients)-1].send(half)
	}
	for _, client := range clients {
		client.send(rest)
		client.expect(helloBody, "One of ten clients gets no response.")
		client.expectEnd(0, "The connection of one of ten clients stays open.")
	}
	for deadline := time.Now().Add(responseTimeout); server.zombies() > 0; time.Sleep(lookPause) {
		if time.Now().After(deadline) {
			test.Fatalf("Ten children have ended, and %d of them are zombies: call syscall.Wait4.", server.zombies())
		}
	}
}
