package vm

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ours is the network namespace that our side of a scenario is in.
const ours = "ours"

// oursEnv is set in a test process that runs in that namespace.
const oursEnv = "RDSD_VM_OURS"

func inOurs() bool { return os.Getenv(oursEnv) != "" }

// kernelSide is a command to be run in the initial namespace, whatever ours is.
func kernelSide(argv []string) []string {
	if !inOurs() {
		return argv
	}
	return append([]string{"nsenter", "--net=/proc/1/ns/net"}, argv...)
}

// topology says which links there are between the kernel's side and ours. The kernel has an
// address and an rxe device at each of them; we have one address, which is reached by all.
type topology struct {
	links int // 0: one
	mtu   int // of the devices; 0: 1500, which leaves packets of 1024 bytes
	// inside has the test's process run in our namespace; what it starts does not (run, start).
	// Else it is in the initial one, where devices of NBD are, and uses within.
	inside bool
}

// within calls f in our namespace.
func within(f func()) {
	done := make(chan error)
	go func() { // ends with f, and its thread with it
		runtime.LockOSThread()
		fd, err := unix.Open("/run/netns/"+ours, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		panic(err) // the guest has no namespace that a scenario has made
	}
}

// link returns the i-th link: the kernel's end is k<i>, ours is o<i>.
func (topology) link(i int) link {
	return link{
		dev: fmt.Sprintf("k%d", i), peer: fmt.Sprintf("o%d", i),
		addr: netip.AddrFrom4([4]byte{10, 9, byte(i), 1}), other: netip.AddrFrom4([4]byte{10, 9, 0, 2}),
	}
}

// between runs a scenario of the kernel and us.
func between(t *testing.T, limit time.Duration, fresh Fresh, top topology, scenario func(t *testing.T, l []link)) {
	t.Helper()
	In(t, limit, fresh, func(t *testing.T) {
		t.Helper()
		var links []link
		for i := range max(top.links, 1) {
			links = append(links, top.link(i))
		}
		if inOurs() {
			scenario(t, links)
			return
		}
		top.make(t, links)
		if !top.inside {
			scenario(t, links)
			return
		}
		cmd := exec.Command("nsenter", append([]string{"--net=/run/netns/" + ours, "--"}, os.Args...)...)
		cmd.Env = append(os.Environ(), oursEnv+"=1")
		out, err := cmd.CombinedOutput()
		t.Log("in our namespace:\n" + inner(string(out), t.Name()))
		if err != nil {
			t.Error(err)
		}
	})
}

// make makes the namespace and the links, with an rxe device at each of the kernel's ends.
func (top topology) make(t *testing.T, links []link) {
	t.Helper()
	rdmaModules(t)
	for _, conf := range []string{"all", "default"} {
		set(t, "/proc/sys/net/ipv4/conf/"+conf+"/rp_filter", "0")
	}
	ip(t, "link set lo up\nnetns add "+ours+"\n-n "+ours+" link set lo up")
	undo(t, "ip", "netns", "delete", ours)
	for i, l := range links {
		ip(t, fmt.Sprintf("link add %s type veth peer name %s netns %s", l.dev, l.peer, ours))
		undo(t, "ip", "link", "delete", l.dev)
		if top.mtu != 0 {
			ip(t, fmt.Sprintf("link set %s mtu %d\n-n %s link set %s mtu %d", l.dev, top.mtu, ours, l.peer, top.mtu))
		}
		ip(t, fmt.Sprintf("addr add %v/24 dev %s\n-n %s addr add 10.9.%d.2/24 dev %s", l.addr, l.dev, ours, i, l.peer))
		ip(t, fmt.Sprintf("link set %s up\n-n %s link set %s up", l.dev, ours, l.peer))
		if i > 0 {
			table := fmt.Sprint(100 + i)
			ip(t, fmt.Sprintf("route add %v dev %s src %v table %s\nrule add pref %s from %v to %v lookup %s",
				l.other, l.dev, l.addr, table, table, l.addr, l.other, table))
			undo(t, "ip", "rule", "delete", "pref", table)
		}
		neighbours(t, l, ours)
		rxe(t, l.dev, l.addr)
	}
}
