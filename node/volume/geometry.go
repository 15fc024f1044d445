package volume

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rdsd/rdsd/rtrs"
)

// Design notes.
//
// A kernel that connects a path again and finds another queue depth stops trying, for good
// (drivers/infiniband/ulp/rtrs/rtrs-clt.c, rtrs_rdma_conn_established); and the limits of its
// devices stay those of the time when they were mapped. So what sessions are like does not
// change while kernels have, or will have, sessions that know it: a server that is started
// again with another configuration keeps the former one, and says so. A kernel that unmaps
// closes its volumes before its session, so a session that ends with a volume open comes back.
//
// How long ago a session was lost counts by a clock that nobody sets, as far as this process has
// seen it; what is written down is that long before the time of then. Between two processes
// there is only the time of day, and nothing is lost later than now.
//
// Tried and dropped: a shape for each session. The answer that tells it is due before the
// client has said its name.

// geometry is what the chunks of every session are like.
type geometry struct {
	QueueDepth int `json:"queue_depth"`
	MaxIO      int `json:"max_io_bytes"`
}

func (g geometry) String() string {
	return fmt.Sprintf("volumes.queue_depth %d and volumes.max_io_bytes %d", g.QueueDepth, g.MaxIO)
}

// kernelsState is what kernels know of this server.
type kernelsState struct {
	geometry
	Sessions []kernelState `json:"sessions"`
}

// kernelState is the session of a kernel, which has volumes open, or had when it was lost.
type kernelState struct {
	Name string    `json:"name"`
	Lost time.Time `json:"lost,omitzero"` // zero: it was up
}

const (
	// maxKernels is how many lost sessions of kernels are remembered, and keepKernels for how
	// long.
	maxKernels  = 1024
	keepKernels = 30 * 24 * time.Hour
)

// takeGeometry decides what sessions are like, from the configuration and from what kernels
// know. It is called before there is a session.
func (s *server) takeGeometry(old *kernelsState) {
	c, now := &s.h.cfg, s.h.machine.Wall()
	s.geo = geometry{c.QueueDepth, c.MaxIO}
	if old == nil {
		return
	}
	for _, k := range old.Sessions {
		lost := now // with the daemon
		if !k.Lost.IsZero() {
			lost = now.Add(-max(0, now.Sub(k.Lost))) // with the clock of now, which k.Lost has not
		}
		s.lostKernels[k.Name] = lost
	}
	s.expireKernels()
	if len(s.lostKernels) == 0 || old.geometry == s.geo {
		return
	}
	// The file may have been edited: what nobody could have configured is not taken over.
	kept := *c
	kept.QueueDepth, kept.MaxIO = old.QueueDepth, old.MaxIO
	if err := kept.Validate(); err != nil || old.QueueDepth == 0 || old.MaxIO == 0 {
		s.h.log.Error("volume: what kernels know of this server cannot be right, and is not kept", "is", old.geometry, "err", err)
		return
	}
	s.geo, s.wanted = old.geometry, s.geo
	s.h.log.Warn("volume: sessions stay as kernels know them", "are", s.geo, "configured", s.wanted, "sessions", strings.Join(s.kernelNames(), " "))
}

// expireKernels forgets sessions that were lost long ago, and the oldest of too many. mu is
// held, or nobody else there yet.
func (s *server) expireKernels() {
	now := s.h.machine.Wall()
	for name, lost := range s.lostKernels {
		if now.Sub(lost) > keepKernels {
			delete(s.lostKernels, name)
		}
	}
	for len(s.lostKernels) > maxKernels {
		oldest := ""
		for name, lost := range s.lostKernels {
			if oldest == "" || lost.Before(s.lostKernels[oldest]) {
				oldest = name
			}
		}
		delete(s.lostKernels, oldest)
	}
}

// kernelNames are those of the sessions of kernels that are lost.
func (s *server) kernelNames() []string {
	names := make([]string, 0, len(s.lostKernels))
	for name := range s.lostKernels {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// kernelOpened has a kernel's session written down, which has opened a volume. mu is held.
func (s *server) kernelOpened(name string) {
	for e, x := range s.sessions {
		if e.Name == name && e.Kernel() {
			x.opened = true
			s.h.keepPast()
			return
		}
	}
}

// kernelDown remembers the session of a kernel that has volumes open, and forgets one that has
// closed all. It is called for every session, before its volumes are closed, with mu held.
func (s *server) kernelDown(e *rtrs.ServerSession) {
	x := s.sessions[e]
	switch {
	case !e.Kernel():
		// An rdsd has the name now, and takes whatever depth it finds.
		if _, was := s.lostKernels[e.Name]; !was {
			return
		}
		delete(s.lostKernels, e.Name)
	// One that had come back and opened nothing yet is remembered as it was.
	case x == nil || !x.opened:
		return
	case s.hasOpen(e):
		s.lostKernels[e.Name] = s.h.machine.Wall()
		s.expireKernels()
	default:
		delete(s.lostKernels, e.Name)
	}
	s.h.keepPast()
}

// hasOpen tells whether a session has a volume open. mu is held.
func (s *server) hasOpen(e *rtrs.ServerSession) bool {
	return s.rn.HasOpen(e)
}

// kernels is what is to be remembered.
func (s *server) kernels() *kernelsState {
	defer s.look()()
	k, now := kernelsState{geometry: s.geo}, s.h.machine.Wall()
	up := map[string]bool{}
	for _, o := range s.rn.Open() {
		if e := o.Session; e.Kernel() && !up[e.Name] {
			up[e.Name] = true
			k.Sessions = append(k.Sessions, kernelState{Name: e.Name})
		}
	}
	for name, lost := range s.lostKernels {
		if !up[name] {
			k.Sessions = append(k.Sessions, kernelState{name, now.Add(-now.Sub(lost))})
		}
	}
	if len(k.Sessions) == 0 {
		return nil
	}
	slices.SortFunc(k.Sessions, func(a, b kernelState) int { return cmp.Compare(a.Name, b.Name) })
	return &k
}
