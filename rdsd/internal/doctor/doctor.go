package doctor

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/node/config"
)

// Severities of findings, the words of the other commands.
const (
	OK      = "ok"
	Note    = "note"
	Warning = "warning"
	Error   = "error"
)

// Finding is what a check says.
type Finding struct {
	Severity string `json:"severity"`
	Group    string `json:"group"`
	What     string `json:"what"`
	Text     string `json:"text"`
	Remedy   string `json:"remedy"` // the command that mends it; "" when nothing needs to be done
}

// Groups are the groups of checks, in their order.
var Groups = []string{"limits", "net", "nbd", "rdma"}

// exam is one run of the checks.
type exam struct {
	*Machine
	c      *config.Config
	socket string
	group  string
	peers  []netip.Addr
	found  []Finding
}

var checks = map[string][]func(*exam){
	"limits": {(*exam).descriptors, (*exam).cgroup, (*exam).disk},
	"net":    {(*exam).addresses, (*exam).paths, (*exam).ports, (*exam).congestion, (*exam).buffers, (*exam).daemon},
	"nbd":    {(*exam).nbd},
	"rdma":   {(*exam).rdma},
}

// Examine runs the checks of groups, or all of them, for a daemon of configuration c
// whose socket is socket. peers are further nodes to look at the way to.
func Examine(m *Machine, c *config.Config, socket string, groups []string, peers []netip.Addr) []Finding {
	x := &exam{Machine: m, c: c, socket: socket, peers: peers}
	for _, g := range Groups {
		if len(groups) > 0 && !slices.Contains(groups, g) {
			continue
		}
		x.group = g
		for _, check := range checks[g] {
			check(x)
		}
	}
	return x.found
}

func (x *exam) add(severity, what, remedy, format string, args ...any) {
	x.found = append(x.found, Finding{severity, x.group, what, fmt.Sprintf(format, args...), remedy})
}

// number reads a file that holds one number; false: it is not there, or holds no number.
func (x *exam) number(path string) (uint64, bool) {
	s, err := x.Read(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 64)
	return n, err == nil
}

// module reports whether a kernel module is there, loaded or built in.
func (x *exam) module(name string) bool {
	_, err := x.Mode("/sys/module/" + name)
	return err == nil
}

// enoughFDs serve a thousand clients with rings and a few hundred peers.
const enoughFDs = 16384

func (x *exam) descriptors() {
	_, hard := x.Limit(unix.RLIMIT_NOFILE)
	if hard >= enoughFDs {
		x.add(OK, "file descriptors", "", "a process may have %d", hard)
		return
	}
	x.add(Warning, "file descriptors", "LimitNOFILE=65536 in the unit file (systemctl edit rdsd), or ulimit -Hn 65536 in the shell", "a process may have %d: a client with rings takes 2 to 4, a peer 8", hard)
}

// memoryBesides is what the process needs beside limits.memory_bytes.
const memoryBesides = 64 << 20

func (x *exam) cgroup() {
	self, err := x.Read("/proc/self/cgroup")
	if err != nil {
		return
	}
	for _, line := range strings.Split(self, "\n") {
		path, ok := strings.CutPrefix(line, "0::")
		if !ok {
			continue
		}
		for dir := path; ; dir = filepath.Dir(dir) {
			if most, ok := x.number(filepath.Join("/sys/fs/cgroup", dir, "memory.max")); ok && most < uint64(x.c.Limits.MemoryBytes)+memoryBesides {
				x.add(Error, "memory of the control group", fmt.Sprintf("MemoryMax=%d or more in the unit file, or limits.memory_bytes = %d in the configuration", uint64(x.c.Limits.MemoryBytes)+memoryBesides, max(most-min(most, memoryBesides), 16<<20)),
					"%s allows %d bytes, and the daemon may need %d: the kernel would kill it", dir, most, uint64(x.c.Limits.MemoryBytes)+memoryBesides)
				return
			}
			if dir == "/" || dir == "." {
				break
			}
		}
		x.add(OK, "memory of the control group", "", "enough for limits.memory_bytes (%s)", x.c.Limits.MemoryBytes)
	}
}

// enoughDisk is what the state of volumes never needs.
const enoughDisk = 64 << 20

func (x *exam) disk() {
	dir := x.c.VolumeConfig().StateDir
	if dir == "" {
		x.add(Note, "state", `volumes.state_dir = "/var/lib/rdsd" in the configuration`, "there is no directory for it: exports and mappings made by commands end with the daemon")
		return
	}
	for at := dir; ; at = filepath.Dir(at) { // it may not be made yet
		free, err := x.Free(at)
		if err == nil && free < enoughDisk {
			x.add(Error, "state", "make room on the file system of "+at, "%s has %d bytes left on its file system", dir, free)
			return
		}
		if err == nil {
			x.add(OK, "state", "", "%s has %d MiB left on its file system", dir, free>>20)
			return
		}
		if at == filepath.Dir(at) {
			x.add(Warning, "state", "mkdir -p "+dir, "%s: %v", dir, err)
			return
		}
	}
}

func (x *exam) nbd() {
	const load = "modprobe nbd nbds_max=64 max_part=16; echo nbd > /etc/modules-load.d/rdsd.conf"
	if !x.module("nbd") {
		x.add(Note, "nbd", load, "the module is not loaded: volumes can be mapped as sockets, not as kernel devices")
		return
	}
	if parts, ok := x.number("/sys/module/nbd/parameters/max_part"); ok && parts == 0 {
		x.add(Note, "max_part", "modprobe -r nbd && "+load, "it is 0: partitions on kernel devices are not seen")
	} else {
		x.add(OK, "nbd", "", "the module is loaded, with up to %d partitions a device", parts)
	}
	if err := x.Driver(); err != nil {
		x.add(Warning, "netlink", "modprobe -r nbd && "+load+"; a kernel from 4.12 on, and a network namespace that may use it", "the module is loaded, and cannot be asked for devices: %v", err)
	} else {
		x.add(OK, "netlink", "", "the kernel takes devices over netlink")
	}
	status, _ := x.Read("/proc/self/status")
	for _, line := range strings.Split(status, "\n") {
		caps, ok := strings.CutPrefix(line, "CapEff:")
		if n, err := strconv.ParseUint(strings.TrimSpace(caps), 16, 64); ok && err == nil && n&(1<<unix.CAP_SYS_ADMIN) == 0 {
			x.add(Note, "CAP_SYS_ADMIN", "packaging/volumes.conf as a drop-in of the unit, where the daemon runs", "this shell has it not, and without it a daemon cannot attach kernel devices")
		}
	}
}

func (x *exam) rdma() {
	devices, err := x.List("/sys/class/infiniband")
	if err != nil || len(devices) == 0 {
		x.add(Note, "devices", "", "there is no RDMA device, or its driver is not loaded: rdsd uses TCP, and with volumes.rdma = %q UDP too", config.RDMASoft)
		return
	}
	x.add(OK, "devices", "", "%s", strings.Join(devices, ", "))
	if !x.module("ib_uverbs") {
		x.add(Error, "ib_uverbs", "modprobe ib_uverbs", "programs cannot use the devices without this module")
	}
	if soft, _ := x.Limit(unix.RLIMIT_MEMLOCK); soft < uint64(x.c.Limits.MemoryBytes) {
		x.add(Warning, "locked memory", "LimitMEMLOCK=infinity in the unit file, or ulimit -l unlimited", "a process may lock %d bytes, and what a device reads has to be locked", soft)
	}
}
