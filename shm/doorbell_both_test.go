package shm

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/unixsock"
	"github.com/rdsd/rdsd/wire"
)

// watchedDoorbell is one for both directions, with an epoll set as a reactor has it.
func watchedDoorbell(t *testing.T) (a *Alarm, client int, rung func() bool) {
	t.Helper()
	a, client, err := NewDoorbell()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(set) })
	if err := unix.EpollCtl(set, unix.EPOLL_CTL_ADD, a.FD(), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}); err != nil {
		t.Fatal(err)
	}
	return a, client, func() bool {
		var ev [4]unix.EpollEvent
		n, err := unix.EpollWait(set, ev[:], 0)
		return err == nil && n == 1 && ev[0].Events&unix.EPOLLIN != 0
	}
}

// TestDoorbellRingsBothWays: each ring of the client's is an event for the daemon, however many
// have been, and the daemon's are heard by the client, and neither hears its own.
func TestDoorbellRingsBothWays(t *testing.T) {
	t.Run("as the kernel is", func(t *testing.T) { ringBothWays(t, func(*Alarm) {}) })
	t.Run("with a look first", func(t *testing.T) { ringBothWays(t, takesRights) })
}

// takesRights has a do what it does on a kernel that cannot refuse descriptors.
func takesRights(a *Alarm) {
	const soPassRights = 83
	a.refuses = false
	_ = unix.SetsockoptInt(a.fd, unix.SOL_SOCKET, soPassRights, 1) // older kernels do not know it
}

func ringBothWays(t *testing.T, change func(*Alarm)) {
	a, client, rung := watchedDoorbell(t)
	defer unix.Close(client)
	change(a)
	if !a.Hears() || rung() {
		t.Fatal("it rings, or does not hear")
	}
	for i := range 5000 { // more than a socket's queue has room for
		if Ring(client); !rung() {
			t.Fatalf("ring %d was not heard", i)
		}
		if err := a.Hear(); err != nil {
			t.Fatal(err)
		}
		if rung() {
			t.Fatalf("after ring %d it rings by itself", i)
		}
	}
	if rang(client) {
		t.Error("the client hears itself")
	}
	if a.Ring(); !rang(client) || rung() {
		t.Error("the daemon's ring is not heard, or heard by itself")
	}
	// One that rings for nothing all the time fills its queue, which is one event, and is heard
	// when that has been taken out.
	soon(t, "ringing", func() {
		for range 10_000 {
			Ring(client)
		}
	})
	if !rung() {
		t.Error("ten thousand rings are not heard")
	}
	if err := a.Hear(); err != nil {
		t.Fatal(err)
	}
	if Ring(client); !rung() {
		t.Error("it is not heard any more")
	}
}

// TestDoorbellBringsNoDescriptors: a client cannot pass one where the kernel knows how to refuse
// it, and is ended elsewhere.
func TestDoorbellBringsNoDescriptors(t *testing.T) {
	a, client, rung := watchedDoorbell(t)
	defer unix.Close(client)
	pass := func() error { return unix.Sendmsg(client, []byte{1}, unix.UnixRights(client), nil, unix.MSG_DONTWAIT) }
	if err := pass(); (err == unix.EPERM) != a.refuses {
		t.Errorf("passed one: %v; the kernel refuses them: %v", err, a.refuses)
	}
	if a.refuses {
		takesRights(a)
		if err := pass(); err != nil {
			t.Fatal(err)
		}
	}
	if !rung() {
		t.Fatal("not heard")
	}
	before := openFDs(t)
	err := a.Hear()
	if !errors.Is(err, unix.EBADMSG) || openFDs(t) != before {
		t.Errorf("a descriptor was passed: %v; %d are open, %d were", err, openFDs(t), before)
	}
}

