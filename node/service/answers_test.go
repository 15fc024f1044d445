package service

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/unixsock"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// longAnswer has n entries and some more bytes than that.
func longAnswer(n int) *rdsdv1.ListQueueResponse {
	r := &rdsdv1.ListQueueResponse{}
	for i := range n {
		d := &rdsdv1.QueuedDatagram{}
		d.SetSeq(uint64(i) + 1<<40)
		r.SetDatagram(append(r.GetDatagram(), d))
	}
	return r
}

// TestListsInTurn: of a user's lists so many are made at a time, of all its connections
// together. Other calls, and other users' lists, do not wait.
func TestListsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnswers(quota.New(1<<30, nil))
		ctx, end := as(t, 1000)
		defer end()
		begun, finish := make(chan struct{}, 100), make(chan struct{})
		slow := func(context.Context, any) (any, error) {
			begun <- struct{}{}
			<-finish
			return longAnswer(1), nil
		}
		list := &grpc.UnaryServerInfo{FullMethod: rdsdv1.Admin_ListQueue_FullMethodName}
		get := &grpc.UnaryServerInfo{FullMethod: rdsdv1.VolumeService_Get_FullMethodName}
		ended := make(chan error, 100)
		call := func(ctx context.Context, info *grpc.UnaryServerInfo) {
			go func() { _, err := a.unary(ctx, nil, info, slow); ended <- err }() // ends with finish or ctx
		}
		for range listsAtOnce {
			call(ctx, list)
			<-begun
		}
		for _, one := range []*grpc.UnaryServerInfo{list, get} {
			waiting, give := context.WithCancel(ctx)
			call(waiting, one)
			synctest.Wait()
			give()
			if err := <-ended; !errors.Is(err, rdserr.ErrTimeout) || len(begun) != 0 {
				t.Errorf("one more, %s: %v", one.FullMethod, err)
			}
		}
		other, endOther := as(t, 1001)
		defer endOther()
		call(other, list)
		<-begun
		call(ctx, &grpc.UnaryServerInfo{FullMethod: rdsdv1.Admin_Ping_FullMethodName})
		<-begun
		call(ctx, list) // the next, when there is room
		close(finish)
		<-begun
		for range listsAtOnce + 3 {
			if err := <-ended; err != nil {
				t.Errorf("a call ended with %v", err)
			}
		}
		if n := a.lists.Users(); n != 0 {
			t.Errorf("turns of %d users are left", n)
		}
	})
}

// sink is a stream whose client reads slowly.
type sink struct {
	grpc.ServerStream
	ctx  context.Context
	send func() error
}

func (s *sink) Context() context.Context { return s.ctx }
func (s *sink) SendMsg(any) error        { return s.send() }

// TestStreamsSendInTurn: a user's streams give gRPC so many messages at a time, however many they
// are; one whose client does not read holds up the others for a moment only, and other users' never.
func TestStreamsSendInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnswers(quota.New(1<<30, nil))
		ctx, end := as(t, 1000)
		defer end()
		other, endOther := as(t, 1001)
		defer endOther()
		const streams, each = 20, 10
		var mu sync.Mutex
		var at, most, sent int
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			at += n
			most = max(most, at)
		}
		send := func() error {
			count(1)
			time.Sleep(time.Millisecond)
			count(-1)
			mu.Lock()
			defer mu.Unlock()
			sent++
			return nil
		}
		run := func(ctx context.Context, n int, send func() error) error {
			return a.stream(nil, &sink{ctx: ctx, send: send}, &grpc.StreamServerInfo{}, func(_ any, ss grpc.ServerStream) error {
				for range n {
					if err := ss.SendMsg(&rdsdv1.CongestionNotice{}); err != nil {
						return err
					}
				}
				return nil
			})
		}
		ended := make(chan error, streams)
		for range streams {
			go func() { ended <- run(ctx, each, send) }() // ends with its messages
		}
		synctest.Wait()
		begun := time.Now()
		if err := run(other, 1, func() error { return nil }); err != nil || !time.Now().Equal(begun) {
			t.Errorf("another user's message took %v: %v", time.Since(begun), err)
		}
		for range streams {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if most != sendsAtOnce || sent != streams*each {
			t.Errorf("%d messages, %d at a time", sent, most)
		}

		stopped, stop := context.WithCancel(ctx)
		for range sendsAtOnce + 1 { // clients that do not read
			go func() { ended <- run(stopped, 1, func() error { <-stopped.Done(); return stopped.Err() }) }() // ends with stop
		}
		synctest.Wait()
		begun = time.Now()
		if err := run(ctx, 1, func() error { return nil }); err != nil || time.Since(begun) > 2*sendLease {
			t.Errorf("behind clients that do not read a message took %v: %v", time.Since(begun), err)
		}
		stop()
		for range sendsAtOnce + 1 {
			if err := <-ended; err == nil {
				t.Error("a stream outlived its client")
			}
		}
		if n := a.sends.Users(); n != 0 {
			t.Errorf("turns of %d users are left", n)
		}
	})
}

