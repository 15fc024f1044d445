package node

import (
	"context"
	"sync"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/ratelimit"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/selector"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/rdserr"
)

// maxLimitedUIDs bounds the limiter's table. When it is full, users whose
// bucket is full again (who have been quiet) are forgotten; with none of
// those, new users share one bucket.
const maxLimitedUIDs = 1024

// uidLimiter bounds the calls each user makes per second.
type uidLimiter struct {
	mu     sync.Mutex
	rate   rate.Limit               // guarded by mu
	burst  int                      // guarded by mu
	users  map[uint32]*rate.Limiter // guarded by mu
	shared *rate.Limiter            // of users that found the table full
}

func newUIDLimiter(perSecond float64, burst int) *uidLimiter {
	return &uidLimiter{rate: rate.Limit(perSecond), burst: burst, users: map[uint32]*rate.Limiter{},
		shared: rate.NewLimiter(rate.Limit(perSecond), burst)}
}

func (l *uidLimiter) allow(uid uint32, now time.Time) bool {
	l.mu.Lock()
	b := l.users[uid]
	if b == nil {
		if len(l.users) >= maxLimitedUIDs {
			l.forgetQuiet(now)
		}
		if len(l.users) < maxLimitedUIDs {
			b = rate.NewLimiter(l.rate, l.burst)
			l.users[uid] = b
		} else {
			b = l.shared
		}
	}
	l.mu.Unlock()
	return b.AllowN(now, 1)
}

// forgetQuiet runs with mu held.
func (l *uidLimiter) forgetQuiet(now time.Time) {
	for uid, b := range l.users {
		if b.TokensAt(now) >= float64(l.burst) {
			delete(l.users, uid)
		}
	}
}

// Limit implements ratelimit.Limiter.
func (l *uidLimiter) Limit(ctx context.Context) error {
	if l.allow(identityFrom(ctx).UID, time.Now()) {
		return nil
	}
	return rdserr.ErrRateLimited
}

// unary and stream run the limiter's interceptor for everything but health
// checks and reflection. That interceptor makes a status of its own without
// an errno, so a refusal, told by the handler not having been called, is
// replaced by ours.
func (l *uidLimiter) unary(count *base.Counters) grpc.UnaryServerInterceptor {
	limit := selector.UnaryServerInterceptor(ratelimit.UnaryServerInterceptor(l), selector.MatchFunc(notHealth))
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		called := false
		resp, err := limit(ctx, req, info, func(ctx context.Context, req any) (any, error) {
			called = true
			return handler(ctx, req)
		})
		if !called {
			return nil, l.refusal(identityFrom(ctx).UID, count)
		}
		return resp, err
	}
}

func (l *uidLimiter) stream(count *base.Counters) grpc.StreamServerInterceptor {
	limit := selector.StreamServerInterceptor(ratelimit.StreamServerInterceptor(l), selector.MatchFunc(notHealth))
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		called := false
		err := limit(srv, ss, info, func(srv any, ss grpc.ServerStream) error {
			called = true
			return handler(srv, ss)
		})
		if !called {
			return l.refusal(identityFrom(ss.Context()).UID, count)
		}
		return err
	}
}

// refusal counts and tells that a user makes too many calls.
func (l *uidLimiter) refusal(uid uint32, count *base.Counters) error {
	count.CallsRateLimited.Add(1)
	perSecond, _ := l.limits()
	return rdserr.With(rdserr.ErrRateLimited, "uid %d makes more than %v calls per second (api.calls_per_second); wait and try again", uid, float64(perSecond))
}
