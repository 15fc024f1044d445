//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/shm"
	"github.com/rdsd/rdsd/wire"
)

// ringDaemon is a small daemon for rings alone: sockets bound at it reach each
// other, what goes elsewhere is stuck until it is cancelled. Tests change what it
// says of flows. It uses the daemon's end of a region as rdsd does.
type ringDaemon struct {
	t    testing.TB
	path string // of the stream's socket, which does not exist
	spin time.Duration

	ln *shm.Listener
	wg sync.WaitGroup

	mu       sync.Mutex
	socks    map[netip.AddrPort]*ringSock      // guarded by mu
	flowOf   func(dst netip.AddrPort) flowRule // guarded by mu
	says     string                            // guarded by mu; why it refuses a destination, when it is asked
	asked    int                               // guarded by mu; how often it was
	refuse   *rdsdv1.Closing                   // guarded by mu; answer to every Bind
	mapped   func(*shm.Region) *rdsdv1.Closing // guarded by mu; called when Mapped has come, may refuse
	spec     shm.Spec                          // guarded by mu; entries and arenas of new regions
	nextPort uint16                            // guarded by mu
	mute     bool                              // guarded by mu; serve nothing
	sink     bool                              // guarded by mu; what is for nobody is delivered
	stopped  bool                              // guarded by mu
}

type flowRule struct {
	state, errno uint16
}

// ringSock is one socket. Guarded by ringDaemon.mu.
type ringSock struct {
	d      *ringDaemon
	conn   *shm.Conn
	local  netip.AddrPort
	region *shm.Region
	h      *shm.Host
	ours   *os.File // doorbell
	theirs *shm.Alarm
	flows  map[uint32]fakeFlow
	stuck  []stuckPost
	pulled *shm.Post // has found no room at its destination
	watch  bool
	over   bool
	flood  shm.Post // placed again and again
	flush  []uint64
	binds  *rdsdv1.Bind
}

type fakeFlow struct {
	dst netip.AddrPort
	gen uint32
	shm uint16
}

type stuckPost struct {
	id   uint32
	dst  netip.AddrPort
	post shm.Post
}

func newRingDaemon(t testing.TB) *ringDaemon {
	dir, err := os.MkdirTemp("", "rdsd")
	if err != nil {
		t.Fatal(err)
	}
	d := &ringDaemon{t: t, path: filepath.Join(dir, "s"), spin: 30 * time.Microsecond, socks: map[netip.AddrPort]*ringSock{}, nextPort: 20000}
	d.start()
	t.Cleanup(func() {
		d.stop()
		os.RemoveAll(dir)
	})
	return d
}

func (d *ringDaemon) start() {
	ln, err := shm.Listen(d.path+shm.SocketSuffix, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	d.ln = ln
	d.mu.Lock()
	d.stopped = false
	d.mu.Unlock()
	d.wg.Go(func() {
		for {
			c, err := ln.AcceptConn()
			if err != nil {
				return
			}
			d.wg.Go(func() { d.serve(c) })
		}
	})
}

// stop is the daemon's death: nothing is said any more.
func (d *ringDaemon) stop() {
	d.ln.Close()
	d.mu.Lock()
	d.stopped = true // what is accepted and not bound yet will not be
	for _, s := range d.socks {
		s.endLocked()
	}
	d.mu.Unlock()
	d.wg.Wait()
}

func (d *ringDaemon) dial(opts ...Option) *Client {
	d.t.Helper()
	c, err := Dial(d.path, opts...)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { c.Close() })
	return c
}

// bindRing binds a socket and checks that it has rings.
func (d *ringDaemon) bindRing(local netip.AddrPort, opts ...BindOption) *Socket {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := d.dial().Bind(ctx, local, opts...)
	if err != nil {
		d.t.Fatal(err)
	}
	if s.FrontEnd() != Rings {
		d.t.Fatalf("front end %v", s.FrontEnd())
	}
	return s
}

func (d *ringDaemon) sock(local netip.AddrPort) *ringSock {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.socks[local]
}

// serve is one connection.
func (d *ringDaemon) serve(c *shm.Conn) {
	defer c.Close()
	in, _, err := c.ReadMessage()
	if err != nil {
		return
	}
	m := &rdsdv1.ClientMessage{}
	if err := proto.Unmarshal(in, m); err != nil || !m.GetBind().HasRing() {
		sayClosing(c, closing(syscall.EINVAL, "no Bind with rings"))
		return
	}
	s, cl := d.bind(c, m.GetBind())
	if cl != nil {
		sayClosing(c, cl)
		return
	}
	d.wg.Go(s.run)
	for {
		in, _, err := c.ReadMessage()
		if err != nil {
			break
		}
		m := &rdsdv1.ClientMessage{}
		if proto.Unmarshal(in, m) == nil {
			s.control(m)
		}
	}
	d.mu.Lock()
	s.endLocked()
	d.mu.Unlock()
}

