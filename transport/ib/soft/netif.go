package soft

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

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

// errUnsure says that the kernel could not be asked, for want of memory or descriptors: nobody knows
// whether an address is there.
var errUnsure = errors.New("soft: the interfaces of this machine could not be listed")

// portOf finds the interface that has an address. It asks the kernel, and is not for a
// reactor's thread.
func portOf(addr netip.Addr) (port, error) {
	return portAmong(addr, net.Interfaces, (*net.Interface).Addrs, netlocal.AskLocal)
}

// portAmong is portOf with the three questions that are asked.
func portAmong(addr netip.Addr, all func() ([]net.Interface, error), addrs func(*net.Interface) ([]net.Addr, error), local func(netip.Addr) (bool, error)) (port, error) {
	list, err := all()
	if err != nil {
		return port{}, fmt.Errorf("%w: %w", errUnsure, err)
	}
	has := func(i *net.Interface, addr netip.Addr) bool {
		list, e := addrs(i)
		err = cmp.Or(err, e)
		return slices.ContainsFunc(list, func(a net.Addr) bool { return isAddr(a, addr) })
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
	// It may be an address of an interface that did not tell; else a route can make it the machine's own.
	here := false
	if err == nil {
		here, err = local(addr)
	}
	switch {
	case err != nil:
		return port{}, fmt.Errorf("%w: %w", errUnsure, err)
	case here:
		return port{"lo", maxMTU}, nil
	}
	return port{}, fmt.Errorf("soft: no interface of this machine has the address %v", addr)
}

func isAddr(a net.Addr, addr netip.Addr) bool {
	n, ok := a.(*net.IPNet)
	if !ok {
		return false
	}
	x, ok := netip.AddrFromSlice(n.IP)
	return ok && x.Unmap() == addr
}
