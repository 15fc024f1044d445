package rdsd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

func goErr(f func() error) chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

func waitErr(t *testing.T, done chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatal("the call does not return")
		return nil
	}
}

func TestSendAccepted(t *testing.T) {
	_, _, s, st := bindFake(t)
	done := goErr(func() error { return s.Send(testContext(t), peerAddr, []byte("hello")) })
	b := st.nextSend()
	if b.GetWait() || string(b.GetPayload()) != "hello" || len(b.GetLength()) != 1 || b.GetWantOutcomes() {
		t.Errorf("batch %v", b)
	}
	if got := endpointFromProto(b.GetDestination()[0]); got != peerAddr {
		t.Errorf("destination %v", got)
	}
	st.sendResult(b)
	if err := waitErr(t, done); err != nil {
		t.Fatal(err)
	}
}

// A send that finds no room asks again and waits, alone in its batch.
func TestSendWaitsAfterRefusal(t *testing.T) {
	for _, refusal := range []*rdserr.Error{rdserr.ErrWouldBlock, rdserr.ErrCongested} {
		t.Run(refusal.Name, func(t *testing.T) {
			_, _, s, st := bindFake(t)
			done := goErr(func() error { return s.Send(testContext(t), peerAddr, []byte("x")) })
			b := st.nextSend()
			st.sendResult(b, sendError(0, 1, refusal))
			b = st.nextSend()
			if !b.GetWait() || b.GetTimeoutNs() <= 0 || b.GetTimeoutNs() > int64(patience) {
				t.Errorf("second attempt: wait %v timeout %d", b.GetWait(), b.GetTimeoutNs())
			}
			st.sendResult(b)
			if err := waitErr(t, done); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestTrySendErrors(t *testing.T) {
	_, _, s, st := bindFake(t)
	for _, e := range []*rdserr.Error{rdserr.ErrWouldBlock, rdserr.ErrCongested, rdserr.ErrTooLarge, rdserr.ErrFamily,
		rdserr.ErrHostDown, rdserr.ErrPerm} {
		done := goErr(func() error { return s.TrySend(peerAddr, []byte("x")) })
		st.sendResult(st.nextSend(), sendError(0, 1, e))
		err := waitErr(t, done)
		wantErr(t, err, e, e.Errno)
		var op *OpError
		if !errors.As(err, &op) || op.Op != "try-send" || op.Local != localAddr || op.Remote != peerAddr || op.Undecided {
			t.Errorf("%+v", op)
		}
	}
	wantErr(t, s.TrySend(netip.AddrPort{}, nil), rdserr.ErrDestination)
	wantErr(t, s.TrySend(netip.MustParseAddrPort("0.0.0.0:7"), nil), rdserr.ErrDestination)
	wantErr(t, s.TrySend(peerAddr, make([]byte, 1<<20+1)), syscall.EMSGSIZE)
	st.wantIdle(s, "what is wrong for certain is not sent")
}

// While a write is under way, single sends gather in one batch and each gets
// its own answer.
func TestGather(t *testing.T) {
	_, _, s, st := bindFake(t)
	s.mu.Lock()
	sess := streamOf(s).sess
	sess.writing = true // as if somebody were in SendMsg
	s.mu.Unlock()
	const n = 8
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = s.TrySend(peerAddr, fmt.Append(nil, i)) })
	}
	for {
		s.mu.Lock()
		queued := 0
		if streamOf(s).tryq.len() > 0 {
			queued = len((*streamOf(s).tryq.front()).parts)
		}
		if queued == n {
			sess.writing = false
			sess.kickWriterLocked()
			s.mu.Unlock()
			break
		}
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	b := st.nextSend()
	if len(b.GetLength()) != n || len(b.GetDestination()) != 1 {
		t.Fatalf("%d datagrams to %d destinations in the batch, want %d to 1", len(b.GetLength()), len(b.GetDestination()), n)
	}
	st.sendResult(b, sendError(3, 2, rdserr.ErrCongested))
	wg.Wait()
	refused := map[byte]bool{b.GetPayload()[3]: true, b.GetPayload()[4]: true}
	for i, err := range errs {
		if want := refused[byte('0'+i)]; errors.Is(err, rdserr.ErrCongested) != want {
			t.Errorf("datagram %d: %v, refused %v", i, err, want)
		}
	}
}

func TestSendBatchPartlyRefused(t *testing.T) {
	_, _, s, st := bindFake(t)
	ds := []Datagram{
		{Addr: peerAddr, Payload: []byte("one")},
		{Addr: otherAddr, Payload: []byte("two")},
		{Addr: netip.AddrPort{}, Payload: []byte("nowhere")},
		{Addr: peerAddr},
		{Addr: peerAddr, Payload: []byte("last")},
	}
	var accepted int
	done := goErr(func() (err error) { accepted, err = s.SendBatch(testContext(t), ds); return err })
	b := st.nextSend()
	if b.GetWait() || string(b.GetPayload()) != "onetwo" {
		t.Errorf("first part %v", b)
	}
	st.sendResult(b, sendError(1, 1, rdserr.ErrPerm))
	b = st.nextSend()
	if string(b.GetPayload()) != "last" || len(b.GetLength()) != 2 {
		t.Errorf("second part %v", b)
	}
	st.sendResult(b)
	err := waitErr(t, done)
	wantErr(t, err, rdserr.ErrPerm, rdserr.ErrDestination)
	var be *BatchError
	if !errors.As(err, &be) || accepted != 3 || len(be.Errors) != 2 || be.Errors[0].Index != 1 || be.Errors[1].Index != 2 {
		t.Fatalf("accepted %d, %+v", accepted, be)
	}
	for i := range ds {
		if ds[i].Tag != ds[0].Tag+uint64(i) {
			t.Errorf("tags are not consecutive: %v", ds)
		}
	}
}

// What finds no room is sent again, waiting, and only that.
func TestSendBatchWaits(t *testing.T) {
	_, _, s, st := bindFake(t, WithOutcomes())
	ds := []Datagram{
		{Addr: peerAddr, Payload: []byte("a")}, {Addr: otherAddr, Payload: []byte("b")},
		{Addr: peerAddr, Payload: []byte("c")}, {Addr: peerAddr, Payload: []byte("d")},
	}
	var accepted int
	done := goErr(func() (err error) { accepted, err = s.SendBatch(testContext(t), ds); return err })
	st.sendResult(st.nextSend(), sendError(0, 1, rdserr.ErrCongested), sendError(2, 2, rdserr.ErrCongested))
	first, second := st.nextSend(), st.nextSend()
	for _, b := range []*rdsdv1.SendBatch{first, second} {
		if !b.GetWait() || b.GetTimeoutNs() <= 0 {
			t.Errorf("%v does not wait", b)
		}
	}
	if string(first.GetPayload()) != "a" || first.GetFirstTag() != ds[0].Tag ||
		string(second.GetPayload()) != "cd" || second.GetFirstTag() != ds[2].Tag {
		t.Errorf("sent again: %v, %v", first, second)
	}
	st.sendResult(second, sendError(1, 1, rdserr.ErrTimeout))
	st.sendResult(first)
	err := waitErr(t, done)
	wantErr(t, err, rdserr.ErrTimeout)
	if be, ok := errors.AsType[*BatchError](err); !ok || accepted != 3 || len(be.Errors) != 1 || be.Errors[0].Index != 3 {
		t.Errorf("accepted %d, %v", accepted, err)
	}
}

// Batches of several callers travel together while the daemon has two to answer,
// and each caller gets its own errors.
func TestSendBatchesJoin(t *testing.T) {
	_, _, s, st := bindFake(t)
	send := func(text string) chan error {
		return goErr(func() error {
			_, err := s.SendBatch(testContext(t), []Datagram{{Addr: peerAddr, Payload: []byte(text)}, {Addr: otherAddr}})
			return err
		})
	}
	dones := []chan error{send("1")}
	first := st.nextSend()
	dones = append(dones, send("2"))
	second := st.nextSend()
	for i, text := range []string{"3", "4", "5"} {
		dones = append(dones, send(text))
		for joined(s) != i+1 {
			time.Sleep(time.Millisecond)
		}
	}
	st.wantIdle(s, "two tries are without a result")
	st.sendResult(first)
	third := st.nextSend()
	if string(third.GetPayload()) != "345" || len(third.GetLength()) != 6 || len(third.GetDestination()) != 2 {
		t.Fatalf("joined: %v", third)
	}
	st.sendResult(third, sendError(1, 2, rdserr.ErrPerm)) // the last of one, the first of the next
	st.sendResult(second)
	for i, done := range dones {
		err := waitErr(t, done)
		if want := i == 2 || i == 3; want != (err != nil) {
			t.Errorf("caller %d: %v", i+1, err)
		}
		if be, ok := errors.AsType[*BatchError](err); ok && (len(be.Errors) != 1 || be.Errors[0].Index != 3-i) {
			t.Errorf("caller %d: %+v", i+1, be.Errors)
		}
	}
}

// joined is how many calls share the last queued try.
func joined(s *Socket) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if streamOf(s).tryq.len() == 0 {
		return 0
	}
	return len((*streamOf(s).tryq.back()).parts)
}

// A batch larger than a message goes out in parts, one after the other.
func TestSendBatchChunks(t *testing.T) {
	_, _, s, st := bindFake(t)
	big := bytes.Repeat([]byte("x"), 400<<10)
	ds := make([]Datagram, 5)
	for i := range ds {
		ds[i] = Datagram{Addr: peerAddr, Payload: big}
	}
	done := goErr(func() error { _, err := s.SendBatch(testContext(t), ds); return err })
	for _, want := range []int{2, 2, 1} {
		b := st.nextSend()
		if len(b.GetLength()) != want || len(b.GetPayload()) != want*len(big) {
			t.Fatalf("%d datagrams, want %d", len(b.GetLength()), want)
		}
		st.sendResult(b)
	}
	if err := waitErr(t, done); err != nil {
		t.Fatal(err)
	}
}

// No more batches and bytes than the window go without a result; senders that
// wait for room leave a quarter of it to others.
func TestSendWindow(t *testing.T) {
	_, _, s, st := bindFakeAs(t, func(b *rdsdv1.Bound) { b.SetSendWindowBatches(4); b.SetSendWindowBytes(4000) })
	ctx := testContext(t)
	var dones []chan error
	var held []*rdsdv1.SendBatch
	for range 5 {
		dones = append(dones, goErr(func() error {
			_, err := s.SendBatch(ctx, []Datagram{{Addr: peerAddr, Payload: make([]byte, 100)}})
			return err
		}))
		if len(dones) == 1 { // the others see that one waits, and do not try
			st.sendResult(st.nextSend(), sendError(0, 1, rdserr.ErrCongested))
		}
		if len(dones) <= 3 {
			b := st.nextSend()
			if !b.GetWait() {
				t.Fatal("tried, with another waiting for the same destination")
			}
			held = append(held, b)
		}
	}
	st.wantIdle(s, "waiting batches have three quarters of the window")

	try := goErr(func() error { return s.TrySend(otherAddr, make([]byte, 3000)) })
	tb := st.nextSend()
	if tb.GetWait() {
		t.Fatal("this is not the try")
	}
	wantErr(t, s.TrySend(otherAddr, nil), rdserr.ErrWouldBlock) // 4 batches without a result
	st.sendResult(held[0])
	held = held[1:]
	wantErr(t, s.TrySend(otherAddr, make([]byte, 1000)), rdserr.ErrWouldBlock) // bytes
	held = append(held, st.nextSend())                                         // the fourth waiting batch
	st.sendResult(tb)
	if err := waitErr(t, try); err != nil {
		t.Fatal(err)
	}
	st.sendResult(held[0])
	held = append(held[1:], st.nextSend()) // the fifth
	for _, b := range held {
		st.sendResult(b)
	}
	for _, d := range dones {
		if err := waitErr(t, d); err != nil {
			t.Fatal(err)
		}
	}
}

// The end of a context takes back what was not written, and says "undecided"
// of what was.
func TestSendContextEnds(t *testing.T) {
	_, _, s, st := bindFakeAs(t, func(b *rdsdv1.Bound) { b.SetSendWindowBatches(1) })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	written := goErr(func() error { return s.Send(ctx, peerAddr, []byte("written")) })
	b := st.nextSend()
	queued := goErr(func() error { return s.Send(ctx, peerAddr, []byte("queued")) })
	for {
		s.mu.Lock()
		n := streamOf(s).tryq.len()
		s.mu.Unlock()
		if n == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	for name, done := range map[string]chan error{"written": written, "queued": queued} {
		err := waitErr(t, done)
		wantErr(t, err, context.Canceled, rdserr.ErrCanceled, syscall.ECANCELED)
		var op *OpError
		if errors.As(err, &op); op.Undecided != (name == "written") {
			t.Errorf("%s: undecided %v", name, op.Undecided)
		}
	}
	st.sendResult(b)
	st.wantIdle(s, "what was taken back is not sent")
}

func TestSendDeadline(t *testing.T) {
	_, _, s, st := bindFake(t)
	ctx := newExpiring()
	done := goErr(func() error { return s.Send(ctx, peerAddr, nil) })
	st.nextSend() // and no answer
	close(ctx.passed)
	err := waitErr(t, done)
	wantErr(t, err, rdserr.ErrTimeout, syscall.ETIMEDOUT, context.DeadlineExceeded)
	var timeout interface{ Timeout() bool }
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("%v is not a timeout", err)
	}

	// The daemon's own ETIMEDOUT is the same error, and decided.
	done = goErr(func() error { _, err := s.SendBatch(testContext(t), []Datagram{{Addr: peerAddr}}); return err })
	st.sendResult(st.nextSend(), sendError(0, 1, rdserr.ErrTimeout))
	err = waitErr(t, done)
	wantErr(t, err, rdserr.ErrTimeout, context.DeadlineExceeded)
	var op *OpError
	if !errors.As(err, &op) || op.Undecided {
		t.Errorf("%+v", op)
	}
}
