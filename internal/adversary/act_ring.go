package adversary

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/shm"
)

// ringActs post what no client posts.
var ringActs = []Act{
	{"ring/words", 3, ringWords},
	{"ring/scribble", 3, ringScribble},
	{"ring/bad-descriptors", 3, ringBadDescriptors},
	{"ring/unread-events", 2, ringUnreadEvents},
	{"ring/beyond", 2, ringBeyond},
	{"ring/empty-datagrams", 3, ringEmpties},
	{"ring/far-flows", 2, ringFarFlows},
	{"ring/append-race", 2, ringAppendRace},
	{"ring/big-to-nobody", 2, ringBigToNobody},
	{"ring/unread-peer", 2, ringUnreadPeer},
	{"ring/touch-everything", 1, ringTouch},
	{"ring/punch-holes", 2, ringHoles},
	{"ring/unmapped", 2, ringUnmapped},
	{"ring/untouched", 2, ringUntouched},
	{"ring/keep", 2, ringKeep},
	{"ring/crowd", 1, ringCrowd},
}

// somewhere is a destination: of the adversary's own, without a reader, without
// a node, or without a sense. No victim's port: what anybody may send there is
// the application's to bear.
func (s *Stage) somewhere(own ...netip.AddrPort) netip.AddrPort {
	switch n := s.IntN(10); {
	case n < 4 && len(own) > 0:
		return oneOf(s, own...)
	case n < 6:
		return netip.AddrPortFrom(oneOf(s, s.Daemon, s.Other), uint16(60000+s.IntN(5000)))
	case n < 7:
		return netip.AddrPortFrom(s.from(oneOf(s, s.Allowed, s.Larger)), uint16(s.Uint32()))
	case n < 8:
		return netip.AddrPortFrom(s.from(s.Stranger), uint16(s.Uint32()))
	case n < 9:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(s.Uint32())}), uint16(s.Uint32()))
	}
	return netip.AddrPortFrom(oneOf(s, s.Daemon, s.Other, netip.IPv6LinkLocalAllNodes(), netip.AddrFrom4([4]byte{255, 255, 255, 255})), uint16(s.IntN(3)))
}

// lie is a number near v, near the size of a ring, or any.
func (s *Stage) lie(v uint64) uint64 {
	switch s.IntN(6) {
	case 0:
		return s.Uint64()
	case 1:
		return v + uint64(s.IntN(8)) - 4
	case 2:
		return v + 1<<s.IntN(20)
	case 3:
		return v - 1<<s.IntN(20)
	case 4:
		return math.MaxUint64 - uint64(s.IntN(2))
	}
	return 0
}

// ringWords stores lies in every shared word. Most end the socket, so it binds
// again and again.
func ringWords(s *Stage) error {
	for !s.Over() {
		r, err := s.BindRing(0, 0)
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		for range 1 + s.IntN(30) {
			w := r.Word(s.IntN(Words))
			w.Store(s.lie(w.Load()))
			if s.IntN(3) == 0 {
				r.Ring()
			}
			if s.IntN(4) == 0 {
				s.Hold(time.Millisecond)
			}
		}
		r.Ring()
		s.Hold(5 * time.Millisecond)
		r.Close()
	}
	return nil
}

// ringScribble writes random bytes over tables, rings and arenas while honest
// descriptors are posted.
func ringScribble(s *Stage) error {
	r, err := s.BindRing(0, 64<<10)
	if err != nil {
		return nil
	}
	r.Flow(0, 1, netip.AddrPortFrom(s.Other, 65000))
	r.Flow(1, 1, r.Local)
	for n := uint64(0); !s.Over() && r.Reg.Closed().Load() == 0; n++ {
		r.PostIf(shm.MakeWord(shm.KindEach, 64, 1), shm.SendDesc{Tag: n, Flow: uint32(n & 1), Gen: 1, Cookie: uint32(n)})
		r.Ring()
		// Behind the words: with them the socket would be closed at once.
		at := 2*shm.HeaderBytes + s.IntN(len(r.Mem)-2*shm.HeaderBytes-256)
		if s.IntN(2) == 0 {
			at = 2*shm.HeaderBytes + s.IntN(int(r.Reg.SendArenaOff)-2*shm.HeaderBytes)
		}
		s.noise(r.Mem[at : at+8<<s.IntN(6)])
		if s.IntN(64) == 0 {
			s.Hold(time.Millisecond)
		}
		r.Events()
		r.Receives()
	}
	return nil
}