func (d *ringDaemon) bind(c *shm.Conn, b *rdsdv1.Bind) (*ringSock, *rdsdv1.Closing) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.stopped:
		return nil, closing(syscall.ESHUTDOWN, "stopped")
	case d.refuse != nil:
		return nil, d.refuse
	}
	local := endpointFromProto(b.GetLocal())
	if local.Port() == 0 {
		d.nextPort++
		local = netip.AddrPortFrom(local.Addr(), d.nextPort)
	}
	if d.socks[local] != nil {
		return nil, closing(syscall.EADDRINUSE, "in use")
	}
	spec := d.spec
	spec.Local, spec.SndBuf, spec.RcvBuf = local, 1<<20, 1<<20
	if n := b.GetSendBufferBytes(); n > 0 {
		spec.SndBuf = int(n)
	}
	if n := b.GetRecvBufferBytes(); n > 0 {
		spec.RcvBuf = int(n)
	}
	region, err := shm.Create(spec)
	if err != nil {
		return nil, closing(syscall.ENOMEM, err.Error())
	}
	ours, err1 := shm.NewBell()
	theirs, client, err2 := shm.NewAlarm()
	if err := errors.Join(err1, err2); err != nil {
		return nil, closing(syscall.EMFILE, err.Error())
	}
	grant := &rdsdv1.RingGrant{}
	grant.SetVersion(shm.Version)
	grant.SetRegionBytes(region.RegionBytes)
	offer := &rdsdv1.ServerMessage{}
	offer.SetRegion(grant)
	err = say(c, offer, region.FD, region.LendFD, ours, client)
	unix.Close(client)
	region.Lent()
	if err == nil {
		err = hearMapped(c)
	}
	var refused *rdsdv1.Closing
	if err == nil && d.mapped != nil {
		refused = d.mapped(region)
	}
	if err == nil {
		err = errors.Join(shm.Seal(region.FD), region.Touched())
	}
	if refused != nil || err != nil {
		region.Close()
		region.Disown()
		theirs.Close()
		unix.Close(ours)
		if refused == nil {
			refused = closing(syscall.EIO, err.Error())
		}
		return nil, refused
	}
	region.SetLocal(local)
	s := &ringSock{d: d, conn: c, local: local, region: region, h: shm.NewHost(region, nil), theirs: theirs,
		ours: os.NewFile(uintptr(ours), "daemon's doorbell"), flows: map[uint32]fakeFlow{}, binds: b}
	d.socks[local] = s
	bd := bound(b)
	bd.SetLocal(endpointToProto(local))
	bd.SetSendBufferBytes(region.SndBuf)
	bd.SetRecvBufferBytes(region.RcvBuf)
	bd.SetRing(grant)
	m := &rdsdv1.ServerMessage{}
	m.SetBound(bd)
	if err := say(c, m); err != nil {
		s.endLocked()
		s.dropLocked()
		return nil, closing(syscall.EIO, err.Error())
	}
	for _, o := range d.socks {
		o.unstickLocked(local)
	}
	return s, nil
}

func (s *ringSock) endLocked() {
	if s.over {
		return
	}
	s.over = true
	delete(s.d.socks, s.local)
	_ = s.conn.CloseRead()
	s.conn.Close()
	s.ours.Close()
}

