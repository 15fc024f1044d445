package service

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/toll"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/node/config"
)

// closedConn notes that it was closed.
type closedConn struct {
	net.Conn
	closed int
}

func (c *closedConn) Close() error { c.closed++; return nil }

// TestEvict: who makes room for those that wait: the connection that has been silent
// for longest in the middle of a message; when there is none, the one that holds most
// among those in the middle of one or waiting themselves. Nobody soon after another, and
// nobody twice.
func TestEvict(t *testing.T) {
	now := time.Now()
	type who struct {
		silent time.Duration
		half   int
		waits  bool
		taken  int64 // in grains
		opened int64 // in streams
		ended  bool
		uid    uint32
	}
	why := errors.New("full")
	memory := quota.New(64<<20, nil)
	greedy := memory.Account(quota.User(2))
	defer greedy.Close()
	greedy.Grow(quota.Sockets, 60<<20) // user 2 is over its share, for other things
	modest, much := memory.Account(quota.User(3)), memory.Account(quota.User(4))
	defer modest.Close()
	defer much.Close()
	modest.Grow(quota.Calls, 2<<20) // a 32nd of the limit
	much.Grow(quota.Calls, 2<<20+1)
	accounts := map[uint32]*quota.Account{2: greedy, 3: modest, 4: much}
	for _, x := range []struct {
		what  string
		conns map[string]who
		since time.Duration // of the last one
		want  string
	}{
		{"nobody", nil, time.Hour, ""},
		{"only between messages", map[string]who{"a": {silent: time.Hour, taken: 1 << 20}}, time.Hour, ""},
		{"the most silent", map[string]who{"a": {silent: callIdle, half: 1}, "b": {silent: 2 * callIdle, half: 1}, "c": {silent: 3 * callIdle}, "d": {half: 1, taken: 1 << 20}}, time.Hour, "b"},
		{"silent for just long enough", map[string]who{"a": {silent: callIdle, half: 1}, "b": {half: 1, taken: 1 << 20}}, time.Hour, "a"},
		{"not silent for long enough", map[string]who{"a": {silent: callIdle - 1, half: 1, taken: 1}, "b": {half: 1, taken: 2}}, time.Hour, "b"},
		{"who waits is not silent", map[string]who{"a": {silent: time.Hour, half: 1, waits: true, taken: 1}, "b": {waits: true, taken: 3}, "c": {half: 1, taken: 2}}, time.Hour, "b"},
		{"who holds nothing", map[string]who{"a": {half: 1}}, time.Hour, ""},
		{"who holds streams alone", map[string]who{"a": {waits: true, opened: 100}, "b": {waits: true, opened: 99}}, time.Hour, "a"},
		{"streams and calls", map[string]who{"a": {waits: true, opened: 5, taken: 1}, "b": {waits: true, opened: 6}}, time.Hour, "a"},
		{"too few streams to be of use", map[string]who{"a": {waits: true, opened: 1}}, time.Hour, ""},
		{"nor do they count for their user", map[string]who{"a": {waits: true, opened: 1, uid: 1}, "b": {waits: true, opened: 1, uid: 1}, "c": {waits: true, opened: 1, uid: 1}, "d": {half: 1, taken: 1}}, time.Hour, "d"},
		{"nor streams of who does not wait", map[string]who{"a": {half: 1, taken: 1, opened: 100}, "b": {half: 1, taken: 2}}, time.Hour, "b"},
		{"between messages with streams", map[string]who{"a": {silent: time.Hour, opened: 100}}, time.Hour, ""},
		{"of the user who holds most, streams with calls", map[string]who{"a": {half: 1, taken: 9}, "b": {waits: true, opened: 20, uid: 1}}, time.Hour, "b"},
		{"who was ended before", map[string]who{"a": {silent: time.Hour, half: 1, ended: true}, "b": {waits: true, taken: 3, ended: true}, "c": {waits: true, taken: 2}}, time.Hour, "c"},
		{"too soon", map[string]who{"a": {silent: time.Hour, half: 1}}, callIdle/10 - 1, ""},
		{"late enough", map[string]who{"a": {silent: time.Hour, half: 1}}, callIdle / 10, "a"},
		{"of the user who holds most", map[string]who{"large": {half: 1, taken: 9, uid: 1}, "idle": {silent: time.Hour, half: 1, taken: 8, uid: 1},
			"a": {half: 1, taken: 5}, "b": {waits: true, taken: 6}}, time.Hour, "idle"},
		{"not of a user who holds less in all", map[string]who{"large": {half: 1, taken: 9, uid: 1}, "idle": {silent: time.Hour, half: 1, uid: 1},
			"a": {half: 1, taken: 5}, "b": {waits: true, taken: 6}}, time.Hour, "b"},
		{"what may not be ended does not count", map[string]who{"between": {taken: 99, uid: 1}, "ended": {half: 1, taken: 99, uid: 1, ended: true}, "small": {half: 1, taken: 1, uid: 1},
			"a": {half: 1, taken: 5}}, time.Hour, "a"},
		{"whose own share is spent gives room itself", map[string]who{"large": {half: 1, taken: 9, uid: 1}, "asks": {waits: true, taken: 2, uid: 2}, "small": {half: 1, taken: 1, uid: 2}}, time.Hour, "asks"},
		{"who holds little gives nothing to others", map[string]who{"small": {half: 1, taken: 9, uid: 3}, "idle": {silent: time.Hour, half: 1, uid: 3}}, time.Hour, ""},
		{"nor beside one who holds more in all and less in calls", map[string]who{"small": {half: 1, taken: 9, uid: 3}, "large": {half: 1, taken: 1, uid: 4}}, time.Hour, "large"},
		{"but to itself", map[string]who{"asks": {waits: true, taken: 2, uid: 3}, "large": {half: 1, taken: 1, uid: 4}}, time.Hour, "asks"},
	} {
		table := &callTable{log: slog.New(slog.DiscardHandler), count: &base.Counters{}, conns: map[*callConn]struct{}{}, evicted: now.Add(-x.since)}
		conns := map[string]*closedConn{}
		asks := &callConn{}
		for name, w := range x.conns {
			conns[name] = &closedConn{}
			c := &callConn{Conn: conns[name], table: table, last: now.Add(-w.silent), half: w.half, waits: w.waits, taken: w.taken * callGrain, opened: w.opened * streamBytes, ended: w.ended, id: config.Identity{UID: w.uid}, account: accounts[w.uid]}
			table.conns[c] = struct{}{}
			if name == "asks" {
				asks = c
			}
		}
		table.evict(now, asks, why)
		table.parting.Wait()
		for name, c := range conns {
			if (c.closed == 1) != (name == x.want) || c.closed > 1 {
				t.Errorf("%s: %s was closed %d times", x.what, name, c.closed)
			}
		}
		if n := table.count.ClientsRefused.Load(); (n == 1) != (x.want != "") || (table.evicted == now) != (x.want != "") {
			t.Errorf("%s: %d counted, the last one at %v", x.what, n, table.evicted)
		}
	}
}

