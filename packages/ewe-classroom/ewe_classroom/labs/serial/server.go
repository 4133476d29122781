// The serial server: one conversation after the other. Build it with go build, run it with: ./server PORT DIRECTORY
package main

import (
	"errors"
	"net"
	"time"
)

func main() {
	Run(func(listener net.Listener, root string, _ int) {
		// --- solution
		for {
			connection, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // no descriptor is free, or the client has disconnected already
				time.Sleep(pause)
				continue
			}
			Converse(connection, root)
			connection.Close()
		}
		// --- starter
		// // The program ends after one client. A server goes on, also when Accept fails.
		// connection, err := listener.Accept()
		// if errors.Is(err, net.ErrClosed) {
		// 	time.Sleep(pause)
		// }
		// Converse(connection, root)
		// --- end
	})
}
