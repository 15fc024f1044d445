package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/rdsd/rdsd/node/config"
)

// leastMTU is what every link on the Internet carries (RFC 8200, 5).
const leastMTU = 1280

func (x *exam) addresses() {
	for _, a := range x.c.RDS.Addresses {
		name, mtu := x.MTU(a)
		switch {
		case name == "":
			x.add(Error, a.String(), "ip addr add "+a.String()+" dev DEVICE, or another rds.addresses", "no interface of this machine has this address of rds.addresses")
		case mtu < leastMTU:
			x.add(Warning, a.String(), "ip link set "+name+" mtu 1500, or 9000 if the network carries it", "%s has an MTU of %d: datagrams go in very small pieces", name, mtu)
		default:
			x.add(OK, a.String(), "", "on %s, MTU %d", name, mtu)
		}
	}
}

func (x *exam) ports() {
	for _, p := range []struct {
		what string
		port uint16
	}{{"rds.port", x.c.RDS.Port}, {"volumes.port", x.c.Volumes.Port}} {
		for _, a := range x.c.RDS.Addresses {
			at := netip.AddrPortFrom(a, p.port)
			err := x.Listen(at)
			switch {
			case err == nil:
				x.add(OK, p.what, "", "%v is free", at)
			case !errors.Is(err, syscall.EADDRINUSE):
				x.add(Warning, p.what, "", "%v cannot be had: %v", at, err)
			case p.what == "rds.port" && x.module("rds_tcp"):
				x.add(Error, p.what, "modprobe -r rds_tcp; echo blacklist rds_tcp > /etc/modprobe.d/rdsd.conf", "%v is in use, and the kernel's module rds_tcp is loaded", at)
			case x.answers():
				x.add(OK, p.what, "", "%v is in use, and a daemon answers", at)
			default:
				x.add(Error, p.what, "ss -ltnp 'sport = :"+strconv.Itoa(int(p.port))+"' shows by whom", "%v is in use by another program", at)
			}
		}
	}
}

// answers reports whether a daemon listens at the socket.
func (x *exam) answers() bool { return x.Connect("unix", x.socket) == nil }

func (x *exam) congestion() {
	want := x.c.RDS.TCPCongestion
	have, err := x.Read("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if want == "" || err != nil {
		return
	}
	if !slices.Contains(strings.Fields(have), want) {
		x.add(Warning, "rds.tcp_congestion", "modprobe tcp_"+want+", or another rds.tcp_congestion", "the kernel has no %s: %s", want, strings.TrimSpace(have))
		return
	}
	x.add(OK, "rds.tcp_congestion", "", "%s", want)
}

func (x *exam) buffers() {
	want := uint64(x.c.RDS.TCPBufferBytes)
	for _, key := range []string{"wmem_max", "rmem_max"} {
		have, ok := x.number("/proc/sys/net/core/" + key)
		switch {
		case !ok || want == 0:
		case have < want:
			x.add(Warning, "net.core."+key, "sysctl -w net.core."+key+"=4194304", "it is %d, and rds.tcp_buffer_bytes is %d: links have less", have, want)
		default:
			x.add(OK, "net.core."+key, "", "%d", have)
		}
		// The unit file leaves the daemon no right to pass the limit.
		if ok && have < config.RDMABuffer && x.c.Volumes.RDMA == config.RDMASoft {
			x.add(Warning, "net.core."+key+" for RDMA", fmt.Sprintf("sysctl -w net.core.%s=%d", key, config.RDMABuffer),
				"it is %d, and a device of volumes.rdma asks for %d: what finds its socket full is lost and sent again", have, config.RDMABuffer)
		}
	}
}

func (x *exam) daemon() {
	path := x.socket
	err := x.Connect("unix", path)
	switch {
	case err == nil:
		x.add(OK, "daemon", "", "one answers at %s", path)
	case errors.Is(err, fs.ErrPermission):
		x.add(Error, "daemon", "add this user to the group of the socket (ls -l "+path+"), or see api.socket_group and api.socket_mode", "this user may not use %s", path)
	case errors.Is(err, fs.ErrNotExist):
		if _, err := x.Mode(filepath.Dir(path)); err != nil {
			x.add(Note, "daemon", "systemctl start rdsd (it makes the directory), or mkdir -p "+filepath.Dir(path), "there is no directory for its socket: %v", err)
			return
		}
		x.add(Note, "daemon", "systemctl start rdsd, or rdsd serve", "no daemon has the socket %s", path)
	default:
		x.add(Warning, "daemon", "systemctl restart rdsd", "nobody listens at %s: %v", path, err)
	}
}
