package guard

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"
)

// ExitCode is the status of a process that ended itself because of a panic within a
// step (EX_SOFTWARE of sysexits.h). The panics that Go itself ends a program for
// have 2.
const ExitCode = 70

// What is the kind of work a panic was in; the label of the counter.
type What uint8

// Kinds of work.
const (
	Call   What = iota // a call of gRPC
	Socket             // a socket of a client
	Link               // a connection to a peer, of datagrams or volumes
	Dial               // an attempt to make one
	Accept             // a connection that was just accepted
	Volume             // a mapping, an export, or a request to a store
	Page               // a request to the page for monitoring
	Task               // something in the background: a save, a log, a reload
	Step               // a step of an engine, or work that belongs to no object: the process ended
	Kinds              // how many there are
)

var names = [Kinds]string{"call", "socket", "link", "dial", "accept", "volume", "page", "task", "step"}

func (w What) String() string { return names[w] }

// Guard catches panics of one daemon. Its fields are set before it is used.
type Guard struct {
	// Log has the stacks.
	Log *slog.Logger
	// Steps are the names of functions that are steps, or are called within one alone:
	// "example.com/module/package." stands for all of a package.
	Steps []string
	// Locks take and give back every lock a step is made under, one after the other.
	Locks func()
	// Exit ends the process; nil: os.Exit.
	Exit func(code int)

	counts [Kinds]atomic.Uint64
}

// Error is the reason given to the object that is ended.
type Error struct {
	What  What
	Value any // of the panic
}

func (e *Error) Error() string {
	return fmt.Sprintf("internal error in the daemon (a panic in the work for this %v; its log has the stack)", e.What)
}

// lockPatience is how long a lock is waited for that its holder seems not to give back. It
// is longer than any step takes on a machine that is short of processors.
const lockPatience = 2 * time.Second

// Count is how many panics there were in work of that kind.
func (g *Guard) Count(w What) uint64 {
	if g == nil {
		return 0
	}
	return g.counts[w].Load()
}

// Recover is deferred by work for one object: if that panics, end is called with the
// reason, and closes the object. end may be nil.
func (g *Guard) Recover(w What, end func(error)) {
	if g == nil {
		return
	}
	if v := recover(); v != nil {
		err := g.Caught(w, v)
		if end != nil {
			end(err)
		}
	}
}

// Do runs f, and returns the panic it ended in, if it did.
func (g *Guard) Do(w What, f func()) (err error) {
	defer g.Recover(w, func(e error) { err = e })
	f()
	return nil
}

// Caught is called by a deferred function with the result of recover. It is called in that
// function, while the stack of the panic is still there. It returns the reason to end with,
// or does not return.
func (g *Guard) Caught(w What, v any) error {
	if g == nil {
		panic(v)
	}
	within := g.within()
	if within == "" && !g.unlocked() {
		within = "the lock of an engine is still held"
	}
	if within != "" || w == Step {
		g.die(w, v, within)
	}
	return g.Below(w, v)
}

// Below is Caught for work that no step is a part of, even if a step called it: between the
// deferred function and the panic there is neither a function of a core nor a lock of an
// engine. The caller, a step perhaps, goes on as if the work had returned an error.
func (g *Guard) Below(w What, v any) error {
	g.counts[w].Add(1)
	g.Log.Error("a panic was contained", "what", w.String(), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	return &Error{w, v}
}

// die ends the process.
func (g *Guard) die(w What, v any, within string) {
	g.counts[Step].Add(1)
	if within == "" {
		within = "nobody to end in its place"
	}
	g.Log.Error("a panic may have spoilt what the daemon knows: it ends, to be started again",
		"what", w.String(), "within", within, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	if g.Exit != nil {
		g.Exit(ExitCode)
	} else {
		os.Exit(ExitCode)
	}
}

// within names the function of a step that is on the stack of the panic.
func (g *Guard) within() string {
	var pcs [128]uintptr
	n := runtime.Callers(2, pcs[:])
	if n == len(pcs) {
		return "a stack too deep to be read"
	}
	for frames := runtime.CallersFrames(pcs[:n]); ; {
		f, more := frames.Next()
		for _, s := range g.Steps {
			if f.Function == s || strings.HasSuffix(s, ".") && strings.HasPrefix(f.Function, s) {
				return f.Function
			}
		}
		if !more {
			return ""
		}
	}
}

// unlocked reports whether all locks can be had, and so none is held by a goroutine that is
// gone.
func (g *Guard) unlocked() bool {
	if g.Locks == nil {
		return true
	}
	done := make(chan struct{})
	go func() { // ends when the locks were had, or with the process
		defer close(done)
		g.Locks()
	}()
	select {
	case <-done:
		return true
	case <-time.After(lockPatience):
		return false
	}
}
