package toll

import (
	"testing"
	"time"
)

// TestTollJudges: who is long by the clock is measured, and ended only when the thread
// itself was busy for long, several times in a row or once for very long.
func TestTollJudges(t *testing.T) {
	const short, very = time.Microsecond, veryLong
	type call struct {
		took     time.Duration
		measured bool // and so the client is a suspect before it
	}
	for _, c := range []struct {
		name  string
		calls []call
		ended bool // by the last of them
	}{
		{"short ones", []call{{short, false}, {long - 1, false}}, false},
		{"long by the clock alone", []call{{very, false}, {short, true}, {very, true}}, false},
		{"interrupted now and then", []call{{long, false}, {long, true}, {long, true}, {short, true}, {long, true}, {long, true}, {short, true}}, false},
		{"interrupted once, for a second", []call{{long, false}, {time.Second, true}, {short, true}, {short, true}}, false},
		{"three long ones", []call{{long, false}, {long, true}, {long, true}, {long, true}}, true},
		{"two very long ones", []call{{long, false}, {very, true}, {very, true}}, true},
		{"a long one and a very long one", []call{{long, false}, {long, true}, {very, true}}, true},
		{"just not very long", []call{{long, false}, {very - 1, true}, {very - 1, true}}, false},
	} {
		var u Toll
		for i, k := range c.calls {
			if got := u.own.suspect(0); got != k.measured {
				t.Errorf("%s: call %d: a suspect: %v", c.name, i, got)
			}
			err := u.judge(0, k.took, k.measured)
			if want := c.ended && i == len(c.calls)-1; (err != nil) != want || Costly(err) != want {
				t.Errorf("%s: call %d: %v", c.name, i, err)
			}
		}
	}
	var u Toll
	u.judge(time.Second, long, false)
	if !u.own.suspect(time.Second+look-1) || u.own.suspect(time.Second+look) {
		t.Error("a suspect is not looked at long enough, or for ever")
	}
}

// TestTollAddsUp: short calls between long ones do not make up for these, time does. Who has many
// clients, or new ones, is one user.
func TestTollAddsUp(t *testing.T) {
	for _, c := range []struct {
		name   string
		each   time.Duration // from one to the next, beside what they take
		shorts int           // behind each long one
		anew   bool          // each is another client's
		ended  int           // after so many at the latest; 0: never
	}{
		{"every second", 0, 1, false, 7},
		{"every tenth", 0, 9, false, 7},
		{"with ten thousand between", 0, 10000, false, 7},
		{"of clients that come anew", 0, 1, true, 7},
		{"one in a second", time.Second, 1, false, 17},
		{"a thousand in an hour", time.Hour / 1000, 1, false, 0},
		{"one before each look is over", look - 1, 1, false, 0},
		{"one after each look", look, 1, false, 0},
	} {
		u, now := User{}, time.Duration(0)
		k := Toll{User: &u}
		var err error
		call := func(took time.Duration) {
			measured := u.suspect(now)
			if now += took; err == nil {
				err = k.judge(now, took, measured)
			}
		}
		n := 0
		for ; n < 1000 && err == nil; n++ {
			if c.anew {
				k = Toll{User: &u}
			}
			call(30 * time.Millisecond)
			for range c.shorts {
				call(time.Microsecond)
			}
			now += c.each
		}
		if ended := c.ended > 0; (err != nil) != ended || Costly(err) != ended || ended && n > c.ended {
			t.Errorf("%s: %v after %d long calls", c.name, err, n)
		}
	}
}

// TestUsers: a user is one as long as something is known of it.
func TestUsers(t *testing.T) {
	var l Users
	u := l.Of(7)
	(&Toll{User: u}).judge(time.Since(base), long, false)
	if l.Of(7) != u || l.Of(8) == u {
		t.Error("users are mistaken for each other")
	}
	for uid := range uint32(3 * mostUsers) {
		l.Of(100 + uid)
	}
	if n := len(l.of); n > mostUsers || l.Of(7) != u {
		t.Errorf("%d users are kept, and a suspect is forgotten: %v", n, l.Of(7) != u)
	}
}
