package shm

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// An explicit-state model of the ring protocol: a client that posts, a daemon
// that takes, every interleaving of their steps and of their store buffers.
//
// Memory is that of x86 (total store order): a plain store waits in the
// thread's own buffer, where only that thread sees it, and reaches memory at any later time, in
// order; an atomic read-modify-write empties the buffer first. (Go's atomic stores are exchanges, so
// they are of the second kind.) A step makes one access to memory. Steps bear
// the names of what they stand for in host_send.go, host.go and client_send.go.
//
// The daemon's doorbell is watched edge-triggered and never read: a ring is an
// event that waits until epoll is asked, once. Epoll is asked not only by a daemon
// that sleeps but by one that is awake, too, at any moment (fetch); it then looks
// at the ring again before it sleeps.
//
// Checked in every state: each datagram arrives once, in order, unmixed; and
// the end can still be reached (no wake-up is lost).
// Then rules are broken one by one, and the model must find each.

const (
	mTail = iota
	mHead
	mWord0 // words of the ring: number of datagrams, and claimed
	mWord1
	mBody0 // bodies of the two: up to two datagrams each, 4 bits for one
	mBody1
	mDaemonSleeps
	mDaemonBell
	mClientSleeps
	mClientBell
	mWords
)

const (
	mClaimed = 0x80
	mBuffer  = 4 // stores in a buffer
)

type mStore struct{ at, v uint8 }

type mThread struct {
	pc  uint8
	r   [5]uint8 // registers
	buf [mBuffer]mStore
	n   uint8
}

type mState struct {
	mem [mWords]uint8
	t   [2]mThread // client, daemon
	got [4]uint8   // what the daemon took
	n   uint8
}

// What can be broken.
type mRules struct {
	datagrams       uint8
	ring            uint8 // entries, 1 or 2
	noRecheck       bool  // the daemon sleeps without a second look
	plainSleep      bool  // "sleeps" is a plain store: no barrier before the second look
	noBarrier       bool  // the client looks at "sleeps" without a barrier after the tail
	tailFirst       bool  // the tail is stored before the entry
	claimStore      bool  // the claim is a store, not a compare-and-exchange
	appendStore     bool  // appending is a store, not a compare-and-exchange
	headFirst       bool  // the head moves before the body is read
	bellLate        bool  // the doorbell is cleared after the second look
	edgeLost        bool  // the event of a ring is fetched for a ring that sleeps, and nobody looks there
	ringWithoutSwap bool  // the client rings and leaves "sleeps" as it is (correct, only rings more)
	roomNoRecheck   bool  // the client waits for room without a second look
	roomNoBarrier   bool  // the daemon looks at the client's "sleeps" without a barrier after the head
	roomNoWake      bool  // the daemon does not tell that there is room
}

func (t *mThread) load(s *mState, at uint8) uint8 {
	for i := int(t.n) - 1; i >= 0; i-- {
		if t.buf[i].at == at {
			return t.buf[i].v
		}
	}
	return s.mem[at]
}

// store is a plain store; false when the buffer is full.
func (t *mThread) store(at, v uint8) bool {
	if t.n == mBuffer {
		return false
	}
	t.buf[t.n] = mStore{at, v}
	t.n++
	return true
}

// swap is an exchange; ok is false while the buffer is not empty.
func (t *mThread) swap(s *mState, at, v uint8) (was uint8, ok bool) {
	if t.n > 0 {
		return 0, false
	}
	was = s.mem[at]
	s.mem[at] = v
	return was, true
}

func (t *mThread) cas(s *mState, at, old, v uint8) (done, ok bool) {
	if t.n > 0 {
		return false, false
	}
	if s.mem[at] != old {
		return false, true
	}
	s.mem[at] = v
	return true, true
}

func (s *mState) flush(i int) {
	t := &s.t[i]
	s.mem[t.buf[0].at] = t.buf[0].v
	copy(t.buf[:], t.buf[1:])
	t.n--
	t.buf[t.n] = mStore{}
}