// TestEvictOfManyLittle: when calls have their part of the memory, those who hold little make room
// too. A dozen of them may hold all of it.
func TestEvictOfManyLittle(t *testing.T) {
	now := time.Now()
	memory := quota.New(64<<20, nil)
	table := &callTable{log: slog.New(slog.DiscardHandler), count: &base.Counters{}, conns: map[*callConn]struct{}{}}
	add := func(uid uint32, taken, owed int64) (*callConn, *closedConn) { // half a message, silent
		account := memory.Account(quota.User(uid))
		t.Cleanup(account.Close)
		if err := account.Take(quota.Calls, taken); err != nil {
			t.Fatal(uid, err)
		}
		below := &closedConn{}
		c := &callConn{Conn: below, table: table, last: now.Add(-time.Hour), half: 1, taken: taken, owed: owed, id: config.Identity{UID: uid}, account: account}
		table.conns[c] = struct{}{}
		return c, below
	}
	asks, mine := add(100, 1, 1<<20)
	asks.waits = true
	streams, theirs := add(101, 1, 1)
	streams.waits, streams.opened = true, 32<<20 // none of which is of use to calls
	for uid := range uint32(11) {
		add(uid, 2<<20, 2<<20)
	}
	add(11, 1<<20+1, 1<<20+1) // of the part, 24 MiB, a MiB is left, less three bytes
	table.evict(now, asks, errors.New("full"))
	table.parting.Wait()
	if n := table.count.ClientsRefused.Load(); n != 1 || mine.closed != 0 || theirs.closed != 0 {
		t.Errorf("%d were closed, who waits %d times, who holds streams %d times", n, mine.closed, theirs.closed)
	}
}

