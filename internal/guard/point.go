package guard

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// Points are the names of all places that can be made to panic, for tests:
// RDSD_PANIC_POINT=name[:n] in the environment at start arms one, whose n-th passage
// (the first without n) panics. Otherwise a point costs one load and a branch that is
// never taken, and there is none that a datagram passes.
var Points = []string{
	"call",         // a call of gRPC
	"decode",       // a message of a call, before there is a call
	"stream",       // the reader of a socket's stream
	"client",       // the goroutine of a connection to the ring socket
	"ring.bell",    // a reactor: a doorbell rang
	"ring.control", // a reactor: a message on the control connection
	"link.ready",   // a reactor: a link of datagrams is ready
	"volume.link",  // a reactor: a link of volumes is ready
	"nbd.ready",    // a reactor: a connection to a volume's socket is ready
	"nbd.haggle",   // the negotiation before it
	"nbd.send",     // a reply to a client of a volume's socket
	"nbd.look",     // a command of it that waits for the medium in a call
	"store.read",   // a read that a store answers at once
	"store.work",   // a request to a file or block device, in a worker
	"store.sync",   // a sync of one
	"store.memory", // a request to a volume in memory
	"dial",         // an attempt to connect
	"accept",       // a connection that was accepted
	"handshake",    // and one for volumes
	"restore",      // a mapping that is brought up again
	"save",         // persistent state is written
	"reload",       // the configuration is read anew
	"page",         // a request to the page for monitoring
	"collect",      // metrics are read
	"step",         // a step of an engine, with its lock
	"step.late",    // the orders of a step, with the lock released
}

var (
	armed  bool
	target string
	nth    int64
	passed atomic.Int64
)

func init() {
	v := os.Getenv("RDSD_PANIC_POINT")
	if v == "" {
		return
	}
	name, n, ok := strings.Cut(v, ":")
	nth = 1
	if ok {
		nth, _ = strconv.ParseInt(n, 10, 64)
	}
	if !slices.Contains(Points, name) || nth < 1 {
		fmt.Fprintf(os.Stderr, "RDSD_PANIC_POINT=%s: no such point; there are %s, and a number behind a colon counts from 1\n", v, strings.Join(Points, " "))
		os.Exit(2)
	}
	target, armed = name, true
}

// Point is one point.
func Point(name string) {
	if armed {
		hit(name)
	}
}

//go:noinline
func hit(name string) {
	if name == target && passed.Add(1) == nth {
		panic("the point " + name + " of a test")
	}
}
