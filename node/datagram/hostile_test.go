package datagram

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// attack is one way to be malformed. Each ends its link.
type attack struct {
	name   string
	reason string // what the lane's error must say; "" when framing ends it
	rdsd   bool   // after a proper handshake as an rdsd
	frame  func(rng *rand.Rand) []byte
}

func rdsdFrame(h wire.Header, payload []byte) []byte {
	h.Len = uint32(len(payload))
	b := h.Append(nil)
	wire.SetChecksum(b)
	return append(b, payload...)
}

var attacks = []attack{
	{"absurd length", "at most 1048576", false, func(rng *rand.Rand) []byte {
		h := wire.Header{Seq: 1, Len: uint32(wire.MaxDatagram + 1 + rng.Intn(1<<31)), SPort: 5, DPort: 6}
		return h.Append(nil)
	}},
	{"random bytes", "", false, func(rng *rand.Rand) []byte {
		b := make([]byte, 48)
		rng.Read(b)
		b[16] |= 0x80 // a length nobody may announce
		return b
	}},
	{"wrong checksum", "checksum", true, func(rng *rand.Rand) []byte {
		b := rdsdFrame(wire.Header{Seq: 1, SPort: 5, DPort: 6}, nil)
		b[30] ^= byte(1 + rng.Intn(255))
		return b
	}},
	{"acknowledges what was never sent", "never sent", true, func(rng *rand.Rand) []byte {
		return rdsdFrame(wire.Header{Ack: 1<<40 + rng.Uint64()>>30}, nil)
	}},
	{"refuses what was never sent", "never sent", true, func(rng *rand.Rand) []byte {
		h := wire.Header{Seq: 1, Flags: wire.FlagControl}
		h.Ext[0] = wire.CtlRefuse
		return rdsdFrame(h, wire.AppendRefusal(nil, wire.Refusal{Seq: 1<<40 + uint64(rng.Intn(100)), Reason: wire.ReasonNoRoom}))
	}},
	{"malformed control message", "malformed", true, func(rng *rand.Rand) []byte {
		h := wire.Header{Flags: wire.FlagControl}
		h.Ext[0] = wire.CtlCongDelta
		return rdsdFrame(h, make([]byte, 1+4*rng.Intn(3)))
	}},
	{"short congestion map", "8192", true, func(rng *rand.Rand) []byte {
		return rdsdFrame(wire.Header{Flags: wire.FlagCongBitmap}, make([]byte, rng.Intn(8192)&^7))
	}},
}

// TestMillionMalformedFrames: a peer that sends nothing but rubbish loses its
// link, with a reason, again and again; the daemon allocates nothing for it and
// serves another peer all the while.
func TestMillionMalformedFrames(t *testing.T) {
	total := 1_000_000
	if testing.Short() {
		total = 100_000
	}
	port := freeTCPPort(t)
	victim, good := benchNode(t, port, "127.0.0.92"), benchNode(t, port, "127.0.0.91")
	defer victim.Close()
	defer good.Close()
	stop := make(chan struct{})
	served, stopped := goodTraffic(t, good.list[0], victim.list[0], stop)

	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	peak := atomic.Int64{}
	rng := rand.New(rand.NewSource(1))
	sent, round := 0, 0
	var silent []string
	for sent < total {
		a := &attacks[round%len(attacks)]
		from := served.Load()
		n := assault(t, a, rng, port, round)
		sent += n
		if b := victim.engineConfig.Budget.Used(); b > peak.Load() {
			peak.Store(b)
		}
		if a.reason != "" && round < 3*len(attacks) {
			wantReason(t, victim.list[0], attackerAddr(round), a)
		}
		if served.Load() == from {
			silent = append(silent, fmt.Sprint(round))
		}
		round++
	}
	runtime.GC() // what the assaults themselves took
	runtime.ReadMemStats(&after)
	close(stop)
	if err := <-stopped; err != nil {
		t.Error("the good peer:", err)
	}
	if n := len(silent); n > round/2 {
		t.Errorf("during %d of %d assaults the good peer was not served", n, round)
	}
	_, _ = victim.list[0].Lock()
	ctr := victim.list[0].e.Counters()
	victim.list[0].Unlock()
	if ctr.ProtocolError == 0 {
		t.Error("no protocol error was counted")
	}
	if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 64<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	t.Logf("REPORT %d malformed frames on %d links, %d protocol errors, good peer served %d datagrams, heap %+d KiB",
		sent, round, ctr.ProtocolError, served.Load(), (int64(after.HeapInuse)-int64(before.HeapInuse))/1024)
}

