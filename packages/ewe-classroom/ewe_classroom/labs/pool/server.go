// The pool: n goroutines and a bounded queue. Build it with go build, run it with:
// ./server PORT DIRECTORY WORKERS
package main

import (
	"errors"
	"net"
	"sync"
	"time"
)

const room = 64 // connections that may wait in the queue

// Queue is bounded: Put waits while it is full, Get while it is empty. No channel: this queue is the lab.
type Queue struct {
	lock     sync.Mutex
	notEmpty *sync.Cond
	notFull  *sync.Cond
	items    []net.Conn
	closed   bool
}

// NewQueue returns an empty queue.
func NewQueue() *Queue {
	queue := &Queue{}
	queue.notEmpty = sync.NewCond(&queue.lock)
	queue.notFull = sync.NewCond(&queue.lock)
	return queue
}

// Put adds a connection at the end.
func (queue *Queue) Put(item net.Conn) {
	queue.lock.Lock()
	defer queue.lock.Unlock()
	// --- solution
	for len(queue.items) == room {
		queue.notFull.Wait()
	}
	queue.items = append(queue.items, item)
	queue.notEmpty.Signal()
	// --- starter
	// // Wait without spinning while the queue is full; then wake one thread that waits for an item.
	// queue.items = append(queue.items, item)
	// --- end
}

// Get takes the first connection; nil once the queue is closed and empty.
func (queue *Queue) Get() net.Conn {
	queue.lock.Lock()
	defer queue.lock.Unlock()
	// --- solution
	for len(queue.items) == 0 && !queue.closed {
		queue.notEmpty.Wait() // and test again: another worker may have taken the item
	}
	if len(queue.items) == 0 {
		return nil
	}
	item := queue.items[0]
	queue.items = queue.items[1:]
	queue.notFull.Signal()
	return item
	// --- starter
	// // This wait uses a whole core.
	// for len(queue.items) == 0 && !queue.closed {
	// 	queue.lock.Unlock()
	// 	queue.lock.Lock()
	// }
	// if len(queue.items) == 0 {
	// 	return nil
	// }
	// item := queue.items[0]
	// queue.items = queue.items[1:]
	// return item
	// --- end
}

// Close closes the queue, and wakes all goroutines that wait for a connection.
func (queue *Queue) Close() {
	queue.lock.Lock()
	defer queue.lock.Unlock()
	queue.closed = true
	queue.notEmpty.Broadcast()
}

func main() {
	Run(func(listener net.Listener, root string, workers int) {
		queue := NewQueue()
		var running sync.WaitGroup
		// --- solution
		for number := 0; number < workers; number++ {
			running.Add(1)
			go func() {
				defer running.Done()
				for connection := queue.Get(); connection != nil; connection = queue.Get() {
					Converse(connection, root)
					connection.Close()
				}
			}()
		}
		// --- end
		for {
			connection, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				break
			}
			if err != nil {
				time.Sleep(pause)
				continue
			}
			queue.Put(connection)
			// --- solution
			// --- starter
			// // Start `workers` goroutines before the first client comes. This starter serves all clients itself.
			// if waiting := queue.Get(); waiting != nil {
			// 	Converse(waiting, root)
			// }
			// --- end
		}
		queue.Close()
		Drain(&running)
	})
}
