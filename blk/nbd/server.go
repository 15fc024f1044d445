package nbd

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/internal/accept"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/rdserr"
)

// Options bounds what clients can have. Zero values mean the default.
type Options struct {
	MaxConns    int // connections at a time; 64
	MaxRequests int // of one connection in flight; 256
	// MaxBytes is the payload one connection may have in memory, 64 MiB. A
	// request that is larger waits until it is alone.
	MaxBytes  int
	Handshake time.Duration // a client has so long to negotiate; 30 s
	Linger    time.Duration // and so long to read its last replies; 10 s
	// Spin is how long a connection looks for the next request before it sleeps, if the
	// last one came that soon. It yields to other processes each time: 20 to 50 µs gained
	// at depth 1 where no other process wanted the processor, and cost throughput at depth
	// 32. With 0 it does not look.
	Spin time.Duration
	// Reactor serves the connections, which then have no goroutine at work: it should be
	// one whose thread completes the devices' requests. Submit of the devices must not
	// wait. It outlives the server's connections. nil, or connections that are no sockets:
	// a goroutine reads each.
	Reactor *reactor.Reactor
	// Charge opens the account that a connection's memory is charged to. With nil memory is
	// not charged.
	Charge func(net.Conn) Charge
	Log    *slog.Logger // nil: none
	Guard  *guard.Guard // contains panics of the work for one connection; nil: none is
}

