package nbd

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
)

// strict is an account that notes what it is asked.
type strict struct {
	left  int
	taken int
	log   []string
}

func (s *strict) Take(n int) bool {
	ok := n <= s.left
	if ok {
		s.left, s.taken = s.left-n, s.taken+n
	}
	s.log = append(s.log, fmt.Sprint("take ", n, " ", ok))
	return ok
}
func (s *strict) Grow(n int) { s.taken += n; s.log = append(s.log, fmt.Sprint("grow ", n)) }
func (s *strict) Give(n int) {
	s.left, s.taken = s.left+n, s.taken-n
	s.log = append(s.log, fmt.Sprint("give ", n))
}
func (s *strict) Close() {}

func (s *strict) said() string {
	l := strings.Join(s.log, ", ")
	s.log = nil
	return l
}

// TestChargeStepByStep: what a connection holds beyond what it is charged anyway is taken
// in steps, or to the byte where a step is too much; it goes back when two steps are not
// needed any more, and all of it with the last of it.
func TestChargeStepByStep(t *testing.T) {
	a := &strict{left: 1 << 30}
	srv := &Server{opts: Options{MaxRequests: 10, MaxBytes: 1 << 30, Linger: time.Hour}}
	c := &conn{srv: srv, charge: a}
	c.room.L = &c.mu
	is := func(what string, ok, want bool, said string, charged int) {
		t.Helper()
		if got := a.said(); ok != want || got != said || c.charged != charged || a.taken != charged {
			t.Errorf("%s: %v, %q, %d charged (%d taken); want %v, %q, %d", what, ok, got, c.charged, a.taken, want, said, charged)
		}
	}
	hold := func(n int) { c.bytes, c.inFlight = n, 1 }
	is("what is free", c.afford(connFree), true, "", 0)
	is("a byte more", c.afford(connFree+1), true, "take 262144 true", chargeStep)
	hold(connFree)
	is("what is charged", c.afford(chargeStep), true, "", chargeStep)
	is("a byte more than that", c.afford(chargeStep+1), true, "take 262144 true", 2*chargeStep)
	is("two steps and a bit", c.afford(4*chargeStep+1), true, "take 786432 true", 5*chargeStep)
	hold(connFree + 3*chargeStep + 1)
	c.returnCharge()
	is("less than two steps are spare", true, true, "", 5*chargeStep)
	hold(connFree + 3*chargeStep)
	c.returnCharge()
	is("two steps are spare", true, true, "give 524288", 3*chargeStep)
	hold(connFree + 1)
	c.returnCharge()
	is("nearly all is spare", true, true, "give 786431", 1)
	hold(connFree)
	c.returnCharge()
	is("all of it is", true, true, "give 1", 0)
	c.returnCharge()
	is("nothing is charged", true, true, "", 0)
	c.bytes, c.inFlight = 0, 0
	a.left = chargeStep - 1
	hold(connFree)
	is("a step is too much", c.afford(100), true, "take 262144 false, take 100 true", 100)
	c.bytes, c.inFlight = 0, 0
	c.returnCharge()
	is("back", true, true, "give 100", 0)
	hold(0)
	c.asking = true // no timer: the test is the one who looks again
	is("all is too much", c.afford(connFree+chargeStep), false, "take 262144 false, take 262144 false", 0)
	c.inFlight = 0
	is("the only one of a server is not refused", c.afford(connFree+chargeStep), true, "take 262144 false, take 262144 false, grow 262144", chargeStep)
	if srv.reserve.Load() != c {
		t.Error("nobody has the reserve")
	}
	other := &conn{srv: srv, charge: &strict{}, asking: true}
	if other.afford(connFree + 1) {
		t.Error("two have the reserve")
	}
	c.returnCharge()
	is("the reserve goes back", true, true, "give 262144", 0)
	if srv.reserve.Load() != nil {
		t.Error("somebody has the reserve still")
	}
	if !other.afford(connFree+1) || srv.reserve.Load() != other {
		t.Error("the next one has it")
	}
	c.returnCharge()
	if srv.reserve.Load() != other {
		t.Error("the reserve of another is given back")
	}
	if free := (&conn{srv: srv}); !free.afford(1 << 40) {
		t.Error("where nobody counts there is enough")
	}
}

