// The first test of this lab: go test -failfast. It sends a few requests, and stops at the first failure.
package main

import "testing"

const largeBytes = 8000000 // of a file that does not fit into the buffers of a connection

// Step 1. One client gets hello.txt.
func TestStep1OneClient(test *testing.T) {
	server := start(test, 0, 0)
	client := server.connect()
	client.send(getAndClose)
	client.expect(helloBody, "The client has sent a request, and gets no response.")
}

// Step 2. A client that sends slowly does not stop another one.
func TestStep2SlowSender(test *testing.T) {
	server := start(test, 0, 0)
	slow, client := server.connect(), server.connect()
	slow.send(half)
	client.send(getAndClose)
	client.expect(helloBody, "One client has sent half a request, and the second client waits for it.")
	slow.send(rest)
	slow.expect(helloBody, "The first client has sent the rest of its request, and gets no response.")
}

// Step 3. A client that receives slowly does not stop another one.
func TestStep3SlowReader(test *testing.T) {
	server := start(test, 0, largeBytes)
	slow, client := server.connect(), server.connect()
	slow.send("GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	slow.expect("200", "The request of a large file gets no response.")
	client.send(getAndClose)
	client.expect(helloBody, "One client does not read its large response, and the second client waits for it.")
	slow.expectEnd(largeBytes, "The rest of the large file does not come: store the bytes that SendmsgN did not take.")
}
