package netlocal

import (
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func attr(kind uint16, a string) []byte {
	raw := netip.MustParseAddr(a).AsSlice()
	b := make([]byte, rtattrLen, rtattrLen+len(raw))
	native.PutUint16(b, uint16(rtattrLen+len(raw)))
	native.PutUint16(b[2:], kind)
	return append(b, raw...)
}

func TestIfAddr(t *testing.T) {
	head := make([]byte, ifaddrLen)
	join := func(parts ...[]byte) (b []byte) {
		for _, p := range append([][]byte{head}, parts...) {
			b = append(b, p...)
		}
		return b
	}
	for name, tc := range map[string]struct {
		b    []byte
		want string
	}{
		"IPv4":                  {join(attr(unix.IFA_ADDRESS, "10.0.0.1"), attr(unix.IFA_LOCAL, "10.0.0.1")), "10.0.0.1"},
		"one other machine":     {join(attr(unix.IFA_ADDRESS, "10.0.0.2"), attr(unix.IFA_LOCAL, "10.0.0.1")), "10.0.0.1"},
		"the other way round":   {join(attr(unix.IFA_LOCAL, "10.0.0.1"), attr(unix.IFA_ADDRESS, "10.0.0.2")), "10.0.0.1"},
		"IPv6":                  {join(attr(unix.IFA_ADDRESS, "fd00::1")), "fd00::1"},
		"behind something else": {join([]byte{5, 0, 3, 0, 'x', 0, 0, 0}, attr(unix.IFA_ADDRESS, "fd00::1")), "fd00::1"},
		"none":                  {join(), ""},
		"short":                 {head[:3], ""},
		"a length of nothing":   {join([]byte{0, 0, 1, 0}), ""},
		"a length beyond":       {join([]byte{200, 0, 1, 0, 10, 0}), ""},
	} {
		a, ok := ifAddr(tc.b)
		if ok != (tc.want != "") || ok && a.String() != tc.want {
			t.Errorf("%s: %v %v", name, a, ok)
		}
	}
}

// TestWatchChanges: an interface that comes up is a change, in the namespace of whoever began
// to watch.
func TestWatchChanges(t *testing.T) {
	skip := make(chan string, 1)
	changed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			skip <- "no network namespace: " + err.Error()
			return
		}
		w, err := WatchChanges()
		if err != nil {
			changed <- err
			return
		}
		defer w.Close()
		if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
			skip <- fmt.Sprintf("ip (iproute2) is needed: %v %s", err, out)
			return
		}
		changed <- w.Next()
	}()
	select {
	case why := <-skip:
		t.Skip(why)
	case err := <-changed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("no change was noticed")
	}
}