// TestMutedDoorbellIsNotHeard: nothing is taken from the descriptor of one, for the number may be
// another's by then.
func TestMutedDoorbellIsNotHeard(t *testing.T) {
	a, client, _ := watchedDoorbell(t)
	defer unix.Close(client)
	Ring(client)
	there, err := unix.IoctlGetInt(a.FD(), unix.SIOCINQ)
	if err != nil || there == 0 {
		t.Fatal(there, err)
	}
	a.Mute()
	if err := a.Hear(); err != nil {
		t.Error(err)
	}
	if n, err := unix.IoctlGetInt(a.FD(), unix.SIOCINQ); err != nil || n != there {
		t.Errorf("of %d bytes %d are left, %v", there, n, err)
	}
}

// TestDoorbellTells: the client hears the end of a muted one, and keeps its end; the daemon
// is told when nobody has that any more.
func TestDoorbellTells(t *testing.T) {
	a, client, _ := watchedDoorbell(t)
	other, err := unix.FcntlInt(uintptr(client), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if a.Ring(); a.LetGo() {
		t.Error("the client has its end")
	}
	a.Mute()
	a.Mute()
	a.Ring()
	if _, over := Drain(client); over {
		t.Error("it hears the end before what was rung")
	}
	if rang, over := Drain(client); rang || !over {
		t.Errorf("it hears %v, and the end %v", rang, over)
	}
	unix.Close(client)
	if a.LetGo() {
		t.Error("the client has its end once more")
	}
	unix.Close(other)
	if !a.LetGo() {
		t.Error("nobody has it")
	}
	a.Close()
	a.Close()
	var none *Alarm
	none.Mute()
	none.Close()
}

// TestHeldRegion: what a client may still read stays where the daemon has closed its region and
// holds it, also of a client whose datagrams are under way, until it is dropped; then nothing is
// left, though the client has it mapped.
func TestHeldRegion(t *testing.T) {
	for _, x := range []struct {
		what                 string
		evacuated, dropFirst bool
	}{{"closed", false, false}, {"evacuated", true, false}, {"dropped first", true, true}} {
		h, m := untouched(t, testSpec())
		r := h.r
		if _, ok := h.PlaceCopy(testDst, wire.One([]byte("unread")), NoLane, 0); !ok {
			t.Fatal("no room")
		}
		h.Publish()
		r.Disown()
		h.Leave()
		h.Discard()
		body := m.r.mem[r.RecvArenaOff:][:6]
		r.Hold()
		if x.evacuated {
			if err := r.Evacuate(nil); err != nil {
				t.Fatal(err)
			}
		}
		if string(body) != "unread" {
			t.Errorf("%s: %q", x.what, body)
		}
		if x.dropFirst {
			r.Drop()
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		if !x.dropFirst {
			if string(body) != "unread" || r.rest == nil {
				t.Errorf("%s: %q when the daemon has closed it", x.what, body)
			}
			r.Drop()
		}
		if string(body) != "\x00\x00\x00\x00\x00\x00" || r.rest != nil || r.mem != nil {
			t.Errorf("%s: %q when it is dropped", x.what, body)
		}
		r.Drop()
		r.Disown()
	}
}

// TestHeldRegionIsLeft: a daemon that ends leaves its clients what it holds for them.
func TestHeldRegionIsLeft(t *testing.T) {
	h, m := untouched(t, testSpec())
	if _, ok := h.PlaceCopy(testDst, wire.One([]byte("unread")), NoLane, 0); !ok {
		t.Fatal("no room")
	}
	h.Publish()
	body := m.r.mem[h.r.RecvArenaOff:][:6]
	h.r.Hold()
	r := h.r
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if r.Disown(); r.rest != nil || string(body) != "unread" {
		t.Errorf("%q is left, %d bytes are mapped", body, len(r.rest))
	}
}

// TestDoorbellTakesNoRights: the kernel is told to take no descriptors at a doorbell, where it can be.
func TestDoorbellTakesNoRights(t *testing.T) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	can := unixsock.RefuseRights(p[0])
	unix.Close(p[0])
	unix.Close(p[1])
	a, client, err := NewDoorbell()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer unix.Close(client)
	if a.refuses != can {
		t.Errorf("it refuses descriptors: %v, and can: %v", a.refuses, can)
	}
}
