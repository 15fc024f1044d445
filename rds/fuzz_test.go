package rds

import (
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdsd/rdsd/cong"
	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/buf"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// FuzzEngine reads its input as a program: one engine, three peers of which
// one is smaller, one larger and one the engine itself, and a shell that does
// things late, in the wrong order, or not at all as far as it may. After each
// instruction the books must balance.
func FuzzEngine(f *testing.F) {
	for seed := range 8 {
		b := make([]byte, 300)
		rand.New(rand.NewSource(int64(seed))).Read(b)
		f.Add(b)
		f.Add(append(opening(byte(seed%4), seed%2 == 0), b...))
	}
	f.Fuzz(func(t *testing.T, b []byte) { runProgram(t, b[:min(len(b), 4000)]) })
}

// TestRandomPrograms is the slice of fuzzing every test run gets.
func TestRandomPrograms(t *testing.T) {
	n := 6000
	if testing.Short() {
		n = 1000
	}
	rng := rand.New(rand.NewSource(1))
	for i := range n {
		b := make([]byte, 20+rng.Intn(400)<<(rng.Intn(8)/6))
		rng.Read(b)
		if i%2 == 0 {
			b = append(opening(byte(rng.Intn(4)), i%4 == 0), b...)
		}
		if !t.Run("", func(t *testing.T) { runProgram(t, b) }) {
			name := filepath.Join(t.TempDir(), "program")
			os.WriteFile(name, b, 0o600)
			t.Fatalf("program %d: %x", i, b)
		}
	}
}

// opening binds two sockets and brings a link of the smaller peer up, as an
// rdsd's or as a kernel's, so that a random program gets further.
func opening(lanes byte, rdsd bool) []byte {
	b := []byte{0, lanes, 1, 0, 0, 64, 32, 1, 0, 1, 64, 32, 2, 7, 0, 0}
	if rdsd {
		return append(b, 17, 0, 0, 0, 3)
	}
	return append(b, 18, 0, 8, 1, 0, 0, 0)
}

// machine runs one program.
type machine struct {
	t     *testing.T
	in    []byte
	now   time.Duration
	cfg   Config
	e     *Engine
	socks []*Socket
	dials []dial
	links []*fuzzLink
	fills map[*conn.Lane]*transport.Batch // being written
	late  bool                            // fills wait for an instruction
	kicks []*conn.Lane
	seqs  map[*conn.Lane]uint64 // what the peer sends next
	tag   uint64
	held  int64
	trace []string
	pins  *pins // of a transcript; nil: none is written

	opened []*Dest // by act
}

type dial struct {
	p   *conn.Lane
	gen uint64
}

// fuzzLink is the shell's side of a link, with the bytes that wait while it is paused.
type fuzzLink struct {
	p       *conn.Lane
	attempt uint64
	fr      transport.Framer
	paused  *transport.Frame
	behind  []byte
	dead    bool // a frame failed: what follows is thrown away
	closing bool
	sent    uint64
}

var fuzzPeers = []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("10.0.0.5")}

var fuzzSizes = []int{0, 1, 64, 3000, 20000, 70000, 300000, wire.MaxDatagram}

// fuzzPayload is lengths below 256 when it is read as a table.
var fuzzPayload = func() []byte {
	p := make([]byte, wire.MaxDatagram+1)
	for i := 3; i < len(p); i += 4 {
		p[i] = byte(i >> 2)
	}
	return p
}()

func runProgram(t *testing.T, in []byte) { newMachine(t, in).run() }

