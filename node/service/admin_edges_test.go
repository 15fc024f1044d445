package service

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"google.golang.org/grpc"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/node/access"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

func asRoot(t *testing.T) context.Context {
	return context.WithValue(t.Context(), identityKey{}, config.Identity{})
}

func endpoint(a netip.AddrPort) *rdsdv1.Endpoint {
	e := &rdsdv1.Endpoint{}
	e.SetAddress(a.Addr().AsSlice())
	e.SetPort(uint32(a.Port()))
	return e
}

// busyNode is a node with a socket that has sent three datagrams to a
// peer that is not there, and two to another socket, which has not read them.
func busyNode(t *testing.T) (n *world, out, in *rds.Socket, far netip.AddrPort) {
	t.Helper()
	n = startWorld(t, func(*config.Config) {})
	h := n.hosts.Locals()[0]
	far = netip.MustParseAddrPort("127.77.3.1:4000")
	e, now := h.Lock()
	var err error
	out, err = e.Bind(4000, rds.SocketOptions{UID: 7, PID: 77, Label: "out"})
	if err == nil {
		in, err = e.Bind(4001, rds.SocketOptions{UID: 8, PID: 88, Label: "in"})
	}
	for i := 0; i < 5 && err == nil; i++ {
		to := far
		if i > 2 {
			to = in.Addr()
		}
		err = out.Send(now, to, make([]byte, 100+i), uint64(i), rds.Quiet)
	}
	h.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, now := h.Lock()
		out.Close(now)
		in.Close(now)
		h.Unlock()
	})
	return n, out, in, far
}

