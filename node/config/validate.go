package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/shm"
)

// Validate checks every field against its range and against the others. The
// errors name the key, where its value came from, and what would be right.
func (c *Config) Validate() error {
	v := validator{c: c}
	v.rds()
	v.reactor()
	v.api()
	v.limits()
	v.volumes()
	v.check("version", c.Version == Version, "%d is not known to this rdsd", c.Version)
	v.check("http.listen", c.HTTP.Listen == "" || isHostPort(c.HTTP.Listen) || isUnixPath(c.HTTP.Listen), "%q is neither an address and port nor unix: and an absolute path", c.HTTP.Listen)
	v.page()
	v.listeners()
	v.check("log.format", c.Log.Format == "text" || c.Log.Format == "json", "%q is neither", c.Log.Format)
	v.check("log.lines_per_second", c.Log.LinesPerS > 0 && c.Log.LinesPerS <= 100000, "%v is out of range", c.Log.LinesPerS)
	v.tables()
	return errors.Join(v.errs...)
}

type validator struct {
	c    *Config
	errs []error
}

// check adds an error about key unless ok.
func (v *validator) check(key string, ok bool, format string, args ...any) {
	v.against(key, "", ok, format, args...)
}

// against is check of a key that has to fit another one, by.
func (v *validator) against(key, by string, ok bool, format string, args ...any) {
	if ok {
		return
	}
	want := ""
	if k := keyByName[key]; k != nil {
		want = k.Want
	} else if i := strings.IndexByte(key, '['); i >= 0 {
		want = tableWant(key[:i], key[strings.LastIndexByte(key, '.')+1:])
	}
	v.add(key, by, fmt.Sprintf(format, args...), want)
}

// add adds an error about key. Where that has its default, what does not fit it was written at by. If one of them could
// not be read, that has been said, and the default that stands in for it is nothing that the other has to fit.
func (v *validator) add(key, by, problem, want string) {
	if v.c.isUnread(key) || v.c.isUnread(by) {
		return
	}
	at := v.c.Origin(key)
	if at.Kind == "default" && by != "" {
		if other := v.c.Origin(by); other.Kind != "default" {
			at, problem = other, "its default: "+problem
		}
	}
	v.errs = append(v.errs, &Error{at.String(), key, problem, want})
}

func between[T int | float64 | Bytes | time.Duration](x, lo, hi T) bool { return lo <= x && x <= hi }

