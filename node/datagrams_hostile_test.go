package node

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// startOne runs one real node and keeps hold of it.
func startOne(t *testing.T) (*Node, *config.Config) {
	t.Helper()
	return startWith(t, func(*config.Config) {})
}

// startWith starts a node with a changed configuration.
func startWith(t *testing.T, change func(*config.Config)) (*Node, *config.Config) {
	t.Helper()
	cfg := testConfig(t)
	change(cfg)
	n, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	startNode(t, n)
	return n, cfg
}

// A client that dies at any moment loses its sockets within a second.
func TestDeadClientLosesItsSockets(t *testing.T) {
	n, cfg := startOne(t)
	cc, err := grpc.NewClient("unix://"+cfg.API.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	for range 10 {
		st, err := rdsdv1.NewDatagramsClient(cc).Open(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		m := &rdsdv1.ClientMessage{}
		m.SetBind(bindTo(cfg.RDS.Addresses[0], 0))
		st.Send(m)
		if _, err := st.Recv(); err != nil {
			t.Fatal(err)
		}
		flood := &rdsdv1.ClientMessage{}
		flood.SetSend(batchOf(1, endpointOf(cfg, 9), strings.Repeat("x", 1000)))
		st.Send(flood)
	}
	if got := n.clients.Budget().Used; got != 10 {
		t.Errorf("%d sockets, want 10", got)
	}
	cc.Close()
	await.Until(t, time.Second, "sockets of a dead client are gone", func() bool { return n.clients.Budget().Used == 0 })
	await.Until(t, time.Second, "its connection too", func() bool { return n.users.Len() == 0 })
	eng := n.hosts.Locals()[0]
	e, _ := eng.Lock()
	left := len(e.Sockets())
	eng.Unlock()
	if left != 0 {
		t.Errorf("%d sockets left in the engine", left)
	}
}

// A client that asks and never reads is not read any further; it holds up
// nobody, and can be thrown out.
func TestClientThatNeverReads(t *testing.T) {
	_, cfg := startOne(t)
	local := cfg.RDS.Addresses[0]
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	st, err := rdsdv1.NewDatagramsClient(dial(t, cfg)).Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	m := &rdsdv1.ClientMessage{}
	m.SetBind(bindTo(local, 4400))
	st.Send(m)
	blocked := make(chan struct{})
	go func() {
		defer close(blocked)
		pk := &rdsdv1.ClientMessage{}
		p := &rdsdv1.Peek{}
		p.SetId(1 << 60)
		pk.SetPeek(p)
		for st.Send(pk) == nil {
		}
	}()
	// Others fill its receive queue, and are told when it is full.
	s := mustBind(t, cfg, bindTo(local, 0))
	kib := strings.Repeat("k", 32<<10)
	await.Until(t, 8*time.Second, "its senders are refused", func() bool {
		s.send(batchOf(1, endpointOf(cfg, 4400), kib, kib, kib, kib))
		return len(want(s, asResult).GetErrors()) > 0
	})
	// Somebody else's socket works as ever.
	other := mustBind(t, cfg, bindTo(local, 0))
	s.send(batchOf(2, other.local, "hello"))
	if got, _ := other.recv(1); got[0] != "hello" {
		t.Errorf("received %q", got)
	}
	r := &rdsdv1.CloseSocketRequest{}
	r.SetLocal(client.EndpointPB(endpointOf(cfg, 4400)))
	if _, err := rdsdv1.NewAdminClient(dial(t, cfg)).CloseSocket(testContext(t), r); err != nil {
		t.Fatal(err)
	}
	// The status waits behind what it does not read; the port does not.
	await.Until(t, time.Second, "the port is free again", func() bool {
		_, err := openSocket(t, cfg, bindTo(local, 4400))
		return err == nil
	})
	// Closing was not waited for. The status alone must not look like a lost connection.
	for err = nil; err == nil; {
		_, err = st.Recv()
	}
	if err = rdsdv1.ErrorFromStatus(err); !errors.Is(err, rdserr.ErrClosed) || !strings.Contains(err.Error(), "administrator") {
		t.Errorf("the status says %v", err)
	}
	cancel()
	<-blocked
}

// Stopping the daemon does not wait for a client that never reads.
func TestStopWithClientThatNeverReads(t *testing.T) {
	cfg := testConfig(t)
	n, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	stop := startNode(t, n)
	st, err := rdsdv1.NewDatagramsClient(dial(t, cfg)).Open(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	m := &rdsdv1.ClientMessage{}
	m.SetBind(bindTo(cfg.RDS.Addresses[0], 4500))
	st.Send(m)
	s := mustBind(t, cfg, bindTo(cfg.RDS.Addresses[0], 0))
	big := strings.Repeat("k", 256<<10)
	await.Until(t, 8*time.Second, "the stream's window is full", func() bool {
		s.send(batchOf(1, endpointOf(cfg, 4500), big, big))
		return len(want(s, asResult).GetErrors()) > 0
	})
	begun := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 8*time.Second {
		t.Errorf("stopping took %v", took)
	}
}

func TestDrainWaitsForDatagramsInFlight(t *testing.T) {
	cfgs := startNodes(t, 1, nil)
	cfg := testConfig(t)
	cfg.RDS.Addresses[0], cfg.RDS.Port = loopbackAddr(), cfgs[0].RDS.Port
	n, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	stop := startNode(t, n)
	b := mustBind(t, cfgs[0], bindTo(cfgs[0].RDS.Addresses[0], 0))
	a := mustBind(t, cfg, bindTo(cfg.RDS.Addresses[0], 0))
	batch := batchOf(1, b.local, "one", "two", "three")
	batch.SetWantOutcomes(true)
	a.send(batch)
	want(a, asResult)
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	if got, _ := b.recv(3); got[2] != "three" {
		t.Errorf("received %q", got)
	}
	var delivered uint32
	for delivered < 3 {
		for _, o := range want(a, asOutcomes).GetOutcome() {
			if o.GetKind() != rdsdv1.OutcomeKind_OUTCOME_KIND_DELIVERED {
				t.Errorf("outcome %v", o)
			}
			delivered += o.GetCount()
		}
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// What waits to be accepted is bounded for each socket and for all together,
// and given back however it ends.
func TestWaitingSendsAreBounded(t *testing.T) {
	n, cfg := startOne(t)
	nobody := netip.MustParseAddrPort("127.77.255.8:5")
	b := bindTo(cfg.RDS.Addresses[0], 0)
	b.SetSendBufferBytes(1 << 20)
	s := mustBind(t, cfg, b)
	half := strings.Repeat("h", 512<<10)
	s.send(batchOf(1, nobody, half, half)) // the send buffer is full
	want(s, asResult)
	wait := func(id uint64, p ...string) {
		x := batchOf(id, nobody, p...)
		x.SetWait(true)
		s.send(x)
	}
	wait(2, half, half)
	wait(3, half, half)
	wait(4, "one more byte than the window has")
	r := want(s, asResult)
	if r.GetId() != 4 || len(r.GetErrors()) != 1 || errno(r.GetErrors()[0].GetErrno()) != syscall.EMFILE || !strings.Contains(r.GetErrors()[0].GetMessage(), "send_window_bytes") {
		t.Errorf("beyond the window: %s", resultString(r))
	}
	if used := waitingBytes(n); used != 2<<20+4*192+2*rds.FlowBytes {
		t.Errorf("%d bytes wait, want 2 MiB, 4 headers and 2 destinations", used)
	}
	c := &rdsdv1.Cancel{}
	c.SetDestination(client.EndpointPB(nobody))
	m := &rdsdv1.ClientMessage{}
	m.SetCancel(c)
	s.write(m)
	// The results of what it ends come before its own: a client that had accepted the
	// datagrams itself counts them.
	if r := want(s, asCancel); r.GetErrno() != 0 || len(s.skip) != 2 {
		t.Errorf("%v, behind %v", r, s.skip)
	}
	want(s, asResult)
	want(s, asResult)
	if used := waitingBytes(n); used != 0 {
		t.Errorf("%d bytes wait after cancel", used)
	}
	s.send(batchOf(5, nobody, half, half))
	want(s, asResult)
	for id := range uint64(s.bound.GetSendWindowBatches()) {
		wait(100+id, "x")
	}
	wait(200, "x")
	if r := want(s, asResult); r.GetId() != 200 || !strings.Contains(r.GetErrors()[0].GetMessage(), "send_window_batches") {
		t.Errorf("beyond the window of batches: %s", resultString(r))
	}
	s.stream.CloseSend()
	await.Until(t, time.Second, "everything is given back", func() bool { return waitingBytes(n) == 0 && n.clients.Budget().Used == 0 })
	hog := n.deps.Memory.Account(quota.User(4711)) // all sockets together
	hog.Grow(quota.Waiting, n.deps.Memory.Kinds()[quota.Waiting].Limit-10)
	s = mustBind(t, cfg, b)
	wait(1, "more than ten bytes")
	if r := want(s, asResult); errno(r.GetErrors()[0].GetErrno()) != syscall.ENOMEM {
		t.Errorf("beyond the share: %s", resultString(r))
	}
}

func waitingBytes(n *Node) int64 { return n.deps.Memory.Kinds()[quota.Waiting].Used }
