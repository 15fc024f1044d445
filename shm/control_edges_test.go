package shm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A message has 1 byte to 4 MiB and at most four descriptors, at either end.
func TestMessageLimits(t *testing.T) {
	c, k := pair(t)
	fds := []int{0, 0, 0, 0, 0}
	for what, x := range map[string]struct {
		n, fds int
		good   bool
	}{"nothing": {0, 0, false}, "a byte": {1, 0, true}, "all": {MaxMessage, 0, true}, "a byte more": {MaxMessage + 1, 0, false},
		"all descriptors": {1, 4, true}, "one more": {1, 5, false}} {
		msg := make([]byte, x.n)
		if err := checkMessage(msg, fds[:x.fds]); (err == nil) != x.good || !x.good && !errors.Is(err, unix.EMSGSIZE) {
			t.Errorf("%s: %v", what, err)
		}
		if x.good {
			continue
		}
		if done, err := k.Send(msg, fds[:x.fds]...); done || !errors.Is(err, unix.EMSGSIZE) || k.Pending() {
			t.Errorf("%s: sent %v, %v", what, done, err)
		}
		if err := c.WriteMessage(msg, fds[:x.fds]...); !errors.Is(err, unix.EMSGSIZE) {
			t.Errorf("%s: written: %v", what, err)
		}
	}
	if done, err := k.Send([]byte("x")); !done || err != nil { // what was refused has left nothing
		t.Fatal(done, err)
	}
	if msg, _, err := c.ReadMessage(); err != nil || string(msg) != "x" {
		t.Errorf("%q, %v", msg, err)
	}
	for n, pieces := range map[int]int{1: 1, MaxPiece: 1, MaxPiece + 1: 2, 2 * MaxPiece: 2, 2*MaxPiece + 1: 3} {
		got, rest := 0, make([]byte, n)
		for len(rest) > 0 {
			head, piece := packetOf(rest)
			rest = rest[len(piece):]
			if got++; head != [4]byte{1, map[bool]byte{true: 1}[len(rest) > 0], 0, 0} {
				t.Errorf("piece %d of %d bytes begins with %v", got, n, head)
			}
		}
		if got != pieces {
			t.Errorf("%d bytes are %d packets, want %d", n, got, pieces)
		}
	}
}

// TestTryTakesAPacket: Try writes what is one packet, to its last byte, and of anything else
// nothing, without an error; but what is no message is refused.
func TestTryTakesAPacket(t *testing.T) {
	for _, x := range []struct {
		n, fds int
		done   bool
		err    error
	}{{1, 0, true, nil}, {1, 4, true, nil}, {MaxPiece - 1, 0, true, nil}, {MaxPiece, 0, true, nil}, {MaxPiece + 1, 0, false, nil}, {0, 0, false, unix.EMSGSIZE}, {1, 5, false, unix.EMSGSIZE}} {
		c, k := pair(t)
		done, err := k.Try(make([]byte, x.n), []int{0, 0, 0, 0, 0}[:x.fds]...)
		if done != x.done || !errors.Is(err, x.err) {
			t.Errorf("%d bytes, %d descriptors: %v, %v; want %v, %v", x.n, x.fds, done, err, x.done, x.err)
		}
		if k.Pending() {
			t.Errorf("%d bytes: something waits", x.n)
		}
		if x.done {
			msg, fds, err := c.ReadMessage()
			if err != nil || len(msg) != x.n || len(fds) != x.fds {
				t.Errorf("%d of %d bytes and %d of %d descriptors came: %v", len(msg), x.n, len(fds), x.fds, err)
			}
			closeAll(fds)
		}
		if done, err := k.Send([]byte("y")); !done || err != nil { // nothing is half written
			t.Fatal(done, err)
		}
		if msg, _, err := c.ReadMessage(); err != nil || string(msg) != "y" {
			t.Errorf("behind %d bytes %q came, %v", x.n, msg, err)
		}
	}
}

// feed is an assembler with what it was charged.
func feed(max, maxFDs int, refuse func(sum int) bool) (*assembler, *int) {
	sum := new(int)
	return &assembler{max: max, maxFDs: maxFDs, charge: func(n int) error {
		if n > 0 && refuse != nil && refuse(*sum+n) {
			return unix.ENOMEM
		}
		*sum += n
		return nil
	}}, sum
}

func packets1(msg []byte) (all [][]byte) {
	for len(msg) > 0 {
		head, piece := packetOf(msg)
		all, msg = append(all, append(head[:], piece...)), msg[len(piece):]
	}
	return all
}

