package cli

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/vt"
	"github.com/creack/pty"
	"google.golang.org/grpc"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

const (
	manyPeers   = 1000
	manySockets = 5000
)

// crowd is a daemon with many peers and sockets, whose numbers grow.
type crowd struct {
	fakeAdmin
	asked atomic.Uint64
}

func (c *crowd) GetStatus(ctx context.Context, r *rdsdv1.GetStatusRequest) (*rdsdv1.Status, error) {
	c.asked.Add(1)
	return c.fakeAdmin.GetStatus(ctx, r)
}

func (c *crowd) ListPeers(context.Context, *rdsdv1.ListPeersRequest) (*rdsdv1.ListPeersResponse, error) {
	var list []*rdsdv1.Peer
	for i := range manyPeers {
		list = append(list, rdsdv1.Peer_builder{
			Local: ip("10.0.0.1"), Remote: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).AsSlice(), Kind: rdsdv1.PeerKind_PEER_KIND_RDSD, Lanes: 8,
			Queued: uint64(i * 7919 % 1009), RttNs: uint64(i+1) * 1000,
			Path: []*rdsdv1.Path{rdsdv1.Path_builder{State: rdsdv1.PathState_PATH_STATE_UP, UpSinceNs: 60e9, SentBytes: c.asked.Load() * 1 << 20}.Build()},
		}.Build())
	}
	return rdsdv1.ListPeersResponse_builder{Peer: list}.Build(), nil
}

func (c *crowd) ListSockets(context.Context, *rdsdv1.ListSocketsRequest) (*rdsdv1.ListSocketsResponse, error) {
	var list []*rdsdv1.SocketInfo
	for i := range manySockets {
		label := fmt.Sprintf("svc-%d", i)
		if i == 4321 {
			label = "evil\x1b[2J\u009b31m"
		}
		list = append(list, rdsdv1.SocketInfo_builder{Local: ep(fmt.Sprintf("10.0.0.1:%d", 1000+i)), Uid: 1000, Pid: uint32(20000 + i), Label: label, Program: "prog",
			Inode: uint64(i + 1), RecvQueued: uint64(i * 7919 % 5003), Accepted: c.asked.Load() * 10}.Build())
	}
	return rdsdv1.ListSocketsResponse_builder{Socket: list}.Build(), nil
}

func serveCrowd(t *testing.T) (socket string) {
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(rdsdv1.UnaryErrno))
	rdsdv1.RegisterAdminServer(s, &crowd{})
	v, err := newFakeVolumes(filepath.Dir(socket))
	if err != nil {
		t.Fatal(err)
	}
	rdsdv1.RegisterVolumeServiceServer(s, v)
	served := make(chan struct{})
	go func() { // ended by Stop
		defer close(served)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() { s.Stop(); v.stop(); <-served })
	return socket
}

// terminal is a terminal with a program in it.
type terminal struct {
	t      *testing.T
	master *os.File
	code   chan int

	mu  sync.Mutex   // the emulator's cells are its own while it writes
	emu *vt.Emulator // guarded by mu, but for Read
}

func newTerminal(t *testing.T, args ...string) *terminal {
	master, slave, err := pty.Open()
	if err != nil {
		t.Skipf("elsewhere: no pseudo-terminal: %v", err)
	}
	x := &terminal{t: t, master: master, emu: vt.NewEmulator(140, 40), code: make(chan int, 1)}
	x.size(140, 40)
	t.Setenv("TERM", "xterm-256color")
	ctx, cancel := context.WithCancel(context.Background())
	var ends [2]chan struct{}
	for i, f := range []func(){
		func() { // what the program says; ends when the terminal closes
			b := make([]byte, 65536)
			for {
				n, err := master.Read(b)
				if err != nil {
					return
				}
				x.mu.Lock()
				x.emu.Write(b[:n])
				x.mu.Unlock()
			}
		},
		func() { // what the terminal answers; ends when the emulator closes
			b := make([]byte, 4096)
			for {
				n, err := x.emu.Read(b)
				if err != nil {
					return
				}
				master.Write(b[:n])
			}
		},
	} {
		ends[i] = make(chan struct{})
		go func() { defer close(ends[i]); f() }()
	}
	done := make(chan struct{})
	go func() { // ends with ctx, or when the program does
		defer close(done)
		var errw bytes.Buffer
		code := run(ctx, args, slave, slave, &errw)
		if errw.Len() > 0 {
			t.Logf("it said %s", &errw)
		}
		x.code <- code
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		slave.Close()
		master.Close()
		<-ends[0]
		x.emu.InputPipe().(interface{ Close() error }).Close()
		<-ends[1]
	})
	return x
}

