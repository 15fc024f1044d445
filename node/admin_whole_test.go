package node

import (
	"errors"
	"net/netip"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// TestCountersAreWhole: what GetCounters returns are the kernel's names and ours in
// order, then those of the node, then the refused connections, each once and with the
// value that the node has; a peer's are those of connections alone.
func TestCountersAreWhole(t *testing.T) {
	n, _ := startOne(t)
	n.count.AdminDenied.Add(7)
	h := n.hosts.list[0]
	e, now := h.lock()
	k, err := e.Bind(0, rds.SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	remote := netip.MustParseAddr("127.77.2.1")
	if err := k.Send(now, netip.AddrPortFrom(remote, 9), []byte("x"), 1, false); err != nil {
		t.Fatal(err)
	}
	h.unlock()

	type counter struct {
		name  string
		value uint64
	}
	var s snapshot
	n.snapshot(&s)
	var want []counter
	for i, v := range s.counters.Values(nil) {
		want = append(want, counter{stats.Fields[i].Name, v})
	}
	ofPeers := len(want)
	own := nodeCounterTable.Read(nil, n.count)
	for i, d := range nodeCounterTable.Descs() {
		want = append(want, counter{d.Name, own[i]})
	}
	want = append(want, counter{"connections_refused", s.refusedLinks})

	a := &adminServer{node: n}
	r, err := a.GetCounters(t.Context(), &rdsdv1.GetCountersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, c := range r.GetCounter() {
		if seen[c.GetName()] || c.GetHelp() == "" {
			t.Errorf("%s is listed twice, or nothing is said of it (%q)", c.GetName(), c.GetHelp())
		}
		seen[c.GetName()] = true
		if i < len(want) && c.GetName() != want[i].name {
			t.Errorf("counter %d is %s, want %s", i, c.GetName(), want[i].name)
		}
		if i < len(want) && (c.GetName() == "admin_denied" || c.GetName() == "send_queued") && (c.GetValue() != want[i].value || c.GetValue() == 0) {
			t.Errorf("%s is %d, want %d", c.GetName(), c.GetValue(), want[i].value)
		}
	}
	if len(r.GetCounter()) != len(want) {
		t.Errorf("%d counters, want %d", len(r.GetCounter()), len(want))
	}
	one := &rdsdv1.GetCountersRequest{}
	one.SetRemote(remote.AsSlice())
	if r, err := a.GetCounters(t.Context(), one); err != nil || len(r.GetCounter()) != ofPeers {
		t.Errorf("a peer's: %d counters, %v; want %d", len(r.GetCounter()), err, ofPeers)
	}
	one.SetRemote(netip.MustParseAddr("127.77.2.2").AsSlice())
	if r, err := a.GetCounters(t.Context(), one); !errors.Is(err, rdserr.ErrNotFound) {
		t.Errorf("of nobody: %v, %v", r, err)
	}
}

// TestCallsWithoutVolumes: on a daemon without volumes each call about them says so.
func TestCallsWithoutVolumes(t *testing.T) {
	n, _ := newFakeNode(t, testConfig(t), &fakeCore{})
	s := &volumeServer{node: n}
	ctx, err := withIdentity(peer.NewContext(testContext(t), &peer.Peer{AuthInfo: authInfo{Identity: config.Identity{UID: 0}}}))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range rdsdv1.VolumeService_ServiceDesc.Methods {
		if r, err := m.Handler(s, ctx, func(any) error { return nil }, nil); !errors.Is(err, rdserr.ErrNotSupported) {
			t.Errorf("%s: %v, %v; want %v", m.MethodName, r, err, rdserr.ErrNotSupported)
		}
	}
	var none grpc.ServerStreamingServer[rdsdv1.VolumeEvent]
	if err := s.Watch(&rdsdv1.VolumeWatchRequest{}, none); !errors.Is(err, rdserr.ErrNotSupported) {
		t.Errorf("Watch: %v", err)
	}
}

// TestCongestedPortsAreBounded: however many ports of however many peers are congested,
// a list has maxCongested of them, the node's own first, and says each once.
func TestCongestedPortsAreBounded(t *testing.T) {
	n, _ := startOne(t)
	h := n.hosts.list[0]
	full := make([]byte, 8192)
	for i := range full {
		full[i] = 0xff
	}
	e, now := h.lock()
	k, err := e.Bind(0, rds.SocketOptions{RcvBufBytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	for range 64 {
		if k.Send(now, k.Addr(), make([]byte, 4096), 1, false) != nil {
			break
		}
	}
	for i := range 3 {
		pe, err := e.Peer(netip.AddrFrom4([4]byte{127, 77, 3, byte(i)}))
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 { // nothing of the first is congested
			m := full
			if i == 1 {
				m = make([]byte, 8192)
				m[4095], m[0] = 0x80, 1
			}
			pe.CongestionMap(now, m)
		}
	}
	h.unlock()
	seen := map[netip.AddrPort]bool{}
	list := func() (got, local, pages int) {
		clear(seen)
		h.eachCongested(func(_ *rds.Engine, c *rds.CongestedPort) {
			if seen[c.Endpoint] {
				t.Errorf("%v is listed twice", c.Endpoint)
			}
			if c.Local && got > 0 {
				t.Errorf("%v is ours and number %d", c.Endpoint, got)
			}
			seen[c.Endpoint] = true
			got++
			if c.Local {
				local++
			}
		}, func() bool { pages++; return true })
		return got, local, pages
	}
	got, local, pages := list()
	if got != maxCongested || local != 1 || pages < maxCongested/pageSize {
		t.Errorf("%d ports are listed in %d pages, %d of them ours; want %d, and one of ours", got, pages, local, maxCongested)
	}
	for port, want := range map[uint16]bool{0: true, 1: false, 32767: true, 32768: false} {
		if at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 77, 3, 1}), port); seen[at] != want {
			t.Errorf("%v is listed: %v, want %v", at, seen[at], want)
		}
	}
}
