package conn

import (
	"slices"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// The short way is the ordinary way: every walk whose messages are offered a batch brings the same
// frames, outcomes, states and counters as without. What may not be sent at once (D2: the
// queue, what is sent again, holds; credits; a batch that is being written) would show in
// one of them.
func TestLoneIsNoOtherWay(t *testing.T) {
	taken := 0
	for seed := range walks {
		if walkPeers[seed%len(walkPeers)] != "rdsd" {
			continue
		}
		k, l := newWalk(t, seed), newWalk(t, seed)
		k.small, l.small, l.w.lone = true, true, true
		want, got := k.run(), l.run()
		for i := range want {
			if i >= len(got) || unordered(got[i]) != unordered(want[i]) {
				t.Fatalf("walk %d, step %d: the ordinary way\n%s\nand the short one\n%s", seed, i, want[i], got[i])
			}
		}
		taken += l.w.lones
	}
	if taken < 500 {
		t.Errorf("the short way was taken %d times", taken)
	}
}

// unordered is a step without the order of its lines: a frame that leaves at once stands before
// the orders that the same step leaves for other lanes. Frames have their sequences.
func unordered(step string) string {
	l := strings.Split(step, "\n")
	slices.Sort(l)
	return strings.Join(l, "\n")
}

// TestSendLone: each of what goes before a datagram, or keeps it back, keeps it from the short way.
func TestSendLone(t *testing.T) {
	for what, change := range map[string]func(w *world, p *Lane, m *Msg){
		"nothing":                   func(*world, *Lane, *Msg) {},
		"a message is sent again":   func(w *world, p *Lane, _ *Msg) { p.retrans.push(&Msg{}) },
		"a message waits":           func(w *world, p *Lane, _ *Msg) { p.queue.push(&Msg{}) },
		"a control message waits":   func(w *world, p *Lane, _ *Msg) { p.control.push(&Msg{}) },
		"a refusal waits":           func(w *world, p *Lane, _ *Msg) { p.refused = append(p.refused, wire.Refusal{Seq: 1}) },
		"a sign of life is due":     func(w *world, p *Lane, _ *Msg) { p.askNow = true },
		"our map has changed":       func(w *world, p *Lane, _ *Msg) { p.congDirty = true },
		"something is held":         func(w *world, p *Lane, _ *Msg) { p.newHold(4001) },
		"a batch is being written":  func(w *world, p *Lane, _ *Msg) { p.writing = true },
		"a turn is ordered":         func(w *world, p *Lane, _ *Msg) { p.kicked = true },
		"the link shakes hands":     func(w *world, p *Lane, _ *Msg) { p.ready = false },
		"the link is being closed":  func(w *world, p *Lane, _ *Msg) { p.state = Disconnecting },
		"the peer is a kernel":      func(w *world, p *Lane, _ *Msg) { p.c.kind = KindKernel },
		"no credit is left":         func(w *world, p *Lane, _ *Msg) { p.credits = 0 },
		"it is a ping":              func(_ *world, _ *Lane, m *Msg) { m.Kind = MsgPing },
		"it is a train":             func(_ *world, _ *Lane, m *Msg) { m.Count = 2 },
		"its payload is referenced": func(_ *world, _ *Lane, m *Msg) { m.Payload = make([]byte, transport.InlineBytes+1) },
	} {
		w, p := rdsdPair(t)
		m := &Msg{Payload: make([]byte, transport.InlineBytes), DPort: 4000}
		change(w, p, m)
		o := Offer{Batch: transport.GetBatch()}
		if got, want := p.sendLone(w.now, m, &o), what == "nothing"; got != want || (o.Lane == p) != want || o.Batch.Frames() > 0 != want {
			t.Errorf("%s: taken %v, %d frames", what, got, o.Batch.Frames())
		}
	}
}
