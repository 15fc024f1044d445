package rds

import (
	"errors"
	"math/rand"
	"reflect"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rdserr"
)

// offerer is one of two engines that get the same datagrams: as runs or one by one.
type offerer struct {
	*pair
	node    *quota.Node
	account *quota.Account
	s, r    *Socket
	runs    bool
}

// offers is what there is for an offerer.
type offers struct {
	limit                       int64
	undecided, outcomes, sndBuf int
	shared                      bool // the socket has an account
}

func newOfferer(t *testing.T, c offers) *offerer {
	o := &offerer{pair: newPair(t)}
	o.a.cfg.Conn.Trains, o.b.cfg.Conn.Trains = false, false // a train is counted as less than its datagrams
	o.a.cfg.MaxUndecided, o.a.cfg.MaxOutcomes = c.undecided, c.outcomes
	b := &Budget{Limit: c.limit}
	o.a.cfg.Budget = b
	o.node = quota.New(c.limit, b.Datagrams)
	b.Rest = o.node.Rest()
	if c.shared {
		o.account = o.node.Account(quota.User(1))
	}
	o.s, _ = o.a.Bind(5000, SocketOptions{SndBufBytes: c.sndBuf, Account: o.account})
	o.r, _ = o.b.Bind(4000, SocketOptions{RcvBufBytes: 1 << 20})
	if err := o.s.Send(o.now, o.r.Addr(), nil, 0, Quiet); err != nil { // the peer is known
		t.Fatal(err)
	}
	o.settle()
	return o
}

// settle has everything arrive, be acknowledged and be read.
func (o *offerer) settle() {
	o.run()
	o.advance(50 * time.Millisecond)
	var r Run
	o.r.Queue().RecvRun(&r, 1<<20, 1<<30)
	r.Release()
	o.r.ReadAll(o.now)
}

// ours is what is noted for the socket's account.
func (o *offerer) ours() int64 {
	if o.account == nil {
		return 0
	}
	return o.account.Used()
}

// offer gives the socket datagrams of these lengths until one is refused, and returns how
// many were accepted and why the next was not.
func (o *offerer) offer(lengths []uint32, report Report, tag uint64) (n int, err error) {
	if o.runs {
		all := 0
		for _, l := range lengths {
			all += int(l)
		}
		n = o.s.SendRun(o.now, o.r.Addr(), fuzzPayload[:all], lengths, tag, report)
	}
	run := n
	for ; n < len(lengths); n++ { // what a run does not take is offered by itself
		if err = o.s.Send(o.now, o.r.Addr(), fuzzPayload[:lengths[n]], tag+uint64(n), report); err != nil {
			break
		}
	}
	if o.runs && (run > 0 || o.account == nil) && n > run { // one of no user, or that has begun, goes as far as it may
		o.t.Errorf("a run took %d datagrams, and %d more were accepted behind it", run, n-run)
	}
	o.a.End()
	return n, err
}

// TestRunsAcceptWhatSingleSendsDo draws sockets with little of everything (send buffer, memory,
// a user's share of it, datagrams without a decision, outcomes that nobody fetches) and offers the same
// datagrams in runs and one by one: as many are accepted, for the same reason no more, and
// all accounts are the same.
func TestRunsAcceptWhatSingleSendsDo(t *testing.T) {
	whys := []error{rdserr.ErrWouldBlock, rdserr.ErrNoMemory, rdserr.ErrTooLarge}
	refusals := map[error]int{}
	for seed := range int64(100) {
		rng := rand.New(rand.NewSource(seed))
		c := offers{int64(64<<10 + rng.Intn(1<<20)), 1 << 20, 1 << 20, 1 << 20, rng.Intn(3) > 0}
		switch rng.Intn(4) {
		case 0:
			c.undecided = 1 + rng.Intn(60)
		case 1:
			c.outcomes = 1 + rng.Intn(60)
		case 2:
			c.sndBuf = 1 << rng.Intn(15)
		}
		exact := rng.Intn(3) == 0 // everything is full to the last byte
		if exact {
			c.limit = int64(1+rng.Intn(60)) * 4 * (64 + msgBytes)
			c.sndBuf = 64 << rng.Intn(15)
		}
		x, y := newOfferer(t, c), newOfferer(t, c)
		x.runs = true
		others := rng.Int63n(c.limit / 3)
		most := 1 << rng.Intn(12)
		tag := uint64(0)
		for step := range 30 {
			lengths := make([]uint32, 1+rng.Intn(40))
			for i := range lengths {
				if lengths[i] = uint32(rng.Intn(most)); exact {
					lengths[i] = 64
				}
			}
			if step%10 == 5 { // memory that others have
				for _, o := range [...]*offerer{x, y} {
					o.node.Account(quota.User(2)).Grow(quota.Clients, others)
				}
			}
			report, settle, fetch := Report(rng.Intn(2) == 0), rng.Intn(8) == 0, rng.Intn(2) == 0
			var was [2][]any
			for i, o := range [...]*offerer{x, y} {
				n, err := o.offer(lengths, report, tag)
				for _, why := range whys {
					if errors.Is(err, why) {
						refusals[why]++
					}
				}
				if settle {
					o.settle()
					if fetch {
						o.s.Queue().Outcomes(nil)
					}
				}
				info := o.s.Info()
				was[i] = []any{n, err, info, o.node.Used(), o.ours(), o.a.cfg.Budget.Sending(), o.a.cfg.Budget.Held(), o.a.Counters(), o.s.Events()}
			}
			if !reflect.DeepEqual(was[0], was[1]) {
				t.Fatalf("seed %d, step %d, %d datagrams:\nin runs\n%+v\none by one\n%+v", seed, step, len(lengths), was[0], was[1])
			}
			tag += uint64(len(lengths))
		}
	}
	for _, why := range whys {
		if refusals[why] == 0 {
			t.Errorf("nothing was refused because %v", why)
		}
	}
}