// TestListsAreWhole: what is listed of peers, sockets and waiting datagrams is what there
// is, of the peers that were asked for alone, and no more than asked for.
func TestListsAreWhole(t *testing.T) {
	n, out, in, far := busyNode(t)
	a := &adminServer{front: n.services}
	h := n.hosts.Locals()[0]
	peers := func(local, remote string) []*rdsdv1.Peer {
		t.Helper()
		r := &rdsdv1.ListPeersRequest{}
		if local != "" {
			r.SetLocal(netip.MustParseAddr(local).AsSlice())
		}
		if remote != "" {
			r.SetRemote(netip.MustParseAddr(remote).AsSlice())
		}
		resp, err := a.ListPeers(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetPeer()
	}
	for _, ask := range [][2]string{{"", ""}, {h.Addr().String(), ""}, {"", far.Addr().String()}, {h.Addr().String(), far.Addr().String()}} {
		l := peers(ask[0], ask[1])
		if len(l) != 1 {
			t.Fatalf("%q: %d peers", ask, len(l))
		}
		p := l[0]
		if string(p.GetLocal()) != string(h.Addr().AsSlice()) || string(p.GetRemote()) != string(far.Addr().AsSlice()) || p.GetQueued() != 3 ||
			p.GetQueuedBytes() != 303 || p.GetUnacked() != 0 || p.GetUnackedBytes() != 0 || p.GetHeld() != 0 || p.GetCongestedPorts() != 0 || len(p.GetPath()) == 0 {
			t.Errorf("%q: %v", ask, p)
		}
		for i, x := range p.GetPath() {
			if int(x.GetIndex()) != i || x.GetState() == rdsdv1.PathState_PATH_STATE_UP || x.GetUpSinceNs() != 0 || (x.GetLastError() == "") != (x.GetErrorAgeNs() == 0) {
				t.Errorf("path %d: %v", i, x)
			}
		}
	}
	for _, ask := range [][2]string{{"127.77.9.9", ""}, {"", "127.77.9.9"}, {far.Addr().String(), h.Addr().String()}} {
		if l := peers(ask[0], ask[1]); len(l) != 0 {
			t.Errorf("%q: %v", ask, l)
		}
	}
	socks, err := a.ListSockets(t.Context(), &rdsdv1.ListSocketsRequest{})
	if err != nil || len(socks.GetSocket()) != 2 {
		t.Fatalf("%v, %v", socks, err)
	}
	for _, s := range socks.GetSocket() {
		k, uid, label, queued, received, inFlight := out, uint32(7), "out", uint64(0), uint64(0), uint64(3)
		if s.GetLocal().GetPort() == 4001 {
			k, uid, label, queued, received, inFlight = in, 8, "in", 2, 0, 0
		}
		h.Lock()
		o, i := k.Options(), k.Info()
		h.Unlock()
		if s.GetUid() != uid || s.GetPid() != 11*uid || s.GetLabel() != label || s.GetSendBufferBytes() != uint64(o.SndBufBytes) || s.GetRecvBufferBytes() != uint64(o.RcvBufBytes) ||
			s.GetSendQueuedBytes() != uint64(i.SendQueued) || s.GetRecvQueued() != queued || s.GetRecvQueuedBytes() != uint64(i.RecvQueued) || s.GetRecvHardLimitBytes() != uint64(i.Hard) ||
			s.GetInFlight() != inFlight || s.GetReceived() != received || s.GetInode() != i.ID || s.GetAccepted() != i.Stats.Accepted || s.GetDelivered() != i.Stats.Delivered || s.GetRingBytes() != 0 {
			t.Errorf("%v; it is %+v with %+v", s, i, o)
		}
	}
	for _, c := range []struct {
		kind        rdsdv1.QueueKind
		limit, want uint32
		truncated   bool
	}{
		{0, 0, 5, false}, {0, 5, 5, false}, {0, 4, 4, true}, {rdsdv1.QueueKind_QUEUE_KIND_SEND, 3, 3, false}, {rdsdv1.QueueKind_QUEUE_KIND_SEND, 2, 2, true},
		{rdsdv1.QueueKind_QUEUE_KIND_RECV, 2, 2, false}, {rdsdv1.QueueKind_QUEUE_KIND_RECV, 1, 1, true}, {rdsdv1.QueueKind_QUEUE_KIND_RETRANS, 1, 0, false}, {0, maxQueueLimit, 5, false},
	} {
		r := &rdsdv1.ListQueueRequest{}
		r.SetKind(c.kind)
		r.SetLimit(c.limit)
		l, err := a.ListQueue(t.Context(), r)
		if err != nil || len(l.GetDatagram()) != int(c.want) || l.GetTruncated() != c.truncated {
			t.Errorf("%v, at most %d: %d listed, truncated %v, %v", c.kind, c.limit, len(l.GetDatagram()), l.GetTruncated(), err)
		}
		for _, d := range l.GetDatagram() {
			local, remote := out.Addr(), far
			if d.GetKind() == rdsdv1.QueueKind_QUEUE_KIND_RECV {
				local, remote = in.Addr(), out.Addr()
			}
			if d.GetLocal().GetPort() != uint32(local.Port()) || d.GetRemote().GetPort() != uint32(remote.Port()) || string(d.GetRemote().GetAddress()) != string(remote.Addr().AsSlice()) ||
				d.GetBytes() < 100 || d.GetBytes() > 104 {
				t.Errorf("%v", d)
			}
		}
	}
	for _, change := range []func(*rdsdv1.ListQueueRequest){
		func(r *rdsdv1.ListQueueRequest) { r.SetLimit(maxQueueLimit + 1) }, func(r *rdsdv1.ListQueueRequest) { r.SetKind(4) }, func(r *rdsdv1.ListQueueRequest) { r.SetKind(-1) },
	} {
		r := &rdsdv1.ListQueueRequest{}
		change(r)
		if _, err := a.ListQueue(t.Context(), r); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: %v", r, err)
		}
	}
}

