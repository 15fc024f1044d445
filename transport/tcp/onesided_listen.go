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
	maxHandshakes = 128              // of a listener: with one more the oldest that has not sent its request is closed
	helloTime     = 5 * time.Second  // for the peer to send its request, all of it
	answerTime    = 30 * time.Second // for our program to answer
)

// oneSidedListener accepts connections and reads their handshakes.
//
// Goroutines: one that accepts, one for each handshake, all ended by Close.
type oneSidedListener struct {
	p     *Provider
	l     *accept.Listener
	taken func(transport.ConnRequest)
	hello time.Duration
	slots chan struct{} // one held by each handshake's goroutine
	done  sync.WaitGroup

	mu      sync.Mutex
	waiting []net.Conn // for their hello, oldest first
	closed  bool
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
	l := &oneSidedListener{p: p, l: p.acceptor(nl, "volumes"), taken: taken, hello: hello, slots: make(chan struct{}, maxHandshakes)}
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
		select {
		case l.slots <- struct{}{}:
		default:
			l.closeOldest() // a peer that means it shows so at once
			l.slots <- struct{}{}
		}
		l.done.Add(1)
		go l.handshake(c)
	}
}

func (l *oneSidedListener) closeOldest() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) > 0 {
		l.waiting[0].Close()
	}
}

func (l *oneSidedListener) handshake(c *net.TCPConn) {
	defer l.done.Done()
	defer func() { <-l.slots }()
	defer l.p.Guard.Recover(guard.Accept, func(error) { l.waited(c); c.Close() })
	guard.Point("handshake")
	if !l.wait(c) {
		c.Close()
		return
	}
	// One deadline for all of it, however slowly it drips.
	c.SetDeadline(time.Now().Add(l.hello))
	t, private, err := readHandshake(c)
	l.waited(c)
	if err != nil || t.Kind != transport.TagConnect {
		c.Close()
		return
	}
	q := &connRequest{c: c, private: private}
	// The rejection says our version, which the other side would have to speak.
	if t.Key != transport.TagVersion {
		q.Reject(nil)
		return
	}
	q.mu.Lock()
	// The caller may never answer, and holds one of few slots.
	q.timer = time.AfterFunc(answerTime, func() {
		defer l.p.Guard.Recover(guard.Accept, nil)
		q.Reject(nil)
	})
	q.mu.Unlock()
	l.taken(q)
}

// wait notes that c is waited for; false: the listener is closed.
func (l *oneSidedListener) wait(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, c)
	return !l.closed
}

func (l *oneSidedListener) waited(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.waiting {
		if w == c {
			l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
			return
		}
	}
}

func (l *oneSidedListener) Addr() netip.AddrPort { return l.l.Addr().(*net.TCPAddr).AddrPort() }

// Close also closes the connections that have not sent their request, and waits for calls
// of accept to return.
func (l *oneSidedListener) Close() error {
	err := l.l.Close()
	l.mu.Lock()
	l.closed = true
	for _, c := range l.waiting {
		c.Close()
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

func (q *connRequest) Accept(d transport.Domain, private []byte) (transport.OneSided, error) {
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
	if n, err := send(l.fd, b); err != nil || n < len(b) {
		l.closeFD()
		return nil, errors.Join(net.ErrClosed, err)
	}
	return l, nil
}

func (q *connRequest) Reject(private []byte) {
	if !q.answer() {
		return
	}
	b, err := transport.AppendHandshake(nil, transport.TagReject, private[:min(len(private), transport.MaxPrivate)])
	if err == nil {
		q.c.SetWriteDeadline(time.Now().Add(time.Second)) // the socket is new: it takes this at once
		q.c.Write(b)
	}
	q.c.Close()
}
