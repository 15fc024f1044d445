package simtest

import (
	"context"
	"io/fs"
	"math/rand"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rnbd"
	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/transport/sim"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// volNode is what a node has for volumes that outlives its processes.
type volNode struct {
	v       *volumes
	n       *node
	nics    []*sim.Host
	disks   []*disk // it exports
	clients []*volClient
	boots   int    // of the machine
	state   []byte // what is on its disk of the daemon's state; nil: nothing
	full    bool   // that disk takes nothing
	life    int    // number of the process
	p       *volProcess
}

// volProcess is one life of the daemon's shell of volumes (package node/volume), on a machine
// that is simulated.
type volProcess struct {
	*volNode
	host *volume.Host // nil: it is starting
	dead bool
	over bool // it was stopped in order

	task   *task   // that runs; nil: a step does
	tasks  []*task // that have not ended, oldest first
	either []*both
	depth  int // of events

	devices []*volDevice
	domains []*volDomain
	links   []*volLink
	untold  []untold
	writers map[*byte]*volDomain // of chunks: who wrote to each last, by where it begins
	chunks  int                  // of sessions, not given back
	client  rtrs.ClientConfig
	memory  *quota.Node // that the chunks are charged to; nil: they are not
}

const volPort = volume.DefaultPort

// start begins a process.
func (x *volNode) start() {
	v, w := x.v, x.v.w
	x.life++
	p := &volProcess{volNode: x, writers: map[*byte]*volDomain{}}
	x.p = p
	for _, c := range x.clients {
		c.began(p)
	}
	if w.chance(2) {
		p.memory = quota.New(enough, func() int64 { return 0 })
	}
	p.client = rtrs.ClientConfig{ConnectTimeout: pick(w, 3*time.Second, 5*time.Second), RemoteInval: w.chance(4)}
	c := volume.Config{Port: volPort, Name: w.text("n%d", x.n.addr.As4()[3]), StateDir: "/state", Connections: 1 + w.rng.Intn(2),
		ReconnectMax: pick(w, 500*time.Millisecond, 5*time.Second), MaxIO: 4096}
	if w.chance(2) {
		c.ReconnectMin = 20 * time.Millisecond
	}
	always := !v.serverConfig.NoInvalidate
	c.AlwaysInvalidate = &always
	for _, h := range x.nics {
		c.Addresses = append(c.Addresses, h.Addr)
	}
	for _, d := range x.disks {
		c.Exports = append(c.Exports, d.spec())
	}
	p.spawn(func() {
		deps, err := p.deps()
		if err != nil {
			w.fail("%v: the devices are not opened: %v", x.n.addr, err)
			return
		}
		h, err := volume.NewOn(c, deps, p.machine())
		if err != nil {
			w.fail("%v: volumes do not start: %v", x.n.addr, err)
			return
		}
		p.host = h
		w.trace("%v: volumes have started, process %d", x.n.addr, x.life)
		for _, c := range x.clients {
			c.started()
		}
	})
}

// deps is what the shell makes its links with.
func (p *volProcess) deps() (d volume.Deps, err error) {
	d = volume.Deps{Provider: (*volNet)(p), Memory: p.memory}
	if p.v.fabric != nil {
		if err = p.openDevices(); err == nil {
			d.Others = []volume.Transport{p.rdma()}
		}
	}
	return d, err
}

// machine is what the shell runs on.
func (p *volProcess) machine() *volume.Machine {
	w := p.v.w
	rnd := rand.New(rand.NewSource(w.rng.Int63()))
	return &volume.Machine{
		Clock:   w.Now,
		Wall:    func() time.Time { return time.Unix(0, 0).Add(w.Now()) },
		Seed:    rnd.Uint64,
		Go:      p.spawn,
		Wait:    p.wait,
		Timeout: p.timeout,
		Either:  p.eitherOf,
		NewTimer: func(_ *reactor.Reactor, f func()) volume.Timer {
			return &volTimer{p: p, f: f}
		},
		Chunks:  volChunks{p},
		Boot:    w.text("boot %d of %v", p.boots, p.n.addr),
		Disk:    func(string) (volume.Disk, error) { return volDisk{p}, nil },
		Store:   p.openStore,
		Front:   p.show,
		Tune:    p.tune,
		Session: p.session,
		Export:  p.export,
	}
}

func (p *volProcess) tune(c *rtrs.ClientConfig, s *rtrs.ServerConfig) {
	if c != nil {
		c.ConnectTimeout, c.RemoteInval = p.client.ConnectTimeout, p.client.RemoteInval
	} else {
		of := &p.v.serverConfig
		s.QueueDepth, s.MaxIO, s.MaxHdr, s.TrimAfter, s.ConnectTimeout = of.QueueDepth, of.MaxIO, of.MaxHdr, of.TrimAfter, of.ConnectTimeout
	}
}

// session hears of events of sessions, in both roles.
func (p *volProcess) session(x rtrs.Event) {
	v, w := p.v, p.v.w
	w.mix(25, uint64(x.Kind), uint64(x.From), uint64(x.To), uint64(x.N))
	if w.verbose != nil {
		at := "serves"
		if x.Client != nil {
			at = x.Client.Local.Addr().String()
		}
		w.trace("%v %s %s: %v %v->%v n=%d (%v)", p.n.addr, at, x.Name, x.Kind, x.From, x.To, x.N, x.Err)
	}
	c := v.client(x.Name)
	mine := c != nil && c.node == p.volNode
	switch x.Kind {
	case rtrs.EventViolation:
		w.fail("B5: %v finds that its peer broke the protocol: %v", p.n.addr, x.Err)
	case rtrs.EventFailover:
		v.total.Failovers += x.N
	case rtrs.EventUp:
		if mine {
			v.replaced(c)
		}
	}
}

// export hears of events of exports.
func (p *volProcess) export(x rnbd.ServerEvent) {
	v := p.v
	v.w.mix(24, uint64(x.Kind), uint64(x.Access))
	if v.w.verbose != nil {
		v.w.trace("%v serves %s: %s %v, access %v (%v)", p.n.addr, x.Session, x.Name, x.Kind, x.Access, x.Err)
	}
	if x.Kind == rnbd.ServerOpened && x.Access == rnbdwire.ReadWrite {
		v.owned(v.disk(x.Name), v.client(x.Session))
	}
}

// enough is more memory than all sessions of a world can have.
const enough = 256 << 20

// ration lets chunks have a few pages more than they have, or none, for d.
func (p *volProcess) ration(d time.Duration) {
	w := p.v.w
	low := p.memory.Kinds()[quota.Chunks].Used + chunkPage*int64(w.rng.Intn(4))
	p.memory.Ration(quota.Chunks, low, low+chunkPage*int64(w.rng.Intn(4)))
	w.After(d, p.event(func() { p.memory.Ration(quota.Chunks, enough, enough) }))
}

const chunkPage = 4096

// crash ends the process; nobody in it learns of it.
func (p *volProcess) crash() {
	if p == nil || p.dead {
		return
	}
	p.kill()
	p.lose()
	for _, k := range p.links {
		k.die()
	}
	for _, c := range p.clients {
		c.died()
	}
}

// stop ends the process in order, and calls then, where the next one may begin.
func (p *volProcess) stop(then func()) {
	if p.host == nil || p.over {
		return
	}
	p.over = true
	p.v.w.trace("%v: volumes are stopped", p.n.addr)
	p.spawn(func() {
		ctx, cancel := p.timeout(context.Background(), 30*time.Second)
		defer cancel()
		w := p.v.w
		if err := p.host.Close(ctx); err != nil && rdserr.Errno(err) != rdserr.ErrNoSpace.Errno {
			w.fail("B4: volumes of %v do not end: %v", p.n.addr, err)
		}
		p.closeDevices()
		if p.chunks != 0 {
			w.fail("M1: the server of %v keeps the memory of %d sessions", p.n.addr, p.chunks)
		}
		if p.memory != nil && p.memory.Used() != 0 {
			w.fail("M1: %d bytes are charged after the server of %v has ended", p.memory.Used(), p.n.addr)
		}
		w.trace("%v: volumes have stopped", p.n.addr)
		w.After(0, p.n.guard(func() {
			if !p.dead {
				p.crash()
				then()
			}
		}))
	})
}

// --- the machine ------------------------------------------------------------------

// volTimer is a timer of the shell's steps.
type volTimer struct {
	p   *volProcess
	f   func()
	set int // how often it was set or stopped
}

func (t *volTimer) Reset(d time.Duration) {
	t.set++
	set, w := t.set, t.p.v.w
	w.After(d+w.upTo(time.Millisecond), t.p.event(func() {
		if t.set == set {
			t.f()
		}
	}))
}

func (t *volTimer) Stop() bool {
	t.set++
	return true
}

// volChunks is the memory that peers write to.
type volChunks struct{ p *volProcess }

func (c volChunks) Alloc(n int) []byte {
	c.p.chunks++
	return make([]byte, n)
}

func (c volChunks) Free(b []byte) {
	c.p.chunks--
	scramble(b)
}

func (c volChunks) Trim(b []byte) { scramble(b) }

func scramble(b []byte) {
	for i := range b {
		b[i] = scrambled
	}
}

// scrambled is what memory holds that is nobody's.
const scrambled = 0xdd

// volDisk is where the state of the daemon is kept.
type volDisk struct{ p *volProcess }

var errFull = rdserr.With(rdserr.ErrNoSpace, "the disk of the state is full")

func (d volDisk) Read() ([]byte, error) {
	if d.p.state == nil {
		return nil, fs.ErrNotExist
	}
	return d.p.state, nil
}

// Write takes the disk's time before and after the moment from which on a next process
// reads b.
func (d volDisk) Write(b []byte) error {
	w := d.p.v.w
	d.p.wait(w.upTo(5 * time.Millisecond))
	if d.p.full {
		return errFull
	}
	d.p.state = b
	d.p.wait(w.upTo(time.Millisecond))
	return nil
}

func (d volDisk) SetAside() (string, error) { panic("simtest: the state cannot be read") }
func (d volDisk) Close()                    {}

// openStore opens a disk.
func (p *volProcess) openStore(path string, o blk.FileOptions) (blk.Device, error) {
	w := p.v.w
	p.wait(w.upTo(p.v.latency))
	return &store{d: p.v.disk(path[1:]), p: p, ro: o.ReadOnly}, nil
}

// pick draws one of several.
func pick[T any](w *World, of ...T) T { return of[w.rng.Intn(len(of))] }

// drawServer draws what all servers of a world are like.
func (v *volumes) drawServer() {
	w := v.w
	v.serverConfig = rtrs.ServerConfig{QueueDepth: pick(w, 1, 4, 16), MaxIO: sectorLen * pick(w, 2, 8), MaxHdr: 1024, NoInvalidate: w.chance(5),
		TrimAfter: pick(w, 20*time.Millisecond, 200*time.Millisecond, time.Hour), ConnectTimeout: pick(w, 3*time.Second, 5*time.Second)}
}

// path is path i of sessions from x to y.
func (v *volumes) path(x, y *volNode, i int) volume.PathSpec {
	return volume.PathSpec{Src: x.nics[i].Addr.String(), Dst: netip.AddrPortFrom(y.nics[i].Addr, volPort).String()}
}
