package shm

import (
	"encoding/binary"
	"math/rand"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pairEnds is a pair with its three ends mapped.
type pairEnds struct {
	daemon, out, in *Pair
	s               *PairSender
	r               *PairReceiver
}

func newPaired(t testing.TB, bytes int) *pairEnds {
	t.Helper()
	d, err := CreatePair(7, bytes)
	if err != nil {
		t.Fatal(err)
	}
	e := &pairEnds{daemon: d}
	if e.out, err = OpenPair(d.WordsFD, d.DataFD, uint64(bytes), PairSends); err != nil {
		t.Fatal(err)
	}
	if e.in, err = OpenPair(d.WordsFD, d.ReadFD, uint64(bytes), PairReads); err != nil {
		t.Fatal(err)
	}
	if err := d.Seal(); err != nil {
		t.Fatal(err)
	}
	if !e.out.Sealed(7) || !e.in.Sealed(7) || e.in.Sealed(8) {
		t.Fatal("the header of a pair is not that of the pair")
	}
	e.s, e.r = NewPairSender(e.out), NewPairReceiver(e.in)
	t.Cleanup(func() {
		e.out.Close()
		e.in.Close()
		d.Lent()
		d.Close()
		d.Disown()
	})
	return e
}

// TestPairIsSealed tells what a client can do with the memory once both have mapped it.
func TestPairIsSealed(t *testing.T) {
	d, err := CreatePair(1, MinPairBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Disown()
	defer d.Close()
	defer d.Lent()
	if _, err := unix.Mmap(d.ReadFD, 0, MinPairBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != unix.EACCES {
		t.Errorf("the reader's descriptor of the data maps to write: %v", err)
	}
	if err := d.Seal(); err != nil {
		t.Fatal(err)
	}
	for _, fd := range []int{d.WordsFD, d.DataFD} {
		if err := unix.Ftruncate(fd, 4096); err != unix.EPERM {
			t.Errorf("a pair shrinks: %v", err)
		}
		if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096); err != unix.EPERM {
			t.Errorf("a hole in a pair that is sealed: %v", err)
		}
		if _, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != unix.EPERM {
			t.Errorf("a pair that is sealed maps to write: %v", err)
		}
	}
}

func TestPairNotOpened(t *testing.T) {
	d, err := CreatePair(1, MinPairBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Disown()
	defer d.Close()
	defer d.Lent()
	loose, err := unix.MemfdCreate("loose", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err == nil {
		err = unix.Ftruncate(loose, MinPairBytes)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(loose)
	for what, open := range map[string]func() (*Pair, error){
		"with another size":                      func() (*Pair, error) { return OpenPair(d.WordsFD, d.DataFD, 2*MinPairBytes, PairSends) },
		"with a size that is no power of two":    func() (*Pair, error) { return OpenPair(d.WordsFD, d.DataFD, MinPairBytes+8, PairSends) },
		"with a size that nobody offers":         func() (*Pair, error) { return OpenPair(d.WordsFD, d.DataFD, 1<<40, PairSends) },
		"whose data can be cut off":              func() (*Pair, error) { return OpenPair(d.WordsFD, loose, MinPairBytes, PairSends) },
		"whose descriptors are in another order": func() (*Pair, error) { return OpenPair(d.DataFD, d.WordsFD, MinPairBytes*2, PairSends) },
	} {
		if p, err := open(); err == nil {
			p.Close()
			t.Errorf("a pair %s was opened", what)
		} else if !Bad(err) {
			t.Errorf("a pair %s: %v, not EBADMSG", what, err)
		}
	}
}

// TestPairModel does random things at both ends and compares with a list.
func TestPairModel(t *testing.T) {
	for seed := range int64(20) {
		rng := rand.New(rand.NewSource(seed))
		e := newPaired(t, MinPairBytes)
		type train struct {
			mark    uint64
			n, each int
			first   byte
		}
		var list []train // in the pair, by the model
		var mark, taken uint64
		var sent, read uint64
		next := byte(0)
		closed := false
		for step := range 20000 {
			switch k := rng.Intn(100); {
			case k < 3:
				mark += uint64(rng.Intn(3))
				e.daemon.SetMark(mark)
			case k < 6:
				taken = min(taken+uint64(rng.Intn(3)), mark)
			case k < 50:
				n, each := 1+rng.Intn(4), rng.Intn(200)
				if rng.Intn(50) == 0 {
					n, each = 1, rng.Intn(e.s.Most()+1)
				}
				b := e.s.Begin(n * each)
				if b == nil {
					if !closed && len(list) == 0 {
						t.Fatalf("seed %d, step %d: no room for %d bytes in an empty pair", seed, step, n*each)
					}
					break
				}
				for i := range b {
					b[i] = next
				}
				if rng.Intn(10) == 0 {
					break // begun and given up
				}
				if e.s.Put(n*each, n) == closed {
					t.Fatalf("seed %d, step %d: put in a pair, closed %v", seed, step, closed)
				}
				if !closed {
					list = append(list, train{mark, n, each, next})
					sent += uint64(n)
					next++
				}
			case k == 50 && step > 15000:
				e.daemon.Shut()
				closed = true
			default:
				rec, ok := e.r.Peek(taken)
				if want := len(list) > 0 && list[0].mark <= taken; ok != want {
					t.Fatalf("seed %d, step %d: a record: %v, want %v", seed, step, ok, want)
				}
				if !ok {
					break
				}
				w := list[0]
				if rec.Word.Count() != w.n || len(rec.Body) != w.n*w.each {
					t.Fatalf("seed %d, step %d: %d datagrams in %d bytes, want %d of %d", seed, step, rec.Word.Count(), len(rec.Body), w.n, w.each)
				}
				for _, b := range rec.Body {
					if b != w.first {
						t.Fatalf("seed %d, step %d: another record's content", seed, step)
					}
				}
				e.r.Take(&rec)
				list = list[1:]
				read += uint64(w.n)
			}
		}
		for taken = mark; ; {
			rec, ok := e.r.Peek(taken)
			if !ok {
				break
			}
			read += uint64(rec.Word.Count())
			e.r.Take(&rec)
		}
		f := e.daemon.Figures()
		if sent != read || f.Sent != sent || f.Read != read || e.r.Over() != closed {
			t.Errorf("seed %d: %d put, %d taken, figures %+v, over %v and closed %v", seed, sent, read, f, e.r.Over(), closed)
		}
		if n, _ := e.daemon.Fill(); n != 0 {
			t.Errorf("seed %d: %d bytes in a pair that was emptied", seed, n)
		}
	}
}

// TestPairClosedWhilePut closes pairs while somebody puts and somebody takes: what was put is
// taken, what was not is not, whoever closes (D1, D3).
func TestPairClosedWhilePut(t *testing.T) {
	for round := range 200 {
		e := newPaired(t, MinPairBytes)
		var wg sync.WaitGroup
		var put, got uint64
		wg.Go(func() {
			for {
				b := e.s.Begin(8)
				if b == nil {
					if e.s.Over() {
						return
					}
					if _, closed := e.out.Fill(); closed { // full, and closed
						return
					}
					runtime.Gosched()
					continue
				}
				binary.LittleEndian.PutUint64(b, put)
				if !e.s.Put(8, 1) {
					return
				}
				put++
			}
		})
		var bad atomic.Bool
		wg.Go(func() {
			for !e.r.Over() {
				rec, ok := e.r.Peek(0)
				if !ok {
					runtime.Gosched()
					continue
				}
				if binary.LittleEndian.Uint64(rec.Body) != got {
					bad.Store(true)
				}
				got++
				e.r.Take(&rec)
				if round%2 == 1 && got == 500 {
					e.in.Shut() // the reader itself
				}
			}
		})
		if round%2 == 0 {
			for range round * 20 {
				runtime.Gosched()
			}
			e.daemon.Shut()
		}
		wg.Wait()
		if bad.Load() || put != got {
			t.Fatalf("round %d: %d put, %d taken, in order %v", round, put, got, !bad.Load())
		}
	}
}

// TestPairScribbled has a partner write what it likes, everywhere: the other end stays within
// its memory and does not loop, and takes no more than fits.
func TestPairScribbled(t *testing.T) {
	n := 300_000
	switch {
	case testing.Short():
	case raceDetector: // the phase without it makes the many
		n = 3_000_000
	default:
		n = 50_000_000 // and more than 10 million words
	}
	rng := rand.New(rand.NewSource(1))
	e := newPaired(t, MinPairBytes)
	shared := func() *uint64 {
		// Offsets of words, and anywhere in the data.
		if rng.Intn(2) == 0 {
			return (*uint64)(unsafe.Add(e.out.words, uintptr(128*rng.Intn(12))))
		}
		return (*uint64)(unsafe.Pointer(&e.out.data[8*rng.Intn(MinPairBytes/8)]))
	}
	value := func() uint64 {
		switch rng.Intn(5) {
		case 0:
			return rng.Uint64()
		case 1:
			return uint64(rng.Intn(2 * MinPairBytes))
		case 2:
			return e.r.head + uint64(8*rng.Intn(MinPairBytes/8))
		case 3:
			return uint64(MakeWord(rng.Intn(5), rng.Intn(300), rng.Intn(4)))
		}
		return e.out.tail().Load() ^ 1<<rng.Intn(64)
	}
	records, still := 0, 0
	for range n {
		still++
		if rng.Intn(16) == 0 { // seldom enough for both to get on in between
			for range 1 + rng.Intn(3) {
				*shared() = value()
			}
		}
		if rec, ok := e.r.Peek(uint64(rng.Intn(3))); ok {
			records++
			still = 0
			if rec.Word.Count() == 0 || len(rec.Body)%rec.Word.Count() != 0 || len(rec.Body) > MinPairBytes {
				t.Fatalf("%d datagrams in %d bytes", rec.Word.Count(), len(rec.Body))
			}
			e.r.Take(&rec)
		}
		if b := e.s.Begin(rng.Intn(1000)); b != nil {
			e.s.Put(len(b), 1)
		}
		if free := e.s.Free(uint64(rng.Intn(MinPairBytes))); free > MinPairBytes {
			t.Fatalf("%d bytes free in a pair of %d", free, MinPairBytes)
		}
		if fill, _ := e.daemon.Fill(); fill > MinPairBytes {
			t.Fatalf("%d bytes in a pair of %d", fill, MinPairBytes)
		}
		// Spoilt, closed, or behind a mark for good: begin again, over the same memory.
		if e.r.Over() || e.s.Over() || still > 100 {
			for off := uintptr(offPairTail); off <= offPairMark; off += 128 {
				e.out.word64(off).Store(0)
			}
			still = 0
			e.s, e.r = NewPairSender(e.out), NewPairReceiver(e.in)
		}
	}
	if records < n/100 {
		t.Errorf("only %d records were read in %d steps", records, n)
	}
}

// TestPairSeen: a reader has seen the tail as it is when it has looked, also where it may take
// nothing: else whoever waits for a change would look again and again.
func TestPairSeen(t *testing.T) {
	e := newPaired(t, MinPairBytes)
	put := func() {
		if e.s.Begin(8) == nil || !e.s.Put(8, 1) {
			t.Fatal("no room")
		}
	}
	look := func(what string, taken uint64, want bool) (rec PairRecord) {
		t.Helper()
		rec, ok := e.r.Peek(taken)
		if ok != want || !ok && e.r.Seen() != e.in.Tail() {
			t.Errorf("%s: there is something: %v; seen is %#x, the tail %#x", what, ok, e.r.Seen(), e.in.Tail())
		}
		return rec
	}
	e.daemon.SetMark(5)
	put()
	look("behind a mark", 4, false)
	put()
	look("one more", 4, false)
	e.out.Shut()
	look("closed", 4, false)
	for range 2 {
		rec := look("its turn", 5, true)
		if e.r.Over() {
			t.Error("a pair is over with something in it")
		}
		e.r.Take(&rec)
	}
	if look("read", 5, false); !e.r.Over() {
		t.Error("a pair that is closed and read is not over")
	}

	e = newPaired(t, MinPairBytes)
	e.out.tail().Store(4)
	look("no tail at all", 0, false)
	e.out.tail().Store(12)
	look("and another one", 0, false)
}

func FuzzPairReader(f *testing.F) {
	w := make([]byte, 64)
	binary.LittleEndian.PutUint64(w, uint64(MakeWord(pairMark, 8, 1)))
	binary.LittleEndian.PutUint64(w[16:], uint64(MakeWord(pairDatagrams, 8, 2)))
	f.Add(uint64(64), w, uint64(0))
	f.Add(uint64(8), w, uint64(1))
	f.Fuzz(func(t *testing.T, tail uint64, data []byte, taken uint64) {
		e := newPaired(t, MinPairBytes)
		copy(e.out.data, data)
		e.out.tail().Store(tail)
		for n := 0; ; n++ {
			rec, ok := e.r.Peek(taken)
			if !ok {
				break
			}
			if e.r.Take(&rec); n > MinPairBytes/8 {
				t.Fatal("more records than fit")
			}
		}
	})
}

func TestPairWakes(t *testing.T) {
	e := newPaired(t, MinPairBytes)
	if e.out.Awaken() || e.daemon.Nudged() {
		t.Error("a reader that is awake is to be rung")
	}
	e.in.Sleeps(true)
	if !e.out.Awaken() || e.out.Awaken() {
		t.Error("a reader that sleeps is not to be rung once")
	}
	if !e.daemon.Nudged() || e.daemon.Nudged() {
		t.Error("the daemon is not told once")
	}
	seen := e.r.Seen()
	e.s.Begin(3)
	e.s.Put(3, 1)
	if e.in.Tail() == seen {
		t.Error("the tail does not tell a reader that there is something")
	}
}

// TestPairAbandoned: the memory of a pair is free when no client has any of it: neither the words nor the
// data, neither mapped nor open, neither to write nor to read.
func TestPairAbandoned(t *testing.T) {
	unmap := [2]func(p *Pair){
		func(p *Pair) { unix.MunmapPtr(p.words, pairWordsBytes); p.words = nil },
		func(p *Pair) {
			unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(p.data)), uintptr(len(p.data)))
			p.data = nil
		},
	}
	for role, who := range map[PairRole]string{PairSends: "the sender", PairReads: "the reader"} {
		for first, kept := range [2]string{"the data", "the words"} {
			d, err := CreatePair(1, MinPairBytes)
			if err != nil {
				t.Fatal(err)
			}
			lent := [2]int{d.WordsFD, d.DataFD}
			if role == PairReads {
				lent[1] = d.ReadFD
			}
			p, err := OpenPair(lent[0], lent[1], MinPairBytes, role)
			if err != nil {
				t.Fatal(err)
			}
			open, err := unix.FcntlInt(uintptr(lent[1-first]), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			d.Lent()
			d.Close()
			try := func(want bool, what string) {
				t.Helper()
				if gone, certain := d.Abandoned(); gone != want || !certain {
					t.Errorf("%s has %s: gone %v, certain %v", who, what, gone, certain)
				}
			}
			try(false, "both mapped")
			unmap[first](p)
			try(false, kept+" mapped and open")
			unix.Close(open)
			try(false, kept+" mapped")
			p.Close()
			try(true, "nothing")
			try(true, "nothing, once more")
			if d.own != [2]int{-1, -1} {
				t.Error("not closed")
			}
		}
	}
}
