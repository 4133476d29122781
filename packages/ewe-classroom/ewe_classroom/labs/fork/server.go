// A process for each connection. Build it with go build, run it with: ./server PORT DIRECTORY
//
//	parent: Accept -> start this program again -> close its copy -> Accept -> ...     reaps children that have ended
//	                    |
//	                    +-> child: descriptor 3 is the connection -> conversation -> end
//
// Go has no fork(). A child of fork() has only the thread that called it, and Go's runtime needs its other threads: the
// collector, the poller. syscall.ForkExec does both steps in one: it forks, and the child at once becomes a new program.
// This server starts itself again. The child inherits what it is given by name, and nothing else, because Go opens every
// descriptor with close-on-exec. In C and Python a child begins with a copy of everything; here it begins with nothing.
package main

import (
	"errors"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

const (
	given = 3                // the descriptor in which a child finds its connection
	child = "EWE_CHILD"      // set in the environment of a child
	self  = "/proc/self/exe" // this program
)

// Children are the processes that hold a conversation.
type Children struct {
	lock sync.Mutex
	pids map[int]bool
	none *sync.Cond
}

// NewChildren returns an empty set.
func NewChildren() *Children {
	children := &Children{pids: map[int]bool{}}
	children.none = sync.NewCond(&children.lock)
	return children
}

// Start starts this program again for a connection, and keeps the child's number.
func (children *Children) Start(connection *os.File) error {
	// --- solution
	// The lock is held around the start: a child may end, and be reaped, before ForkExec has returned.
	children.lock.Lock()
	defer children.lock.Unlock()
	pid, err := syscall.ForkExec(self, os.Args, &syscall.ProcAttr{
		Env:   append(os.Environ(), child+"=1"),
		Files: []uintptr{0, 1, 2, connection.Fd()},
	})
	if err == nil {
		children.pids[pid] = true
	}
	return err
	// --- starter
	// // syscall.ForkExec(self, os.Args, ...): which environment, and which files, does the child get?
	// _ = self
	// return errors.New("no child yet")
	// --- end
}

// Reap reads the status of each child that has ended.
func (children *Children) Reap() {
	// --- solution
	children.lock.Lock()
	defer children.lock.Unlock()
	for { // one SIGCHLD may stand for ten
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			break
		}
		delete(children.pids, pid)
	}
	if len(children.pids) == 0 {
		children.none.Broadcast()
	}
	// --- starter
	// // A child that has ended stays a zombie until its status is read: syscall.Wait4. Do equal signals count?
	// --- end
}

// Drain waits until no child is left; those that are left after the time of grace are killed.
func (children *Children) Drain() {
	// --- solution
	late := time.AfterFunc(grace, func() {
		children.lock.Lock()
		defer children.lock.Unlock()
		for pid := range children.pids {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	defer late.Stop()
	children.lock.Lock()
	defer children.lock.Unlock()
	for len(children.pids) > 0 {
		children.none.Wait()
	}
	// --- starter
	// // No process may be left when the server has ended.
	// --- end
}

// beChild holds the conversation of descriptor 3.
func beChild(root string) {
	file := os.NewFile(given, "connection")
	connection, err := net.FileConn(file)
	if err != nil {
		os.Exit(1)
	}
	file.Close() // FileConn has made a copy, and a connection ends with its last copy
	Converse(connection, root)
	connection.Close()
}

func main() {
	if os.Getenv(child) != "" {
		beChild(os.Args[2])
		return
	}
	Run(func(listener net.Listener, root string, _ int) {
		children := NewChildren()
		ended := make(chan os.Signal, 1)
		signal.Notify(ended, syscall.SIGCHLD)
		go func() {
			for range ended {
				children.Reap()
			}
		}()
		for {
			connection, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				break
			}
			if err != nil { // no descriptor is left, or the client has left already
				time.Sleep(pause)
				continue
			}
			// --- solution
			copied, err := connection.(*net.TCPConn).File() // the descriptor, as a child can inherit it
			if err == nil {
				err = children.Start(copied)
				copied.Close()
			}
			connection.Close() // a copy that the parent keeps would keep the client waiting for the end
			if err != nil {
				time.Sleep(pause) // no descriptor or no process is left
			}
			// --- starter
			// // This starter serves everyone itself. Give the connection to a child, and let go of it here.
			// Converse(connection, root)
			// connection.Close()
			// --- end
		}
		children.Drain()
	})
}
