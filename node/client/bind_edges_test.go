package client

import (
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// TestBindEdges: what a Bind may ask for, at each bound and one beyond it; a refusal names
// the field and leaves nothing.
func TestBindEdges(t *testing.T) {
	cfg := clienttest.Config(t)
	n := newWorld(t, cfg, nil)
	r := &n.deps.Config.RDS
	local := cfg.RDS.Addresses[0]
	before := n.deps.Memory.Used()
	for name, c := range map[string]struct {
		change func(*rdsdv1.Bind)
		want   error
		text   string
	}{
		"as it is":             {func(*rdsdv1.Bind) {}, nil, ""},
		"a send buffer":        {func(m *rdsdv1.Bind) { m.SetSendBufferBytes(uint64(r.SendBufferMax)) }, nil, ""},
		"too large a one":      {func(m *rdsdv1.Bind) { m.SetSendBufferBytes(uint64(r.SendBufferMax) + 1) }, rdserr.ErrInvalid, "send_buffer_bytes"},
		"a receive buffer":     {func(m *rdsdv1.Bind) { m.SetRecvBufferBytes(uint64(r.RecvBufferMax)) }, nil, ""},
		"too large a one too":  {func(m *rdsdv1.Bind) { m.SetRecvBufferBytes(uint64(r.RecvBufferMax) + 1) }, rdserr.ErrInvalid, "recv_buffer_bytes"},
		"a label":              {func(m *rdsdv1.Bind) { m.SetLabel(strings.Repeat("x", maxLabelBytes)) }, nil, ""},
		"too long a label":     {func(m *rdsdv1.Bind) { m.SetLabel(strings.Repeat("x", maxLabelBytes+1)) }, rdserr.ErrInvalid, "label has 65 bytes"},
		"a label that is none": {func(m *rdsdv1.Bind) { m.SetLabel("\xff") }, rdserr.ErrInvalid, "not UTF-8"},
		"no address":           {func(m *rdsdv1.Bind) { m.GetLocal().SetAddress(nil) }, rdserr.ErrInvalid, "bind.local.address has 0 bytes"},
		"half an address":      {func(m *rdsdv1.Bind) { m.GetLocal().SetAddress(make([]byte, 5)) }, rdserr.ErrInvalid, "bind.local.address has 5 bytes"},
		"the last port":        {func(m *rdsdv1.Bind) { m.GetLocal().SetPort(math.MaxUint16) }, nil, ""},
		"beyond it":            {func(m *rdsdv1.Bind) { m.GetLocal().SetPort(math.MaxUint16 + 1) }, rdserr.ErrInvalid, "bind.local.port is 65536"},
		"every address":        {func(m *rdsdv1.Bind) { m.GetLocal().SetAddress(netip.IPv4Unspecified().AsSlice()) }, rdserr.ErrInvalid, "is not the address of one node"},
		"many nodes'":          {func(m *rdsdv1.Bind) { m.GetLocal().SetAddress([]byte{224, 0, 0, 1}) }, rdserr.ErrInvalid, "is not the address of one node"},
		"another node's":       {func(m *rdsdv1.Bind) { m.GetLocal().SetAddress([]byte{203, 0, 113, 1}) }, rdserr.ErrAddrNotAvail, "bind one of " + local.String()},
		"within IPv6": {func(m *rdsdv1.Bind) {
			a := local.As16()
			m.GetLocal().SetAddress(a[:])
		}, nil, ""},
	} {
		m := clienttest.BindTo(local, 4000)
		c.change(m)
		s := &sockStream{front: n.clients, id: config.Identity{UID: 1000}}
		_, _, err := s.prepare(m, 4096)
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
		if held := n.deps.Memory.Used() - before; (err == nil) != (held == 4096) || err != nil && held != 0 {
			t.Errorf("%s: %v, and %d bytes are held", name, err, held)
		}
		if err == nil {
			n.clients.sockets.remove(s)
		}
	}
	if n.deps.Memory.Used() != before || n.clients.Budget().Used != 0 {
		t.Errorf("%d bytes and %+v are left", n.deps.Memory.Used()-before, n.clients.Budget())
	}
}

// TestBindIsTakenWhole: everything a Bind says is what the socket gets, and the answer
// says what it got.
func TestBindIsTakenWhole(t *testing.T) {
	cfg := clienttest.Config(t)
	n := newWorld(t, cfg, nil)
	m := clienttest.BindTo(cfg.RDS.Addresses[0], 4000)
	m.SetSendBufferBytes(100 << 10)
	m.SetRecvBufferBytes(200 << 10)
	m.SetLabel("app")
	m.SetInitialCreditDatagrams(7)
	m.SetInitialCreditBytes(maxCredit + 1)
	s := &sockStream{front: n.clients, id: config.Identity{UID: 1000, PID: 77}}
	opt, port, err := s.prepare(m, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer n.clients.sockets.remove(s)
	if opt.SndBufBytes != 100<<10 || opt.RcvBufBytes != 200<<10 || opt.Label != "app" || opt.UID != 1000 || opt.PID != 77 || opt.Account != s.memory || port != 4000 {
		t.Errorf("port %d with %+v", port, opt)
	}
	if s.creditN != 7 || s.creditB != maxCredit || s.size != 4096 {
		t.Errorf("credit for %d datagrams and %d bytes, %d bytes held", s.creditN, s.creditB, s.size)
	}
	asked := 0
	sock, got, err := s.bindEngine(port, opt, func(b *rds.Socket) {
		if asked++; b.Addr().Port() != 4000 {
			t.Errorf("told of %v", b.Addr())
		}
	})
	if err != nil || asked != 1 {
		t.Fatalf("%v, told %d times", err, asked)
	}
	b := s.bound(sock, got)
	if b.GetLocal().GetPort() != 4000 || b.GetSendBufferBytes() != uint64(got.SndBufBytes) || b.GetRecvBufferBytes() != uint64(got.RcvBufBytes) ||
		b.GetMaxDatagramBytes() != uint64(min(got.SndBufBytes, wire.MaxDatagram)) || b.GetSendWindowBytes() != sendWindowBytes ||
		b.GetSendWindowBatches() != sendWindowBatches || b.GetDaemonInstance() != n.deps.Instance || b.GetDaemonVersion() == "" {
		t.Errorf("the answer is %v, for %+v", b, got)
	}
	other := &sockStream{front: n.clients, eng: s.eng, id: config.Identity{UID: 1000}}
	if _, _, err := other.bindEngine(4000, rds.SocketOptions{}, func(*rds.Socket) { t.Error("told of a port that is somebody's") }); !errors.Is(err, rdserr.ErrAddrInUse) {
		t.Errorf("a port that is somebody's: %v", err)
	}
	far := &sockStream{front: n.clients, id: config.Identity{UID: 1000, PID: -1}} // of another pid namespace
	if opt, _, err := far.prepare(clienttest.BindTo(cfg.RDS.Addresses[0], 4001), 1); err != nil || opt.PID != 0 {
		t.Errorf("a process of no number is %d, %v", opt.PID, err)
	} else {
		n.clients.sockets.remove(far)
	}
}

// TestEndSocket: only a client's socket can be taken from its owner, who hears why.
func TestEndSocket(t *testing.T) {
	cfg := clienttest.Config(t)
	n := newWorld(t, cfg, nil)
	eng, err := n.clients.engineFor(cfg.RDS.Addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	e, _ := eng.Lock()
	sock, err := e.Bind(4000, rds.SocketOptions{})
	eng.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if End(sock, rdserr.ErrClosed) {
		t.Error("a socket of nobody was ended")
	}
	if used, most, ok := RingBytes(sock); used != 0 || most != 0 || ok {
		t.Errorf("a socket without rings has %d of %d bytes of them", used, most)
	}
}

// TestSocketTableEnds: what the daemon refuses with is what everybody hears from then on,
// and a limit that is set holds for who comes.
func TestSocketTableEnds(t *testing.T) {
	n := newWorld(t, clienttest.Config(t), nil)
	table := newSocketTable(9, 1, n.deps.Memory)
	s := &sockStream{front: n.clients, id: config.Identity{UID: 1}}
	if err := table.reserve(s, 1); err != nil || table.draining() != nil {
		t.Fatal(err, table.draining())
	}
	again := &sockStream{front: n.clients, id: config.Identity{UID: 1}}
	if err := table.reserve(again, 1); !errors.Is(err, rdserr.ErrTooMany) || !strings.Contains(err.Error(), "limits.max_sockets_per_uid (1)") {
		t.Errorf("%v", err)
	}
	table.setMaxPerUID(2)
	if err := table.reserve(again, 1); err != nil {
		t.Errorf("after the limit was raised: %v", err)
	}
	why := errors.New("the end")
	table.refuse(why)
	if table.draining() != why {
		t.Errorf("it is said to drain because of %v", table.draining())
	}
	if err := table.reserve(&sockStream{front: n.clients}, 1); err != why {
		t.Errorf("at the end: %v", err)
	}
	table.remove(s)
	table.remove(again)
}
