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
	pid    int // of the daemon that listens at socket; 0: not known
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
	x := &exam{Machine: m, c: c, socket: socket, pid: m.Daemon(socket), peers: peers}
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

// own reads a file that each process has below /proc: the daemon's, or where none is known, or it may not be read, that of
// this process.
func (x *exam) own(file string) (text string, daemon bool) {
	if x.pid != 0 {
		if text, err := x.Read("/proc/" + strconv.Itoa(x.pid) + "/" + file); err == nil {
			return text, true
		}
	}
	text, _ = x.Read("/proc/self/" + file)
	return text, false
}

// limit is one of the daemon, or of a process of this shell. name is how /proc calls it.
func (x *exam) limit(which int, name string) (soft, hard uint64, whose string) {
	text, daemon := x.own("limits")
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if f := strings.Fields(rest); ok && daemon && len(f) >= 2 {
			return limitOf(f[0]), limitOf(f[1]), "the daemon"
		}
	}
	soft, hard = x.Limit(which)
	return soft, hard, "a process of this shell"
}

// limitOf is a limit as /proc has it.
func limitOf(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return unix.RLIM_INFINITY
	}
	return n
}

// module reports whether a kernel module is there, loaded or built in.
func (x *exam) module(name string) bool {
	_, err := x.Mode("/sys/module/" + name)
	return err == nil
}

// enoughFDs serve a thousand clients with rings and a few hundred peers.
const enoughFDs = 16384

func (x *exam) descriptors() {
	_, hard, whose := x.limit(unix.RLIMIT_NOFILE, "Max open files")
	if hard >= enoughFDs {
		x.add(OK, "file descriptors", "", "%s may have %d", whose, hard)
		return
	}
	x.add(Warning, "file descriptors", "LimitNOFILE=65536 in the unit file (systemctl edit rdsd), or ulimit -Hn 65536 in the shell", "%s may have %d: a client with rings takes 2 to 4, a peer 8", whose, hard)
}

// memoryBesides is what the process needs beside limits.memory_bytes.
const memoryBesides = 64 << 20

// need is how much memory a daemon may have in all.
func (x *exam) need() uint64 { return uint64(x.c.Limits.MemoryBytes) + memoryBesides }

// A Group is a control group that allows less memory than a daemon may need.
type Group struct {
	Path  string
	Most  uint64
	Slows bool // beyond it the kernel does not kill, but has it wait for each page (memory.high)
}

// short finds the control group, the one at path or one above, that allows less than a daemon may need, first one in
// which the kernel would kill it.
func (x *exam) short(path string) (g Group, found bool) {
	for _, file := range []string{"memory.max", "memory.high"} {
		for dir := path; dir != ""; dir = filepath.Dir(dir) {
			if most, ok := x.number(filepath.Join("/sys/fs/cgroup", dir, file)); ok && most < x.need() {
				return Group{dir, most, file == "memory.high"}, true
			}
			if dir == "/" || dir == "." {
				break
			}
		}
	}
	return Group{}, false
}

// groupIn is the control group in a file cgroup of /proc; "": there is none.
func groupIn(text string) string {
	for line := range strings.Lines(text) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(path)
		}
	}
	return ""
}

// ShortGroup finds the control group of this process that allows less memory than the daemon that it is may need.
func ShortGroup(m *Machine, c *config.Config) (group Group, needs uint64, found bool) {
	x := &exam{Machine: m, c: c}
	text, _ := x.own("cgroup")
	group, found = x.short(groupIn(text))
	return group, x.need(), found
}

// unitGroup is the control group of the unit in packaging.
const unitGroup = "/system.slice/rdsd.service"

