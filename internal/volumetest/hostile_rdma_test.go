package volumetest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/roce"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// How much longer the victim's slowest hundredth may take beside a hostile peer, by the median of the
// turns: where others use the processors, one turn of twelve is beyond it by them alone.
const (
	hostileBar   = 3
	hostileTurns = 9
	hostilePhase = 100 * time.Millisecond
	hostileRate  = 10                    // packets a millisecond
	hostileQuiet = 10 * time.Millisecond // a machine whose reads take longer without anybody hostile is not judged
)

// rdmaRaider is a peer with a socket and the forms of packets. It speaks at the port of RoCEv2
// of an address of its own, and in the place of the victim's peer, whose address it can have
// and whose numbers it may know.
type rdmaRaider struct {
	t     *testing.T
	p     *rocePath
	sock  *net.UDPConn
	self  netip.Addr
	to    netip.AddrPort // where it sends: the daemon's device, or for comparison nobody's
	flow  *roce.Flow
	asked []byte // a request for a connection, of which its own are made
	sent  int
	ids   uint32

	// As the victim's peer it speaks from the peer's address, by a port and a socket of its own: what
	// the path carries for the victim waits for no lock of the raider's.
	spoofs    *net.UDPConn
	spoofFlow *roce.Flow

	refusing  atomic.Bool   // what comes on connections is not taken; else wrong keys are used there
	refused   atomic.Uint64 // of its writes
	notReadys atomic.Uint64
}

// TestHostilePeerOverRDMA: beside a hostile peer of the same device a volume's reads go on, and
// their p99 is at most three times what it is beside the same packets sent to a socket that
// throws them away. Turn by turn those and the device; the median of the turns counts.
func TestHostilePeerOverRDMA(t *testing.T) {
	w := newWorld(t, overRDMA)
	w.serve(false, "")
	w.server.hostile = true
	w.map_("")
	w.addPaths(1)
	w.export("disk", appBytes)
	m := w.mount(rdsd.MapSpec{Name: "disk"})
	r := newRDMARaider(t, w)
	c := connect(t, w, m)
	nobody := listenRoCE(t, netip.AddrPortFrom(netip.MustParseAddr(w.at(raiderHost+1)), roce.Port))
	go func() { // ends with its socket
		for b := make([]byte, 1<<13); ; {
			if _, _, err := nobody.ReadFromUDPAddrPort(b); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { nobody.Close() })
	device, sink := r.p.ends[up], nobody.LocalAddr().(*net.UDPAddr).AddrPort()

	acts := []struct {
		name string
		once func(r *rdmaRaider)
	}{
		{"requests to connect", (*rdmaRaider).request},
		{"one request again and again", (*rdmaRaider).again},
		{"paths that write with wrong keys", (*rdmaRaider).wrongKey},
		{"writes as the peer, wrong keys and numbers", (*rdmaRaider).spoof},
		{"writes to the peer's queue pair from elsewhere", (*rdmaRaider).elsewhere},
		{"not ready, for ever", (*rdmaRaider).notReady},
	}
	for _, act := range acts {
		var ratios, hostile []float64
		quiet := r.measure(c, nil, sink)
		for range hostileTurns {
			beside := r.measure(c, act.once, sink)
			at := r.measure(c, act.once, device)
			ratios = append(ratios, float64(at)/float64(beside))
			hostile = append(hostile, float64(at)/1e6)
		}
		slices.Sort(ratios)
		slices.Sort(hostile)
		mid := ratios[len(ratios)/2]
		t.Logf("REPORT beside a hostile peer over RoCE (%s) the p99 of a read is %.1f x (%.1f to %.1f), %.2f ms", act.name, mid, ratios[0], ratios[len(ratios)-1], hostile[len(hostile)/2])
		switch {
		case mid <= hostileBar:
		case quiet > hostileQuiet:
			t.Logf("%s: not judged, a read takes %v with nobody hostile", act.name, ms(quiet))
		default:
			t.Errorf("%s: the p99 of a read is %.1f x, at most %d x is wanted", act.name, mid, hostileBar)
		}
	}
	if p, err := w.client.vols().Paths(w.ctx(), ""); err != nil || len(p) != 1 || p[0].Reconnects > 0 {
		t.Errorf("the victim's path was lost: %+v, %v", p, err)
	}
	if r.refused.Load() == 0 || r.notReadys.Load() == 0 {
		t.Errorf("%d writes with wrong keys were refused, and %d messages not taken: the raider has shown nothing", r.refused.Load(), r.notReadys.Load())
	}
	t.Logf("REPORT %d packets of a hostile peer over RoCE, %d writes refused, %d messages not taken; the victim's path was not lost", r.sent, r.refused.Load(), r.notReadys.Load())
}

func newRDMARaider(t *testing.T, w *world) *rdmaRaider {
	r := &rdmaRaider{t: t, p: w.paths[0].(*rocePath), self: netip.MustParseAddr(w.at(raiderHost)), ids: rand.Uint32()}
	r.sock = listenRoCE(t, netip.AddrPortFrom(r.self, roce.Port))
	r.spoofs = listenRoCE(t, netip.AddrPortFrom(addrOf(r.p.sock).Addr(), 0))
	flow, err := roce.NewFlow(netip.AddrPortFrom(r.self, roce.Port), r.p.ends[up])
	if err != nil {
		t.Fatal(err)
	}
	r.p.mu.Lock()
	r.asked = slices.Clone(r.p.asked)
	r.p.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { r.listen(flow) }) // ends with the socket
	t.Cleanup(func() {
		r.sock.Close()
		r.spoofs.Close()
		wg.Wait()
	})
	return r
}

