package client

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rdserr"
)

// spent is a socket of a node whose memory another holds until give is called.
func spent(t *testing.T) (s *sockStream, k *keptStream, give func()) {
	t.Helper()
	s, k, n := keptSocket(t, func(*rdsdv1.Bind) {})
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
	return s, k, give
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

// TestWaitForMemoryEnds: a stream that ends waits for no memory, and other refusals are not waited out.
func TestWaitForMemoryEnds(t *testing.T) {
	s, k, _ := spent(t)
	ctx, cancel := context.WithCancel(t.Context())
	k.ctx = ctx
	time.AfterFunc(20*time.Millisecond, cancel)
	begun := time.Now()
	if err := s.awaitWindow(crossing(1, true, peerEndpoint(1))); !errors.Is(err, rdserr.ErrClosed) {
		t.Errorf("a stream that has ended: %v", err)
	}
	s.windowN = sendWindowBatches
	if err := s.awaitWindow(crossing(1, true, peerEndpoint(1))); !errors.Is(err, rdserr.ErrTooMany) {
		t.Errorf("a window that is full: %v", err)
	}
	s.windowN = 0
	if took := time.Since(begun); took >= windowPatience {
		t.Errorf("they took %v", took)
	}
}
