package base

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// TestMaxDescriptors: the limit is the configuration's, or the system's where that says
// nothing; one that the system does not allow is an error that names the key.
func TestMaxDescriptors(t *testing.T) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	for set, want := range map[int]uint64{0: r.Cur, 1: 1, int(r.Cur): r.Cur} {
		c.Limits.MaxDescriptors = set
		if n, err := MaxDescriptors(c); n != want || err != nil {
			t.Errorf("set to %d: %d, %v", set, n, err)
		}
	}
	c.Limits.MaxDescriptors = int(r.Cur) + 1
	n, err := MaxDescriptors(c)
	var of *config.Error
	if n != 0 || !errors.As(err, &of) || of.Key != "limits.max_descriptors" || !strings.Contains(of.Problem, fmt.Sprint(r.Cur)) {
		t.Errorf("more than the system allows: %d, %v", n, err)
	}
}

// TestRoom: descriptors are there as long as what is wanted and what is kept for others
// fit below the limit, to the last one; a refusal is counted and names the limit.
func TestRoom(t *testing.T) {
	var none Descriptors
	if err := none.Room(1<<20, 1<<20); err != nil {
		t.Errorf("before the limit is known: %v", err)
	}
	if b := none.Budget(); b.Limit != 0 {
		t.Errorf("before the limit is known: %+v", b)
	}
	none.Close()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	next := len(open) - 1 // but that of the directory
	count := &Counters{}
	c := config.Default()
	c.Limits.MaxDescriptors = 200
	var d Descriptors
	defer d.Close()
	most, err := d.Open(c, count)
	if err != nil || most != 200 || d.Most() != 200 || d.Reserve == nil {
		t.Fatalf("%d, %d, %v", most, d.Most(), err)
	}
	if b := d.Budget(); b.Name != "descriptors" || b.Used < uint64(next) || b.Used > uint64(next)+4 || b.Limit != 200-KeepOfClients || b.Refused != 0 {
		t.Errorf("%+v with %d in use", b, next)
	}
	fits := 0
	for need := 1; need <= 200 && d.Room(need, 7) == nil; need++ {
		fits = need
	}
	if fits+7 > 200-next || fits+7 < 200-next-4 {
		t.Errorf("with %d in use and 7 kept %d fit below 200", next, fits)
	}
	if n := count.DescriptorsRefused.Load(); n != 1 || d.Budget().Refused != 1 {
		t.Errorf("%d refusals are counted, of the budget %d, want 1", n, d.Budget().Refused)
	}
	if d.Room(fits, 7) != nil || d.Room(fits-1, 8) != nil || d.Room(fits, 8) == nil || d.Room(fits+1, 7) == nil {
		t.Error("what is wanted and what is kept do not add up")
	}
	err = d.Room(fits+1, 7)
	if !errors.Is(err, rdserr.ErrTooMany) || !strings.Contains(err.Error(), "limits.max_descriptors (200)") || !strings.Contains(err.Error(), fmt.Sprintf("for %d more", fits+1)) {
		t.Errorf("%v", err)
	}
	c.Limits.MaxDescriptors = 0
	var system Descriptors
	defer system.Close()
	if most, err := system.Open(c, count); err != nil || !strings.Contains(system.named, "RLIMIT_NOFILE") || !strings.Contains(system.named, fmt.Sprint(most)) {
		t.Errorf("without a limit in the configuration: %q, %v", system.named, err)
	}
	c.Limits.MaxDescriptors = 1 << 40
	var wrong Descriptors
	if _, err := wrong.Open(c, count); err == nil || wrong.Reserve != nil {
		t.Errorf("a limit that the system does not allow: %v", err)
	}
}

// TestCloseGivesTheReserveBack: what was kept is free again afterwards.
func TestCloseGivesTheReserveBack(t *testing.T) {
	free := func() int {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return int(f.Fd())
	}
	before := free()
	var d Descriptors
	if _, err := d.Open(config.Default(), &Counters{}); err != nil {
		t.Fatal(err)
	}
	kept := free()
	d.Close()
	if after := free(); kept == before || after != before {
		t.Errorf("the lowest free descriptor was %d, then %d, and is %d after Close", before, kept, after)
	}
}

// TestNoDescriptors: only where descriptors are missing does an error say so, with an
// errno that a client knows; what says so already stays as it is.
func TestNoDescriptors(t *testing.T) {
	mine := rdserr.With(rdserr.ErrTooMany, "the limit of something else")
	for _, c := range []struct {
		err     error
		changed bool
	}{
		{os.NewSyscallError("open", syscall.EMFILE), true}, {syscall.ENFILE, true}, {syscall.EACCES, false}, {mine, false}, {errors.New("another"), false},
	} {
		got := NoDescriptors(c.err)
		if changed := got != c.err; changed != c.changed {
			t.Errorf("%v is told as %v", c.err, got)
		}
		if c.changed && (!errors.Is(got, rdserr.ErrTooMany) || !strings.Contains(got.Error(), "limits.max_descriptors")) {
			t.Errorf("%v is told as %v", c.err, got)
		}
	}
}

// TestDeps: what a room of a node is given is whole, with its own number, and the
// configuration as it is now.
func TestDeps(t *testing.T) {
	c := config.Default()
	seen := map[uint64]bool{}
	for range 50 {
		d := New(c, nil)
		if d.Instance == 0 || seen[d.Instance] {
			t.Fatalf("instance %d, before it %d others", d.Instance, len(seen))
		}
		seen[d.Instance] = true
	}
	d := New(c, nil)
	if d.Conf() != c {
		t.Error("at the start there is no configuration, or another one")
	}
	d.Log.Info("goes nowhere") // a log that is not there is no panic
	other := config.Default()
	d.SetConf(other)
	if d.Conf() != other || d.Config != c {
		t.Error("the configuration is not the one that was set, or the first one changed")
	}
	if log := slog.New(slog.DiscardHandler); New(c, log).Log != log {
		t.Error("another log was taken")
	}
	// Datagrams and all else are of one account.
	a := d.User(config.Identity{UID: 7})
	a.Hold(0)
	if d.Memory.Limit() != int64(c.Limits.MemoryBytes) || d.Budget.Limit != d.Memory.Limit() || d.Budget.Rest != d.Memory.Rest() || a.Holder().UID != 7 {
		t.Errorf("limits %d and %d of %d, of uid %d", d.Memory.Limit(), d.Budget.Limit, c.Limits.MemoryBytes, a.Holder().UID)
	}
	a.Close()
	if err := ErrDraining; !errors.Is(err, rdserr.ErrShutdown) {
		t.Errorf("%v", err)
	}
	d.Count.CostlyClient(d.Log, config.Identity{UID: 1}, errors.New("why"))
	if d.Count.ClientsCostly.Load() != 1 {
		t.Error("a client that was ended is not counted")
	}
}
