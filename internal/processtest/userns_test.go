package processtest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// TestStrangersOfAUserNamespace: in a daemon's user namespace all users that have no number there
// have one and the same, which may be the daemon's own or one of the configuration. None of them is
// an administrator, has a grant or is a peer for it.
func TestStrangersOfAUserNamespace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be two other users")
	}
	const daemon, stranger = 12345, 23456
	d := dir(t)
	if err := os.Chmod(d, 0o777); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(d, "rdsd") // where both may run it
	b, err := os.ReadFile(rdsdtest.Binary(t))
	if err == nil {
		err = os.WriteFile(program, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	as := func(uid uint32, args ...string) *exec.Cmd {
		c := exec.Command(args[0], args[1:]...)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Pdeathsig: syscall.SIGKILL}
		return c
	}
	file := filepath.Join(d, "c.toml")
	text := `version = 1
[api]
socket_mode = "0666"
admin_uids = [65534]
[[ports]]
uid = 65534
range = "500-600"
exclusive = true
[[ports]]
gid = 65534
range = "601-700"
exclusive = true
[[peers]]
address = "127.0.0.0/8"
uids = [65534]
`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	port := rdsdtest.FreePort(t, netip.MustParseAddr("127.0.0.1"))
	p := &process{t: t, done: make(chan struct{})}
	p.cmd = as(daemon, program, "serve", "--config", file, "--socket", filepath.Join(d, "s"), "--port", fmt.Sprint(port), "--http", "")
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.WaitDelay = &p.out, &p.out, 5*time.Second
	p.cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
	p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534, NoSetGroups: true}
	p.cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 65534, HostID: daemon, Size: 1}}
	p.cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 65534, HostID: daemon, Size: 1}}
	p.start()
	p.says("serving", "it cannot be told from them")

	victim := as(daemon, program, "recv", "--socket", filepath.Join(d, "s"), "--bind", "127.0.0.1:5000")
	out := &syncBuffer{}
	victim.Stdout, victim.Stderr = out, out
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { victim.Process.Kill(); victim.Wait() }()
	for until := time.Now().Add(20 * time.Second); !strings.Contains(out.String(), "receiving on"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("no socket:\n%s", out)
		}
	}
	for _, args := range [][]string{
		{"sockets", "close", "127.0.0.1:5000"},
		{"recv", "--count", "1", "--timeout", "100ms", "--bind", "127.0.0.1:500"},
		{"recv", "--count", "1", "--timeout", "100ms", "--bind", "127.0.0.1:601"},
	} {
		said, err := as(stranger, append(append([]string{program}, args...), "--socket", filepath.Join(d, "s"))...).CombinedOutput()
		if err == nil || !strings.Contains(string(said), "65534 stands for all users that have no number") {
			t.Errorf("%v by a stranger: %v\n%s", args, err, said)
		}
	}
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
	c, err := from.Dial("tcp", fmt.Sprint("127.0.0.1:", port)) // as whom does not matter: root has no number there either
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p.says("is no peer", "65534 stands for all users")
}
