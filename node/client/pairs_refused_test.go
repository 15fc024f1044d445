package client

import (
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
)

// TestPairRefused: a busy flow for whose pair there is no memory, or are no descriptors, has none, and
// nothing is kept of the attempt: neither charges, nor what was taken off the reader's
// buffer. When there is some again it gets one.
func TestPairRefused(t *testing.T) {
	n, cfg := startClientsWith(t, func(c *config.Config) { c.Limits.MaxDescriptors = 512 })
	addr := cfg.RDS.Addresses[0]
	local := n.hosts.Engine(addr).(*datagram.Local)
	var clients [2]*clienttest.RingClient
	var socks [2]*ringSock
	for i := range clients {
		r := clienttest.AttachRing(t, cfg, clienttest.BindTo(addr, 0))
		defer r.Close()
		clients[i] = r
		local.Lock()
		socks[i] = local.Socket(uint16(r.Bound.GetLocal().GetPort())).Options().Data.(*ringSock)
		socks[i].pairs.wanted = true
		local.Unlock()
	}
	from, to := socks[sends], socks[reads]
	account := n.deps.User(from.s.id)
	defer account.Close()
	offer := func() {
		done := make(chan struct{})
		from.react.DoFor(from, func() {
			defer close(done)
			_, now := local.Lock()
			defer local.Unlock()
			from.offerPair(now, to.sock.Addr().Port())
		})
		<-done
	}
	type state struct {
		used int64
		room int
	}
	look := func() (s state, pairs int) {
		local.Lock()
		defer local.Unlock()
		return state{account.Used(), to.sock.PairRoom()}, len(from.pairs.all) + len(to.pairs.all) + len(from.pairs.out) + len(to.pairs.in)
	}
	before, _ := look()

	var taken []int64
	for size := int64(1) << 30; size > 0; {
		if account.Take(quota.Regions, size) != nil {
			size /= 2
			continue
		}
		taken = append(taken, size)
	}
	offer()
	if _, pairs := look(); pairs != 0 || n.deps.Count.PairsOffered.Load() != 0 {
		t.Errorf("%d entries of pairs, %d offered, though the user's memory was spent", pairs, n.deps.Count.PairsOffered.Load())
	}
	for _, size := range taken {
		account.Give(quota.Regions, size)
	}
	if after, _ := look(); after != before {
		t.Errorf("memory spent: %+v, before %+v", after, before)
	}

	gone := func(what string) {
		t.Helper()
		await.Until(t, time.Minute, what+": nothing is left of the pair", func() bool {
			after, pairs := look()
			return after == before && pairs == 0
		})
	}
	var fds []int
	// Some more than there is room for: what ends in the process meanwhile gives some back.
	for more := 64; more > 0; {
		if n.deps.FDs.Room(base.PairFDs+1, base.KeepOfClients) != nil {
			more--
		}
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	offer()
	gone("no descriptors")
	clienttest.CloseFDs(fds)

	fails := func(step string) error {
		if step == "pair" {
			return syscall.ENFILE
		}
		return nil
	}
	n.clients.fails.Store(&fails)
	offer()
	gone("no memfd")
	n.clients.fails.Store(nil)
	if made := n.deps.Count.PairsOpened.Load(); made != 0 {
		t.Errorf("%d pairs were opened", made)
	}

	// The flow is not forgotten by that: it is offered one as soon as flows that did not use theirs are.
	local.Lock()
	from.pairs.unused = nil
	local.Unlock()
	offer()
	var ids []uint64
	for _, r := range clients {
		r.C.SetDeadline(time.Now().Add(time.Minute))
		raw, fds, err := r.C.ReadMessage()
		m := &rdsdv1.ServerMessage{}
		if err == nil {
			err = proto.Unmarshal(raw, m)
		}
		if err != nil || m.GetPair().GetState() != rdsdv1.PairState_PAIR_STATE_OFFERED || len(fds) != 2 {
			t.Fatalf("%v with %d descriptors, %v, where an offer was to come", m, len(fds), err)
		}
		if got := m.GetPair().GetSource().GetPort(); got != uint32(from.sock.Addr().Port()) {
			t.Errorf("the source of the offer is port %d", got)
		}
		clienttest.CloseFDs(fds)
		ids = append(ids, m.GetPair().GetId())
	}
	// Those that were not offered had numbers too. Nobody opens it, so it is given up in time.
	if ids[0] != ids[1] || ids[0] < 2 {
		t.Errorf("the pair is number %d to one end and %d to the other", ids[sends], ids[reads])
	}
	local.Lock()
	p := from.pairs.all[ids[0]]
	local.Unlock()
	await.Until(t, time.Minute, "Both are known to have been told.", func() bool {
		local.Lock()
		defer local.Unlock()
		return p.told == [2]bool{true, true}
	})
	local.Lock()
	if p.look(p.since + pairPatience - 1); p.state != pairOffered {
		t.Errorf("it is given up too early: state %d", p.state)
	}
	p.since -= pairPatience // as if so much time had passed
	local.Unlock()
	await.Until(t, time.Minute, "The pair is given up.", func() bool {
		local.Lock()
		defer local.Unlock()
		return p.state >= pairClosing
	})
}