// Registers of the client.
const (
	cNext  = iota // datagram to be posted
	cTail         // its tail
	cHead         // the head it knows
	cWord         // a word it loaded
	cCount        // datagrams in its newest descriptor; 0: none to append to
)

// client makes the client's next step; false: it cannot now.
func (c *mRules) client(s *mState) bool {
	t := &s.t[0]
	newest := (t.r[cTail] - 1) % c.ring
	switch t.pc {
	case 0: // post the next one: append, or a descriptor of its own
		switch {
		case t.r[cNext] > c.datagrams:
			return false // done
		case t.r[cCount] == 1:
			t.pc = 1
		default:
			t.pc = 5
		}
	case 1: // append: is it claimed?
		t.r[cWord] = t.load(s, mWord0+newest)
		t.pc = 2
		if t.r[cWord]&mClaimed != 0 {
			t.r[cCount], t.pc = 0, 5
		}
	case 2: // append: the payload behind the others
		if !t.store(mBody0+newest, t.load(s, mBody0+newest)|t.r[cNext]<<4) {
			return false
		}
		t.pc = 3
	case 3: // append: the word
		done, ok := true, false
		if c.appendStore {
			ok = t.store(mWord0+newest, t.r[cWord]+1)
		} else {
			done, ok = t.cas(s, mWord0+newest, t.r[cWord], t.r[cWord]+1)
		}
		if !ok {
			return false
		}
		t.r[cCount], t.pc = 0, 5
		if done {
			t.r[cNext]++
			t.pc = 0 // whoever posted the descriptor has woken the daemon
		}
	case 5: // is there room?
		t.pc = 6
		if t.r[cTail]-t.r[cHead] == c.ring {
			t.r[cHead] = t.load(s, mHead)
			if t.r[cTail]-t.r[cHead] == c.ring {
				t.pc = 12
			}
		}
	case 6, 7, 8: // body, word, tail
		at, v := uint8(mBody0)+t.r[cTail]%c.ring, t.r[cNext]
		step := t.pc - 6
		if c.tailFirst {
			step = (step + 2) % 3
		}
		switch step {
		case 1:
			at, v = mWord0+t.r[cTail]%c.ring, 1
		case 2:
			at, v = mTail, t.r[cTail]+1
		}
		if !t.store(at, v) {
			return false
		}
		if t.pc++; t.pc == 9 {
			t.r[cNext]++
			t.r[cTail]++
			t.r[cCount] = 1
		}
	case 9: // a full barrier (the tail's store is an exchange)
		if !c.noBarrier && t.n > 0 {
			return false
		}
		t.pc = 10
	case 10: // does the daemon sleep?
		t.pc = 11
		if t.load(s, mDaemonSleeps) == 0 {
			t.pc = 0
		}
	case 11: // wake it
		was := uint8(1)
		if !c.ringWithoutSwap {
			var ok bool
			if was, ok = t.swap(s, mDaemonSleeps, 0); !ok {
				return false
			}
		}
		if was != 0 {
			s.mem[mDaemonBell] = 1 // a system call
		}
		t.pc = 0
	case 12: // wait for room
		if _, ok := t.swap(s, mClientSleeps, 1); !ok {
			return false
		}
		t.pc = 13
		if c.roomNoRecheck {
			t.pc = 14
		}
	case 13: // look once more
		t.r[cHead] = t.load(s, mHead)
		t.pc = 14
		if t.r[cTail]-t.r[cHead] < c.ring {
			t.pc = 15
		}
	case 14: // poll
		if s.mem[mClientBell] == 0 {
			return false
		}
		s.mem[mClientBell] = 0
		t.pc = 15
	case 15: // awake
		if _, ok := t.swap(s, mClientSleeps, 0); !ok {
			return false
		}
		t.pc = 5
	}
	return true
}

// Registers of the daemon.
const (
	dHead = iota
	dTail
	dWord
)

