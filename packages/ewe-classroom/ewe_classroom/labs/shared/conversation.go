// One conversation: read a request, send a response, and repeat this until the connection ends.
//
// ResponseTo uses no socket. Converse is the loop around it. RFC 9110 defines the meaning of HTTP/1.1, and RFC 9112
// its bytes.
package main

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	maxHead = 16 * 1024             // bytes of a request's head; the server refuses a longer head
	silence = 10 * time.Second      // a client that sends or receives nothing for so long is disconnected
	pause   = 50 * time.Millisecond // the server pauses so long when no descriptor is free
	grace   = 10 * time.Second      // conversations in progress have so long to end after SIGTERM
)

var emptyLine = []byte("\r\n\r\n")

var reasons = map[int]string{200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
	431: "Head Too Large"}

// SplitHead returns the first head in the buffer without its empty line, and the bytes after it. The head is nil if it
// is incomplete.
func SplitHead(buffer []byte) (head, rest []byte) {
	// --- solution
	end := bytes.Index(buffer, emptyLine)
	if end < 0 {
		return nil, buffer
	}
	return buffer[:end], buffer[end+len(emptyLine):]
	// --- starter
	// // The head ends with an empty line. A client may send it in any number of pieces, and the next request with it.
	// // This starter assumes that the buffer contains exactly one request.
	// return bytes.TrimSuffix(buffer, emptyLine), nil
	// --- end
}

// Parse returns the method, the path, and the header fields by names in lower case. refused: the status of the response
// if the head is not a request.
func Parse(head []byte) (method, path string, fields map[string]string, refused int) {
	fields = map[string]string{}
	// --- solution
	lines := strings.Split(string(head), "\r\n")
	words := strings.Split(lines[0], " ")
	if len(words) != 3 || !strings.HasPrefix(words[1], "/") || (words[2] != "HTTP/1.0" && words[2] != "HTTP/1.1") {
		return "", "", nil, 400
	}
	for _, line := range lines[1:] {
		name, value, found := strings.Cut(line, ":")
		if !found || name == "" || name != strings.TrimSpace(name) {
			return "", "", nil, 400
		}
		fields[strings.ToLower(name)] = strings.TrimSpace(value)
	}
	fields["version"] = words[2]
	path, _, _ = strings.Cut(words[1], "?")
	return words[0], path, fields, 0
	// --- starter
	// // The first line has a method, a target and a version; each further line is "Name: value".
	// // Which inputs are not a request?
	// fields["version"] = "HTTP/1.0"
	// return "GET", strings.Split(string(head), " ")[1], fields, 0
	// --- end
}

// Find returns the bytes of the file that a path names below root; an error if there is none.
func Find(root, path string) ([]byte, error) {
	// --- solution
	decoded, err := url.PathUnescape(path)
	if err != nil {
		return nil, err
	}
	base, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, err
	}
	file, err := filepath.EvalSymlinks(base + decoded)
	if err != nil {
		return nil, err
	}
	if about, err := os.Stat(file); err == nil && about.IsDir() {
		if file, err = filepath.EvalSymlinks(filepath.Join(file, "index.html")); err != nil {
			return nil, err
		}
	}
	if !strings.HasPrefix(file, base+"/") {
		return nil, os.ErrNotExist
	}
	return os.ReadFile(file)
	// --- starter
	// // Which file does this read for the path "/../secret.txt"?
	// decoded, err := url.PathUnescape(path)
	// if err != nil {
	// 	return nil, err
	// }
	// return os.ReadFile(filepath.Join(root, decoded))
	// --- end
}

// ResponseTo returns the whole response to a request's head, and whether the connection stays open after it.
func ResponseTo(head []byte, root string) ([]byte, bool) {
	if len(head) > maxHead { // a head may also arrive with its end, in one piece
		return Refusal(431), false
	}
	method, path, fields, refused := Parse(head)
	if refused != 0 {
		return Refusal(refused), false
	}
	if method != "GET" && method != "HEAD" {
		return Refusal(405), false
	}
	isHead := method == "HEAD"
	body, err := Find(root, path)
	if err != nil {
		return refuse(404, isHead), false
	}
	keepsOpen := fields["version"] == "HTTP/1.1" && !strings.EqualFold(fields["connection"], "close")
	return encode(200, body, keepsOpen, isHead), keepsOpen
}

// Refusal returns the response that refuses a request.
func Refusal(status int) []byte {
	return refuse(status, false)
}

// refuse returns the response that refuses a request. isHead: as in encode.
func refuse(status int, isHead bool) []byte {
	return encode(status, []byte(fmt.Sprintf("%d %s\n", status, reasons[status])), false, isHead)
}

// encode returns a response as bytes. isHead: leave out the body, because the method was HEAD.
func encode(status int, body []byte, keepsOpen, isHead bool) []byte {
	connection := "close"
	if keepsOpen {
		connection = "keep-alive"
	}
	head := fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Length: %d\r\nConnection: %s\r\n\r\n",
		status, reasons[status], len(body), connection)
	if isHead {
		return []byte(head)
	}
	return append([]byte(head), body...)
}

// Converse answers the requests of one connection until it ends. The caller closes it.
func Converse(connection net.Conn, root string) {
	var buffer []byte
	received := make([]byte, 4096)
	// --- solution
	for {
		head, rest := SplitHead(buffer)
		for head == nil {
			if len(buffer) > maxHead {
				connection.Write(Refusal(431))
				return
			}
			connection.SetDeadline(time.Now().Add(silence))
			count, err := connection.Read(received)
			if err != nil {
				return // the client has disconnected, or is silent
			}
			buffer = append(buffer, received[:count]...)
			head, rest = SplitHead(buffer)
		}
		response, keepsOpen := ResponseTo(head, root)
		for len(response) > 0 { // in pieces, each with its own deadline: a slow client may need long for 8 MB
			connection.SetDeadline(time.Now().Add(silence))
			piece := response
			if len(piece) > 65536 {
				piece = piece[:65536]
			}
			count, err := connection.Write(piece)
			if err != nil {
				return
			}
			response = response[count:]
		}
		if !keepsOpen {
			return
		}
		buffer = append([]byte(nil), rest...)
	}
	// --- starter
	// // One Read is not one request. A client may disconnect after any byte, and may send several requests.
	// count, _ := connection.Read(received)
	// buffer = received[:count]
	// head, _ := SplitHead(buffer)
	// response, _ := ResponseTo(head, root)
	// connection.Write(response)
	// --- end
}

// Run listens and calls serve with the listener, the directory and the number of workers. SIGTERM closes the listener.
func Run(serve func(listener net.Listener, root string, workers int)) {
	if len(os.Args) < 3 {
		fmt.Fprintf(os.Stderr, "usage: %s PORT DIRECTORY [WORKERS]\n", os.Args[0])
		os.Exit(2)
	}
	workers := 4
	if len(os.Args) > 3 {
		workers, _ = strconv.Atoi(os.Args[3])
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		listener.Close()
	}()
	serve(listener, os.Args[2], workers)
}

// Drain waits until all conversations have ended, for at most the time of grace. running: counts the goroutines that run
// conversations.
func Drain(running *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() {
		running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(grace):
	}
}
