package volume

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
)

const (
	TransportTCP = "tcp" // of a path that names none
	TransportIB  = "ib"  // RDMA: RoCEv2, or InfiniBand
)

// Transport is a kind of links that paths can have. Each path of a session has one of its own,
// so that a session may go on over TCP when its other paths are lost, and the other way.
type Transport struct {
	Name     string // TransportTCP, or another; the CLI and the API call it so
	Provider transport.OneSidedProvider
	Port     uint16 // to listen on, and of peers that name none; 0: Config.Port
	// Devices are the names of the RDMA devices that make its links, by the address of this
	// node that they have; nil: it has none, and any address will do.
	Devices map[netip.Addr]string
}

// transports are TCP and the others.
func (d *Deps) transports() ([]Transport, error) {
	list := append([]Transport{{Name: TransportTCP, Provider: d.Provider}}, d.Others...)
	names := map[string]bool{}
	for _, t := range list {
		if t.Provider == nil || t.Name == "" || names[t.Name] {
			return nil, rdserr.With(rdserr.ErrInvalid, "volumes: transport %q has no provider of links, or is there twice", t.Name)
		}
		names[t.Name] = true
	}
	return list, nil
}

// transport finds a transport by its name; "" is TCP.
func (h *Host) transport(name string) (*Transport, error) {
	if name == "" {
		return &h.transports[0], nil
	}
	var names []string
	for i := range h.transports {
		if h.transports[i].Name == name {
			return &h.transports[i], nil
		}
		names = append(names, h.transports[i].Name)
	}
	if name == TransportIB {
		return nil, rdserr.With(rdserr.ErrNotSupported, "a path over %s: this node has no RDMA device; volumes.rdma = \"soft\" makes one of each address", name)
	}
	return nil, rdserr.With(rdserr.ErrInvalid, "transport %.40q; this node has %s", name, strings.Join(names, ", "))
}

// devicePort is the number of the port of a device; those of this tree have one.
const devicePort = 1

// device is what a path from local over t goes through: the name of the device and its port,
// "" and 0 where there is none.
func (t *Transport) device(local netip.Addr) (name string, port int) {
	if name = t.Devices[local.Unmap()]; name != "" {
		port = devicePort
	}
	return name, port
}

// checkDevice reports an address that t has no device of.
func (t *Transport) checkDevice(local netip.Addr) error {
	if name, _ := t.device(local); name != "" || len(t.Devices) == 0 {
		return nil
	}
	var addrs []string
	for a := range t.Devices {
		addrs = append(addrs, a.String())
	}
	slices.Sort(addrs)
	return rdserr.With(rdserr.ErrInvalid, "a path over %s from %v: this node has devices at %s", t.Name, local, strings.Join(addrs, ", "))
}

// port is where t listens, and its peers that name no port.
func (h *Host) port(t *Transport) uint16 {
	if t.Port != 0 {
		return t.Port
	}
	return h.cfg.Port
}

// kind is the name of t as paths have it: none for TCP.
func (t *Transport) kind() string {
	if t.Name == TransportTCP {
		return ""
	}
	return t.Name
}

// transportOf is the one that a path of a session has, by the Ctx of the path in its core: the
// life it has, or, before the first, the transport itself.
func (h *Host) transportOf(ctx any) *Transport {
	switch x := ctx.(type) {
	case *life:
		if x != nil {
			return x.via
		}
	case *Transport:
		return x
	}
	return &h.transports[0]
}
