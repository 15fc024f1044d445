package cli

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// endingAdmin answers some pings and then ends.
type endingAdmin struct {
	fakeAdmin
	left atomic.Int32
}

func (e *endingAdmin) Ping(ctx context.Context, req *rdsdv1.PingRequest) (*rdsdv1.PingResponse, error) {
	if e.left.Add(-1) < 0 {
		return nil, rdserr.ErrShutdown
	}
	return e.fakeAdmin.Ping(ctx, req)
}

// TestPingSumsUpWhenTheDaemonEnds: what was measured is told, and its exit code is that of replies.
func TestPingSumsUpWhenTheDaemonEnds(t *testing.T) {
	for pings, code := range map[int32]int{2: 0, 0: exitUnreachable} {
		socket := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		admin := &endingAdmin{}
		admin.left.Store(pings)
		s := grpc.NewServer(grpc.UnaryInterceptor(rdsdv1.UnaryErrno), grpc.StreamInterceptor(rdsdv1.StreamErrno))
		rdsdv1.RegisterAdminServer(s, admin)
		go s.Serve(l) // ended by Stop
		t.Cleanup(s.Stop)
		var out, errw bytes.Buffer
		got := Main([]string{"rdsd", "--socket", socket, "ping", "-i", "1ms", "10.0.0.2"}, strings.NewReader(""), &out, &errw)
		if got != code || errw.Len() == 0 || strings.Contains(out.String(), "2 sent, 2 received, 0% lost") != (pings > 0) {
			t.Errorf("after %d pings: exit %d, %s%s", pings, got, &out, &errw)
		}
	}
}

// silentAdmin answers no ping.
type silentAdmin struct {
	fakeAdmin
	asked chan struct{}
}

func (s *silentAdmin) Ping(ctx context.Context, _ *rdsdv1.PingRequest) (*rdsdv1.PingResponse, error) {
	s.asked <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestPingInterrupted: one that ends before anything is known of the node does not say that it answered.
func TestPingInterrupted(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	admin := &silentAdmin{asked: make(chan struct{}, 1)}
	s := grpc.NewServer(grpc.UnaryInterceptor(rdsdv1.UnaryErrno), grpc.StreamInterceptor(rdsdv1.StreamErrno))
	rdsdv1.RegisterAdminServer(s, admin)
	go s.Serve(l) // ended by Stop
	t.Cleanup(s.Stop)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-admin.asked; cancel() }() // ended by the ping
	var out, errw bytes.Buffer
	if got := run(ctx, []string{"--socket", socket, "ping", "10.0.0.2"}, strings.NewReader(""), &out, &errw); got != exitInterrupted || errw.Len() > 0 {
		t.Errorf("exit %d, %s%s", got, &out, &errw)
	}
}
