package client

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/rdserr"
)

// spent is a socket of a node whose memory another holds until give is called.
func spent(t *testing.T) (s *sockStream, k *keptStream, give func()) {
	t.Helper()
	s, k, n := keptSocket(t, func(*rdsdv1.Bind) {})
	return s, k, spend(t, n)
}

// spend has another hold all memory of a node until give is called.
func spend(t *testing.T, n *world) (give func()) {
	other := n.deps.Memory.Account(quota.Holder{})
	rest := n.deps.Memory.Limit() - n.deps.Memory.Used()
	other.Grow(quota.Regions, rest)
	given := false
	give = func() {
		if !given {
			given = true
			other.Give(quota.Regions, rest)
		}
	}
	t.Cleanup(func() {
		give()
		other.Close()
	})
	return give
}

// TestBatchWaitsForMemory: a batch that may wait does so while others hold all memory, and is accepted
// when they do not any more.
func TestBatchWaitsForMemory(t *testing.T) {
	s, k, give := spent(t)
	const held = 50 * time.Millisecond
	begun := time.Now()
	time.AfterFunc(held, give)
	s.send(crossing(3, true, peerEndpoint(1)))
	if took := time.Since(begun); took < held {
		t.Errorf("it was decided after %v, and memory was there after %v", took, held)
	}
	if got, errs := answered(t, s, k); got != 3 || len(errs) > 0 {
		t.Errorf("%d of 3 are accepted, errors %v", got, errs)
	}
	if s.windowN != 0 || s.windowSize != 0 {
		t.Errorf("%d batches are in the window", s.windowN)
	}
}

// TestWaitForMemoryCounts: what a batch has waited for memory is a part of its time.
func TestWaitForMemoryCounts(t *testing.T) {
	s, _, give := spent(t)
	const held, timeout = 50 * time.Millisecond, time.Minute
	b := crossing(3, true, peerEndpoint(1))
	b.timeout = timeout
	time.AfterFunc(held, give)
	if err := s.awaitWindow(b); err != nil {
		t.Fatal(err)
	}
	s.releaseWindow(len(b.payload), len(b.lengths), len(b.dests))
	if b.timeout > timeout-held || b.timeout < timeout-windowPatience {
		t.Errorf("of %v %v are left after %v", timeout, b.timeout, held)
	}
}

// TestBatchWithoutMemory: a batch does not wait for memory beyond its time, and is then refused whole.
func TestBatchWithoutMemory(t *testing.T) {
	s, k, _ := spent(t)
	b := crossing(3, true, peerEndpoint(1))
	b.timeout = 30 * time.Millisecond
	begun := time.Now()
	s.send(b)
	if took := time.Since(begun); took < 30*time.Millisecond || took >= windowPatience {
		t.Errorf("it was refused after %v", took)
	}
	got, errs := answered(t, s, k)
	if got != 0 || len(errs) != 1 || errs[0].GetCount() != 3 || syscall.Errno(errs[0].GetErrno()) != syscall.ENOMEM {
		t.Errorf("%d are accepted, errors %v", got, errs)
	}
}

// TestWaitForMemoryEnds: a stream that ends waits for no memory, other refusals are not waited out, and
// who holds the memory himself is told at once.
func TestWaitForMemoryEnds(t *testing.T) {
	s, k, give := spent(t)
	ctx, cancel := context.WithCancel(t.Context())
	k.ctx = ctx
	time.AfterFunc(20*time.Millisecond, cancel)
	begun := time.Now()
	if err := s.awaitWindow(crossing(1, true, peerEndpoint(1))); !errors.Is(err, rdserr.ErrClosed) {
		t.Errorf("a stream that has ended: %v", err)
	}
	k.ctx = t.Context()
	s.windowN, s.vain = sendWindowBatches, false
	if err := s.awaitWindow(crossing(1, true, peerEndpoint(1))); !errors.Is(err, rdserr.ErrTooMany) {
		t.Errorf("a window that is full: %v", err)
	}
	s.windowN = 0
	give()
	own := s.front.deps.Memory.Limit() - s.front.deps.Memory.Used()
	s.memory.Grow(quota.Calls, own)
	if err := s.awaitWindow(crossing(1, true, peerEndpoint(1))); !errors.Is(err, rdserr.ErrNoMemory) {
		t.Errorf("the user holds it: %v", err)
	}
	s.memory.Give(quota.Calls, own)
	if took := time.Since(begun); took >= windowPatience {
		t.Errorf("they took %v", took)
	}
}

