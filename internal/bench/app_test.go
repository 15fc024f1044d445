package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"runtime"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// Applications of rdsd, with sdk/go.

var (
	roleSend     = register("application that sends", runSend)
	roleRecv     = register("application that receives", runRecv)
	roleSendFrom = register("application that sends from many sockets", runSendFrom)
	roleSpread   = register("application that sends to many", runSpread)
	roleRDSDPing = register("application that pings", runRDSDPing)
	roleRDSDEcho = register("application that answers", runRDSDEcho)
)

// buffer is the send and receive buffer of a socket. Over rings it is about what
// the relay has between its source and the far daemon, its ring and TCP's buffers:
// a datagram's room is free again when it is acknowledged, not when TCP has it. More
// does not stay in the cache: with 4 MiB, 1 KiB and 64 KiB datagrams lose more
// than half of their rate. Over gRPC it is the other way round: every turn there
// is long.
func (r *role) buffer() int {
	switch {
	case r.Buffer > 0:
		return r.Buffer
	case r.FrontEnd == "grpc":
		return max(4<<20, 8*r.Bytes)
	}
	return max(512<<10, ringSize(r.Bytes))
}

// bind opens a socket at local, over the front end the harness asked for.
func (r *role) bind(local netip.AddrPort) (*rdsd.Socket, error) {
	front := rdsd.Rings
	switch r.FrontEnd {
	case "grpc":
		front = rdsd.GRPC
	case "auto":
		front = rdsd.Auto
	}
	c, err := rdsd.Dial(r.Target, rdsd.WithFrontEnd(front))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	n := r.buffer()
	return c.Bind(ctx, local, rdsd.WithSendBuffer(n), rdsd.WithRecvBuffer(n))
}

func (r *role) bindLocal() (*rdsd.Socket, error) { return r.bind(netip.MustParseAddrPort(r.Local)) }

func (r *role) dst(i int) netip.AddrPort { return netip.MustParseAddrPort(r.Dst[i]) }

// numbers of datagrams: the sender in the upper 16 bits.
const senderShift = 48

func runSend(r *role) error {
	s, err := r.bindLocal()
	if err != nil {
		return err
	}
	failed := make(chan error, r.Senders)
	for i := r.Sender; i < r.Sender+r.Senders; i++ {
		go func() { // ends with the process, or with an error
			runtime.LockOSThread()
			if r.Calls == "one" {
				failed <- r.sendOnes(s, uint64(i)<<senderShift)
				return
			}
			if r.Calls == "" && r.FrontEnd != "grpc" && r.Bytes >= 16<<10 {
				failed <- r.sendInPlace(s, uint64(i)<<senderShift)
				return
			}
			if r.FrontEnd == "grpc" {
				runtime.UnlockOSThread()
			}
			failed <- r.sendBatches(s, uint64(i)<<senderShift)
		}()
	}
	return <-failed
}

// runSendFrom sends a batch from each of many sockets in turn.
func runSendFrom(r *role) error {
	ctx := context.Background()
	socks, next := make([]*rdsd.Socket, r.Sockets), make([]uint64, r.Sockets)
	for i := range socks {
		var err error
		if socks[i], err = r.bindLocal(); err != nil {
			return err
		}
		next[i] = uint64(i) << senderShift
	}
	ds := r.datagrams(r.dst(0))
	for {
		for i, s := range socks {
			for k := range ds {
				stamp(ds[k].Payload, next[i])
				next[i]++
			}
			if _, err := s.SendBatch(ctx, ds); err != nil {
				return err
			}
		}
	}
}

// sendOnes makes the call that people write first.
func (r *role) sendOnes(s *rdsd.Socket, seq uint64) error {
	ctx, dst, p := context.Background(), r.dst(0), make([]byte, r.Bytes)
	lengths := r.lengths()
	for ; ; seq++ {
		p := p[:lengths[seq%uint64(len(lengths))]]
		stamp(p, seq)
		if err := s.Send(ctx, dst, p); err != nil {
			return err
		}
	}
}

// lengths are those of payloads, one after the other and round again: drawn, the same at both ends,
// or one.
func (r *role) lengths() []int {
	if !r.Mixed {
		return []int{r.Bytes}
	}
	draw, l := rand.New(rand.NewSource(1)), make([]int, 4096)
	for i := range l {
		l[i] = r.Bytes/16 + draw.Intn(r.Bytes-r.Bytes/16+1)
	}
	return l
}

func (r *role) sendBatches(s *rdsd.Socket, seq uint64) error {
	ctx := context.Background()
	ds := r.datagrams(r.dst(0))
	for {
		for i := range ds {
			stamp(ds[i].Payload, seq)
			seq++
		}
		if _, err := s.SendBatch(ctx, ds); err != nil {
			return err
		}
	}
}

// datagrams is a batch whose payloads lie together.
func (r *role) datagrams(dst netip.AddrPort) []rdsd.Datagram {
	ds := make([]rdsd.Datagram, r.Batch)
	mem := make([]byte, r.Batch*r.Bytes)
	for i := range ds {
		ds[i] = rdsd.Datagram{Addr: dst, Payload: mem[i*r.Bytes : (i+1)*r.Bytes : (i+1)*r.Bytes]}
	}
	return ds
}