// TestAdministrationEdges: calls that change something refuse what is not there and what
// is out of bounds, by name, and change exactly what was asked for.
func TestAdministrationEdges(t *testing.T) {
	n, out, in, far := busyNode(t)
	a := &adminServer{front: n.services}
	h := n.hosts.Locals()[0]
	strange := netip.MustParseAddr("127.77.9.9")
	drop := func(local, remote netip.Addr, lane uint32, all bool) error {
		r := &rdsdv1.DropPathRequest{}
		if local.IsValid() {
			r.SetLocal(local.AsSlice())
		}
		r.SetRemote(remote.AsSlice())
		r.SetLane(lane)
		r.SetAllLanes(all)
		_, err := a.DropPath(asRoot(t), r)
		return err
	}
	for what, c := range map[string]struct{ err, want error }{
		"lane 7":                          {drop(netip.Addr{}, far.Addr(), 7, false), nil},
		"lane 8":                          {drop(netip.Addr{}, far.Addr(), 8, false), rdserr.ErrInvalid},
		"lane 8 of all":                   {drop(netip.Addr{}, far.Addr(), 8, true), nil},
		"of its local address":            {drop(h.Addr(), far.Addr(), 0, true), nil},
		"of another local address":        {drop(strange, far.Addr(), 0, true), rdserr.ErrNotFound},
		"of a peer that is not known":     {drop(netip.Addr{}, strange, 0, true), rdserr.ErrNotFound},
		"of a peer that has no address":   {drop(netip.Addr{}, netip.Addr{}, 0, true), rdserr.ErrInvalid},
		"of a peer that is a local's own": {drop(far.Addr(), far.Addr(), 0, true), rdserr.ErrNotFound},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", what, c.err, c.want)
		}
	}
	cancel := func(local, dst netip.AddrPort) (*rdsdv1.CancelSentResponse, error) {
		r := &rdsdv1.CancelSentRequest{}
		r.SetLocal(endpoint(local))
		r.SetDestination(endpoint(dst))
		return a.CancelSent(asRoot(t), r)
	}
	if _, err := cancel(netip.AddrPortFrom(h.Addr(), 9), far); !errors.Is(err, rdserr.ErrNotFound) {
		t.Errorf("of a socket that is not there: %v", err)
	}
	if _, err := cancel(netip.AddrPortFrom(strange, 4000), far); err == nil {
		t.Error("of an address that is not ours")
	}
	if r, err := cancel(out.Addr(), netip.AddrPortFrom(far.Addr(), 5)); err != nil || r.GetCancelled() != 0 {
		t.Errorf("to where nothing was sent: %v, %v", r, err)
	}
	r, err := cancel(out.Addr(), far)
	h.Lock()
	unread := in.Info().RecvN
	h.Unlock()
	if err != nil || r.GetCancelled() != 3 || r.GetInFlight() != 0 || unread != 2 {
		t.Errorf("%v, %v; the other socket has %d", r, err, unread)
	}
	for _, at := range []netip.AddrPort{out.Addr(), netip.AddrPortFrom(h.Addr(), 9), netip.AddrPortFrom(strange, 9)} { // nobody's, none, and not here
		r := &rdsdv1.CloseSocketRequest{}
		r.SetLocal(endpoint(at))
		if _, err := a.CloseSocket(asRoot(t), r); err == nil || at.Addr() == h.Addr() && !errors.Is(err, rdserr.ErrNotFound) {
			t.Errorf("%v: %v", at, err)
		}
	}
	for what, change := range map[string]func(*rdsdv1.PingRequest){
		"a time below zero": func(r *rdsdv1.PingRequest) { r.SetTimeoutNs(-1) }, "no address": func(r *rdsdv1.PingRequest) { r.SetRemote(nil) },
		"half an address": func(r *rdsdv1.PingRequest) { r.SetLocal([]byte{1}) },
	} {
		r := &rdsdv1.PingRequest{}
		r.SetRemote(far.Addr().AsSlice())
		change(r)
		if _, err := a.Ping(t.Context(), r); !errors.Is(err, rdserr.ErrInvalid) {
			t.Errorf("a ping with %s: %v", what, err)
		}
	}
}