// cgroup looks at the control group of the daemon. That of the shell says something only of a daemon started there.
func (x *exam) cgroup() {
	const what = "memory of the control group"
	text, daemon := x.own("cgroup")
	group, whose, severity, more := groupIn(text), "the daemon's", Error, ""
	if !daemon {
		if _, err := x.Read("/sys/fs/cgroup" + unitGroup + "/memory.max"); err == nil {
			group = unitGroup
		} else {
			whose, severity, more = "this shell's", Warning, "; what a unit allows can be seen while it runs"
		}
	}
	if group == "" {
		return
	}
	if g, found := x.short(group); found {
		less := max(g.Most-min(g.Most, memoryBesides), 16<<20)
		key, then := "MemoryMax", "the kernel would kill it"
		if g.Slows {
			severity, key, then = Warning, "MemoryHigh", "the kernel would slow it down, with all its clients and peers"
		}
		remedy := fmt.Sprintf("%s=%d or more in the unit file, or limits.memory_bytes = %d in the configuration", key, x.need(), less)
		if uint64(max(x.c.RDS.SendBufferMax, x.c.RDS.RecvBufferMax)) > less { // or the daemon would not start with it
			remedy += ", and rds.send_buffer_max_bytes and rds.recv_buffer_max_bytes no more than that"
		}
		x.add(severity, what, remedy,
			"%s (%s) allows %d bytes, and a daemon there may need %d: %s", g.Path, whose, g.Most, x.need(), then)
		return
	}
	x.add(OK, what, "", "%s (%s) allows enough for limits.memory_bytes (%s)%s", group, whose, x.c.Limits.MemoryBytes, more)
}

// enoughDisk is what the state of volumes never needs.
const enoughDisk = 64 << 20

// enoughFiles is how many files the state of volumes never needs: each write of it makes one.
const enoughFiles = 16

// unitState is the StateDirectory of the unit in packaging.
const unitState = "/var/lib/rdsd"

// stateDirs is where the daemon may keep its state. Where no key says that, it is below systemd's StateDirectory if
// the daemon was told of one: its environment has it, and this shell's has not.
func (x *exam) stateDirs() (dirs []string) {
	if dir := x.c.VolumeConfig().StateDir; dir != "" {
		dirs = []string{dir}
	}
	if x.c.Volumes.StateDir != "" {
		return dirs
	}
	env, daemon := x.own("environ")
	for _, e := range strings.Split(env, "\x00") {
		if v, ok := strings.CutPrefix(e, "STATE_DIRECTORY="); ok {
			dir, _, _ := strings.Cut(v, ":")
			return []string{filepath.Join(dir, "volumes")}
		}
	}
	if _, err := x.Mode(unitState); err == nil && !daemon { // it is not known
		dirs = append(dirs, filepath.Join(unitState, "volumes"))
	}
	return dirs
}

func (x *exam) disk() {
	dirs := x.stateDirs()
	if len(dirs) == 0 {
		x.add(Note, "state", `volumes.state_dir = "/var/lib/rdsd" in the configuration`, "there is no directory for it: exports and mappings made by commands end with the daemon")
	}
	for _, dir := range slices.Compact(dirs) {
		x.room(dir)
	}
}

// room looks whether a directory for state has some.
func (x *exam) room(dir string) {
	for at := dir; ; at = filepath.Dir(at) { // it may not be made yet
		free, err := x.Free(at)
		switch {
		case err != nil && at != filepath.Dir(at):
			continue
		case err != nil:
			x.add(Warning, "state", "mkdir -p "+dir, "%s: %v", dir, err)
		case free.ReadOnly:
			x.add(Error, "state", "mount -o remount,rw "+at+", or another volumes.state_dir", "the file system of %s may only be read", dir)
		case free.Bytes < enoughDisk:
			x.add(Error, "state", "make room on the file system of "+at, "%s has %d bytes left on its file system", dir, free.Bytes)
		case free.Files < enoughFiles:
			x.add(Error, "state", "remove files from the file system of "+at+" (df -i)", "%s may have %d more files on its file system", dir, free.Files)
		default:
			x.add(OK, "state", "", "%s has %d MiB left on its file system", dir, free.Bytes>>20)
		}
		return
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
	status, daemon := x.own("status")
	whose := "this shell"
	if daemon {
		whose = "the daemon"
	}
	for _, line := range strings.Split(status, "\n") {
		caps, ok := strings.CutPrefix(line, "CapEff:")
		if n, err := strconv.ParseUint(strings.TrimSpace(caps), 16, 64); ok && err == nil && n&(1<<unix.CAP_SYS_ADMIN) == 0 {
			x.add(Note, "CAP_SYS_ADMIN", "packaging/volumes.conf as a drop-in of the unit, where the daemon runs", "%s has it not, and without it a daemon cannot attach kernel devices", whose)
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
	if soft, _, whose := x.limit(unix.RLIMIT_MEMLOCK, "Max locked memory"); soft < uint64(x.c.Limits.MemoryBytes) {
		x.add(Warning, "locked memory", "LimitMEMLOCK=infinity in the unit file, or ulimit -l unlimited", "%s may lock %d bytes, and what a device reads has to be locked", whose, soft)
	}
}
