package node

import (
	"log/slog"
	"math/rand"
	"net/netip"
	"sync"
	"time"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/transport"
)

// host is the shell around the engine of one local address: its lock, clock,
// listener, links and timer. Everything the engine hands out is carried out
// after the lock is let go.
type host struct {
	all  *hosts
	log  *slog.Logger
	addr netip.Addr
	port uint16 // TCP port of RDS, here and at every peer

	mu      sync.Mutex // guards e with everything in it, and the fields below
	e       *rds.Engine
	timer   *time.Timer
	timerAt time.Duration // when timer fires; never when it does not
	closed  bool
	kicked  []*conn.Path // for the flusher
	watch   []*congestionWatch

	flush    chan struct{} // capacity 1: wakes the flusher
	quit     chan struct{} // closed by stop
	flushing sync.WaitGroup
	listener transport.Listener // set by start
	links    sync.WaitGroup     // links and dials under way
}

const never = time.Duration(1<<63 - 1)

func newHost(all *hosts, addr netip.Addr, seed int64) *host {
	h := &host{all: all, log: all.node.log, addr: addr, port: all.node.cfg.RDS.Port, timerAt: never}
	h.e = rds.NewEngine(&all.engineConfig, addr, rand.New(rand.NewSource(seed)))
	h.flush, h.quit = make(chan struct{}, 1), make(chan struct{})
	h.timer = time.AfterFunc(time.Hour, h.tick)
	h.timer.Stop()
	return h
}

// now is the engine's time: monotonic, from the node's start.
func (h *host) now() time.Duration { return time.Since(h.all.epoch) }

// lock takes the lock; unlock must follow.
func (h *host) lock() (*rds.Engine, time.Duration) {
	h.mu.Lock()
	return h.e, h.now()
}

// work is what one step left to do. The pool keeps its slices.
type work struct {
	acts    []conn.Action
	socks   []*rds.Socket
	states  []rds.StateChange
	notices []rds.Notice
	watch   []*congestionWatch
}

var works = sync.Pool{New: func() any { return new(work) }}

// unlock lets the lock go and carries out what the step left to do: writes to
// links in the caller's own thread, wakes readers, dials, logs.
func (h *host) unlock() {
	if at, ok := h.e.Next(); ok && at < h.timerAt && !h.closed {
		h.timerAt = at
		h.timer.Reset(max(at-h.now(), 0))
	}
	if !h.e.Pending() {
		h.mu.Unlock()
		return
	}
	w := works.Get().(*work)
	w.acts = h.e.Take(w.acts[:0])
	w.socks = h.e.Ready(w.socks[:0])
	w.states = h.e.States()
	w.notices = h.e.Notices()
	w.watch = h.watch
	h.mu.Unlock()

	for _, s := range w.socks {
		if o, ok := s.Options().Data.(waker); ok {
			o.wake()
		}
	}
	for _, a := range w.acts {
		h.carryOut(a)
	}
	for _, s := range w.states {
		h.logState(s)
	}
	if len(w.notices) > 0 {
		for _, c := range w.watch {
			c.tell(w.notices)
		}
	}
	clear(w.acts)
	clear(w.socks)
	w.states, w.notices, w.watch = nil, nil, nil
	works.Put(w)
}

// tick runs in the timer's goroutine.
func (h *host) tick() {
	_, now := h.lock()
	h.timerAt = never
	if !h.closed {
		h.e.Tick(now)
	}
	h.unlock()
}

func (h *host) carryOut(a conn.Action) {
	switch a.Kind {
	case conn.ActKick:
		h.kick(a.Path)
	case conn.ActDial:
		h.background(func() { h.dial(a.Path, a.Gen) })
	case conn.ActPoke:
		h.background(func() { h.poke(a.Path) })
	case conn.ActClose, conn.ActAbort:
		h.closeLink(a)
	case conn.ActPoll:
		h.pollAcked(a)
	case conn.ActResume:
		h.mu.Lock()
		l := h.laneOf(a.Path).find(a.Gen)
		h.mu.Unlock()
		if l != nil {
			l.link.Start(l) // one that was parked; nothing happens otherwise
			l.link.Resume()
		}
	}
}

// background runs f in a goroutine that stop waits for.
func (h *host) background(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.links.Add(1)
	go func() {
		defer h.links.Done()
		f()
	}()
}

func (h *host) logState(s rds.StateChange) {
	c := s.Path.Conn()
	level := slog.LevelInfo
	if s.Now == conn.Connecting || s.Was == conn.Connecting && s.Now != conn.Up {
		level = slog.LevelDebug // an unreachable peer is tried for ever
	}
	args := []any{"peer", c.Remote(), "local", c.Local(), "path", s.Path.Index(), "was", s.Was.String(), "state", s.Now.String()}
	if s.Err != nil && s.Now != conn.Up {
		args = append(args, "error", s.Err)
	}
	h.log.Log(h.all.ctx, level, "path", args...)
}

// --- transmitting ---------------------------------------------------------------

