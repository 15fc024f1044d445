package simtest

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/transport"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// volumeSeeds is the first seed whose world has volumes too; all higher ones have.
const volumeSeeds = 1_000_000

// volumes is what a world has beside its datagrams: disks that some nodes export
// and others map, over several paths. Each node has further addresses for them,
// on the same network.
type volumes struct {
	w       *World
	nodes   []*volNode
	frozen  map[*node]time.Duration
	disks   []*disk
	servers []*volNode
	clients []*volClient
	order   int
	writes  []*vwrite // by number, less 1
	over    bool      // users do nothing any more
	freed   []*volOp  // reads that are done, the last few

	// Drawn.
	serverConfig rtrs.ServerConfig
	latency      time.Duration // of a store
	opEvery      time.Duration

	fabric *fabric // nil: there are no devices

	total VolumeCounts
}

// VolumeCounts is what happened to volumes.
type VolumeCounts struct {
	Done, Failed            int // requests
	Failovers               int // requests that went on elsewhere, or later, because their path was lost
	Owners                  int // times a volume got another writer
	Cuts, Stalls, PowerCuts int
	Stops                   int // of a process, in order
	Rations                 int // of the memory of chunks
	Syncs                   int // that failed

	// Of devices.
	Packets                    int // received
	Resent, Timeouts           int // times that sending began again, and that nothing was heard
	Duplicates, NotReady       int // packets that came again, messages that there was no slot or memory for
	Invalidated                int // keys that a peer has ended
	DeviceFaults               int
	DevicePaths, MixedSessions int // paths over devices, and sessions that have others beside them
}

func (c *VolumeCounts) add(o *VolumeCounts) {
	c.Done += o.Done
	c.Failed += o.Failed
	c.Failovers += o.Failovers
	c.Owners += o.Owners
	c.Cuts += o.Cuts
	c.Stalls += o.Stalls
	c.PowerCuts += o.PowerCuts
	c.Stops += o.Stops
	c.Rations += o.Rations
	c.Syncs += o.Syncs
	c.Packets += o.Packets
	c.Resent += o.Resent
	c.Timeouts += o.Timeouts
	c.Duplicates += o.Duplicates
	c.NotReady += o.NotReady
	c.Invalidated += o.Invalidated
	c.DeviceFaults += o.DeviceFaults
	c.DevicePaths += o.DevicePaths
	c.MixedSessions += o.MixedSessions
}

// newVolumes draws the volumes of a world that has its nodes.
func newVolumes(w *World) *volumes {
	v := &volumes{w: w, frozen: map[*node]time.Duration{}}
	w.vol = v
	v.latency = pick(w, 100*time.Microsecond, 2*time.Millisecond, 20*time.Millisecond)
	v.opEvery = pick(w, 2*time.Millisecond, 10*time.Millisecond)
	v.drawServer()
	paths := 1 + w.rng.Intn(3)
	for _, n := range w.nodes {
		x := &volNode{v: v, n: n}
		b := n.addr.As4()
		for i := range paths {
			b[1] = byte(1 + i)
			x.nics = append(x.nics, w.net.AddHost(netip.AddrFrom4(b)))
		}
		v.nodes = append(v.nodes, x)
	}
	if w.seed >= deviceSeeds {
		v.fabric = newFabric(v, paths)
	}
	homes := 1
	if w.chance(4) {
		homes = 2
	}
	for _, k := range w.rng.Perm(len(v.nodes))[:homes] {
		s := v.nodes[k]
		v.servers = append(v.servers, s)
		for range 1 + w.rng.Intn(2) {
			s.disks = append(s.disks, v.newDisk(s))
		}
		for _, from := range v.nodes {
			for i := range 2 {
				if from != s && len(v.clients) < 4 && (i == 0 || w.chance(2)) {
					c := &volClient{v: v, name: w.text("%v-%d-%v", from.n.addr.As4()[3], i, s.n.addr.As4()[3]), srv: s, node: from}
					c.draw()
					v.clients = append(v.clients, c)
					from.clients = append(from.clients, c)
				}
			}
		}
	}
	return v
}