// TestSweepOfCalls: who is silent in the middle of a message for too long is ended;
// who waits for us, is between messages or goes on is not.
func TestSweepOfCalls(t *testing.T) {
	now := time.Now()
	table := &callTable{log: slog.New(slog.DiscardHandler), count: &base.Counters{}, conns: map[*callConn]struct{}{}}
	conns := map[string]*closedConn{}
	add := func(name string, silent time.Duration, half int, waits bool) {
		conns[name] = &closedConn{}
		table.conns[&callConn{Conn: conns[name], table: table, last: now.Add(-silent), half: half, waits: waits}] = struct{}{}
	}
	add("silent", callStale+1, 1, false)
	add("just not", callStale, 1, false)
	add("waits", time.Hour, 1, true)
	add("between", time.Hour, 0, false)
	table.sweep(now)
	table.sweep(now) // it is not ended twice
	table.parting.Wait()
	for name, c := range conns {
		if (c.closed == 1) != (name == "silent") {
			t.Errorf("%s: closed %d times", name, c.closed)
		}
	}
	if n := table.count.ClientsRefused.Load(); n != 1 {
		t.Errorf("%d counted", n)
	}
}

// slowConn is a connection whose close takes until go is closed.
type slowConn struct {
	net.Conn
	begun, goes chan struct{}
}

func (c *slowConn) Close() error { close(c.begun); <-c.goes; return nil }

// TestSlowCloses: a connection whose close waits for something is ended like others, and nobody
// waits for it; its client has its place until it is closed, whoever else closes it meanwhile.
func TestSlowCloses(t *testing.T) {
	now := time.Now()
	memory := quota.New(64<<20, nil)
	why := errors.New("full")
	ends := map[string]func(*callTable, *callConn){
		"sweep":  func(t *callTable, _ *callConn) { t.sweep(now) },
		"evict":  func(t *callTable, c *callConn) { t.evict(now, c, why) },
		"itself": func(_ *callTable, c *callConn) { c.Close() },
	}
	for what, end := range ends {
		table := &callTable{log: slog.New(slog.DiscardHandler), count: &base.Counters{}, conns: map[*callConn]struct{}{}}
		slow := &slowConn{begun: make(chan struct{}), goes: make(chan struct{})}
		released := make(chan struct{})
		account := memory.Account(quota.User(1))
		c := table.wrap(slow, config.Identity{UID: 1}, account, func() { account.Close(); close(released) })
		c.mu.Lock()
		c.half, c.last = 1, now.Add(-time.Hour)
		c.mu.Unlock()
		end(table, c)
		<-slow.begun
		other := table.wrap(&closedConn{}, config.Identity{UID: 1}, memory.Account(quota.User(1)), func() {})
		other.Close()
		c.Close()
		select {
		case <-released:
			t.Errorf("%s: the place is free, and the connection not closed", what)
		default:
		}
		close(slow.goes)
		table.parting.Wait()
		<-released
		if len(table.conns) > 0 {
			t.Errorf("%s: %d connections are left", what, len(table.conns))
		}
	}
}

