package node

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// pair is two nodes with a socket each and a datagram delivered.
func pair(t *testing.T) (cfgs []*config.Config, a, b *testSocket, admin rdsdv1.AdminClient) {
	t.Helper()
	cfgs = startNodes(t, 2, nil)
	bind := bindTo(cfgs[0].RDS.Addresses[0], 0)
	bind.SetLabel("sender")
	a = mustBind(t, cfgs[0], bind)
	b = mustBind(t, cfgs[1], bindTo(cfgs[1].RDS.Addresses[0], 0))
	a.send(batchOf(1, b.local, "hello"))
	b.recv(1)
	return cfgs, a, b, rdsdv1.NewAdminClient(dial(t, cfgs[0]))
}

func TestAdminReads(t *testing.T) {
	cfgs, a, b, admin := pair(t)
	ctx := testContext(t)
	st, err := admin.GetStatus(ctx, &rdsdv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if st.GetState() != "serving" || st.GetPeers() != 1 || st.GetPeersUp() != 1 || st.GetSockets() != 1 || st.GetRdsPort() != uint32(cfgs[0].RDS.Port) ||
		st.GetMemoryBudgetBytes() != uint64(cfgs[0].Limits.MemoryBytes) || st.GetVersion() != base.Version() {
		t.Errorf("status %v", st)
	}
	names := map[string]bool{}
	for _, b := range st.GetBudget() {
		names[b.GetName()] = true
	}
	for _, want := range []string{"memory", "peers", "sockets", "clients", "descriptors", "handshakes"} {
		if !names[want] {
			t.Errorf("no budget %q in %v", want, names)
		}
	}
	peers, err := admin.ListPeers(ctx, &rdsdv1.ListPeersRequest{})
	if err != nil || len(peers.GetPeer()) != 1 {
		t.Fatalf("peers %v, %v", peers, err)
	}
	p := peers.GetPeer()[0]
	if p.GetKind() != rdsdv1.PeerKind_PEER_KIND_RDSD || p.GetAuthenticated() || p.GetIncarnation() == 0 || p.GetLanes() == 0 {
		t.Errorf("peer %v", p)
	}
	up := 0
	for _, path := range p.GetPath() {
		if path.GetState() == rdsdv1.PathState_PATH_STATE_UP {
			up++
			if !strings.Contains(path.GetRemoteEndpoint(), b.local.Addr().String()) || path.GetUpSinceNs() == 0 {
				t.Errorf("path %v", path)
			}
		}
	}
	if up == 0 {
		t.Errorf("no path is up: %v", p)
	}
	none := &rdsdv1.ListPeersRequest{}
	none.SetRemote([]byte{10, 0, 0, 1})
	if r, err := admin.ListPeers(ctx, none); err != nil || len(r.GetPeer()) != 0 {
		t.Errorf("filtered peers %v, %v", r, err)
	}
	socks, err := admin.ListSockets(ctx, &rdsdv1.ListSocketsRequest{})
	if err != nil || len(socks.GetSocket()) != 1 {
		t.Fatalf("sockets %v, %v", socks, err)
	}
	if s := socks.GetSocket()[0]; s.GetLabel() != "sender" || s.GetUid() != uint32(os.Getuid()) || s.GetPid() != uint32(os.Getpid()) ||
		s.GetLocal().GetPort() != uint32(a.local.Port()) || s.GetAccepted() != 1 {
		t.Errorf("socket %v", s)
	}
	ping := &rdsdv1.PingRequest{}
	ping.SetRemote(b.local.Addr().AsSlice())
	if r, err := admin.Ping(ctx, ping); err != nil || r.GetRttNs() == 0 {
		t.Errorf("ping %v, %v", r, err)
	}
}

func TestAdminCounters(t *testing.T) {
	_, _, b, admin := pair(t)
	ctx := testContext(t)
	r, err := admin.GetCounters(ctx, &rdsdv1.GetCountersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	value := map[string]uint64{}
	for i, c := range r.GetCounter() {
		value[c.GetName()] = c.GetValue()
		if i < len(stats.Fields) && c.GetName() != stats.Fields[i].Name {
			t.Errorf("counter %d is %s, want %s as rds-info has it", i, c.GetName(), stats.Fields[i].Name)
		}
	}
	if value["send_queued"] != 1 || value["send_batches"] != 1 {
		t.Errorf("send_queued %d, send_batches %d, want 1 and 1", value["send_queued"], value["send_batches"])
	}
	one := &rdsdv1.GetCountersRequest{}
	one.SetRemote(b.local.Addr().AsSlice())
	if r, err = admin.GetCounters(ctx, one); err != nil || len(r.GetCounter()) != len(stats.Fields) {
		t.Errorf("%d counters of the peer, %v", len(r.GetCounter()), err)
	}
}

func TestAdminQueueAndCancel(t *testing.T) {
	cfgs := startNodes(t, 1, nil)
	local := cfgs[0].RDS.Addresses[0]
	s := mustBind(t, cfgs[0], bindTo(local, 0))
	nobody := netip.AddrPortFrom(netip.MustParseAddr("127.77.255.2"), 7)
	s.send(batchOf(1, nobody, "a", "bb", "ccc"))
	want(s, asResult)
	admin := rdsdv1.NewAdminClient(dial(t, cfgs[0]))
	q := &rdsdv1.ListQueueRequest{}
	q.SetLimit(2)
	q.SetKind(rdsdv1.QueueKind_QUEUE_KIND_SEND)
	r, err := admin.ListQueue(testContext(t), q)
	if err != nil || len(r.GetDatagram()) != 2 || !r.GetTruncated() || r.GetDatagram()[1].GetBytes() != 2 {
		t.Errorf("queue %v, %v", r, err)
	}
	c := &rdsdv1.CancelSentRequest{}
	c.SetLocal(client.EndpointPB(s.local))
	c.SetDestination(client.EndpointPB(netip.AddrPortFrom(nobody.Addr(), 0)))
	if r, err := admin.CancelSent(testContext(t), c); err != nil || r.GetCancelled() != 3 {
		t.Errorf("cancel %v, %v", r, err)
	}
	q.SetKind(rdsdv1.QueueKind_QUEUE_KIND_UNSPECIFIED)
	if r, err := admin.ListQueue(testContext(t), q); err != nil || len(r.GetDatagram()) != 0 {
		t.Errorf("queue after cancel %v, %v", r, err)
	}
}

// TestAdminCancelIsAPoint: an administrator's cancel, as the socket's own, is about everything
// posted before it, also what the engine has no room for, and about nothing that comes later.
func TestAdminCancelIsAPoint(t *testing.T) {
	cfg := startNodes(t, 1, nil)[0]
	r := clienttest.AttachRing(t, cfg, bindTo(cfg.RDS.Addresses[0], 0))
	defer r.Close()
	var tag uint64
	r.Post(t, clienttest.Nobody, 60, 4096, &tag)
	c := &rdsdv1.CancelSentRequest{}
	c.SetLocal(r.Bound.GetLocal())
	c.SetDestination(client.EndpointPB(clienttest.Nobody))
	if _, err := rdsdv1.NewAdminClient(dial(t, cfg)).CancelSent(testContext(t), c); err != nil {
		t.Fatal(err)
	}
	posted, got := int(tag), 0
	r.Post(t, clienttest.Nobody, 3, 5, &tag)
	await.Until(t, 30*time.Second, "each is told to be cancelled", func() bool {
		for kind, k := range r.Outcomes(t) {
			if kind != shm.Cancelled {
				t.Fatalf("%d datagrams ended with %d", k, kind)
			}
			got += k
		}
		return got >= posted
	})
	r.Ask(t, clienttest.CancelOf(1, clienttest.Nobody))
	if res := r.Answer(t).GetCancelResult(); got != posted || res.GetCancelled() != 15 {
		t.Errorf("%d of %d are cancelled; of the 15 posted later %d were left", got, posted, res.GetCancelled())
	}
}

func TestAdminDropPathReconnects(t *testing.T) {
	_, a, b, admin := pair(t)
	r := &rdsdv1.DropPathRequest{}
	r.SetRemote(b.local.Addr().AsSlice())
	r.SetAllLanes(true)
	if resp, err := admin.DropPath(testContext(t), r); err != nil || resp.GetDropped() == 0 {
		t.Fatalf("drop %v, %v", resp, err)
	}
	a.send(batchOf(2, b.local, "after"))
	if got, _ := b.recv(1); got[0] != "after" {
		t.Errorf("received %q", got)
	}
}

func TestAdminCloseSocket(t *testing.T) {
	_, a, _, admin := pair(t)
	r := &rdsdv1.CloseSocketRequest{}
	r.SetLocal(client.EndpointPB(a.local))
	if _, err := admin.CloseSocket(testContext(t), r); err != nil {
		t.Fatal(err)
	}
	if c := want(a, asClosing); errno(c.GetErrno()) != syscall.ECONNRESET || !strings.Contains(c.GetMessage(), "administrator") {
		t.Errorf("closing %v", c)
	}
	if _, err := a.stream.Recv(); err == nil {
		t.Error("the stream goes on")
	}
}

func TestAdminCongestion(t *testing.T) {
	cfgs := startNodes(t, 1, nil)
	local := cfgs[0].RDS.Addresses[0]
	rb := &rdsdv1.Bind{} // no credit: never read
	rb.SetLocal(client.EndpointPB(netip.AddrPortFrom(local, 4300)))
	rb.SetRecvBufferBytes(4096)
	reader := mustBind(t, cfgs[0], rb)
	s := mustBind(t, cfgs[0], bindTo(local, 0))
	admin := rdsdv1.NewAdminClient(dial(t, cfgs[0]))
	w, err := admin.WatchCongestion(testContext(t), &rdsdv1.WatchCongestionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	// The call returns before it is served; the watch is in place when its header comes.
	if _, err := w.Header(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		s.send(batchOf(1, reader.local, strings.Repeat("x", 3000)))
		if r := want(s, asResult); len(r.GetErrors()) > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("never congested")
		}
	}
	r, err := admin.ListCongestion(testContext(t), &rdsdv1.ListCongestionRequest{})
	if err != nil || len(r.GetPort()) != 1 {
		t.Fatalf("congestion %v, %v", r, err)
	}
	p := r.GetPort()[0]
	if !p.GetLocal() || p.GetEndpoint().GetPort() != 4300 || p.GetReaderPid() != uint32(os.Getpid()) || p.GetBlocked() == 0 ||
		len(p.GetCulprit()) != 1 || p.GetCulprit()[0].GetSource().GetPort() != uint32(s.local.Port()) {
		t.Errorf("congested port %v", p)
	}
	now := &rdsdv1.WatchCongestionRequest{}
	now.SetIncludeCurrent(true)
	w2, err := admin.WatchCongestion(testContext(t), now)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := w2.Recv(); err != nil || !m.GetCongested() || m.GetEndpoint().GetPort() != 4300 || m.GetUnixNs() == 0 {
		t.Errorf("current congestion %v, %v", m, err)
	}
	c := &rdsdv1.Credit{}
	c.SetDatagrams(100)
	c.SetBytes(1 << 20)
	m := &rdsdv1.ClientMessage{}
	m.SetCredit(c)
	reader.write(m)
	for {
		m, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if !m.GetCongested() && m.GetLocal() {
			break
		}
	}
}

func TestAdminBadRequests(t *testing.T) {
	cfgs := startNodes(t, 1, nil)
	admin := rdsdv1.NewAdminClient(dial(t, cfgs[0]))
	ctx := testContext(t)
	ping := func(f func(*rdsdv1.PingRequest)) func() error {
		return func() error { r := &rdsdv1.PingRequest{}; f(r); _, err := admin.Ping(ctx, r); return err }
	}
	local := client.EndpointPB(netip.AddrPortFrom(cfgs[0].RDS.Addresses[0], 9))
	for _, tc := range []struct {
		name string
		call func() error
		err  *rdserr.Error
		says string
	}{
		{"ping nowhere", ping(func(r *rdsdv1.PingRequest) {}), rdserr.ErrInvalid, "remote has 0 bytes"},
		{"ping from elsewhere", ping(func(r *rdsdv1.PingRequest) { r.SetLocal([]byte{10, 0, 0, 1}); r.SetRemote([]byte{10, 0, 0, 2}) }), rdserr.ErrAddrNotAvail, "10.0.0.1"},
		{"ping not allowed", ping(func(r *rdsdv1.PingRequest) { r.SetRemote([]byte{10, 0, 0, 2}) }), rdserr.ErrHostDown, "10.0.0.2"},
		{"ping timeout", ping(func(r *rdsdv1.PingRequest) {
			r.SetRemote([]byte{127, 77, 255, 3})
			r.SetTimeoutNs(int64(20 * time.Millisecond))
		}), rdserr.ErrTimeout, "127.77.255.3"},
		{"ping negative", ping(func(r *rdsdv1.PingRequest) { r.SetRemote([]byte{127, 0, 0, 1}); r.SetTimeoutNs(-1) }), rdserr.ErrInvalid, "timeout_ns"},
		{"drop unknown", func() error {
			r := &rdsdv1.DropPathRequest{}
			r.SetRemote([]byte{10, 0, 0, 2})
			_, err := admin.DropPath(ctx, r)
			return err
		}, rdserr.ErrNotFound, "10.0.0.2"},
		{"close unknown", func() error {
			r := &rdsdv1.CloseSocketRequest{}
			r.SetLocal(local)
			_, err := admin.CloseSocket(ctx, r)
			return err
		}, rdserr.ErrNotFound, ":9"},
		{"queue limit", func() error {
			r := &rdsdv1.ListQueueRequest{}
			r.SetLimit(1 << 30)
			_, err := admin.ListQueue(ctx, r)
			return err
		}, rdserr.ErrInvalid, "limit"},
		{"counters of nobody", func() error {
			r := &rdsdv1.GetCountersRequest{}
			r.SetRemote([]byte{10, 0, 0, 2})
			_, err := admin.GetCounters(ctx, r)
			return err
		}, rdserr.ErrNotFound, "10.0.0.2"},
	} {
		err := rdsdv1.ErrorFromStatus(tc.call())
		if !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %s saying %q", tc.name, err, tc.err.Name, tc.says)
		}
	}
}