func newMachine(t *testing.T, in []byte) *machine {
	m := &machine{t: t, in: in, now: time.Second, fills: map[*conn.Lane]*transport.Batch{}, seqs: map[*conn.Lane]uint64{}, held: buf.InUse()}
	m.cfg = DefaultConfig()
	m.cfg.SndBufBytes, m.cfg.RcvBufBytes, m.cfg.HardFactor = 64<<10, 32<<10, 1
	m.cfg.MaxSockets, m.cfg.MaxUndecided, m.cfg.MaxOutcomes = 8, 40, 20
	m.cfg.Budget = &Budget{Limit: 3 << 20}
	m.cfg.Conn.CreditLog2 = 7 + uint8(m.u8())%6
	m.cfg.Conn.Lanes = 1 + int(m.u8())%8
	m.e = NewEngine(&m.cfg, fuzzPeers[2], rand.New(rand.NewSource(int64(m.u8()))))
	return m
}

func (m *machine) run() {
	defer func() {
		if r := recover(); r != nil || m.t.Failed() {
			for _, s := range m.trace[max(0, len(m.trace)-40):] {
				m.t.Log(s)
			}
			if r != nil {
				panic(r)
			}
		}
	}()
	for len(m.in) > 0 && !m.t.Failed() {
		m.instruction()
		if m.pins != nil && m.pins.rng.Intn(3) == 0 {
			m.act(m.pins.rng)
		}
		if m.pins != nil {
			m.actMore(m.pins.rng)
		}
		m.actions()
		m.check()
		m.pin()
	}
	m.end()
	m.pin()
}

func (m *machine) u8() byte {
	if len(m.in) == 0 {
		return 0
	}
	b := m.in[0]
	m.in = m.in[1:]
	return b
}

func (m *machine) note(format string, a ...any) { m.trace = append(m.trace, fmt.Sprintf(format, a...)) }

func pick[T any](m *machine, l []T) (v T, ok bool) {
	n := int(m.u8())
	if len(l) == 0 {
		return v, false
	}
	return l[n%len(l)], true
}

func (m *machine) port() uint16 { return uint16(2 + m.u8()%6) }

func (m *machine) dst() netip.AddrPort {
	b := m.u8()
	port := uint16(2 + b%6)
	if b > 250 {
		port = 0
	}
	return netip.AddrPortFrom(fuzzPeers[b/8%3], port)
}

