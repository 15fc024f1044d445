package vm

import (
	"errors"
	"math/rand"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/roce"
	"github.com/rdsd/rdsd/roce/cm"
)

// peer is an RDMA device of ours at its barest: the rules of roce and roce/cm, a socket, and
// one goroutine, the test's. What goes wrong here is a matter of the rules and not of a
// provider.
type peer struct {
	t    *testing.T
	sock *net.UDPConn
	from time.Time // the clock's zero
	dev  *roce.Device
	cm   *cm.Manager
	b    roce.Burst
	buf  [1 << 16]byte

	mads    []mad // that came, for the connection manager
	asked   []*cm.Conn
	up      map[*cm.Conn]bool
	down    map[*cm.Conn]error // refused or disconnected
	failed  map[*roce.QP]error
	dropped map[roce.DropReason]int
}

type mad struct {
	from netip.AddrPort
	b    []byte
}

// newPeer opens a device at an address of our namespace.
func newPeer(t *testing.T, addr netip.Addr, mtu int) *peer {
	t.Helper()
	p := &peer{t: t, from: time.Now(), up: map[*cm.Conn]bool{}, down: map[*cm.Conn]error{},
		failed: map[*roce.QP]error{}, dropped: map[roce.DropReason]int{}}
	var err error
	if p.sock, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, roce.Port))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.sock.Close() })
	raw, err := p.sock.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if e := raw.Control(func(fd uintptr) {
		// Identification 0, which the packets' CRC is computed with.
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}); errors.Join(e, err) != nil {
		t.Fatal(errors.Join(e, err))
	}
	rnd := rand.New(rand.NewSource(time.Now().UnixNano()))
	if p.dev, err = roce.NewDevice(roce.Config{Local: addr, MTU: mtu}, (*peerDevice)(p), rnd); err != nil {
		t.Fatal(err)
	}
	if p.cm, err = cm.New(cm.Config{Local: addr, MTU: mtu}, (*peerManager)(p), rnd); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *peer) now() time.Duration { return time.Since(p.from) }

// until works until cond holds.
func (p *peer) until(what string, limit time.Duration, cond func() bool) {
	p.t.Helper()
	for end := time.Now().Add(limit); ; {
		p.send()
		if cond() {
			return
		}
		for q, err := range p.failed {
			p.t.Fatalf("%s: queue pair %#x: %v", what, q.Number(), err)
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s: not after %v; dropped %v; %+v; %+v", what, limit, p.dropped, p.dev.Counters(), p.cm.Stats())
		}
		p.receive(min(time.Until(end), 100*time.Millisecond))
	}
}

// receive takes a packet, if one comes within the limit and before the next timer.
func (p *peer) receive(limit time.Duration) {
	if wait := min(p.dev.Next(), p.cm.Next()) - p.now(); wait < limit {
		limit = max(wait, 0)
	}
	if err := p.sock.SetReadDeadline(time.Now().Add(max(limit, time.Millisecond))); err != nil {
		p.t.Fatal(err)
	}
	n, from, err := p.sock.ReadFromUDPAddrPort(p.buf[:])
	switch {
	case err == nil:
		p.dev.Receive(p.now(), netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), p.buf[:n])
	case !errors.Is(err, os.ErrDeadlineExceeded):
		p.t.Fatal(err)
	}
	for _, m := range p.mads {
		p.cm.Receive(p.now(), m.from, m.b)
	}
	p.mads = p.mads[:0]
	p.dev.Tick(p.now())
	p.cm.Tick(p.now())
}

// send sends what there is to be sent.
func (p *peer) send() {
	for p.dev.Fill(p.now(), &p.b) {
		for i := range p.b.N {
			// What the system refuses is lost, and sent again.
			_, _ = p.sock.WriteToUDPAddrPort(p.b.Packet(i).Append(nil), p.b.To)
		}
		p.dev.Sent(&p.b)
	}
}

// connect makes q one end of a connection whose other end is as c says.
func (p *peer) connect(q *roce.QP, c *cm.Conn, first roce.PSN) {
	p.t.Helper()
	o := c.Peer()
	if err := errors.Join(q.Connect(roce.Peer{Number: o.QPN, Addr: c.Remote().Addr(), MTU: p.mtu(c), First: first,
		Timeout: o.Ack, Retry: 7, RNRRetry: 7, Reads: 1, ReadsOfPeer: 1}), q.Start(o.RecvPSN)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) mtu(c *cm.Conn) int {
	if m := c.Peer().MTU; m != 0 {
		return m
	}
	return c.Param().MTU
}

// qp makes a queue pair to which receives can be posted.
func (p *peer) qp() *roce.QP {
	p.t.Helper()
	q, err := p.dev.NewQP(roce.QPConfig{Sends: 64, Recvs: 64, RNR: roce.RNR(time.Millisecond)})
	if err == nil {
		err = q.Init()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return q
}

// post adds work.
func (p *peer) post(q *roce.QP, w roce.Work) {
	p.t.Helper()
	if err := q.Post(w); err != nil {
		p.t.Fatal(err)
	}
}

// next waits for a completion, which has to be of op and to have succeeded.
func (p *peer) next(q *roce.QP, op roce.Op) (c roce.Completion) {
	p.t.Helper()
	p.until(op.String(), 20*time.Second, func() (ok bool) {
		c, ok = q.Poll()
		return ok
	})
	if c.Op != op || c.Status != roce.OK {
		p.t.Fatalf("instead of %v: %+v", op, c)
	}
	return c
}

// peerDevice is what the device tells.
type peerDevice peer

func (p *peerDevice) Completed(*roce.QP) {}
func (p *peerDevice) Arrived(*roce.QP)   {}

func (p *peerDevice) Failed(q *roce.QP, why error) { p.failed[q] = why }

func (p *peerDevice) MAD(from netip.AddrPort, b []byte) {
	p.mads = append(p.mads, mad{from, append([]byte(nil), b...)})
}

func (p *peerDevice) Drop(why roce.DropReason) { p.dropped[why]++ }

// peerManager is what the connection manager tells.
type peerManager peer

func (p *peerManager) Send(to netip.AddrPort, b []byte) {
	// A full queue is a message lost, which is sent again.
	_ = p.dev.SendMAD(to, b)
}

func (p *peerManager) Charge(netip.Addr) bool { return true }
func (p *peerManager) Refund(netip.Addr)      {}

func (p *peerManager) Asked(c *cm.Conn)     { p.asked = append(p.asked, c) }
func (p *peerManager) Connected(c *cm.Conn) { p.up[c] = true }

func (p *peerManager) Refused(c *cm.Conn, why cm.Reason, _ []byte) {
	p.down[c] = errors.New("refused: " + why.String())
}

func (p *peerManager) Disconnected(c *cm.Conn, why error) { p.down[c] = why }
func (p *peerManager) Released(*cm.Conn)                  {}
