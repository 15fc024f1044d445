//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// A message that cannot be written ends the link, once what the daemon has said is read: who
// waits for its answer would wait for ever.
func TestRingLinkThatCannotWrite(t *testing.T) {
	l, err := shm.Listen(filepath.Join(t.TempDir(), "s"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ours, err := shm.Dial(context.Background(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := l.AcceptConn()
	if err != nil {
		t.Fatal(err)
	}
	sayClosing(theirs, closing(syscall.ECANCELED, "dismissed"))
	theirs.Close()
	link := &ringLink{r: &rings{Socket: &Socket{}}, conn: ours, region: linkOf(newRingDaemon(t).bindRing(localAddr)).region,
		down: make(chan struct{}), stop: func() bool { return true }}
	link.refs.Store(2)
	link.ctl.push(&rdsdv1.ClientMessage{})
	m := &rdsdv1.ClientMessage{}
	m.SetFlush(&rdsdv1.Flush{})
	m.GetFlush().SetId(1)
	link.ctl.push(m)
	link.write()
	wantErr(t, waitErr(t, goErr(link.read)), rdserr.ErrCanceled)
}

// Why a link has ended: what stands in the region comes before what the daemon said, that
// before what stands in the word of the region, and that before the end of the connection.
func TestWhyALinkEnded(t *testing.T) {
	region := linkOf(newRingDaemon(t).bindRing(localAddr)).region
	said, fault := closingError(closing(syscall.EACCES, "said")), error(rdserr.ErrProtocol)
	for i, c := range []struct {
		word    uint32
		closing error
		fault   *error
		want    error
	}{
		{0, nil, nil, rdserr.ErrShutdown}, {uint32(syscall.ENOMEM), nil, nil, rdserr.ErrNoMemory}, {uint32(syscall.ENOMEM), said, nil, rdserr.ErrPerm},
		{uint32(syscall.ENOMEM), said, &fault, rdserr.ErrProtocol}, {0x1000 | uint32(syscall.EIO), nil, nil, rdserr.ErrIO},
	} {
		region.Closed().Store(c.word)
		l := &ringLink{region: region}
		l.fault.Store(c.fault)
		if err := l.why(c.closing, errors.New("the connection")); !errors.Is(err, c.want) {
			t.Errorf("%d: %v, want %v", i, err, c.want)
		}
	}
	region.Closed().Store(0)
	for what, c := range map[string]struct {
		cl      *rdsdv1.Closing
		want    error
		without bool // a stream may do
	}{
		"nothing":    {closing(0, ""), rdserr.ErrShutdown, false},
		"version":    {closing(syscall.EPROTONOSUPPORT, "old"), rdserr.ErrNotSupported, true},
		"none":       {closing(syscall.ENOSYS, "none"), rdserr.ErrNotSupported, true},
		"memory":     {closing(syscall.ENOMEM, "full"), rdserr.ErrNoMemory, true},
		"permission": {closing(syscall.EACCES, "no"), rdserr.ErrPerm, false},
		"in use":     {closing(syscall.EADDRINUSE, "used"), rdserr.ErrAddrInUse, false},
	} {
		err := refusal(c.cl)
		if !errors.Is(err, c.want) || withoutRings(err) != c.without || !strings.Contains(err.Error(), c.cl.GetMessage()) {
			t.Errorf("refused for %s: %v", what, err)
		}
	}
	r := &rings{Socket: &Socket{}, path: "/a/path"}
	for cause, want := range map[error]error{fs.ErrPermission: rdserr.ErrPerm, syscall.ENOENT: rdserr.ErrShutdown, syscall.ECONNREFUSED: rdserr.ErrShutdown} {
		if err := r.dialError(fmt.Errorf("dial: %w", cause)); !errors.Is(err, want) || !strings.Contains(err.Error(), r.path) {
			t.Errorf("dialled, %v: %v", cause, err)
		}
	}
	if err := r.dialError(syscall.EPROTOTYPE); !errors.Is(err, rdserr.ErrShutdown) || !strings.Contains(err.Error(), syscall.EPROTOTYPE.Error()) {
		t.Errorf("dialled: %v", err)
	}
}

// A grant of another version, or of descriptors that are too few or no regions, is
// refused, and leaves every descriptor to the caller.
func TestGrantsRefused(t *testing.T) {
	r := &rings{Socket: &Socket{}}
	var fds []int
	for range 5 {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	for what, c := range map[string]struct {
		version uint32
		n       int
		want    error
	}{
		"an older one": {shm.Version - 1, 4, rdserr.ErrNotSupported}, "a newer one": {shm.Version + 1, 4, rdserr.ErrNotSupported},
		"too few": {shm.Version, 3, rdserr.ErrNotSupported}, "too many": {shm.Version, 5, rdserr.ErrNotSupported},
		"no regions": {shm.Version, 4, syscall.EBADMSG},
	} {
		g := &rdsdv1.RingGrant{}
		g.SetVersion(c.version)
		g.SetRegionBytes(1 << 20)
		if l, err := r.granted(new(shm.Conn), g, fds[:c.n]); !errors.Is(err, c.want) || l != nil {
			t.Errorf("%s: %v, %v", what, l, err)
		}
		for _, fd := range fds {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
				t.Fatalf("%s: a descriptor was closed", what)
			}
		}
	}
	// A doorbell that cannot be watched leaves nothing of its own open.
	before, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	for _, fd := range []int{-1, 1 << 20} {
		if err := new(doorbell).open(fd); err == nil {
			t.Errorf("descriptor %d is a doorbell", fd)
		}
	}
	if after, err := os.ReadDir("/proc/self/fd"); err != nil || len(after) != len(before) {
		t.Errorf("%d descriptors, before %d, %v", len(after), len(before), err)
	}
}

// Trains are as long as they may be, and no longer: of one destination, within the limits
// of a body, within the room there is but for the last; and what is laid out is read back.
func TestTrainsAreMeasured(t *testing.T) {
	rnd := rand.New(rand.NewSource(9))
	sizes := [][]int{{0}, {1}, {100}, {100, 101}, {0, 1, 2, 3}, {1000, 1000, 1000, 1000, 1000, 7}, {30000, 35536, 35537}, {65536, 65535}, {65532, 1}, {64}, {32768}, {8192}, {2048, 2040}, {16384, 16384, 16364}}
	limit := func(n, same, sum int) bool { // the body holds so many
		return n == 1 || same == n && sum <= shm.MaxTrainBytes || same < n && sum+4*n <= shm.MaxTrainBytes
	}
	for round := range 800 {
		of := sizes[rnd.Intn(len(sizes))]
		ds := make([]Datagram, 1+rnd.Intn(80))
		steady := rnd.Intn(3) == 0
		for i := range ds {
			size := of[rnd.Intn(len(of))]
			if steady && i < len(ds)-3 {
				size = of[0]
			}
			ds[i] = Datagram{Addr: peerAddr, Payload: bytes.Repeat([]byte{byte(i)}, size)}
			if rnd.Intn(50) == 0 {
				ds[i].Addr = otherAddr
			}
		}
		room := []int{1, 100, 1000, 70000, 1 << 30}[rnd.Intn(5)]
		n, same, sum := measureTrain(ds, room)
		bytesOf, equal := 0, 0
		for i, d := range ds[:n] {
			bytesOf += len(d.Payload)
			if d.Addr != ds[0].Addr {
				t.Fatalf("round %d: datagram %d goes elsewhere", round, i)
			}
			if equal == i && len(d.Payload) == len(ds[0].Payload) {
				equal++
			}
		}
		if sum != bytesOf || same != equal || !limit(n, same, sum) || n > 1 && sum-len(ds[n-1].Payload) >= room {
			t.Fatalf("round %d: %d datagrams, %d alike, %d bytes (are %d and %d), with room for %d", round, n, same, sum, equal, bytesOf, room)
		}
		if n < len(ds) { // what stopped it
			d := ds[n]
			same2 := same
			if same == n && len(d.Payload) == len(ds[0].Payload) {
				same2++
			}
			grouped := same >= fewEqual && len(d.Payload) != len(ds[0].Payload) // enough to be a train of their own
			grouped = grouped || same >= fewEqual && same < n
			if d.Addr == ds[0].Addr && sum < room && limit(n+1, same2, sum+len(d.Payload)) && !grouped {
				t.Fatalf("round %d: %d datagrams (%d alike, %d bytes), and one of %d more would go", round, n, same, sum, len(d.Payload))
			}
		}
		kind, size := shm.KindEach, sum
		if same < n {
			kind, size = shm.KindTable, sum+4*n
		}
		body := make([]byte, size)
		fillTrain(body, ds[:n], kind)
		lens, rest := shm.Walk(shm.MakeWord(kind, size, n), body)
		tr := &train{lens: lens, rest: rest, src: peerAddr}
		got := make([]Datagram, n)
		at := 0
		for at < n {
			at += tr.read(got[at : at+1+rnd.Intn(n-at)])
		}
		for i := range got {
			if !bytes.Equal(got[i].Payload, ds[i].Payload) || got[i].Addr != peerAddr || got[i].Tag != 0 || cap(got[i].Payload) != len(got[i].Payload) {
				t.Fatalf("round %d: datagram %d of %d is %d bytes, want %d", round, i, n, len(got[i].Payload), len(ds[i].Payload))
			}
		}
		if tr.lens.Left() != 0 {
			t.Fatalf("round %d: %d are left", round, tr.lens.Left())
		}
	}
}

// Copies in pieces are whole, at every edge of a piece.
func TestCopyBytes(t *testing.T) {
	const piece = 128 << 10
	src := make([]byte, 3*piece+1)
	rand.New(rand.NewSource(1)).Read(src)
	for _, n := range []int{0, 1, piece - 1, piece, piece + 1, 2 * piece, 3*piece + 1} {
		dst := make([]byte, n+1)
		copyBytes(dst[:n], src[:n])
		if !bytes.Equal(dst[:n], src[:n]) || dst[n] != 0 {
			t.Errorf("%d bytes are others", n)
		}
		ds := []Datagram{{Payload: src[:n]}, {Payload: src[n:]}, {}}
		var own slab
		for i := range ds {
			p := ds[i].Payload
			ds[i].Payload = nil
			ds[i].copyIn(p, ownMemory, &own)
		}
		if !bytes.Equal(ds[0].Payload, src[:n]) || !bytes.Equal(ds[1].Payload, src[n:]) || cap(ds[0].Payload) != n || len(ds[2].Payload) != 0 || n > 0 && &ds[0].Payload[0] == &src[0] {
			t.Errorf("payloads of %d bytes and the rest are others", n)
		}
	}
	var left []span
	for _, s := range []span{{0, 2}, {2, 3}, {5, 6}, {6, 9}, {10, 11}} {
		left = extend(left, s.from, s.to)
	}
	if fmt.Sprint(left) != "[{0 3} {5 9} {10 11}]" {
		t.Errorf("spans %v", left)
	}
	if heldMark(3, true) == heldMark(3, false) || heldMark(3, true) == heldMark(4, false) || heldMark(4, true) == heldMark(4, false) {
		t.Error("marks are alike")
	}
}

// TestSlabIsUsedUp: a slab is cut to its last byte, and one that is used up is not replaced
// for what takes nothing.
func TestSlabIsUsedUp(t *testing.T) {
	var own slab
	p := make([]byte, slabBytes/slabShare)
	for i := range slabShare {
		own.clone(p)
		if left := slabBytes - (i+1)*len(p); len(own) != left || own == nil {
			t.Fatalf("%d bytes are left after %d of %d, want %d", len(own), i+1, len(p), left)
		}
	}
	if own.clone(nil); len(own) != 0 {
		t.Errorf("%d bytes were made for nothing", len(own))
	}
	if own.clone(p); len(own) != slabBytes-len(p) {
		t.Errorf("%d bytes are left of the next one", len(own))
	}
}

// A lot knows what those who are parked wait for together, whoever comes and goes, and
// wakes those whom it concerns.
func TestLotAgainstAModel(t *testing.T) {
	l := linkOf(newRingDaemon(t).bindRing(localAddr))
	sleeps := l.region.ClientSleeps()
	rnd := rand.New(rand.NewSource(4))
	var p waitList
	var in []*waiter
	for range 5000 {
		switch rnd.Intn(3) {
		case 0:
			w := &waiter{l: l, bits: uint32(rnd.Intn(16)), ch: make(chan struct{}, 1)}
			p.add(w)
			in = append(in, w)
		case 1:
			if len(in) == 0 {
				continue
			}
			i := rnd.Intn(len(in))
			p.remove(in[i])
			in = append(in[:i], in[i+1:]...)
			if len(in) == 0 && sleeps.Load() != 0 {
				t.Fatal("nobody is parked, and the daemon would ring")
			}
		default:
			bits := uint32(rnd.Intn(16))
			p.wake(bits)
			for _, w := range in {
				if woken := len(w.ch) > 0; woken != (w.bits&bits != 0) {
					t.Fatalf("one that waits for %#x was woken for %#x: %v", w.bits, bits, woken)
				} else if woken {
					<-w.ch
				}
			}
		}
		all := uint32(0)
		for i, w := range in {
			all |= w.bits
			if p.list[w.at] != w {
				t.Fatalf("waiter %d is not at its place", i)
			}
		}
		if len(in) > 0 {
			if p.arm(in[0]); sleeps.Load() != all {
				t.Fatalf("%d wait for %#x, and the daemon is told %#x", len(in), all, sleeps.Load())
			}
		}
		if int(p.parked.Load()) != len(in) || len(p.list) != len(in) {
			t.Fatalf("%d are parked, want %d", p.parked.Load(), len(in))
		}
	}
	for _, w := range in {
		p.remove(w)
	}
	p.arm(&waiter{}) // of no link
}

// What becomes of datagrams over rings is told as it is, in words, once, and of those
// whose outcome is waited for alone.
func TestRingOutcomes(t *testing.T) {
	for _, c := range []struct {
		ev     shm.Event
		kind   OutcomeKind
		reason string
	}{
		{shm.Event{Kind: shm.EventOutcome, Outcome: shm.Delivered, Why: 1}, Delivered, ""},
		{shm.Event{Kind: shm.EventOutcome, Outcome: shm.Cancelled, Why: 2}, Cancelled, shm.Reason(2)},
		{shm.Event{Kind: shm.EventOutcome, Outcome: shm.Failed, Why: 3}, Failed, shm.Reason(3)},
		{shm.Event{Kind: shm.EventOutcome, Outcome: shm.Unknown, Why: 4}, Unknown, shm.Reason(4)},
		{shm.Event{Kind: shm.EventOutcome, Outcome: 99, Why: 4}, Unknown, shm.Reason(4)},
		{shm.Event{Kind: shm.EventRefused, Errno: uint32(syscall.EHOSTUNREACH)}, Failed, rdserr.ErrHostDown.Error()},
		{shm.Event{Kind: shm.EventRefused}, Failed, ""},
	} {
		r := &rings{Socket: &Socket{}}
		r.outcomes.init()
		r.undecid.add(10, 5)
		c.ev.Tag, c.ev.Count = 11, 2
		r.decidedLocked(&c.ev)
		r.decidedLocked(&c.ev) // told again
		c.ev.Tag, c.ev.Count = 13, 9
		r.decidedLocked(&c.ev) // more than there is
		var got []Outcome
		for {
			o, ok, _, _ := r.outcomes.take()
			if !ok {
				break
			}
			got = append(got, o)
		}
		want := []Outcome{{11, c.kind, c.reason}, {12, c.kind, c.reason}, {13, c.kind, c.reason}, {14, c.kind, c.reason}}
		if fmt.Sprint(got) != fmt.Sprint(want) || fmt.Sprint(r.undecid.runs) != "[{10 1}]" {
			t.Errorf("%+v: %v, want %v; %v wait", c.ev, got, want, r.undecid.runs)
		}
	}
}

// What bind options ask for reaches the daemon over rings, and a reply port asks for what
// its socket has, but for what concerns nobody's requests.
func TestRingsBindSaysAll(t *testing.T) {
	d := newRingDaemon(t)
	s := d.bindRing(netip.AddrPortFrom(localAddr.Addr(), 0), WithSendBuffer(70000), WithRecvBuffer(80000), WithLabel("name"))
	b := d.sock(s.LocalAddr()).binds
	if b.GetSendBufferBytes() != 70000 || b.GetRecvBufferBytes() != 80000 || b.GetLabel() != "name" || b.GetRing().GetVersion() != shm.Version {
		t.Errorf("%v", b)
	}
	if s.LocalAddr().Port() == 0 {
		t.Error("bound to no port")
	}
}

// A body is filled to its last byte.
func TestTrainsFilledExactly(t *testing.T) {
	for size, want := range map[int]int{shm.MaxTrainBytes / 2: 2, shm.MaxTrainBytes/2 + 1: 1, shm.MaxTrainBytes / 8: 8, shm.MaxTrainBytes/8 + 1: 7} {
		ds := make([]Datagram, 9)
		for i := range ds {
			ds[i] = Datagram{Addr: peerAddr, Payload: make([]byte, size)}
		}
		if n, same, sum := measureTrain(ds, 1<<30); n != want || same != want || sum != want*size {
			t.Errorf("of %d bytes each: %d datagrams, %d alike, %d bytes; want %d", size, n, same, sum, want)
		}
	}
	ds := []Datagram{{Addr: peerAddr, Payload: make([]byte, 100)}, {Addr: peerAddr, Payload: make([]byte, shm.MaxTrainBytes-100-8)}}
	for more, want := range map[int]int{0: 2, 1: 1} { // with a table of two lengths
		ds[1].Payload = make([]byte, shm.MaxTrainBytes-100-8+more)
		if n, _, _ := measureTrain(ds, 1<<30); n != want {
			t.Errorf("%d bytes over the end: %d datagrams, want %d", more, n, want)
		}
	}
}
