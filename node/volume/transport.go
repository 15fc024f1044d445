package volume

import (
	"strings"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
)

// TransportTCP is the name of the transport that a path has which names none.
const TransportTCP = "tcp"

// Transport is a kind of links that paths can have. Each path of a session has one of its own,
// so that a session may go on over TCP when its other paths are lost, and the other way.
type Transport struct {
	Name     string // TransportTCP, or another; the CLI and the API call it so
	Provider transport.OneSidedProvider
	Port     uint16 // to listen on, and of peers that name none; 0: Config.Port
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
	return nil, rdserr.With(rdserr.ErrInvalid, "transport %.40q; this node has %s", name, strings.Join(names, ", "))
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
