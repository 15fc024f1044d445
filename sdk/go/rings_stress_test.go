//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// stressPayload is a datagram that says who sent it, which one it is and that it
// is whole.
func stressPayload(rnd *rand.Rand, who uint16, number uint32, most int) []byte {
	n := 10
	switch rnd.IntN(4) {
	case 1:
		n += rnd.IntN(most)
	case 2:
		n += 54
	}
	p := make([]byte, n)
	for i := 10; i < n; i++ {
		p[i] = byte(rnd.Uint32())
	}
	binary.LittleEndian.PutUint16(p[4:], who)
	binary.LittleEndian.PutUint32(p[6:], number)
	binary.LittleEndian.PutUint32(p, crc32.ChecksumIEEE(p[4:]))
	return p
}

// producer sends count datagrams to each of dsts, by every way there is.
func produce(ctx context.Context, s *Socket, who uint16, dsts []netip.AddrPort, count int, most int) error {
	rnd := rand.New(rand.NewPCG(uint64(who), 7))
	next := make([]uint32, len(dsts))
	left := count * len(dsts)
	for left > 0 {
		k := rnd.IntN(len(dsts))
		if next[k] == uint32(count) {
			continue
		}
		var err error
		switch way := rnd.IntN(5); way {
		case 0:
			err = s.Send(ctx, dsts[k], stressPayload(rnd, who, next[k], most))
		case 1:
			err = s.TrySend(dsts[k], stressPayload(rnd, who, next[k], most))
			if noRoom(err) {
				continue
			}
		case 2:
			var sl *Slot
			p := stressPayload(rnd, who, next[k], most)
			if sl, err = s.Reserve(ctx, dsts[k], len(p)+rnd.IntN(100)); err == nil {
				if rnd.IntN(8) == 0 {
					sl.Abort()
					continue
				}
				copy(sl.Bytes(), p)
				_, err = sl.Commit(len(p))
				sl.Abort()
			}
		default:
			n := min(1+rnd.IntN(200), left)
			var ds []Datagram
			var of []int
			mixed := rnd.IntN(2) == 0
			was := append([]uint32(nil), next...)
			for range n {
				if mixed {
					k = rnd.IntN(len(dsts))
				}
				if next[k] == uint32(count) {
					continue
				}
				ds = append(ds, Datagram{Addr: dsts[k], Payload: stressPayload(rnd, who, next[k], most)})
				of = append(of, k)
				next[k]++
			}
			accepted := 0
			if way == 3 {
				accepted, err = s.SendBatch(ctx, ds)
			} else {
				accepted, err = s.TrySendBatch(ctx, ds)
				be, ok := errors.AsType[*BatchError](err)
				if ok {
					copy(next, was)
					bad := map[int]bool{}
					for _, e := range be.Errors {
						if !noRoom(e.Err) {
							return err
						}
						bad[e.Index] = true
					}
					refused := map[int]bool{}
					for i := range ds {
						if bad[i] {
							refused[of[i]] = true
						} else if refused[of[i]] {
							return fmt.Errorf("datagram %d was accepted behind a refused one to %v", i, ds[i].Addr)
						} else {
							next[of[i]]++
						}
					}
					err = nil
				}
			}
			left -= accepted
			if err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		next[k]++
		left--
	}
	return nil
}

// consumer counts what arrives and sees that each source's producers are in order.
// Several consumers of one socket share it.
type consumer struct {
	mu    sync.Mutex
	next  map[string]uint32 // guarded by mu
	got   int               // guarded by mu
	want  int
	one   bool // a single consumer: order can be checked
	tight bool // there are few slots
	done  context.CancelFunc
}

func (c *consumer) take(d *Datagram) error {
	p := d.Payload
	if len(p) < 10 || binary.LittleEndian.Uint32(p) != crc32.ChecksumIEEE(p[4:]) {
		return fmt.Errorf("from %v: %d bytes that are not whole", d.Addr, len(p))
	}
	key := fmt.Sprint(d.Addr, binary.LittleEndian.Uint16(p[4:]))
	number := binary.LittleEndian.Uint32(p[6:])
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.one && c.next[key] != number {
		return fmt.Errorf("%s: number %d, want %d", key, number, c.next[key])
	}
	c.next[key]++
	if c.got++; c.got == c.want {
		c.done()
	}
	return nil
}

func (c *consumer) consume(ctx context.Context, s *Socket, seed uint64) error {
	rnd := rand.New(rand.NewPCG(seed, 3))
	into := make([]Datagram, 64)
	var leases []Lease
	defer func() {
		for _, l := range leases {
			l.Release()
		}
	}()
	for {
		var n int
		var err error
		way := rnd.IntN(3)
		for way < 2 && c.tight && len(leases) > 0 { // Recv waits for what is borrowed
			leases[0].Release()
			leases = leases[1:]
		}
		switch way {
		case 0:
			into[0], err = s.Recv(ctx)
			n = 1
		case 1:
			n, err = s.RecvBatch(ctx, into[:1+rnd.IntN(len(into))])
		case 2:
			var l Lease
			n, l, err = s.Borrow(ctx, into[:1+rnd.IntN(len(into))])
			leases = append(leases, l)
		}
		if errors.Is(err, shm.ErrBorrowed) {
			for _, l := range leases {
				l.Release()
			}
			leases = leases[:0]
			continue
		}
		if err != nil {
			if errors.Is(err, rdserr.ErrCanceled) {
				return nil
			}
			return err
		}
		for i := range into[:n] {
			if err := c.take(&into[i]); err != nil {
				return err
			}
		}
		for len(leases) > 3 {
			i := rnd.IntN(len(leases))
			leases[i].Release()
			leases[i].Release()
			leases = append(leases[:i], leases[i+1:]...)
		}
	}
}

// Everything by every way, between sockets with room for little: whatever fills
// up, each datagram arrives once, whole, in the order of its flow.
func TestRingsStress(t *testing.T) {
	for name, c := range map[string]struct {
		spec             shm.Spec
		buffer, most     int
		readers, writers int
	}{
		"usual":        {shm.Spec{}, 1 << 20, 3000, 1, 2},
		"tiny rings":   {shm.Spec{Flows: 8, Sends: 4, Events: 4, Receives: 4, Releases: 8}, 1 << 20, 300, 1, 3},
		"tiny arenas":  {shm.Spec{SendArena: 64 << 10, RecvArena: 256 << 10}, 20000, 5000, 1, 2},
		"many readers": {shm.Spec{Receives: 16, Releases: 16}, 64 << 10, 500, 4, 4},
	} {
		t.Run(name, func(t *testing.T) {
			d := newRingDaemon(t)
			d.regions(c.spec)
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			count := 400
			var socks []*Socket
			var dsts []netip.AddrPort
			for i := range 3 {
				s := d.bindRing(portOf(i+1), WithSendBuffer(c.buffer), WithRecvBuffer(c.buffer), WithSpin(time.Duration(i)*20*time.Microsecond))
				socks = append(socks, s)
				dsts = append(dsts, s.LocalAddr())
			}
			var wg sync.WaitGroup
			for i, s := range socks {
				rctx, done := context.WithCancel(ctx)
				con := &consumer{next: map[string]uint32{}, want: len(socks) * c.writers * count, one: c.readers == 1, tight: c.spec != (shm.Spec{}), done: done}
				for k := range c.readers {
					wg.Go(func() {
						if err := con.consume(rctx, s, uint64(i*10+k)); err != nil {
							t.Errorf("socket %d: %v", i, err)
							cancel()
						}
						con.mu.Lock()
						defer con.mu.Unlock()
						if con.got != con.want {
							t.Errorf("socket %d: %d datagrams, want %d", i, con.got, con.want)
						}
					})
				}
				for k := range c.writers {
					wg.Go(func() {
						if err := produce(ctx, s, uint16(10*i+k), dsts, count, c.most); err != nil {
							t.Errorf("socket %d: %v", i, err)
							cancel()
						}
					})
				}
			}
			wg.Wait()
			for i, s := range socks {
				if err := s.Flush(ctx); err != nil {
					t.Errorf("socket %d: flush: %v", i, err)
				}
				r := s.fe.(*rings)
				for settled := false; !settled && ctx.Err() == nil; { // events may wait in the daemon
					r.txMu.Lock()
					r.takeEventsLocked(r.tx)
					settled = r.tx.send.Out() == 0
					r.txMu.Unlock()
				}
				r.txMu.Lock()
				if n, room := r.tx.send.Out(), r.tx.send.Room(); n != 0 || room != int(r.tx.region.SndBuf) {
					t.Errorf("socket %d: %d slots are still out, room for %d bytes of %d", i, n, room, r.tx.region.SndBuf)
				}
				r.txMu.Unlock()
				r.rxMu.Lock()
				if n := r.rx.recv.Out(); n != 0 {
					t.Errorf("socket %d: %d received slots are not released", i, n)
				}
				r.rxMu.Unlock()
			}
		})
	}
}
