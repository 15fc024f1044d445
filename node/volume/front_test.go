package volume

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSocketTakesNoDescriptors: the kernel refuses those that a client of a volume's
// socket sends, where it can.
func TestSocketTakesNoDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	l, err := listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var known, sent error
	err = raw.Control(func(fd uintptr) {
		const soPassRights = 83
		known = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, soPassRights, 1)
		sent = unix.Sendmsg(int(fd), []byte{0}, unix.UnixRights(int(null.Fd())), nil, 0)
	})
	if err != nil {
		t.Fatal(err)
	}
	if known == unix.ENOPROTOOPT {
		t.Skip("this kernel takes any descriptor")
	}
	if sent != unix.EPERM {
		t.Errorf("a descriptor was sent: %v", sent)
	}
}

// TestRuleForRequestSize: where the daemon may not, udev sets what the daemon would.
func TestRuleForRequestSize(t *testing.T) {
	b, err := os.ReadFile("../../packaging/60-rdsd-nbd.rules")
	if err != nil {
		t.Fatal(err)
	}
	var rules []string
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "#") {
			rules = append(rules, strings.TrimSpace(line))
		}
	}
	want := fmt.Sprintf(`ACTION=="add", SUBSYSTEM=="block", KERNEL=="nbd*", ENV{DEVTYPE}=="disk", ATTR{queue/max_sectors_kb}="%d"`, requestSize>>10)
	if len(rules) != 1 || rules[0] != want {
		t.Errorf("%q, want %q", rules, want)
	}
}
