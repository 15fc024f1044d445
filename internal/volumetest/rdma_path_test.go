package volumetest

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/roce"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// rocePath is what a proxy is, for a path over RoCEv2. To either end it is the other one: it
// has an address of its own, and writes that where messages of the connection manager carry
// addresses; the CRC of what it passes on is its own. Loss is loss here, of packets.
//
// A cut is a reset as near as there is one: both ends are told that the other hangs up (DREQ),
// and nothing of that connection passes any more, not what is under way either.
type rocePath struct {
	sock  *net.UDPConn
	port  int               // of RDMA, that the server listens at
	ends  [2]netip.AddrPort // by direction, where it leads to: up, the server; down, the client
	flows [2]*roce.Flow     // likewise; of the goroutine that sends there, and of tell with mu held
	from  string            // the client's address
	queue [2]chan packet
	wg    sync.WaitGroup

	mu    sync.Mutex
	cond  sync.Cond          // ways, still or ended have changed
	ways  [2]way             // guarded by mu
	shut  bool               // guarded by mu; refuses
	conns map[dest]*roceConn // guarded by mu
	last  *roceConn          // guarded by mu; the one made last
	still *roceConn          // guarded by mu; one that is held
	held  [2][]packet        // guarded by mu; of still
	ended bool               // guarded by mu
	asked []byte             // guarded by mu; the last request for a connection
}

// dest is where a packet leads: a queue pair, or for messages of the connection manager an ID.
type dest struct {
	direction int
	cm        bool
	n         uint32
}

// roceConn is one connection, of two queue pairs. Its fields are guarded by the path's mu.
type roceConn struct {
	id   [2]uint32 // of the connection manager, by the direction that leads there
	qpn  [2]uint32
	up   bool // both ends are known
	dead bool
}

type packet struct {
	b   []byte
	to  dest
	due time.Time
}

// Messages of a connection manager, as far as a path looks into them (InfiniBand, 12.6; RDMA's
// header of addresses, annex A11).
const (
	madAttr     = 16
	madBody     = 24
	madREQ      = 0x10
	madREJ      = 0x12
	madREP      = 0x13
	madRTU      = 0x14
	madDREQ     = 0x15
	reqQPN      = madBody + 32
	reqGIDs     = madBody + 56 // the sender's, the receiver's
	reqAddrs    = madBody + 144
	repQPN      = madBody + 12
	rejReason   = madBody + 10
	rejNobody   = 8 // the service ID is not known
	dreqQPN     = madBody + 8
	madKey      = 0x80010000
	pathBuffer  = 8 << 20
	pathPackets = 4096 // that wait in a direction; what comes more is lost
)

// newRocePath makes a path at an address, between those of two daemons.
func newRocePath(t testing.TB, at, client, server string, port int) *rocePath {
	addr := func(a string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(a), roce.Port) }
	self := addr(at)
	p := &rocePath{port: port, from: client, ends: [2]netip.AddrPort{up: addr(server), down: addr(client)}, conns: map[dest]*roceConn{}}
	p.cond.L = &p.mu
	p.sock = listenRoCE(t, self)
	var err error
	for i := range p.ends {
		if p.flows[i], err = roce.NewFlow(self, p.ends[i]); err != nil {
			t.Fatal(err)
		}
		p.queue[i] = make(chan packet, pathPackets)
		p.wg.Go(func() { p.send(i) }) // ends when the queue is closed
	}
	p.wg.Go(p.read) // ends with the socket
	t.Cleanup(p.end)
	return p
}

// listenRoCE opens a socket whose packets leave as their CRC has them: with identification 0.
func listenRoCE(t testing.TB, at netip.AddrPort) *net.UDPConn {
	sock, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := sock.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if e := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, pathBuffer) != nil { // without the right to, what is allowed
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, pathBuffer)
		}
	}); errors.Join(e, err) != nil {
		t.Fatal(errors.Join(e, err))
	}
	return sock
}

func (p *rocePath) end() {
	p.mu.Lock()
	p.ended = true
	p.cond.Broadcast()
	p.mu.Unlock()
	p.sock.Close()
	p.wg.Wait()
}

// addr is the server's, as the client sees it.
func (p *rocePath) addr() string {
	at := p.sock.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	return netip.AddrPortFrom(at, uint16(p.port)).String()
}

func (p *rocePath) spec() rdsd.PathSpec {
	return rdsd.PathSpec{Src: p.from, Dst: p.addr(), Transport: rdsd.TransportIB}
}

func (p *rocePath) read() {
	defer func() {
		close(p.queue[up])
		close(p.queue[down])
	}()
	b := make([]byte, 1<<16)
	var last [2]time.Time
	for {
		n, from, err := p.sock.ReadFromUDPAddrPort(b)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue // of a daemon that is killed an error may come back
		}
		direction := up
		if from.Addr().Unmap() == p.ends[up].Addr() {
			direction = down
		}
		pkt := packet{b: append([]byte(nil), b[:n]...)}
		var h roce.Packet
		if h.Parse(pkt.b) != nil {
			continue
		}
		p.mu.Lock()
		w := p.ways[direction]
		drop := !p.look(direction, &pkt, &h) || w.loss > 0 && rand.Float64() < w.loss
		p.mu.Unlock()
		if drop {
			continue
		}
		if w.delay > 0 || time.Until(last[direction]) > 0 {
			pkt.due = time.Now().Add(w.delay)
			if pkt.due.Before(last[direction]) { // the order stays
				pkt.due = last[direction]
			}
			last[direction] = pkt.due
		}
		select {
		case p.queue[direction] <- pkt:
		default:
		}
	}
}

