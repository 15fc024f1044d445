package datagram

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestBookOfKernels: the book of an address is full of kernels of former lives. Those of this life
// have the places of those that did not come again, and no others.
func TestBookOfKernels(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ports")
	a := netip.MustParseAddr("10.0.0.1")
	kernel := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}) }
	for life := range 3 {
		book, held, err := openPortBook(file, []netip.Addr{a})
		if err != nil {
			t.Fatal(err)
		}
		was := map[netip.Addr]bool{}
		for _, k := range held[a].kernels {
			was[k] = true
		}
		if want := min(life, 1) * bookKernels; len(was) != want || len(held[a].kernels) != want {
			t.Errorf("life %d: %d kernels are known, %d of them once, want %d", life, len(held[a].kernels), len(was), want)
		}
		if life == 2 {
			for i := range 100 {
				for _, k := range []int{i, 1000 + i} {
					if !was[kernel(k)] {
						t.Errorf("kernel %d of the last life is not known", k)
					}
				}
			}
		}
		switch life {
		case 0: // more than there is room for
			for i := range bookKernels + 10 {
				book.noteKernel(a, kernel(i), true)
			}
		case 1: // some come again, and others for the first time
			for i := range 100 {
				book.noteKernel(a, kernel(i), true)
				book.noteKernel(a, kernel(1000+i), true)
			}
		}
		book.close()
	}
}

// TestPortBookThatCannotBeMade: what the former life wrote down is held all the same, and its
// kernels are connected to; a later life does not find it again. An interrupted call is no error,
// nor is a file system that has room for one book alone.
func TestPortBookThatCannotBeMade(t *testing.T) {
	t.Cleanup(func() { fallocate = unix.Fallocate })
	for what, c := range map[string]struct {
		errs []error // of the calls, one after the other; the last one is that of all others
		made bool
	}{
		"full":            {[]error{unix.ENOSPC}, false},
		"room for one":    {[]error{unix.ENOSPC, nil}, true},
		"interrupted":     {[]error{unix.EINTR, unix.EINTR, nil}, true},
		"another failure": {[]error{unix.EIO}, false},
	} {
		s := newSeam(t, nil)
		ledger := filepath.Join(t.TempDir(), "ledger")
		file := ledger + ".ports"
		s.a.deps.Config.API.Ledger = ledger
		book, _, err := openPortBook(file, []netip.Addr{seamLocal})
		if err != nil {
			t.Fatal(err)
		}
		book.note(seamLocal, 4000, 1000, true)
		book.noteKernel(seamLocal, seamHigher, true)
		book.close()
		fallocate = func(fd int, mode uint32, off, n int64) error {
			if err := c.errs[0]; err != nil {
				c.errs = c.errs[min(1, len(c.errs)-1):]
				return err
			}
			return unix.Fallocate(fd, mode, off, n)
		}
		was := s.a.openPorts()
		fallocate = unix.Fallocate
		e, _ := s.h.Lock()
		held := e.Held()
		s.h.Unlock()
		if k := was[seamLocal].kernels; held != 1 || len(k) != 1 || k[0] != seamHigher {
			t.Errorf("%s: %d ports are held, and the kernels are %v", what, held, k)
		}
		_, err = os.Stat(file)
		if made := s.a.ports != nil; made != c.made || made != (err == nil) {
			t.Errorf("%s: the book is there: %v, its file: %v; want %v", what, made, err, c.made)
		}
	}
}

// TestPortBookOfALifeThatHoldsNothing: a life without rds.restart_hold keeps no book, and leaves
// none of an earlier one to the next.
func TestPortBookOfALifeThatHoldsNothing(t *testing.T) {
	ledger := filepath.Join(t.TempDir(), "ledger")
	book, _, err := openPortBook(ledger+".ports", []netip.Addr{seamLocal})
	if err != nil {
		t.Fatal(err)
	}
	book.note(seamLocal, 4000, 1000, true)
	book.close()
	for _, hold := range []time.Duration{0, time.Minute} {
		s := newSeam(t, nil)
		s.a.deps.Config.API.Ledger = ledger
		s.a.deps.Config.RDS.RestartHold.Duration = hold
		s.a.openPorts()
		e, _ := s.h.Lock()
		held := e.Held()
		s.h.Unlock()
		s.a.ports.close()
		if held != 0 {
			t.Errorf("a life that holds for %v: %d ports of the life before the last are held", hold, held)
		}
	}
}

func TestPortBook(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ports")
	a, b, c := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.2")
	open := func(want bookPages, addrs ...netip.Addr) *portBook {
		t.Helper()
		book, held, err := openPortBook(file, addrs)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(held, want) {
			t.Fatalf("held %v, want %v", held, want)
		}
		t.Cleanup(book.close)
		return book
	}
	one := open(bookPages{}, a, b)
	one.note(a, 0, 0, true)
	one.note(a, 65535, 1000, true)
	one.note(b, 4000, 1001, true)
	one.note(b, 4001, 1001, true)
	one.note(b, 4001, 1001, false)
	one.note(c, 4000, 1, true) // not served: nowhere
	for range 2 {
		one.noteKernel(a, c, true)
		one.noteKernel(b, netip.MustParseAddr("fd00::2"), true)
	}
	kernelsA, kernelsB := []netip.Addr{c}, []netip.Addr{netip.MustParseAddr("fd00::2")}
	// Killed: nothing is closed. The next one serves another address, too.
	two := open(bookPages{a: {map[uint16]uint32{0: 0, 65535: 1000}, kernelsA}, b: {map[uint16]uint32{4000: 1001}, kernelsB}}, c, b, a)
	two.note(a, 0, 0, false)
	two.note(c, 5, 6, true)
	two.freeze() // an orderly end: what it closes now stays
	two.note(c, 5, 6, false)
	two.note(b, 4000, 1001, false)
	two.close()
	open(bookPages{c: {map[uint16]uint32{5: 6}, nil}, b: {map[uint16]uint32{4000: 1001}, kernelsB}}, c, b)

	for what, content := range map[string]string{"empty": "", "short": "rdsd", "another file": string(make([]byte, 1<<20))} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Log(what)
		open(bookPages{}, a)
	}
	os.Remove(file)
	if err := os.Symlink("/etc/passwd", file); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openPortBook(file, []netip.Addr{a}); err == nil {
		t.Error("a symbolic link was followed")
	}
}
