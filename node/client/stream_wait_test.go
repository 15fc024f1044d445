package client

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
)

// sayingStream is a stream whose client says one message after the other, and then closes its side. It
// notes what the client has been sent before each.
type sayingStream struct {
	brittleStream
	says   []*rdsdv1.ClientMessage
	before []string
	turn   func() // before the next message is asked for
}

func (p *sayingStream) RecvMsg(m any) error {
	p.turn()
	p.before = append(p.before, fmt.Sprint(p.given))
	if len(p.says) == 0 {
		return io.EOF
	}
	raw, err := proto.Marshal(p.says[0])
	if err != nil {
		return err
	}
	p.says = p.says[1:]
	return m.(*inMsg).unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)})
}

// waitStream is a bound stream whose client says these.
func waitStream(t *testing.T, says func(itself netip.AddrPort) []*rdsdv1.ClientMessage) (*sockStream, *sayingStream) {
	t.Helper()
	local := netip.MustParseAddr("127.0.0.1")
	eng := newTestEngine(local, rds.DefaultConfig())
	n := newWorld(t, config.Default(), func(netip.Addr) datagram.Engine { return eng })
	p := &sayingStream{brittleStream: brittleStream{ctx: t.Context(), breaks: -1}}
	s := newSockStream(n.clients, p, config.Identity{UID: 1})
	if err := s.bind(clienttest.BindTo(local, 0)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	p.given = nil // Bound
	p.says = says(s.sock.Addr())
	p.turn = func() { // the pusher's
		select {
		case <-s.news:
			s.wmu.Lock()
			defer s.wmu.Unlock()
			if err := s.write(true); err != nil {
				t.Error(err)
			}
		default:
		}
	}
	return s, p
}

func waitBatch(id uint64, to netip.AddrPort, later bool) *rdsdv1.ClientMessage {
	b := clienttest.BatchOf(id, to, "x")
	b.SetWait(true)
	b.SetResultMayWait(later)
	m := &rdsdv1.ClientMessage{}
	m.SetSend(b)
	return m
}

// TestResultsThatWait: a result that its client does not wait for goes with what goes there next.
func TestResultsThatWait(t *testing.T) {
	nowhere := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 9)
	monitor := &rdsdv1.ClientMessage{}
	monitor.SetMonitor(&rdsdv1.Monitor{})
	refused := waitBatch(1, nowhere, true)
	refused.GetSend().GetDestination()[0].SetPort(1 << 16)
	for _, c := range []struct {
		name string
		says func(itself netip.AddrPort) []*rdsdv1.ClientMessage
		want []string // before each message, and before the client closes its side
		last string   // when it has
	}{
		{"it does not wait unless it may", func(netip.AddrPort) []*rdsdv1.ClientMessage {
			return []*rdsdv1.ClientMessage{waitBatch(1, nowhere, false)}
		}, []string{"[]", "[result]"}, "[result]"},
		{"the client closes its side", func(netip.AddrPort) []*rdsdv1.ClientMessage {
			return []*rdsdv1.ClientMessage{waitBatch(1, nowhere, true)}
		}, []string{"[]", "[]"}, "[result]"},
		{"with a datagram, and behind it", func(itself netip.AddrPort) []*rdsdv1.ClientMessage {
			return []*rdsdv1.ClientMessage{waitBatch(1, itself, true)}
		}, []string{"[]", "[datagrams result]"}, "[datagrams result]"},
		{"with a second one", func(netip.AddrPort) []*rdsdv1.ClientMessage {
			return []*rdsdv1.ClientMessage{waitBatch(1, nowhere, true), waitBatch(2, nowhere, true), waitBatch(3, nowhere, true)}
		}, []string{"[]", "[]", "[result result]", "[result result]"}, "[result result result]"},
		{"with one that does not wait", func(netip.AddrPort) []*rdsdv1.ClientMessage {
			return []*rdsdv1.ClientMessage{waitBatch(1, nowhere, true), waitBatch(2, nowhere, false)}
		}, []string{"[]", "[]", "[result result]"}, "[result result]"},
		{"the client says something else", func(netip.AddrPort) []*rdsdv1.ClientMessage {
			return []*rdsdv1.ClientMessage{waitBatch(1, nowhere, true), monitor}
		}, []string{"[]", "[]", "[result]"}, "[result]"},
		{"an error does not wait", func(netip.AddrPort) []*rdsdv1.ClientMessage {
			return []*rdsdv1.ClientMessage{refused}
		}, []string{"[]", "[send_result]"}, "[send_result]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, p := waitStream(t, c.says)
			s.waitArmed = true // the time is never over
			if err := s.read(&inMsg{}); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(p.before, c.want) {
				t.Errorf("the client was sent %v, want %v", p.before, c.want)
			}
			if got := fmt.Sprint(p.given); got != c.last {
				t.Errorf("in all %v, want %v", got, c.last)
			}
		})
	}
}

// TestResultsDoNotWaitForEver: where nothing else is sent, a result goes after some time.
func TestResultsDoNotWaitForEver(t *testing.T) {
	nowhere := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 9)
	s, p := waitStream(t, func(netip.AddrPort) []*rdsdv1.ClientMessage { return nil })
	for id := range uint64(2) { // the time begins again
		p.given = nil
		sendToItself(t, s, waitBatch(id+1, nowhere, true).GetSend())
		if err := s.answer(); err != nil || len(p.given) > 0 {
			t.Fatal(p.given, err)
		}
		await.Until(t, 5*time.Second, "the pusher has news", func() bool { return len(s.news) > 0 })
		if p.turn(); !slices.Equal(p.given, []string{"result"}) {
			t.Errorf("the client was sent %v", p.given)
		}
	}
}
