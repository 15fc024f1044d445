package rdsd

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// fakeAdmin answers each call with what the test put there, and keeps the request.
// Without an answer it fails with err.
type fakeAdmin struct {
	rdsdv1.UnimplementedAdminServer
	req      proto.Message
	answer   proto.Message
	err      error
	notices  []*rdsdv1.CongestionNotice
	hold     bool          // do not answer; keep a watch open after the notices
	held     chan struct{} // told when a call is held
	watched  atomic.Bool   // WatchCongestion has said that it watches
	released chan struct{} // told when a watch that was held has ended
}

func answered[T proto.Message](ctx context.Context, f *fakeAdmin, req proto.Message) (none T, err error) {
	f.req = req
	if f.hold {
		f.held <- struct{}{}
		<-ctx.Done()
		return none, ctx.Err()
	}
	if f.answer == nil {
		return none, f.err
	}
	return f.answer.(T), nil
}

func (f *fakeAdmin) GetStatus(ctx context.Context, r *rdsdv1.GetStatusRequest) (*rdsdv1.Status, error) {
	return answered[*rdsdv1.Status](ctx, f, r)
}

func (f *fakeAdmin) ListPeers(ctx context.Context, r *rdsdv1.ListPeersRequest) (*rdsdv1.ListPeersResponse, error) {
	return answered[*rdsdv1.ListPeersResponse](ctx, f, r)
}

func (f *fakeAdmin) ListSockets(ctx context.Context, r *rdsdv1.ListSocketsRequest) (*rdsdv1.ListSocketsResponse, error) {
	return answered[*rdsdv1.ListSocketsResponse](ctx, f, r)
}

func (f *fakeAdmin) ListQueue(ctx context.Context, r *rdsdv1.ListQueueRequest) (*rdsdv1.ListQueueResponse, error) {
	return answered[*rdsdv1.ListQueueResponse](ctx, f, r)
}

func (f *fakeAdmin) GetCounters(ctx context.Context, r *rdsdv1.GetCountersRequest) (*rdsdv1.GetCountersResponse, error) {
	return answered[*rdsdv1.GetCountersResponse](ctx, f, r)
}

func (f *fakeAdmin) GetCongestionHistory(ctx context.Context, r *rdsdv1.GetCongestionHistoryRequest) (*rdsdv1.CongestionHistory, error) {
	return answered[*rdsdv1.CongestionHistory](ctx, f, r)
}

func (f *fakeAdmin) ListCongestionMaps(ctx context.Context, r *rdsdv1.ListCongestionMapsRequest) (*rdsdv1.ListCongestionMapsResponse, error) {
	return answered[*rdsdv1.ListCongestionMapsResponse](ctx, f, r)
}

func (f *fakeAdmin) ListCongestion(ctx context.Context, r *rdsdv1.ListCongestionRequest) (*rdsdv1.ListCongestionResponse, error) {
	return answered[*rdsdv1.ListCongestionResponse](ctx, f, r)
}

func (f *fakeAdmin) ListErrors(ctx context.Context, r *rdsdv1.ListErrorsRequest) (*rdsdv1.ListErrorsResponse, error) {
	return answered[*rdsdv1.ListErrorsResponse](ctx, f, r)
}

func (f *fakeAdmin) GetConfig(ctx context.Context, r *rdsdv1.GetConfigRequest) (*rdsdv1.GetConfigResponse, error) {
	return answered[*rdsdv1.GetConfigResponse](ctx, f, r)
}

func (f *fakeAdmin) Ping(ctx context.Context, r *rdsdv1.PingRequest) (*rdsdv1.PingResponse, error) {
	return answered[*rdsdv1.PingResponse](ctx, f, r)
}

func (f *fakeAdmin) DropPath(ctx context.Context, r *rdsdv1.DropPathRequest) (*rdsdv1.DropPathResponse, error) {
	return answered[*rdsdv1.DropPathResponse](ctx, f, r)
}

func (f *fakeAdmin) CancelSent(ctx context.Context, r *rdsdv1.CancelSentRequest) (*rdsdv1.CancelSentResponse, error) {
	return answered[*rdsdv1.CancelSentResponse](ctx, f, r)
}

func (f *fakeAdmin) CloseSocket(ctx context.Context, r *rdsdv1.CloseSocketRequest) (*rdsdv1.CloseSocketResponse, error) {
	return answered[*rdsdv1.CloseSocketResponse](ctx, f, r)
}

func (f *fakeAdmin) WatchCongestion(r *rdsdv1.WatchCongestionRequest, s grpc.ServerStreamingServer[rdsdv1.CongestionNotice]) error {
	f.req = r
	f.watched.Store(true) // before it says so, as the daemon does
	if err := s.SendHeader(nil); err != nil {
		return err
	}
	for _, n := range f.notices {
		if err := s.Send(n); err != nil {
			return err
		}
	}
	if f.hold {
		f.held <- struct{}{}
		<-s.Context().Done()
		f.released <- struct{}{}
	}
	return f.err
}

// newFakeAdmin serves f and returns a client of it.
func newFakeAdmin(t *testing.T, f *fakeAdmin) *Admin {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	f.held = make(chan struct{}, 1)
	server := grpc.NewServer(grpc.UnaryInterceptor(rdsdv1.UnaryErrno), grpc.StreamInterceptor(rdsdv1.StreamErrno))
	rdsdv1.RegisterAdminServer(server, f)
	served := make(chan struct{})
	go func() { // ended by Stop
		defer close(served)
		_ = server.Serve(l)
	}()
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		server.Stop()
		<-served
	})
	return c.Admin()
}
