package vm

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"
)

// link is a veth pair. Both ends know each other's Ethernet address for good: a kernel that
// resolves an address misses the answer at times, and tries again only when the state of the
// neighbour changes by itself, after 15 s and more (drivers/infiniband/core/addr.c).
type link struct {
	dev, peer   string     // the kernel's end and the other one
	addr, other netip.Addr // of each
}

// rdmaModules are those of rxe and of what programs of verbs use. crc32_generic is the
// checksum that rxe asks the kernel for.
func rdmaModules(t *testing.T) {
	t.Helper()
	for _, m := range []string{"crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe"} {
		run(t, "modprobe", m)
	}
}

// rxe makes an RDMA device of the same name as the network device, and waits until it has
// the device's address.
func rxe(t *testing.T, dev string, addr netip.Addr) {
	t.Helper()
	run(t, "rdma", "link", "add", "rxe_"+dev, "type", "rxe", "netdev", dev)
	undo(t, "rdma", "link", "delete", "rxe_"+dev)
	gid := gidOf(addr)
	until(t, "the GID "+gid, 5*time.Second, func() bool {
		return gidIndex(t, dev, addr) >= 0 && strings.HasSuffix(read(t, "/sys/class/infiniband/rxe_"+dev+"/ports/1/state"), "ACTIVE")
	})
}

// gidOf is an address as sysfs shows it.
func gidOf(addr netip.Addr) string {
	var b strings.Builder
	raw := addr.As16()
	for i := 0; i < 16; i += 2 {
		if i > 0 {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%02x%02x", raw[i], raw[i+1])
	}
	return b.String()
}

// gidIndex is where an address stands in an rxe device's table, −1 if nowhere.
func gidIndex(t *testing.T, dev string, addr netip.Addr) int {
	t.Helper()
	for i := range 8 {
		if read(t, fmt.Sprintf("/sys/class/infiniband/rxe_%s/ports/1/gids/%d", dev, i)) == gidOf(addr) {
			return i
		}
	}
	return -1
}

// twoKernels makes a link whose two ends are in the initial namespace, each with an rxe
// device, and has what is sent from one to the other leave through it: two addresses of one
// machine would else talk inside of it, where nothing can be lost or captured.
func twoKernels(t *testing.T) link {
	t.Helper()
	return twoKernelsAt(t, "10.9.0")
}

// twoKernelsAt is twoKernels with other addresses: .1 and .2 of a network.
func twoKernelsAt(t *testing.T, network string) link {
	t.Helper()
	l := link{"va", "vb", netip.MustParseAddr(network + ".1"), netip.MustParseAddr(network + ".2")}
	rdmaModules(t)
	ip(t, fmt.Sprintf(`
		link set lo up
		link add va type veth peer name vb
		addr add %[1]s.1/24 dev va
		addr add %[1]s.2/24 dev vb`, network))
	undo(t, "ip", "link", "delete", "va")
	for _, dev := range []string{"va", "vb", "all"} {
		set(t, "/proc/sys/net/ipv4/conf/"+dev+"/accept_local", "1")
		set(t, "/proc/sys/net/ipv4/conf/"+dev+"/rp_filter", "0")
	}
	ip(t, fmt.Sprintf(`
		link set va up
		link set vb up
		route add %[1]s.2 dev va src %[1]s.1 table 100
		route add %[1]s.1 dev vb src %[1]s.2 table 101`, network))
	// What comes in by the link is for us; what goes to either address goes out by the other's
	// end; the table of local addresses, which rule 0 has before all, comes behind.
	rules := []string{
		"pref 1 iif vb to " + network + ".2 lookup local", "pref 2 iif va to " + network + ".1 lookup local",
		"pref 3 to " + network + ".2 lookup 100", "pref 4 to " + network + ".1 lookup 101", "pref 10 lookup local",
	}
	for _, r := range rules {
		ip(t, "rule add "+r)
	}
	ip(t, "rule del pref 0")
	t.Cleanup(func() {
		ip(t, "rule add pref 0 lookup local")
		for _, r := range rules {
			ip(t, "rule del "+strings.Join(strings.Fields(r)[:2], " "))
		}
	})
	neighbours(t, l, "")
	rxe(t, "va", l.addr)
	rxe(t, "vb", l.other)
	return l
}

// inOrder has all that arrives at a device, in namespace ns, pass one processor. Packets of a veth
// pair wait at the processor that has sent them: when the machine beneath stops one for a while,
// later packets of the same connection, sent by another, overtake. No network does that within
// a connection, and a sender of rxe does not outlive it (harms).
func inOrder(t *testing.T, ns, dev string) {
	t.Helper()
	if runtime.NumCPU() == 1 {
		return
	}
	at := "/sys/class/net/" + dev + "/queues/rx-0/rps_cpus"
	if ns == "" {
		set(t, at, "1")
		return
	}
	run(t, "ip", "netns", "exec", ns, "sh", "-c", "echo 1 > "+at)
}

// neighbours has both ends know each other. The peer's end is in namespace ns, "" the
// initial one.
func neighbours(t *testing.T, l link, ns string) {
	t.Helper()
	in := func(argv ...string) []string {
		if ns == "" {
			return append([]string{"ip"}, argv...)
		}
		return append([]string{"ip", "-n", ns}, argv...)
	}
	mac := read(t, "/sys/class/net/"+l.dev+"/address")
	f := strings.Fields(run(t, in("-o", "link", "show", l.peer)...))
	var peerMAC string
	for i, word := range f {
		if word == "link/ether" {
			peerMAC = f[i+1]
		}
	}
	run(t, "ip", "neigh", "replace", l.other.String(), "lladdr", peerMAC, "dev", l.dev, "nud", "permanent")
	run(t, in("neigh", "replace", l.addr.String(), "lladdr", mac, "dev", l.peer, "nud", "permanent")...)
	inOrder(t, "", l.dev)
	inOrder(t, ns, l.peer)
}

// sent is how many packets a device of the initial namespace has sent.
func sent(t *testing.T, dev string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(read(t, "/sys/class/net/"+dev+"/statistics/tx_packets"), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// netem shapes what a device sends, in namespace ns, "" the initial one; without arguments it
// does so no longer.
func netem(t *testing.T, ns, dev string, args ...string) {
	t.Helper()
	argv := []string{"tc"}
	if ns != "" {
		argv = append(argv, "-n", ns)
	}
	if len(args) == 0 {
		run(t, append(argv, "qdisc", "replace", "dev", dev, "root", "pfifo")...)
		return
	}
	run(t, append(append(argv, "qdisc", "replace", "dev", dev, "root", "netem"), args...)...)
}
