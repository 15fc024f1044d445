package volume

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rnbd"
	"github.com/rdsd/rdsd/rtrs"
)

// wall is the time of day of a moment of the cores' clock.
func (h *Host) wall(at time.Duration) time.Time { return h.base.Add(at) }

// openVolume is a volume that a session of the server has open.
type openVolume struct {
	rnbd.OpenInfo
	peer   netip.Addr
	began  time.Time
	oldest time.Duration // the oldest request to the store, of whatever session, is there for so long
}

func (s *server) openVolumes() []openVolume {
	open, _ := s.stores()
	return open
}

// stores are the volumes that sessions have open, and those that have requests at their stores, also of
// sessions that are gone or have lost the volume.
func (s *server) stores() (open []openVolume, busy map[storeKey]openVolume) {
	defer s.look()()
	now, oldest := s.h.now(), map[blk.Device]time.Duration{}
	busy = map[storeKey]openVolume{}
	s.rt.Each(func(r *rtrs.ServerReq) {
		o, since := rnbd.AtStore(r)
		if o.Device == nil {
			return
		}
		oldest[o.Device] = max(oldest[o.Device], now-since)
		k := storeKey{o.Root, o.Name}
		if o.Export != nil {
			k = storeKey{o.Export, o.Export.Name}
		}
		if is, there := busy[k]; !there || is.oldest < now-since {
			busy[k] = openVolume{OpenInfo: o, began: s.h.wall(o.Since), oldest: now - since}
		}
	})
	for _, o := range s.rn.Open() {
		if o.Forced { // the session has nothing of it but a number
			continue
		}
		v := openVolume{OpenInfo: o, began: s.h.wall(o.Since), oldest: oldest[o.Device]}
		if x := s.sessions[o.Session]; x != nil {
			v.peer = x.peer.Addr()
		}
		open = append(open, v)
	}
	return open, busy
}

// Mappings lists the mappings, oldest first.
func (h *Host) Mappings() []MappingInfo {
	h.lookAtCut()
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]MappingInfo, 0, len(h.mappings))
	seen := sinces{}
	for _, m := range h.mappings {
		list = append(list, m.describe(seen))
	}
	for _, l := range h.left() {
		if l.mapping != nil {
			list = append(list, l.mappingInfo())
		}
	}
	return list
}

// lookAtCut looks whether kernel devices that nobody serves are there still.
func (h *Host) lookAtCut() {
	h.mu.Lock()
	var cut []*kernelFront
	for _, m := range h.mappings {
		if k, ok := m.front.(*kernelFront); ok && k.cut.Load() {
			cut = append(cut, k)
		}
	}
	h.mu.Unlock()
	for _, k := range cut {
		k.has()
	}
}

// find finds a mapping by ID, by the path of its device, its URI, or by
// NODE:NAME. mu is held.
func (h *Host) find(what string) (*mapping, error) {
	var found *mapping
	for _, m := range h.mappings {
		s := &m.spec
		switch {
		case what == m.id:
			return m, nil
		case what != "" && (what == s.Socket || what == m.device() || what == nbd.URI(s.Socket, s.Name) || names(what, s.Node, s.Name)):
			if found != nil {
				return nil, manyMappings(what, found.id, m.id)
			}
			found = m
		}
	}
	if found == nil {
		return nil, rdserr.With(rdserr.ErrNotFound, "there is no mapping %q; want an ID, a device, a URI, or NODE:NAME", what)
	}
	return found, nil
}

func manyMappings(what, one, other string) error {
	return rdserr.With(rdserr.ErrInvalid, "%q names more than one mapping (%s, %s); use the ID", what, one, other)
}

// Mapping describes one, found as by Unmap.
func (h *Host) Mapping(what string) (MappingInfo, error) {
	h.lookAtCut()
	h.mu.Lock()
	defer h.mu.Unlock()
	m, err := h.find(what)
	if err != nil {
		return h.leftMapping(what, err)
	}
	return m.describe(sinces{}), nil
}

