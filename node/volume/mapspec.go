package volume

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
)

const (
	maxPaths      = 32  // of a session at a time
	maxSocketPath = 107 // bytes: sun_path, with a NUL
)

// complete checks a MapSpec and fills in the defaults. The ID stays as it is.
func (c *Config) complete(s *MapSpec) error {
	bad := func(format string, args ...any) error { return rdserr.With(rdserr.ErrInvalid, format, args...) }
	if err := c.completeNode(s); err != nil {
		return err
	}
	if s.Name == "" || len(s.Name) > maxName || !utf8.ValidString(s.Name) || strings.IndexByte(s.Name, 0) >= 0 {
		return bad("volume name %.40q: want 1 to %d bytes of UTF-8 without NUL", s.Name, maxName)
	}
	if err := checkID(s.ID); err != nil {
		return err
	}
	switch s.Access {
	case "":
		s.Access = AccessRW
	case AccessRO, AccessRW, AccessMigration:
	default:
		return bad("access %q; want ro, rw or migration", s.Access)
	}
	if s.As == "" {
		s.As = c.Attach
	}
	switch s.As {
	case AsSocket:
		if s.Device != "" {
			return bad("device %q goes with a kernel device (nbd), not with a socket", s.Device)
		}
		if s.Socket != "" && (!filepath.IsAbs(s.Socket) || len(s.Socket) > maxSocketPath) {
			return bad("socket %q: want an absolute path of at most %d bytes", s.Socket, maxSocketPath)
		}
	case AsNBD:
		if s.Socket != "" {
			return bad("socket %q goes with a socket, not with a kernel device (nbd)", s.Socket)
		}
		if _, err := parseNBD(s.Device); s.Device != "" && err != nil {
			return err
		}
	default:
		return bad("as %q; want socket or nbd", s.As)
	}
	if s.Persist && c.StateDir == "" {
		return bad("nothing can persist: there is no volumes.state_dir")
	}
	return nil
}

// completeNode does so for what describes the session.
func (c *Config) completeNode(s *MapSpec) error {
	bad := func(format string, args ...any) error { return rdserr.With(rdserr.ErrInvalid, format, args...) }
	host, port, err := splitNode(s.Node, c.Port)
	if err != nil {
		return err
	}
	if len(s.Paths) == 0 {
		s.Paths = []PathSpec{{Dst: net.JoinHostPort(host, strconv.Itoa(int(port)))}}
	} else if len(s.Paths) > maxPaths {
		return bad("%d paths; at most %d", len(s.Paths), maxPaths)
	}
	for i := range s.Paths {
		if err := s.Paths[i].check(c.Port); err != nil {
			return err
		}
		if s.Paths[i].Transport == TransportTCP { // said or not, it is the same path
			s.Paths = slices.Clone(s.Paths)
			s.Paths[i].Transport = ""
		}
	}
	if s.Session == "" {
		s.Session = c.Name + "-" + sessionPart(host)
		if port != c.Port {
			s.Session += "_" + strconv.Itoa(int(port))
		}
		s.Session = s.Session[:min(len(s.Session), 254)]
	}
	if err := CheckSessionName(s.Session); err != nil {
		return err
	}
	if s.Policy == "" {
		s.Policy = c.Policy
	}
	policy, err := rtrs.ParsePolicy(s.Policy)
	if err != nil {
		return err
	}
	s.Policy = policy.String()
	if s.QueueDepth < 0 || s.QueueDepth > 65535 {
		return bad("queue depth %d; want 1 to 65535, or 0: what the server offers", s.QueueDepth)
	}
	if s.IOTimeout == 0 {
		s.IOTimeout = c.IOTimeout
	}
	if s.IOTimeout < minIOTimeout || s.IOTimeout > maxTimeout {
		return bad("I/O timeout %v; want %v to %v", s.IOTimeout, minIOTimeout, maxTimeout)
	}
	if s.LossTimeout == 0 {
		s.LossTimeout = c.LossTimeout
	}
	if s.LossTimeout < time.Millisecond || s.LossTimeout > maxTimeout {
		return bad("loss timeout %v; want 1ms to %v", s.LossTimeout, maxTimeout)
	}
	if s.Unfenced == "" {
		s.Unfenced = c.Unfenced
	}
	if err := checkUnfenced(s.Unfenced); err != nil {
		return bad("without a fence %v", err)
	}
	if s.UnfencedAfter == 0 {
		s.UnfencedAfter = c.UnfencedAfter
	}
	if s.UnfencedAfter < minUnfenced || s.UnfencedAfter > maxTimeout {
		return bad("without a fence after %v; want %v to %v", s.UnfencedAfter, minUnfenced, maxTimeout)
	}
	if s.MaxReconnects == 0 {
		s.MaxReconnects = c.MaxReconnects
	}
	if !checkReconnects(s.MaxReconnects) {
		return bad("%d attempts to reconnect; want -1 (without end) or 1 to %d", s.MaxReconnects, maxReconnects)
	}
	switch s.OnLoss {
	case "":
		s.OnLoss = c.OnLoss
	case OnLossError, OnLossWait:
	default:
		return bad("on-loss %q; want wait or error", s.OnLoss)
	}
	return nil
}

