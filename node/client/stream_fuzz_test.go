package client

import (
	"context"
	"encoding/binary"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
)

// scriptStream is a server's stream whose client says what a script holds and
// reads everything.
type scriptStream struct {
	ctx context.Context

	mu     sync.Mutex
	script [][]byte
	sent   int
}

func (s *scriptStream) Context() context.Context { return s.ctx }

func (s *scriptStream) RecvMsg(m any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.script) == 0 {
		return io.EOF
	}
	raw := s.script[0]
	s.script = s.script[1:]
	return datagramCodec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, m)
}

func (s *scriptStream) SendMsg(m any) error {
	out, err := datagramCodec{}.Marshal(m)
	if err != nil {
		return err
	}
	raw := out.Materialize()
	out.Free()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
	return proto.Unmarshal(raw, &rdsdv1.ServerMessage{}) // what goes out is well formed
}

// FuzzStream feeds sequences of messages to a socket's stream: nothing panics,
// nothing hangs, and afterwards nothing is left of the socket.
func FuzzStream(f *testing.F) {
	local := netip.MustParseAddr("127.0.0.1")
	self := netip.AddrPortFrom(local, 7000)
	add := func(msgs ...func(*rdsdv1.ClientMessage)) {
		var seed []byte
		for _, set := range msgs {
			m := &rdsdv1.ClientMessage{}
			set(m)
			raw, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			seed = binary.AppendUvarint(seed, uint64(len(raw)))
			seed = append(seed, raw...)
		}
		f.Add(seed)
	}
	send := func(wait bool, dst netip.AddrPort, p ...string) func(*rdsdv1.ClientMessage) {
		return func(m *rdsdv1.ClientMessage) {
			b := clienttest.BatchOf(3, dst, p...)
			b.SetWait(wait)
			b.SetWantOutcomes(true)
			m.SetSend(b)
		}
	}
	nobody := netip.MustParseAddrPort("127.77.255.9:5")
	add(send(false, self, "to myself", ""), send(true, nobody, "x"))
	add(send(true, nobody, "waits"), func(m *rdsdv1.ClientMessage) {
		c := &rdsdv1.Cancel{}
		c.SetDestination(clienttest.EndpointMsg(nobody))
		m.SetCancel(c)
	}, func(m *rdsdv1.ClientMessage) { m.SetFlush(&rdsdv1.Flush{}) })
	add(func(m *rdsdv1.ClientMessage) {
		mo := &rdsdv1.Monitor{}
		mo.SetMask(1<<64 - 1)
		mo.SetSetEvents(true)
		m.SetMonitor(mo)
	}, func(m *rdsdv1.ClientMessage) {
		c := &rdsdv1.Credit{}
		c.SetBytes(1<<64 - 1)
		c.SetDatagrams(1<<32 - 1)
		m.SetCredit(c)
	}, func(m *rdsdv1.ClientMessage) { m.SetPeek(&rdsdv1.Peek{}) },
		func(m *rdsdv1.ClientMessage) {
			q := &rdsdv1.CongestedQuery{}
			q.SetDestination(clienttest.EndpointMsg(self))
			m.SetCongested(q)
		})
	f.Fuzz(func(t *testing.T, data []byte) {
		bind := &rdsdv1.ClientMessage{}
		bind.SetBind(clienttest.BindTo(local, 7000))
		first, err := proto.Marshal(bind)
		if err != nil {
			t.Fatal(err)
		}
		st := &scriptStream{script: [][]byte{first}}
		for len(data) > 0 && len(st.script) < 64 {
			n, used := binary.Uvarint(data)
			if used <= 0 || n > uint64(len(data)-used) {
				break
			}
			st.script = append(st.script, data[used:used+int(n)])
			data = data[used+int(n):]
		}
		cfg := rds.DefaultConfig()
		eng := newTestEngine(local, cfg)
		n := newWorld(t, config.Default(), func(netip.Addr) datagram.Engine { return eng })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		st.ctx = ctx
		_ = n.clients.ServeStream(st, config.Identity{UID: 1}, st)
		if ctx.Err() != nil {
			t.Fatal("the stream hung")
		}
		e, _ := eng.Lock()
		defer eng.mu.Unlock()
		if left := len(e.Sockets()); left != 0 {
			t.Fatalf("%d sockets left", left)
		}
		if used := n.clients.Budget().Used; used != 0 {
			t.Fatalf("%d sockets still counted", used)
		}
		if eng.timer != nil {
			eng.timer.Stop()
		}
	})
}