// TestSums: a peer's counters are those of all local addresses together, and of no other
// peer; the status counts peers, and those that are up, and has the memory's budget.
func TestSums(t *testing.T) {
	remote, other := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	w := world{}
	for i, r := range []netip.Addr{remote, other, remote} {
		p := datagram.PeerSnapshot{Remote: r, Up: i != 1}
		p.Counters.SendQueued = uint64(1 + 10*i)
		w.snap.Peers = append(w.snap.Peers, p)
	}
	w.snap.Counters.SendQueued = 1000
	w.snap.Budgets = []base.Budget{{Name: "peers", Used: 3, Limit: 4}, {Name: "memory", Used: 5, Limit: 6, Refused: 7}}
	n := newWorld(t, clienttest.Config(t), w)
	a := &adminServer{front: n.services}
	at := -1
	for i, f := range stats.Fields {
		if f.Name == "send_queued" {
			at = i
		}
	}
	for ask, want := range map[netip.Addr]uint64{{}: 1000, remote: 22, other: 11} {
		r := &rdsdv1.GetCountersRequest{}
		r.SetRemote(ask.AsSlice())
		l, err := a.GetCounters(t.Context(), r)
		if err != nil || l.GetCounter()[at].GetValue() != want {
			t.Errorf("of %v: %v, %v; want %d", ask, l.GetCounter()[at], err, want)
		}
	}
	st, err := a.GetStatus(t.Context(), &rdsdv1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if st.GetPeers() != 3 || st.GetPeersUp() != 2 || st.GetMemoryUsedBytes() != 5 || st.GetMemoryBudgetBytes() != 6 || st.GetInstance() != n.deps.Instance ||
		st.GetState() != "serving" || st.GetVersion() != base.Version() || st.GetRdsPort() != uint32(n.deps.Config.RDS.Port) ||
		len(st.GetLocalAddress()) != len(n.deps.Config.RDS.Addresses) || st.GetUptimeNs() == 0 || st.GetUptimeNs() > uint64(time.Hour) {
		t.Errorf("%v", st)
	}
	for i, want := range w.snap.Budgets {
		if b := st.GetBudget()[i]; b.GetName() != want.Name || b.GetUsed() != want.Used || b.GetLimit() != want.Limit || b.GetRefused() != want.Refused {
			t.Errorf("%v, want %+v", b, want)
		}
	}
}

// TestListErrors: every line of the log is told as it is, with its severity.
func TestListErrors(t *testing.T) {
	n := newWorld(t, clienttest.Config(t), world{})
	first := time.Unix(100, 5)
	n.services.deps.Errors = func() ([]LoggedError, uint64) {
		return []LoggedError{{Level: slog.LevelWarn, Message: "m", Subject: "s", Why: "w", First: first, Last: first.Add(time.Second), Count: 9}, {Level: slog.LevelError, Message: "e"},
			{Level: slog.LevelError + 1, Message: "worse"}}, 4
	}
	r, err := (&adminServer{front: n.services}).ListErrors(t.Context(), &rdsdv1.ListErrorsRequest{})
	if err != nil || len(r.GetError()) != 3 || r.GetForgotten() != 4 {
		t.Fatalf("%v, %v", r, err)
	}
	if e := r.GetError()[0]; !e.GetWarning() || e.GetMessage() != "m" || e.GetSubject() != "s" || e.GetError() != "w" || e.GetFirstUnixNs() != first.UnixNano() ||
		e.GetLastUnixNs() != first.Add(time.Second).UnixNano() || e.GetCount() != 9 {
		t.Errorf("%v", e)
	}
	if r.GetError()[1].GetWarning() || r.GetError()[2].GetWarning() {
		t.Error("an error is told as a warning")
	}
}

// TestListErrorsClockSet: how long ago a line was counts by a clock that nobody sets, and the time that is told is that long ago.
func TestListErrorsClockSet(t *testing.T) {
	for _, set := range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
		n := newWorld(t, clienttest.Config(t), world{})
		// What a clock said that was set by so much since: the seconds of a time.Time with a reading of the
		// monotonic clock are above the 30 bits of its nanoseconds.
		then := time.Now()
		*(*uint64)(unsafe.Pointer(&then)) -= uint64(set/time.Second) << 30
		if d := then.Round(0).Sub(time.Now().Round(0)) + set; d < -time.Minute || d > time.Minute {
			t.Fatalf("the time of before is %v off", d)
		}
		n.services.deps.Errors = func() ([]LoggedError, uint64) {
			return []LoggedError{{Message: "m", First: then, Last: then, Count: 1}}, 0
		}
		r, err := (&adminServer{front: n.services}).ListErrors(t.Context(), &rdsdv1.ListErrorsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		e := r.GetError()[0]
		for _, ns := range []int64{e.GetFirstUnixNs(), e.GetLastUnixNs()} {
			if d := time.Since(time.Unix(0, ns)); d < -time.Minute || d > time.Minute {
				t.Errorf("clock set by %v: a line of now was %v ago", set, d)
			}
		}
	}
}

// TestConnTable: who comes when there is no room costs the one that has been silent for
// longest its place, or if nobody is silent the one that has been busy for longest; a
// state that changes costs nobody anything, and who has gone takes no place.
func TestConnTable(t *testing.T) {
	table := newConnTable(3, func(net.Conn) string { return "all" })
	conns := map[string]*closedConn{}
	do := func(name string, s http.ConnState, out ...string) {
		t.Helper()
		if conns[name] == nil {
			conns[name] = &closedConn{}
		}
		before := map[string]int{}
		for k, c := range conns {
			before[k] = c.closed
		}
		table.changed(conns[name], s)
		for k, c := range conns {
			want := before[k]
			for _, o := range out {
				if o == k {
					want++
				}
			}
			if c.closed != want {
				t.Errorf("%s is %v: %s was closed %d times, want %d", name, s, k, c.closed-before[k], want-before[k])
			}
		}
		n := 0
		for _, o := range table.of {
			n += o.len()
		}
		if n > 3 || n != len(table.at) {
			t.Errorf("%s is %v: %d connections in the lists, %d in the map", name, s, n, len(table.at))
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		do(name, http.StateNew)
	}
	do("d", http.StateNew, "a") // the oldest
	do("b", http.StateActive)
	do("e", http.StateNew, "c") // b is at work
	do("d", http.StateActive)
	do("e", http.StateActive)
	do("b", http.StateIdle)
	do("b", http.StateActive)   // now the last of those at work
	do("f", http.StateNew, "d") // nobody is silent
	do("e", http.StateClosed)
	do("g", http.StateNew) // there is room
	do("f", http.StateHijacked)
	do("h", http.StateNew)
	do("g", http.StateIdle) // behind h now
	do("i", http.StateNew, "h")
	for _, name := range []string{"b", "g", "i", "g"} {
		do(name, http.StateClosed)
	}
	if len(table.at)+len(table.of) != 0 {
		t.Error("something is left of who has gone")
	}
}

// TestConnTableIsShared: whoever has most of the connections makes room, in whatever state
// they are, and whoever comes; who has few keeps them.
func TestConnTableIsShared(t *testing.T) {
	const most = 60
	whose := map[net.Conn]string{}
	table := newConnTable(most, func(c net.Conn) string { return whose[c] })
	come := func(who string, s ...http.ConnState) *closedConn {
		c := &closedConn{}
		whose[c] = who
		for _, s := range append([]http.ConnState{http.StateNew}, s...) {
			table.changed(c, s)
		}
		return c
	}
	few := []*closedConn{come("few"), come("few", http.StateActive), come("few", http.StateActive, http.StateIdle)}
	for i := range 5 * most {
		come("many", []http.ConnState{http.StateActive, http.StateIdle, http.StateNew}[i%3])
	}
	for range most {
		come("more", http.StateActive)
	}
	few = append(few, come("one"))
	for i, c := range few {
		if c.closed != 0 {
			t.Errorf("number %d of those who have few made room", i)
		}
	}
	if many, more := table.of["many"].len(), table.of["more"].len(); len(table.at) != most || many < 27 || more < 27 || many+more+4 != most {
		t.Errorf("%d connections: %d of one and %d of the other", len(table.at), many, more)
	}
}

// TestStreamsAreLimited: calls that are streams count like others; a refusal is told with
// its errno and counted, and what the handler says is told as it is.
func TestStreamsAreLimited(t *testing.T) {
	count := &base.Counters{}
	l := callLimit{access.NewLimiter(1e-9, 2), count}
	ctx := context.WithValue(t.Context(), identityKey{}, config.Identity{UID: 5})
	called, mine := 0, errors.New("the handler's")
	call := func(method string) error {
		return l.stream()(nil, &streamOf{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: method}, func(any, grpc.ServerStream) error { called++; return mine })
	}
	for range 2 {
		if err := call("/rdsd.v1.Rds/Open"); err != mine {
			t.Errorf("%v", err)
		}
	}
	if err := call("/rdsd.v1.Rds/Open"); !errors.Is(err, rdserr.ErrRateLimited) || called != 2 || count.CallsRateLimited.Load() != 1 {
		t.Errorf("%v, called %d times, %d counted", err, called, count.CallsRateLimited.Load())
	}
	if err := call("/grpc.health.v1.Health/Watch"); err != mine || called != 3 {
		t.Errorf("a health check: %v", err)
	}
}

type streamOf struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *streamOf) Context() context.Context { return s.ctx }

// TestGuardPage: a panic in a request is that request's end, counted and told; a handler
// that gives up its connection goes on doing so.
func TestGuardPage(t *testing.T) {
	g := &guard.Guard{Log: slog.New(slog.DiscardHandler), Exit: func(code int) { t.Errorf("the process would have ended with %d", code) }}
	serve := func(f func()) (w *httptest.ResponseRecorder, p any) {
		w = httptest.NewRecorder()
		defer func() { p = recover() }()
		guardPage(g, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { f() })).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		return w, nil
	}
	if w, p := serve(func() {}); w.Code != http.StatusOK || p != nil {
		t.Errorf("%d, %v", w.Code, p)
	}
	if w, p := serve(func() { panic("oops") }); w.Code != http.StatusInternalServerError || p != nil || !strings.Contains(w.Body.String(), "internal error") || strings.Contains(w.Body.String(), "oops") {
		t.Errorf("%d %s, %v", w.Code, w.Body, p)
	}
	if _, p := serve(func() { panic(http.ErrAbortHandler) }); p != http.ErrAbortHandler {
		t.Errorf("%v", p)
	}
	if n := g.Count(guard.Page); n != 1 {
		t.Errorf("%d panics are counted", n)
	}
}
