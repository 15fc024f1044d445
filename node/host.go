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
