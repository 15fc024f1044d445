package tcp

import (
	"bytes"
	"context"
	"math/rand"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/wire"
)

// numbered takes frames, which are numbered, and sends batches one after the other,
// each as soon as the one before has left.
type numbered struct {
	*sink
	next   uint32 // that is to come; owned by the thread
	wrong  atomic.Int64
	pauses map[uint32]bool // before which frames it is full, once
	left   atomic.Int64    // batches
	seq    uint32
}

const perBatch = 40

// pairOf makes a link that is not started.
func pairOf(t testing.TB, p *Provider) (x, y *sink) {
	t.Helper()
	accepted := make(chan transport.Link, 1)
	l, err := p.Listen(netip.MustParseAddrPort("127.0.0.87:0"), func(k transport.Link) { accepted <- k })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	k, err := p.Dial(context.Background(), netip.MustParseAddrPort("127.0.0.88:0"), l.Addr(), 0)
	if err != nil {
		t.Fatal(err)
	}
	x, y = newSink(t, k), newSink(t, <-accepted)
	t.Cleanup(func() {
		for _, s := range []*sink{x, y} {
			s.l.Abort()
			<-s.closed
		}
	})
	return x, y
}

func (s *numbered) Frame(f *transport.Frame) error {
	var h wire.Header
	h.Parse(f.Raw)
	if s.pauses[s.next] {
		delete(s.pauses, s.next)
		return transport.ErrPause
	}
	if uint32(h.Seq) != s.next || len(f.Payload) == 0 || f.Payload[0] != byte(s.next) || f.Payload[len(f.Payload)-1] != byte(s.next) {
		s.wrong.Add(1)
	}
	s.next++
	s.frames.Add(1)
	return nil
}

// sendNext sends batches until one is kept.
func (s *numbered) sendNext(t testing.TB) {
	for s.left.Add(-1) >= 0 {
		b := transport.GetBatch()
		for range perBatch {
			p := bytes.Repeat([]byte{byte(s.seq)}, 1+int(s.seq*7919%30000))
			h := wire.Header{Seq: uint64(s.seq), Len: uint32(len(p))}
			h.Put(b.Frame(p))
			s.seq++
		}
		b.Seal()
		done, err := s.l.Send(b)
		if err != nil {
			t.Error(err)
			return
		}
		if !done {
			return
		}
		b.Put()
	}
}

func (s *numbered) Written(b *transport.Batch, err error) {
	b.Put()
	if err == nil {
		s.sendNext(s.t)
	}
}

// TestKeptAgainAndAgain: batches that meet a full socket, one after the other, and a
// receiver that is full now and then: every frame comes once, whole, in order, and
// nothing has to be asked for.
func TestKeptAgainAndAgain(t *testing.T) {
	const batches = 60
	x, y := pairOf(t, newProvider(t))
	from, to := &numbered{sink: x}, &numbered{sink: y, pauses: map[uint32]bool{}}
	from.left.Store(batches)
	for i := uint32(0); i < batches*perBatch; i += 97 {
		to.pauses[i] = true
	}
	x.l.Start(from)
	y.l.Start(to)
	from.sendNext(t)
	stop := make(chan struct{})
	resumed := make(chan struct{})
	go func() { // ends with the test
		defer close(resumed)
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
				y.l.Resume()
			}
		}
	}()
	defer func() { close(stop); <-resumed }()
	eventually(t, "the last frame", func() bool { return to.frames.Load() >= batches*perBatch })
	time.Sleep(5 * time.Millisecond)
	if n := to.frames.Load(); n != batches*perBatch || to.wrong.Load() != 0 {
		t.Errorf("%d frames, want %d; %d are not what was to come", n, batches*perBatch, to.wrong.Load())
	}
}

// TestShortWrites: whatever a socket takes at once, the rest goes on where it ended.
func TestShortWrites(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 4096)
	rnd := rand.New(rand.NewSource(1))
	b := transport.GetBatch()
	for i := range 60 {
		p := make([]byte, rnd.Intn(20000))
		rnd.Read(p)
		h := wire.Header{Seq: uint64(i), Len: uint32(len(p))}
		h.Put(b.Frame(p))
	}
	b.Seal()
	want := bytes.Join(b.Pieces, nil)
	var got []byte
	buf := make([]byte, 9000)
	for done, rounds := false, 0; !done || len(got) < len(want); rounds++ {
		if !done {
			if done, err = write(fds[0], b); err != nil {
				t.Fatal(err)
			}
			if !done && b.Left() == 0 {
				t.Fatal("nothing is left, and it is not done")
			}
		}
		n, err := unix.Read(fds[1], buf[:1+rnd.Intn(len(buf)-1)])
		if err != nil || rounds > 1<<20 {
			t.Fatalf("%d of %d bytes have come: %v", len(got), len(want), err)
		}
		got = append(got, buf[:n]...)
	}
	if !bytes.Equal(got, want) {
		t.Error("something else than what was sent has come")
	}
	b.Put()
}

// ordered takes writes whose immediates are numbers.
type ordered struct {
	*one
	next, wrong atomic.Uint32
}

func (o *ordered) Begin() { o.one.Begin(); time.Sleep(time.Millisecond) } // so that the sender's socket fills
func (o *ordered) Written(w transport.Placed) error {
	if w.Imm != o.next.Load() {
		o.wrong.Add(1)
	}
	o.next.Add(1)
	return nil
}

// TestOneFlush: one call of Flush is enough for all that is posted, however much
// more than the socket takes; it comes in order, to the right places.
func TestOneFlush(t *testing.T) {
	x, y := onePair(t, newProvider(t), netip.MustParseAddr("127.0.0.97"))
	to := &ordered{one: y}
	x.l.Start(x, transport.MaxSend)
	y.l.Start(to, transport.MaxSend)
	const n = 200
	data := make([]byte, 8<<20)
	rand.New(rand.NewSource(2)).Read(data)
	for round := range 3 {
		mem := make([]byte, len(data)) // of its own: what is read here must not be written by the next round
		key, addr := y.d.Register(mem)
		at := 0
		for i := range n {
			size := 1 + (i*7919+round)%40000
			if i == n-1 {
				size = len(data) - at
			}
			x.l.Post(&transport.Op{Kind: transport.OpWriteImm, Key: key, Addr: addr + uint64(at), Data: data[at : at+size], Imm: uint32(round*n + i)})
			at += size
		}
		x.l.Flush()
		eventually(t, "the last write", func() bool { return to.next.Load() >= uint32((round+1)*n) })
		if to.wrong.Load() != 0 || !bytes.Equal(mem, data) {
			t.Fatalf("round %d: %d writes out of order, or something else was written", round, to.wrong.Load())
		}
	}
	// The reactor's thread counts the last one as written after it has been read.
	eventually(t, "nothing to be kept", func() bool {
		x.l.mu.Lock()
		defer x.l.mu.Unlock()
		return x.l.out.Ops() == 0
	})
}
