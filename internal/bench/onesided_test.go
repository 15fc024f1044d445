package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/roce"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/ib"
	"github.com/rdsd/rdsd/transport/ib/soft"
	"github.com/rdsd/rdsd/transport/tcp"
)

// Two processes and a one-sided link between them, over tagged frames on TCP or over RoCEv2 in
// user space. What is carried is a write with immediate into memory of the other; each end is
// a reactor, which looks for work for 50 µs before it sleeps.

var (
	roleOneSidedSend = register("one-sided sender", runOneSidedSend)
	roleOneSidedRecv = register("one-sided receiver", runOneSidedRecv)
	roleOneSidedPing = register("one-sided ping", runOneSidedPing)
	roleOneSidedEcho = register("one-sided echo", runOneSidedEcho)
)

const (
	oneSidedPort = 4000
	// oneSidedSlots are writes on their way at a time; each oneSidedAnswer of them are answered
	// by a write of no bytes, which lets the sender go on.
	oneSidedSlots  = 16
	oneSidedAnswer = 4
)

// overTCP and overRoCE are kinds of links.
const (
	overTCP  = "TCP"
	overRoCE = "RoCEv2"
)

// oneSidedWay measures writes one way; mtu and noGSO are RoCEv2's.
func oneSidedWay(kind string, bytes, mtu int, noGSO bool) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		return oneSided(d, args{FrontEnd: kind, Bytes: bytes, MTU: mtu, NoGSO: noGSO}, roleOneSidedRecv, roleOneSidedSend, func(listens, dials *proc) *proc { return listens })
	}
}

// oneSidedLossy measures writes one way over RoCEv2 where either end loses a share of what arrives.
func oneSidedLossy(bytes, mtu int, share float64, of string) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		return oneSided(d, args{FrontEnd: overRoCE, Bytes: bytes, MTU: mtu, Loss: share, LossOf: of}, roleOneSidedRecv, roleOneSidedSend,
			func(listens, dials *proc) *proc { return listens })
	}
}

// oneSidedTrip measures round trips.
func oneSidedTrip(kind string, bytes int) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		return oneSided(d, args{FrontEnd: kind, Bytes: bytes}, roleOneSidedEcho, roleOneSidedPing, func(listens, dials *proc) *proc { return dials })
	}
}

// oneSided runs an end that listens and one that dials, and measures one of them.
func oneSided(d time.Duration, a args, listens, dials string, of func(listens, dials *proc) *proc) (sample, error) {
	w := newWorld(d)
	defer w.close()
	if a.FrontEnd == overRoCE {
		if err := rocePort(nodeA, nodeB); err != nil {
			return sample{}, err
		}
	}
	a.Local, a.Target = nodeB, nodeA
	l, err := w.role(listens, a)
	if err != nil {
		return sample{}, err
	}
	if err := w.until(listens+" listens", func() bool { return l.board.load(wordReady) > 0 }); err != nil {
		return sample{}, err
	}
	a.Local, a.Target = nodeA, nodeB
	c, err := w.role(dials, a)
	if err != nil {
		return sample{}, err
	}
	return w.window(of(l, c), wordCount, d)
}

// rocePort says why RoCEv2's port of addresses cannot be had.
func rocePort(addrs ...string) error {
	for _, a := range addrs {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: roce.Port, Addr: netip.MustParseAddr(a).As4()})
		unix.Close(fd)
		if err != nil {
			return skip("UDP port %d of %s: %v", roce.Port, a, err)
		}
	}
	return nil
}

// oneEnd is an end of a one-sided link.
type oneEnd struct {
	r       *role
	prov    transport.OneSidedProvider
	d       transport.Domain
	l       transport.OneSided
	mem     []byte // the peer writes there
	peer    uint32 // key of the peer's memory
	at      uint64 // its address
	written func(transport.Placed) error
	end     chan error
	op      transport.Op
}

// openOneSided makes the provider, and memory that the peer may write.
func openOneSided(r *role, bytes int) (*oneEnd, error) {
	e := &oneEnd{r: r, mem: make([]byte, bytes), end: make(chan error, 1)}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	g := &guard.Guard{Log: log}
	re, err := reactor.New(reactor.Options{CPU: -1, Guard: g})
	if err != nil {
		return nil, err
	}
	if r.FrontEnd == overTCP {
		e.prov = tcp.New(re)
	} else {
		cfg := soft.Config{Addr: netip.MustParseAddr(r.Local), Reactor: re, MTU: r.MTU, NoGSO: r.NoGSO, Log: log, Guard: g}
		var noLoss error
		if r.Loss > 0 {
			cfg.Within = func(open func()) { r.lossy(open, &noLoss) }
		}
		dev, err := soft.Open(cfg)
		if err := errors.Join(err, noLoss); err != nil {
			return nil, err
		}
		e.prov = ib.New(dev)
	}
	e.d = e.prov.NewDomain()
	return e, nil
}

func (e *oneEnd) Begin()                              {}
func (e *oneEnd) End()                                { e.l.Flush() }
func (e *oneEnd) Sent(int)                            {}
func (e *oneEnd) Received([]byte, uint32, bool) error { return errors.New("a send") }
func (e *oneEnd) Invalidated(uint32, int) error       { return nil }
func (e *oneEnd) Revoked(uint32, int) error           { return nil }
func (e *oneEnd) Closed(err error)                    { e.end <- err }
func (e *oneEnd) Written(w transport.Placed) error    { return e.written(w) }

