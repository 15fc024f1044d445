package rds

import (
	"flag"
	"fmt"
	"math/rand"
	"reflect"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/stats"
	"github.com/rdsd/rdsd/internal/transcript"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

var update = flag.Bool("update", false, "write testdata/programs.hash anew")

const pinnedPrograms = 500

// TestPrograms runs random programs (fuzz_test.go) of which everything is written down
// that can be seen from outside: it must be what it was (internal/transcript).
func TestPrograms(t *testing.T) {
	var sum stats.Counters
	transcript.Check(t, "testdata/programs.hash", *update, pinnedPrograms, func(t *testing.T, seed int) []string {
		rng := rand.New(rand.NewSource(int64(seed)))
		b := make([]byte, 250+rng.Intn(450))
		rng.Read(b)
		b = append(opening(byte(rng.Intn(4)), seed%3 != 0), b...)
		m := newMachine(t, b)
		if seed%4 == 0 {
			m.cfg.Budget.Limit = 40<<10 + int64(rng.Intn(400<<10)) // memory is what there is least of
		}
		m.e.Watch(seed%2 == 0)
		m.pins = &pins{rng: rng}
		m.cfg.MaxPeers = 6
		m.more(seed)
		m.run()
		c := m.e.Counters()
		sum.Add(&c)
		return m.pins.steps
	})
	v := reflect.ValueOf(sum)
	for _, name := range strings.Fields(`RecvDropDeadSock RecvDelivered RecvQueued SendQueueFull SendQueued CopyToUser CopyFromUser CongSendError
		CongSendBlocked RecvBytesAdded RecvBytesFreed SendTooMany SendTimeout SendCancelled OutcomeDelivered OutcomeFailed OutcomeUnknown MemoryRefused`) {
		if v.FieldByName(name).Uint() == 0 {
			t.Errorf("%s never moved", name)
		}
	}
}

// pins is the transcript of a program.
type pins struct {
	steps []string
	noted int        // of machine.trace
	rng   *rand.Rand // of what act does
	was   []uint64

	pairs  map[*Socket]int // bytes set aside; nil: the program has no pairs
	traces bool
	users  []*quota.Account
}

// pin ends a step: what was noted in it, and what the engine shows behind it.
func (m *machine) pin() {
	k := m.pins
	if k == nil {
		return
	}
	var b strings.Builder
	b.WriteString(strings.Join(m.trace[k.noted:], "\n"))
	k.noted = len(m.trace)
	at, due := m.e.Next()
	m.e.End()
	bud := m.cfg.Budget
	fmt.Fprintf(&b, "\nnow %v, next %v %v; %d sending, %d held, %d refused; here %d", m.now, at, due, bud.Sending(), bud.Held(), bud.Refused(), m.e.Here())
	m.checkUsers(&b)
	for _, s := range m.socks {
		size, n := queueOf(s).Peek()
		fmt.Fprintf(&b, "\n%v %+v pressed %v next %d of %d in flight %d filled by %v", s.Addr(), s.Info(), s.SendersWait(), size, n, s.InFlight(), s.Culprits(3))
	}
	for _, pe := range m.e.Peers() {
		fmt.Fprintf(&b, "\n%v %+v", pe.Addr(), pe.Conn().Queued())
		pe.Conn().EachLane(func(p *conn.Lane) { fmt.Fprintf(&b, " %d %v %v", p.Index(), p.State(), p.NextTx()) })
	}
	for _, c := range m.e.CongestedPorts() {
		fmt.Fprintf(&b, "\n%v congested since %v: %d blocked, %d wait", c.Endpoint, c.Since, c.Blocked, c.Waiting)
	}
	c := m.e.Counters()
	now := c.Values(nil)
	for i, f := range stats.Fields {
		if k.was != nil && now[i] != k.was[i] {
			fmt.Fprintf(&b, "\n%s %d", f.Name, now[i])
		}
	}
	k.was = now
	k.steps = append(k.steps, b.String())
}

// notePieces writes down the frames of a batch.
func (m *machine) notePieces(p *conn.Lane, b *transport.Batch) {
	if m.pins == nil {
		return
	}
	f := transport.Framer{Max: wire.MaxDatagram}
	defer f.Close()
	for _, piece := range b.Pieces {
		f.Feed(piece, func(fr *transport.Frame) error {
			var h wire.Header
			h.Parse(fr.Raw)
			m.note("%v sends %v", p, &h)
			return nil
		})
	}
}

// firstFill is the lane of the first peer, and of its first lane, that is being written.
func (m *machine) firstFill() (first *conn.Lane) {
	for p := range m.fills {
		if first == nil || p.String() < first.String() {
			first = p
		}
	}
	return first
}
