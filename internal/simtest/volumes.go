package simtest

import (
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/rnbd"
	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/transport/sim"
)

// volumeSeeds is the first seed whose world has volumes too; all higher ones have.
const volumeSeeds = 1_000_000

// volumes is what a world has beside its datagrams: disks that some nodes export
// and others map, over several paths. Each node has further addresses for them,
// on the same network.
type volumes struct {
	w       *World
	nics    map[*node][]*sim.Host
	boots   map[*node]uint64      // number of the life of the machine
	past    map[*node][]rnbd.Past // what servers have written down
	frozen  map[*node]time.Duration
	disks   []*disk
	servers []*volServer
	clients []*volClient
	order   int
	writes  []*vwrite // by number, less 1
	over    bool      // users do nothing any more

	// Drawn.
	serverConfig rtrs.ServerConfig
	latency      time.Duration // of a store
	opEvery      time.Duration

	total VolumeCounts
}

// VolumeCounts is what happened to volumes.
type VolumeCounts struct {
	Done, Failed            int // requests
	Failovers               int // requests that went on elsewhere, or later, because their path was lost
	Owners                  int // times a volume got another writer
	Cuts, Stalls, PowerCuts int
	Syncs                   int // that failed
}

func (c *VolumeCounts) add(o *VolumeCounts) {
	c.Done += o.Done
	c.Failed += o.Failed
	c.Failovers += o.Failovers
	c.Owners += o.Owners
	c.Cuts += o.Cuts
	c.Stalls += o.Stalls
	c.PowerCuts += o.PowerCuts
	c.Syncs += o.Syncs
}

// newVolumes draws the volumes of a world that has its nodes.
func newVolumes(w *World) *volumes {
	v := &volumes{w: w, nics: map[*node][]*sim.Host{}, boots: map[*node]uint64{}, past: map[*node][]rnbd.Past{}, frozen: map[*node]time.Duration{}}
	w.vol = v
	v.latency = pick(w, 100*time.Microsecond, 2*time.Millisecond, 20*time.Millisecond)
	v.opEvery = pick(w, 2*time.Millisecond, 10*time.Millisecond)
	v.drawServer()
	paths := 1 + w.rng.Intn(3)
	for _, n := range w.nodes {
		b := n.addr.As4()
		for i := range paths {
			b[1] = byte(1 + i)
			v.nics[n] = append(v.nics[n], w.net.AddHost(netip.AddrFrom4(b)))
		}
		v.boots[n] = uint64(b[3]) << 32
	}
	homes := 1
	if w.chance(4) {
		homes = 2
	}
	for _, k := range w.rng.Perm(len(w.nodes))[:homes] {
		n := w.nodes[k]
		s := &volServer{}
		s.n = n
		v.servers = append(v.servers, s)
		for range 1 + w.rng.Intn(2) {
			s.disks = append(s.disks, v.newDisk(n))
		}
		for _, from := range w.nodes {
			for i := range 2 {
				if from != n && len(v.clients) < 4 && (i == 0 || w.chance(2)) {
					v.clients = append(v.clients, &volClient{name: w.text("%v#%d>%v", from.addr.As4()[3], i, n.addr.As4()[3]), srv: s, node: from})
				}
			}
		}
	}
	return v
}

func (v *volumes) disk(name string) *disk {
	for _, d := range v.disks {
		if d.name == name {
			return d
		}
	}
	return nil
}

func (v *volumes) client(name string) *volClient {
	for _, c := range v.clients {
		if c.name == name {
			return c
		}
	}
	return nil
}

func (c *volClient) String() string {
	if c == nil {
		return "nobody"
	}
	return c.name
}

// started starts the volumes of a process of n.
func (v *volumes) started(n *node) {
	for _, h := range v.nics[n] {
		h.PowerOn()
	}
	for _, s := range v.servers {
		if s.n == n {
			s.start(n)
		}
	}
	for _, c := range v.clients {
		if c.node == n {
			c.start(n)
		}
	}
}