// ringBadDescriptors posts descriptors that are wrong in one thing each.
func ringBadDescriptors(s *Stage) error {
	for !s.Over() {
		r, err := s.BindRing(0, 0)
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		for i := range uint32(8) {
			r.Flow(i, 1, s.somewhere(r.Local))
		}
		for n := range uint64(1 + s.IntN(200)) {
			w := shm.MakeWord(shm.KindEach, 64, 1)
			d := shm.SendDesc{Tag: n, Flow: uint32(s.IntN(8)), Gen: 1, Cookie: uint32(n)}
			switch s.IntN(12) {
			case 0:
				w = shm.Word(s.Uint64())
			case 1:
				w = shm.MakeWord(s.IntN(16), s.IntN(1<<21), s.IntN(5000))
			case 2:
				d.Slot = s.lie(r.Reg.SendArenaBytes)
			case 3:
				d.Flow = s.Uint32()
			case 4:
				d.Gen = s.Uint32()
			case 5:
				d.Flags = s.Uint32()
			case 6: // a table with lengths that do not add up
				w = shm.MakeWord(shm.KindTable, 4*100+s.IntN(1000), 100)
				if s.noise(r.Reg.SendArena()[:400]); s.IntN(2) == 0 {
					// The same with the table before the slot, or before the arena.
					w, d.Slot = shm.MakeWord(shm.KindMixed, s.IntN(1000), s.IntN(110)), 448
				}
			case 7:
				d.Cookie, d.Tag = 7, math.MaxUint64
			case 8:
				w |= shm.WordClaimed
			case 9:
				r.Flow(uint32(s.IntN(8)), 2*s.Uint32()+1, s.somewhere(r.Local))
			}
			if !r.PostIf(w, d) || r.Reg.Closed().Load() != 0 {
				break
			}
			r.Ring()
		}
		s.Hold(3 * time.Millisecond)
		r.Close()
	}
	return nil
}

// ringUnreadEvents sends as fast as it can and reads no event.
func ringUnreadEvents(s *Stage) error {
	r, err := s.BindRing(0, 0)
	if err != nil {
		return nil
	}
	for i := range uint32(16) {
		r.Flow(i, 1, s.somewhere(r.Local))
	}
	for n := uint64(0); !s.Over() && r.Reg.Closed().Load() == 0; n++ {
		if !r.PostIf(shm.MakeWord(shm.KindEach, s.IntN(4)*64, 1), shm.SendDesc{Tag: n, Flow: uint32(s.IntN(16)), Gen: 1, Cookie: uint32(n)}) {
			r.Ring()
			s.Hold(2 * time.Millisecond)
		}
	}
	return nil
}

// ringBeyond moves the tail past what the ring holds, and claims what it posts.
func ringBeyond(s *Stage) error {
	for !s.Over() {
		r, err := s.BindRing(0, 0)
		if err != nil {
			s.Pause(20 * time.Millisecond)
			continue
		}
		r.Flow(0, 1, s.somewhere(r.Local))
		// 4,096 empty datagrams in each descriptor: 4 million are announced.
		for n := range uint64(r.Reg.Sends) {
			r.Post(shm.MakeWord(shm.KindEach, 0, shm.MaxTrain), shm.SendDesc{Tag: n * shm.MaxTrain, Gen: 1, Cookie: uint32(n)})
		}
		r.Ring()
		s.Hold(20 * time.Millisecond)
		if s.IntN(2) == 0 {
			r.Reg.SendTail().Add(1 + s.Uint64N(1<<s.IntN(40)))
			r.Ring()
			s.Hold(5 * time.Millisecond)
		}
		r.Close()
	}
	return nil
}

// ringEmpties sends millions of datagrams without a byte.
func ringEmpties(s *Stage) error {
	r, err := s.BindRing(0, 0)
	if err != nil {
		return nil
	}
	other, err := s.BindRing(0, 4<<10) // a client that does not read
	if err != nil {
		return nil
	}
	r.Flow(0, 1, netip.AddrPortFrom(s.Other, 65001))
	r.Flow(1, 1, other.Local)
	r.Flow(2, 1, netip.AddrPortFrom(s.from(s.Allowed), 5))
	for n := uint64(0); !s.Over() && r.Reg.Closed().Load() == 0; n++ {
		if !r.PostIf(shm.MakeWord(shm.KindEach, 0, shm.MaxTrain), shm.SendDesc{Tag: n << 12, Flow: uint32(s.IntN(3)), Gen: 1, Cookie: uint32(n)}) {
			r.Ring()
			r.Events()
			s.Pause(time.Millisecond)
		}
	}
	return nil
}