func attackerAddr(round int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 0, 0, byte(20 + round%len(attacks))})
}

// assault opens a link and writes frames of a until 20,000 are out or the
// victim has reset the connection.
func assault(t *testing.T, a *attack, rng *rand.Rand, port uint16, round int) (sent int) {
	// The source port names the lane (modulo 8): lane 0. Some may linger from a
	// run before.
	var c net.Conn
	var err error
	for try := range 500 {
		from := uint16(10240 + 8*((rng.Intn(2048)+try)%2048))
		d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(attackerAddr(round), from))}
		if c, err = d.Dial("tcp", fmt.Sprintf("127.0.0.92:%d", port)); !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute)) // longer than a busy machine takes to read a part
	if a.rdsd {
		shakeHands(t, c, uint64(round+1))
	}
	var out []byte
	for range 20000 {
		out = append(out, a.frame(rng)...)
	}
	c.Write(out) // an error is the reset we want
	c.(*net.TCPConn).CloseWrite()
	io.Copy(io.Discard, c)
	return 20000
}

// shakeHands says and answers Hello as an rdsd does, until the victim has ours.
func shakeHands(t *testing.T, c net.Conn, incarnation uint64) {
	x := wire.Handshake{NPaths: 1, Hello: wire.Hello{Version: 1, Lanes: 1, CreditLog2: 10, Incarnation: incarnation}}
	for _, p := range [][2]uint16{{1, 0}, {0, 1}} {
		h := wire.Header{SPort: p[0], DPort: p[1], Ext: x.Encode()}
		if _, err := c.Write(h.Append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	for answered := false; !answered; {
		var raw [48]byte
		if _, err := io.ReadFull(c, raw[:]); err != nil {
			t.Fatal(err)
		}
		io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(raw[16:])))
		var h wire.Header
		h.Parse(raw[:])
		answered = h.Kind(true) == wire.KindProbeReply
	}
}

// wantReason checks that the administrator can read why the link was reset.
func wantReason(t *testing.T, h *Local, addr netip.Addr, a *attack) {
	t.Helper()
	last := "no such peer"
	for range 200 {
		e, _ := h.Lock()
		for _, pe := range e.Peers() {
			if pe.Addr() == addr {
				pe.Conn().EachLane(func(p *conn.Lane) {
					if err := p.Info().LastErr; err != nil {
						last = err.Error()
					}
				})
			}
		}
		h.Unlock()
		if strings.Contains(last, a.reason) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("%s: the lane's error is %q, which does not say %q", a.name, last, a.reason)
}

// goodTraffic keeps datagrams flowing from one core to another and checks that
// each arrives once and in order.
func goodTraffic(t *testing.T, from, to *Local, stop chan struct{}) (*atomic.Int64, chan error) {
	woken := make(wakeup, 1)
	e, _ := to.Lock()
	r, err := e.Bind(4000, rds.SocketOptions{Data: woken})
	to.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	e, _ = from.Lock()
	s, err := e.Bind(0, rds.SocketOptions{})
	from.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	var served atomic.Int64
	stopped := make(chan error, 1)
	go func() {
		var next, want uint64
		for {
			_, now := from.Lock()
			for range 16 {
				payload := binary.BigEndian.AppendUint64(nil, next)
				if err := s.Send(now, r.Addr(), payload, 0, rds.Quiet); err != nil {
					if !errors.Is(err, rdserr.ErrWouldBlock) && !errors.Is(err, rdserr.ErrCongested) {
						stopped <- err
					}
					break
				}
				next++
			}
			from.Unlock()
			select {
			case <-woken:
			case <-time.After(time.Millisecond):
			case <-stop:
				stopped <- nil
				return
			}
			_, now = to.Lock()
			r.Events()
			for {
				d, ok := r.Queue().Recv()
				if !ok {
					break
				}
				if got := binary.BigEndian.Uint64(d.Payload); got != want {
					stopped <- fmt.Errorf("datagram %d arrived where %d was due", got, want)
				}
				want++
				d.Release()
				served.Add(1)
			}
			r.ReadAll(now)
			to.Unlock()
		}
	}()
	return &served, stopped
}
