package cm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// world is a Manager under test, by hand: what it does is noted as text.
type world struct {
	t     testing.TB
	m     *Manager
	now   time.Duration
	draw  draws
	names map[*Conn]string
	conns map[string]*Conn
	notes []string
	known []vector
	held  map[netip.Addr]int // charges
	poor  bool               // nothing is granted
	// sent is how many messages there were since the last look, received how many datagrams.
	sent int
}

// draws is a source of numbers whose next ones can be given.
type draws struct {
	rand.Source64
	ids, tids []uint64
}

func (d *draws) Int63() int64 {
	if len(d.ids) > 0 {
		v := d.ids[0]
		d.ids = d.ids[1:]
		return int64(v << 31) // of which Uint32 takes the upper half
	}
	return d.Source64.Int63()
}

func (d *draws) Uint64() uint64 {
	if len(d.tids) > 0 {
		v := d.tids[0]
		d.tids = d.tids[1:]
		return v
	}
	return d.Source64.Uint64()
}

func newWorld(t testing.TB, cfg Config) *world {
	w := &world{t: t, names: map[*Conn]string{}, conns: map[string]*Conn{}, held: map[netip.Addr]int{}}
	w.known = captured(t)
	w.draw.Source64 = rand.NewSource(1).(rand.Source64)
	m, err := New(cfg, w, rand.New(&w.draw))
	if err != nil {
		t.Fatal(err)
	}
	w.m = m
	return w
}

func (w *world) note(format string, a ...any) {
	w.notes = append(w.notes, fmt.Sprintf(format, a...))
}

// take returns what was noted since the last take.
func (w *world) take() string {
	s := strings.Join(w.notes, "\n")
	w.notes = nil
	return s
}

// name is that of a Conn: c1, c2 and so on.
func (w *world) name(c *Conn) string {
	n, ok := w.names[c]
	if !ok {
		n = fmt.Sprintf("c%d", len(w.names)+1)
		w.names[c], w.conns[n] = n, c
	}
	return n
}

// ours is a kernel's message with the one thing that we say otherwise: how late a REP's sender may acknowledge.
func ours(mad []byte) []byte {
	if attr(binary.BigEndian.Uint16(mad[16:])) != attrREP {
		return mad
	}
	mad = bytes.Clone(mad)
	mad[headerLen+26] = ackDelayCode<<3 | mad[headerLen+26]&7
	return mad
}

func (w *world) Send(to netip.AddrPort, mad []byte) {
	w.sent++
	if to.Port() != udpPort || len(mad) != MADLen {
		w.t.Errorf("%d bytes to %v", len(mad), to)
	}
	text := textOf(mad)
	for _, v := range w.known {
		if bytes.Equal(ours(v.mad), mad) {
			text = fmt.Sprintf("%s, as %s in packet %s", v.kind, v.capture, v.packet)
		}
	}
	w.note("send %v %s", to.Addr(), text)
}

func (w *world) Charge(peer netip.Addr) bool {
	if w.poor {
		return false
	}
	w.held[peer]++
	return true
}

func (w *world) Refund(peer netip.Addr) {
	if w.held[peer]--; w.held[peer] < 0 {
		w.t.Errorf("more is given back for %v than was taken", peer)
	}
	if w.held[peer] == 0 {
		delete(w.held, peer)
	}
}

func (w *world) Asked(c *Conn) {
	p := c.Peer()
	w.note("asked %s %v from %v qpn=%d psn=%#x mtu=%d", w.name(c), c.Local(), c.Remote(), p.QPN, uint32(p.RecvPSN), p.MTU)
}

func (w *world) Connected(c *Conn) {
	p := c.Peer()
	w.note("connected %s qpn=%d psn=%#x mtu=%d", w.name(c), p.QPN, uint32(p.RecvPSN), p.MTU)
}

func (w *world) Refused(c *Conn, reason Reason, private []byte) {
	text := ""
	if private = bytes.TrimRight(private, "\x00"); len(private) > 0 {
		text = fmt.Sprintf(" %q", private)
	}
	w.note("refused %s %v%s", w.name(c), reason, text)
}

func (w *world) Disconnected(c *Conn, why error) {
	w.note("disconnected %s %v", w.name(c), why)
}

func (w *world) Released(c *Conn) { w.note("released %s", w.name(c)) }

// pass lets timers run for a time. With each note stands when it was.
func (w *world) pass(d time.Duration) {
	until := w.now + d
	for w.m.Next() <= until {
		was := w.notes
		w.notes, w.now = nil, max(w.now, w.m.Next())
		w.m.Tick(w.now)
		for _, n := range w.notes {
			was = append(was, fmt.Sprintf("%.1fs %s", w.now.Seconds(), n))
		}
		w.notes = was
	}
	w.now = until
}

func (w *world) errorOf(err error) string {
	for _, e := range []error{ErrParam, ErrState, ErrBusy, ErrLimit} {
		if errors.Is(err, e) {
			return strings.TrimPrefix(e.Error(), "cm: ")
		}
	}
	return fmt.Sprint(err)
}

// checkEmpty says what is left of connections when there is none.
func (w *world) checkEmpty() {
	m := w.m
	if n := len(m.byID) + len(m.byQPN) + len(m.byAsk) + len(m.byPeer) + len(m.askedBy) + len(m.timers) + m.asked; n != 0 {
		w.t.Errorf("without connections there are %d IDs, %d queue pairs, %d asked and %d of peers, %d sources, %d timers, %d asked for",
			len(m.byID), len(m.byQPN), len(m.byAsk), len(m.byPeer), len(m.askedBy), len(m.timers), m.asked)
	}
	if len(w.held) != 0 {
		w.t.Errorf("charged are still %v", w.held)
	}
	if m.Next() != Never {
		w.t.Errorf("something is due at %v", m.Next())
	}
}