// ringFarFlows names as many peers as it can.
func ringFarFlows(s *Stage) error {
	r, err := s.BindRing(0, 0)
	if err != nil {
		return nil
	}
	for n := uint64(0); !s.Over() && r.Reg.Closed().Load() == 0; n++ {
		i := uint32(n) % r.Reg.Flows
		gen := uint32(2*(n/uint64(r.Reg.Flows)) + 1)
		b := s.Uint32()
		dst := netip.AddrFrom4([4]byte{127, byte(100 + b%100), byte(b >> 8), byte(b >> 16)})
		r.Flow(i, gen, netip.AddrPortFrom(dst, uint16(1+s.IntN(60000))))
		w := shm.MakeWord(shm.KindOpen, 0, 1)
		if s.IntN(3) == 0 {
			w = shm.MakeWord(shm.KindEach, 64, 1)
		}
		if !r.PostIf(w, shm.SendDesc{Tag: n, Flow: i, Gen: gen, Cookie: uint32(n)}) || n%256 == 0 {
			r.Ring()
			r.Events()
			s.Pause(time.Millisecond)
		}
	}
	return nil
}

// ringAppendRace makes descriptors longer while the daemon claims them, and
// shorter, and changes what they point to.
func ringAppendRace(s *Stage) error {
	r, err := s.BindRing(0, 0)
	if err != nil {
		return nil
	}
	r.Flow(0, 1, r.Local)
	r.Flow(1, 1, netip.AddrPortFrom(s.Other, 65002))
	for n := uint64(0); !s.Over() && r.Reg.Closed().Load() == 0; n++ {
		at := r.sent
		if !r.PostIf(shm.MakeWord(shm.KindEach, 64, 1), shm.SendDesc{Tag: n, Flow: uint32(n & 1), Gen: 1, Cookie: uint32(n)}) {
			r.Events()
			for _, d := range r.Receives() {
				r.Release(d.Slot)
			}
			r.Ring()
			s.Pause(200 * time.Microsecond)
			continue
		}
		r.Ring()
		for i := range 1 + s.IntN(20) {
			r.Reg.SendWord(at).Store(uint64(shm.MakeWord(shm.KindEach, 64*(1+i), 1+i)) | s.Uint64()&uint64(shm.WordNoAppend))
		}
	}
	return nil
}

// ringBigToNobody keeps the send buffer full of datagrams that cannot leave.
func ringBigToNobody(s *Stage) error {
	var list []*Ring
	for range 4 {
		if r, err := s.BindRing(0, 8<<20); err == nil {
			r.Flow(0, 1, netip.AddrPortFrom(s.from(s.Allowed), 9))
			r.Flow(1, 1, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 99, 0, 1}), 9))
			list = append(list, r)
		}
	}
	for n := uint64(0); !s.Over() && len(list) > 0; n++ {
		r := list[n%uint64(len(list))]
		if !r.PostIf(shm.MakeWord(shm.KindEach, 1<<20, 1), shm.SendDesc{Tag: n, Flow: uint32(s.IntN(2)), Gen: 1, Cookie: uint32(n)}) || r.Reg.Closed().Load() != 0 {
			r.Ring()
			s.Pause(2 * time.Millisecond)
		}
		r.Ring()
	}
	return nil
}

// ringUnreadPeer sends to sockets of its own that never read.
func ringUnreadPeer(s *Stage) error {
	var to []netip.AddrPort
	for range 8 {
		if r, err := s.BindRing(0, 256<<10); err == nil {
			to = append(to, r.Local)
		}
	}
	r, err := s.BindRing(0, 1<<20)
	if err != nil || len(to) == 0 {
		return nil
	}
	for i, a := range to {
		r.Flow(uint32(i), 1, a)
	}
	for n := uint64(0); !s.Over() && r.Reg.Closed().Load() == 0; n++ {
		if !r.PostIf(shm.MakeWord(shm.KindEach, 1<<s.IntN(16), 1), shm.SendDesc{Tag: n, Flow: uint32(s.IntN(len(to))), Gen: 1, Cookie: uint32(n)}) {
			r.Ring()
			r.Events()
			s.Pause(time.Millisecond)
		}
	}
	return nil
}

