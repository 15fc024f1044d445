package access

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/rdserr"
)

// maxLimitedUIDs bounds the limiter's table. When it is full, users whose
// bucket is full again (who have been quiet) are forgotten; with none of
// those, new users share one bucket.
const maxLimitedUIDs = 1024

// Limiter bounds the calls each user makes per second.
type Limiter struct {
	mu     sync.Mutex
	rate   rate.Limit               // guarded by mu
	burst  int                      // guarded by mu
	users  map[uint32]*rate.Limiter // guarded by mu
	shared *rate.Limiter            // of users that found the table full
}

// NewLimiter lets each user make perSecond calls a second, burst of them at once.
func NewLimiter(perSecond float64, burst int) *Limiter {
	return &Limiter{rate: rate.Limit(perSecond), burst: burst, users: map[uint32]*rate.Limiter{},
		shared: rate.NewLimiter(rate.Limit(perSecond), burst)}
}

// Allow reports whether a user may make a call now, and counts it.
func (l *Limiter) Allow(uid uint32, now time.Time) bool {
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
func (l *Limiter) forgetQuiet(now time.Time) {
	for uid, b := range l.users {
		if b.TokensAt(now) >= float64(l.burst) {
			delete(l.users, uid)
		}
	}
}

// Refusal counts and tells that a user makes too many calls.
func (l *Limiter) Refusal(uid uint32, count *base.Counters) error {
	count.CallsRateLimited.Add(1)
	perSecond, _ := l.Limits()
	return rdserr.With(rdserr.ErrRateLimited, "uid %d makes more than %v calls per second (api.calls_per_second); wait and try again", uid, float64(perSecond))
}

// Set changes what users may do, from now on.
func (l *Limiter) Set(perSecond float64, burst int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate, l.burst = rate.Limit(perSecond), burst
	for _, b := range l.users {
		b.SetLimit(l.rate)
		b.SetBurst(burst)
	}
	l.shared.SetLimit(l.rate)
	l.shared.SetBurst(burst)
}

// Limits is what a user may do now.
func (l *Limiter) Limits() (perSecond rate.Limit, burst int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rate, l.burst
}
