package shm

import "testing"

// TestDisownLeavesNothingMapped: a region that was held and is disowned goes altogether,
// whichever is first, and nothing of the daemon's part stays mapped or open here.
func TestDisownLeavesNothingMapped(t *testing.T) {
	closed := func(r *Region) {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	for what, order := range map[string][]func(*Region){
		"disowned, then closed": {(*Region).Hold, (*Region).Disown, closed},
		"closed, then disowned": {(*Region).Hold, closed, (*Region).Disown},
		"never held":            {(*Region).Disown, closed},
		"twice":                 {(*Region).Hold, (*Region).Disown, (*Region).Disown, closed, closed},
	} {
		r, err := Create(smallSpec())
		if err != nil {
			t.Fatal(err)
		}
		for _, do := range order {
			do(r)
		}
		if r.mem != nil || r.rest != nil || r.FD >= 0 || r.ownFD >= 0 {
			t.Errorf("%s: %d and %d bytes are mapped, descriptors %d and %d are open", what, len(r.mem), len(r.rest), r.FD, r.ownFD)
		}
	}
}
