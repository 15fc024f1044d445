package soft

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/rdsd/rdsd/internal/netlocal"
	"github.com/rdsd/rdsd/roce"
)

// overhead is what rdma_rxe leaves for headers when it takes its MTU from an interface's
// (drivers/infiniband/sw/rxe/rxe.h, rxe_mtu_int_to_enum and eth_mtu_int_to_enum; what is
// needed is 20 or 40 of IP, 8 of UDP, 32 of ours, 4 of the CRC).
const overhead = 80

const (
	minMTU = 256
	maxMTU = roce.MaxPayload
)

// mtuOf is the largest MTU of InfiniBand that fits an interface's, or 0.
func mtuOf(netdev int) int {
	for m := maxMTU; m >= minMTU; m /= 2 {
		if m+overhead <= netdev {
			return m
		}
	}
	return 0
}

// port is what an address stands on.
type port struct {
	netdev string
	mtu    int
}

// portOf finds the interface that has an address. It asks the kernel, and is not for a
// reactor's thread.
func portOf(addr netip.Addr) (port, error) {
	list, err := net.Interfaces()
	if err != nil {
		return port{}, fmt.Errorf("soft: the interfaces of this machine: %w", err)
	}
	for _, i := range list {
		if addr.IsLoopback() && i.Flags&net.FlagLoopback != 0 || addr.Zone() != "" && addr.Zone() == i.Name && has(&i, addr.WithZone("")) ||
			addr.Zone() == "" && has(&i, addr) {
			m := mtuOf(i.MTU)
			if m == 0 {
				return port{}, fmt.Errorf("soft: the MTU of %s is %d; RoCE needs %d", i.Name, i.MTU, minMTU+overhead)
			}
			return port{i.Name, m}, nil
		}
	}
	// An address that a route makes the machine's own.
	if netlocal.IsLocal(addr) {
		return port{"lo", maxMTU}, nil
	}
	return port{}, fmt.Errorf("soft: no interface of this machine has the address %v", addr)
}

func has(i *net.Interface, addr netip.Addr) bool {
	list, err := i.Addrs()
	if err != nil {
		return false
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if x, ok := netip.AddrFromSlice(n.IP); ok && x.Unmap() == addr {
				return true
			}
		}
	}
	return false
}
