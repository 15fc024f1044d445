package demo

import (
	"context"
	"fmt"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// An act of the play, at a share of the length of a cycle.
type act struct {
	at float64
	do func(*show)
}

var acts = []act{
	{0.10, func(s *show) {
		s.t.say("B: the reader of %s stops reading", s.stream.to)
		s.reader.set(false)
	}},
	{0.35, func(s *show) {
		s.t.say("B: the reader of %s reads on", s.stream.to)
		s.reader.set(true)
	}},
	{0.55, func(s *show) {
		s.t.say("the link between A and B is cut; what is on it is lost")
		s.link.set(false)
		s.mu.Lock()
		s.cuts++
		s.mu.Unlock()
	}},
	{0.75, func(s *show) {
		s.t.say("the link is whole again; the nodes reconnect by themselves")
		s.link.set(true)
	}},
}

// fullCycle is how long the acts take unless the show is shorter.
const fullCycle = 8 * time.Second

// play repeats the acts until ctx ends. A show of a given length has room for
// at least one cycle.
func (s *show) play(ctx context.Context, length time.Duration) {
	cycle := fullCycle
	if length > 0 && length < cycle+cycle/4 {
		cycle = length * 8 / 10
	}
	for start := time.Now(); ; start = start.Add(cycle) {
		for _, a := range acts {
			if !sleep(ctx, time.Until(start.Add(time.Duration(a.at*float64(cycle))))) {
				return
			}
			a.do(s)
		}
		if !sleep(ctx, time.Until(start.Add(cycle))) {
			return
		}
	}
}

// watchPeer tells when a node's view of the link changes.
func (s *show) watchPeer(ctx context.Context, at *site) {
	for sleep(ctx, 50*time.Millisecond) {
		peers, err := at.client.Admin().Peers(ctx, rdsd.PeerFilter{})
		if err != nil || len(peers) == 0 {
			continue
		}
		p, state := peers[0], "down"
		if p.State == rdsd.StateUp {
			state = "up"
		}
		s.mu.Lock()
		before := s.states[at.name]
		s.states[at.name] = state
		s.rtt[at.name] = p.RTT
		s.mu.Unlock()
		if before != state && (before != "" || state == "up") {
			s.t.say("%s: the connection is %s%s", at.name, state, waits(p))
		}
	}
}

// watchCongestion tells when a port of this node becomes congested or clear.
func (s *show) watchCongestion(ctx context.Context, at *site) {
	for n, err := range at.client.Admin().WatchCongestion(ctx) {
		if err != nil {
			return
		}
		if !n.Local {
			continue
		}
		s.mu.Lock()
		if n.Congested {
			s.congests++
		} else {
			s.clears++
		}
		s.mu.Unlock()
		if n.Congested {
			s.t.say("%s: port %d is congested: more than its receive buffer is waiting to be read", at.name, n.Endpoint.Port())
		} else {
			s.t.say("%s: port %d is clear again: less than half is left", at.name, n.Endpoint.Port())
		}
	}
}

// waits says what a peer holds back.
func waits(p rdsd.Peer) string {
	if n := p.Queued + p.Unacked; n > 0 {
		return fmt.Sprintf("; %d wait here to be sent (again)", n)
	}
	return ""
}
