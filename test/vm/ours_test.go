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

// ours is the network namespace that our side of a scenario is in. Further lanes have others
// (spaceOf).
const ours = "ours"

// firstNet is the second byte of the addresses of lane 0.
const firstNet = 9

// spaceOf is the namespace that one of our addresses is in.
func spaceOf(a netip.Addr) string {
	if lane := int(a.As4()[1]) - firstNet; lane > 0 {
		return fmt.Sprint(ours, lane)
	}
	return ours
}

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
	lane  int // which of several that are there at a time; each has a namespace of ours to itself
	// inside has the test's process run in our namespace; what it starts does not (run, start).
	// Else it is in the initial one, where devices of NBD are, and uses within.
	inside bool
}

// within returns what calls a function in a namespace of ours.
func within(space string) func(f func()) {
	return func(f func()) {
		done := make(chan error)
		go func() { // ends with f, and its thread with it
			runtime.LockOSThread()
			fd, err := unix.Open("/run/netns/"+space, unix.O_RDONLY|unix.O_CLOEXEC, 0)
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
}

// link returns the i-th link: the kernel's end is k<i>, ours is o<i>, with ten numbers a lane.
func (top topology) link(i int) link {
	n, net := 10*top.lane+i, byte(firstNet+top.lane)
	return link{
		dev: fmt.Sprintf("k%d", n), peer: fmt.Sprintf("o%d", n),
		addr: netip.AddrFrom4([4]byte{10, net, byte(i), 1}), other: netip.AddrFrom4([4]byte{10, net, 0, 2}),
	}
}

// all returns the links.
func (top topology) all() (list []link) {
	for i := range max(top.links, 1) {
		list = append(list, top.link(i))
	}
	return list
}

// between runs a scenario of the kernel and us.
func between(t *testing.T, limit time.Duration, fresh Fresh, top topology, scenario func(t *testing.T, l []link)) {
	t.Helper()
	In(t, limit, fresh, func(t *testing.T) {
		t.Helper()
		links := top.all()
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
	space := spaceOf(links[0].other)
	ip(t, "link set lo up\nnetns add "+space+"\n-n "+space+" link set lo up")
	undo(t, "ip", "netns", "delete", space)
	for i, l := range links {
		ip(t, fmt.Sprintf("link add %s type veth peer name %s netns %s", l.dev, l.peer, space))
		undo(t, "ip", "link", "delete", l.dev)
		if top.mtu != 0 {
			ip(t, fmt.Sprintf("link set %s mtu %d\n-n %s link set %s mtu %d", l.dev, top.mtu, space, l.peer, top.mtu))
		}
		ip(t, fmt.Sprintf("addr add %v/24 dev %s\n-n %s addr add 10.%d.%d.2/24 dev %s", l.addr, l.dev, space, firstNet+top.lane, i, l.peer))
		ip(t, fmt.Sprintf("link set %s up\n-n %s link set %s up", l.dev, space, l.peer))
		if i > 0 {
			table := fmt.Sprint(100 + 10*top.lane + i)
			ip(t, fmt.Sprintf("route add %v dev %s src %v table %s\nrule add pref %s from %v to %v lookup %s",
				l.other, l.dev, l.addr, table, table, l.addr, l.other, table))
			undo(t, "ip", "rule", "delete", "pref", table)
		}
		neighbours(t, l, space)
		rxe(t, l.dev, l.addr)
	}
}