// MappingCounts are counters and latencies of a mapping; false: there is none,
// or it has not been open yet.
func (h *Host) MappingCounts(what string) (c [blk.NumOps]blk.OpCounts, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m, err := h.find(what)
	if err != nil || m.stats == nil {
		return c, false
	}
	return m.stats.Counts(), true
}

// What is wrong with a mapping that is open and has no device, or one that nobody serves.
const (
	noDevice     = "its kernel device was detached by somebody else"
	noConnection = "its kernel device has lost its connection and got no other"
)

// device is the path of the kernel device that m has; "": it has none. The one it had before the
// machine was started, or is to get, may be another's. Host.mu is held.
func (m *mapping) device() string {
	if m.front != nil || m.resume && m.dev == nil {
		return m.spec.Device
	}
	return ""
}

// sinces are rnbd.Client.Oldest of sessions that were looked at: once for all mappings, however many requests wait.
type sinces map[*client]map[*rnbd.Volume]time.Duration

// fails notes the last error.
func (i *MappingInfo) fails(err error) {
	_, here := errors.AsType[hereError](err)
	_, device := errors.AsType[deviceError](err)
	i.LastError, i.Errno, i.Here, i.NoDevice = err.Error(), rdserr.Errno(err), here, device
}

var errNoPath = rdserr.With(rtrs.ErrNoPath, "there is no path")

// describe is called with Host.mu held.
func (m *mapping) describe(seen sinces) MappingInfo {
	i := MappingInfo{MapSpec: m.spec, State: StateInit, Since: m.since}
	i.Paths = slices.Clone(m.spec.Paths)
	if i.Device = m.device(); i.As == AsSocket {
		i.Device = i.Socket
		i.URI = nbd.URI(i.Socket, i.Name)
	}
	if m.startErr != nil {
		i.fails(m.startErr)
	}
	if m.front != nil {
		i.Users = m.front.Users()
	}
	if m.c != nil {
		m.c.describe(m, &i, seen)
	}
	if k, ok := m.front.(*kernelFront); ok {
		switch {
		case k.lost.Load():
			i.LastError = noDevice
		case k.cut.Load():
			i.LastError = noConnection
		}
	}
	if m.ending {
		i.State = StateUnmapped
	}
	if m.stats != nil {
		i.Ops = opCounters(m.stats.Counts())
		i.FailedAgo = m.stats.FailedAgo()
	}
	return i
}

// describe adds what the session knows of a mapping.
func (c *client) describe(m *mapping, i *MappingInfo, seen sinces) {
	defer c.look()()
	i.SessionID = c.id
	c.shares(&i.MapSpec)
	st := c.rt.Stats()
	i.Waiting = st.Queued + st.Stranded
	var lost rtrs.PathInfo // the path that failed last
	for _, p := range c.rt.Paths() {
		i.PathCount++
		x := p.Info()
		if x.Err != nil && x.ErrAt >= lost.ErrAt {
			lost = x
		}
		if x.State == rtrs.Connected {
			i.PathsUp++
			i.Address = PathSpec{Src: addrText(p.Local), Dst: p.Remote.String(), Transport: c.h.transportOf(p.Ctx).kind()}
		}
	}
	if m.lastErr != nil {
		i.fails(m.lastErr)
	}
	if m.failErr != nil {
		i.FailedWhy = m.failErr.Error()
	}
	d := m.dev
	if d == nil {
		return
	}
	state, since := d.v.State()
	i.SyncLost = d.v.Kept().SyncLost
	if state != rnbd.Open || m.front != nil {
		i.State, i.Since = state.String(), c.h.wall(since)
	} else if m.startErr != nil { // nothing carries out requests here, and nothing else keeps it from that
		i.fails(m.startErr)
	}
	_, held := d.v.Inflight()
	i.Waiting += held
	if seen[c] == nil {
		seen[c] = c.rn.Oldest()
	}
	if at, ok := seen[c][d.v]; ok {
		i.Oldest = max(c.h.now()-at, 0)
	}
	if info := d.v.Info(); info != nil {
		i.Info = *info
		i.Info.MaxBytes = d.v.Piece()
	}
	// Without a path that is why, and no error of a request, or of an OPEN, before it.
	pathless := i.PathsUp == 0 && d.v.Final() == nil
	switch err := d.v.Err(); {
	case state == rnbd.Open:
	case pathless && lost.Err != nil:
		i.fails(fmt.Errorf("there is no path: %w", lost.Err))
	case pathless && state == rnbd.Closed:
		i.fails(errNoPath)
	case err != nil:
		i.fails(err)
	}
}