func (o *Options) setDefaults() error {
	for _, v := range []struct {
		name string
		p    *int
		def  int
		min  int
	}{
		{"MaxConns", &o.MaxConns, 64, 1},
		{"MaxRequests", &o.MaxRequests, 256, 1},
		// Two receive buffers at least: one that is read into while the device reads the
		// other.
		{"MaxBytes", &o.MaxBytes, 64 << 20, 2 * recvSize},
	} {
		if *v.p == 0 {
			*v.p = v.def
		}
		if *v.p < v.min {
			return rdserr.With(rdserr.ErrInvalid, "nbd: %s is %d; want at least %d", v.name, *v.p, v.min)
		}
	}
	for _, v := range []struct {
		name string
		p    *time.Duration
		def  time.Duration
	}{
		{"Handshake", &o.Handshake, 30 * time.Second},
		{"Linger", &o.Linger, 10 * time.Second},
		{"Spin", &o.Spin, 0},
	} {
		if *v.p == 0 {
			*v.p = v.def
		}
		if *v.p < 0 {
			return rdserr.With(rdserr.ErrInvalid, "nbd: %s is %v; want 0 or more", v.name, *v.p)
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Server exports devices to NBD clients.
type Server struct {
	opts  Options
	count counters
	quit  context.Context // ends when stopping is set
	stop  context.CancelFunc
	// reserve is the connection whose request was taken without memory for it.
	reserve atomic.Pointer[conn]

	mu        sync.Mutex
	exports   map[string]*export        // guarded by mu
	listeners map[net.Listener]struct{} // guarded by mu
	sessions  map[*session]struct{}     // guarded by mu
	stopping  bool                      // guarded by mu
	closed    chan struct{}             // guarded by mu; with stopping: closed when the listeners are
	leaving   bool                      // guarded by mu; stopping, and another server follows
}

// counters are a server's, all atomic.
type counters struct {
	connections, refused, requests, failed, bytesIn, bytesOut atomic.Uint64
}

// session is one connection, from before its negotiation to its end.
type session struct {
	nc     net.Conn
	charge Charge
	x      *export       // guarded by Server.mu; nil while negotiating
	c      *conn         // guarded by Server.mu; nil while negotiating
	done   chan struct{} // closed at its end
}

// NewServer makes a server without exports.
func NewServer(o Options) (*Server, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	s := &Server{
		opts:      o,
		exports:   map[string]*export{},
		listeners: map[net.Listener]struct{}{},
		sessions:  map[*session]struct{}{},
	}
	s.quit, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Add exports a device. A name can be given once.
func (s *Server) Add(e Export) error {
	x, err := newExport(e)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exports[e.Name] != nil {
		return rdserr.With(rdserr.ErrAddrInUse, "there is an export %q already", e.Name)
	}
	s.exports[e.Name] = x
	return nil
}

// Remove takes an export away and ends its connections in order. It returns
// when none of their requests is with the device any more, or with ctx.
func (s *Server) Remove(ctx context.Context, name string) error {
	s.mu.Lock()
	x := s.exports[name]
	if x == nil {
		s.mu.Unlock()
		return rdserr.With(rdserr.ErrNotFound, "there is no export %q", name)
	}
	delete(s.exports, name)
	s.mu.Unlock()
	return s.end(ctx, (*conn).stop, func(h *session) bool { return h.x == x })
}

// Shutdown closes the listeners and ends all connections in order: requests in flight are
// answered, later ones are refused. It returns when the last connection and the listeners are
// closed, or with ctx.
func (s *Server) Shutdown(ctx context.Context) error {
	return s.endAll(ctx, (*conn).stop)
}

// endAll takes no connection from now on, and stops those there are.
func (s *Server) endAll(ctx context.Context, stop func(*conn)) error {
	closed := s.admitNobody()
	if err := s.end(ctx, stop, func(*session) bool { return true }); err != nil {
		return err
	}
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-closed: // before ctx ended
		return nil
	default:
		return ctx.Err()
	}
}

// admitNobody closes the listeners: no connection is taken from now on. With a listener go the
// connections that wait there, and what their clients have passed. closed is closed afterwards.
func (s *Server) admitNobody() (closed chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return s.closed
	}
	s.stopping = true
	s.stop()
	list := slices.Collect(maps.Keys(s.listeners))
	closed = make(chan struct{})
	s.closed = closed
	if len(list) == 0 {
		close(closed)
		return closed
	}
	go func() { // ends with the listeners
		defer close(closed)
		defer s.opts.Guard.Recover(guard.Volume, nil)
		for _, l := range list {
			l.Close()
		}
	}()
	return closed
}

// Leave is Shutdown of a server that another one follows at the same socket: clients
// connect again and repeat unanswered requests, and nothing is refused.
func (s *Server) Leave(ctx context.Context) error {
	s.mu.Lock()
	s.leaving = true
	s.mu.Unlock()
	return s.endAll(ctx, (*conn).leave)
}

// Close closes the listeners and all connections at once. Requests the device
// has complete unanswered, and none is refused before: to a client that another
// server follows for, a refusal would be an error of its disk.
func (s *Server) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.endAll(ctx, (*conn).fail); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// end stops the sessions that match and waits for them. When ctx ends first
// they are cut.
func (s *Server) end(ctx context.Context, stop func(*conn), match func(*session) bool) error {
	s.mu.Lock()
	var list []*session
	for h := range s.sessions {
		if match(h) {
			list = append(list, h)
		}
	}
	s.mu.Unlock()
	for _, h := range list {
		s.with(h, stop)
	}
	for _, h := range list {
		select {
		case <-h.done:
		case <-ctx.Done():
			for _, h := range list {
				s.with(h, (*conn).fail)
			}
			return ctx.Err()
		}
	}
	return nil
}

// with does something to the connection of a session; one that still
// negotiates is closed.
func (s *Server) with(h *session, do func(*conn)) {
	s.mu.Lock()
	c := h.c
	s.mu.Unlock()
	if c != nil {
		do(c)
		return
	}
	go func() { // ends with the connection: Close waits for a read that drops a descriptor which the client has passed
		defer s.opts.Guard.Recover(guard.Volume, nil)
		h.nc.Close()
	}()
}

// Serve accepts connections until the listener is closed. It returns nil after
// Shutdown or Close.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	// Under the same lock as Shutdown: either it finds the listener in the table, or this
	// finds the server stopping.
	if s.stopping {
		s.mu.Unlock()
		return l.Close()
	}
	// Of those that are not let in, as many are closed at a time as there can be others: each has a
	// thread as long as its client likes, who may have passed a descriptor.
	var taken atomic.Int64
	a := accept.New(l, "nbd", s.opts.Log)
	a.Hold = func() bool { return taken.Load() >= 2*int64(s.opts.MaxConns) }
	l = a
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()
	for {
		nc, err := l.Accept()
		if err != nil { // nothing but its end
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.stopping {
				return nil
			}
			return err
		}
		taken.Add(1)
		go s.serveOne(nc, &taken) // ends with the connection
	}
}

// serveOne is ServeConn for Serve, and counts the connection off when it is closed.
func (s *Server) serveOne(nc net.Conn, taken *atomic.Int64) {
	defer taken.Add(-1)
	defer s.opts.Guard.Recover(guard.Volume, func(error) { nc.Close() })
	s.ServeConn(nc)
}

// ServeConn negotiates with a client and serves it to the end of the connection.
func (s *Server) ServeConn(nc net.Conn) error {
	h, err := s.open(nc)
	if err != nil {
		return err
	}
	defer s.drop(h)
	nc.SetDeadline(time.Now().Add(s.opts.Handshake))
	var g *agreed
	if e := s.opts.Guard.Do(guard.Volume, func() {
		guard.Point("nbd.haggle")
		g, err = haggle(nc, s)
	}); e != nil {
		g, err = nil, e
	}
	if err != nil || g.x == nil { // nil: the client has seen enough
		s.ended(nc, "negotiation", err)
		return err
	}
	nc.SetDeadline(time.Time{})
	return s.transmission(h, g, nil)
}

// ServeKernel serves a connection in the transmission phase from its first byte on, with
// simple replies: one whose other end was given to the kernel's driver. When it returns,
// the device has given back its requests. ServeDevice does the work that is left then.
func (s *Server) ServeKernel(nc net.Conn, name string) error { return s.serveKernel(nc, name, nil) }

// serveKernel calls atEnd, unless nil, when nothing is read any more.
func (s *Server) serveKernel(nc net.Conn, name string, atEnd func(*conn)) error {
	h, err := s.open(nc)
	if err != nil {
		return err
	}
	defer s.drop(h)
	x, err := s.lookup(name)
	if err != nil {
		nc.Close()
		return err
	}
	return s.transmission(h, &agreed{x: x, driver: true}, atEnd)
}

func (s *Server) transmission(h *session, g *agreed, atEnd func(*conn)) error {
	c := newConn(s, h.nc, g.x)
	c.structured, c.allocation, c.atEnd, c.charge = g.structured, g.allocation, atEnd, h.charge
	if g.driver && c.loop != nil {
		c.loop.s.looks = false // it passes no descriptors
	}
	s.mu.Lock()
	h.x, h.c = g.x, c
	gone, left := s.stopping || s.exports[g.x.Name] != g.x, s.leaving
	s.mu.Unlock()
	switch { // while it negotiated
	case left:
		c.leave()
	case gone:
		c.stop()
	}
	var err error
	if !g.driver { // ServeDevice follows by itself
		err = c.follow()
	}
	if err == nil {
		err = c.serve()
	} else {
		c.close()
	}
	s.ended(h.nc, "transmission", err)
	return err
}

// open lets a connection in, or closes it: without the lock, for a close takes as long as a client
// likes that has passed a descriptor.
func (s *Server) open(nc net.Conn) (*session, error) {
	h, err := s.admit(nc)
	if err != nil {
		if !errors.Is(err, rdserr.ErrShutdown) {
			s.count.refused.Add(1)
			s.opts.Log.Warn("nbd: connection refused", "reason", err)
		}
		nc.Close()
	}
	return h, err
}

func (s *Server) admit(nc net.Conn) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil, rdserr.ErrShutdown
	}
	if len(s.sessions) >= s.opts.MaxConns {
		return nil, rdserr.With(rdserr.ErrTooMany, "there are %d connections already", s.opts.MaxConns)
	}
	charge, err := s.account(nc, len(s.sessions)+1)
	if err != nil {
		return nil, err
	}
	h := &session{nc: nc, charge: charge, done: make(chan struct{})}
	s.sessions[h] = struct{}{}
	s.count.connections.Add(1)
	return h, nil
}

