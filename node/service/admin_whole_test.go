package service

import (
	"errors"
	"net/netip"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// TestCountersAreWhole: what GetCounters returns are the kernel's names and ours in
// order, then those of the node, then the refused connections, each once and with the
// value that the node has; a peer's are those of connections alone.
func TestCountersAreWhole(t *testing.T) {
	n := startWorld(t, func(*config.Config) {})
	n.deps.Count.AdminDenied.Add(7)
	h := n.hosts.Locals()[0]
	e, now := h.Lock()
	k, err := e.Bind(0, rds.SocketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	remote := netip.MustParseAddr("127.77.2.1")
	if err := k.Send(now, netip.AddrPortFrom(remote, 9), []byte("x"), 1, rds.Quiet); err != nil {
		t.Fatal(err)
	}
	h.Unlock()

	type counter struct {
		name  string
		value uint64
	}
	var s snapshot
	n.services.snapshot(&s)
	var want []counter
	for i, v := range s.Counters.Values(nil) {
		want = append(want, counter{stats.Fields[i].Name, v})
	}
	ofPeers := len(want)
	own := base.CounterTable.Read(nil, n.deps.Count)
	for i, d := range base.CounterTable.Descs() {
		want = append(want, counter{d.Name, own[i]})
	}
	want = append(want, counter{"connections_refused", s.RefusedLinks})

	a := &adminServer{front: n.services}
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
	n := newWorld(t, clienttest.Config(t), world{})
	s := &volumeServer{front: n.services}
	ctx, err := withIdentity(peer.NewContext(clienttest.Context(t), &peer.Peer{AuthInfo: authInfo{Identity: config.Identity{UID: 0}}}))
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
