// The event loop: one goroutine for all clients. Build it with go build, run it with: ./server PORT DIRECTORY
//
//	epoll_wait() -> the listening socket is ready: accept, and watch the connection
//	     ^     +--> a connection can be read:      receive its bytes; if the head is complete, prepare the response
//	     |     +--> a connection can be written:   send as many bytes as the kernel takes, and keep the rest
//	     +------------- no call in between may block: while one client is served, all others wait
//
// Go's runtime has such a loop inside: a goroutine that waits in Read is parked with epoll. Here you write it yourself,
// with the system calls of the package syscall, and without `go`.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

const (
	maxEvents     = 64          // the number of events that one EpollWait reports at most
	checkInterval = time.Second // the time between two searches for silent clients
	backlog       = 511         // connections that the kernel queues until they are accepted
)

// Client is one connection: the received bytes, the bytes to send, and the time of the last activity.
type Client struct {
	connection int
	buffer     []byte
	outgoing   []byte
	keepsOpen  bool
	last       time.Time
}

// Loop is the event loop with its clients.
type Loop struct {
	root      string
	epoll     int
	listener  int
	listening bool // the loop watches the listening socket
	wake      int  // a pipe into which SIGTERM is written
	clients   map[int]*Client
	stopping  bool
}

// watch has epoll watch a descriptor for reading, or for writing; operation: syscall.EPOLL_CTL_ADD, ..._MOD.
func (loop *Loop) watch(descriptor, operation int, writing bool) {
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(descriptor)}
	if writing {
		event.Events = syscall.EPOLLOUT
	}
	syscall.EpollCtl(loop.epoll, operation, descriptor, &event)
}

// listen watches the listening socket, or stops to watch it.
func (loop *Loop) listen(wanted bool) {
	if wanted == loop.listening {
		return
	}
	loop.listening = wanted
	if wanted {
		loop.watch(loop.listener, syscall.EPOLL_CTL_ADD, false)
	} else {
		syscall.EpollCtl(loop.epoll, syscall.EPOLL_CTL_DEL, loop.listener, &syscall.EpollEvent{})
	}
}

