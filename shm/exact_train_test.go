package shm

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/wire"
)

// TestTrainEdges: what is of one source, lane and length is one descriptor, up to
// exactly 64 KiB and 4,096 datagrams; everything else begins another one. What
// they cost is what releasing them gives back.
func TestTrainEdges(t *testing.T) {
	other := netip.AddrPortFrom(testDst.Addr(), testDst.Port()+1)
	type put struct {
		src   netip.AddrPort
		n     int
		count int
		lane  uint32
		table bool
	}
	one := put{testDst, 64, 1, 3, false}
	for name, c := range map[string]struct {
		puts  []put
		descs int
	}{
		"alike":                 {[]put{one, one}, 1},
		"another source":        {[]put{one, {other, 64, 1, 3, false}}, 2},
		"another lane":          {[]put{one, {testDst, 64, 1, 4, false}}, 2},
		"another length":        {[]put{one, {testDst, 65, 1, 3, false}}, 2},
		"a table":               {[]put{one, {testDst, 64, 1, 3, true}}, 2},
		"behind a table":        {[]put{{testDst, 64, 1, 3, true}, one}, 2},
		"two of that length":    {[]put{one, {testDst, 128, 2, 3, false}}, 1},
		"exactly 64 KiB":        {[]put{{testDst, 32 << 10, 1, 3, false}, {testDst, 32 << 10, 1, 3, false}}, 1},
		"64 KiB and one more":   {[]put{{testDst, 32 << 10, 512, 3, false}, {testDst, 32<<10 - 64, 511, 3, false}, one, one}, 2},
		"4,096 datagrams":       {[]put{{testDst, 0, MaxTrain - 1, 3, false}, {testDst, 0, 1, 3, false}}, 1},
		"4,097 datagrams":       {[]put{{testDst, 0, MaxTrain, 3, false}, {testDst, 0, 1, 3, false}}, 2},
		"a large one by itself": {[]put{{testDst, MaxTrainBytes/2 + 1, 1, 3, false}, {testDst, 1, 1, 3, false}}, 2},
	} {
		h, m := newPair(t, smallSpec(), nil)
		var want []byte
		cost, count, payload := 0, 0, 0
		for i, p := range c.puts {
			body := bytes.Repeat([]byte{byte('a' + i)}, p.n)
			want = append(want, body...)
			n, ok := h.PlaceCopy(p.src, wire.Train{Body: body, Count: p.count, Table: p.table}, p.lane, uint64(i))
			if !ok {
				t.Fatal(name, "no room")
			}
			cost, count, payload = cost+n, count+p.count, payload+p.n
			if p.table {
				payload -= 4 * p.count
			}
			if h.arena.Used() < uint64(cost) {
				t.Errorf("%s: costs %d, takes %d", name, cost, h.arena.Used())
			}
		}
		h.Publish()
		if n := int(m.r.RecvTail().Load()); n != c.descs {
			t.Errorf("%s: %d descriptors, want %d", name, n, c.descs)
		}
		if h.arena.Used() != uint64(cost) {
			t.Errorf("%s: costs %d, takes %d", name, cost, h.arena.Used())
		}
		var have []byte
		got := 0
		var d RecvDesc
		for ; m.head != m.r.RecvTail().Load(); m.head++ {
			m.r.GetRecv(m.head, &d)
			have, got = append(have, m.r.RecvArena()[d.Slot:][:d.Word.Bytes()]...), got+d.Word.Count()
			m.release(d.Slot)
		}
		if !bytes.Equal(have, want) || got != count || d.Seq != uint64(len(c.puts)-1) {
			t.Errorf("%s: %d bytes of %d, %d datagrams of %d, sequence %d", name, len(have), len(want), got, count, d.Seq)
		}
		m.r.RecvHead().Store(m.head)
		if b, k, n, err := h.Releases(); b != payload || k != cost || n != count || err != nil {
			t.Errorf("%s: gave back %d bytes, %d of the arena, %d datagrams; %d, %d, %d came: %v", name, b, k, n, payload, cost, count, err)
		}
		restored(t, nil, h)
	}
}

