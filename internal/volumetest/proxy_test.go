package volumetest

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// proxy is a path between two daemons that fails on command. What it harms is
// TCP's stream, so loss is what TCP makes of it: data that comes late.
type proxy struct {
	l    net.Listener
	from net.IP // it connects from there
	to   string
	wg   sync.WaitGroup
	tap  func(c net.Conn, b []byte) // sees what servers send; c is other for each connection

	mu    sync.Mutex
	cond  sync.Cond             // ways or shut have changed
	ways  [2]way                // guarded by mu; up: to the server, down: to the client
	shut  bool                  // guarded by mu; refuses
	last  [2]net.Conn           // guarded by mu; both ends of the connection made last
	still [2]net.Conn           // guarded by mu; of one that is held
	live  map[net.Conn]struct{} // guarded by mu
	ended bool                  // guarded by mu
}

const (
	up   = 0
	down = 1
)

// way is what becomes of bytes in one direction.
type way struct {
	hold  bool          // they are kept, and delivered when it ends
	delay time.Duration // they take so long
	loss  float64       // with this probability a piece comes only after rto, and all behind it
}

// rto is TCP's shortest retransmission timeout in Linux.
const rto = 200 * time.Millisecond

// newProxy listens at an address and connects to another.
func newProxy(t testing.TB, at, from, to string) *proxy {
	l, err := net.Listen("tcp", net.JoinHostPort(at, "0"))
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, from: net.ParseIP(from), to: to, live: map[net.Conn]struct{}{}}
	p.cond.L = &p.mu
	p.wg.Go(p.serve)
	t.Cleanup(p.end)
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

func (p *proxy) spec() rdsd.PathSpec { return rdsd.PathSpec{Src: p.from.String(), Dst: p.addr()} }

func (p *proxy) end() {
	p.l.Close()
	p.mu.Lock()
	p.ended = true
	p.cutAll()
	p.cond.Broadcast()
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *proxy) serve() {
	for {
		a, err := p.l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.connect(a.(*net.TCPConn)) })
	}
}

func (p *proxy) connect(a *net.TCPConn) {
	p.mu.Lock()
	for p.ways[up].hold && !p.shut && !p.ended { // the first packet is lost as well
		p.cond.Wait()
	}
	refuse := p.shut || p.ended
	p.mu.Unlock()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: p.from}, Timeout: time.Second}
	var b net.Conn
	err := io.EOF
	if !refuse {
		b, err = d.Dial("tcp", p.to)
	}
	p.mu.Lock()
	if err != nil || p.shut || p.ended {
		p.mu.Unlock()
		reset(a)
		if err == nil {
			reset(b)
		}
		return
	}
	p.live[a], p.live[b] = struct{}{}, struct{}{}
	p.last = [2]net.Conn{a, b}
	p.wg.Add(2)
	p.mu.Unlock()
	go p.pipe(a, b, up) // they end with the connections
	go p.pipe(b, a, down)
}

// piece is what one read has brought.
type piece struct {
	b   []byte
	due time.Time
}

func (p *proxy) pipe(from, to net.Conn, direction int) {
	defer p.wg.Done()
	pieces := make(chan piece, 64)
	free := make(chan []byte, 64)
	done := make(chan struct{})
	go func() { // ends when pieces is closed
		defer close(done)
		broken := false
		for x := range pieces {
			time.Sleep(time.Until(x.due))
			p.mu.Lock()
			for (p.ways[direction].hold || p.still[0] == to || p.still[1] == to) && !p.ended && p.alive(to) {
				p.cond.Wait()
			}
			p.mu.Unlock()
			if !broken {
				_, err := to.Write(x.b)
				broken = err != nil
			}
			select {
			case free <- x.b[:cap(x.b)]:
			default:
			}
		}
	}()
	var last time.Time
	for {
		var b []byte
		select {
		case b = <-free:
		default:
			b = make([]byte, 64<<10)
		}
		n, err := from.Read(b)
		if n > 0 && direction == down && p.tap != nil {
			p.tap(from, b[:n])
		}
		if n > 0 {
			p.mu.Lock()
			w := p.ways[direction]
			p.mu.Unlock()
			due := time.Time{}
			if w.delay > 0 || w.loss > 0 || time.Until(last) > 0 {
				due = time.Now().Add(w.delay)
				if w.loss > 0 && rand.Float64() < w.loss {
					due = due.Add(rto)
				}
				if due.Before(last) { // the order stays
					due = last
				}
				last = due
			}
			pieces <- piece{b[:n], due}
		}
		if err != nil {
			break
		}
	}
	close(pieces)
	<-done
	p.mu.Lock()
	delete(p.live, from)
	delete(p.live, to)
	p.cond.Broadcast()
	p.mu.Unlock()
	from.Close()
	to.Close()
}

// alive is called with mu held.
func (p *proxy) alive(c net.Conn) bool {
	_, ok := p.live[c]
	return ok
}

// set says what becomes of bytes in both directions.
func (p *proxy) set(w way) { p.setEach(w, w) }

func (p *proxy) setEach(u, d way) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ways = [2]way{u, d}
	p.cond.Broadcast()
}

// holdLast holds the connection made last, one of several of a path, until
// release.
func (p *proxy) holdLast() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.still = p.last
}

func (p *proxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.still = [2]net.Conn{}
	p.cond.Broadcast()
}

// cut resets what there is; new connections are made.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutAll()
}

// close cuts, and refuses what comes until open.
func (p *proxy) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = true
	p.cutAll()
}

func (p *proxy) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = false
}

func (p *proxy) cutAll() {
	for c := range p.live {
		reset(c)
		delete(p.live, c)
	}
	p.cond.Broadcast()
}

func reset(c net.Conn) {
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
}
