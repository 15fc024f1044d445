package rdsd

import (
	"context"
	"errors"
	"io"
	"iter"

	"google.golang.org/grpc"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/rdserr"
)

// CongestionOption changes what Admin.WatchCongestion begins with.
type CongestionOption func(*rdsdv1.WatchCongestionRequest)

// WatchCurrent begins with the ports that are congested already. The daemon watches
// before it lists them, so that a change meanwhile is told twice and never missed.
func WatchCurrent() CongestionOption {
	return func(r *rdsdv1.WatchCongestionRequest) { r.SetIncludeCurrent(true) }
}

// WatchCongestion reports the ports that become congested or clear, of any socket of
// the daemon, from the moment it returns until ctx ends or the loop is left. A failure,
// such as a daemon that stops (ErrShutdown), or changes that came faster than they were read
// (ErrTooMany: some are lost), is the last element. Ranging over it works
// once; if that never happens, the watch lasts until ctx ends.
func (a *Admin) WatchCongestion(ctx context.Context, opts ...CongestionOption) iter.Seq2[CongestionNotice, error] {
	req := &rdsdv1.WatchCongestionRequest{}
	for _, o := range opts {
		o(req)
	}
	return watch(ctx, "watch congestion", a.pb.WatchCongestion, req, noticeFromProto)
}

// watch asks the daemon for a stream of what happens, and returns once it watches.
func watch[R, P, T any](ctx context.Context, op string, call func(context.Context, *R, ...grpc.CallOption) (grpc.ServerStreamingClient[P], error), req *R, f func(*P) T) iter.Seq2[T, error] {
	if ctx == nil {
		return received(ctx, func() {}, op, grpc.ServerStreamingClient[P](nil), errNoContext, f)
	}
	bound, cancel := context.WithCancel(ctx)
	stream, err := call(bound, req)
	if err == nil {
		_, err = stream.Header() // it comes once the daemon watches; a refusal shows in Recv
	}
	return received(ctx, cancel, op, stream, err, f)
}

// received is the loop over a stream of the daemon that ctx bounds and cancel ends. err is
// why there is none.
func received[P, T any](ctx context.Context, cancel func(), op string, stream grpc.ServerStreamingClient[P], err error, f func(*P) T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		defer cancel()
		for {
			var m *P
			if err == nil {
				m, err = stream.Recv()
			}
			if errors.Is(err, io.EOF) {
				err = rdserr.With(rdserr.ErrShutdown, "the daemon ended the watch")
			}
			if err != nil {
				var none T
				yield(none, callError(ctx, op, err))
				return
			}
			if !yield(f(m), nil) {
				return
			}
		}
	}
}