// addrText is an address, with its port unless that is any.
func addrText(a netip.AddrPort) string {
	switch {
	case !a.Addr().IsValid():
		return ""
	case a.Port() == 0:
		return a.Addr().String()
	}
	return a.String()
}

// allClients are the sessions as a client by ID.
func (h *Host) allClients() []*client {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]*client, 0, len(h.clients))
	for _, c := range h.clients {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *client) int { return compareIDs(a.id, b.id) })
	return list
}

// compareIDs puts the IDs of sessions in the order in which they were given.
func compareIDs(a, b string) int {
	return cmp.Or(len(a)-len(b), strings.Compare(a, b))
}

// Sessions lists the sessions in both roles.
func (h *Host) Sessions() []SessionInfo {
	var list []SessionInfo
	for _, c := range h.allClients() {
		list = append(list, c.info())
	}
	return append(list, h.srv.sessionInfos()...)
}

func (c *client) info() SessionInfo {
	var volumes []string
	c.h.mu.Lock()
	for _, m := range c.h.mappings {
		if m.c == c {
			volumes = append(volumes, m.id)
		}
	}
	c.h.mu.Unlock()
	defer c.look()()
	st := c.rt.Stats()
	i := SessionInfo{ID: c.id, Name: c.rt.Name(), UUID: fmt.Sprintf("%x", c.rt.UUID()), Role: RoleClient, Peer: c.spec.Node, Up: c.up, Kernel: c.rt.Kernel(),
		Policy: c.spec.Policy, OnLoss: c.spec.OnLoss, Volumes: volumes, Depth: st.Depth, InFlight: st.Inflight, Waiting: st.Queued + st.Stranded,
		MaxIO: uint32(st.MaxIO), Since: c.since,
		Unfenced: c.spec.Unfenced, UnfencedAfter: c.spec.UnfencedAfter, UnfencedFailovers: st.Unfenced, Timeouts: st.Timeouts, MaxReconnects: c.spec.MaxReconnects}
	for _, p := range c.rt.Paths() {
		i.Paths++
		if p.Info().State == rtrs.Connected {
			i.PathsUp++
		}
	}
	return i
}

func (s *server) sessionInfos() []SessionInfo {
	list, chunks := s.sessionList()
	// The kernel looks at each page of a session's chunks, of which there are tens of
	// thousands, so nothing waits for that. Chunks that are given back meanwhile count
	// as nothing.
	for i := range list {
		list[i].Memory = residentBytes(chunks[i])
	}
	return list
}

// sessionList is that but for the memory, whose places it tells.
func (s *server) sessionList() (list []SessionInfo, chunks [][]byte) {
	defer s.look()()
	open := map[*rtrs.ServerSession][]string{}
	for _, o := range s.rn.Open() {
		if !o.Forced {
			open[o.Session] = append(open[o.Session], o.Name)
		}
	}
	for _, e := range s.rt.Sessions() {
		x := s.sessions[e]
		if x == nil {
			continue
		}
		i := SessionInfo{ID: x.id, Name: e.Name, UUID: fmt.Sprintf("%x", e.UUID()), Role: RoleServer, Peer: x.peer.String(), Up: true, Kernel: e.Kernel(),
			Volumes: open[e], Depth: s.geo.QueueDepth, MaxIO: uint32(s.geo.MaxIO), Since: x.since}
		for _, p := range e.Paths() {
			i.Paths++
			i.PathsUp++
			i.InFlight += p.Info().Stats.Inflight
		}
		list, chunks = append(list, i), append(chunks, x.chunks)
	}
	return list, chunks
}

