// The first test of this lab: go test -failfast. It sends a few requests, and stops at the first failure.
package main

import (
	"testing"
	"time"
)

// Step 1. One client gets hello.txt.
func TestStep1OneClient(test *testing.T) {
	server := start(test, 0, 0)
	client := server.connect()
	client.send(getAndClose)
	client.expect(helloBody, "The client has sent a request, and gets no response.")
}

// Step 2. The second client gets it, too.
func TestStep2NextClient(test *testing.T) {
	server := start(test, 0, 0)
	client := server.connect()
	client.send(getAndClose)
	client.expect(helloBody, "The client has sent a request, and gets no response.")
	client.connection.Close()
	client = server.connect()
	client.send(getAndClose)
	client.expect(helloBody, "The server serves the first client only: it has to go on after a client.")
}

// Step 3. A client that disconnects early does not end the server.
func TestStep3EarlyEnd(test *testing.T) {
	server := start(test, 0, 0)
	server.connect().connection.Close()
	client := server.connect()
	client.send(getAndClose)
	client.expect(helloBody, "A client has disconnected before its request. The next client gets no response.")
}

// Step 4. The head of a request comes in two pieces.
func TestStep4Pieces(test *testing.T) {
	server := start(test, 0, 0)
	client := server.connect()
	client.send(half)
	time.Sleep(lookPause)
	client.send(rest)
	client.expect(helloBody, "TCP carries bytes, not messages: receive until the empty line has come.")
}

// Step 5. Two requests come in one piece.
func TestStep5Pipelined(test *testing.T) {
	server := start(test, 0, 0)
	client := server.connect()
	client.send(get + getAndClose)
	client.expect(helloBody, "The first of two requests gets no response.")
	client.expect(helloBody, "The bytes after the empty line belong to the next request: do not lose them.")
}
