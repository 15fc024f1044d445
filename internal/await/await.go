package await

import (
	"testing"
	"time"
)

// longestLook is what counts of the time from one look of Until to the next.
const longestLook = 10 * time.Millisecond

// Until fails the test when f does not become true within limit. what is a whole sentence
// that says what should have happened. The limit is of the time that the test had, look by
// look: a machine that pauses, or has others to serve, is no reason to fail.
func Until(t testing.TB, limit time.Duration, what string, f func() bool) {
	t.Helper()
	begun := time.Now()
	last, spent := begun, time.Duration(0)
	for !f() {
		if spent > limit {
			t.Fatalf("not within %v, of %v that have passed: %s", limit, time.Since(begun).Round(time.Millisecond), what)
		}
		time.Sleep(time.Millisecond)
		now := time.Now()
		spent += min(now.Sub(last), longestLook)
		last = now
	}
}