// crashed ends the volumes of n, whose process has died or whose machine has lost its
// power.
func (v *volumes) crashed(n *node, power bool) {
	for _, h := range v.nics[n] {
		if power {
			h.PowerOff()
		} else {
			h.Kill()
		}
	}
	for _, s := range v.servers {
		if s.n == n {
			s.crash()
			for _, d := range s.disks {
				if power {
					v.total.PowerCuts++
					d.powerCut()
				}
			}
		}
	}
	if power {
		v.boots[n] += 1 << 16
		for i := range v.past[n] {
			v.past[n][i].Earlier = true
		}
	}
	for _, c := range v.clients {
		if c.node == n {
			c.crash()
		}
	}
}

// cut stops what goes from x to y, on some of the paths; d 0: until healed.
func (v *volumes) cut(x, y netip.Addr, d time.Duration) {
	w := v.w
	a, b := w.byAddr[x], w.byAddr[y]
	if a == nil || b == nil {
		return
	}
	all := w.chance(3)
	for i := range v.nics[a] {
		if all || w.chance(2) {
			w.net.Cut(v.nics[a][i].Addr, v.nics[b][i].Addr, d)
		}
	}
}

func (v *volumes) heal(x, y netip.Addr) {
	a, b := v.w.byAddr[x], v.w.byAddr[y]
	if a == nil || b == nil {
		return
	}
	for i := range v.nics[a] {
		v.w.net.HealPair(v.nics[a][i].Addr, v.nics[b][i].Addr)
	}
}

// fault does something to volumes alone.
func (v *volumes) fault() {
	w := v.w
	c := pick(w, v.clients...)
	d := pick(w, v.disks...)
	x, y := c.node, c.srv.n
	i := w.rng.Intn(len(v.nics[x]))
	if w.chance(2) {
		x, y = y, x
	}
	switch k := w.rng.Intn(20); {
	case k < 5:
		long := w.upTo(4 * time.Second)
		w.trace("FAULT path %d from %v to %v stalls for %v", i, x.addr, y.addr, long)
		v.total.Cuts++
		w.net.Cut(v.nics[x][i].Addr, v.nics[y][i].Addr, max(long, 1))
		if w.chance(2) {
			w.net.Cut(v.nics[y][i].Addr, v.nics[x][i].Addr, max(long, 1))
		}
	case k < 8:
		if l := v.nics[x][i].Ends(); len(l) > 0 {
			e, half := pick(w, l...), w.chance(4)
			w.trace("FAULT connection #%d of path %d is reset, half %v", e.ID(), i, half)
			e.Break(half)
		}
	case k < 11:
		v.total.Stalls++
		d.stalled = w.Now() + w.upTo(5*time.Second)
		w.trace("FAULT the store of %s stalls until %v", d.name, d.stalled)
	case k < 13:
		d.writeErr += 1 + w.rng.Intn(3)
		w.trace("FAULT the store of %s is about to fail %d writes", d.name, d.writeErr)
	case k < 14:
		if w.chance(3) {
			w.trace("FAULT the store of %s is about to fail a sync", d.name)
			d.syncErr = true
		}
	default:
		v.admin(c)
	}
}

