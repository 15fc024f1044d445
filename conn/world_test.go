package conn

import (
	"encoding/binary"
	"fmt"
	"math/rand"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/cong"
	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// world is one Conn with everything around it played by the test: the sockets
// above (Owner, Completer), the shell (orders, clock), and the peer, whose
// frames the test writes. What the Conn does is noted as lines of text.
type world struct {
	t   testing.TB
	c   *Conn
	com Common
	cfg Config
	ctr stats.Counters
	now time.Duration
	out []string

	verdict  map[uint16]Verdict // of our ports; absent: Placed
	peerMap  cong.Map
	ourMap   cong.Map
	ourVer   uint64
	ourLog   []wire.PortState // changes after version 1
	grant    bool
	kept     int // bytes for refusals
	mostKept int
	noKernel bool
	armed    time.Duration
	cleared  []uint16

	clearedMap bool // a whole map came: any port may be clear

	lone  bool // each message is offered a batch of its own (lone.go)
	lones int  // those that took it

	hold    bool // batches stay unwritten until the test says so
	batch   map[*Lane]*transport.Batch
	txB     map[*Lane]uint64 // bytes given to its link
	told    map[*Lane]told   // what the peer may know of our numbers
	tcp     map[*Lane]uint64 // what the frames of this step show that TCP has acknowledged
	given   map[*Lane]uint64 // the highest attempt of each lane
	tag     uint64
	ports   []uint16 // that something was sent to, in this order
	senders map[uint16]*Sender
	undone  map[uint64]bool    // tags without an outcome
	cells   map[uint64]*uint64 // by the first tag of each message
	msgs    []Msg              // that Common lends, one after the other
	pooled  map[*Msg]bool      // the same
}

func newWorld(t testing.TB, local, remote string, tune func(*Config)) *world {
	w := &world{t: t, cfg: DefaultConfig(), now: time.Second, verdict: map[uint16]Verdict{}, ourVer: 1, grant: true, mostKept: 1 << 30, armed: Never,
		batch: map[*Lane]*transport.Batch{}, txB: map[*Lane]uint64{}, told: map[*Lane]told{}, tcp: map[*Lane]uint64{}, given: map[*Lane]uint64{}, undone: map[uint64]bool{}, cells: map[uint64]*uint64{}, senders: map[uint16]*Sender{}, pooled: map[*Msg]bool{}}
	w.cfg.Trains = false // scripts ask for them
	if tune != nil {
		tune(&w.cfg)
	}
	w.msgs = make([]Msg, 2048)
	for i := range w.msgs {
		w.pooled[&w.msgs[i]] = true
	}
	w.com = Common{Config: &w.cfg, Local: netip.MustParseAddr(local), Rng: rand.New(rand.NewSource(1)),
		AllowKernel: func(netip.Addr) bool { return !w.noKernel }, msgs: w.msgs}
	w.c = New(&w.com, w, &w.ctr, netip.MustParseAddr(remote))
	return w
}

// note adds a line, behind those of the changes of state that happened before.
func (w *world) note(format string, a ...any) {
	w.noteChanges()
	w.out = append(w.out, fmt.Sprintf(format, a...))
}

func (w *world) noteChanges() {
	for _, s := range w.com.Changes {
		w.out = append(w.out, fmt.Sprintf("lane %d: %v > %v", s.Index, s.Was, s.Now))
	}
	w.com.Changes = nil
}

// --- Owner ---------------------------------------------------------------------

func (w *world) Deliver(a Arrival) Verdict {
	v := w.verdict[a.DPort]
	if a.Seq == 0 || w.c.kind == KindKernelLegacy && a.Lane != w.c.lanes[0] {
		w.t.Errorf("delivered as number %d of %v", a.Seq, a.Lane)
	}
	w.note("deliver %d>%d%s len=%d%s", a.SPort, a.DPort, trainText(a.Train), len(a.Train.Body), [...]string{"", ": no such port", ": no room"}[v])
	return v
}

func (w *world) Congested(port uint16) bool { return w.peerMap.Congested(port) }

func (w *world) congestionMap(m []byte) {
	told := len(w.cleared)
	if _, _, err := w.peerMap.Replace(m, cong.Ports, w.peerPort); err != nil {
		w.t.Fatal(err)
	}
	w.cleared, w.clearedMap = w.cleared[:told], true // a whole map's are not told one by one
}

func (w *world) congestionDelta(s wire.PortState) {
	if w.peerMap.Set(s.Port, s.Congested) {
		w.peerPort(s.Port, s.Congested)
	}
}

func (w *world) peerPort(p uint16, on bool) {
	if on {
		w.note("peer's port %d is congested", p)
	} else {
		w.note("peer's port %d is clear", p)
		w.cleared = append(w.cleared, p) // told to the Conn at the end of the step, as rds does
	}
}

func (w *world) LocalCongestion(since uint64, wholeOnly bool) (uint64, []wire.PortState, []byte) {
	switch {
	case since == w.ourVer || since == 0 && w.ourVer == 1 && !wholeOnly:
		return w.ourVer, nil, nil
	case since == 0 || wholeOnly:
		return w.ourVer, nil, w.ourMap.AppendTo(nil)
	}
	return w.ourVer, slices.Clone(w.ourLog[since-1:]), nil
}

func (w *world) Told(_ time.Duration, topic Topic, payload []byte) error {
	switch topic {
	case ToldMap:
		w.congestionMap(payload)
	case ToldOldMap:
		m := w.peerMap.AppendTo(nil)
		for i := range m {
			m[i] &= payload[i]
		}
		w.congestionMap(m)
	case ToldPorts:
		return wire.ParsePortStates(payload, w.congestionDelta)
	default:
		w.note("told %v, %d bytes", [...]string{ToldAsk: "ask", ToldReader: "reader"}[topic], len(payload))
	}
	return nil
}

func (w *world) MayGrant() bool       { return w.grant }
func (w *world) Arm(at time.Duration) { w.armed = min(w.armed, at) }
func (w *world) Refused(*Msg)         {}

func (w *world) Keep(n int, sure bool) bool {
	if w.kept+n > w.mostKept && !sure {
		return false
	}
	w.kept += n
	return true
}

// Completed is Completer: exactly one outcome for each datagram.
func (w *world) Completed(m *Msg, o Outcome, why Why) {
	last := m.Tag + uint64(m.Datagrams()) - 1
	for tag := m.Tag; tag <= last; tag++ {
		if !w.undone[tag] {
			w.t.Errorf("a second outcome of datagram %d: %v", tag, o)
		}
		delete(w.undone, tag)
	}
	if w.pooled[m] { // a part of a train that was split is the Completer's in the end
		defer w.com.FreeMsg(m)
	}
	text := ""
	if why != WhyNone {
		text = ": " + why.String()
	}
	if last > m.Tag {
		w.note("datagrams %d-%d %v%s", m.Tag, last, o, text)
	} else {
		w.note("datagram %d %v%s", m.Tag, o, text)
	}
}

// --- the shell --------------------------------------------------------------------

// settle does what rds.Engine and a shell do after every step: cleared ports
// are told, orders carried out. Kicks are answered with a Fill at once.
func (w *world) settle() {
	for len(w.cleared) > 0 || w.clearedMap || len(w.com.Actions) > 0 {
		if w.clearedMap {
			w.clearedMap = false
			w.c.PortsClear(w.now)
		}
		for _, p := range w.cleared {
			w.c.PortClear(w.now, p)
		}
		w.cleared = nil
		acts := w.com.Actions
		w.com.Actions = nil
		for _, a := range acts {
			if a.Kind == ActDial || a.Kind == ActPoke {
				w.attempt(a.Lane, a.Attempt)
			}
			switch a.Kind {
			case ActKick:
				w.fill(a.Lane)
			case ActClose:
				w.note("close lane %d link %d: %v", a.Lane.idx, a.Attempt, a.Why)
			default:
				w.note("%v lane %d link %d", a.Kind, a.Lane.idx, a.Attempt)
			}
			if n := w.tcp[a.Lane]; a.Kind == ActPoll && n > 0 {
				w.acked(a.Lane, n)
				a.Lane.Acked(w.now, a.Attempt, n)
			}
		}
	}
	clear(w.tcp)
}

// attempt checks that a number is of one attempt alone: the shell may hold a link that was given
// up a while longer.
func (w *world) attempt(p *Lane, n uint64) {
	if n <= w.given[p] {
		w.t.Errorf("%v: attempt %d was given out when %d had been", p, n, w.given[p])
	}
	w.given[p] = n
}

func (w *world) fill(p *Lane) {
	for {
		b := transport.GetBatch()
		if !p.Fill(w.now, b) {
			b.Put()
			return
		}
		if !w.write(p, b) {
			return
		}
	}
}

// write is what follows Fill; false: the batch is held.
func (w *world) write(p *Lane, b *transport.Batch) bool {
	for _, f := range framesOf(w.t, b) {
		w.txB[p] += uint64(len(f.Raw) + f.Len())
		w.tell(p, f)
		w.note("%d tx %s", p.idx, w.text(f))
	}
	if w.hold {
		w.batch[p] = b
		return false
	}
	b.Put()
	p.Wrote(w.now)
	return true
}

func framesOf(t testing.TB, b *transport.Batch) (list []transport.Frame) {
	f := transport.Framer{Max: wire.MaxDatagram}
	for _, p := range b.Pieces {
		if _, err := f.Feed(p, func(fr *transport.Frame) error {
			list = append(list, transport.Frame{Raw: slices.Clone(fr.Raw), Payload: slices.Clone(fr.Payload)})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if f.Partial() || len(list) != b.Frames() {
		t.Fatalf("a batch of %d frames was cut into %d", b.Frames(), len(list))
	}
	return list
}

func (w *world) send(sport, dport uint16, n int, want bool) {
	w.tag++
	w.undone[w.tag] = true
	m := &Msg{Owner: w.sender(dport), Payload: make([]byte, n), Tag: w.tag, SPort: sport, DPort: dport, Want: want}
	if dport == wire.PortPing {
		m.Kind = MsgPing
	}
	w.enqueue(m)
}

// sender is the one flow the sockets have to a port of the peer.
func (w *world) sender(port uint16) *Sender {
	if w.senders[port] == nil {
		s := NewSender(w)
		w.senders[port] = &s
		w.ports = append(w.ports, port)
	}
	return w.senders[port]
}

func (w *world) enqueue(m *Msg) {
	m.Cell = new(uint64)
	w.cells[m.Tag] = m.Cell
	m.Bytes = uint32(len(m.Payload))
	if !w.lone {
		w.c.Enqueue(w.now, m, nil)
		return
	}
	o := Offer{Batch: transport.GetBatch()}
	offer := &o
	if w.peerMap.Congested(m.DPort) {
		offer = nil
	}
	w.c.Enqueue(w.now, m, offer)
	if o.Lane == nil {
		o.Batch.Put()
		return
	}
	w.lones++
	if w.write(o.Lane, o.Batch) {
		w.fill(o.Lane)
	}
}

// sendChain sends count datagrams of n bytes that a sender has collected.
func (w *world) sendChain(sport, dport uint16, n, count int) {
	var head, last *Msg
	for range count {
		w.tag++
		w.undone[w.tag] = true
		m := &Msg{Owner: w.sender(dport), Payload: make([]byte, n), Tag: w.tag, SPort: sport, DPort: dport, Bytes: uint32(n), Cell: new(uint64)}
		w.cells[w.tag] = m.Cell
		if last == nil {
			head = m
		} else {
			last.SetLink(m)
		}
		last = m
	}
	w.c.EnqueueChain(w.now, head)
}

// sendTrain sends n bytes as count datagrams of one length, or with a table of lengths.
func (w *world) sendTrain(sport, dport uint16, n, count int, table []uint32, want bool) {
	m := &Msg{Owner: w.sender(dport), Tag: w.tag + 1, SPort: sport, DPort: dport, Want: want, Count: uint16(count)}
	if table != nil {
		m.Count, m.Table = uint16(len(table)), InOrder
		for _, l := range table {
			m.Payload = binary.BigEndian.AppendUint32(m.Payload, l)
		}
	}
	m.Payload = append(m.Payload, make([]byte, n)...)
	for range m.Count {
		w.tag++
		w.undone[w.tag] = true
	}
	w.enqueue(m)
}

func (w *world) wrote(p *Lane) {
	b := w.batch[p]
	if b == nil {
		w.t.Fatal("nothing is being written")
	}
	delete(w.batch, p)
	b.Put()
	p.Wrote(w.now)
	if p.kicked {
		w.fill(p)
	}
}

// advance moves the clock, calling Tick whenever the Conn asked for it.
func (w *world) advance(d time.Duration) {
	until := w.now + d
	for ticks := 0; w.armed <= until; ticks++ {
		if ticks > int(d/time.Millisecond)+20 {
			w.t.Fatalf("%d calls in %v", ticks, d)
		}
		w.now = max(w.now, w.armed)
		w.armed = Never
		w.noteChanges()
		before := len(w.out)
		w.c.Tick(w.now)
		w.settle()
		w.noteChanges()
		if len(w.out) > before {
			w.out = slices.Insert(w.out, before, fmt.Sprintf("at %v:", w.now))
		}
	}
	w.now = until
}

// take returns the lines noted since the last call.
func (w *world) take() string {
	w.noteChanges()
	s := strings.Join(w.out, "\n")
	w.out = nil
	return s
}