func (m *machine) instruction() {
	switch op := m.u8() % 26; op {
	case 0:
		port := m.port()
		o := SocketOptions{SndBufBytes: int(m.u8()) << 10, RcvBufBytes: int(m.u8()) << 8}
		m.owned(&o, uint32(port)%3)
		var b *fuzzSink
		if port%4 == 3 {
			b = &fuzzSink{m: m}
			o.Sink = b
		}
		s, err := m.e.Bind(port, o)
		m.note("bind %d: %v", port, err)
		if err == nil {
			m.socks = append(m.socks, s)
			if b != nil {
				b.s = s
			}
			s.SetMonitor(Monitor{Mask: uint64(m.u8()), Clear: port%2 == 0, Set: port%3 == 0})
		}
	case 1, 2, 3:
		if s, ok := pick(m, m.socks); ok {
			dst, n, how := m.dst(), fuzzSizes[m.u8()%8], m.u8()
			want, count := how%2 == 0, 1+int(how>>3)
			m.tag++
			switch b, _ := s.opt.Sink.(*fuzzSink); {
			case b != nil:
				b.post(dst, n, count, how&2 != 0, want)
			case op == 2 && how&6 == 6:
				lengths := make([]uint32, count)
				for i := range lengths {
					lengths[i] = uint32(n / count)
				}
				lengths[count-1] += uint32(how & 1)
				k := s.SendRun(m.now, dst, fuzzPayload[:n/count*count+int(how&1)], lengths, m.tag, Report(want))
				m.note("%v sends %d datagrams of %d bytes to %v: %d accepted", s.Addr(), count, n/count, dst, k)
				m.tag += uint64(count)
			case op == 3:
				queued, err := s.SendWait(m.now, dst, fuzzPayload[:n], m.tag, Report(want), m.now+time.Duration(m.u8())*time.Millisecond, "batch")
				m.note("%v waits to send %d to %v: %v %v", s.Addr(), n, dst, queued, err)
			default:
				m.note("%v sends %d to %v: %v", s.Addr(), n, dst, s.Send(m.now, dst, fuzzPayload[:n], m.tag, Report(want)))
			}
		}
	case 4:
		if s, ok := pick(m, m.socks); ok {
			dst := m.dst()
			n, begun, err := s.Cancel(m.now, dst)
			m.note("%v cancels to %v: %d %d %v", s.Addr(), dst, n, begun, err)
		}
	case 5:
		if s, ok := pick(m, m.socks); ok && m.u8()%4 == 0 {
			m.note("%v closes", s.Addr())
			s.Close(m.now)
			for i := range m.socks {
				if m.socks[i] == s {
					m.socks = append(m.socks[:i], m.socks[i+1:]...)
					break
				}
			}
		}
	case 6:
		if s, ok := pick(m, m.socks); ok {
			m.read(s, int(m.u8())%20)
		}
	case 7, 8:
		peer, port := fuzzPeers[m.u8()%2], uint16(40000)+uint16(m.u8()%16)
		a, err := m.e.Accept(m.now, netip.AddrPortFrom(peer, port))
		m.settle()
		m.note("connection of %v port %d: %+v %v", peer, port, a, err)
		if err == nil && a.Link {
			m.link(a.Lane, a.Attempt)
		}
	case 9, 10:
		if d, ok := pick(m, m.dials); ok {
			m.forget(d)
			if op == 10 && m.u8()%2 == 0 {
				m.note("%v: attempt %d fails", d.p, d.gen)
				d.p.DialFailed(m.now, d.gen, errors.New("no"))
				m.settle()
			} else if ok := m.connected(d); ok {
				m.note("%v: attempt %d connects", d.p, d.gen)
				m.link(d.p, d.gen)
			}
		}
	case 11:
		if l, ok := pick(m, m.links); ok {
			m.lost(l)
		}
	case 12:
		if l, ok := pick(m, m.links); ok {
			m.note("%v: drop: %v", l.p, m.drop(l, errors.New("asked to")))
		}
	case 13:
		d := time.Millisecond << (m.u8() % 16)
		m.note("%v pass", d)
		for until := m.now + d; ; {
			at, ok := m.e.Next()
			if !ok || at > until {
				m.now = until
				break
			}
			m.now = max(m.now, at)
			m.e.Tick(m.now)
			m.settle()
			m.actions()
		}
	case 14:
		m.late = !m.late
	case 15:
		if p := m.firstFill(); p != nil {
			m.wrote(p)
		}
	case 16:
		if s, ok := pick(m, m.socks); ok {
			s.Flush(uint64(m.u8()))
			s.Unflush(uint64(m.u8()))
			outcomes, sends := queueOf(s).Outcomes(nil), s.SendsDone(nil)
			freed, changes := s.CongestionNews()
			m.note("%v: outcomes %v, sends %v, freed %x, changes %v, flushed %v, events %x", s.Addr(), outcomes, sends, freed, changes, s.Flushed(), s.Events())
		}
	case 17: // a rdsd shakes hands, both ways
		if l, ok := pick(m, m.links); ok {
			who := m.u8()
			inc, caps, ack := uint64(1+who%2), who>>6, m.ack(l)
			x := wire.Handshake{NPaths: 1, Hello: wire.Hello{Version: 1, Lanes: uint8(m.cfg.Conn.Lanes), CreditLog2: 7 + m.u8()%5, Caps: caps, Incarnation: inc}}
			m.frame(l, wire.Header{SPort: 1, Ext: x.Encode()}, nil)
			m.frame(l, wire.Header{DPort: 1, Ack: ack, Ext: x.Encode()}, nil)
		}
	case 18: // a kernel does
		if l, ok := pick(m, m.links); ok {
			x := wire.Handshake{NPaths: uint16(m.u8()), GenNum: uint32(m.u8() % 3), SportIdx: m.u8()%2 == 0}
			m.frame(l, wire.Header{Seq: m.seq(l), SPort: 1, Ext: x.Encode()}, nil)
			m.frame(l, wire.Header{Seq: m.seq(l), DPort: 1, Ext: x.Encode()}, nil)
		}
	case 19:
		if l, ok := pick(m, m.links); ok {
			m.bytes(l, m.take(int(m.u8())))
		}
	default:
		if l, ok := pick(m, m.links); ok {
			m.anyFrame(l)
		}
	}
}

