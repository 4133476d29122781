// A goroutine for each connection. Build it with go build, run it with: ./server PORT DIRECTORY
//
//	main: Accept -> go ... -> Accept -> go ... -> ...
//	                  |
//	                  +-> conversation -> close the connection -> the goroutine ends
//
// A goroutine is Go's thread. The runtime runs thousands of them on a few threads of the kernel: a goroutine that waits
// for its client needs a few KB of stack, and no thread.
package main

import (
	"errors"
	"net"
	"sync"
	"time"
)

func main() {
	Run(func(listener net.Listener, root string, _ int) {
		var running sync.WaitGroup
		for {
			connection, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				break
			}
			// --- solution
			if err != nil { // no descriptor is free: another conversation must end first
				time.Sleep(pause)
				continue
			}
			running.Add(1) // before the goroutine begins, because Drain may run first
			go func() {
				defer running.Done()
				defer connection.Close() // runs before Done: the last defer is the first to run
				Converse(connection, root)
			}()
			// --- starter
			// // This serves one client after the other, as the serial server does. Start a goroutine for each connection.
			// // Which value has `connection` if err is not nil?
			// if err != nil {
			// 	time.Sleep(pause)
			// 	break
			// }
			// Converse(connection, root)
			// connection.Close()
			// --- end
		}
		Drain(&running)
	})
}
