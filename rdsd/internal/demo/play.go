package demo

import (
	"context"
	"fmt"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
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
		resp, err := at.client.Admin().ListPeers(ctx, &rdsdv1.ListPeersRequest{})
		if err != nil || len(resp.GetPeer()) == 0 {
			continue
		}
		p := resp.GetPeer()[0]
		state := "down"
		for _, q := range p.GetPath() {
			if q.GetState() == rdsdv1.PathState_PATH_STATE_UP {
				state = "up"
			}
		}
		s.mu.Lock()
		before := s.states[at.name]
		s.states[at.name] = state
		s.rtt[at.name] = time.Duration(p.GetRttNs())
		s.mu.Unlock()
		if before != state && (before != "" || state == "up") {
			s.t.say("%s: the connection is %s%s", at.name, state, waits(p))
		}
	}
}

// watchCongestion tells when a port of this node becomes congested or clear.
func (s *show) watchCongestion(ctx context.Context, at *site) {
	stream, err := at.client.Admin().WatchCongestion(ctx, &rdsdv1.WatchCongestionRequest{})
	if err != nil {
		return
	}
	for {
		n, err := stream.Recv()
		if err != nil {
			return
		}
		if !n.GetLocal() {
			continue
		}
		s.mu.Lock()
		if n.GetCongested() {
			s.congests++
		} else {
			s.clears++
		}
		s.mu.Unlock()
		if n.GetCongested() {
			s.t.say("%s: port %d is congested: more than its receive buffer is waiting to be read", at.name, n.GetEndpoint().GetPort())
		} else {
			s.t.say("%s: port %d is clear again: less than half is left", at.name, n.GetEndpoint().GetPort())
		}
	}
}

// waits says what a peer holds back.
func waits(p *rdsdv1.Peer) string {
	if n := p.GetQueued() + p.GetUnacked(); n > 0 {
		return fmt.Sprintf("; %d wait here to be sent (again)", n)
	}
	return ""
}