// daemon makes the daemon's next step; false: it cannot now.
func (c *mRules) daemon(s *mState) (ok bool, bad string) {
	t := &s.t[1]
	at := t.r[dHead] % c.ring
	switch t.pc {
	case 0: // Next: is there one?
		t.r[dTail] = t.load(s, mTail)
		t.pc = 1
		if t.r[dTail] == t.r[dHead] {
			t.pc = 7
		}
	case 1: // claim: load
		t.r[dWord] = t.load(s, mWord0+at)
		if t.pc = 2; c.headFirst {
			t.pc = 4
		}
	case 2: // claim: compare-and-exchange
		done, ok := true, false
		if c.claimStore {
			ok = t.store(mWord0+at, t.r[dWord]|mClaimed)
		} else {
			done, ok = t.cas(s, mWord0+at, t.r[dWord], t.r[dWord]|mClaimed)
		}
		if !ok {
			return false, ""
		}
		if t.pc = 1; done {
			t.pc = 3
		}
	case 3: // the body
		body := t.load(s, mBody0+at)
		if n := t.r[dWord]; n < 1 || n > 2 {
			return false, fmt.Sprintf("a descriptor of %#x", n)
		}
		for range t.r[dWord] {
			if int(s.n) == len(s.got) {
				return false, "too many datagrams"
			}
			s.got[s.n] = body & 15
			if s.n++; s.got[s.n-1] != s.n {
				return false, fmt.Sprintf("datagrams %v", s.got[:s.n])
			}
			body >>= 4
		}
		if t.pc = 4; c.headFirst {
			t.r[dHead]++
			t.pc = 0
		}
	case 4: // Taken: the head
		if c.roomNoBarrier {
			if !t.store(mHead, t.r[dHead]+1) {
				return false, ""
			}
		} else if _, ok := t.swap(s, mHead, t.r[dHead]+1); !ok {
			return false, ""
		}
		if t.pc = 5; c.headFirst {
			t.pc = 3
			break
		}
		t.r[dHead]++
		if c.roomNoWake {
			t.pc = 0
		}
	case 5: // Publish: does the client sleep?
		t.pc = 6
		if t.load(s, mClientSleeps) == 0 {
			t.pc = 0
		}
	case 6: // wake it
		was, ok := t.swap(s, mClientSleeps, 0)
		if !ok {
			return false, ""
		}
		if was != 0 {
			s.mem[mClientBell] = 1
		}
		t.pc = 0
	case 7: // Sleep: declare
		if s.n == c.datagrams && s.t[0].r[cNext] > c.datagrams {
			return false, "" // done; the model stops here, asleep or not
		}
		if c.plainSleep {
			if !t.store(mDaemonSleeps, 1) {
				return false, ""
			}
		} else if _, ok := t.swap(s, mDaemonSleeps, 1); !ok {
			return false, ""
		}
		if t.pc = 8; c.noRecheck {
			t.pc = 9
		}
	case 8: // look once more
		t.pc = 9
		if t.load(s, mTail) != t.r[dHead] {
			t.pc = 10
		} else if c.bellLate {
			t.pc = 11
		}
	case 9: // poll, read the doorbell
		if s.mem[mDaemonBell] == 0 {
			return false, ""
		}
		s.mem[mDaemonBell] = 0
		t.pc = 10
	case 10: // Wake
		if _, ok := t.swap(s, mDaemonSleeps, 0); !ok {
			return false, ""
		}
		t.pc = 0
	case 11: // wrong: clear what rang since
		s.mem[mDaemonBell] = 0
		t.pc = 9
	}
	return true, ""
}

// fetch is a daemon that is awake and gets the event of a ring; false: there is none.
func (c *mRules) fetch(s *mState) bool {
	t := &s.t[1]
	if s.mem[mDaemonBell] == 0 || t.pc > 7 && !(c.edgeLost && t.pc == 9) {
		return false
	}
	s.mem[mDaemonBell] = 0
	if t.pc == 7 {
		t.pc = 0 // Hot: it is looked at again
	}
	return true
}