// checkID checks what a mapping is to be called; "" is nothing yet.
func checkID(id string) error {
	ok := len(id) <= 64
	for _, r := range id {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}
	if !ok {
		return rdserr.With(rdserr.ErrInvalid, "ID %.40q: want at most 64 letters, digits, - and _", id)
	}
	return nil
}

// names tells whether what is NODE:NAME of a volume. An address of IPv6 stands in brackets there.
func names(what, node, name string) bool {
	return what == node+":"+name || what == "["+node+"]:"+name
}

// splitNode takes "host", "host:port", "address", "[address]:port" apart.
func splitNode(s string, port uint16) (string, uint16, error) {
	bad := rdserr.With(rdserr.ErrInvalid, "node %.60q: want a host name or an address, perhaps with a port (host:port, [address]:port)", s)
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		if a.IsUnspecified() || a.IsMulticast() {
			return "", 0, bad
		}
		return a.Unmap().String(), port, nil
	}
	host := s
	if h, p, err := net.SplitHostPort(s); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return "", 0, bad
		}
		host, port = h, uint16(n)
		if a, err := netip.ParseAddr(host); err == nil {
			if a.IsUnspecified() || a.IsMulticast() {
				return "", 0, bad
			}
			return a.Unmap().String(), port, nil
		}
	}
	if host == "" || len(host) > 253 || strings.ContainsAny(host, " /:[]\x00") || !utf8.ValidString(host) {
		return "", 0, bad
	}
	return host, port, nil
}

func (p PathSpec) check(port uint16) error {
	if _, _, err := splitNode(p.Dst, port); err != nil {
		return rdserr.With(rdserr.ErrInvalid, "path %q to %q: destination: %v", p.Src, p.Dst, err)
	}
	if p.Src == "" {
		return nil
	}
	if _, sp, err := splitNode(p.Src, 0); err != nil || sp != 0 {
		return rdserr.With(rdserr.ErrInvalid, "path %q to %q: source: want a host name or an address, without a port", p.Src, p.Dst)
	}
	return nil
}

// resolve finds the addresses of a path. The local one has no port; where none
// was given it is the one the system would choose.
func (p PathSpec) resolve(ctx context.Context, port uint16) (local, remote netip.AddrPort, err error) {
	host, port, err := splitNode(p.Dst, port)
	if err != nil {
		return local, remote, err
	}
	dst, err := lookUp(ctx, host, netip.Addr{})
	if err != nil {
		return local, remote, err
	}
	remote = netip.AddrPortFrom(dst, port)
	if p.Src != "" {
		host, _, err := splitNode(p.Src, 0)
		if err != nil {
			return local, remote, err
		}
		src, err := lookUp(ctx, host, dst)
		return netip.AddrPortFrom(src, 0), remote, err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", remote.String()) // sends nothing
	if err != nil {
		return local, remote, rdserr.With(rdserr.ErrHostDown, "no way to %v: %v", remote, err)
	}
	defer c.Close()
	return netip.AddrPortFrom(c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), 0), remote, nil
}

// lookUpIP stands for the resolver in tests.
var lookUpIP = net.DefaultResolver.LookupNetIP

// lookUpAll finds the addresses of a host.
func lookUpAll(ctx context.Context, host string) ([]netip.Addr, error) {
	addrs, err := lookUpIP(ctx, "ip", host)
	switch {
	case err == nil:
		return addrs, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, rdserr.With(rdserr.ErrHostDown, "%s: %v", host, err)
}

// lookUp finds an address of a host, of the family of like if that is valid.
func lookUp(ctx context.Context, host string, like netip.Addr) (netip.Addr, error) {
	addrs, err := lookUpAll(ctx, host)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addrs {
		if a = a.Unmap(); !like.IsValid() || a.Is4() == like.Is4() {
			return a, nil
		}
	}
	return netip.Addr{}, rdserr.With(rdserr.ErrFamily, "%s has no address of the family of %v", host, like)
}

// leads checks that the session is one with the node that s asks for: else a volume of that name of another node would be
// opened. A node that goes by several names has an address that a path of the session ends at.
func (c *client) leads(ctx context.Context, s *MapSpec) error {
	done := c.look()
	node := c.spec.Node
	var ends []netip.AddrPort
	for _, p := range c.rt.Paths() {
		_, end, via := c.ends(p)
		if via.kind() != "" {
			end = netip.AddrPortFrom(end.Addr(), 0) // NODE tells no port of RDMA
		}
		ends = append(ends, end)
	}
	done()
	host, port, _ := splitNode(s.Node, c.h.cfg.Port) // both were checked
	if h, p, _ := splitNode(node, c.h.cfg.Port); h == host && p == port {
		return nil
	}
	for _, p := range s.Paths {
		host, port, err := splitNode(p.Dst, c.h.cfg.Port)
		if err != nil {
			return err
		}
		addrs, err := lookUpAll(ctx, host)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if slices.Contains(ends, netip.AddrPortFrom(a.Unmap(), port)) || slices.Contains(ends, netip.AddrPortFrom(a.Unmap(), 0)) {
				return nil
			}
		}
	}
	return rdserr.With(rdserr.ErrInvalid, "session %s leads to %s; name another session for %s, or the node as before", s.Session, node, s.Node)
}