// size changes the window, and tells the program as a terminal does.
func (x *terminal) size(width, height int) {
	x.t.Helper()
	x.mu.Lock()
	x.emu.Resize(width, height)
	x.mu.Unlock()
	if err := pty.Setsize(x.master, &pty.Winsize{Rows: uint16(height), Cols: uint16(width)}); err != nil {
		x.t.Fatal(err)
	}
	syscall.Kill(os.Getpid(), syscall.SIGWINCH)
}

func (x *terminal) press(keys string) {
	if _, err := x.master.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
}

// lines are what stands on the screen.
func (x *terminal) lines() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []string
	for y := range x.emu.Height() {
		var b strings.Builder
		for at := range x.emu.Width() {
			if c := x.emu.CellAt(at, y); c != nil && c.Content != "" {
				b.WriteString(c.Content)
			} else if c == nil || c.Width != 0 {
				b.WriteByte(' ')
			}
		}
		out = append(out, strings.TrimRight(b.String(), " "))
	}
	return out
}

// until waits for a screen.
func (x *terminal) until(what string, ok func(lines []string) bool) []string {
	x.t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if l := x.lines(); ok(l) {
			return l
		}
		select {
		case <-deadline:
			x.t.Fatalf("waited in vain for %s; the screen is\n%s", what, strings.Join(x.lines(), "\n"))
		case <-tick.C:
		}
	}
}

func has(text string) func([]string) bool {
	return func(lines []string) bool { return strings.Contains(strings.Join(lines, "\n"), text) }
}

// rows are the lines of the table.
func rows(lines []string) []string { return lines[3 : len(lines)-1] }

