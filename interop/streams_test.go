package interop

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

var lastPort atomic.Uint32

// newPort returns an RDS port no test has used: what one left behind on the
// wire or in the kernel cannot reach another.
func newPort() uint16 { return uint16(20000 + lastPort.Add(1)) }

// streams is signed traffic both ways between one pair of addresses: flow 1
// from us, flow 2 from the kernel.
type streams struct {
	pr         pair
	count      int
	size       Size
	ours       *rdsd.Socket
	kernelPort uint16
	down, up   *Job // the kernel's receiver and sender
	received   atomic.Int64
	sent       atomic.Int64
	sendErr    chan error
	recvErr    chan error
	check      *Checker // owned by the receiving goroutine until recvErr
	// excused judges what the kernel's receiver misses; nil: nothing may be missed.
	excused func(Report) bool
}

func startStreams(ctx context.Context, t *testing.T, l *lab, d *daemon, pr pair, count int, size Size) *streams {
	t.Helper()
	s := &streams{
		pr: pr, count: count, size: size, kernelPort: newPort(),
		sendErr: make(chan error, 1), recvErr: make(chan error, 1),
		check: NewChecker(map[uint32]int{2: count}),
	}
	s.ours = d.bind(ctx, t, pr.ours, newPort(), rdsd.WithRecvBuffer(4<<20))
	s.down = kernelRecv(ctx, t, l, map[string]any{
		"local": at(pr.kernel, s.kernelPort), "want": map[int]int{1: count},
		"rcvbuf": 4 << 20, "timeout": 20, "linger": 0.2,
	})
	s.up = kernelSend(ctx, t, l, map[string]any{
		"local": at(pr.kernel, newPort()), "dst": at(pr.ours, s.ours.LocalAddr().Port()),
		"flow": 2, "count": count, "size": size,
	})
	go func() { s.sendErr <- s.send(ctx) }()
	go func() { s.recvErr <- s.recv(ctx) }()
	return s
}

func (s *streams) send(ctx context.Context) error {
	dst := netip.AddrPortFrom(s.pr.kernel, s.kernelPort)
	return sendSigned(ctx, s.ours, dst, 1, s.count, s.size, &s.sent)
}

func (s *streams) recv(ctx context.Context) error {
	return recvSigned(ctx, s.ours, s.check, &s.received)
}

// finish waits for both directions and judges them.
func (s *streams) finish(ctx context.Context, t *testing.T) {
	t.Helper()
	began := time.Now()
	if err := <-s.recvErr; err != nil {
		t.Errorf("receive from the kernel: %v", err)
	}
	if err := s.check.Report().Err(); err != nil {
		t.Errorf("from the kernel: %v", err)
	}
	if err := <-s.sendErr; err != nil {
		t.Errorf("send to the kernel: %v", err)
	}
	var r Report
	if err := s.down.Wait(ctx, &r); err != nil {
		t.Errorf("the kernel's receiver: %v", err)
	} else if err := r.Err(); err != nil {
		if s.excused == nil || !s.excused(r) {
			t.Errorf("to the kernel: %v", err)
		} else {
			t.Logf("the kernel's own loss: %v", err)
		}
	}
	release(ctx, t, s.up)
	t.Logf("%d each way, waited %.1f s at the end, the kernel's receiver took %.1f s",
		s.count, time.Since(began).Seconds(), r.Seconds)
}

// sendSigned sends a whole flow in batches. progress may be nil.
func sendSigned(ctx context.Context, s *rdsd.Socket, dst netip.AddrPort, flow uint32, count int, size Size, progress *atomic.Int64) error {
	const batch = 32
	for n := 0; n < count; {
		var ds []rdsd.Datagram
		for ; n < count && len(ds) < batch; n++ {
			ds = append(ds, rdsd.Datagram{Addr: dst, Payload: Sign(nil, flow, uint64(n), size.Of(n))})
		}
		if _, err := s.SendBatch(ctx, ds); err != nil {
			return err
		}
		if progress != nil {
			progress.Store(int64(n))
		}
	}
	return nil
}

// recvSigned receives until the checker has all, or nothing came for a while.
func recvSigned(ctx context.Context, s *rdsd.Socket, c *Checker, progress *atomic.Int64) error {
	into := make([]rdsd.Datagram, 256)
	got := int64(0)
	for {
		patience := 20 * time.Second
		if c.Left() <= 0 {
			patience = 200 * time.Millisecond // a double would come now
		}
		quiet, cancel := context.WithTimeout(ctx, patience)
		n, err := s.RecvBatch(quiet, into)
		cancel()
		if err != nil && c.Left() <= 0 {
			return nil
		}
		if err != nil {
			return err
		}
		for _, d := range into[:n] {
			c.Add(d.Payload)
		}
		got += int64(n)
		if progress != nil {
			progress.Store(got)
		}
	}
}

// kernelRecv starts a receiver in the guest and waits until it is bound.
func kernelRecv(ctx context.Context, t *testing.T, l *lab, args map[string]any) *Job {
	t.Helper()
	j, err := l.vm.Start("recv", args)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Event(ctx, "bound"); err != nil {
		t.Fatal(err)
	}
	killAtEnd(t, j)
	return j
}

func kernelSend(ctx context.Context, t *testing.T, l *lab, args map[string]any) *Job {
	t.Helper()
	j, err := l.vm.Start("send", args)
	if err != nil {
		t.Fatal(err)
	}
	killAtEnd(t, j)
	return j
}

func killAtEnd(t *testing.T, j *Job) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = j.Kill(ctx) // usually it has ended already
	})
}

type sendStats struct {
	Sent        int     `json:"sent"`
	ENOBUFS     int     `json:"enobufs"`
	EAGAIN      int     `json:"eagain"`
	Wakes       int     `json:"wakes"`
	Seconds     float64 `json:"seconds"`
	LongestWait float64 `json:"longest_wait"`
}

// release lets a kernel sender close its socket, after all it sent has come.
func release(ctx context.Context, t *testing.T, j *Job) (s sendStats) {
	t.Helper()
	if _, err := j.Event(ctx, "sent"); err != nil {
		t.Errorf("the kernel's sender: %v", err)
		return s
	}
	if err := j.Tell(ctx); err != nil {
		t.Error(err)
	}
	if err := j.Wait(ctx, &s); err != nil {
		t.Errorf("the kernel's sender: %v", err)
	}
	return s
}
