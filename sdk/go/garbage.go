package rdsd

import (
	"math"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Memory of its own for each payload is soon garbage. The collector runs when the heap has
// doubled, and a program with a small heap makes it run at each 4 MiB: hundreds of times a
// second where payloads come fast, which takes longer than to receive them. So a process that
// receives fast in that way holds a piece of memory that it never touches: the heap counts as
// larger, and the collector runs once in slackBytes. The price is as much garbage more, for
// as long as it lasts.

const (
	slackBytes = 64 << 20

	// Fast is fastBytes within fastTime, 160 MB/s. Slack is let go of when slackTime has
	// passed without.
	fastBytes = 4 << 20
	fastTime  = 25 * time.Millisecond
	slackTime = time.Second
)

// garbage is that of the process.
var garbage garbageRate

// garbageRate watches how fast payloads get memory of their own.
type garbageRate struct {
	bytes atomic.Int64 // since looked

	mu     sync.Mutex
	looked time.Time       // guarded by mu; when bytes was last taken
	fast   time.Time       // guarded by mu; when it was last fast
	slack  strings.Builder // guarded by mu; its memory is not cleared, and so not touched
	end    *time.Timer     // guarded by mu; nil: there is no slack
}

// add counts n bytes of garbage to be. It may be called with locks held.
func (g *garbageRate) add(n int) {
	if g.bytes.Add(int64(n)) >= fastBytes {
		g.look(time.Now())
	}
}

// look judges the rate since the last time.
func (g *garbageRate) look(now time.Time) {
	if !g.mu.TryLock() {
		return // somebody else looks
	}
	defer g.mu.Unlock()
	took := now.Sub(g.looked)
	g.looked = now
	g.bytes.Store(0)
	if took > fastTime {
		return
	}
	g.fast = now
	if g.end != nil {
		return
	}
	// A limit counts memory that is not touched as well.
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 && limit < 8*slackBytes {
		return
	}
	g.slack.Grow(slackBytes)
	g.end = time.AfterFunc(slackTime, g.expire)
}

// expire lets slack go if nothing was fast for slackTime.
func (g *garbageRate) expire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if rest := slackTime - time.Since(g.fast); rest > 0 {
		g.end.Reset(rest)
		return
	}
	g.slack.Reset()
	g.end = nil
}