func (s *Server) drop(h *session) {
	h.nc.Close()
	if h.charge != nil {
		h.charge.Give(connMemory)
		h.charge.Close()
	}
	s.mu.Lock()
	delete(s.sessions, h)
	s.mu.Unlock()
	close(h.done)
}

func (s *Server) ended(nc net.Conn, phase string, err error) {
	if err != nil {
		s.opts.Log.Info("nbd: connection ended", "client", nc.RemoteAddr().String(), "phase", phase, "err", err)
	}
}

// lookup finds an export by name.
func (s *Server) lookup(name string) (*export, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil, rdserr.ErrShutdown
	}
	x := s.exports[name]
	if x == nil {
		return nil, rdserr.With(rdserr.ErrNotFound, "there is no export %q", name)
	}
	return x, nil
}

// list is all exports by name.
func (s *Server) list() []*export {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*export, 0, len(s.exports))
	for _, x := range s.exports {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b *export) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Stats counts the work of a server.
type Stats struct {
	Open              int    // connections now
	Connections       uint64 // ever taken
	Refused           uint64 // connections over the limit
	Requests          uint64 // given to devices
	Failed            uint64 // commands answered with an error
	BytesIn, BytesOut uint64 // on the sockets, in the transmission phase
}

// Stats is a picture of the counters.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	open := len(s.sessions)
	s.mu.Unlock()
	return Stats{
		Open:        open,
		Connections: s.count.connections.Load(),
		Refused:     s.count.refused.Load(),
		Requests:    s.count.requests.Load(),
		Failed:      s.count.failed.Load(),
		BytesIn:     s.count.bytesIn.Load(),
		BytesOut:    s.count.bytesOut.Load(),
	}
}
