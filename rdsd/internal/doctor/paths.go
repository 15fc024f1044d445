package doctor

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// maxPaths is how many peers the doctor looks at the way to.
const maxPaths = 16

// paths looks at the way to the peers that are named one by one: whether a packet as large
// as the interface's gets there. TCP finds out by itself if somebody says that it does not
// fit; where nobody does, small datagrams arrive and large ones never do.
func (x *exam) paths() {
	peers := slices.Clone(x.peers)
	for _, r := range x.c.Peers {
		if p := r.Address.Prefix; !r.Deny && p.IsSingleIP() {
			peers = append(peers, p.Addr())
		}
	}
	slices.SortFunc(peers, netip.Addr.Compare)
	peers = slices.Compact(peers)
	for _, to := range peers[:min(len(peers), maxPaths)] {
		if i := slices.IndexFunc(x.c.RDS.Addresses, func(a netip.Addr) bool { return a.Is4() == to.Is4() && a.IsLoopback() == to.IsLoopback() }); i >= 0 {
			x.wayTo(x.c.RDS.Addresses[i], to)
		}
	}
	if n := len(peers) - maxPaths; n > 0 {
		x.add(Note, "ways to peers", "rdsd doctor net --peer ADDRESS", "%d more peers are configured than are looked at", n)
	}
}

// smallest is what any path carries.
const smallest = 128

func (x *exam) wayTo(from, to netip.Addr) {
	name, mtu := x.MTU(from)
	if name == "" {
		return // that is a finding of its own
	}
	mtu = min(mtu, 0xffff) // no packet is larger
	what := "way to " + to.String()
	if arrived, _ := x.Probe(from, to, smallest); !arrived {
		x.add(Note, what, "ping -c 3 "+to.String(), "nothing comes back for a small packet over UDP: the node is down, or a firewall drops it. What the path carries is not known")
		return
	}
	arrived, known := x.Probe(from, to, mtu)
	switch {
	case arrived:
		x.add(OK, what, "", "packets of %d bytes arrive", mtu)
	case known < mtu:
		x.add(OK, what, "", "it carries packets of %d bytes, %s %d: TCP knows", known, name, mtu)
	default:
		x.add(Warning, what, "ip link set "+name+" mtu 1500, or sysctl -w net.ipv4.tcp_mtu_probing=1; and let ICMP (fragmentation needed) through",
			"packets of %d bytes, the MTU of %s, vanish on it, and nobody says so: large datagrams to it hang until TCP gives up", mtu, name)
	}
}

const (
	probeTries = 3
	probeWait  = 400 * time.Millisecond
	probePort  = 33434 // of traceroute: nobody has it
)

// probe is Machine.Probe of this machine. Whoever gets a datagram for a port that nobody
// has says so, and the socket has that for an error.
func probe(from, to netip.Addr, bytes int) (arrived bool, mtu int) {
	header, level, discover, option := 28, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_MTU
	if to.Is6() {
		header, level, discover, option = 48, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_MTU
	}
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, probePort)))
	if err != nil {
		return false, bytes
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return false, bytes
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), level, discover, unix.IP_PMTUDISC_DO) }) // then it is divided, and arrives
	payload := make([]byte, min(bytes-header, 65507))
	for range probeTries {
		if _, err := c.Write(payload); err == nil || isRefused(err) {
			arrived = isRefused(err) || answered(c)
		}
		if arrived {
			break
		}
	}
	mtu = bytes
	_ = raw.Control(func(fd uintptr) {
		if n, err := unix.GetsockoptInt(int(fd), level, option); err == nil && n > 0 {
			mtu = n
		}
	})
	return arrived, mtu
}

// answered waits for a word of the other end, of either sort.
func answered(c *net.UDPConn) bool {
	_ = c.SetReadDeadline(time.Now().Add(probeWait))
	_, err := c.Read(make([]byte, 64))
	return err == nil || isRefused(err)
}

func isRefused(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }
