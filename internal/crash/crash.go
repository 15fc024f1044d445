package crash

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// Names of all points, in the order in which a datagram passes them.
var Names = []string{
	// Taking a send descriptor.
	"ring.claim",         // claimed, nothing else
	"ring.accept.entry",  // ledger entry made, not counted
	"ring.accept.count",  // account stored, head not
	"ring.accept.ledger", // the ledger says it is taken, the region not yet
	"ring.accept.head",   // the region too
	// Publishing outcomes.
	"ring.outcome.event",   // event in the ring, entry marked
	"ring.outcome.account", // account stored, tail not
	"ring.outcome.ledger",  // the ledger says it is published
	"ring.outcome.tail",    // the client sees it, the entry is still there
	"ring.outcome.free",    // one entry is free
	// Publishing received datagrams.
	"ring.receive.place",    // payload and descriptor written, nothing recorded
	"ring.receive.refusals", // the lane's refusals stored
	"ring.receive.record",   // commit record written, not valid
	"ring.receive.valid",    // commit record valid, nothing done
	"ring.receive.tail",     // one region's tail is visible
	"ring.receive.table",    // one region's tail is in the region table
	"ring.receive.lane",     // the lane is up to date, the record still valid
	"ring.receive.done",     // the record is cleared
	// Taking releases.
	"ring.release",
}

// Armed says that a point is armed in this process. A point on the way of each datagram is
// passed if it is set, and costs a load and a branch that is never taken otherwise.
var Armed bool

var (
	target string
	nth    int64
	passed atomic.Int64
)

func init() {
	v := os.Getenv("RDSD_CRASH_POINT")
	if v == "" {
		return
	}
	name, n, ok := strings.Cut(v, ":")
	nth = 1
	if ok {
		var err error
		if nth, err = strconv.ParseInt(n, 10, 64); err != nil || nth < 1 {
			fmt.Fprintf(os.Stderr, "RDSD_CRASH_POINT=%s: the number behind the colon counts passages from 1\n", v)
			os.Exit(2)
		}
	}
	for _, k := range Names {
		if k == name {
			target, Armed = name, true
			return
		}
	}
	fmt.Fprintf(os.Stderr, "RDSD_CRASH_POINT=%s: no such point; there are %s\n", v, strings.Join(Names, " "))
	os.Exit(2)
}

// Point is one point.
func Point(name string) {
	if Armed && name == target && passed.Add(1) == nth {
		syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	}
}