// anyFrame makes a frame that is mostly right.
func (m *machine) anyFrame(l *fuzzLink) {
	h := wire.Header{SPort: m.port(), DPort: m.port(), Ack: m.ack(l)}
	var p []byte
	switch m.u8() % 10 {
	case 0, 1, 2, 3:
		h.Seq, p = m.seq(l), fuzzPayload[:fuzzSizes[m.u8()%8]]
		how := m.u8()
		h.Flags = how & (wire.FlagAckRequired | wire.FlagRetransmitted | wire.FlagResume)
		h.Credit = m.u8()
		if how&0x08 != 0 { // as a train, mostly of a form that fits
			t := wire.Train{Count: 1 + int(h.Credit)%64, Table: how&0x10 != 0}
			if p = p[:min(len(p), wire.MaxTrainBytes)]; !t.Table && how&0x20 == 0 {
				p = p[:len(p)/t.Count*t.Count]
			}
			h.Ext = t.Ext()
		}
	case 4:
		h.SPort, h.DPort = 0, 0
		h.Flags, h.Credit = m.u8()&wire.FlagAckRequired, m.u8()
	case 5:
		var c cong.Map
		for range m.u8() % 4 {
			c.Set(m.port(), true)
		}
		h = wire.Header{Flags: wire.FlagCongBitmap, Ack: h.Ack}
		p = c.AppendTo(nil)[:8192-int(m.u8()/255)]
	case 6:
		h = wire.Header{Flags: wire.FlagControl, Ack: h.Ack}
		h.Ext[0] = wire.CtlCongDelta
		for range m.u8() % 4 {
			b := m.u8()
			p = wire.AppendPortStates(p, []wire.PortState{{Port: uint16(2 + b%6), Congested: b > 127}})
		}
	case 7:
		h = wire.Header{Flags: wire.FlagControl | wire.FlagAckRequired, Ack: h.Ack, Seq: m.seq(l)}
		h.Ext[0] = wire.CtlRefuse
		next := l.p.Info().NextTx
		for range 1 + m.u8()%4 {
			b := m.u8()
			p = wire.AppendRefusal(p, wire.Refusal{Seq: next - min(next, 1+uint64(b%8)), Reason: wire.Reason(1 + b>>7)})
		}
	case 8:
		h.Seq = m.seq(l)
		if m.u8()%2 == 0 {
			h.SPort = 0
		} else {
			h.DPort = 0
		}
	case 9:
		raw := make([]byte, wire.HeaderLen)
		copy(raw, m.take(wire.HeaderLen))
		h.Parse(raw)
		p = fuzzPayload[:min(h.Len, 4096)]
	}
	m.frame(l, h, p)
}

func (m *machine) take(n int) []byte {
	b := m.in[:min(n, len(m.in))]
	m.in = m.in[len(b):]
	return b
}

// ack is usually one that makes sense.
func (m *machine) ack(l *fuzzLink) uint64 {
	next := l.p.Info().NextTx
	b := uint64(m.u8())
	if b > 250 {
		return next + b
	}
	return next - min(next, 1+b%16)
}

// seq is usually the next one.
func (m *machine) seq(l *fuzzLink) uint64 {
	switch b := m.u8(); {
	case b > 250:
		return uint64(b % 4)
	case b > 240:
		m.seqs[l.p] += uint64(b)
	}
	m.seqs[l.p]++
	return m.seqs[l.p]
}