// admin does what an administrator may do at any time.
func (v *volumes) admin(c *volClient) {
	w, s := v.w, c.srv
	now := w.Now()
	if s.rt != nil && !s.dead && !s.n.frozen && w.chance(4) {
		defer s.settle()
		sessions, paths := s.rt.Sessions(), s.rt.Paths()
		switch k := w.rng.Intn(3); {
		case k == 0 && len(sessions) > 0:
			w.trace("FAULT the server's administrator ends a session")
			s.rt.End(now, pick(w, sessions...))
		case k == 1 && len(sessions) > 0:
			w.trace("FAULT the server's administrator takes a volume from a session")
			s.rn.ForceClose(now, pick(w, sessions...), pick(w, s.disks...).name)
		case len(paths) > 0:
			w.trace("FAULT the server's administrator disconnects a path")
			s.rt.Disconnect(now, pick(w, paths...))
		}
		return
	}
	if c.rt == nil || c.dead || c.n.frozen || c.rt.Err() != nil {
		return
	}
	defer c.settle()
	c.rt.SetPolicy(rtrs.Policy(w.rng.Intn(len(rtrs.Policies()))))
	paths := c.rt.Paths()
	if len(paths) == 0 {
		c.addPaths()
		return
	}
	p := pick(w, paths...)
	k := w.rng.Intn(4)
	w.trace("FAULT the administrator of %s does %d to %v", c.name, k, p.Local.Addr())
	switch k {
	case 0:
		c.rt.Remove(now, p)
	case 1:
		c.rt.Disconnect(now, p)
	case 2:
		c.rt.Reconnect(now, p)
	case 3:
		p.ResetStats()
	}
	w.After(w.upTo(2*time.Second), c.guard(c.heal))
}

// calmDown ends the faults.
func (v *volumes) calmDown() {
	for _, d := range v.disks {
		d.stalled, d.writeErr, d.syncErr = 0, 0, false
	}
	for _, c := range v.clients {
		c.guard(c.heal)()
		for _, m := range c.maps {
			m.last = diskSectors / 4
		}
	}
}

// settled reports whether all requests are decided, every session has all its paths, and
// every mapped volume is open; if not, it says why.
func (v *volumes) settled() (bool, string) {
	w := v.w
	for _, c := range v.clients {
		if c.rt.Err() != nil {
			return false, w.text("session %s has ended: %v", c.name, c.rt.Err())
		}
		for _, m := range c.maps {
			switch {
			case m.running > 0:
				return false, w.text("B4: %s has %d requests to %s under way: %+v", c.name, m.running, m.d.name, c.rt.Stats())
			case m.asked || m.ending && m.vol != nil:
				return false, w.text("B4: %s has no answer about %s, asked %v, ending %v", c.name, m.d.name, m.asked, m.ending)
			case m.vol == nil && m.d.shared:
				return false, w.text("%s has not mapped %s", c.name, m.d.name)
			case m.vol != nil && s(m.vol) != rnbd.Open:
				return false, w.text("%s is %v for %s: %v", m.d.name, s(m.vol), c.name, m.vol.Err())
			case m.vol != nil && m.last > 0:
				return false, w.text("%s has not read all of %s", c.name, m.d.name)
			}
		}
		if n := len(c.rt.Paths()); n != len(v.nics[c.node]) {
			return false, w.text("%s has %d paths", c.name, n)
		}
		for _, p := range c.rt.Paths() {
			if p.State() != rtrs.Connected {
				return false, w.text("path %v of %s is %v", p.Local.Addr(), c.name, p.State())
			}
		}
	}
	for _, s := range v.servers {
		if st := s.rt.Stats(); st.Inflight > 0 {
			return false, w.text("%v has %d requests under way", s.n.addr, st.Inflight)
		}
	}
	return true, ""
}

// close ends all sessions and sees that nothing is left.
func (v *volumes) close() {
	w := v.w
	v.over = true
	for _, c := range v.clients {
		c.rt.Close(w.Now())
		c.settle()
	}
	for end := w.Now() + 2*time.Second; w.bad == nil && w.Step(end); {
	}
	for _, s := range v.servers {
		s.rt.Close(w.Now())
		s.settle()
	}
	for end := w.Now() + 2*time.Second; w.bad == nil && w.Step(end); {
	}
	for _, c := range v.clients {
		if !c.closed && w.bad == nil {
			w.fail("B4: session %s does not end: %+v", c.name, c.rt.Stats())
		}
	}
	for _, s := range v.servers {
		if w.bad == nil && (!s.closed || s.mem != 0) {
			w.fail("M1: the server of %v does not end, or keeps the memory of %d sessions: %+v", s.n.addr, s.mem, s.rt.Stats())
		}
	}
}
