package node

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// testSocket is a socket as a client in any language would write it: plain
// generated messages.
type testSocket struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[rdsdv1.ClientMessage, rdsdv1.ServerMessage]
	bound  *rdsdv1.Bound
	local  netip.AddrPort
	skip   []*rdsdv1.ServerMessage // read past by want
}

func openSocket(t *testing.T, cfg *config.Config, b *rdsdv1.Bind) (*testSocket, error) {
	t.Helper()
	return openSocketFor(testContext(t), t, cfg, b)
}

// openSocketFor is a socket that lasts as long as ctx.
func openSocketFor(ctx context.Context, t *testing.T, cfg *config.Config, b *rdsdv1.Bind) (*testSocket, error) {
	t.Helper()
	st, err := rdsdv1.NewDatagramsClient(dial(t, cfg)).Open(ctx)
	if err != nil {
		return nil, err
	}
	s := &testSocket{t: t, stream: st}
	m := &rdsdv1.ClientMessage{}
	m.SetBind(b)
	s.write(m)
	r, err := st.Recv()
	if err != nil {
		return nil, rdsdv1.ErrorFromStatus(err)
	}
	s.bound = r.GetBound()
	a, _ := netip.AddrFromSlice(s.bound.GetLocal().GetAddress())
	s.local = netip.AddrPortFrom(a, uint16(s.bound.GetLocal().GetPort()))
	return s, nil
}

func mustBind(t *testing.T, cfg *config.Config, b *rdsdv1.Bind) *testSocket {
	t.Helper()
	s, err := openSocket(t, cfg, b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *testSocket) write(m *rdsdv1.ClientMessage) {
	s.t.Helper()
	if err := s.stream.Send(m); err != nil {
		s.t.Fatal(err)
	}
}

func (s *testSocket) send(b *rdsdv1.SendBatch) {
	s.t.Helper()
	m := &rdsdv1.ClientMessage{}
	m.SetSend(b)
	s.write(m)
}

// want reads until a message of the given kind comes; others are kept.
func want[T any](s *testSocket, get func(*rdsdv1.ServerMessage) (T, bool)) T {
	s.t.Helper()
	for i, m := range s.skip {
		if v, ok := get(m); ok {
			s.skip = append(s.skip[:i], s.skip[i+1:]...)
			return v
		}
	}
	for {
		m, err := s.stream.Recv()
		if err != nil {
			s.t.Fatalf("stream ended: %v", err)
		}
		if v, ok := get(m); ok {
			return v
		}
		s.skip = append(s.skip, m)
	}
}

func asResult(m *rdsdv1.ServerMessage) (*rdsdv1.SendResult, bool) {
	return m.GetSendResult(), m.HasSendResult()
}

func asRecv(m *rdsdv1.ServerMessage) (*rdsdv1.RecvBatch, bool) { return m.GetRecv(), m.HasRecv() }

func asOutcomes(m *rdsdv1.ServerMessage) (*rdsdv1.OutcomeBatch, bool) {
	return m.GetOutcomes(), m.HasOutcomes()
}

func asFlush(m *rdsdv1.ServerMessage) (*rdsdv1.FlushResult, bool) {
	return m.GetFlushResult(), m.HasFlushResult()
}

func asCancel(m *rdsdv1.ServerMessage) (*rdsdv1.CancelResult, bool) {
	return m.GetCancelResult(), m.HasCancelResult()
}

func asCongestion(m *rdsdv1.ServerMessage) (*rdsdv1.CongestionEvent, bool) {
	return m.GetCongestion(), m.HasCongestion()
}

func asCongested(m *rdsdv1.ServerMessage) (*rdsdv1.CongestedResult, bool) {
	return m.GetCongestedResult(), m.HasCongestedResult()
}

func asPeek(m *rdsdv1.ServerMessage) (*rdsdv1.PeekResult, bool) {
	return m.GetPeekResult(), m.HasPeekResult()
}

func asClosing(m *rdsdv1.ServerMessage) (*rdsdv1.Closing, bool) {
	return m.GetClosing(), m.HasClosing()
}

// recv collects n datagrams as "payload" strings with their sources.
func (s *testSocket) recv(n int) (got []string, from []netip.AddrPort) {
	s.t.Helper()
	for len(got) < n {
		b := want(s, asRecv)
		off := 0
		for i, l := range b.GetLength() {
			got = append(got, string(b.GetPayload()[off:off+int(l)]))
			off += int(l)
			k := 0
			if len(b.GetSourceIndex()) > 0 {
				k = int(b.GetSourceIndex()[i])
			}
			e := b.GetSource()[k]
			a, _ := netip.AddrFromSlice(e.GetAddress())
			from = append(from, netip.AddrPortFrom(a, uint16(e.GetPort())))
		}
	}
	return got, from
}

func resultString(r *rdsdv1.SendResult) string {
	text := fmt.Sprintf("id %d accepted %d", r.GetId(), r.GetAccepted())
	for _, e := range r.GetErrors() {
		text += fmt.Sprintf(", %d+%d: %v", e.GetIndex(), e.GetCount(), rdserr.FromErrno(errno(e.GetErrno())))
	}
	return text
}

var loopback atomic.Uint32

// loopbackAddr is an address of 127/8 no other test of this process has, and those of another process
// hardly ever: devices of volumes.rdma have one UDP port on each.
func loopbackAddr() netip.Addr {
	n := loopback.Add(1)
	return netip.AddrFrom4([4]byte{127, byte(180 + os.Getpid()%64), byte(n >> 8), byte(n)})
}

// startNodes runs n real nodes that reach each other.
func startNodes(t *testing.T, n int, change func(*config.Config)) []*config.Config {
	t.Helper()
	port := freePort(t)
	var cfgs []*config.Config
	for range n {
		cfg := testConfig(t)
		cfg.RDS.Addresses = []netip.Addr{loopbackAddr()}
		cfg.RDS.Port = port
		if change != nil {
			change(cfg)
		}
		nd, err := New(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		startNode(t, nd)
		cfgs = append(cfgs, cfg)
	}
	return cfgs
}

// endpointOf is a port of a node's first address.
func endpointOf(cfg *config.Config, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(cfg.RDS.Addresses[0], port)
}

var (
	bindTo  = clienttest.BindTo
	batchOf = clienttest.BatchOf
)