const oneSidedPrivate = 12 // the key and the address of memory

// private shows where the peer may write.
func (e *oneEnd) private() []byte {
	key, addr := e.d.Register(e.mem)
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, key), addr)
}

func (e *oneEnd) learn(b []byte) error {
	if len(b) < oneSidedPrivate {
		return fmt.Errorf("%d bytes of private data", len(b))
	}
	e.peer, e.at = binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:])
	return nil
}

var oneSidedAttr = transport.LinkAttr{Sends: 2 * oneSidedSlots, Recvs: 2 * oneSidedSlots}

// listen takes one peer, and returns when the link has ended.
func (e *oneEnd) listen() error {
	failed := make(chan error, 1)
	_, err := e.prov.ListenOneSided(netip.AddrPortFrom(netip.MustParseAddr(e.r.Local), oneSidedPort), func(q transport.ConnRequest) {
		err := e.learn(q.Private())
		if err == nil {
			e.l, err = q.Accept(e.d, oneSidedAttr, e.private())
		}
		if err != nil {
			failed <- err
			return
		}
		e.l.Start(e, transport.MaxSend)
	})
	if err != nil {
		return err
	}
	e.r.board.set(wordReady, 1)
	select {
	case err = <-failed:
	case err = <-e.end:
	}
	return err
}

func (e *oneEnd) dial() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	local, remote := netip.AddrPortFrom(netip.MustParseAddr(e.r.Local), 0), netip.AddrPortFrom(netip.MustParseAddr(e.r.Target), oneSidedPort)
	l, rsp, err := e.prov.DialOneSided(ctx, local, remote, e.d, oneSidedAttr, e.private())
	if err != nil {
		return err
	}
	e.l = l
	return e.learn(rsp)
}

// write posts one into the peer's memory, at an offset.
func (e *oneEnd) write(data []byte, at int, imm uint32) {
	e.op = transport.Op{Kind: transport.OpWriteImm, Key: e.peer, Addr: e.at + uint64(at), Imm: imm, Data: data}
	e.l.Post(&e.op)
}

func runOneSidedSend(r *role) error {
	e, err := openOneSided(r, 1)
	if err != nil {
		return err
	}
	buf := make([]byte, oneSidedSlots*r.Bytes)
	var mu sync.Mutex // the first writes are posted here, the others by the reactor
	var sent, done uint64
	post := func() {
		for ; sent-done < oneSidedSlots; sent++ {
			slot := int(sent % oneSidedSlots)
			b := buf[slot*r.Bytes : (slot+1)*r.Bytes]
			stamp(b, sent)
			e.write(b, slot*r.Bytes, uint32(slot))
		}
	}
	e.written = func(transport.Placed) error {
		mu.Lock()
		defer mu.Unlock()
		done += oneSidedAnswer
		post()
		return nil
	}
	if err := e.dial(); err != nil {
		return err
	}
	e.l.Start(e, transport.MaxSend)
	mu.Lock()
	post()
	mu.Unlock()
	e.l.Flush()
	return <-e.end
}

func runOneSidedRecv(r *role) error {
	e, err := openOneSided(r, oneSidedSlots*r.Bytes)
	if err != nil {
		return err
	}
	var n uint64
	e.written = func(w transport.Placed) error {
		slot := int(w.Imm)
		if slot != int(n%oneSidedSlots) || w.N != r.Bytes {
			return fmt.Errorf("write %d of %d bytes came to slot %d", n, w.N, slot)
		}
		if err := checkStamp(e.mem[slot*r.Bytes:(slot+1)*r.Bytes], r.Bytes, n); err != nil {
			return err
		}
		if n++; n%oneSidedAnswer == 0 {
			e.op = transport.Op{Kind: transport.OpWriteImm}
			e.l.Post(&e.op)
		}
		r.board.set(wordCount, n)
		return nil
	}
	return e.listen()
}

func runOneSidedPing(r *role) error {
	e, err := openOneSided(r, r.Bytes)
	if err != nil {
		return err
	}
	b := make([]byte, r.Bytes)
	var n uint64
	var begun time.Time
	e.written = func(transport.Placed) error {
		if err := checkStamp(e.mem, r.Bytes, n); err != nil {
			return err
		}
		r.board.record(time.Since(begun))
		n++
		r.board.set(wordCount, n)
		begun = time.Now()
		stamp(b, n)
		e.write(b, 0, 0)
		return nil
	}
	if err := e.dial(); err != nil {
		return err
	}
	begun = time.Now()
	stamp(b, 0)
	e.l.Start(e, transport.MaxSend)
	e.write(b, 0, 0)
	e.l.Flush()
	return <-e.end
}

func runOneSidedEcho(r *role) error {
	e, err := openOneSided(r, r.Bytes)
	if err != nil {
		return err
	}
	e.written = func(transport.Placed) error {
		e.write(e.mem, 0, 0)
		return nil
	}
	return e.listen()
}