// page checks what the page for people is told. A name in capitals would never fit: what
// a browser asks for is compared in lower case.
func (v *validator) page() {
	h := &v.c.HTTP
	v.check("http.names", len(h.Names) <= 64, "%d names are too many, at most 64 may be", len(h.Names))
	for _, name := range h.Names {
		ok := name != "" && len(name) <= 253 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-._") == ""
		v.check("http.names", ok, "%q is no host name in lower case, without port", name)
	}
	ok := h.PeerPage == ""
	if u, err := url.Parse(strings.ReplaceAll(h.PeerPage, "{address}", "192.0.2.1")); err == nil && !ok {
		ok = (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && len(h.PeerPage) <= 256 && strings.Contains(h.PeerPage, "{address}")
	}
	v.check("http.peer_page", ok, "%q is no URL of http or https with {address} in it", h.PeerPage)
}

func (v *validator) rds() {
	r := &v.c.RDS
	v.check("rds.addresses", len(r.Addresses) > 0, "empty")
	v.check("rds.addresses", len(r.Addresses) <= 64, "%d addresses are too many, at most 64 may be", len(r.Addresses))
	seen := map[netip.Addr]bool{}
	for _, a := range r.Addresses {
		ok := a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
		v.check("rds.addresses", ok, "%v is not the address of one node", a)
		v.check("rds.addresses", !a.IsLinkLocalUnicast() || a.Is4(), "%v is link-local, and names a node on one link alone; give the node another, such as one of fd00::/8", a)
		v.check("rds.addresses", !a.Is4In6(), "%v is an IPv4 address; write %v", a, a.Unmap())
		v.check("rds.addresses", !seen[a], "%v is there twice", a)
		seen[a] = true
	}
	const minBuf = 4 << 10
	v.check("rds.port", r.Port != 0, "0 is not a port")
	v.check("rds.lanes", between(r.Lanes, 1, 8), "%d is out of range", r.Lanes)
	v.against("rds.send_buffer_bytes", "rds.send_buffer_max_bytes", between(r.SendBufferBytes, minBuf, r.SendBufferMax), "%v is out of range", r.SendBufferBytes)
	v.against("rds.recv_buffer_bytes", "rds.recv_buffer_max_bytes", between(r.RecvBufferBytes, minBuf, r.RecvBufferMax), "%v is out of range", r.RecvBufferBytes)
	v.mostOfSocket("rds.send_buffer_max_bytes", r.SendBufferMax)
	v.mostOfSocket("rds.recv_buffer_max_bytes", r.RecvBufferMax)
	v.check("rds.tcp_buffer_bytes", r.TCPBufferBytes == 0 || between(r.TCPBufferBytes, 16<<10, 64<<20), "%v is out of range", r.TCPBufferBytes)
	v.check("rds.hard_limit_factor", between(r.HardLimitFactor, 2, 64), "%d is out of range", r.HardLimitFactor)
	v.against("rds.reconnect_min", "rds.reconnect_max", between(r.ReconnectMin.Duration, time.Millisecond, r.ReconnectMax.Duration), "%v is out of range", r.ReconnectMin)
	v.check("rds.reconnect_max", between(r.ReconnectMax.Duration, time.Millisecond, 10*time.Minute), "%v is out of range", r.ReconnectMax)
	v.check("rds.tcp_congestion", len(r.TCPCongestion) < 16 && !strings.ContainsAny(r.TCPCongestion, " /\t\n"), "%q is no name of a congestion control", r.TCPCongestion)
	v.check("rds.pairs", r.Pairs == PairsAuto || r.Pairs == PairsOff, "%q is neither", r.Pairs)
	v.check("rds.heartbeat_interval", between(r.HeartbeatInterval.Duration, 100*time.Millisecond, 10*time.Minute), "%v is out of range", r.HeartbeatInterval)
	v.against("rds.heartbeat_timeout", "rds.heartbeat_interval", r.HeartbeatTimeout.Duration > r.HeartbeatInterval.Duration, "%v is not longer than the interval of %v", r.HeartbeatTimeout, r.HeartbeatInterval)
	v.check("rds.restart_hold", r.RestartHold.Duration >= 0 && r.RestartHold.Duration <= time.Minute, "%v is out of range", r.RestartHold)
	v.check("rds.heartbeat_timeout", r.HeartbeatTimeout.Duration <= time.Hour, "%v is out of range", r.HeartbeatTimeout)
}

// mostOfSocket checks what a socket may have at most. More than all memory may be too little memory, and what would be
// right is said of both.
func (v *validator) mostOfSocket(key string, n Bytes) {
	memory := v.c.Limits.MemoryBytes
	if n <= memory {
		v.check(key, n >= 4<<10, "%v is out of range", n)
		return
	}
	v.add(key, "limits.memory_bytes", fmt.Sprintf("%v is more than limits.memory_bytes, %v", n, memory), fmt.Sprintf("at most \"%v\", or more memory", memory))
}

func (v *validator) api() {
	a := &v.c.API
	abstract := strings.HasPrefix(a.Socket, "@") && len(a.Socket) > 1
	v.check("api.socket", abstract || filepath.IsAbs(a.Socket), "%q is not an absolute path", a.Socket)
	v.check("api.socket", len(a.Socket) <= 107-len(shm.SocketSuffix) && !strings.ContainsRune(a.Socket, 0), "a path of %d bytes does not fit a socket address, with \".rings\" added", len(a.Socket))
	if a.SocketGroup != "" {
		_, err := LookupGroup(a.SocketGroup)
		v.check("api.socket_group", err == nil, "%v", err)
		v.against("api.socket_group", "api.socket", !abstract, "an abstract socket has no group")
	}
	v.check("api.ledger", a.Ledger == "" || a.Ledger == "none" || filepath.IsAbs(a.Ledger), "%q is not an absolute path", a.Ledger)
	if a.RemoteListen != "" {
		v.check("api.remote_listen", isHostPort(a.RemoteListen), "%q is not an address and port", a.RemoteListen)
		if !a.Insecure {
			v.add("api.remote_listen", "api.insecure", "remote clients are neither encrypted nor identified (TLS comes in a later version)",
				"api.insecure = true beside it if the network is trusted all the same, or no remote listener")
		}
	}
	v.check("api.calls_per_second", a.CallsPerSec > 0 && a.CallsPerSec <= 1e6, "%v is out of range", a.CallsPerSec)
	v.check("api.calls_burst", between(a.CallsBurst, 1, 1000000), "%d is out of range", a.CallsBurst)
	v.check("api.push_batch_bytes", between(a.PushBatchSize, 4<<10, 1<<20), "%v is out of range", a.PushBatchSize)
	v.check("api.drain_timeout", between(a.DrainTimeout.Duration, 0, 10*time.Minute), "%v is out of range", a.DrainTimeout)
}

func (v *validator) limits() {
	l := &v.c.Limits
	v.check("limits.memory_bytes", between(l.MemoryBytes, 16<<20, 1<<50), "%v is out of range", l.MemoryBytes)
	v.check("limits.max_peers", between(l.MaxPeers, 1, 65536), "%d is out of range", l.MaxPeers)
	v.against("limits.max_sockets", "rds.addresses", between(l.MaxSockets, 1, 65534*max(1, len(v.c.RDS.Addresses))), "%d is out of range", l.MaxSockets)
	v.against("limits.max_sockets_per_uid", "limits.max_sockets", between(l.MaxSocketsPerUID, 1, l.MaxSockets), "%d is out of range", l.MaxSocketsPerUID)
	v.check("limits.max_clients", between(l.MaxClients, 1, 65536), "%d is out of range", l.MaxClients)
	v.against("limits.max_clients_per_uid", "limits.max_clients", between(l.MaxClientsPerUID, 1, l.MaxClients), "%d is out of range", l.MaxClientsPerUID)
	v.check("limits.max_descriptors", l.MaxDescriptors == 0 || between(l.MaxDescriptors, 64, 1<<30), "%d is out of range", l.MaxDescriptors)
	v.check("limits.max_handshakes", between(l.MaxHandshakes, 1, 65536), "%d is out of range", l.MaxHandshakes)
	v.check("limits.max_dials", between(l.MaxDials, 1, 65536), "%d is out of range", l.MaxDials)
}

func (v *validator) tables() {
	v.check("ports", len(v.c.Ports) <= 4096, "%d grants are too many, at most 4096 may be", len(v.c.Ports))
	for i, p := range v.c.Ports {
		at := fmt.Sprintf("ports[%d]", i)
		if (p.UID == nil) == (p.GID == nil) {
			v.add(at, "", "needs either uid or gid", "one of them, such as `uid = 1000`")
		}
		v.check(at+".range", p.Range.First >= 2, "%v is not a range of bindable ports", p.Range)
	}
	v.check("peers", len(v.c.Peers) <= 4096, "%d rules are too many, at most 4096 may be", len(v.c.Peers))
	seen := map[netip.Prefix]int{}
	for i, p := range v.c.Peers {
		key := fmt.Sprintf("peers[%d].address", i)
		v.check(key, p.Address.IsValid(), "missing")
		j, twice := seen[p.Address.Prefix]
		v.check(key, !twice || !p.Address.IsValid(), "%v has a rule already, peers[%d]", p.Address, j)
		seen[p.Address.Prefix] = i
	}
}

// listeners checks that no two have one port of one address: the second to listen would end the start, and the system's
// error sends the reader after another daemon that there is not. What a name leads to is not known here.
func (v *validator) listeners() {
	c := v.c
	mine := func(at netip.AddrPort, port uint16) bool {
		return at.Port() == port && !c.isUnread("rds.addresses") && (at.Addr().IsUnspecified() || slices.Contains(c.RDS.Addresses, at.Addr().Unmap()))
	}
	remote, remoteIs := hostPort(c.API.RemoteListen)
	for _, l := range []struct{ key, text string }{{"http.listen", c.HTTP.Listen}, {"api.remote_listen", c.API.RemoteListen}} {
		at, ok := hostPort(l.text)
		if !ok || at.Port() == 0 {
			continue
		}
		v.against(l.key, "rds.port", !mine(at, c.RDS.Port), "%s has the port of rds.port, and only one can listen there", l.text)
		v.against(l.key, "volumes.port", !mine(at, c.Volumes.Port) || c.Volumes.Listen == volume.ListenNever, "%s has the port of volumes.port, and only one can listen there", l.text)
		shared := remoteIs && at.Port() == remote.Port() && (at.Addr() == remote.Addr() || at.Addr().IsUnspecified() || remote.Addr().IsUnspecified())
		v.against(l.key, "api.remote_listen", l.key == "api.remote_listen" || !shared, "%s is api.remote_listen as well, and only one can listen there", l.text)
	}
}

// hostPort is the address in what isHostPort accepts; none is each. ok: it is one and no name.
func hostPort(s string) (at netip.AddrPort, ok bool) {
	host, port, err := net.SplitHostPort(s)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if host == "" {
		host = "::"
	}
	a, addrErr := netip.ParseAddr(host)
	return netip.AddrPortFrom(a, uint16(n)), errors.Join(err, portErr, addrErr) == nil
}

// isUnixPath accepts "unix:/run/rdsd/http.sock".
func isUnixPath(s string) bool {
	path, ok := strings.CutPrefix(s, "unix:")
	return ok && filepath.IsAbs(path) && len(path) <= 107 && !strings.ContainsRune(path, 0)
}

// isHostPort accepts "10.0.0.1:80", "[::1]:80", "localhost:80" and ":80".
func isHostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.ContainsAny(host, " /\x00") {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// LookupGroup finds a group by name or number. A program without libc knows the names in /etc/group alone.
func LookupGroup(name string) (gid int, err error) {
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, fmt.Errorf("no group %q in /etc/group (of one that is elsewhere, as in LDAP, `getent group` tells the number)", name)
	}
	return strconv.Atoi(g.Gid)
}

// maxSpin bounds reactor.spin: a thread that yields for longer burns a processor.
const maxSpin = 10 * time.Millisecond

func (v *validator) reactor() {
	r := &v.c.Reactor
	v.check("reactor.threads", between(r.Threads, 0, 64), "%d is out of range", r.Threads)
	v.check("reactor.spin", between(r.Spin.Duration, 0, maxSpin), "%v is out of range", r.Spin)
	v.check("reactor.cpus", len(r.CPUs) <= 64, "%d processors are too many, at most 64 may be", len(r.CPUs))
	v.against("reactor.cpus", "reactor.threads", len(r.CPUs) == 0 || r.Threads == 0 || r.Threads == len(r.CPUs),
		"%d processors for %d threads", len(r.CPUs), r.Threads)
	for _, c := range r.CPUs {
		v.check("reactor.cpus", between(c, 0, 1023), "%d is not a processor", c)
	}
}