// TestCallAwaitsRoom: a connection that there is no memory for waits until there is
// some; one that is closed or evicted meanwhile ends at once, so that what it holds is
// there for the others.
func TestCallAwaitsRoom(t *testing.T) {
	memory := quota.New(64<<20, nil)
	table := &callTable{log: slog.New(slog.DiscardHandler), count: &base.Counters{}, conns: map[*callConn]struct{}{}}
	account := memory.Account(quota.User(1))
	c := table.wrap(&closedConn{}, config.Identity{UID: 1}, account, func() { account.Close() })
	other := memory.Account(quota.Holder{})
	fill := memory.Limit() - memory.Used()
	other.Grow(quota.Peers, fill)
	c.mu.Lock()
	c.owed = callGrain
	no := c.take()
	c.mu.Unlock()
	if no == nil {
		t.Fatal("there is room")
	}
	awaited := make(chan error, 1)
	wait := func() {
		c.mu.Lock()
		err := c.await(no)
		waits := c.waits
		c.mu.Unlock()
		if waits {
			err = fmt.Errorf("it still waits: %w", err)
		}
		awaited <- err
	}
	waiting := func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.waits }
	go wait() // ends with the room
	await.Until(t, 5*time.Second, "it waits", waiting)
	other.Give(quota.Peers, fill)
	if err := <-awaited; err != nil || c.taken != callGrain {
		t.Errorf("%d are taken, %v", c.taken, err)
	}
	other.Grow(quota.Peers, fill)
	c.mu.Lock()
	c.owed = 1 << 30
	c.mu.Unlock()
	for _, end := range []struct {
		what string
		how  func()
	}{
		{"evicted", func() { table.evict(time.Now(), c, no) }},
		{"closed", func() { c.Close() }},
	} {
		c.mu.Lock()
		c.ended = false
		c.mu.Unlock()
		begun := time.Now()
		go wait() // ends with the connection
		await.Until(t, 5*time.Second, "it waits", waiting)
		end.how()
		if err := <-awaited; !errors.Is(err, net.ErrClosed) || time.Since(begun) >= callPatience {
			t.Errorf("%s meanwhile: %v after %v", end.what, err, time.Since(begun))
		}
	}
	other.Give(quota.Peers, fill)
	other.Close()
	if len(table.conns) != 0 || memory.Used() != 0 || len(memory.Holders()) != 0 {
		t.Errorf("%d connections, %d bytes and %v are left", len(table.conns), memory.Used(), memory.Holders())
	}
}

// TestWhoWaitsAndLeaves: the connection of a client that goes while a read waits for memory ends then, and
// not when it has waited long enough or there is some: nothing of it is served, and what it held is free.
func TestWhoWaitsAndLeaves(t *testing.T) {
	var log strings.Builder
	memory := quota.New(64<<20, nil)
	table := &callTable{log: slog.New(slog.NewTextHandler(&log, nil)), count: &base.Counters{}, conns: map[*callConn]struct{}{}}
	client, ours := socketPair(t)
	account := memory.Account(quota.User(1))
	c := table.wrap(toll.Wrap(ours, nil, nil), config.Identity{UID: 1}, account, func() { account.Close() })
	read := make(chan error)
	reads := func() { _, err := c.Read(make([]byte, 64<<10)); read <- err }
	client.Write(append(make([]byte, prefaceSize), h2frame(frameHeaders, 1, []byte("x"))...))
	go reads() // ends with what was sent
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	other := memory.Account(quota.Holder{})
	defer other.Close()
	fill := memory.Limit() - memory.Used()
	other.Grow(quota.Peers, fill)
	client.Write(h2frame(frameData, 1, grpcMessage(100, 105)))
	go reads() // ends with the client
	await.Until(t, 30*time.Second, "it waits", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.waits })
	client.Close()
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Errorf("it has waited until %v", err)
	}
	c.Close()
	table.parting.Wait()
	if n := memory.Used() - fill; n != 0 || log.Len() > 0 {
		t.Errorf("%d bytes are held for a client that has left, and the log says %q", n, log.String())
	}
}