func (m *machine) frame(l *fuzzLink, h wire.Header, p []byte) {
	h.Len = uint32(len(p))
	raw := h.Append(make([]byte, 0, wire.HeaderLen+len(p)))
	wire.SetChecksum(raw)
	m.bytes(l, append(raw, p...))
}

// check checks what is true at every instant.
func (m *machine) check() {
	m.e.End()
	m.e.holds(m.t)
	b := m.cfg.Budget
	if u := b.Used(); u < 0 || u > b.Limit {
		m.t.Errorf("%d bytes used of a budget of %d", u, b.Limit)
	}
	var sum int64
	for _, s := range m.socks {
		i := s.Info()
		st := i.Stats
		if st.Accepted != st.Delivered+st.Cancelled+st.Failed+st.Unknown+uint64(i.Undecided) {
			m.t.Errorf("%v: %+v with %d undecided (D3)", s.Addr(), st, i.Undecided)
		}
		if i.SendQueued < 0 || i.SendQueued > s.Options().SndBufBytes+wire.MaxDatagram || i.Undecided > m.cfg.MaxUndecided+32 {
			m.t.Errorf("%v: %d bytes and %d datagrams in the send buffer", s.Addr(), i.SendQueued, i.Undecided)
		}
		if b, _ := s.opt.Sink.(*fuzzSink); b != nil {
			if i.RecvMem != b.used || i.RecvN != b.n+s.paired.Datagrams || b.left != i.Undecided || i.Held > i.Undecided {
				m.t.Errorf("%v: %+v; its client holds %d datagrams and %d bytes and waits for %d", s.Addr(), i, b.n, b.used, b.left)
			}
		} else if i.RecvMem < 0 || i.RecvMem > i.Hard || i.RecvQueued < 0 || i.RecvN < 0 {
			m.t.Errorf("%v: %d bytes received, hard limit %d", s.Addr(), i.RecvMem, i.Hard)
		}
		if i.RecvQueued-s.paired.Bytes > s.soft() && !i.Congested {
			m.t.Errorf("%v: %d bytes queued of %d and not congested", s.Addr(), i.RecvQueued, s.Options().RcvBufBytes)
		}
		sum += int64(i.SendQueued + i.RecvMem)
	}
	if sum > b.Used() {
		m.t.Errorf("sockets hold %d bytes, the budget knows of %d", sum, b.Used())
	}
	for _, pe := range m.e.Peers() {
		if q := pe.Conn().Queued(); q.Queued < 0 || q.QueuedBytes < 0 || q.Unacked < 0 || q.UnackedBytes < 0 || q.Held < 0 {
			m.t.Errorf("%v: %+v", pe.Addr(), q)
		}
	}
}

// end closes everything: no memory stays, and nothing stays undecided.
func (m *machine) end() {
	if m.t.Failed() {
		return
	}
	socks := append([]*Socket(nil), m.socks...)
	for _, s := range socks {
		m.read(s, 1<<20)
	}
	m.e.Shutdown(m.now)
	m.late = true
	for p := m.firstFill(); p != nil; p = m.firstFill() {
		m.wrote(p)
	}
	m.check()
	for _, s := range socks {
		if i := s.Info(); i.Undecided != 0 || i.SendQueued != 0 || i.Waiting != 0 {
			m.t.Errorf("%v after the shutdown: %+v", s.Addr(), i)
		}
		m.read(s, 1<<20)
		s.Close(m.now)
		if b, _ := s.opt.Sink.(*fuzzSink); b != nil && b.drained != 1 {
			m.t.Errorf("%v: drained %d times", s.Addr(), b.drained)
		}
	}
	for len(m.links) > 0 {
		m.unlink(m.links[0])
	}
	if m.e.memory(); m.cfg.Budget.Datagrams() != 0 {
		m.t.Errorf("%d bytes of the budget are used in the end", m.cfg.Budget.Datagrams())
	}
	if n := buf.InUse() - m.held; n != 0 {
		m.t.Errorf("%d bytes of receive buffers are held in the end", n)
	}
}
