package node

import (
	"testing"
	"time"
)

// TestQuiet: a daemon tidies up once after a burst, when it has been quiet long enough, and not
// again until Go has taken more.
func TestQuiet(t *testing.T) {
	const mib = 1 << 20
	start := time.Unix(1000, 0)
	q := quiet{}
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	for _, c := range []struct {
		what      string
		second    int
		allocated uint64
		held      int64
		due       bool
	}{
		{"the first look", 0, 20 * mib, 30 * mib, false},
		{"quiet since then", 1, 20 * mib, 30 * mib, false},
		{"something is allocated", 4, 20*mib + quietBytes + 1, 30 * mib, false},
		{"quiet again", 5, 20*mib + quietBytes + 1, 30 * mib, false},
		{"a little at a time is too much in the end", 8, 20*mib + 2*quietBytes + 2, 30 * mib, false},
		{"not long enough", 12, 20*mib + 2*quietBytes + 2, 30 * mib, false},
		{"a little is no matter, and long enough", 13, 20*mib + 3*quietBytes + 2, 30 * mib, true},
	} {
		if got := q.due(at(c.second), c.allocated, c.held); got != c.due {
			t.Fatalf("%s: due %v, want %v", c.what, got, c.due)
		}
	}
	q.tidied(at(13), 21*mib, 12*mib)
	for _, c := range []struct {
		what   string
		second int
		held   int64
		due    bool
	}{
		{"at once again", 14, 40 * mib, false},
		{"nothing was taken since", 30, 12*mib + quietGain, false},
		{"more was", 31, 12*mib + quietGain + 1, true},
	} {
		if got := q.due(at(c.second), 21*mib, c.held); got != c.due {
			t.Fatalf("%s: due %v, want %v", c.what, got, c.due)
		}
	}
}

// TestTidied: what a burst left goes back to the machine, and what lives stays.
func TestTidied(t *testing.T) {
	var q quiet
	trims := 0
	trim := func() { trims++ }
	garbage := make([][]byte, 512)
	for i := range garbage {
		garbage[i] = make([]byte, 64<<10)
		garbage[i][0] = 1
	}
	q.look(time.Now(), trim)
	held := readGoUse().all
	clear(garbage)
	if q.look(time.Now().Add(quietFor-time.Second), trim); q.kept != 0 || trims != 0 {
		t.Fatal("tidied up too early")
	}
	q.look(time.Now().Add(quietFor), trim)
	if now := readGoUse().all; q.kept == 0 || trims != 1 || held-now < 24<<20 {
		t.Errorf("Go had %d KiB of the process and has %d, with 32 MiB of garbage between, and what is kept was let go %d times", held>>10, now>>10, trims)
	}
}

// TestKeepersFiguresAllocateNothing: they are read every second, for as long as the daemon runs.
func TestKeepersFiguresAllocateNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { readGoUse(); allocatedBytes() }); n != 0 {
		t.Errorf("%v objects a look", n)
	}
	if u := readGoUse(); u.all <= 0 || u.live < 0 || u.beside <= 0 || allocatedBytes() == 0 {
		t.Errorf("%+v, and %d allocated", u, allocatedBytes())
	}
}