// TestWhatACommandNeeds: how much memory the reader waits for, by command.
func TestWhatACommandNeeds(t *testing.T) {
	for what, x := range map[string]struct {
		q     request
		there int
		bad   error
		want  int
	}{
		"a read":                         {request{cmd: cmdRead, n: 5000}, 0, nil, bufSize(5000)},
		"a read that is refused":         {request{cmd: cmdRead, n: 5000}, 0, blk.ErrRange, 0},
		"a write that is there":          {request{cmd: cmdWrite, n: bigWrite}, bigWrite, nil, 0},
		"a large one in part":            {request{cmd: cmdWrite, n: bigWrite}, bigWrite - 1, nil, bufSize(bigWrite)},
		"a small one in part":            {request{cmd: cmdWrite, n: bigWrite - 1}, 0, nil, 0},
		"a large one in part, refused":   {request{cmd: cmdWrite, n: bigWrite}, 0, blk.ErrRange, 0},
		"a large trim":                   {request{cmd: cmdTrim, n: 1 << 30}, 0, nil, 0},
		"large zeroes":                   {request{cmd: cmdWriteZeroes, n: 1 << 30}, 0, nil, 0},
		"a flush":                        {request{cmd: cmdFlush}, 0, nil, 0},
		"a status":                       {request{cmd: cmdBlockStatus, n: 1 << 30}, 0, nil, bufSize(statusSize)},
		"what is to be cached":           {request{cmd: cmdCache, n: 1 << 30}, 0, nil, bufSize(statusSize)},
		"a status that was not agreed":   {request{cmd: cmdBlockStatus, n: 512}, 0, blk.ErrRequest, 0},
		"what is read is there already?": {request{cmd: cmdRead, n: 512}, 4096, nil, bufSize(512)},
	} {
		c := &conn{srv: &Server{opts: Options{MaxRequests: 1, MaxBytes: 1}}, need: 77}
		if c.lacksRoom(&x.q, x.there, x.bad) || c.need != x.want {
			t.Errorf("%s: needs %d, want %d", what, c.need, x.want)
		}
		c.inFlight, c.made = 1, 1 // all that it may have
		if !c.lacksRoom(&x.q, x.there, x.bad) {
			t.Errorf("%s: there is room beside all there may be", what)
		}
	}
}

// TestGatherIsBounded: one round takes what its headers, its pieces and its bytes allow,
// in order; the rest goes first the next time.
func TestGatherIsBounded(t *testing.T) {
	for what, x := range map[string]struct {
		data int
		err  error
		most int // of one round
	}{
		"headers":      {0, nil, (hdrSpace-maxHeader)/simpleSize + 1},
		"long headers": {0, fmt.Errorf("%s%w", strings.Repeat("x", 300), blk.ErrMedium), (hdrSpace-maxHeader)/maxHeader + 1},
		"data":         {1, nil, (hdrSpace-maxHeader)/(structuredSize+8) + 1},
		"bytes":        {1 << 20, nil, sendBytes >> 20},
	} {
		c := &conn{srv: &Server{}, structured: true}
		c.room.L = &c.mu
		data := make([]byte, x.data)
		n := uint64(1500)
		if x.data > 1 {
			n = 10
		}
		for i := range n {
			o := &op{cookie: i, cmd: cmdWrite, err: x.err}
			if x.data > 0 {
				o.cmd, o.data = cmdRead, data
			}
			c.out.push(o)
		}
		c.sending, c.inFlight = true, int(n)
		next, rounds := uint64(0), 0
		for ; c.gather(); rounds++ {
			k := 0
			for o := c.sent.head; o != nil; o = o.next {
				if o.cookie != next {
					t.Fatalf("%s: reply %d in the place of %d", what, o.cookie, next)
				}
				next++
				k++
			}
			if k > x.most || next < n && k < x.most-1 || len(c.hdrs) > cap(c.hdrs) || cap(c.hdrs) != hdrSpace || len(c.vec) > maxVec {
				t.Fatalf("%s: a round of %d replies, %d bytes of headers in %d, %d pieces; want %d", what, k, len(c.hdrs), cap(c.hdrs), len(c.vec), x.most)
			}
			all := bytes.Join(c.vec, nil)
			if want := len(c.hdrs) + k*x.data; len(all) != want {
				t.Fatalf("%s: %d bytes to write, want %d", what, len(all), want)
			}
			for _, step := range []int{0, 1, 7, len(all) / 2} { // what has left is taken off, whatever it was
				if c.advance(step); step < len(all) && !bytes.Equal(bytes.Join(c.vec, nil), all[step:]) {
					t.Fatalf("%s: something else is left after %d bytes", what, step)
				}
				all = all[step:]
			}
			if c.advance(len(all)); len(c.vec) != 0 || c.sent.head != nil {
				t.Fatalf("%s: something is left", what)
			}
		}
		if next != n || c.inFlight != 0 || c.sending || c.gather() {
			t.Errorf("%s: %d of %d replies in %d rounds; %d in flight, sending %v", what, next, n, rounds, c.inFlight, c.sending)
		}
	}
}

