package service

import (
	"context"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/ratelimit"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"google.golang.org/grpc"

	"github.com/rdsd/rdsd/node/access"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/rdserr"
)

// callLimit is the limiter of a node's users as interceptors of gRPC.
type callLimit struct {
	*access.Limiter
	count *base.Counters
}

// Limit implements ratelimit.Limiter.
func (l callLimit) Limit(ctx context.Context) error {
	if l.Allow(identityFrom(ctx).UID, time.Now()) {
		return nil
	}
	return rdserr.ErrRateLimited
}

// unary and stream run the limiter's interceptor for everything but health
// checks and reflection. That interceptor makes a status of its own without
// an errno, so a refusal, told by the handler not having been called, is
// replaced by ours.
func (l callLimit) unary() grpc.UnaryServerInterceptor {
	limit := selector.UnaryServerInterceptor(ratelimit.UnaryServerInterceptor(l), selector.MatchFunc(notHealth))
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		called := false
		resp, err := limit(ctx, req, info, func(ctx context.Context, req any) (any, error) {
			called = true
			return handler(ctx, req)
		})
		if !called {
			return nil, l.Refusal(identityFrom(ctx).UID, l.count)
		}
		return resp, err
	}
}

func (l callLimit) stream() grpc.StreamServerInterceptor {
	limit := selector.StreamServerInterceptor(ratelimit.StreamServerInterceptor(l), selector.MatchFunc(notHealth))
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		called := false
		err := limit(srv, ss, info, func(srv any, ss grpc.ServerStream) error {
			called = true
			return handler(srv, ss)
		})
		if !called {
			return l.Refusal(identityFrom(ss.Context()).UID, l.count)
		}
		return err
	}
}