// explore visits every state that can be reached and returns what goes wrong
// first, with the way there: a bad step, or a state from which done cannot be
// reached any more, be it stuck or going round for ever. next calls visit with
// each state that may follow and the name of the step.
func explore[S comparable](start S, next func(s S, visit func(S, string)) (bad string), done func(S) bool) (states int, wrong string) {
	type node struct {
		s      S
		parent int
		step   string
		before []int // states that lead here
		good   bool  // done can be reached
	}
	all := []node{{s: start}}
	index := map[S]int{start: 0}
	trace := func(i int, what string) string {
		var steps []string
		for ; i != 0; i = all[i].parent {
			steps = append(steps, all[i].step)
		}
		slices.Reverse(steps)
		return what + ": " + strings.Join(steps, " ")
	}
	var good []int
	for i := 0; i < len(all); i++ {
		bad := next(all[i].s, func(n S, step string) {
			k, ok := index[n]
			if !ok {
				k = len(all)
				index[n] = k
				all = append(all, node{s: n, parent: i, step: step})
			}
			all[k].before = append(all[k].before, i)
		})
		if bad != "" {
			return len(all), trace(i, bad)
		}
		if done(all[i].s) {
			all[i].good = true
			good = append(good, i)
		}
	}
	for len(good) > 0 {
		i := good[len(good)-1]
		good = good[:len(good)-1]
		for _, k := range all[i].before {
			if !all[k].good {
				all[k].good = true
				good = append(good, k)
			}
		}
	}
	for i := range all {
		if !all[i].good {
			return len(all), trace(i, "the end cannot be reached")
		}
	}
	return len(all), ""
}

func (c *mRules) explore() (states int, wrong string) {
	start := mState{}
	start.t[0].r[cNext] = 1
	return explore(start, func(s mState, visit func(mState, string)) string {
		if n := s; c.client(&n) {
			visit(n, fmt.Sprint("c", s.t[0].pc))
		}
		n := s
		ok, bad := c.daemon(&n)
		if ok {
			visit(n, fmt.Sprint("d", s.t[1].pc))
		}
		if n := s; c.fetch(&n) {
			visit(n, "edge")
		}
		for i := range s.t {
			if s.t[i].n > 0 {
				n := s
				n.flush(i)
				visit(n, fmt.Sprint("flush", i))
			}
		}
		return bad
	}, func(s mState) bool { return s.n == c.datagrams })
}

func TestModel(t *testing.T) {
	for n := uint8(1); n <= 4; n++ {
		for ring := uint8(1); ring <= 2; ring++ {
			c := mRules{datagrams: n, ring: ring}
			states, wrong := c.explore()
			t.Logf("%d datagrams, a ring of %d: %d states", n, ring, states)
			if wrong != "" {
				t.Errorf("%d datagrams, a ring of %d: %s", n, ring, wrong)
			}
		}
	}
	c := mRules{datagrams: 3, ring: 2, ringWithoutSwap: true}
	if _, wrong := c.explore(); wrong != "" {
		t.Errorf("ringing more than needed: %s", wrong)
	}
}

// TestModelBroken: what the protocol forbids goes wrong, and the model sees it.
func TestModelBroken(t *testing.T) {
	for name, c := range map[string]mRules{
		"no second look before sleeping":     {noRecheck: true},
		"sleeping without a barrier":         {plainSleep: true},
		"posting without a barrier":          {noBarrier: true},
		"the tail before the entry":          {tailFirst: true},
		"claiming by a store":                {claimStore: true},
		"appending by a store":               {appendStore: true},
		"the head before the body was read":  {headFirst: true},
		"the doorbell cleared too late":      {bellLate: true},
		"an edge taken and not acted upon":   {edgeLost: true},
		"no second look before waiting":      {roomNoRecheck: true},
		"taking without a barrier":           {roomNoBarrier: true},
		"taking without telling of the room": {roomNoWake: true},
	} {
		c.datagrams, c.ring = 4, 2
		if c.roomNoBarrier {
			c.ring = 1 // in a larger one the next claim is the barrier
		}
		if _, wrong := c.explore(); wrong == "" {
			t.Errorf("%s: nothing went wrong", name)
		} else {
			t.Logf("%s: %s", name, wrong)
		}
	}
}