// TestWaitsAreTimed: how long a connection with the reserve has waited for its client, one
// wait after the other and the one under way; of others nothing is timed.
func TestWaitsAreTimed(t *testing.T) {
	srv := &Server{opts: Options{Linger: time.Second}}
	c := &conn{srv: srv}
	var a awaited
	a.begin(c)
	a.end()
	if a.since.Load() != 0 || a.time(time.Since(start)+time.Hour) != 0 {
		t.Error("one without the reserve is timed")
	}
	srv.reserve.Store(c)
	a.begin(c)
	began := a.since.Load()
	if began == 0 || a.time(time.Duration(began)+5) != 5 || a.time(time.Duration(began)-5) != 0 {
		t.Errorf("a wait under way: %v", a.time(time.Duration(began)+5))
	}
	a.end()
	spent := a.spent.Load()
	if spent < 0 || a.since.Load() != 0 || a.time(time.Since(start)+time.Hour) != time.Duration(spent) {
		t.Errorf("a wait that is over: %v", spent)
	}
	a.end()
	if a.spent.Load() != spent {
		t.Error("one wait is counted twice")
	}
	a.spent.Store(1000)
	a.begin(c)
	if got := a.time(time.Duration(a.since.Load()) + 5); got != 1005 {
		t.Errorf("a second wait: %v", got)
	}
	a.forget()
	if a.since.Load() != 0 || a.spent.Load() != 0 {
		t.Error("not forgotten")
	}
}

// TestPromisedRoomStays: what the reader has found room for it takes without waiting, although
// another thread gives back what an earlier request had, and other connections take all of that:
// on a reactor nothing else would go on.
func TestPromisedRoomStays(t *testing.T) {
	const n = 1 << 20
	p := &purse{limit: 8 << 20}
	c := &conn{srv: &Server{opts: Options{MaxRequests: 10, MaxBytes: 1 << 30, Linger: time.Hour}}, charge: p}
	c.room.L = &c.mu
	small, large := c.takeOp(4096), c.takeOp(n)
	q := request{cmd: cmdRead, n: n}
	if c.lacksRoom(&q, 0, nil) {
		t.Fatal("there is no room")
	}
	freed := make(chan struct{})
	go func() {
		c.release(large)
		close(freed)
	}()
	<-freed
	rest := p.limit - p.held()
	if !p.Take(rest) {
		t.Fatal("the rest cannot be had")
	}
	taken := make(chan *op)
	go func() { taken <- c.start(&q, bufSize(n)) }()
	select {
	case large = <-taken:
	case <-time.After(5 * time.Second):
		p.Give(rest)
		<-taken
		t.Fatal("it waits for room that it had found")
	}
	if got, want := c.charged, c.bytes-connFree; got < want || c.promised != 0 {
		t.Errorf("%d charged for %d bytes, %d promised", got, want, c.promised)
	}
	// One that is refused is promised nothing.
	p.Give(rest)
	if q.n = 4096; c.lacksRoom(&q, 0, nil) || c.promised != 4096 {
		t.Fatalf("%d promised", c.promised)
	}
	if c.lacksRoom(&q, 0, blk.ErrRange) || c.promised != 0 {
		t.Errorf("%d promised to one that is refused", c.promised)
	}
	c.release(small)
	c.release(large)
	if c.charged != 0 {
		t.Errorf("%d charged at the end", c.charged)
	}
}

// TestPromisedBuffer: likewise for a receive buffer beside the one that the device reads in.
func TestPromisedBuffer(t *testing.T) {
	p := &purse{limit: 8 << 20}
	c := &conn{srv: &Server{opts: Options{MaxRequests: 10, MaxBytes: 1 << 30, Linger: time.Hour}}, charge: p}
	c.room.L = &c.mu
	c.newBuf()
	c.r, c.w = recvSize-1, recvSize
	old := c.rb
	old.refs.Add(1) // the device
	if !c.makeRoom(requestSize) || c.rb == old || c.promised != 0 || c.charged < c.bytes-connFree {
		t.Errorf("%d promised, %d charged for %d bytes", c.promised, c.charged, c.bytes)
	}
	old.release()
	if c.charged != 0 || c.bytes != 0 {
		t.Errorf("%d charged for %d bytes at the end", c.charged, c.bytes)
	}
}

// TestPreferredBlocks: a client is told to prefer blocks of a page at least, of more where
// the store does.
func TestPreferredBlocks(t *testing.T) {
	for physical, want := range map[uint32]uint32{512: 4096, 4096: 4096, 65536: 65536} {
		info := everything
		info.PhysicalBlock = physical
		s, err := NewServer(Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Add(Export{Device: newNoting(info)}); err != nil {
			t.Fatal(err)
		}
		nc := newTape(bytes.Join([][]byte{{0, 0, 0, 3}, option(optGo, infoData("", infoBlockSize))}, nil), 9)
		if _, err := haggle(nc, s); err != nil {
			t.Fatal(err)
		}
		said := append(append(u16(infoBlockSize), u32(512)...), append(u32(int(want)), u32(maxPayload)...)...)
		if !bytes.Contains(nc.out.Bytes(), said) {
			t.Errorf("blocks of %d bytes: % x is not in % x", physical, said, nc.out.Bytes())
		}
	}
}
