package shm

import (
	"errors"
	"math/rand"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/wire"
)

// A client that writes anything anywhere at any time: the host is driven
// by a script of bytes, in which the client's good steps and its wild stores
// stand between the daemon's steps.

// guardedRegion is a region with memory on both sides that nobody may touch.
func guardedRegion(t testing.TB, s Spec) *Region {
	t.Helper()
	r := newRegion(t, s)
	const guard = 1 << 20
	n := uintptr(len(r.mem))
	p, err := unix.MmapPtr(-1, 0, nil, n+2*guard, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.MunmapPtr(p, n+2*guard) })
	at, err := unix.MmapPtr(-1, 0, unsafe.Add(p, guard), n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED)
	if err != nil {
		t.Fatal(err)
	}
	g := &Region{Header: r.Header, FD: -1, LendFD: -1, ownFD: -1, Inode: r.Inode, mem: unsafe.Slice((*byte)(at), n)}
	g.lay()
	return g
}

type hostileWorld struct {
	t     testing.TB
	r     *Region
	h     *Host
	m     *mate
	in    []byte
	posts []hostilePost // taken
	slots []uint64      // reserved
	dead  int           // times the host gave the client up
	wild  int           // wild stores
	done  int           // datagrams that had an outcome, placed or released
}

type hostilePost struct {
	id    uint32
	tag   uint64
	count int
}

func newHostileWorld(t testing.TB) *hostileWorld {
	s := smallSpec()
	s.SendArena, s.RecvArena = 1<<16, 1<<16
	w := &hostileWorld{t: t, r: guardedRegion(t, s)}
	w.restart()
	return w
}

// restart is another client in the same memory, whose rings begin anew.
func (w *hostileWorld) restart() {
	clear(w.r.mem[HeaderBytes : HeaderBytes+wordsBytes])
	w.h = NewHost(w.r, nil)
	w.m = &mate{t: w.t, r: w.r}
	w.posts, w.slots = w.posts[:0], w.slots[:0]
}

func (w *hostileWorld) byte() int {
	if len(w.in) == 0 {
		return 0
	}
	b := w.in[0]
	w.in = w.in[1:]
	return int(b)
}

func (w *hostileWorld) num(n int) int { return (w.byte()<<8 | w.byte()) % n }

// value is something to store: small, near a head, a word, anything.
func (w *hostileWorld) value() uint64 {
	v := uint64(w.byte())
	switch w.byte() % 8 {
	case 0:
		return v
	case 1:
		return w.h.sendHead + v%8
	case 2:
		return v * UnitBytes
	case 3:
		return uint64(MakeWord(int(v%5), w.num(1<<17), w.byte()))
	case 4:
		return -v
	case 5:
		return 1 << (v % 64)
	case 6:
		return w.h.recvPub - v%8
	}
	for range 7 {
		v = v<<8 | uint64(w.byte())
	}
	return v
}

func (w *hostileWorld) scribble() {
	var off uint64
	switch w.byte() % 8 {
	case 0, 1, 2: // a word of the protocol
		off = HeaderBytes + 128*uint64(w.byte()%12)
	case 3, 4: // the send ring
		off = w.r.SendOff + 8*uint64(w.num(int(w.r.Sends)*8))
	case 5: // the release ring
		off = w.r.ReleaseOff + 8*uint64(w.num(int(w.r.Releases)))
	case 6: // anything up to the arenas
		off = 8 * uint64(w.num(int(w.r.SendArenaOff)/8))
	default: // anything
		off = 8 * uint64(w.num(len(w.r.mem)/8))
	}
	w.wild++
	w.r.word64(off).Store(w.value())
}

// inside tests that b lies in the arena.
func (w *hostileWorld) inside(b, arena []byte, what string) {
	if len(b) == 0 {
		return
	}
	from := uintptr(unsafe.Pointer(&b[0])) - uintptr(unsafe.Pointer(&arena[0]))
	if from > uintptr(len(arena)) || uintptr(len(b)) > uintptr(len(arena))-from {
		w.t.Fatalf("%s outside the arena: %d bytes at %d", what, len(b), from)
	}
}