// Paths lists the paths of all sessions.
func (h *Host) Paths() []PathInfo {
	var list []PathInfo
	for _, c := range h.allClients() {
		done := c.look()
		for _, p := range c.rt.Paths() {
			list = append(list, c.pathInfo(p))
		}
		list = append(list, c.wantedInfos()...)
		done()
	}
	return append(list, h.srv.pathInfos()...)
}

// pathInfo is called with mu held.
func (c *client) pathInfo(p *rtrs.ClientPath) PathInfo {
	x := p.Info()
	i := PathInfo{PathSpec: PathSpec{Src: addrText(p.Local), Dst: p.Remote.String(), Transport: c.h.transportOf(p.Ctx).kind()}, Session: c.rt.Name(), SessionID: c.id, Role: RoleClient,
		State: stateText(x.State), Since: c.h.wall(x.Since), Attempts: x.Attempts, Epoch: uint16(x.Stats.Reconnects + 1),
		GivenUp: p.GivenUp(), Replaced: errors.Is(c.rt.Err(), rtrs.ErrReplaced)}
	i.Device, i.DevicePort = c.h.transportOf(p.Ctx).device(p.Local.Addr())
	if f, _ := p.Ctx.(*life); f != nil && !f.told {
		i.Conns = f.open
		if len(f.links) > 0 && f.links[0] != nil {
			i.Src = f.links[0].l.LocalAddr().String()
		}
	}
	if x.State != rtrs.Connected {
		i.Down = c.h.wall(x.Down)
	}
	if x.Err != nil {
		i.LastError, i.ErrorAt = x.Err.Error(), c.h.wall(x.ErrAt)
	}
	if x.RetryAt != 0 {
		i.RetryAt = c.h.wall(x.RetryAt)
	}
	s := &x.Stats
	i.PathStats = PathStats{ReconnectsOK: s.Reconnects, ReconnectsFailed: s.ReconnectsFailed, Reads: s.Reads, ReadBytes: s.ReadBytes,
		Writes: s.Writes, WriteBytes: s.WriteBytes, InFlight: s.Inflight, Failovers: s.Failovers, Latency: s.Latency}
	return i
}

// pathInfos are the paths of each session by their destination: the order in
// which they connected is another after each loss.
func (s *server) pathInfos() []PathInfo {
	defer s.look()()
	paths := s.rt.Paths()
	slices.SortFunc(paths, func(a, b *rtrs.ServerPath) int {
		return cmp.Or(compareIDs(s.idOf(a), s.idOf(b)), a.Local.Compare(b.Local), a.Remote.Compare(b.Remote))
	})
	list := make([]PathInfo, 0, len(paths))
	for _, p := range paths {
		list = append(list, s.pathInfo(p))
	}
	return list
}

// idOf is empty for a path whose session is not known yet. It is called with mu held.
func (s *server) idOf(p *rtrs.ServerPath) string {
	if e := p.Session(); e != nil && s.sessions[e] != nil {
		return s.sessions[e].id
	}
	return ""
}

// pathInfo is called with mu held.
func (s *server) pathInfo(p *rtrs.ServerPath) PathInfo {
	x := p.Info()
	i := PathInfo{PathSpec: PathSpec{Src: x.Remote.String(), Dst: x.Local.String(), Transport: s.h.transportOf(p.Ctx).kind()}, Session: x.Session, SessionID: s.idOf(p), Role: RoleServer,
		State: stateText(x.State), Since: s.h.wall(x.Since)}
	i.Device, i.DevicePort = s.h.transportOf(p.Ctx).device(x.Local.Addr())
	if f, _ := p.Ctx.(*life); f != nil {
		i.Conns = f.open
	}
	st := &x.Stats
	i.PathStats = PathStats{Reads: st.Reads, ReadBytes: st.ReadBytes, Writes: st.Writes, WriteBytes: st.WriteBytes, InFlight: st.Inflight}
	return i
}
