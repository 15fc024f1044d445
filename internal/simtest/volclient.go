package simtest

import (
	"context"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/node/volume"
)

// volClient is a session of a node to a server by its name, and who uses it.
type volClient struct {
	v       *volumes
	name    string
	srv     *volNode
	node    *volNode
	spec    volume.MapSpec // what all its mappings have in common
	process int            // so far
	upLife  int            // the last that had a session
	p       *volProcess
	maps    []*mapping // one for each disk of srv

	holdNames int // so many of the next INFO_REQs are held on their way
}

func (c *volClient) String() string {
	if c == nil {
		return "nobody"
	}
	return c.name
}

// draw draws what the session is like, in all its lives.
func (c *volClient) draw() {
	w := c.v.w
	c.spec = volume.MapSpec{Session: c.name, Node: c.srv.nics[0].Addr.String(), As: volume.AsSocket, QueueDepth: pick(w, 0, 0, 2),
		IOTimeout: pick(w, 500*time.Millisecond, 3*time.Second, 30*time.Second), LossTimeout: pick(w, 500*time.Millisecond, 3*time.Second),
		OnLoss: pick(w, volume.OnLossWait, volume.OnLossError)}
	for i := range c.node.nics {
		c.drawPath(c.v.path(c.node, c.srv, i))
	}
	over := 0
	for _, s := range c.spec.Paths {
		if s.Transport != "" {
			over++
		}
	}
	c.v.total.DevicePaths += over
	if over > 0 && over < len(c.spec.Paths) {
		c.v.total.MixedSessions++
	}
	for _, d := range c.srv.disks {
		c.maps = append(c.maps, &mapping{c: c, d: d, id: w.text("%s-%s", c.name, d.name), depth: pick(w, 1, 3, 8)})
	}
}

// drawPath draws what a way of the session is made of: links over TCP, or of devices.
func (c *volClient) drawPath(s volume.PathSpec) {
	if c.v.fabric != nil && !c.v.w.chance(4) {
		s.Transport = volume.TransportIB
	}
	c.spec.Paths = append(c.spec.Paths, s)
}

// began is told of each new process: nothing is mapped in it.
func (c *volClient) began(p *volProcess) {
	c.process++
	c.p = p
	w := c.v.w
	w.trace("%v: session %s, process %d, on loss %v, I/O timeout %v, loss timeout %v", p.n.addr, c.name, c.process, c.spec.OnLoss, c.spec.IOTimeout, c.spec.LossTimeout)
}

// started is told when the process takes calls: what an earlier one had mapped may be coming
// back.
func (c *volClient) started() {
	for _, m := range c.maps {
		if _, err := c.p.host.Mapping(m.id); err == nil && m.f == nil {
			m.asked, m.asks = true, false
		}
		m.work()
	}
}

// died forgets what the process has had.
func (c *volClient) died() {
	for _, m := range c.maps {
		*m = mapping{c: c, d: m.d, id: m.id, depth: m.depth, last: m.last}
	}
}

// heal undoes what the administrator has done, as far as there is a session.
func (c *volClient) heal() {
	p := c.p
	p.spawn(func() {
		ctx := context.Background()
		for _, i := range p.host.Paths() {
			if i.Session == c.name && i.Role == volume.RoleClient && i.State == "disconnected" {
				p.host.ReconnectPath(ctx, c.name, i.PathSpec)
			}
		}
		for _, s := range c.spec.Paths {
			p.host.AddPath(ctx, c.name, s)
		}
	})
}

// volFront is how a mapped volume appears: to its user, at once.
type volFront struct {
	m       *mapping
	d       blk.Device
	running int
	closed  bool
	idle    chan struct{} // closed when closed and nothing is running; nil: nobody waits
	syncBad bool          // a sync failed at the store since it was mapped
	writes  []*vwrite     // since it was mapped, and not flushed
	ro      bool
}

// show is Machine.Front.
func (p *volProcess) show(s *volume.MapSpec, d blk.Device) (volume.Front, error) {
	m := p.v.client(s.Session).mapping(s.Name)
	w := p.v.w
	w.mix(27, uint64(m.d.num))
	if w.verbose != nil {
		w.trace("%s: %s is there", s.Session, s.Name)
	}
	m.f = &volFront{m: m, d: d, ro: s.Access == volume.AccessRO}
	m.errors = 0
	if !m.asks { // nobody waits for its coming back
		m.asked = false
	}
	return m.f, nil
}

func (c *volClient) mapping(disk string) *mapping {
	for _, m := range c.maps {
		if m.d.name == disk {
			return m
		}
	}
	return nil
}

func (f *volFront) Users() int          { return 1 }
func (f *volFront) Busy() (bool, error) { return f.running > 0, nil }
func (f *volFront) Resized(*blk.Info)   {}

// Close takes no further request, and waits for those under way.
func (f *volFront) Close(ctx context.Context, leave bool) error {
	f.closed = true
	if f.m.f == f {
		f.m.f = nil
	}
	if f.running == 0 {
		return nil
	}
	f.idle = make(chan struct{})
	if f.m.c.p.wait(volume.Forever, f.idle, ctx.Done()) != 0 {
		return ctx.Err()
	}
	return nil
}

// ended is told of the end of a request.
func (f *volFront) ended() {
	if f.running--; f.running == 0 && f.idle != nil {
		close(f.idle)
		f.idle = nil
	}
}
