package tcp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/accept"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/transport"
)

// Bounds of connections that are not links yet.
const (
	maxAnswering = 64               // calls of accept of a listener at a time
	helloTime    = 5 * time.Second  // for the peer to send its request, all of it
	answerTime   = 30 * time.Second // for our program to answer
)

// oneSidedListener accepts connections and reads their handshakes.
//
// Goroutines: one that accepts, one for each handshake, all ended by Close. How many wait
// for their peer's request is bounded by Provider.Admit, which closes those it wants no
// more, and how many are being answered by answering.
type oneSidedListener struct {
	p         *Provider
	l         *accept.Listener
	taken     func(transport.ConnRequest)
	hello     time.Duration
	answering chan struct{} // one is held by each call of taken
	done      sync.WaitGroup

	mu      sync.Mutex
	waiting map[*greeting]struct{} // whose requests have not come; guarded by mu
	closed  bool                   // guarded by mu
}

// greeting is a connection whose peer has not sent its request.
type greeting struct {
	c    *net.TCPConn
	gone chan struct{} // closed when it is given up
	once sync.Once
	said func(transport.ConnRequest) bool // of Provider.Admit, until it is called
}

// abort gives it up.
func (g *greeting) abort() {
	g.once.Do(func() {
		close(g.gone)
		g.c.Close()
	})
}

// ListenOneSided accepts on local. A request that is not answered in half a
// minute is rejected.
func (p *Provider) ListenOneSided(local netip.AddrPort, taken func(transport.ConnRequest)) (transport.Listener, error) {
	return p.listenOneSided(local, taken, helloTime)
}

func (p *Provider) listenOneSided(local netip.AddrPort, taken func(transport.ConnRequest), hello time.Duration) (transport.Listener, error) {
	lc := net.ListenConfig{KeepAlive: -1, Control: p.control(false)}
	lc.SetMultipathTCP(false)
	nl, err := lc.Listen(context.Background(), "tcp", local.String())
	if err != nil {
		return nil, err
	}
	l := &oneSidedListener{p: p, l: p.acceptor(nl, "volumes"), taken: taken, hello: hello,
		answering: make(chan struct{}, maxAnswering), waiting: map[*greeting]struct{}{}}
	l.done.Add(1)
	go l.serve()
	return l, nil
}

func (l *oneSidedListener) serve() {
	defer l.done.Done()
	defer l.p.Guard.Recover(guard.Step, nil) // no peer would be heard any more
	for {
		c := l.p.take(l.l)
		if c == nil {
			return
		}
		g := &greeting{c: c, gone: make(chan struct{})}
		if !l.wait(g) {
			g.abort()
			continue
		}
		l.done.Add(1)
		go l.handshake(g)
	}
}

// wait has g admitted; false: it is to be closed.
func (l *oneSidedListener) wait(g *greeting) bool {
	if l.p.Admit != nil {
		var err error
		if g.said, err = l.p.Admit(unmap(g.c.LocalAddr()), unmap(g.c.RemoteAddr()), g.abort); err != nil {
			return false
		}
	}
	l.mu.Lock()
	l.waiting[g] = struct{}{}
	closed := l.closed
	l.mu.Unlock()
	if closed {
		l.waited(g, nil)
	}
	return !closed
}

// waited ends the wait for g's request, which is q, or nil if there is none. It reports
// whether q is to be handed on. What comes after the first call has no effect.
func (l *oneSidedListener) waited(g *greeting, q *connRequest) bool {
	l.mu.Lock()
	delete(l.waiting, g)
	l.mu.Unlock()
	said := g.said
	g.said = nil
	switch {
	case q == nil && said != nil:
		said(nil)
	case q != nil && said != nil:
		return said(q)
	}
	return q != nil
}

func (l *oneSidedListener) handshake(g *greeting) {
	defer l.done.Done()
	defer l.p.Guard.Recover(guard.Accept, func(error) { g.abort() })
	defer l.waited(g, nil)
	guard.Point("handshake")
	// One deadline for all of it, however slowly it drips.
	g.c.SetDeadline(time.Now().Add(l.hello))
	t, private, err := readHandshake(g.c)
	if err != nil || t.Kind != transport.TagConnect {
		g.abort()
		return
	}
	// As long as others are being answered it counts as one that has said nothing, so that
	// there are never more of these goroutines than were admitted.
	select {
	case l.answering <- struct{}{}:
	case <-g.gone:
		return
	}
	defer func() { <-l.answering }()
	q := &connRequest{c: g.c, private: private}
	// The rejection says our version, which the other side would have to speak.
	if t.Key != transport.TagVersion {
		q.Reject(nil)
		return
	}
	if !l.waited(g, q) {
		return
	}
	q.mu.Lock()
	// The caller may never answer, and the connection would stay.
	q.timer = time.AfterFunc(answerTime, func() {
		defer l.p.Guard.Recover(guard.Accept, nil)
		q.Reject(nil)
	})
	q.mu.Unlock()
	l.taken(q)
}

func (l *oneSidedListener) Addr() netip.AddrPort { return l.l.Addr().(*net.TCPAddr).AddrPort() }

// Close also closes the connections that have not sent their request, and waits for calls
// of accept to return.
func (l *oneSidedListener) Close() error {
	err := l.l.Close()
	l.mu.Lock()
	l.closed = true
	for g := range l.waiting {
		g.abort()
	}
	l.mu.Unlock()
	l.done.Wait()
	return err
}

// connRequest is a connection whose peer has sent its request.
type connRequest struct {
	c       *net.TCPConn
	private []byte
	timer   *time.Timer

	mu       sync.Mutex
	answered bool
}

func (q *connRequest) Private() []byte            { return q.private }
func (q *connRequest) LocalAddr() netip.AddrPort  { return unmap(q.c.LocalAddr()) }
func (q *connRequest) RemoteAddr() netip.AddrPort { return unmap(q.c.RemoteAddr()) }

var errAnswered = errors.New("tcp: the request to connect has been answered before, or took more than half a minute")

// answer reports whether it is the first.
func (q *connRequest) answer() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	was := q.answered
	q.answered = true
	if q.timer != nil {
		q.timer.Stop()
	}
	return !was
}

func (q *connRequest) Accept(d transport.Domain, attr transport.LinkAttr, private []byte) (transport.OneSided, error) {
	dom, err := domainOf(d)
	if err != nil {
		return nil, err
	}
	b, err := transport.AppendHandshake(nil, transport.TagAccept, private)
	if err != nil {
		return nil, err
	}
	if !q.answer() {
		return nil, errAnswered
	}
	l, err := newOneSided(dom, q.c)
	if err != nil {
		return nil, err
	}
	// The socket is new: it takes this at once, or it is gone.
	if n, err := writeOnce(l.fd, [][]byte{b}); err != nil || n < len(b) {
		l.closeFD()
		return nil, errors.Join(net.ErrClosed, err)
	}
	return l, nil
}

func (q *connRequest) Reject(private []byte) {
	if !q.answer() {
		return
	}
	b, err := transport.AppendHandshake(nil, transport.TagReject, private[:min(len(private), transport.MaxReject)])
	if err == nil {
		q.c.SetWriteDeadline(time.Now().Add(time.Second)) // the socket is new: it takes this at once
		q.c.Write(b)
	}
	q.c.Close()
}
