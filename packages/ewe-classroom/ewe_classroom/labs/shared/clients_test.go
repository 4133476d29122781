// Clients for first_test.go: they build and start your server, and send requests. A step that fails says why.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	responseTimeout = 5 * time.Second       // of one response; a server waits for 10 s
	lookPause       = 20 * time.Millisecond // the time between two looks at a process
	helloBody       = "hello, world\n"
	get             = "GET /hello.txt HTTP/1.1\r\nHost: localhost\r\n\r\n"
	getAndClose     = "GET /hello.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
	half            = "GET /hello.txt HTTP/1.1\r\nHost: local"
	rest            = "host\r\nConnection: close\r\n\r\n"
)

// testServer is your server, on a free port of this machine. It serves a directory with hello.txt.
type testServer struct {
	test    *testing.T
	process *exec.Cmd
	port    int
}

// start builds your server and starts it. descriptors: how many it may have; 0: the usual number. large: the size
// of the file `large` in bytes; 0: no such file.
func start(test *testing.T, descriptors, large int) *testServer {
	test.Helper()
	directory := test.TempDir()
	program := filepath.Join(directory, "server")
	if output, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		test.Fatalf("go build fails:\n%s", output)
	}
	root := filepath.Join(directory, "files")
	os.Mkdir(root, 0o755)
	os.WriteFile(filepath.Join(root, "hello.txt"), []byte(helloBody), 0o644)
	if large > 0 {
		os.WriteFile(filepath.Join(root, "large"), bytes.Repeat([]byte("x"), large), 0o644)
	}
	probe, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		test.Fatal(err)
	}
	server := &testServer{test: test, port: probe.Addr().(*net.TCPAddr).Port}
	probe.Close()
	words := []string{program, strconv.Itoa(server.port), root, "4"}
	if descriptors > 0 {
		words = append([]string{"sh", "-c", fmt.Sprintf("ulimit -n %d; exec \"$@\"", descriptors), "sh"}, words...)
	}
	server.process = exec.Command(words[0], words[1:]...)
	server.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that the end ends the children, too
	server.process.Stderr = os.Stderr
	if err := server.process.Start(); err != nil {
		test.Fatal(err)
	}
	test.Cleanup(func() {
		syscall.Kill(-server.process.Process.Pid, syscall.SIGKILL)
		server.process.Wait()
	})
	server.await()
	return server
}

// await waits until the server listens. /proc tells it: a connection would be a client.
func (server *testServer) await() {
	server.test.Helper()
	wanted := fmt.Sprintf("0100007F:%04X 00000000:0000 0A", server.port)
	for deadline := time.Now().Add(responseTimeout); ; time.Sleep(lookPause) {
		table, _ := os.ReadFile("/proc/net/tcp")
		if strings.Contains(string(table), wanted) {
			return
		}
		if time.Now().After(deadline) {
			server.test.Fatal("the server does not listen on its port")
		}
	}
}

// zombies returns how many ended children the server has not reaped.
func (server *testServer) zombies() int {
	count := 0
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) > 1 && fields[0] == "Z" && fields[1] == strconv.Itoa(server.process.Process.Pid) {
			count++
		}
	}
	return count
}

// testClient is one connection to the server.
type testClient struct {
	test       *testing.T
	connection net.Conn
}

// connect returns a new client.
func (server *testServer) connect() *testClient {
	server.test.Helper()
	connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", server.port))
	if err != nil {
		server.test.Fatal("the server takes no connection: it has ended")
	}
	server.test.Cleanup(func() { connection.Close() })
	return &testClient{server.test, connection}
}

// send sends a text. If the server has closed the connection, the next expect says so.
func (client *testClient) send(text string) {
	io.WriteString(client.connection, text)
}

// expect receives until a text has come. It fails with a sentence if the text does not come.
func (client *testClient) expect(text, sentence string) {
	client.test.Helper()
	client.connection.SetReadDeadline(time.Now().Add(responseTimeout))
	matched := 0
	for one := make([]byte, 1); matched < len(text); {
		if count, _ := client.connection.Read(one); count == 0 {
			client.test.Fatal(sentence)
		}
		if one[0] == text[matched] { // no text of these tests repeats its beginning, so one counter is enough
			matched++
		} else if matched = 0; one[0] == text[0] {
			matched = 1
		}
	}
}

// expectEnd receives until the server closes the connection. It fails if fewer than `bytes` bytes come before.
func (client *testClient) expectEnd(bytes int64, sentence string) {
	client.test.Helper()
	client.connection.SetReadDeadline(time.Now().Add(responseTimeout))
	if count, err := io.Copy(io.Discard, client.connection); err != nil || count < bytes {
		client.test.Fatal(sentence)
	}
	client.connection.Close()
}