// TestTop: what top shows of a crowd in a terminal is what the API says, sorted,
// filtered, one by one, and in a window of another size.
func TestTop(t *testing.T) {
	socket := serveCrowd(t)
	c, err := dialTarget(context.Background(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sockets, err := c.Admin().Sockets(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	byAddr := map[string]rdsd.SocketInfo{}
	for _, s := range sockets {
		byAddr[s.Local.String()] = s
	}

	x := newTerminal(t, "top", "--socket", socket, "-d", "100ms")
	// A screen arrives in pieces: each wait is for all of it to be as the API says.
	lines := x.until("the peers", func(l []string) bool {
		for i, r := range rows(l) {
			if f := strings.Fields(r); len(f) < 5 || f[0] != fmt.Sprintf("10.1.0.%d", i) || f[1] != "up" || f[3] != "1/1" {
				return false
			}
		}
		return len(rows(l)) == 36 && has("[1 peers 1000]")(l) && strings.HasPrefix(l[2], "PEER ")
	})
	if !strings.Contains(lines[0], "rdsd 1.2.3") || !strings.Contains(lines[0], "1 errors, 0 warnings (press 5)") {
		t.Errorf("the screen is\n%s", strings.Join(lines, "\n"))
	}
	x.until("a rate", func(l []string) bool { return strings.Contains(rows(l)[0], "MiB/s") })

	// unread is what the sockets on a screen have unread, nil unless all of them are the API's.
	unread := func(lines []string) (list []uint64) {
		for _, l := range rows(lines) {
			f := strings.Fields(l)
			s, ok := byAddr[append(f, "")[0]]
			if !ok || len(f) < 8 || f[1] != fmt.Sprint(s.PID) || f[2] != s.Program || f[3] != fmt.Sprint(s.UID) || f[4] != s.Label || f[7] != fmt.Sprint(s.RecvQueued) {
				return nil
			}
			list = append(list, s.RecvQueued)
		}
		return list
	}
	descending := func(a, b uint64) int { return cmp.Compare(b, a) }
	x.press("2")
	x.until("the sockets", func(l []string) bool { return has("[2 sockets 5000]")(l) && len(unread(l)) == 36 })
	for range 8 { // socket, pid, program, uid, label, sent, read, unread
		x.press(">")
	}
	x.until("sockets by what is unread", func(l []string) bool {
		u := unread(l)
		return has("UNREADv")(l) && len(u) == 36 && u[0] == 5002 && slices.IsSortedFunc(u, descending)
	})
	x.press("r")
	x.until("the other way around", func(l []string) bool {
		u := unread(l)
		return has("UNREAD^")(l) && len(u) == 36 && u[0] == 0 && slices.IsSorted(u)
	})

	x.press("/svc-432")
	x.until("the filter", has("filter: svc-432_"))
	x.press("\r")
	x.until("10 sockets", has("1 of 10 "))
	x.press("\x1b")
	x.until("all sockets", has("1 of 5000 "))
	x.press("/evil\r")
	x.until("the label as text", has(`evil\x1b[2J\u009b31m`))
	x.press("\r")
	x.until("one socket", func(l []string) bool {
		return has("accepted = ")(l) && strings.HasPrefix(l[3], "socket 10.0.0.1:5321 ") && strings.Contains(l[3], "pid 24321 (prog), uid 1000")
	})

	// A small window, then a large one; the chosen line stays on the screen.
	x.press("1")
	x.until("peers again", has("[1 peers 1000]"))
	x.press("\x1b[F") // end
	x.until("the last peer", has("1000 of 1000"))
	x.size(60, 10)
	x.until("a small window", func(l []string) bool {
		fits := !slices.ContainsFunc(l, func(s string) bool { return len([]rune(s)) > 60 })
		return len(l) == 10 && fits && strings.Contains(l[9], "1000 of 1000") && strings.HasPrefix(l[8], "10.1.3.231")
	})
	x.size(200, 50)
	x.until("a large window", func(l []string) bool {
		return len(l) == 50 && strings.HasPrefix(l[48], "10.1.3.231") && len(rows(l)) == 46 && strings.HasPrefix(rows(l)[0], "10.1.3.186")
	})

	for _, c := range []struct{ key, text string }{
		{"3", "pid 77 (uid 1000)"}, {"\r", "filled by:"}, {"4", "[4 volumes "}, {"5", "10.0.0.3 cannot be reached"}, {"\r", "to do: start rdsd on 10.0.0.3"}, {" ", "[5 problems"},
	} {
		x.press(c.key)
		x.until(c.text, has(c.text))
	}
	x.press("q")
	select {
	case code := <-x.code:
		if code != 0 {
			t.Errorf("it ended with %d", code)
		}
	case <-time.After(30 * time.Second):
		t.Error("q does not end it")
	}
}

// TestTopInBatch: plain text, without a terminal, whole and without what terminals obey.
func TestTopInBatch(t *testing.T) {
	socket := serveCrowd(t)
	top := func(args ...string) (string, int) {
		var out, errw bytes.Buffer
		code := run(context.Background(), append([]string{"top", "--socket", socket}, args...), strings.NewReader(""), &out, &errw)
		return out.String() + errw.String(), code
	}
	out, code := top("-b", "-n1")
	for _, want := range []string{"\npeers: 1000\n", "\nsockets: 5000\n", "\ncongestion: 2\n", "\nproblems: 2\n", "\n10.1.3.231 ", "\n10.0.0.1:5999 ", `evil\x1b[2J\u009b31m`} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q", want)
		}
	}
	if code != 0 || strings.ContainsAny(out, "\x1b\u009b\r") {
		t.Errorf("it ends with %d, escapes %v", code, strings.ContainsAny(out, "\x1b\u009b\r"))
	}
	out, _ = top("-b", "-n2", "-d", "100ms", "--view", "sockets", "--sort", "unread", "--filter", "svc-77")
	if n := strings.Count(out, "\nsockets: 11\n"); n != 2 || strings.Contains(out, "peers:") {
		t.Errorf("sockets are listed %d times:\n%s", n, out[:min(len(out), 500)])
	}
	for _, bad := range [][]string{{"-d", "1ms"}, {"--view", "clouds"}, {"--sort", "colour"}, {"-b", "-n", "-1"}, {}, {"--json", "-b"}} {
		if out, code := top(bad...); code != exitUsage {
			t.Errorf("%v ends with %d: %s", bad, code, out)
		}
	}
}
