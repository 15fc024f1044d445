package await

import (
	"testing"
	"time"
)

// Until fails the test when f does not become true within limit. what is a whole sentence
// that says what should have happened.
func Until(t testing.TB, limit time.Duration, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