// socketPair is two ends of a connection.
func socketPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	end := func(fd int) net.Conn {
		f := os.NewFile(uintptr(fd), "pair")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	return end(fds[0]), end(fds[1])
}

// TestHoldersAreFew: who holds most is named, however little that is, and not more
// than a few; who holds nothing is not.
func TestHoldersAreFew(t *testing.T) {
	n := newWorld(t, clienttest.Config(t), world{real: true})
	before := len(n.services.memoryHolders())
	none := n.deps.Memory.Account(quota.User(4711))
	defer none.Close()
	if now := len(n.services.memoryHolders()); now != before {
		t.Errorf("%d are named, %d before one came that holds nothing", now, before)
	}
	var l []*quota.Account
	for i := range maxHolders + 3 {
		a := n.deps.Memory.Account(quota.User(uint32(i)))
		a.Grow(quota.Sockets, int64(i+1))
		l = append(l, a)
		if got, want := len(n.services.memoryHolders()), min(before+i+1, maxHolders); got != want {
			t.Errorf("%d are named of %d", got, want)
		}
	}
	named := n.services.memoryHolders()
	for i := 1; i < len(named); i++ {
		if named[i].Used > named[i-1].Used {
			t.Errorf("%+v comes behind %+v", named[i], named[i-1])
		}
	}
	for i, a := range l {
		a.Give(quota.Sockets, int64(i+1))
		a.Close()
	}
}

// TestEndsAreTold: that a connection with calls under way was closed by this end, or failed, is in
// the log; that its client has closed it, or what was said before, is not.
func TestEndsAreTold(t *testing.T) {
	streams := map[uint32]*callStream{1: {}, 3: {}}
	for what, x := range map[string]struct {
		c    *callConn
		want string
	}{
		"by this end":    {&callConn{streams: streams}, `closed by this end" uid=7 pid=0 calls=2`},
		"failed":         {&callConn{streams: streams, failed: syscall.ENOBUFS}, `failed" uid=7 pid=0 calls=2 error="no buffer space available"`},
		"by its client":  {&callConn{streams: streams, failed: io.EOF}, ""},
		"without a call": {&callConn{failed: syscall.ENOBUFS}, ""},
		"said before":    {&callConn{streams: streams, ended: true}, ""},
		"refused":        {&callConn{streams: streams, bad: syscall.EINVAL}, ""},
	} {
		var log strings.Builder
		table := &callTable{log: slog.New(slog.NewTextHandler(&log, nil))}
		c := x.c
		c.id = config.Identity{UID: 7}
		table.tell(c)
		if got := log.String(); x.want == "" && got != "" || !strings.Contains(got, x.want) {
			t.Errorf("%s: %q, want %q in it", what, got, x.want)
		}
	}
	c := &callConn{Conn: &failing{read: io.ErrUnexpectedEOF, write: syscall.EPIPE}, table: &callTable{}}
	c.Read(make([]byte, 1))
	c.Write([]byte{0})
	if c.failed != io.ErrUnexpectedEOF {
		t.Errorf("%v is kept, want the first error", c.failed)
	}
	c = &callConn{Conn: &failing{write: syscall.EPIPE}, table: &callTable{}}
	if c.Write([]byte{0}); c.failed != error(syscall.EPIPE) {
		t.Errorf("%v is kept, want that of the write", c.failed)
	}
}

// failing is a connection whose calls fail.
type failing struct {
	net.Conn
	read, write error
}

func (c *failing) Read([]byte) (int, error)  { return 0, c.read }
func (c *failing) Write([]byte) (int, error) { return 0, c.write }