// TestOneBatchWaitsInVain: a client sends what gives memory back behind its batches, so those behind one
// that has waited in vain do not wait, until one has found memory.
func TestOneBatchWaitsInVain(t *testing.T) {
	s, k, give := spent(t)
	b := crossing(1, true, peerEndpoint(1))
	b.timeout = 20 * time.Millisecond
	begun := time.Now()
	s.send(b)
	for range 20 {
		s.send(crossing(1, true, peerEndpoint(1)))
	}
	if took := time.Since(begun); took >= windowPatience {
		t.Errorf("21 batches took %v", took)
	}
	if err := s.write(true); err != nil || len(k.results) != 21 {
		t.Fatalf("%d answers, %v", len(k.results), err)
	}
	give()
	if s.send(crossing(1, true, peerEndpoint(1))); s.vain {
		t.Error("one has found memory, and those behind it would not wait")
	}
}

// TestOneOfAUserLooks: of the batches of one user that wait for memory one looks at a time, and all
// end in their time.
func TestOneOfAUserLooks(t *testing.T) {
	s, _, _ := spent(t)
	other := newSockStream(s.front, &keptStream{brittleStream: brittleStream{ctx: t.Context(), breaks: -1}}, s.id)
	other.memory = s.memory
	turn := s.front.lacks.Of(s.id.UID)
	defer turn.Leave()
	turn.Take(nil)
	b := crossing(1, true, peerEndpoint(1))
	b.timeout = 20 * time.Millisecond
	begun := time.Now()
	if err := other.awaitWindow(b); !errors.Is(err, rdserr.ErrNoMemory) || time.Since(begun) < 20*time.Millisecond {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
}

// waitingStream is told when it is asked for its context.
type waitingStream struct {
	keptStream
	waits func()
}

func (w *waitingStream) Context() context.Context {
	w.waits()
	return w.keptStream.Context()
}

// TestWaitingMessagesAreCharged: a batch that waits for memory is in it as a message, which is charged; where there is
// none for that it is refused at once.
func TestWaitingMessagesAreCharged(t *testing.T) {
	s, _, n := keptSocket(t, func(*rdsdv1.Bind) {})
	b := clienttest.BatchOf(1, netip.MustParseAddrPort("10.0.0.1:9000"), string(make([]byte, 3<<20)))
	b.SetWait(true)
	b.SetTimeoutNs(1)
	raw, err := proto.Marshal(sending(b))
	if err != nil {
		t.Fatal(err)
	}
	const all = 50
	var come [all]inMsg // to streams of a user
	for i := range come {
		come[i].account = s.memory
		if err := unmarshalCopy(raw, &come[i]); err != nil || come[i].batch.message != 4<<20 {
			t.Fatalf("a message of 3 MiB takes %d bytes: %v", come[i].batch.message, err)
		}
	}
	charged := func() int64 { return n.deps.Memory.Kinds()[quota.Waiting].Used }
	before := charged()
	spend(t, n)
	tried, waiting := 0, int64(0)
	var next func()
	next = func() { // each comes while those that wait do so
		for tried < all {
			in, waits := &come[tried], false
			tried++
			st := &waitingStream{keptStream: keptStream{brittleStream: brittleStream{ctx: t.Context(), breaks: -1}}}
			st.waits = func() {
				if waits {
					return
				}
				waits = true
				if waiting += in.batch.message; charged()-before < waiting {
					t.Fatalf("%d bytes are charged while %d wait", charged()-before, waiting)
				}
				next()
				waiting -= in.batch.message
			}
			other := newSockStream(s.front, st, s.id)
			other.memory = s.memory
			if err := other.awaitWindow(&in.batch); !errors.Is(err, rdserr.ErrNoMemory) {
				t.Error(err)
			}
		}
	}
	next()
	for i := range come {
		come[i].release()
	}
	if got := charged(); got != 0 {
		t.Errorf("%d bytes stay charged", got)
	}
}
