package interop

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const netnsPrefix = "rdsd-interop-"

var netnsCount atomic.Uint32

// Netns is a network namespace with a veth pair: Host is the end that carries
// our addresses, Guest the one a kernel opens as its card.
type Netns struct {
	Name        string
	Host, Guest string
}

// NewNetns makes a namespace whose host end has the given addresses.
func NewNetns(addrs ...netip.Prefix) (*Netns, error) {
	sweepNetns()
	n := &Netns{
		Name:  fmt.Sprintf("%s%d-%d", netnsPrefix, os.Getpid(), netnsCount.Add(1)),
		Host:  "host0",
		Guest: "guest0",
	}
	if _, err := run("ip", "netns", "add", n.Name); err != nil {
		return nil, err
	}
	steps := [][]string{
		{"ip", "link", "set", "lo", "up"},
		// Made inside, so the names need be unique there only.
		{"ip", "link", "add", n.Host, "type", "veth", "peer", "name", n.Guest},
		{"ip", "link", "set", n.Host, "up"},
		{"ip", "link", "set", n.Guest, "up"},
		// The kernel behind the raw socket sees frames as they are queued: a
		// checksum left to the card would never be filled in.
		{"ethtool", "-K", n.Host, "tx", "off", "gso", "off", "gro", "off"},
	}
	for _, a := range addrs {
		step := []string{"ip", "addr", "add", a.String(), "dev", n.Host}
		if a.Addr().Is6() {
			step = append(step, "nodad")
		}
		steps = append(steps, step)
	}
	for _, step := range steps {
		if _, err := n.Run(step...); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	return n, nil
}

// Close removes the namespace. Processes in it must have ended.
func (n *Netns) Close() error {
	_, err := run("ip", "netns", "del", n.Name)
	return err
}

// Command prepares a command that runs inside the namespace.
func (n *Netns) Command(argv ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", n.Name}, argv...)...)
}

// Run runs a short command inside the namespace and returns its output.
func (n *Netns) Run(argv ...string) (string, error) {
	return run(append([]string{"ip", "netns", "exec", n.Name}, argv...)...)
}

// Do calls fn on a thread that is inside the namespace. Sockets made by fn
// itself (not by goroutines it starts) belong to the namespace for good.
func (n *Netns) Do(fn func() error) error {
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer own.Close()
	there, err := os.Open(filepath.Join("/run/netns", n.Name))
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter %s: %w", n.Name, err)
	}
	err = fn()
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		// The thread stays locked, so that it dies with this goroutine.
		return errors.Join(err, fmt.Errorf("leave %s: %w", n.Name, back))
	}
	runtime.UnlockOSThread()
	return err
}

// sweepNetns removes what runs that were killed have left behind.
func sweepNetns() {
	entries, err := os.ReadDir("/run/netns")
	if err != nil {
		return
	}
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), netnsPrefix)
		if !ours {
			continue
		}
		pid, _, _ := strings.Cut(rest, "-")
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, os.ErrNotExist) {
			_, _ = run("ip", "netns", "del", e.Name())
		}
	}
}

func run(argv ...string) (string, error) {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err,
			strings.TrimSpace(string(out)))
	}
	return string(out), nil
}