// TestAnythingAtTheEnd: a body that ends where the arena ends is good, at either end.
func TestAnythingAtTheEnd(t *testing.T) {
	for slack, bad := range map[uint64]bool{0: false, 1: true} {
		_, x, h := clientPair(t, smallSpec())
		h.PlaceCopy(testDst, wire.One([]byte("x")), NoLane, 0)
		h.Publish()
		d := RecvDesc{Word: MakeWord(KindEach, 64, 1), Slot: h.r.RecvArenaBytes - 64 + slack, Src: testDst}
		d.put(h.r.recvEntry(0))
		if ok, err := x.Peek(&d); ok == bad || Bad(err) != bad {
			t.Errorf("receive slot %d beyond: %v %v", slack, ok, err)
		}
	}
	for n, bad := range map[int]bool{64: false, 65: true} {
		h, m := newPair(t, smallSpec(), nil)
		m.post(MakeWord(KindEach, n, 1), SendDesc{Slot: h.r.SendArenaBytes - 64, Gen: 1}, nil)
		var p Post
		if ok, err := h.Next(&p); ok == bad || errors.Is(err, unix.EBADMSG) != bad {
			t.Errorf("%d bytes in the last 64: %v %v", n, ok, err)
		}
	}
}

// TestSealed: nobody can resize a region. When its client has mapped it, nobody can map
// it to write, punch holes into it or seal it otherwise any more, and both go on.
func TestSealed(t *testing.T) {
	r := newRegion(t, smallSpec())
	c, err := Open(r.FD, r.LendFD, r.RegionBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	punch := func() error {
		return unix.Fallocate(r.FD, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, HeaderBytes, HeaderBytes)
	}
	if err := punch(); err != nil {
		t.Fatalf("no hole to begin with: this shows nothing: %v", err)
	}
	if err := r.Touched(); !errors.Is(err, unix.EFAULT) {
		t.Fatalf("a client that has not touched its words: %v", err)
	}
	r = newRegion(t, smallSpec())
	if c, err = Open(r.FD, r.LendFD, r.RegionBytes); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := errors.Join(Seal(r.FD), r.Touched()); err != nil {
		t.Fatal(err)
	}
	got, err := unix.FcntlInt(uintptr(r.FD), unix.F_GET_SEALS, 0)
	if want := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL; err != nil || got&want != want {
		t.Errorf("seals %#x %v", got, err)
	}
	if _, err := unix.FcntlInt(uintptr(r.FD), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); !errors.Is(err, unix.EPERM) {
		t.Errorf("a client may add a seal: %v", err)
	}
	if err := punch(); !errors.Is(err, unix.EPERM) {
		t.Errorf("a hole: %v", err)
	}
	for name, mem := range map[string][]byte{"its own": r.mem, "the client's": c.mem} {
		if err := unix.Madvise(mem[:r.DaemonOff], unix.MADV_REMOVE); !errors.Is(err, unix.EPERM) {
			t.Errorf("a hole by %s mapping: %v", name, err)
		}
	}
	theirs := c.mem[r.DaemonOff:]
	if err := unix.Madvise(theirs, unix.MADV_REMOVE); !errors.Is(err, unix.EACCES) {
		t.Errorf("a hole in the daemon's part by the client's mapping: %v", err)
	}
	if err := unix.Fallocate(r.LendFD, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 0, HeaderBytes); !errors.Is(err, unix.EBADF) {
		t.Errorf("a hole in the daemon's part by the client's descriptor: %v", err)
	}
	if _, err := unix.FcntlInt(uintptr(r.LendFD), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); !errors.Is(err, unix.EPERM) {
		t.Errorf("a client may seal the daemon's part: %v", err)
	}
	if err := unix.Mprotect(theirs, unix.PROT_READ|unix.PROT_WRITE); !errors.Is(err, unix.EACCES) {
		t.Errorf("a client may write to the daemon's part: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(r.LendFD, &st); err != nil || st.Mode&0o777 != 0o400 {
		t.Errorf("whoever has the daemon's part may open it once more, to write: mode %o %v", st.Mode, err)
	}
	for name, write := range map[string]func() error{
		"a mapping": func() error {
			_, err := unix.Mmap(r.FD, 0, HeaderBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			return err
		},
		"a write": func() error {
			_, err := unix.Pwrite(r.FD, []byte{1}, HeaderBytes)
			return err
		},
	} {
		if err := write(); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s after the seal: %v", name, err)
		}
	}
	r.SendArena()[5] = 1
	if err := c.ReadHeader(); err != nil || c.SendArena()[5] != 1 {
		t.Errorf("the mapping that was there: %v", err)
	}
	v, err := View(r.FD, r.LendFD)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if v.SendArena()[5] = 2; v.Header != r.Header || r.SendArena()[5] != 1 {
		t.Error("who looks at a region changes it")
	}
	own := newRegion(t, smallSpec())
	if _, err := unix.FcntlInt(uintptr(own.FD), unix.F_ADD_SEALS, unix.F_SEAL_SEAL); err != nil {
		t.Fatal(err)
	}
	if err := Seal(own.FD); !errors.Is(err, unix.EPERM) {
		t.Errorf("a region that its client has sealed: %v", err)
	}
	flags, err := unix.FcntlInt(uintptr(r.FD), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Error("a program that is started inherits it", err)
	}
	for _, missing := range []int{unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL, unix.F_SEAL_GROW | unix.F_SEAL_SEAL} {
		fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Ftruncate(fd, int64(r.DaemonOff)); err != nil {
			t.Fatal(err)
		}
		page := make([]byte, HeaderBytes)
		r.Header.Put(page)
		if _, err := unix.Pwrite(fd, page, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, missing); err != nil {
			t.Fatal(err)
		}
		if o, err := Open(fd, r.LendFD, r.RegionBytes); !Bad(err) {
			t.Errorf("opened with seals %#x: %v %v", missing, o, err)
		}
		unix.Close(fd)
	}
}

// TestReleaseRingFull: with a release in every entry nothing more is taken until the
// daemon has read one, and it is woken for that.
func TestReleaseRingFull(t *testing.T) {
	_, x, h := clientPair(t, smallSpec())
	var d RecvDesc
	for i := range 9 {
		if _, ok := h.PlaceCopy(testDst, wire.One([]byte("x")), NoLane, 0); !ok {
			t.Fatal("no room")
		}
		h.Publish()
		ok, err := x.Peek(&d)
		if i == 8 {
			if ok || err != ErrReleases {
				t.Fatalf("a ninth of eight: %v %v", ok, err)
			}
			break
		}
		if !ok || err != nil {
			t.Fatal(i, ok, err)
		}
		x.Take()
		x.Taken()
		x.Release(d.Slot)
		x.Released()
	}
	if _, _, n, err := h.Releases(); n != 8 || err != nil {
		t.Error(n, err)
	}
	if ok, err := x.Peek(&d); !ok || err != nil {
		t.Error("it stays so", ok, err)
	}
}

// TestBlockFilledExactly: a train moves to a larger block when the one it has is too small, not before.
func TestBlockFilledExactly(t *testing.T) {
	h, _ := newPair(t, smallSpec(), nil)
	for i, want := range []int{64, 64, 256} {
		if _, ok := h.PlaceCopy(testDst, wire.One(make([]byte, 32)), NoLane, 0); !ok || h.train.cap != want {
			t.Errorf("%d of 32 bytes lie in a block of %d", i+1, h.train.cap)
		}
	}
}

// TestOutstandingExactly: 262,144 datagrams are under way, and not one more, at either end.
func TestOutstandingExactly(t *testing.T) {
	s, _, h := clientPair(t, Spec{})
	f := openFlow(t, s, h, clientDst)
	var ids []uint32
	for n := 0; n < MaxOutstandingDatagrams; n += MaxTrain {
		sl, err := s.Grab(f, 0)
		if err != nil {
			t.Fatal(n, err)
		}
		s.Post(&sl, KindEach, 0, MaxTrain, 0, uint64(n), false)
		got, _ := takeAll(t, h)
		ids = append(ids, got...)
	}
	if _, err := s.Grab(f, 0); err != ErrMany || s.Most() != 0 || h.OutstandingDatagrams() != MaxOutstandingDatagrams {
		t.Errorf("%v, %d more, %d under way", err, s.Most(), h.OutstandingDatagrams())
	}
	// A client that does not count posts one more: it stays in the ring.
	n := h.Taking()
	h.r.PutSend(n, MakeWord(KindEach, 0, 1), &SendDesc{Flow: f.Index(), Gen: f.Gen()})
	h.r.SendTail().Store(n + 1)
	if got, _ := takeAll(t, h); len(got) != 0 || h.HasPosts() {
		t.Errorf("%d more were taken", len(got))
	}
	h.Outcome(ids[0], 0, 1, Delivered, 0, false)
	viewed(t, h) // before anything is published
	h.Publish()
	if got, _ := takeAll(t, h); len(got) != 1 {
		t.Errorf("%d taken when there was room for one", len(got))
	}
}