// sendInPlace copies each payload into the send buffer itself, as the relay's
// source does with its ring.
func (r *role) sendInPlace(s *rdsd.Socket, seq uint64) error {
	ctx, dst := context.Background(), r.dst(0)
	payload := make([]byte, r.Bytes)
	for {
		slot, err := s.Reserve(ctx, dst, r.Bytes)
		if err != nil {
			return err
		}
		b := slot.Bytes()
		copy(b, payload)
		stamp(b, seq)
		seq++
		if _, err := slot.Commit(r.Bytes); err != nil {
			return err
		}
	}
}

// runSpread sends batches to all destinations in turn. One that is congested is
// left out for a while; only for room in the send buffer it waits.
func runSpread(r *role) error {
	s, err := r.bindLocal()
	if err != nil {
		return err
	}
	ctx := context.Background()
	b := r.datagrams(r.dst(0))
	for _, d := range b {
		stamp(d.Payload, 0)
	}
	dst := make([]netip.AddrPort, len(r.Dst))
	until := make([]int, len(r.Dst)) // round from which on it is tried again
	for i := range dst {
		dst[i] = r.dst(i)
	}
	for round := 0; ; round++ {
		if r.Stopped && round > 0 {
			select {} // until the harness ends this process
		}
		for i := range dst {
			if round < until[i] {
				continue
			}
			for k := range b {
				b[k].Addr = dst[i]
			}
			n, err := s.TrySendBatch(ctx, b)
			switch {
			case err == nil:
			case errors.Is(err, rdserr.ErrCongested):
				until[i] = round + 64
			case !errors.Is(err, rdserr.ErrWouldBlock):
				return err
			case i > 0 || len(dst) == 1: // the first one may never be read again
				if _, err := s.SendBatch(ctx, b[n:]); err != nil {
					return err
				}
			}
		}
	}
}

func runRecv(r *role) error {
	first := netip.MustParseAddrPort(r.Local)
	failed := make(chan error, r.Sockets)
	counts := make([]uint64, r.Sockets*lineBytes/8)
	var socks []*rdsd.Socket
	for i := range r.Sockets {
		s, err := r.bind(netip.AddrPortFrom(first.Addr(), first.Port()+uint16(i)))
		if err != nil {
			return err
		}
		socks = append(socks, s)
	}
	r.board.set(wordReady, 1)
	for i, s := range socks {
		if i == 0 && r.Stopped {
			continue
		}
		go func() { failed <- r.receive(s, i, &counts[i*lineBytes/8]) }() // ends with the process, or with an error
	}
	return <-failed
}

// receive reads one socket for ever. Of one sender, datagrams come in order.
func (r *role) receive(s *rdsd.Socket, i int, count *uint64) error {
	if r.Sockets == 1 && r.FrontEnd != "grpc" {
		runtime.LockOSThread()
	}
	ctx := context.Background()
	into := make([]rdsd.Datagram, 1024)
	var lease rdsd.Lease
	take := func() (n int, err error) {
		n, lease, err = s.Borrow(ctx, into)
		return n, err
	}
	switch r.Calls {
	case "one":
		take = func() (n int, err error) {
			into[0], err = s.Recv(ctx)
			return 1, err
		}
	case "batch":
		into = into[:r.Batch]
		take = func() (n int, err error) { return s.RecvBatch(ctx, into) }
	}
	var next [1 << 10]uint64
	lengths := r.lengths()
	for {
		n, err := take()
		if err != nil {
			return err
		}
		for _, d := range into[:n] {
			if r.Sockets > 1 || r.Unsigned {
				continue
			}
			size := r.Bytes
			if r.Mixed { // of one sender, whose numbers begin at 0
				size = lengths[next[0]%uint64(len(lengths))]
			}
			seq, err := readStamp(d.Payload, size)
			if err != nil {
				return err
			}
			sender := seq >> senderShift & (1<<10 - 1)
			if got := seq & (1<<senderShift - 1); got != next[sender] {
				return fmt.Errorf("datagram %d of sender %d after %d", got, sender, next[sender])
			}
			next[sender]++
		}
		lease.Release()
		*count += uint64(n)
		switch {
		case r.Sockets == 1:
			r.board.set(wordCount, *count)
		case i > 0:
			r.board.add(wordOthers, uint64(n))
		}
	}
}

func runRDSDPing(r *role) error {
	s, err := r.bindLocal()
	if err != nil {
		return err
	}
	if err := r.lockThread(); err != nil {
		return err
	}
	ctx, dst := context.Background(), r.dst(0)
	p := make([]byte, r.Bytes)
	var into [1]rdsd.Datagram
	for seq := uint64(0); ; seq++ {
		begun := time.Now()
		stamp(p, seq)
		if err := s.Send(ctx, dst, p); err != nil {
			return err
		}
		_, lease, err := s.Borrow(ctx, into[:])
		if err != nil {
			return err
		}
		if err := checkStamp(into[0].Payload, r.Bytes, seq); err != nil {
			return err
		}
		lease.Release()
		r.board.record(time.Since(begun))
		r.board.set(wordCount, seq+1)
		if r.Pause > 0 {
			time.Sleep(r.Pause)
		}
	}
}

func runRDSDEcho(r *role) error {
	s, err := r.bindLocal()
	if err != nil {
		return err
	}
	if err := r.lockThread(); err != nil {
		return err
	}
	r.board.set(wordReady, 1)
	ctx := context.Background()
	var into [1]rdsd.Datagram
	for {
		_, lease, err := s.Borrow(ctx, into[:])
		if err != nil {
			return err
		}
		if err := s.Send(ctx, into[0].Addr, into[0].Payload); err != nil {
			return err
		}
		lease.Release()
	}
}