// look learns from a packet, and makes it one of the path. It reports false for what does not
// go on. mu is held.
func (p *rocePath) look(direction int, pkt *packet, h *roce.Packet) bool {
	pkt.to = dest{direction: direction, n: h.Dest}
	if h.Op != roce.DatagramSendOnly {
		c := p.conns[pkt.to]
		return c != nil && !c.dead && !p.shut
	}
	m, be := h.Payload, binary.BigEndian
	if len(m) != roce.MADLen {
		return false
	}
	sender := dest{1 - direction, true, be.Uint32(m[madBody:])}
	pkt.to = dest{direction, true, be.Uint32(m[madBody+4:])}
	switch be.Uint16(m[madAttr:]) {
	case madREQ:
		c := p.conns[sender]
		if p.shut || c != nil && c.dead {
			p.tell(1-direction, madREJ, 0, sender.n, func(r []byte) {
				copy(r[8:], m[8:16]) // the transaction that it answers
				be.PutUint16(r[rejReason:], rejNobody)
			})
			return false
		}
		if c == nil {
			c = &roceConn{}
			p.learn(c, sender, be.Uint32(m[reqQPN:])>>8)
		}
		p.last = c
		pkt.to = sender
		self, to := p.sock.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().As16(), p.ends[direction].Addr().As16()
		copy(m[reqGIDs:], self[:])
		copy(m[reqGIDs+16:], to[:])
		copy(m[reqAddrs+12:], self[12:])
		copy(m[reqAddrs+28:], to[12:])
		p.asked = append(p.asked[:0], m...)
		return true
	case madREP:
		if c := p.conns[pkt.to]; c != nil && !c.dead && !c.up && !p.shut {
			p.learn(c, sender, be.Uint32(m[repQPN:])>>8)
			c.up = true
		}
	}
	c := p.conns[pkt.to]
	return c != nil && !c.dead && !p.shut
}

// learn takes one end of c. mu is held.
func (p *rocePath) learn(c *roceConn, at dest, qpn uint32) {
	c.id[at.direction], c.qpn[at.direction] = at.n, qpn
	p.conns[at] = c
	p.conns[dest{at.direction, false, qpn}] = c
}

// send sends what goes in one direction.
func (p *rocePath) send(direction int) {
	for pkt := range p.queue[direction] {
		time.Sleep(time.Until(pkt.due))
		p.mu.Lock()
		for p.ways[direction].hold && !p.ended {
			p.cond.Wait()
		}
		c := p.conns[pkt.to]
		if c == nil || c.dead || p.ended {
			p.mu.Unlock()
			continue
		}
		if c == p.still {
			p.held[direction] = append(p.held[direction], pkt)
			p.mu.Unlock()
			continue
		}
		p.put(direction, pkt.b)
		p.mu.Unlock()
	}
}

// put sends a packet, whose last four bytes are for its CRC. mu is held.
func (p *rocePath) put(direction int, b []byte) {
	n := len(b) - 4
	b = roce.AppendICRC(b[:n], p.flows[direction].ICRC(0, b[:n]))
	// What the system refuses is lost: a killed daemon's address may be nobody's.
	_, _ = p.sock.WriteToUDPAddrPort(b, p.ends[direction])
}

// tell sends a message of the path's own. mu is held.
func (p *rocePath) tell(direction, attr int, local, remote uint32, more func(m []byte)) {
	m, be := make([]byte, roce.MADLen), binary.BigEndian
	be.PutUint32(m, 0x01_07_02_03) // a message of connection managers
	be.PutUint64(m[8:], rand.Uint64())
	be.PutUint16(m[madAttr:], uint16(attr))
	be.PutUint32(m[madBody:], local)
	be.PutUint32(m[madBody+4:], remote)
	more(m)
	h := roce.Packet{Op: roce.DatagramSendOnly, PKey: roce.DefaultPKey, Dest: 1, Source: 1, QKey: madKey, Payload: m}
	p.put(direction, append(h.Append(nil), 0, 0, 0, 0))
}

func (p *rocePath) set(w way) { p.setEach(w, w) }

func (p *rocePath) setEach(u, d way) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ways = [2]way{u, d}
	p.cond.Broadcast()
}

func (p *rocePath) holdLast() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.still = p.last
}

func (p *rocePath) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for direction, l := range p.held {
		for _, pkt := range l {
			if !p.still.dead {
				p.put(direction, pkt.b)
			}
		}
		p.held[direction] = nil
	}
	p.still = nil
}

func (p *rocePath) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutAll()
}

func (p *rocePath) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = true
	p.cutAll()
}

func (p *rocePath) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = false
}

// cutAll ends every connection. mu is held.
func (p *rocePath) cutAll() {
	for at, c := range p.conns {
		if c.dead || !at.cm {
			continue
		}
		c.dead = true
		if !c.up { // its dialler learns of it when it asks again
			continue
		}
		for i := range c.id {
			p.tell(i, madDREQ, c.id[1-i], c.id[i], func(m []byte) { binary.BigEndian.PutUint32(m[dreqQPN:], c.qpn[i]<<8) })
		}
	}
}