func (v *volumes) of(n *node) *volNode {
	for _, x := range v.nodes {
		if x.n == n {
			return x
		}
	}
	return nil
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

// started starts the volumes of a process of n.
func (v *volumes) started(n *node) {
	x := v.of(n)
	for _, h := range x.nics {
		h.PowerOn()
	}
	x.start()
}

// crashed ends the volumes of n, whose process has died or whose machine has lost its
// power.
func (v *volumes) crashed(n *node, power bool) {
	x := v.of(n)
	for _, h := range x.nics {
		if power {
			h.PowerOff()
		} else {
			h.Kill()
		}
	}
	x.p.crash()
	if power {
		x.boots++
		for _, d := range x.disks {
			v.total.PowerCuts++
			d.powerCut()
		}
	}
}

// restart ends the volumes of a process in order, and starts them again.
func (v *volumes) restart(x *volNode) {
	if x.p == nil || x.p.dead || x.n.frozen {
		return
	}
	v.total.Stops++
	x.p.stop(x.start)
}

// cut stops what goes from x to y, on some of the paths; d 0: until healed.
func (v *volumes) cut(x, y netip.Addr, d time.Duration) {
	w := v.w
	a, b := v.of(w.byAddr[x]), v.of(w.byAddr[y])
	if a == nil || b == nil {
		return
	}
	all := w.chance(3)
	for i := range a.nics {
		if all || w.chance(2) {
			w.net.Cut(a.nics[i].Addr, b.nics[i].Addr, d)
		}
	}
}

func (v *volumes) heal(x, y netip.Addr) {
	a, b := v.of(v.w.byAddr[x]), v.of(v.w.byAddr[y])
	if a == nil || b == nil {
		return
	}
	for i := range a.nics {
		v.w.net.HealPair(a.nics[i].Addr, b.nics[i].Addr)
	}
}

// fault does something to volumes alone.
func (v *volumes) fault() {
	w := v.w
	c := pick(w, v.clients...)
	d := pick(w, v.disks...)
	x, y := c.node, c.srv
	i := w.rng.Intn(len(x.nics))
	if w.chance(2) {
		x, y = y, x
	}
	if v.fabric != nil && w.chance(4) {
		v.fabric.fault(c)
		return
	}
	switch k := w.rng.Intn(22); {
	case k < 5:
		long := w.upTo(4 * time.Second)
		w.trace("FAULT path %d from %v to %v stalls for %v", i, x.n.addr, y.n.addr, long)
		v.total.Cuts++
		w.net.Cut(x.nics[i].Addr, y.nics[i].Addr, max(long, 1))
		if w.chance(2) {
			w.net.Cut(y.nics[i].Addr, x.nics[i].Addr, max(long, 1))
		}
	case k < 8:
		if l := x.nics[i].Ends(); len(l) > 0 {
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
	case k < 16 && c.srv.p != nil && !c.srv.p.dead && c.srv.p.memory != nil && w.chance(2):
		long := w.upTo(1500 * time.Millisecond)
		w.trace("FAULT memory of chunks is rationed at %v for %v", c.srv.n.addr, long)
		v.total.Rations++
		c.srv.p.ration(long)
	case k < 16:
		switch {
		case w.crashes && w.chance(2):
			w.trace("FAULT volumes of %v are stopped and started", x.n.addr)
			v.restart(x)
		case w.chance(2):
			long := w.upTo(2 * time.Second)
			w.trace("FAULT the disk of the state of %v is full for %v", x.n.addr, long)
			x.full = true
			w.After(long, func() { x.full = false })
		}
	case k < 20:
		v.admin(c)
	default:
		v.strand(c)
	}
}

// strand has the next writes to a store get stuck there and lose their path (orphan), or has the whole store stall
// while paths of a session to it are parted, all of them or some, and what the session's client says of its name next
// is held on the way.
func (v *volumes) strand(c *volClient) {
	w := v.w
	d := pick(w, c.srv.disks...)
	long := time.Second + w.upTo(5*time.Second)
	v.total.Stalls++
	if w.chance(2) {
		d.stuck, d.stick = w.Now()+long, 1+w.rng.Intn(2)
		w.trace("FAULT %d writes get stuck in the store of %s for %v", d.stick, d.name, long)
		return
	}
	d.stalled = w.Now() + long
	all := w.chance(2)
	for i := range c.node.nics {
		if all || w.chance(2) {
			v.part(c, i, silence+w.upTo(time.Second))
		}
	}
	c.holdNames = w.rng.Intn(1 + len(c.node.nics))
	w.trace("FAULT the store of %s stalls for %v, paths of %s are parted, all %v, and %d of its names will be held", d.name, long, c.name, all, c.holdNames)
}

// orphan parts a path on which the server p has requests that stay with it.
func (v *volumes) orphan(p *volProcess, long time.Duration) {
	w := v.w
	if w.calm || p.host == nil {
		return
	}
	for _, i := range p.host.Paths() {
		c := v.client(i.Session)
		if i.Role != volume.RoleServer || i.InFlight == 0 || c == nil {
			continue
		}
		for k, h := range c.node.nics {
			if strings.HasPrefix(i.Src, h.Addr.String()+":") {
				w.trace("FAULT path %d of %s, with %d requests at the store, is parted for %v", k, c.name, i.InFlight, long)
				v.part(c, k, long)
				return
			}
		}
	}
}

// silence is long enough for a path to be given up.
const silence = 810 * time.Millisecond

// part stops what c's node sends on path i, and perhaps what it is sent, for a while. What was
// sent meanwhile comes with the next try of each connection, not at the end of the cut.
func (v *volumes) part(c *volClient, i int, long time.Duration) {
	w := v.w
	v.total.Cuts++
	from, to := c.node.nics[i].Addr, c.srv.nics[i].Addr
	w.net.Cut(from, to, 0)
	if w.chance(2) {
		w.net.Cut(to, from, 0)
	}
	w.After(long, func() { w.net.HealPair(from, to) })
}

// says is told what the process posts to a link from one of its addresses: the name of a session that is to be held goes
// no further for a while.
func (p *volProcess) says(from netip.Addr, op *transport.Op) {
	if op.Kind != transport.OpSend {
		return
	}
	name, err := rtrswire.ParseInfoReq(op.Data)
	if err != nil {
		return
	}
	v, w := p.v, p.v.w
	c := v.client(name)
	if c.holdNames == 0 || w.calm {
		return
	}
	c.holdNames--
	w.trace("%s says its name at %v, which is held", name, from)
	for i, h := range p.nics {
		if h.Addr == from {
			v.part(c, i, w.upTo(2*time.Second))
		}
	}
}

// admin does what an administrator may do at any time.
func (v *volumes) admin(c *volClient) {
	w, s := v.w, c.srv.p
	ctx := context.Background()
	if w.chance(4) {
		if s == nil || s.dead || s.host == nil || s.over {
			return
		}
		d := pick(w, c.srv.disks...)
		if w.chance(2) {
			w.trace("FAULT the server's administrator takes %s from everybody", d.name)
			s.spawn(func() { s.takeAway(ctx, d) })
			return
		}
		w.trace("FAULT the server's administrator disconnects paths of %s", c.name)
		s.spawn(func() {
			all := w.chance(2)
			for _, i := range s.host.Paths() {
				if i.Session == c.name && i.Role == volume.RoleServer && (all || w.chance(2)) {
					s.host.DisconnectPath(ctx, c.name, i.PathSpec)
				}
			}
		})
		return
	}
	p := c.p
	if p == nil || p.dead || p.host == nil || p.over {
		return
	}
	path, k := pick(w, c.spec.Paths...), w.rng.Intn(7)
	d := pick(w, c.srv.disks...)
	w.trace("FAULT the administrator of %s does %d to %v", c.name, k, path)
	p.spawn(func() {
		h := p.host
		switch k {
		case 0:
			h.RemovePath(ctx, c.name, path)
		case 1:
			h.DisconnectPath(ctx, c.name, path)
		case 2:
			h.ReconnectPath(ctx, c.name, path)
		case 3:
			h.ResetStats(ctx, c.name, path)
		case 4:
			h.SetPolicy(ctx, c.name, rtrs.Policy(w.rng.Intn(len(rtrs.Policies()))).String())
		case 5:
			ctx, cancel := p.timeout(ctx, 5*time.Second)
			defer cancel()
			i, err := h.RemoteInfo(ctx, volume.MapSpec{Node: c.spec.Node, Name: d.name, Session: c.name, Paths: c.spec.Paths})
			if err == nil && i.Info.Size != diskSectors*sectorLen {
				w.fail("B8: %s is said to have %d bytes", d.name, i.Info.Size)
			}
		case 6:
			ctx, cancel := p.timeout(ctx, 5*time.Second)
			defer cancel()
			if n, err := h.ResizeMapping(ctx, c.mapping(d.name).id, 0); err == nil && n != diskSectors*sectorLen {
				w.fail("B8: %s is said to have %d bytes", d.name, n)
			}
		}
	})
	w.After(w.upTo(2*time.Second), p.event(c.heal))
}

// takeAway ends the export of a disk, and exports it again a moment later.
func (p *volProcess) takeAway(ctx context.Context, d *disk) {
	w := p.v.w
	if err := p.host.Unexport(ctx, d.name, true); err != nil {
		if rdserr.Errno(err) != rdserr.ErrNotFound.Errno { // another does so just now
			w.fail("%s cannot be taken away: %v", d.name, err)
		}
		return
	}
	p.wait(w.upTo(100 * time.Millisecond))
	// It may be there and be taken away again by another.
	if _, err := p.host.Export(ctx, d.spec()); err != nil && !p.over && rdserr.Errno(err) != rdserr.ErrNotFound.Errno {
		w.fail("%s is not exported again: %v", d.name, err)
	}
}

// calmDown ends the faults.
func (v *volumes) calmDown() {
	for _, d := range v.disks {
		d.stalled, d.writeErr, d.syncErr, d.stick = 0, 0, false, 0
	}
	for _, x := range v.nodes {
		x.full = false
	}
	if v.fabric != nil {
		v.fabric.calmDown()
	}
	for _, c := range v.clients {
		if c.p.host != nil && !c.p.over {
			c.p.event(c.heal)()
		}
		for _, m := range c.maps {
			m.last = diskSectors / 4
		}
	}
}

// settled reports whether all requests are decided, every session has all its paths, and
// every mapped volume is open; if not, it says why.
func (v *volumes) settled() (bool, string) {
	w := v.w
	for _, x := range v.nodes {
		if x.p.host == nil || x.p.over {
			return false, w.text("volumes of %v have not started", x.n.addr)
		}
		for _, i := range x.p.host.Paths() {
			switch {
			case i.Role == volume.RoleClient && i.State != "connected":
				if c := v.client(i.Session); i.State == "disconnected" {
					c.p.event(c.heal)()
				}
				return false, w.text("path %v of %s is %v: %s", i.PathSpec, i.Session, i.State, i.LastError)
			case i.Role == volume.RoleServer && i.InFlight > 0:
				return false, w.text("path %v of %s has %d requests under way", i.PathSpec, i.Session, i.InFlight)
			}
		}
	}
	for _, c := range v.clients {
		any := false
		for _, m := range c.maps {
			i, err := c.p.host.Mapping(m.id)
			any = any || err == nil
			switch {
			case m.under > 0:
				return false, w.text("B4: %s has %d requests to %s under way", c.name, m.under, m.d.name)
			case m.asked || m.ending:
				if !m.d.shared && m.f == nil { // it has another writer, and asks again and again
					continue
				}
				return false, w.text("B4: %s has no answer about %s, asked %v, ending %v", c.name, m.d.name, m.asked, m.ending)
			case m.f == nil && m.d.shared:
				return false, w.text("%s has not mapped %s", c.name, m.d.name)
			case m.f == nil:
			case i.State != volume.StateOpen:
				return false, w.text("%s is %v for %s: %v", m.d.name, i.State, c.name, i.LastError)
			case m.last > 0:
				return false, w.text("%s has not read all of %s", c.name, m.d.name)
			}
		}
		if n := c.paths(); any && n != len(c.spec.Paths) {
			c.p.event(c.heal)() // the daemon kept what the administrator had taken away
			return false, w.text("%s has %d paths", c.name, n)
		}
	}
	return true, ""
}

// paths is how many its session has.
func (c *volClient) paths() (n int) {
	for _, i := range c.p.host.Paths() {
		if i.Session == c.name && i.Role == volume.RoleClient {
			n++
		}
	}
	return n
}

// close ends all processes in order and sees that nothing is left.
func (v *volumes) close() {
	w := v.w
	v.over = true
	left := len(v.nodes)
	for _, x := range v.nodes {
		w.After(w.upTo(20*time.Millisecond), func() { x.p.stop(func() { left-- }) })
	}
	patience := 40 * time.Second
	if v.fabric != nil {
		patience += timeWait
	}
	for end := w.Now() + patience; w.bad == nil && left > 0 && w.Step(end); {
	}
	if w.bad == nil && left > 0 {
		w.fail("B4: volumes of %d nodes do not end", left)
	}
}

// dispose ends what a world leaves behind.
func (v *volumes) dispose() {
	for _, x := range v.nodes {
		x.p.crash()
	}
}
