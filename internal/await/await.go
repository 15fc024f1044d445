package await

import (
	"testing"
	"time"
)

// Until fails the test when f does not become true within limit. what says, as a whole
// sentence, what was to be.
func Until(t testing.TB, limit time.Duration, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
