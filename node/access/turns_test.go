package access

import (
	"testing"
	"testing/synctest"
	"time"
)

// taken tries for a moment to take a turn, and reports whether there was one.
func taken(t *Turn) bool {
	done := make(chan struct{})
	time.AfterFunc(time.Millisecond, func() { close(done) })
	return t.Take(done)
}

func TestTurnsOfAUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(2, 0)
		a, b, c, other := turns.Of(1), turns.Of(1), turns.Of(1), turns.Of(2)
		if !taken(a) || !taken(b) || taken(c) || !taken(other) {
			t.Fatal("not two turns for each user")
		}
		time.Sleep(time.Hour)
		if taken(c) {
			t.Error("a turn without a lease has ended")
		}
		got := make(chan bool, 1)
		go func() { got <- c.Take(nil) }()
		synctest.Wait()
		a.Give()
		a.Give() // gives nothing of another's back
		if !<-got || taken(a) {
			t.Error("what one gave was not one other's")
		}
		for _, x := range []*Turn{a, b, c, other} {
			x.Leave()
		}
		if n := turns.Users(); n != 0 {
			t.Errorf("%d users without a Turn are kept", n)
		}
		if d := turns.Of(1); !taken(d) || !taken(turns.Of(1)) || taken(turns.Of(1)) {
			t.Error("who left took a turn along, or left one behind")
		}
	})
}

// Who waits within its turn holds up the next for the lease alone.
func TestTurnsHaveALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(1, 5*time.Millisecond)
		slow, quick := turns.Of(1), turns.Of(1)
		for range 3 { // the timer of a turn is used again
			if !taken(slow) {
				t.Fatal("no turn")
			}
			begun := time.Now()
			if !quick.Take(nil) || time.Since(begun) != 5*time.Millisecond {
				t.Fatalf("the next one ran after %v", time.Since(begun))
			}
			slow.Give() // it is over, and the one that is taken is another's
			if taken(slow) {
				t.Fatal("the end of a turn that was over ended another's")
			}
			quick.Give()
		}
		// A turn that was given in time is not ended once more later.
		for range 20 {
			if !taken(quick) {
				t.Fatal("no turn")
			}
			time.Sleep(3 * time.Millisecond)
			if taken(slow) {
				t.Fatal("a turn has ended before its lease")
			}
			quick.Give()
		}
		slow.Leave()
		quick.Leave()
	})
}
