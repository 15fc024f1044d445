package soft

import (
	"testing"

	"github.com/rdsd/rdsd/roce"
	"github.com/rdsd/rdsd/transport/ib"
)

// TestStatusOf: what the core has and this package does not know is another failure.
func TestStatusOf(t *testing.T) {
	for s, want := range statusFrom {
		if got := statusOf(roce.Status(s)); got != want {
			t.Errorf("%v is %v, want %v", roce.Status(s), got, want)
		}
	}
	if got := statusOf(roce.Status(len(statusFrom))); got != ib.OtherFailure {
		t.Errorf("one that is not known is %v", got)
	}
}
