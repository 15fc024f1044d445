package datagram

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/rds"
)

// A port that stays congested is told in the log with who ought to read and who fills
// it: congestion comes and goes, and a line for each change would be noise. What a line
// costs is bounded whatever clients and peers do: a few ports a look, each of them again
// only after a long time, and so many that are remembered.
const (
	stayingLook  = 5 * time.Second  // between two looks
	stayingAfter = 10 * time.Second // from when on a port stays congested
	stayingAgain = 10 * time.Minute // until it is told again
	stayingLines = 8                // of one look
	stayingPorts = 1024             // that are remembered
)

// stayingPort is a port that has been congested for long.
type stayingPort struct {
	PortReader
	port    netip.AddrPort
	local   bool // of this node
	away    bool // of a node to which no link is up
	held    bool // of nobody since a restart
	lasts   time.Duration
	waiting int
}

// seenPort is a port as one address of this node sees it: a peer that is linked with two of them tells
// each by itself.
type seenPort struct {
	from netip.Addr
	port netip.AddrPort
}

// Staying is what was told of ports that are still congested.
type Staying struct {
	after time.Duration
	told  map[seenPort]told
}

// NewStaying is for ports that stay congested for so long.
func NewStaying(after time.Duration) *Staying {
	return &Staying{after, map[seenPort]told{}}
}

type told struct {
	since time.Duration // of the congestion that was told
	at    time.Duration // how long it had lasted then
	seen  bool          // in this look
}

// wants reports whether to tell of a port now.
func (s *Staying) wants(port seenPort, since, lasts time.Duration, lines int) bool {
	if lasts < s.after {
		return false
	}
	t, known := s.told[port]
	if known && t.since == since {
		t.seen = true
		s.told[port] = t
		if lasts-t.at < stayingAgain {
			return false
		}
	}
	if lines >= stayingLines || !known && len(s.told) >= stayingPorts {
		return false
	}
	s.told[port] = told{since, lasts, true}
	return true
}

// looked ends a look: what was not seen is congested no more.
func (s *Staying) looked() {
	for p, t := range s.told {
		if !t.seen {
			delete(s.told, p)
			continue
		}
		t.seen = false
		s.told[p] = t
	}
}

// TellStaying looks at the congested ports until done is closed.
func (a *Host) TellStaying(done <-chan struct{}) {
	s := NewStaying(stayingAfter)
	tick := time.NewTicker(stayingLook)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			a.LookStaying(s)
		}
	}
}

// LookStaying looks once. The lines are written without the lock of an address.
func (a *Host) LookStaying(s *Staying) {
	var list []stayingPort
	for _, h := range a.Locals() {
		first := len(list)
		h.EachCongested(func(_ *rds.Engine, c *rds.CongestedPort) {
			lasts := h.StepTime() - c.Since
			if (c.Local || c.Waiting > 0) && s.wants(seenPort{h.addr, c.Endpoint}, c.Since, lasts, len(list)) {
				list = append(list, staying(c, lasts))
			}
		}, nil)
		for i := range list[first:] {
			list[first+i].describe(h)
		}
	}
	s.looked()
	for i := range list {
		p := &list[i]
		a.deps.Log.Warn("a port stays congested", "port", p.port, "for", p.lasts.Round(time.Second), "why", p.why())
	}
}

// why says who ought to read, and who fills the port.
func (p *stayingPort) why() string {
	text := "its program does not read fast enough"
	switch {
	case p.away:
		text = "there is no link to its node, which was last heard of while it was congested"
	case p.held:
		text = "it is held for who had it before the restart, and nobody has bound it again"
	case p.PID != 0:
		text = fmt.Sprintf("%q, pid %d of uid %d, does not read fast enough and has %d bytes unread", p.Label, p.PID, p.UID, p.QueuedBytes)
	}
	if c := p.Culprit(); c.IsValid() {
		text += fmt.Sprintf(", most of it from %v", c)
	}
	if p.waiting > 0 {
		text += fmt.Sprintf("; sockets here that wait: %d", p.waiting)
	}
	return text
}

// staying is what is known of a port without looking at its socket. The lock is held.
func staying(c *rds.CongestedPort, lasts time.Duration) stayingPort {
	return stayingPort{port: c.Endpoint, local: c.Local, lasts: lasts, waiting: c.Waiting, away: c.Away, PortReader: ReaderThere(c.Reader, 1)}
}

// describe says whose a port of this node is, and who fills it.
func (p *stayingPort) describe(h *Local) {
	if p.local {
		var bound bool
		p.PortReader, bound = h.Reader(p.port.Port(), 1)
		p.held = !bound
	}
}