// measure has the victim read for a while, with an act going on, and returns the p99.
func (r *rdmaRaider) measure(c *nbd.Client, once func(*rdmaRaider), to netip.AddrPort) time.Duration {
	r.t.Helper()
	r.to = to
	var err error
	if r.flow, err = roce.NewFlow(netip.AddrPortFrom(r.self, roce.Port), to); err != nil {
		r.t.Fatal(err)
	}
	if r.spoofFlow, err = roce.NewFlow(addrOf(r.spoofs), to); err != nil {
		r.t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ends when it is told to
		defer close(done)
		for once != nil {
			for range hostileRate {
				once(r)
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	var trips []time.Duration
	p := make([]byte, blockSize)
	for began := time.Now(); time.Since(began) < hostilePhase || len(trips) < 200; {
		at := time.Now()
		if _, err := c.ReadAt(p, int64(len(trips)%1000)*blockSize); err != nil {
			r.t.Fatal(err)
		}
		trips = append(trips, time.Since(at))
	}
	close(stop)
	<-done
	slices.Sort(trips)
	return trips[len(trips)*99/100]
}

func (r *rdmaRaider) put(p *roce.Packet) { r.putFrom(r.sock, r.flow, p) }

func (r *rdmaRaider) putFrom(sock *net.UDPConn, flow *roce.Flow, p *roce.Packet) {
	b := p.Append(nil)
	b = roce.AppendICRC(b, flow.ICRC(0, b))
	_, _ = sock.WriteToUDPAddrPort(b, r.to) // what is refused is lost
	r.sent++
}

// addrOf is where a socket is.
func addrOf(sock *net.UDPConn) netip.AddrPort {
	at := sock.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

func (r *rdmaRaider) mad(m []byte) {
	r.put(&roce.Packet{Op: roce.DatagramSendOnly, PKey: roce.DefaultPKey, Dest: 1, Source: 1, QKey: madKey, Payload: m})
}

// ask asks for a connection of a path, with an ID.
func (r *rdmaRaider) ask(id uint32) {
	m, be := slices.Clone(r.asked), binary.BigEndian
	be.PutUint64(m[8:], uint64(id))
	be.PutUint32(m[madBody:], id)
	be.PutUint32(m[reqQPN:], id<<8)
	self := r.self.As16()
	copy(m[reqGIDs:], self[:])
	copy(m[reqAddrs+12:], self[12:])
	req := rtrswire.ConnReq{Conns: 1, Attempt: 1, FirstConn: true}
	be.PutUint32(req.Path[:], id)
	be.PutUint32(req.Session[:], id)
	copy(m[madBody+176:], req.Append(nil))
	r.mad(m)
}

func (r *rdmaRaider) request() {
	r.ids++
	r.ask(r.ids)
}

func (r *rdmaRaider) again() { r.ask(7) }

// wrongKey asks for connections; on each that is accepted listen writes with a wrong key, which
// ends it.
func (r *rdmaRaider) wrongKey() {
	r.refusing.Store(false)
	r.request()
}

// notReady asks for connections too, on which listen refuses everything.
func (r *rdmaRaider) notReady() {
	r.refusing.Store(true)
	r.request()
}

// victim is a queue pair of the server's that the victim's path goes to.
func (r *rdmaRaider) victim() uint32 {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	return r.p.last.qpn[up]
}

func (r *rdmaRaider) write() *roce.Packet {
	return &roce.Packet{Op: roce.WriteOnly, PKey: roce.DefaultPKey, Dest: r.victim(), PSN: roce.PSN(rand.Uint32() & 0xffffff),
		Key: rand.Uint32(), Len: 64, Payload: []byte(strings.Repeat("x", 64))}
}

func (r *rdmaRaider) elsewhere() { r.put(r.write()) }

// spoof writes with the address of the victim's peer, and what of its numbers is on the wire. A
// number that is expected would end the connection, as it would of the peer itself.
func (r *rdmaRaider) spoof() { r.putFrom(r.spoofs, r.spoofFlow, r.write()) }

// listen goes on with what is accepted.
func (r *rdmaRaider) listen(flow *roce.Flow) {
	put := func(p *roce.Packet) {
		p.PKey = roce.DefaultPKey
		b := p.Append(nil)
		_, _ = r.sock.WriteToUDPAddrPort(roce.AppendICRC(b, flow.ICRC(0, b)), r.p.ends[up]) // what is refused is lost
	}
	theirs, be := map[uint32]uint32{}, binary.BigEndian // by its own queue pairs
	for b := make([]byte, 1<<13); ; {
		n, _, err := r.sock.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		var h roce.Packet
		if h.Parse(b[:n]) != nil {
			continue
		}
		switch m := h.Payload; {
		case h.Op == roce.Acknowledge:
			if h.Syndrome.IsNAK() {
				r.refused.Add(1)
			}
		case h.Op != roce.DatagramSendOnly:
			put(&roce.Packet{Op: roce.Acknowledge, Dest: theirs[h.Dest], PSN: h.PSN, Syndrome: roce.RNR(10 * time.Millisecond)})
			r.notReadys.Add(1)
		case len(m) == roce.MADLen && be.Uint16(m[madAttr:]) == madREP:
			id, qpn, psn := be.Uint32(m[madBody+4:]), be.Uint32(m[repQPN:])>>8, roce.PSN(be.Uint32(m[repQPN+8:])>>8)
			theirs[id&0xffffff] = qpn
			rtu := slices.Clone(m)
			clear(rtu[madBody:])
			be.PutUint16(rtu[madAttr:], madRTU)
			be.PutUint32(rtu[madBody:], id)
			be.PutUint32(rtu[madBody+4:], be.Uint32(m[madBody:]))
			put(&roce.Packet{Op: roce.DatagramSendOnly, Dest: 1, Source: 1, QKey: madKey, Payload: rtu})
			if r.refusing.Load() {
				name, _ := rtrswire.AppendInfoReq(nil, fmt.Sprint("raider", id))
				put(&roce.Packet{Op: roce.SendOnly, Dest: qpn, PSN: psn, AckReq: true, Payload: name})
				continue
			}
			put(&roce.Packet{Op: roce.WriteOnly, Dest: qpn, PSN: psn, AckReq: true, Key: rand.Uint32(), Len: 4, Payload: []byte("mine")})
		}
	}
}