// run serves the rings until the socket is over.
func (s *ringSock) run() {
	d := s.d
	defer func() {
		d.mu.Lock()
		s.dropLocked()
		d.mu.Unlock()
	}()
	var count [8]byte
	idle := time.Now()
	for {
		d.mu.Lock()
		if s.over {
			d.mu.Unlock()
			return
		}
		worked := !d.mute && s.stepLocked()
		slept := false
		if !worked && (time.Since(idle) > d.spin || d.mute) {
			slept = d.mute || s.h.Sleep()
		}
		d.mu.Unlock()
		switch {
		case worked:
			idle = time.Now()
		case slept:
			if _, err := s.ours.Read(count[:]); errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) {
				continue
			}
			d.mu.Lock()
			if !s.over {
				s.h.Wake()
			}
			d.mu.Unlock()
			idle = time.Now()
		default:
			unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
}

// flood has a socket receive trains of n datagrams for ever.
func (d *ringDaemon) flood(local netip.AddrPort, n, size int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.socks[local]
	s.flood = shm.Post{Train: wire.Train{Body: make([]byte, n*size), Count: n}}
	s.pokeLocked()
}

// pause has the daemon serve nobody, or everybody again.
func (d *ringDaemon) pause(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mute = on
	for _, s := range d.socks {
		s.pokeLocked()
	}
}

// pokeLocked has the socket's goroutine look again.
func (s *ringSock) pokeLocked() {
	if !s.over {
		var one = [8]byte{1}
		_, _ = s.ours.Write(one[:])
	}
}

// stepLocked does what there is to do.
func (s *ringSock) stepLocked() (worked bool) {
	room := s.h.HasRoom()
	if _, _, _, err := s.h.Releases(); err != nil {
		s.hostileLocked(err)
		return true
	}
	// Whatever HasRoom said: the client may have made room since, which Releases
	// and the others' attempts to place something take note of without a word.
	worked = s.serveWaitingLocked() || room
	for range 16 {
		if s.flood.Count == 0 {
			break
		}
		if _, ok := s.h.PlaceCopy(peerAddr, s.flood.Train, shm.NoLane, 0); !ok {
			break
		}
		s.publishLocked() // each a train of its own
		worked = true
	}
	var p shm.Post
	for range 64 {
		if s.pulled != nil {
			p = *s.pulled
		} else if ok, err := s.h.Next(&p); err != nil {
			s.hostileLocked(err)
			return true
		} else if !ok {
			break
		}
		if !s.takeLocked(&p) {
			q := p
			s.pulled = &q
			// What was released before it was known that somebody waits for it was no
			// reason to wake up.
			if to := s.d.socks[s.flows[p.Flow].dst]; to != s {
				to.pokeLocked()
			}
			break
		}
		s.pulled = nil
		worked = true
	}
	if len(s.flush) > 0 && len(s.stuck) == 0 && s.pulled == nil && !s.h.HasPosts() {
		for _, id := range s.flush {
			s.flushedLocked(id, 0)
		}
		s.flush = nil
	}
	s.publishLocked()
	return worked
}

// serveWaitingLocked places what other sockets found no room for here.
func (s *ringSock) serveWaitingLocked() (worked bool) {
	for _, o := range s.d.socks {
		if o.pulled == nil || o.flowLocked(o.pulled.Flow, o.pulled.Gen).dst != s.local || !o.takeLocked(o.pulled) {
			continue
		}
		o.pulled = nil
		o.publishLocked()
		o.pokeLocked() // it goes on with what it has behind it
		worked = true
	}
	return worked
}

func (s *ringSock) publishLocked() {
	if !s.over && s.h.Publish() {
		s.theirs.Ring()
	}
}

func (s *ringSock) hostileLocked(err error) {
	s.d.t.Errorf("the client of %v broke the protocol: %v", s.local, err)
	s.h.CloseWord(unix.EBADMSG)
	s.theirs.Ring()
	s.endLocked()
}

// flowLocked is what the daemon thinks of a flow, looking at it when it is new.
func (s *ringSock) flowLocked(i, gen uint32) fakeFlow {
	f, ok := s.flows[i]
	if ok && f.gen == gen {
		return f
	}
	dst, got, ok := s.h.FlowEntry(i)
	if !ok || got != gen {
		s.d.t.Errorf("flow %d: %v generation %d, named with %d", i, dst, got, gen)
	}
	f = fakeFlow{dst: dst, gen: gen}
	rule := flowRule{state: shm.FlowClear}
	if s.d.flowOf != nil {
		rule = s.d.flowOf(dst)
	}
	f.shm = rule.state
	s.flows[i] = f
	s.h.SetFlow(i, gen, rule.state, rule.errno)
	return f
}

// setFlow changes the state of every socket's flow to dst.
func (d *ringDaemon) setFlow(dst netip.AddrPort, state uint16) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.socks {
		for i, f := range s.flows {
			if f.dst == dst {
				f.shm = state
				s.flows[i] = f
				s.h.SetFlow(i, f.gen, state, 0)
				if s.watch {
					s.h.Changed(dst, state == shm.FlowCongested)
				}
			}
		}
		s.publishLocked()
	}
}