// TestAnswersAreCharged: a large answer is charged to whoever asked as long as its bytes are in
// memory, whatever became of them, and is the same answer.
func TestAnswersAreCharged(t *testing.T) {
	node := quota.New(512<<10, nil) // room for one, of 180,000 bytes
	a := newAnswers(node)
	small, large := longAnswer(10), longAnswer(20_000)
	if got, err := a.charged(1, small); err != nil || got != proto.Message(small) || node.Used() != 0 {
		t.Errorf("a small answer: %v, %d bytes are charged", err, node.Used())
	}
	got, err := a.charged(1, large)
	if err != nil || node.Used() != int64(proto.Size(large)) {
		t.Fatalf("a large answer: %v, %d bytes are charged", err, node.Used())
	}
	back := &rdsdv1.ListQueueResponse{}
	if err := proto.Unmarshal(got.(client.Encoded).Bytes, back); err != nil || !proto.Equal(back, large) {
		t.Errorf("the answer is another one: %v", err)
	}
	// As long as somebody has it there is no room for the next.
	if _, err := a.charged(1, large); !errors.Is(err, rdserr.ErrNoMemory) || node.Used() != int64(proto.Size(large)) {
		t.Errorf("the next one: %v, %d bytes are charged", err, node.Used())
	}
	runtime.KeepAlive(got)
	got = nil
	await.Until(t, time.Minute, "There is room when it is gone.", func() bool {
		got, err = a.charged(1, large)
		return err == nil
	})
	got = nil
	await.Until(t, time.Minute, "Nothing is charged when all are gone.", func() bool {
		runtime.GC()
		return node.Used() == 0 && len(node.Holders()) == 0
	})
	runtime.KeepAlive(got)
}

// TestAnswersAreCollected: nobody is charged for long for what is gone, in a daemon that has nothing
// else to collect; and what is read late is found later.
func TestAnswersAreCollected(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // nobody else collects
	node := quota.New(1<<30, nil)
	a := newAnswers(node)
	a.after = time.Millisecond
	kept, err := a.charged(1000, longAnswer(10000))
	if err != nil {
		t.Fatal(err)
	}
	length := node.Used()
	if _, err := a.charged(1000, longAnswer(10000)); err != nil {
		t.Fatal(err)
	}
	await.Until(t, time.Minute, "What is gone is charged no more.", func() bool { return node.Used() == length })
	runtime.KeepAlive(kept)
	await.Until(t, time.Minute, "What went later neither.", func() bool { return node.Used() == 0 })
}

// TestAnswersOverTheWire: calls of clients have their answers charged, and read them.
func TestAnswersOverTheWire(t *testing.T) {
	w := startWorld(t, func(*config.Config) {})
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // nobody collects
	w.services.answers.after = time.Hour
	h := w.hosts.Locals()[0]
	const sockets = 1000 // some 70 bytes each
	for range sockets {
		e, _ := h.Lock()
		s, err := e.Bind(0, rds.SocketOptions{Label: "one of many, with a label that takes some room in a list"})
		h.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			_, now := h.Lock()
			s.Close(now)
			h.Unlock()
		}()
	}
	l, err := unixsock.Listen("unix", w.deps.Config.API.Socket, 0o600, unixsock.KeepGroup)
	if err != nil {
		t.Fatal(err)
	}
	srv := w.services.NewServer(true)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }() // ends with Stop
	defer func() { srv.Stop(); <-served }()
	a := rdsdv1.NewAdminClient(dialSocket(t, w.deps.Config))
	used := func() int64 { return w.deps.Memory.Kinds()[quota.Calls].Used }
	if _, err := a.GetStatus(t.Context(), &rdsdv1.GetStatusRequest{}); err != nil {
		t.Fatal(err)
	}
	// What has no memory for it answers so: the charge is in the way of all calls.
	w.services.answers.memory = quota.New(1<<10, nil)
	if _, err := a.ListSockets(t.Context(), &rdsdv1.ListSocketsRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("without memory: %v", err)
	}
	describe := func() error {
		s, err := reflectionpb.NewServerReflectionClient(dialSocket(t, w.deps.Config)).ServerReflectionInfo(t.Context())
		if err != nil {
			return err
		}
		s.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "rdsd.v1.Admin"}})
		_, err = s.Recv()
		return err
	}
	if err := describe(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("without memory, a stream: %v", err)
	}
	w.services.answers.memory = w.deps.Memory
	if err := describe(); err != nil {
		t.Errorf("a description of the API: %v", err)
	}
	before := used() // the connection's own
	r, err := a.ListSockets(t.Context(), &rdsdv1.ListSocketsRequest{})
	if err != nil || len(r.GetSocket()) != sockets {
		t.Fatalf("%d sockets, %v", len(r.GetSocket()), err)
	}
	if proto.Size(r) <= answerFree+2*callGrain {
		t.Fatalf("an answer of %d bytes cannot be told from what connections are charged", proto.Size(r))
	}
	await.Until(t, time.Minute, "It is charged no more when it was sent.", func() bool { return used() <= before+2*callGrain })
}
