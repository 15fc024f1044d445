package datagram

import (
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/base"
)

// TestShareOfATurn: who finds the user's share spent is first in the next turn, and
// then those behind it; who was to be first and does not come holds nobody up for longer
// than a turn; and a share is there as long as its user has rings.
func TestShareOfATurn(t *testing.T) {
	w := newSeam(t, nil).a.workers[0]
	done := make(chan struct{})
	w.Do(func() {
		defer close(done)
		s := w.Share(77)
		if w.Share(77) != s || w.Share(78) == s {
			t.Error("a share is not its user's")
		}
		var r [4]*Ring
		for i := range r {
			r[i] = &Ring{}
		}
		var now time.Duration
		turn := func(posts, bytes int, want string) {
			t.Helper()
			now++
			var got []byte
			for i, x := range r {
				if x != nil && s.May(now, x) {
					got = append(got, byte('0'+i))
					for range posts {
						s.Bytes -= bytes
						s.Posts--
					}
				}
			}
			if string(got) != want {
				t.Errorf("%q were served, want %q", got, want)
			}
		}
		turn(sharePosts/2, 0, "01")
		turn(sharePosts/2, 0, "23")
		turn(1, shareBytes, "0")
		turn(1, shareBytes, "1")
		turn(1, shareBytes, "2")
		turn(1, shareBytes-1, "3")
		turn(1, shareBytes-1, "01")
		r[2] = nil
		turn(1, 0, "")
		turn(1, 0, "013")
		w.Unshare(77)
		if w.shares[77] != s {
			t.Error("a share went with the first of its user's rings")
		}
		w.Unshare(77)
		w.Unshare(78)
		if w.shares[77] != nil || w.shares[78] != nil {
			t.Error("a share stays behind")
		}
	})
	<-done
}

// TestSharesAreApart: what is spent of one thing holds up nobody who wants another, and each has its
// own order.
func TestSharesAreApart(t *testing.T) {
	var s Share
	kinds := []struct {
		what string
		may  func(time.Duration, *Ring) bool
		left *int
		most int
	}{
		{"posts", s.May, &s.Posts, sharePosts}, {"releases", s.MayRelease, &s.Releases, shareReleases}, {"nudges", s.MayRing, &s.Nudges, shareNudges},
	}
	r := [3]*Ring{{}, {}, {}}
	var now time.Duration
	for _, k := range kinds {
		for _, want := range [][3]bool{{true, true, false}, {false, false, true}, {true, true, true}} {
			now++
			for i, x := range r {
				if got := k.may(now, x); got != want[i] {
					t.Errorf("turn %d, %s: ring %d may: %v", now, k.what, i, got)
				}
				if i == 0 && *k.left != k.most {
					t.Errorf("turn %d begins with %d %s, want %d", now, *k.left, k.what, k.most)
				}
				if i == 1 && want[1] && !want[2] {
					*k.left = 0
				}
			}
			for _, o := range kinds {
				if o.what != k.what && (!o.may(now, r[0]) || *o.left != o.most) {
					t.Errorf("turn %d, %s: held up %s, of which %d are left", now, k.what, o.what, *o.left)
				}
			}
		}
	}
}

// TestControlTurn: a turn of a reactor looks for messages of a user so often, whoever's
// clients they are; another user's are not concerned, and the next turn begins anew.
func TestControlTurn(t *testing.T) {
	w := newSeam(t, nil).a.workers[0]
	looks := func(s *Share) (n int) {
		for s.MayLook(w.Now()) {
			n++
		}
		return n
	}
	type turn struct{ first, again, other int }
	var mine, other *Share
	got := make(chan turn, 3)
	w.Do(func() { mine, other = w.Share(1), w.Share(2) })
	for range cap(got) {
		w.Do(func() { got <- turn{looks(mine), looks(mine), looks(other)} })
		if g, want := <-got, (turn{shareLooks, 0, shareLooks}); g != want {
			t.Errorf("%+v, want %+v", g, want)
		}
	}
	w.Do(func() { w.Unshare(1); w.Unshare(2) })
	w.Sync()
}

// TestKeeperIsTold: what goes through rings has the keeper look at the memory that it
// touches after so many bytes, and not before.
func TestKeeperIsTold(t *testing.T) {
	d := &base.Deps{Memory: quota.New(1<<30, nil)}
	h := &Local{all: &Host{deps: d}}
	told := func() bool {
		h.publishRings(nil)
		select {
		case <-d.Memory.Wanted():
			return true
		default:
			return false
		}
	}
	h.Moved = movedStep
	if told() {
		t.Error("too early")
	}
	h.Moved++
	if !told() || h.Moved != 0 {
		t.Errorf("not told; %d bytes are still to be told", h.Moved)
	}
}
