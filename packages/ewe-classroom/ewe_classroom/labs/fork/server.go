// A process for each connection. Build it with go build, run it with: ./server PORT DIRECTORY
//
//	parent: Accept -> start this program again -> close its copy -> Accept -> ...     reaps children that have ended
//	                    |
//	                    +-> child: descriptor 3 is the connection -> conversation -> end
//
// Go has no fork(). A child of fork() has only the thread that called it, and Go's runtime needs its other threads: the
// garbage collector, the poller. syscall.ForkExec does both steps in one: it forks, and the child at once becomes a new
// program. This server starts itself again. The child inherits only the descriptors that the parent names, because Go
// opens every descriptor with close-on-exec. In C and Python a child begins with a copy of the parent's memory; here it
// does not.
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
	connectionDescriptor = 3                // a child finds its connection in this descriptor
	childVariable        = "EWE_CHILD"      // a variable that only a child's environment has
	thisProgram          = "/proc/self/exe" // the file of this program
)

// Children are the processes that run a conversation.
type Children struct {
	lock     sync.Mutex
	pids     map[int]bool
	allEnded *sync.Cond
}

// NewChildren returns an empty set.
func NewChildren() *Children {
	children := &Children{pids: map[int]bool{}}
	children.allEnded = sync.NewCond(&children.lock)
	return children
}

// Start starts this program again for a connection, and stores the child's process id.
func (children *Children) Start(connection *os.File) error {
	// --- solution
	// Hold the lock during the start: the child may end, and be reaped, before ForkExec has returned.
	children.lock.Lock()
	defer children.lock.Unlock()
	pid, err := syscall.ForkExec(thisProgram, os.Args, &syscall.ProcAttr{
		Env:   append(os.Environ(), childVariable+"=1"),
		Files: []uintptr{0, 1, 2, connection.Fd()},
	})
	if err == nil {
		children.pids[pid] = true
	}
	return err
	// --- starter
	// // syscall.ForkExec(thisProgram, os.Args, ...): which environment, and which files, does the child get?
	// _ = thisProgram
	// return errors.New("no child yet")
	// --- end
}

// Reap reads the status of each ended child.
func (children *Children) Reap() {
	// --- solution
	children.lock.Lock()
	defer children.lock.Unlock()
	for { // one SIGCHLD may stand for several children
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
		children.allEnded.Broadcast()
	}
	// --- starter
	// // An ended child stays a zombie until syscall.Wait4 has read its status. One SIGCHLD may stand for several.
	// --- end
}

// Drain waits until no child is left, and kills the children that still run after the time of grace.
func (children *Children) Drain() {
	// --- solution
	timer := time.AfterFunc(grace, func() {
		children.lock.Lock()
		defer children.lock.Unlock()
		for pid := range children.pids {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	defer timer.Stop()
	children.lock.Lock()
	defer children.lock.Unlock()
	for len(children.pids) > 0 {
		children.allEnded.Wait()
	}
	// --- starter
	// // No process may remain when the server has ended.
	// --- end
}

// beChild runs the conversation of descriptor 3.
func beChild(root string) {
	file := os.NewFile(connectionDescriptor, "connection")
	connection, err := net.FileConn(file)
	if err != nil {
		os.Exit(1)
	}
	file.Close() // FileConn has made a copy, and a connection ends with its last copy
	Converse(connection, root)
	connection.Close()
}

func main() {
	if os.Getenv(childVariable) != "" {
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
			if err != nil { // no descriptor is free, or the client has disconnected already
				time.Sleep(pause)
				continue
			}
			// --- solution
			copied, err := connection.(*net.TCPConn).File() // the descriptor, as a child can inherit it
			if err == nil {
				err = children.Start(copied)
				copied.Close()
			}
			connection.Close() // the connection would not end while the parent has a copy
			if err != nil {
				time.Sleep(pause) // no descriptor or process is free
			}
			// --- starter
			// // This starter serves all clients itself. Give the connection to a child, and close the copy here.
			// Converse(connection, root)
			// connection.Close()
			// --- end
		}
		children.Drain()
	})
}