// ringTouch writes every byte of its regions, and has the daemon read as much.
func ringTouch(s *Stage) error {
	for range 4 {
		r, err := s.BindRing(0, 4<<20)
		if err != nil || s.Over() {
			return nil
		}
		for at := 2 * shm.HeaderBytes; at < len(r.Mem) && !s.Over(); at += 4096 {
			if arena := int(r.Reg.SendArenaOff); at >= arena {
				r.Mem[at] = 1
			}
		}
		r.Flow(0, 1, netip.AddrPortFrom(s.Other, 65003))
		for n := range uint64(64) {
			r.PostIf(shm.MakeWord(shm.KindEach, 64<<10, 1), shm.SendDesc{Tag: n, Slot: n << 16 % r.Reg.SendArenaBytes, Gen: 1, Cookie: uint32(n)})
		}
		r.Ring()
	}
	s.Hold(200 * time.Millisecond)
	return nil
}

// ringHoles takes pages of its region away, again and again and by several threads,
// from when it has the region: the daemon must not touch it before nobody can.
func ringHoles(s *Stage) error {
	p, err := s.DialPackets()
	if err != nil {
		return nil
	}
	r, err := s.region(p, s.ringBind(0, 1<<20))
	if err != nil {
		return nil
	}
	var bound atomic.Bool
	var late atomic.Int64
	for range 4 {
		s.Go(func() {
			for !s.Over() {
				was := bound.Load()
				err := unix.Madvise(r.Mem[2*shm.HeaderBytes:], unix.MADV_REMOVE)
				if err == nil && was {
					late.Add(1)
				}
				if err != nil {
					return
				}
			}
		})
	}
	s.Pause(time.Duration(s.IntN(50)) * time.Millisecond)
	if r.mapped() != nil {
		return nil
	}
	bound.Store(true)
	for n := uint64(0); !s.Over() && r.Reg.Closed().Load() == 0 && n < 2000; n++ {
		r.Flow(0, 1, r.Local)
		r.PostIf(shm.MakeWord(shm.KindEach, 16<<10, 1), shm.SendDesc{Tag: n, Gen: 1, Cookie: uint32(n)})
		r.Ring()
		if unix.Madvise(r.Mem[2*shm.HeaderBytes:], unix.MADV_REMOVE) == nil ||
			unix.Fallocate(r.Region, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 0, 1<<20) == nil || r.punchDaemons() {
			late.Add(1)
		}
		r.Events()
		for _, d := range r.Receives() {
			r.Release(d.Slot)
		}
	}
	if n := late.Load(); n > 0 {
		return fmt.Errorf("%d times a hole was punched into the region of a bound socket", n)
	}
	return nil
}

