package netlocal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const nobody = 65534

// TestMain is also the process of another user: it connects from where it is
// told, or listens, and holds what it has until its input ends.
func TestMain(m *testing.M) {
	switch os.Getenv("NETLOCAL_ROLE") {
	case "":
		os.Exit(m.Run())
	case "connect":
		from := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(os.Getenv("NETLOCAL_FROM")))
		c, err := (&net.Dialer{LocalAddr: from}).Dial("tcp", os.Getenv("NETLOCAL_TO"))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(c.LocalAddr())
		in := bufio.NewReader(os.Stdin)
		in.ReadString('\n')
		c.Close()
		fmt.Println("closed")
		io.Copy(io.Discard, in)
	case "listen": // accepts one for each line it is told
		l, err := net.Listen("tcp", os.Getenv("NETLOCAL_FROM"))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(l.Addr())
		for in := bufio.NewReader(os.Stdin); ; {
			if _, err := in.ReadString('\n'); err != nil {
				return
			}
			if c, err := l.Accept(); err == nil {
				defer c.Close()
				fmt.Println("accepted")
			}
		}
	}
}

// other is a process of user uid.
type other struct {
	out *bufio.Reader
	in  io.WriteCloser
}

func (o *other) line(t *testing.T) string {
	t.Helper()
	s, err := o.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(s)
}

func startOther(t *testing.T, uid uint32, role, from, to string) *other {
	t.Helper()
	if os.Geteuid() != 0 && uid != uint32(os.Geteuid()) {
		t.Skip("only root can be somebody else")
	}
	// Another user cannot read the test binary in its directory.
	cmd := exec.Command("/proc/self/fd/3")
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	cmd.ExtraFiles = []*os.File{self}
	cmd.Dir = "/"
	cmd.Env = []string{"NETLOCAL_ROLE=" + role, "NETLOCAL_FROM=" + from, "NETLOCAL_TO=" + to}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return &other{bufio.NewReader(out), in}
}

func ends(c net.Conn) (local, remote netip.AddrPort) {
	return c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
}

func TestOwnerOfWhoConnected(t *testing.T) {
	for _, tc := range []struct{ listen, from string }{
		{"127.0.0.1:0", "127.0.0.1:0"}, {"127.0.0.1:0", "127.0.0.77:0"}, {"[::1]:0", "[::1]:0"},
	} {
		l, err := net.Listen("tcp", tc.listen)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for _, uid := range []uint32{nobody, uint32(os.Geteuid())} {
			o := startOther(t, uid, "connect", tc.from, l.Addr().String())
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if at, from := o.line(t), c.RemoteAddr().String(); at != from {
				t.Fatalf("it says %s, its connection %s", at, from)
			}
			local, remote := ends(c)
			if got, err := Owner(local, remote); err != nil || got != uid {
				t.Errorf("%v to %v by uid %d: uid %d, %v", remote, local, uid, got, err)
			}
			// Its socket is closed; ours still has what may have been sent. The kernel
			// calls what is left root's.
			io.WriteString(o.in, "\n")
			o.line(t)
			if got, err := Owner(local, remote); !errors.Is(err, ErrGone) {
				t.Errorf("%v closed: uid %d, %v", remote, got, err)
			}
		}
	}
}

func TestOwnerOfWhoAccepted(t *testing.T) {
	for _, at := range []string{"127.0.0.77:0", "[::1]:0"} {
		o := startOther(t, nobody, "listen", at, "")
		to := o.line(t)
		c, err := net.Dial("tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		local, remote := ends(c)
		// Nobody has accepted: the kernel calls this connection root's.
		if got, err := Owner(local, remote); !errors.Is(err, ErrGone) {
			t.Errorf("not accepted: uid %d, %v", got, err)
		}
		soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if got, err := AcceptedBy(soon, local, remote); !errors.Is(err, ErrGone) {
			t.Errorf("not accepted in time: uid %d, %v", got, err)
		}
		cancel()
		io.WriteString(o.in, "\n")
		if got, err := AcceptedBy(t.Context(), local, remote); err != nil || got != nobody {
			t.Errorf("accepted by nobody: uid %d, %v", got, err)
		}
		// Who closes at once is not waited for.
		o.in.Close()
		o.out.ReadString('\n')
		if _, err := o.out.ReadString('\n'); err != io.EOF {
			t.Error(err)
		}
		if got, err := AcceptedBy(t.Context(), local, remote); !errors.Is(err, ErrGone) {
			t.Errorf("closed: uid %d, %v", got, err)
		}
	}
}

// A listener at the address is no end of a connection that is not there.
func TestOwnerOfNoConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := l.Addr().(*net.TCPAddr).AddrPort()
	if got, err := Owner(netip.MustParseAddrPort("127.0.0.1:9"), at); !errors.Is(err, ErrGone) {
		t.Errorf("uid %d, %v", got, err)
	}
}

func TestIsLocal(t *testing.T) {
	for a, want := range map[string]bool{
		"127.0.0.1": true, "127.9.8.7": true, "::1": true, "::ffff:127.0.0.1": true,
		"192.0.2.1": false, "2001:db8::1": false,
	} {
		if got := IsLocal(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %v", a, got)
		}
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range own {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if !IsLocal(p.Addr()) {
			t.Errorf("%v, an address of an interface, is not local", p.Addr())
		}
		if ok := mayBind(p.Addr()); !ok {
			t.Errorf("%v cannot be bound", p.Addr())
		}
	}
	if mayBind(netip.MustParseAddr("192.0.2.1")) {
		t.Error("192.0.2.1 can be bound")
	}
}