// accept accepts one connection, and watches it.
func (loop *Loop) accept() {
	connection, _, err := syscall.Accept4(loop.listener, syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
	if err == syscall.EAGAIN || err == syscall.EINTR || err == syscall.ECONNABORTED {
		return
	}
	if err != nil {
		loop.listen(false) // no descriptor is left: epoll_wait() would return at once, again and again
		return
	}
	client := &Client{connection: connection, keepsOpen: true, last: time.Now()}
	loop.clients[connection] = client
	loop.watch(connection, syscall.EPOLL_CTL_ADD, false)
}

// serve reads from a client, or writes to it, as much as possible without blocking.
func (loop *Loop) serve(client *Client, received []byte) {
	// --- solution
	var count int
	var err error
	if len(client.outgoing) > 0 {
		count, err = syscall.SendmsgN(client.connection, client.outgoing, nil, nil, syscall.MSG_NOSIGNAL)
	} else {
		count, err = syscall.Read(client.connection, received)
		if err == nil && count == 0 {
			loop.drop(client)
			return
		}
	}
	if err == syscall.EAGAIN || err == syscall.EINTR {
		return
	}
	if err != nil {
		loop.drop(client)
		return
	}
	client.last = time.Now()
	if len(client.outgoing) > 0 {
		client.outgoing = client.outgoing[count:]
		if len(client.outgoing) > 0 {
			return
		}
		if !client.keepsOpen || loop.stopping {
			loop.drop(client)
			return
		}
	} else {
		client.buffer = append(client.buffer, received[:count]...)
	}
	loop.answer(client)
	// --- starter
	// // The connection does not block: Read and SendmsgN return immediately, and do as much as is possible. Store the
	// // rest in the client until epoll reports that more is possible.
	// loop.drop(client)
	// --- end
}

// answer prepares the response to the client's next request if its head is complete; then the loop waits for an event.
func (loop *Loop) answer(client *Client) {
	// --- solution
	head, rest := SplitHead(client.buffer)
	if head != nil {
		client.outgoing, client.keepsOpen = ResponseTo(head, loop.root)
		client.buffer = append([]byte(nil), rest...)
	} else if len(client.buffer) > maxHead {
		client.outgoing, client.keepsOpen = Refusal(431), false
	}
	// While a part of a response is not sent yet, wait until the socket can be written.
	loop.watch(client.connection, syscall.EPOLL_CTL_MOD, len(client.outgoing) > 0)
	// --- starter
	// // SplitHead and ResponseTo are the same as in the other labs. For which event does epoll wait next?
	// --- end
}

// drop closes a connection. epoll stops watching a closed descriptor.
func (loop *Loop) drop(client *Client) {
	delete(loop.clients, client.connection)
	syscall.Close(client.connection)
}

// dropIdle drops silent clients; after SIGTERM, it drops all clients without a response in progress.
func (loop *Loop) dropIdle() {
	// --- solution
	for _, client := range loop.clients {
		if time.Since(client.last) > silence || (loop.stopping && len(client.outgoing) == 0) {
			loop.drop(client)
		}
	}
	// --- starter
	// // No deadline of a connection ends the wait for a silent client here. Find and drop the silent clients.
	// --- end
}

// timeout returns the milliseconds that epoll_wait() may wait; -1: wait for an event without a limit.
func (loop *Loop) timeout() int {
	if !loop.listening && !loop.stopping {
		return int(pause.Milliseconds())
	}
	// --- solution
	if len(loop.clients) > 0 {
		return int(checkInterval.Milliseconds())
	}
	// --- starter
	// // A loop without clients must not wake up at all. When must a loop with clients wake up?
	// --- end
	return -1
}

// run serves until SIGTERM, and until the responses in progress are sent.
func (loop *Loop) run() {
	found := make([]syscall.EpollEvent, maxEvents)
	received := make([]byte, 65536)
	var deadline time.Time
	nextCheck := time.Now().Add(checkInterval)
	for !loop.stopping || (len(loop.clients) > 0 && time.Now().Before(deadline)) {
		count, _ := syscall.EpollWait(loop.epoll, found, loop.timeout()) // EINTR: count is -1, and the loop goes on
		paused := !loop.listening
		for number := 0; number < count; number++ {
			descriptor := int(found[number].Fd)
			switch client := loop.clients[descriptor]; {
			case descriptor == loop.listener:
				loop.accept()
			case descriptor == loop.wake:
				loop.stopping = true
			case client != nil:
				loop.serve(client, received)
			}
		}
		if loop.stopping && deadline.IsZero() {
			deadline = time.Now().Add(grace)
			loop.listen(false)
			syscall.Close(loop.listener)
			syscall.EpollCtl(loop.epoll, syscall.EPOLL_CTL_DEL, loop.wake, &syscall.EpollEvent{})
			loop.dropIdle()
		}
		if time.Now().After(nextCheck) {
			nextCheck = time.Now().Add(checkInterval)
			loop.dropIdle()
		}
		if paused && !loop.stopping {
			loop.listen(true)
		}
	}
}

// listenOn returns a socket that listens on a port of 127.0.0.1 and does not block.
func listenOn(port string) (int, error) {
	number, err := strconv.Atoi(port)
	if err != nil {
		return -1, err
	}
	listener, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	syscall.SetsockoptInt(listener, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err := syscall.Bind(listener, &syscall.SockaddrInet4{Port: number, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return -1, err
	}
	return listener, syscall.Listen(listener, backlog)
}

// terminationPipe returns the end of a pipe that can be read once SIGTERM has come. Its goroutine is the only one
// beside the loop: Go gives signals to a channel, and epoll does not know channels.
func terminationPipe() int {
	var pipe [2]int
	if err := syscall.Pipe2(pipe[:], syscall.O_NONBLOCK|syscall.O_CLOEXEC); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		syscall.Write(pipe[1], []byte{0})
	}()
	return pipe[0]
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintf(os.Stderr, "usage: %s PORT DIRECTORY\n", os.Args[0])
		os.Exit(2)
	}
	listener, err := listenOn(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	loop := &Loop{root: os.Args[2], epoll: epoll, listener: listener, wake: terminationPipe(), clients: map[int]*Client{}}
	loop.watch(loop.wake, syscall.EPOLL_CTL_ADD, false)
	loop.listen(true)
	loop.run()
}