// punchDaemons tries to take pages of the daemon's part away, and reports whether it could.
func (r *Ring) punchDaemons() bool {
	const how = unix.FALLOC_FL_KEEP_SIZE | unix.FALLOC_FL_PUNCH_HOLE
	if unix.Fallocate(r.Daemon, how, 0, 1<<20) == nil {
		return true
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", r.Daemon), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return os.Geteuid() != 0 && unix.Fallocate(fd, how, 0, 1<<20) == nil
}

// ringUntouched posts, describes and releases what it has never touched: the daemon would
// have to pay for these pages.
func ringUntouched(s *Stage) error {
	for !s.Over() {
		r, err := s.BindRing(0, oneOf(s, 0, 4<<20))
		if err != nil {
			return nil
		}
		arena := r.Reg.SendArenaBytes
		for n := uint64(0); !s.Over() && r.Reg.Closed().Load() == 0 && n < 64; n++ {
			d := shm.SendDesc{Tag: n, Gen: 1, Cookie: uint32(n), Slot: s.Uint64() % arena &^ 63, Flow: uint32(s.IntN(int(r.Reg.Flows)))}
			size := min(int(arena-d.Slot), oneOf(s, 1, 64<<10, 1<<20))
			switch s.IntN(8) {
			case 0:
				r.Reg.ReleaseTail().Add(uint64(1 + s.IntN(64)))
			case 1:
				r.Reg.SendTail().Add(uint64(1 + s.IntN(64)))
				r.sent = r.Reg.SendTail().Load()
			case 2:
				r.Flow(d.Flow, 1, r.Local)
				r.put(shm.MakeWord(shm.KindEach, size, 1), d)
			case 3:
				r.put(shm.MakeWord(shm.KindOpen, 0, 0), d)
			default:
				d.Flow = 0
				r.Flow(0, 1, r.Local)
				r.Post(shm.MakeWord(shm.KindEach, size, 1), d) // as it ought to be
			}
			r.Ring()
			if s.IntN(4) == 0 {
				s.Pause(time.Millisecond)
			}
			r.Events()
			for _, d := range r.Receives() {
				r.Release(d.Slot)
			}
		}
		r.Close()
	}
	return nil
}

// ringKeep has the daemon fill its regions, closes the sockets and keeps what it has mapped.
func ringKeep(s *Stage) error {
	for n := 0; !s.Over() && n < 200; n++ {
		r, err := s.BindRing(0, oneOf(s, 1<<20, 16<<20))
		if err != nil {
			s.Pause(5 * time.Millisecond)
			continue
		}
		r.Flow(0, 1, r.Local)
		for k := range uint64(32) {
			r.PostIf(shm.MakeWord(shm.KindEach, 1<<20, 1), shm.SendDesc{Tag: k, Gen: 1, Cookie: uint32(k)})
		}
		r.Ring()
		s.Pause(time.Duration(s.IntN(20)) * time.Millisecond)
		if s.IntN(2) == 0 { // and touches what is free
			for at := uint64(0); at < r.Reg.RecvArenaBytes && !s.Over(); at += 4096 {
				atomic.LoadUint32((*uint32)(unsafe.Pointer(&r.Reg.RecvArena()[at])))
			}
		}
		r.Close()
	}
	return nil
}

// ringUnmapped takes regions and does not say that it has mapped them, or seals
// them before, so that the daemon cannot.
func ringUnmapped(s *Stage) error {
	var kept []*Ring
	for !s.Over() && len(kept) < 100 {
		p, err := s.DialPackets()
		if err != nil {
			return nil
		}
		r, err := s.region(p, s.ringBind(0, 0))
		if err != nil {
			return nil
		}
		switch s.IntN(4) {
		case 0:
			unix.FcntlInt(uintptr(r.Region), unix.F_ADD_SEALS, unix.F_SEAL_SEAL)
			if r.mapped() == nil {
				return errors.New("a socket was bound whose region its client had sealed")
			}
		case 1:
			if r.Say(bindMessage(s.ringBind(0, 0))) == nil {
				if m, _, err := r.Hear(); err == nil && m.HasBound() {
					return errors.New("a second Bind was taken for the news that the region is mapped")
				}
			}
		default:
			kept = append(kept, r)
		}
	}
	for !s.Over() && len(kept) > 0 {
		s.Pause(10 * time.Millisecond)
		i := s.IntN(len(kept))
		if s.IntN(2) == 0 {
			kept[i].Close()
		} else if kept[i].mapped() == nil {
			kept[i].Ring()
		}
		kept = slices.Delete(kept, i, i+1)
	}
	return nil
}

// ringCrowd has a hundred sockets that send to each other and take what comes, as fast
// as the daemon copies: what it is asked for costs no more than a word of a ring.
func ringCrowd(s *Stage) error {
	var crowd []*Ring
	for range 100 {
		r, err := s.BindRing(0, 1<<20)
		if err != nil {
			break
		}
		crowd = append(crowd, r)
	}
	bytes := oneOf(s, 64, 4<<10, 64<<10)
	for i, r := range crowd {
		r.Flow(0, 1, crowd[(i+1)%len(crowd)].Local)
	}
	for n := uint64(0); !s.Over() && len(crowd) > 0; n++ {
		for _, r := range crowd {
			for range 64 {
				if !r.PostIf(shm.MakeWord(shm.KindEach, bytes, 1), shm.SendDesc{Tag: n, Gen: 1, Cookie: uint32(n)}) {
					break
				}
			}
			r.Events()
			for _, d := range r.Receives() {
				r.Release(d.Slot)
			}
			r.Ring()
		}
		s.Pause(time.Millisecond) // the daemon has more to do than it can: its own time is what this is about
	}
	return nil
}
