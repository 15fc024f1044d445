package soft

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/await"
)

// TestTooBigFromAnybody: a message of ICMP that a path takes small packets alone, which anybody can
// send from its own address, changes nothing for a device's packets. What they fit is the interface.
func TestTooBigFromAnybody(t *testing.T) {
	for _, net := range []struct {
		name, a, b string
		message    func(from, to netip.Addr) []byte
	}{
		{"v4", "10.9.0.1", "10.9.0.2", fragNeeded},
		{"v6", "fd09::1", "fd09::2", tooBig},
	} {
		t.Run(net.name, func(t *testing.T) {
			local, peer := netip.MustParseAddr(net.a), netip.MustParseAddr(net.b)
			a := newHost(t, net.a+"/24", 4200)
			var s *socket
			var err error
			a.do(func() { s, err = openSocket(local, bufferBytes) })
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			// A kernel that is busy takes it in a thread of its own, and one whose limit of ICMP is reached not at all.
			await.Until(t, patience, "The kernel takes the message.", func() bool {
				if _, err := a.tun.Write(net.message(local, peer)); err != nil {
					t.Fatal(err)
				}
				return a.pathMTU(t, peer) < 4200
			})
			var out outbox
			out.message(netip.AddrPortFrom(peer, 4791), 0, 0)
			out.piece(make([]byte, 4096))
			if s.canSegment() {
				out.message(netip.AddrPortFrom(peer, 4791), 0, 2048)
				out.piece(make([]byte, 3*2048))
			}
			if err := out.send(s); err != nil {
				t.Errorf("a packet, or a burst of them, is not sent: %v", err)
			}
		})
	}
}

// pathMTU is what the kernel takes the path to an address to be.
func (h *host) pathMTU(t *testing.T, to netip.Addr) (mtu int) {
	t.Helper()
	var err error
	h.do(func() {
		var fd int
		family, level, option := unix.AF_INET, unix.IPPROTO_IP, unix.IP_MTU
		var sa unix.Sockaddr = &unix.SockaddrInet4{Port: 9, Addr: [4]byte(to.AsSlice())}
		if to.Is6() {
			family, level, option = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_MTU
			sa = &unix.SockaddrInet6{Port: 9, Addr: to.As16()}
		}
		if fd, err = unix.Socket(family, unix.SOCK_DGRAM, 0); err != nil {
			return
		}
		defer unix.Close(fd)
		if err = unix.Connect(fd, sa); err == nil {
			mtu, err = unix.GetsockoptInt(fd, level, option)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return mtu
}

// fragNeeded says to from that the path to an address takes 552 bytes; a host of the same net does.
func fragNeeded(from, to netip.Addr) []byte {
	quoted := append(ipv4(unix.IPPROTO_UDP, 4096, from, to), 0x12, 0xb7, 0x12, 0xb7, 0x10, 0x08, 0, 0) // 4791 to 4791
	icmp := append([]byte{3, 4, 0, 0, 0, 0, 552 >> 8, 552 & 0xff}, quoted...)
	binary.BigEndian.PutUint16(icmp[2:], onesSum(icmp))
	return append(ipv4(unix.IPPROTO_ICMP, len(icmp), from.Next().Next(), from), icmp...)
}

// ipv4 is the header of a packet with so many bytes behind it.
func ipv4(proto byte, n int, from, to netip.Addr) []byte {
	b := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, proto, 0, 0}
	b = append(append(b, from.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)+n))
	binary.BigEndian.PutUint16(b[10:], onesSum(b))
	return b
}

// tooBig is fragNeeded for IPv6, of 1,280 bytes, which are the fewest that a kernel believes.
func tooBig(from, to netip.Addr) []byte {
	quoted := append(ipv6(unix.IPPROTO_UDP, 4104, from, to), 0x12, 0xb7, 0x12, 0xb7, 0x10, 0x08, 0, 0)
	icmp := append([]byte{2, 0, 0, 0, 0, 0, 1280 >> 8, 1280 & 0xff}, quoted...)
	// The checksum covers both addresses, the length and the protocol.
	sender := from.Next().Next()
	covered := append(append(append([]byte(nil), sender.AsSlice()...), from.AsSlice()...), 0, 0, 0, byte(len(icmp)), 0, 0, 0, unix.IPPROTO_ICMPV6)
	binary.BigEndian.PutUint16(icmp[2:], onesSum(append(covered, icmp...)))
	return append(ipv6(unix.IPPROTO_ICMPV6, len(icmp), sender, from), icmp...)
}

func ipv6(next byte, n int, from, to netip.Addr) []byte {
	b := []byte{0x60, 0, 0, 0, byte(n >> 8), byte(n), next, 64}
	return append(append(b, from.AsSlice()...), to.AsSlice()...)
}

// onesSum is the checksum of the Internet over b.
func onesSum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