// What is put together is charged as long as it is there: nothing for a message in one
// packet, and nothing is left whether the message ends, is given up, is too long or cannot be paid for.
func TestAssemblerCharges(t *testing.T) {
	msg := bytes.Repeat([]byte("0123456789abcdef"), MaxPiece/16*5/2)
	a, sum := feed(len(msg), 0, nil)
	if got, _, whole, err := a.take(packets1([]byte("short"))[0], nil, 0); !whole || err != nil || string(got) != "short" || *sum != 0 || a.half() {
		t.Errorf("%q %v %v, %d charged", got, whole, err, *sum)
	}
	all := packets1(msg)
	for i, p := range all {
		got, _, whole, err := a.take(p, nil, 0)
		last := i == len(all)-1
		if err != nil || whole != last || a.half() == last {
			t.Fatalf("piece %d: %v, whole %v, half %v", i, err, whole, a.half())
		}
		if *sum != cap(a.buf) || *sum > len(msg) {
			t.Errorf("piece %d: %d charged of %d", i, *sum, cap(a.buf))
		}
		if last && !bytes.Equal(got, msg) {
			t.Error("another message")
		}
	}
	a.done()
	a.done()
	if *sum != 0 || a.buf != nil {
		t.Errorf("%d stay charged", *sum)
	}
	a.take(all[0], nil, 0)
	a.done() // of a message before: the half one stays
	if *sum == 0 || !a.half() {
		t.Error("half a message is forgotten")
	}
	a.drop()
	if *sum != 0 || a.half() {
		t.Errorf("%d stay charged of what was given up", *sum)
	}
	a, sum = feed(len(msg)-1, 0, nil) // a byte less than it needs
	var err error
	for _, p := range all {
		if _, _, _, err = a.take(p, nil, 0); err != nil {
			break
		}
	}
	if !errors.Is(err, unix.EBADMSG) || *sum != 0 || a.half() {
		t.Errorf("too long: %v, %d charged", err, *sum)
	}
	for most := range 3 { // refused at first, at the second piece, at the third
		n := 0
		a, sum = feed(len(msg), 0, func(int) bool { n++; return n > most })
		for _, p := range all {
			if _, _, _, err = a.take(p, nil, 0); err != nil {
				break
			}
		}
		if want := most < 2; want != errors.Is(err, unix.ENOMEM) || want && (*sum != 0 || a.half()) {
			t.Errorf("memory for %d times: %v, %d charged", most, err, *sum)
		}
		err = nil
	}
}

// Descriptors that come with a message: as many as may, the others are closed, and all of
// them where the message is none.
func TestAssemblerDescriptors(t *testing.T) {
	rights := func(n int) ([]byte, []int) {
		var fds []int
		for range n {
			fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			fds = append(fds, fd)
		}
		return unix.UnixRights(fds...), fds
	}
	open := func(fds []int) (n int) {
		for _, fd := range fds {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
				n++
			}
		}
		return n
	}
	big := packets1(make([]byte, MaxPiece+1))
	for what, c := range map[string]struct {
		max, came, got int
		packets        [][]byte
		late           bool // they come with the second packet
	}{
		"all":                 {4, 4, 4, packets1([]byte("x")), false},
		"one too many":        {2, 3, 2, packets1([]byte("x")), false},
		"none are wanted":     {0, 2, 0, packets1([]byte("x")), false},
		"with the first half": {4, 2, 2, big, false},
		"too late":            {4, 2, -1, big, true},
		"no message":          {4, 2, -1, [][]byte{{1, 0, 0, 0}}, false},
		"nothing else":        {4, 2, -1, [][]byte{nil}, false},
	} {
		a, sum := feed(MaxMessage, c.max, nil)
		oob, sent := rights(c.came)
		var fds []int
		var err error
		for i, p := range c.packets {
			var with []byte
			if (i == 1) == c.late {
				with = oob
			}
			if _, fds, _, err = a.take(p, with, 0); err != nil {
				break
			}
		}
		a.done()
		want := max(c.got, 0)
		if (err != nil) != (c.got < 0) || len(fds) != want || open(sent) != want || *sum != 0 || len(a.fds) != 0 {
			t.Errorf("%s: %v, %d descriptors of %d open, %d charged", what, err, len(fds), open(sent), *sum)
		}
		closeAll(fds)
	}
	// What was cut off by the kernel is no message, whatever stands in it.
	a, _ := feed(MaxMessage, 4, nil)
	if _, _, _, err := a.take(packets1([]byte("x"))[0], nil, unix.MSG_TRUNC); !errors.Is(err, unix.EBADMSG) {
		t.Errorf("a packet that was cut: %v", err)
	}
	if _, _, _, err := a.take(nil, nil, 0); err != io.EOF {
		t.Errorf("the end: %v", err)
	}
	if rightsOf([]byte{1, 2, 3}) != nil {
		t.Error("descriptors in nonsense")
	}
}

// The end of a connection is io.EOF, also when it went with something unread; a detached
// connection goes on in the middle of a message; and a closed one has no descriptor.
func TestControlEnds(t *testing.T) {
	if recvError(unix.ECONNRESET) != io.EOF || recvError(unix.EAGAIN) != ErrAgain {
		t.Error("the ends of a connection")
	}
	if err := recvError(unix.EBADF); !errors.Is(err, unix.EBADF) || err == error(unix.EBADF) {
		t.Errorf("an error of the system's: %v", err)
	}
	c, k := pair(t)
	cred, err := c.Cred()
	if err != nil || cred.UID != uint32(os.Getuid()) || cred.GID != uint32(os.Getgid()) || cred.PID != uint32(os.Getpid()) {
		t.Errorf("peer %+v, %v", cred, err)
	}
	if _, err := credOf(-1); err == nil {
		t.Error("the peer of nothing")
	}
	k.Shutdown()
	if _, _, err := c.ReadMessage(); err != io.EOF {
		t.Errorf("after a shutdown: %v", err)
	}
	if err := k.Close(); err != nil || k.FD != -1 {
		t.Errorf("%v, %d", err, k.FD)
	}
	if err := k.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	k.Shutdown()
	if err := c.WriteMessage([]byte("x")); err == nil {
		t.Error("written to nobody")
	}
	c.Close()
	if _, _, err := c.ReadMessage(); err == nil {
		t.Error("read from a closed connection")
	}
	if _, err := c.Cred(); err == nil {
		t.Error("the peer of a closed connection")
	}
	if _, err := c.Detach(); err == nil {
		t.Error("a closed connection was detached")
	}
}

// TestControlFlushes: a message that the other end does not read is written later, once,
// with its descriptors, and its memory is not kept.
func TestControlFlushes(t *testing.T) {
	c, k := pair(t)
	msg := bytes.Repeat([]byte("abcdefgh"), MaxMessage/8)
	bell, err := NewBell()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(bell)
	done, err := k.Send(msg, bell)
	if done || err != nil || !k.Pending() {
		t.Fatalf("4 MiB went at once: %v, %v", done, err)
	}
	if done, err := k.Send([]byte("y")); done || !errors.Is(err, unix.EBUSY) {
		t.Errorf("a second message: %v, %v", done, err)
	}
	type got struct {
		msg []byte
		fds []int
		err error
	}
	read := make(chan got, 1)
	go func() {
		m, fds, err := c.ReadMessage()
		read <- got{bytes.Clone(m), fds, err}
	}()
	for !done && err == nil {
		unix.Poll([]unix.PollFd{{Fd: int32(k.FD), Events: unix.POLLOUT}}, 1000)
		done, err = k.Flush()
	}
	g := <-read
	if err != nil || g.err != nil || len(g.fds) != 1 || !bytes.Equal(g.msg, msg) {
		t.Errorf("%v, %v, %d descriptors, %d bytes", err, g.err, len(g.fds), len(g.msg))
	}
	closeAll(g.fds)
	if k.Pending() || k.out != nil {
		t.Errorf("%d bytes of memory are kept", cap(k.out))
	}
	if done, err := k.Send([]byte("next")); !done || err != nil {
		t.Fatal(done, err)
	}
	if m, fds, err := c.ReadMessage(); string(m) != "next" || len(fds) != 0 || err != nil {
		t.Errorf("%q with %d descriptors, %v", m, len(fds), err)
	}
	k.Shutdown()
	for range 100 { // into a connection that has ended
		if done, err = k.Send(msg[:MaxPiece]); err != nil {
			break
		}
	}
	if err == nil || done {
		t.Errorf("sent to nobody: %v, %v", done, err)
	}
}

// A socket is made anew only where a dead daemon left one: not over a file, and not
// where none can be made.
func TestListenWhere(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file, 0o600); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("over a file: %v", err)
	}
	if b, err := os.ReadFile(file); string(b) != "keep" {
		t.Errorf("the file is %q, %v", b, err)
	}
	if _, err := Listen(filepath.Join(file, "x"), 0o600); err == nil {
		t.Error("below a file")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := Dial(ctx, filepath.Join(dir, "none")); !errors.Is(err, unix.ENOENT) {
		t.Errorf("dialled nobody: %v", err)
	}
	path := filepath.Join(dir, "s")
	l, err := Listen(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("closed, and its socket is there: %v", err)
	}
	if _, err := l.AcceptConn(); err == nil {
		t.Error("accepted on a closed socket")
	}
}
