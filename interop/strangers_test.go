package interop

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// stranger is the user that nobody named.
const stranger = 65534

// localDaemon is rdsd of some user, in a namespace that all of them share.
type localDaemon struct {
	*daemon
	config string
}

// startLocal starts a daemon of user uid at the given addresses; rules is the
// rest of its configuration.
func startLocal(t *testing.T, ns *Netns, binary string, uid int, rules string, addrs ...string) *localDaemon {
	t.Helper()
	// Not t.TempDir, into which another user cannot look.
	dir, err := os.MkdirTemp("", "rdsd-strangers-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l := &localDaemon{&daemon{socket: filepath.Join(dir, "s"), log: filepath.Join(dir, "log"), exited: make(chan struct{})}, filepath.Join(dir, "rdsd.toml")}
	l.write(t, rules)
	log, err := os.Create(l.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := os.Chown(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	user := fmt.Sprint(uid)
	argv := []string{"setpriv", "--reuid", user, "--regid", user, "--clear-groups", binary, "serve", "--config", l.config,
		"--socket", l.socket, "--http", "", "--volume-state-dir", "none", "--drain-timeout", "0s"}
	for _, a := range addrs {
		argv = append(argv, "--address", a)
	}
	l.cmd = ns.Command(argv...)
	l.cmd.Stdout, l.cmd.Stderr = log, log
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = l.cmd.Wait()
		close(l.exited)
	}()
	t.Cleanup(func() {
		l.stop(t, syscall.SIGKILL)
		if t.Failed() {
			t.Logf("the log of uid %d's rdsd ends:\n%s", uid, l.tail())
		}
	})
	if l.Client, err = rdsd.Dial(l.socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ctx := limited(t, 15*time.Second)
	for {
		s, err := l.Bind(ctx, netip.MustParseAddrPort(addrs[0]+":0"))
		if err == nil {
			s.Close()
			return l
		}
		select {
		case <-l.exited:
			t.Fatalf("rdsd of uid %d: %v\n%s", uid, l.cmd.ProcessState, l.tail())
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (l *localDaemon) write(t *testing.T, rules string) {
	t.Helper()
	text := "version = 1\n[rds]\nreconnect_max = \"500ms\"\nlow_ports_below = 0\n" + rules
	if err := os.WriteFile(l.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// says waits until the daemon's log has a line with all the words.
func (l *localDaemon) says(t *testing.T, words ...string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		raw, _ := os.ReadFile(l.log)
	lines:
		for line := range strings.Lines(string(raw)) {
			for _, w := range words {
				if !strings.Contains(line, w) {
					continue lines
				}
			}
			return
		}
	}
	t.Errorf("no line with %q in the log", words)
}

// Every user may connect from any address of 127.0.0.0/8, to any address served
// here, and listen on one. A daemon takes for a peer on its machine its own user's
// alone, and whom a rule names.
func TestStrangers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	if testing.Short() {
		t.Skip("builds and starts daemons")
	}
	for _, tool := range []string{"ip", "setpriv", "ethtool"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	dir, err := os.MkdirTemp("", "rdsd-strangers-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "rdsd")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/rdsd/rdsd/rdsd").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ns, err := NewNetns(netip.MustParsePrefix("10.9.9.9/24"), netip.MustParsePrefix("10.9.9.10/24"), netip.MustParsePrefix("fd09::9/64"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	})

	const rules = "[[peers]]\naddress = \"10.0.0.0/8\"\n[[peers]]\naddress = \"fd09::/64\"\n"
	const export = "[[volumes.exports]]\nname = \"disk\"\nsize = \"1MiB\"\n"
	victim := startLocal(t, ns, binary, 0, rules+export, "127.0.0.50", "10.9.9.9", "fd09::9")
	// Of each address of the victim's there is a smaller one, which connects, and a
	// larger one, which asks to be connected to.
	evil := startLocal(t, ns, binary, stranger, rules, "127.0.0.2", "127.0.0.77", "10.9.9.10", "::1")
	friend := startLocal(t, ns, binary, 0, rules+"[volumes]\nlisten = \"never\"\n", "127.0.0.3", "127.0.0.78")

	ctx := limited(t, 60*time.Second)
	tries := []struct{ from, to string }{
		{"127.0.0.2", "127.0.0.50"}, {"127.0.0.77", "127.0.0.50"},
		{"127.0.0.77", "10.9.9.9"}, {"10.9.9.10", "10.9.9.9"}, {"::1", "fd09::9"},
	}
	ours, theirs := map[string]*rdsd.Socket{}, map[string]*rdsd.Socket{}
	for _, a := range []string{"127.0.0.50", "10.9.9.9", "fd09::9"} {
		ours[a] = victim.bind(ctx, t, netip.MustParseAddr(a), 700)
	}
	for _, a := range []string{"127.0.0.2", "127.0.0.77", "10.9.9.10", "::1"} {
		theirs[a] = evil.bind(ctx, t, netip.MustParseAddr(a), 9)
	}
	send := func(from *rdsd.Socket, to *rdsd.Socket, what string) {
		t.Helper()
		if err := from.Send(ctx, to.LocalAddr(), []byte(what)); err != nil {
			t.Fatalf("%v to %v: %v", from.LocalAddr(), to.LocalAddr(), err)
		}
	}
	for _, try := range tries {
		send(theirs[try.from], ours[try.to], "forged")
		send(ours[try.to], theirs[try.from], "a secret")
	}
	for _, from := range []string{"127.0.0.2", "::1"} {
		victim.says(t, "connection refused", from, "user 65534's")
	}
	for _, from := range []string{"127.0.0.77", "10.9.9.10"} { // dialled back, or refused before
		victim.says(t, from, "user 65534's")
	}
	var maps sync.WaitGroup
	for _, to := range []string{"127.0.0.50", "10.9.9.9", "[fd09::9]"} {
		maps.Go(func() {
			short, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			if m, err := evil.Volumes().Map(short, rdsd.MapSpec{Node: to, Name: "disk"}); err == nil {
				t.Errorf("the stranger has mapped %s of %s", m.Device, to)
			}
		})
	}
	maps.Wait()
	victim.says(t, "connection for volumes refused", "user 65534's")
	quiet := func(socks map[string]*rdsd.Socket) {
		t.Helper()
		for _, s := range socks {
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			if m, err := s.Recv(short); err == nil {
				t.Errorf("%v received %q of %v", s.LocalAddr(), m.Payload, m.Addr)
			}
			cancel()
		}
	}
	quiet(ours)
	quiet(theirs)

	// The same user's daemon, by both kinds of connecting, and its volumes.
	for _, from := range []string{"127.0.0.3", "127.0.0.78"} {
		s := friend.bind(ctx, t, netip.MustParseAddr(from), 9)
		send(s, ours["127.0.0.50"], "hello")
		m, err := ours["127.0.0.50"].Recv(ctx)
		if err != nil || string(m.Payload) != "hello" || m.Addr != s.LocalAddr() {
			t.Fatalf("%q of %v, %v", m.Payload, m.Addr, err)
		}
		send(ours["127.0.0.50"], s, "and back")
		if m, err := s.Recv(ctx); err != nil || string(m.Payload) != "and back" {
			t.Fatalf("%q, %v", m.Payload, err)
		}
	}
	if _, err := friend.Volumes().Map(ctx, rdsd.MapSpec{Node: "127.0.0.50", Name: "disk"}); err != nil {
		t.Errorf("the friend's mapping: %v", err)
	}

	// A rule names the stranger: what waits goes through, both ways.
	victim.write(t, rules+export+"[[peers]]\naddress = \"127.0.0.0/8\"\nuids = [65534]\n")
	if err := victim.reload(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		s    *rdsd.Socket
		n    int
		text string
	}{{ours["127.0.0.50"], 2, "forged"}, {theirs["127.0.0.2"], 1, "a secret"}} {
		for range want.n {
			m, err := want.s.Recv(ctx)
			if err != nil || string(m.Payload) != want.text {
				t.Errorf("named by a rule: %q, %v", m.Payload, err)
			}
		}
	}
}

// reload sends SIGHUP to rdsd itself: ip and setpriv have become it.
func (l *localDaemon) reload() error { return l.cmd.Process.Signal(syscall.SIGHUP) }