// busyGap: when the last turn of a path ended less than this ago, the path is
// under load and the turn goes to the flusher, so that batches form while it is on
// its way. Otherwise the caller writes at once and nobody has to be woken.
const busyGap = 20 * time.Microsecond

func (h *host) kick(p *conn.Path) {
	h.mu.Lock()
	busy := h.now()-h.laneOf(p).lastTurn < busyGap
	if busy {
		h.kicked = append(h.kicked, p)
	}
	h.mu.Unlock()
	if !busy {
		h.transmit(p)
		return
	}
	select {
	case h.flush <- struct{}{}:
	default:
	}
}

// flusher transmits for paths under load. It ends with stop.
func (h *host) flusher() {
	var todo []*conn.Path
	for {
		select {
		case <-h.flush:
		case <-h.quit:
			return
		}
		h.mu.Lock()
		todo, h.kicked = h.kicked, todo[:0]
		h.mu.Unlock()
		for _, p := range todo {
			h.transmit(p)
		}
		clear(todo)
	}
}

// turnsAtOnce bounds how long a sender transmits for the others too.
const turnsAtOnce = 16

// transmit writes what p has to send, in the caller's thread, until there is
// no more or the link is full. The engine gives the turn to one caller at a
// time (Fill after Fill, with Wrote between).
func (h *host) transmit(p *conn.Path) {
	b := transport.GetBatch()
	_, now := h.lock()
	for turn := 0; ; turn++ {
		l := h.laneOf(p).current(p)
		if l == nil || !h.e.Fill(now, p, b) {
			b.Put()
			h.unlock()
			return
		}
		h.unlock()
		done, err := l.link.Send(b)
		if !done && err == nil {
			h.all.full.Add(1)
			return // the link goes on, and calls Written
		}
		b.Reset()
		_, now = h.lock()
		if err != nil {
			l.dead = true // its reader will report it; nothing more is written
		}
		h.laneOf(p).lastTurn = now
		if more := h.e.Wrote(now, p); !more || err != nil {
			b.Put()
			h.unlock()
			return
		}
		if turn >= turnsAtOnce {
			h.unlock()
			b.Put()
			h.background(func() { h.transmit(p) })
			return
		}
	}
}

// --- lanes ------------------------------------------------------------------------

// lane is what the shell knows of a path: the links it has or is about to
// have. It hangs on conn.Path.Data; host.mu guards it.
type lane struct {
	links    []*laneLink
	lastTurn time.Duration // end of the last transmit turn
}

// laneLink is one link of a path; the transport's Handler.
type laneLink struct {
	h     *host
	p     *conn.Path
	gen   uint64
	link  transport.Link
	dead  bool // guarded by host.mu
	fresh bool // accepted and not identified yet: counts as a handshake; guarded by host.mu
	now   time.Duration
}

func (h *host) laneOf(p *conn.Path) *lane {
	l, _ := p.Data.(*lane)
	if l == nil {
		l = &lane{}
		p.Data = l
	}
	return l
}

func (l *lane) find(gen uint64) *laneLink {
	for _, k := range l.links {
		if k.gen == gen {
			return k
		}
	}
	return nil
}

// current is the link p transmits on, nil when it has none that works.
func (l *lane) current(p *conn.Path) *laneLink {
	if k := l.find(p.Gen()); k != nil && !k.dead {
		return k
	}
	return nil
}

func (l *lane) remove(k *laneLink) {
	for i, o := range l.links {
		if o == k {
			l.links = append(l.links[:i], l.links[i+1:]...)
			return
		}
	}
}

// Begin takes the lock for all frames of one read.
func (l *laneLink) Begin() { _, l.now = l.h.lock() }

// Frame gives one frame to the engine.
func (l *laneLink) Frame(f *transport.Frame) error {
	return l.h.e.Receive(l.now, l.p, l.gen, f)
}

// End lets the lock go; acknowledgements and wake-ups follow in this thread.
func (l *laneLink) End() {
	l.h.e.ReceivedAll(l.now, l.p, l.gen)
	if l.fresh && l.p.Ready() {
		l.fresh = false
		l.h.all.handshakes.Add(-1)
	}
	l.h.unlock()
}

// Progress: a peer that takes a large batch slowly is alive.
func (l *laneLink) Progress() {
	e, now := l.h.lock()
	e.Alive(now, l.p, l.gen)
	l.h.unlock()
}

// Written ends a batch that met a full link.
func (l *laneLink) Written(b *transport.Batch, err error) {
	b.Put()
	h := l.h
	_, now := h.lock()
	if err != nil {
		l.dead = true
	}
	more := h.e.Wrote(now, l.p)
	h.unlock()
	if more {
		h.transmit(l.p)
	}
}

// Closed ends the link.
func (l *laneLink) Closed(err error, acked uint64) {
	h := l.h
	_, now := h.lock()
	h.laneOf(l.p).remove(l)
	if l.fresh {
		l.fresh = false
		h.all.handshakes.Add(-1)
	}
	h.e.Lost(now, l.p, l.gen, acked, err)
	h.startParked(l.p)
	h.unlock()
	h.links.Done()
}