// takeLocked deals with a post; false: there is no room at its destination.
func (s *ringSock) takeLocked(p *shm.Post) bool {
	f := s.flowLocked(p.Flow, p.Gen)
	switch {
	case p.Open:
		s.h.Taken(p, shm.MakeTarget(f.dst), false)
		return true
	case p.Bad != nil:
		s.d.t.Errorf("a bad post: %v", p.Bad)
		s.h.Taken(p, shm.MakeTarget(f.dst), false)
		s.h.Refused(p, uint16(unix.EINVAL))
		return true
	case f.shm == shm.FlowRefused:
		s.h.Taken(p, shm.MakeTarget(f.dst), false)
		s.h.Refused(p, uint16(unix.EHOSTUNREACH))
		return true
	}
	to := s.d.socks[f.dst]
	if to == nil {
		id, _ := s.h.Taken(p, shm.MakeTarget(f.dst), true)
		if s.d.sink {
			s.h.Ended(id, p.Count, true, &shm.Event{Kind: shm.EventOutcome, Outcome: shm.Delivered, Tag: p.Tag})
			return true
		}
		s.stuck = append(s.stuck, stuckPost{id, f.dst, *p})
		return true
	}
	if _, ok := to.h.PlaceCopy(s.local, p.Train, shm.NoLane, 0); !ok {
		to.publishLocked()
		return false
	}
	to.publishLocked()
	id, _ := s.h.Taken(p, shm.MakeTarget(f.dst), true)
	s.h.Ended(id, p.Count, true, &shm.Event{Kind: shm.EventOutcome, Outcome: shm.Delivered, Tag: p.Tag})
	return true
}

// unstickLocked sends what was for a socket that was not there.
func (s *ringSock) unstickLocked(dst netip.AddrPort) {
	var keep []stuckPost
	for _, st := range s.stuck {
		to := s.d.socks[dst]
		if st.dst != dst {
			keep = append(keep, st)
			continue
		}
		p := &st.post
		if _, ok := to.h.PlaceCopy(s.local, p.Train, shm.NoLane, 0); !ok {
			s.d.t.Error("no room in a new socket")
		}
		s.h.Ended(st.id, p.Count, true, &shm.Event{Kind: shm.EventOutcome, Outcome: shm.Delivered, Tag: p.Tag})
		to.publishLocked()
	}
	s.stuck = keep
	s.publishLocked()
}

func (s *ringSock) control(m *rdsdv1.ClientMessage) {
	d := s.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.over {
		return
	}
	for s.stepLocked() { // what was posted before the message counts
	}
	switch m.WhichBody() {
	case rdsdv1.ClientMessage_Cancel_case:
		s.cancelLocked(m.GetCancel())
	case rdsdv1.ClientMessage_Flush_case:
		s.flush = append(s.flush, m.GetFlush().GetId())
		for s.stepLocked() {
		}
		s.stepLocked()
	case rdsdv1.ClientMessage_Monitor_case:
		s.watch = m.GetMonitor().GetClearEvents()
	case rdsdv1.ClientMessage_Congested_case:
		r := &rdsdv1.CongestedResult{}
		r.SetId(m.GetCongested().GetId())
		if d.asked++; d.says != "" {
			r.SetErrno(int32(unix.EHOSTUNREACH))
			r.SetMessage(d.says)
		}
		sm := &rdsdv1.ServerMessage{}
		sm.SetCongestedResult(r)
		_ = say(s.conn, sm)
	case rdsdv1.ClientMessage_Pair_case: // pairs are the tests' own
	default:
		d.t.Errorf("message %v on a connection with rings", m)
	}
}

func (s *ringSock) flushedLocked(id uint64, errno syscall.Errno) {
	r := &rdsdv1.FlushResult{}
	r.SetId(id)
	r.SetErrno(int32(errno))
	m := &rdsdv1.ServerMessage{}
	m.SetFlushResult(r)
	_ = say(s.conn, m)
}

func (s *ringSock) cancelLocked(c *rdsdv1.Cancel) {
	dst := endpointFromProto(c.GetDestination())
	n := 0
	var keep []stuckPost
	for _, st := range s.stuck {
		if st.dst.Addr() != dst.Addr() || dst.Port() != 0 && st.dst.Port() != dst.Port() {
			keep = append(keep, st)
			continue
		}
		n += st.post.Count
		s.h.Ended(st.id, st.post.Count, true, &shm.Event{Kind: shm.EventOutcome, Outcome: shm.Cancelled, Why: 2, Tag: st.post.Tag})
	}
	s.stuck = keep
	s.publishLocked()
	r := &rdsdv1.CancelResult{}
	r.SetId(c.GetId())
	r.SetCancelled(uint64(n))
	m := &rdsdv1.ServerMessage{}
	m.SetCancelResult(r)
	_ = say(s.conn, m)
}
