package ib

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"time"

	"github.com/rdsd/rdsd/internal/reactor"
)

// Machine is what a device and the links over it take from where they run. That of the daemon
// is this machine (ThisMachine). A simulated world brings its own, so that the same code runs
// there, in one thread, from a seed.
type Machine struct {
	Clock func() time.Duration // monotonic; the time of a device's thread
	Seed  func() uint64        // a random number that nobody foresees

	// Go runs f beside the caller: never before Go has returned. f may wait.
	Go func(f func())
	// Wait returns when one of the bells is closed: its index. Whoever waits holds no lock, and
	// is not on a device's thread.
	Wait func(bells ...<-chan struct{}) int
	// Timeout is context.WithTimeout by Clock.
	Timeout func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

// Thread is what the links over a device ask of the thread that its handlers are called on: a
// reactor, or a world's stand-in for one.
type Thread interface {
	// DoFor runs f there, in a later turn and in the order of the calls. A panic of f ends o.
	DoFor(o reactor.Owner, f func())
}

// ThisMachine is the machine that the daemon runs on.
var ThisMachine = &Machine{
	Clock: reactor.Clock,
	Seed: func() uint64 {
		var b [8]byte
		crand.Read(b[:]) // does not fail
		return binary.LittleEndian.Uint64(b[:])
	},
	Go: func(f func()) {
		go f() // ends with f, which its caller sees to, and which contains its panics
	},
	Wait: func(bells ...<-chan struct{}) int {
		var b [2]<-chan struct{} // nobody waits for more; nil is never ready
		copy(b[:], bells)
		select {
		case <-b[0]:
			return 0
		case <-b[1]:
			return 1
		}
	},
	Timeout: context.WithTimeout,
}
