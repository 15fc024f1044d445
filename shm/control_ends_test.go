package shm

import (
	"errors"
	"io"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Of hundreds of connections that end together none takes memory for a packet, nor does one on
// which nothing has come.
func TestEndTakesNoPacket(t *testing.T) {
	made := 0
	was := packets.New
	packets.New = func() any { made++; return was() }
	defer func() { packets.New = was }()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	runtime.GC() // empties the pool, in two steps
	runtime.GC()
	c := &Conn{}
	if c.tryReceive(uintptr(pair[0])) || made != 0 {
		t.Errorf("where there is no packet memory was taken %d times", made)
	}
	if _, err := unix.Write(pair[1], []byte{packetKind, 0, 0, 0, 'x'}); err != nil {
		t.Fatal(err)
	}
	if !c.tryReceive(uintptr(pair[0])) || c.got.err != nil || c.got.n != packetHead+1 {
		t.Errorf("a packet: %d bytes, %v", c.got.n, c.got.err)
	}
	c.release()
	unix.Close(pair[1])
	runtime.GC()
	runtime.GC()
	made = 0
	if !c.tryReceive(uintptr(pair[0])) || !errors.Is(c.got.err, io.EOF) || c.held != nil || made != 0 {
		t.Errorf("the end: %v, memory taken %d times", c.got.err, made)
	}
}

// What the other end wrote before it closed is read, also when it left something of ours unread.
func TestLastMessagesAreRead(t *testing.T) {
	c, far := connected(t)
	if err := c.WriteMessage([]byte("unread")); err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{"one", "two"} {
		if err := far.WriteMessage([]byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	far.Close()
	for _, want := range []string{"one", "two"} {
		if m, _, err := c.ReadMessage(); err != nil || string(m) != want {
			t.Fatalf("%q, %v, want %q", m, err, want)
		}
	}
	if _, _, err := c.ReadMessage(); err != io.EOF {
		t.Errorf("the end: %v", err)
	}
}