// startParked begins to read an accepted link that waited for its
// predecessor's end. The lock is held.
func (h *host) startParked(p *conn.Path) {
	if k := h.laneOf(p).find(p.Gen()); k != nil && (p.State() == conn.Up || p.State() == conn.Disconnecting) {
		k.link.Start(k)
	}
}

// --- connections --------------------------------------------------------------------

func (h *host) dial(p *conn.Path, gen uint64) {
	link, err := h.connect(p)
	_, now := h.lock()
	defer h.unlock()
	if err != nil {
		h.e.DialFailed(now, p, gen, err)
		return
	}
	k := &laneLink{h: h, p: p, gen: gen, link: link}
	if h.closed || !h.e.Connected(now, p, gen) {
		link.Close(false)
		return
	}
	l := h.laneOf(p)
	l.links = append(l.links, k)
	h.links.Add(1)
	link.Start(k)
}

// poke connects and closes: a request to the smaller address to connect here.
func (h *host) poke(p *conn.Path) {
	if link, err := h.connect(p); err == nil {
		link.Close(false)
	}
}

func (h *host) connect(p *conn.Path) (transport.Link, error) {
	ctx, cancel := h.all.withTimeout(h.all.engineConfig.Conn.DialTimeout)
	defer cancel()
	return h.all.provider.Dial(ctx, netip.AddrPortFrom(h.addr, 0), netip.AddrPortFrom(p.Conn().Remote(), h.port), p.Index())
}

// accept judges an incoming connection. What is refused is closed before
// anything is read or written: the answer is never larger than the question.
func (h *host) accept(link transport.Link) {
	remote := link.RemoteAddr()
	refuse := func(why string, args ...any) {
		link.Close(false)
		h.all.refused.Add(1)
		h.log.Warn("connection refused", append([]any{"peer", remote.Addr(), "why", why}, args...)...)
	}
	if n, most := h.all.handshakes.Load(), int64(h.all.node.cfg.Limits.MaxHandshakes); n >= most {
		h.all.handshakesRefused.Add(1)
		refuse("too many connections that have not identified themselves", "limit", most)
		return
	}
	_, now := h.lock()
	if h.closed {
		h.mu.Unlock()
		link.Close(false)
		return
	}
	a, err := h.e.Accept(now, remote)
	if err != nil || !a.Link {
		h.unlock()
		if err != nil {
			refuse(err.Error())
		} else {
			link.Close(false) // a poke, or no lane for it
		}
		return
	}
	k := &laneLink{h: h, p: a.Path, gen: a.Gen, link: link, fresh: true}
	h.all.handshakes.Add(1)
	l := h.laneOf(a.Path)
	l.links = append(l.links, k)
	h.links.Add(1)
	if !a.Parked {
		link.Start(k)
	}
	h.unlock()
}

func (h *host) closeLink(a conn.Action) {
	h.mu.Lock()
	l := h.laneOf(a.Path)
	k := l.find(a.Gen)
	parked := k != nil && a.Kind == conn.ActAbort
	if parked {
		// Never started: nobody else will report its end.
		l.remove(k)
		if k.fresh {
			k.fresh = false
			h.all.handshakes.Add(-1)
		}
	}
	h.mu.Unlock()
	if k == nil {
		return
	}
	k.link.Close(a.Kind == conn.ActClose)
	if parked {
		h.links.Done()
	}
}

func (h *host) pollAcked(a conn.Action) {
	h.mu.Lock()
	k := h.laneOf(a.Path).find(a.Gen)
	h.mu.Unlock()
	if k == nil {
		return
	}
	n := k.link.Acked()
	_, now := h.lock()
	h.e.Acked(now, a.Path, a.Gen, n)
	h.unlock()
}

// stopPatience is how long links may take to be read to their end.
const stopPatience = 3 * time.Second

// stop drops every link and waits for their goroutines.
func (h *host) stop() {
	if h.listener != nil {
		h.listener.Close()
	}
	h.mu.Lock()
	h.closed = true
	now := h.now()
	h.e.Shutdown(now)
	var links []*laneLink
	var unstarted int
	for _, pe := range h.e.Peers() {
		pe.Conn().Paths(func(p *conn.Path) {
			l := h.laneOf(p)
			for _, k := range append([]*laneLink(nil), l.links...) {
				links = append(links, k)
				if k.gen != p.Gen() { // parked
					l.remove(k)
					unstarted++
				}
			}
		})
	}
	h.timer.Stop()
	h.unlock()
	for _, k := range links {
		k.link.Close(true)
	}
	h.links.Add(-unstarted)
	// A link whose receiver stays full would never be read to its end.
	abort := time.AfterFunc(stopPatience, func() {
		for _, k := range links {
			k.link.Close(false)
		}
	})
	h.links.Wait()
	abort.Stop()
	close(h.quit)
	h.flushing.Wait()
}
