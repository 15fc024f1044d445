package node

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/rds"
)

// TestDrainKeepsPorts: an end that is asked for is no unbind: what clients had bound is held
// for them in the next life, as after a crash.
func TestDrainKeepsPorts(t *testing.T) {
	cfg := testConfig(t)
	cfg.RDS.RestartHold.Duration, cfg.API.DrainTimeout.Duration = time.Second, 1500*time.Millisecond
	lives := func(before int, use func(n *Node)) {
		t.Helper()
		n, err := New(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		stop := startNode(t, n)
		held := 0
		for _, h := range n.hosts.Locals() {
			e, _ := h.Lock()
			held += e.Held()
			h.Unlock()
		}
		if held != before {
			t.Errorf("%d ports are held, want %d", held, before)
		}
		use(n)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	local := cfg.RDS.Addresses[0]
	lives(0, func(n *Node) {
		mustBind(t, cfg, bindTo(local, 4100))
		mustBind(t, cfg, bindTo(local, 4200))
	})
	lives(2, func(n *Node) {})
	lives(2, func(n *Node) { // what is under way keeps it for longer than it would have held them
		s := mustBind(t, cfg, bindTo(local, 0))
		s.send(batchOf(1, netip.AddrPortFrom(loopbackAddr(), 4000), "x"))
		if got := resultString(want(s, asResult)); got != "id 1 accepted 1" {
			t.Fatal(got)
		}
	})
	lives(3, func(n *Node) {})
}

// TestHoldBeginsAtReady: ports are held from when their clients can bind them again, however long
// the start waits for the stores of volumes.
func TestHoldBeginsAtReady(t *testing.T) {
	const hold = 500 * time.Millisecond
	_, cfg, stop := stoppable(t, freePort(t), func(c *config.Config) { c.RDS.RestartHold = config.Duration{Duration: hold} })
	mustBind(t, cfg, bindTo(cfg.RDS.Addresses[0], 4100))
	mustBind(t, cfg, bindTo(cfg.RDS.Addresses[0], 4200))
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	n, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	n.tune = func(*volume.Deps) { time.Sleep(2 * hold) } // as a store that does not answer
	h := n.hosts.Locals()[0]
	held := func() int {
		e, _ := h.Lock()
		defer h.Unlock()
		return e.Held()
	}
	startNode(t, n)
	if n := held(); n != 2 {
		t.Errorf("%d ports are held when their clients can bind them, want 2", n)
	}
	await.Until(t, 10*time.Second, "they are given up", func() bool { return held() == 0 })
}

// stoppable is a node of the given RDS port that its test stops.
func stoppable(t *testing.T, port uint16, change func(*config.Config)) (n *Node, cfg *config.Config, stop func() error) {
	t.Helper()
	cfg = testConfig(t)
	cfg.RDS.Addresses, cfg.RDS.Port = []netip.Addr{loopbackAddr()}, port
	if change != nil {
		change(cfg)
	}
	n, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return n, cfg, startNode(t, n)
}

// reading is a socket whose client has given credit for so many datagrams.
func reading(t *testing.T, cfg *config.Config, port uint16, credit uint32) *testSocket {
	t.Helper()
	b := &rdsdv1.Bind{}
	b.SetLocal(client.EndpointPB(endpointOf(cfg, port)))
	b.SetRecvBufferBytes(4096)
	b.SetInitialCreditDatagrams(credit)
	b.SetInitialCreditBytes(uint64(credit) << 20)
	return mustBind(t, cfg, b)
}

// readOn reads until the stream ends.
func (s *testSocket) readOn() {
	for {
		if _, err := s.stream.Recv(); err != nil {
			return
		}
	}
}

// TestDrainFailsNothing: what peers have for a slow reader, and go on sending to a quick one, is no
// datagram for a port that nobody has when the reader's daemon stops in order.
func TestDrainFailsNothing(t *testing.T) {
	port := freePort(t)
	from, fromCfg, _ := stoppable(t, port, nil)
	to, toCfg, stop := stoppable(t, port, nil)
	slow := reading(t, toCfg, 4300, 0)
	quick := mustBind(t, toCfg, bindTo(toCfg.RDS.Addresses[0], 4301))
	s := mustBind(t, fromCfg, bindTo(fromCfg.RDS.Addresses[0], 0))
	large := strings.Repeat("x", 3000)
	await.Until(t, 20*time.Second, "the port is congested", func() bool {
		s.send(batchOf(1, slow.local, large))
		return len(want(s, asResult).GetErrors()) > 0
	})
	wait := batchOf(2, slow.local, large, large, large)
	wait.SetWait(true)
	s.send(wait)
	ended := make(chan struct{})
	go func() { // the quick one reads until the end
		defer close(ended)
		quick.readOn()
	}()
	go s.readOn() // ends with the test
	sends := make(chan struct{})
	go func() {
		defer close(sends)
		for {
			select {
			case <-ended:
				return
			default:
				s.send(batchOf(3, quick.local, "y"))
				time.Sleep(100 * time.Microsecond)
			}
		}
	}()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	<-sends
	h := from.hosts.Locals()[0]
	await.Until(t, 10*time.Second, "the link is down", func() bool {
		e, _ := h.Lock()
		defer h.Unlock()
		pe := e.Known(toCfg.RDS.Addresses[0])
		return pe != nil && !pe.Conn().Up()
	})
	h.EachSocket(func(_ *rds.Engine, s *rds.Socket) {
		if st := s.Info().Stats; st.Failed != 0 || st.Accepted == 0 {
			t.Errorf("the sender: %+v", st)
		}
	})
	var shot datagram.Snapshot
	to.hosts.Read(&shot)
	if n := shot.Counters.RefuseNoPort; n != 0 {
		t.Errorf("%d datagrams were refused for want of a port", n)
	}
}

// TestDrainIsRead: what was reported as delivered gets to a client that reads slowly, as a moment
// allows, although no datagram is under way any more and no kernel is there.
func TestDrainIsRead(t *testing.T) {
	_, cfg, stop := stoppable(t, freePort(t), func(c *config.Config) { c.API.DrainTimeout = config.Duration{} })
	const datagrams = 100
	r := reading(t, cfg, 4300, 0)
	s := mustBind(t, cfg, bindTo(cfg.RDS.Addresses[0], 0))
	s.send(batchOf(1, r.local, slices.Repeat([]string{"x"}, datagrams)...))
	if got := resultString(want(s, asResult)); got != "id 1 accepted 100" {
		t.Fatal(got)
	}
	ended := make(chan struct{})
	go func() { // grants until the stream ends
		for {
			select {
			case <-ended:
				return
			case <-time.After(10 * time.Millisecond):
			}
			c := &rdsdv1.Credit{}
			c.SetDatagrams(20)
			c.SetBytes(1000)
			m := &rdsdv1.ClientMessage{}
			m.SetCredit(c)
			if r.stream.Send(m) != nil {
				return
			}
		}
	}()
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	n := 0
	for {
		m, err := r.stream.Recv()
		if err != nil {
			break
		}
		n += len(m.GetRecv().GetLength())
	}
	close(ended)
	if err := <-stopped; err != nil || n != datagrams {
		t.Errorf("%d of %d datagrams got to their reader; stopped with %v", n, datagrams, err)
	}
}
