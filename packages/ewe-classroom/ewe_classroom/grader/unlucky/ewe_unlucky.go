// Conditions with bad luck, for the check queue-races, which replaces sync.Cond in a copy of the program by eweCond.
// A correct program passes with them.
//
//  1. A woken goroutine gets its lock back late: other goroutines go first. Always.
//  2. A wait returns although its condition is false, at one place, which EWE_SPURIOUS names: "server.go:52". The
//     documentation of sync.Cond demands a loop around Wait, because the caller cannot assume the condition.
//
// Each wait and each return is a line in the file of EWE_TRACE: "+server.go:52", "-server.go:52".
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const eweLate = 2 * time.Millisecond

type eweCond struct {
	L      sync.Locker
	once   sync.Once
	inside *sync.Cond
	turn   uint32
}

func eweNewCond(lock sync.Locker) *eweCond { return &eweCond{L: lock} }

// real returns the condition of the library, made at its first use: a literal eweCond{L: ...} calls no constructor.
func (cond *eweCond) real() *sync.Cond {
	cond.once.Do(func() { cond.inside = sync.NewCond(cond.L) })
	return cond.inside
}

func (cond *eweCond) Signal()    { cond.real().Signal() }
func (cond *eweCond) Broadcast() { cond.real().Broadcast() }

// Wait is not watched by the race detector, and its notes are raw system calls: neither orders two goroutines, so a
// race of the program stays visible.
//
//go:norace
func (cond *eweCond) Wait() {
	_, file, line, _ := runtime.Caller(1)
	place := fmt.Sprintf("%s:%d", filepath.Base(file), line)
	eweNote("+" + place)
	inside := cond.real()
	if os.Getenv("EWE_SPURIOUS") != place || cond.turn%2 == 1 {
		cond.turn++
		inside.Wait()
	} else {
		cond.turn++
	}
	eweNote("-" + place)
	cond.L.Unlock()
	time.Sleep(eweLate)
	cond.L.Lock()
}

var eweTrace = eweOpen()

// eweOpen opens the trace; it returns -1 if there is none, and eweNote then has no effect.
func eweOpen() int {
	file, err := syscall.Open(os.Getenv("EWE_TRACE"), syscall.O_WRONLY|syscall.O_APPEND|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return file
}

//go:norace
func eweNote(line string) {
	text := []byte(line + "\n")
	syscall.RawSyscall(syscall.SYS_WRITE, uintptr(eweTrace), uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)))
}
