// The first test of this lab: go test -failfast -race. It tests the Queue alone, and stops at the first failure.
package main

import (
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	responseTimeout = 5 * time.Second        // the time that one step may take
	lookPause       = 10 * time.Millisecond  // the time between two looks at the goroutines
	watched         = time.Second            // the time for which a goroutine must sleep
	maxWaitCPU      = 100 * time.Millisecond // the CPU time that the program may take meanwhile
)

// item is what the test puts into the queue in place of a connection.
type item struct{ net.Conn }

// takers starts goroutines that take items until the queue is closed. They count the items, and those that end.
func takers(queue *Queue, count int) (taken, ended *atomic.Int64) {
	taken, ended = new(atomic.Int64), new(atomic.Int64)
	for ; count > 0; count-- {
		go func() {
			for queue.Get() != nil {
				taken.Add(1)
			}
			ended.Add(1)
		}()
	}
	return taken, ended
}

// reaches waits until a number has a value. It fails with a sentence if the number has another one in the end.
func reaches(test *testing.T, number *atomic.Int64, value int64, sentence string) {
	test.Helper()
	for deadline := time.Now().Add(responseTimeout); number.Load() != value; time.Sleep(lookPause) {
		if time.Now().After(deadline) {
			test.Fatal(sentence)
		}
	}
}

// sleeps fails with a sentence if the program computes although all its goroutines wait.
func sleeps(test *testing.T, sentence string) {
	test.Helper()
	var before, after syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	time.Sleep(watched)
	syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	if time.Duration(after.Utime.Nano()-before.Utime.Nano()) > maxWaitCPU {
		test.Fatal(sentence)
	}
}

// Step 1. Put waits while the queue is full.
func TestStep1Full(test *testing.T) {
	queue := NewQueue()
	for number := 0; number < room; number++ {
		queue.Put(item{})
	}
	var put atomic.Int64
	go func() {
		queue.Put(item{})
		put.Add(1)
	}()
	sleeps(test, "Put computes while the queue is full: wait with sync.Cond.")
	if put.Load() > 0 {
		test.Fatal("The queue has more than `room` items: Put did not wait while it was full.")
	}
	queue.Get()
	reaches(test, &put, 1, "Put still waits, although the queue has room: signal notFull.")
}

// Step 2. Get sleeps while the queue is empty, and Put wakes it.
func TestStep2Empty(test *testing.T) {
	queue := NewQueue()
	taken, _ := takers(queue, 2)
	sleeps(test, "Get computes while the queue is empty: wait with sync.Cond.")
	for number := int64(1); number <= 100; number++ {
		queue.Put(item{})
		reaches(test, taken, number, "A goroutine waits in Get, although the queue has an item: signal notEmpty.")
	}
}

// Step 3. Close wakes all goroutines.
func TestStep3Close(test *testing.T) {
	queue := NewQueue()
	_, ended := takers(queue, 2)
	time.Sleep(lookPause)
	queue.Close()
	reaches(test, ended, 2, "Two goroutines wait in Get, and Close did not wake both.")
}