func (w *hostileWorld) step() {
	h, m := w.h, w.m
	var err error
	switch op := w.byte() % 24; op {
	case 0, 1, 2, 3, 4:
		w.scribble()
	case 5, 6, 7: // a good post
		kind := KindEach
		if op == 7 {
			kind = KindMixed
		}
		m.post(MakeWord(kind, 64, 1+w.byte()%2), SendDesc{Tag: 1, Slot: uint64(w.num(1000)) * 64}, nil)
	case 8: // a good reader
		w.read()
	case 9:
		m.eventHead = m.r.EventTail().Load()
		m.r.EventHead().Store(m.eventHead)
	case 10, 11, 12:
		var p Post
		var ok bool
		grow(h)
		if ok, err = h.Next(&p); ok {
			w.take(&p)
		}
	case 13, 14, 15: // an outcome
		if len(w.posts) > 0 {
			i := w.byte() % len(w.posts)
			p := &w.posts[i]
			n := 1 + w.num(p.count)
			h.Outcome(p.id, p.tag, n, uint8(1+w.byte()%4), 0, n == p.count)
			w.done += n
			p.tag += uint64(n)
			if p.count -= n; p.count == 0 {
				w.posts = append(w.posts[:i], w.posts[i+1:]...)
			}
		}
	case 16:
		if off, b, ok := h.Reserve(w.num(10000)); ok {
			w.inside(b, w.r.recvArena, "slot")
			clear(b)
			w.slots = append(w.slots, off)
		}
	case 17:
		if n := len(w.slots); n > 0 {
			if _, ok := h.Place(testDst, w.slots[n-1], wire.One(make([]byte, 64)), 0, 5); !ok {
				h.Unreserve(w.slots[n-1])
			}
			w.slots = w.slots[:n-1]
		}
	case 18, 19:
		if _, ok := h.PlaceCopy(testDst, wire.One(make([]byte, w.num(300))), 0, 5); ok {
			w.done++
		}
	case 20:
		_, _, _, err = h.Releases()
	case 21:
		h.Publish()
	case 22:
		if h.HasPosts(); h.Sleep() {
			h.Wake()
		}
		h.HasRoom()
		h.EachUnread(func(netip.AddrPort, int) bool { return true })
	case 23:
		h.FlowEntry(uint32(w.byte()))
		h.SetFlow(uint32(w.byte()), 1, FlowClear, 0)
		h.Changed(testDst, true)
		h.Freed(4)
	}
	if err == nil {
		err = h.Err()
	}
	if err != nil {
		if !errors.Is(err, unix.EBADMSG) {
			w.t.Fatalf("the daemon's own accounts are wrong: %v", err)
		}
		w.dead++
		w.restart()
	}
}

func (w *hostileWorld) take(p *Post) {
	w.inside(p.Body, w.r.sendArena, "body")
	for _, b := range p.Body {
		_ = b
	}
	if p.Open || p.Bad == nil && (p.Count < 1 || p.Count > MaxTrain) {
		w.h.Taken(p, MakeTarget(testDst), false)
		return
	}
	if p.Bad != nil {
		w.h.Taken(p, Target{}, false)
		w.h.Refused(p, 22)
		return
	}
	if len(p.Body) > MaxTrainBytes && p.Count > 1 || len(p.Body) > MaxDatagram {
		w.t.Fatalf("a post of %d bytes", len(p.Body))
	}
	id, _ := w.h.Taken(p, MakeTarget(testDst), true)
	w.posts = append(w.posts, hostilePost{id, p.Tag, p.Count})
}

func (w *hostileWorld) read() {
	m := w.m
	for tail := m.r.RecvTail().Load(); m.head != tail && tail-m.head <= uint64(m.r.Receives); m.head++ {
		var d RecvDesc
		m.r.GetRecv(m.head, &d)
		m.release(d.Slot)
	}
	m.r.RecvHead().Store(m.head)
}

// TestHostile writes a million wild words.
func TestHostile(t *testing.T) {
	words, end := 1_000_000, time.Now().Add(2*time.Second)
	if testing.Short() {
		words = 100_000
	}
	seed := rand.Int63()
	rnd := rand.New(rand.NewSource(seed))
	w := newHostileWorld(t)
	script := make([]byte, 1<<16)
	for w.wild < words && (w.wild < words/10 || time.Now().Before(end)) { // the race detector takes ten times as long
		rnd.Read(script)
		for w.in = script; len(w.in) > 0; {
			w.step()
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d wild words, %d clients given up, %d datagrams", w.wild, w.dead, w.done)
	if w.dead == 0 || w.done < w.wild/10 {
		t.Errorf("%d clients were given up, %d datagrams passed: the test tests nothing", w.dead, w.done)
	}
}

// TestHostileAtOnce: the same with another thread writing at the same time.
func TestHostileAtOnce(t *testing.T) {
	w := newHostileWorld(t)
	stop, stopped := make(chan struct{}), make(chan struct{})
	words := 0
	go func() {
		defer close(stopped)
		rnd := rand.New(rand.NewSource(1))
		for {
			select {
			case <-stop:
				return
			default:
			}
			for range 100 {
				off := 8 * uint64(rnd.Intn(int(w.r.SendArenaOff)/8))
				if rnd.Intn(2) == 0 {
					off = HeaderBytes + 128*uint64(rnd.Intn(12))
				}
				w.r.word64(off).Store(rnd.Uint64() >> rnd.Intn(64))
				words++
			}
		}
	}()
	rnd := rand.New(rand.NewSource(2))
	script := make([]byte, 1<<12)
	for range 60 {
		rnd.Read(script)
		for w.in = script; len(w.in) > 0; {
			w.step()
		}
	}
	close(stop)
	<-stopped
	t.Logf("%d words while the host ran, %d clients given up", words, w.dead)
}

func FuzzHost(f *testing.F) {
	rnd := rand.New(rand.NewSource(3))
	for _, n := range []int{10, 300, 3000} {
		b := make([]byte, n)
		rnd.Read(b)
		f.Add(b)
	}
	w := newHostileWorld(f)
	f.Fuzz(func(t *testing.T, script []byte) {
		clear(w.r.mem[HeaderBytes:w.r.SendArenaOff])
		clear(w.r.mem[w.r.DaemonOff:w.r.RecvArenaOff])
		w.t = t
		w.restart()
		for w.in = script[:min(len(script), 1<<14)]; len(w.in) > 0; {
			w.step()
		}
	})
}
