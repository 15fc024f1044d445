package doctor

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/node/config"
)

// good is a machine that lacks nothing, and on which a daemon runs.
func good() *Machine {
	files := map[string]string{
		"/proc/77/cgroup": "0::/system.slice/rdsd.service\n", "/proc/self/cgroup": "0::/user.slice/shell.scope\n", "/sys/fs/cgroup/system.slice/rdsd.service/memory.max": "max\n",
		"/proc/sys/net/ipv4/tcp_available_congestion_control": "reno cubic\n", "/proc/sys/net/core/wmem_max": "4194304\n", "/proc/sys/net/core/rmem_max": "4194304\n",
		"/sys/module/nbd/parameters/max_part": "16\n", "/proc/self/status": "Name:\trdsd\nCapEff:\t000001ffffffffff\n",
	}
	return &Machine{
		Read: func(path string) (string, error) {
			if s, ok := files[path]; ok {
				return s, nil
			}
			return "", fs.ErrNotExist
		},
		List: func(string) ([]string, error) { return []string{"mlx5_0"}, nil },
		Mode: func(path string) (os.FileMode, error) {
			if path == "/sys/module/rds_tcp" {
				return 0, fs.ErrNotExist
			}
			return 0o755, nil
		},
		Free:    func(string) (Room, error) { return Room{Bytes: 1 << 40, Files: 1 << 20}, nil },
		Limit:   func(int) (uint64, uint64) { return unix.RLIM_INFINITY, unix.RLIM_INFINITY },
		MTU:     func(netip.Addr) (string, int) { return "eth0", 9000 },
		Listen:  func(netip.AddrPort) error { return nil },
		Connect: func(string, string) error { return nil },
		Driver:  func() error { return nil },
		Daemon:  func(string) int { return 77 },
		Probe:   func(_, _ netip.Addr, bytes int) (bool, int) { return true, bytes },
	}
}

// left is a machine whose file systems have so much room.
func left(r Room) func(*Machine) {
	return func(m *Machine) { m.Free = func(string) (Room, error) { return r, nil } }
}

// file makes a machine's file say something else.
func file(m *Machine, path, text string) {
	read := m.Read
	m.Read = func(p string) (string, error) {
		if p == path {
			return text, nil
		}
		return read(p)
	}
}

func lacksModule(m *Machine, name string) {
	mode := m.Mode
	m.Mode = func(p string) (os.FileMode, error) {
		if p == "/sys/module/"+name {
			return 0, fs.ErrNotExist
		}
		return mode(p)
	}
}

// TestFindings: on a machine that lacks nothing there is nothing to do, and each thing
// that it lacks is found, with what mends it.
func TestFindings(t *testing.T) {
	for name, c := range map[string]struct {
		break_         func(*Machine)
		severity, what string
		mend           string
	}{
		"descriptors": {func(m *Machine) { m.Limit = func(int) (uint64, uint64) { return 1024, 4096 } }, Warning, "file descriptors", "LimitNOFILE=65536"},
		"cgroup":      {func(m *Machine) { file(m, "/sys/fs/cgroup/system.slice/rdsd.service/memory.max", "536870912") }, Error, "memory of the control group", "MemoryMax=1140850688"},
		"cgroup above": {func(m *Machine) { file(m, "/sys/fs/cgroup/system.slice/memory.max", "536870912") }, Error, "memory of the control group",
			"limits.memory_bytes = 469762048"},
		"a small cgroup": {func(m *Machine) { file(m, "/sys/fs/cgroup/system.slice/memory.max", "100663296") }, Error, "memory of the control group",
			"limits.memory_bytes = 33554432 in the configuration, and rds.send_buffer_max_bytes and rds.recv_buffer_max_bytes no more than that"},
		"a cgroup that slows": {func(m *Machine) { file(m, "/sys/fs/cgroup/system.slice/memory.high", "536870912") }, Warning, "memory of the control group",
			"MemoryHigh=1140850688 or more in the unit file, or limits.memory_bytes = 469762048"},
		"both cgroups": {func(m *Machine) {
			file(m, "/sys/fs/cgroup/system.slice/rdsd.service/memory.high", "400000000")
			file(m, "/sys/fs/cgroup/system.slice/memory.max", "536870912")
		}, Error, "memory of the control group", "MemoryMax=1140850688"},
		"disk":      {left(Room{Bytes: 1 << 20, Files: 1 << 20}), Error, "state", "make room"},
		"inodes":    {left(Room{Bytes: 1 << 40, Files: 3}), Error, "state", "df -i"},
		"read-only": {left(Room{Bytes: 1 << 40, Files: 1 << 20, ReadOnly: true}), Error, "state", "remount,rw"},
		"address":   {func(m *Machine) { m.MTU = func(netip.Addr) (string, int) { return "", 0 } }, Error, "127.0.0.1", "ip addr add"},
		"MTU":       {func(m *Machine) { m.MTU = func(netip.Addr) (string, int) { return "tun0", 576 } }, Warning, "127.0.0.1", "ip link set tun0 mtu 1500"},
		"port":      {busy(syscall.ECONNREFUSED), Error, "rds.port", "sport = :16385"},
		"no right":  {func(m *Machine) { m.Listen = func(netip.AddrPort) error { return syscall.EACCES } }, Warning, "rds.port", ""},
		"kernel": {func(m *Machine) {
			busy(nil)(m)
			m.Mode = func(string) (os.FileMode, error) { return 0, nil }
		}, Error, "rds.port", "modprobe -r rds_tcp"},
		"congestion": {func(m *Machine) { file(m, "/proc/sys/net/ipv4/tcp_available_congestion_control", "reno") }, Warning, "rds.tcp_congestion", "modprobe tcp_cubic"},
		"buffers":    {func(m *Machine) { file(m, "/proc/sys/net/core/wmem_max", "4096") }, Warning, "net.core.wmem_max", "sysctl -w net.core.wmem_max"},
		"nobody":     {func(m *Machine) { m.Connect = func(string, string) error { return fs.ErrNotExist } }, Note, "daemon", "systemctl start rdsd"},
		"no directory": {func(m *Machine) {
			m.Connect = func(string, string) error { return fs.ErrNotExist }
			m.Mode = func(p string) (os.FileMode, error) {
				if p == "/run/rdsd" || p == "/sys/module/rds_tcp" {
					return 0, fs.ErrNotExist
				}
				return 0, nil
			}
		}, Note, "daemon", "mkdir -p /run/rdsd"},
		"forbidden": {func(m *Machine) { m.Connect = func(string, string) error { return syscall.EACCES } }, Error, "daemon", "api.socket_group"},
		"dead":      {func(m *Machine) { m.Connect = func(string, string) error { return syscall.ECONNREFUSED } }, Warning, "daemon", "restart rdsd"},
		"nbd":       {func(m *Machine) { lacksModule(m, "nbd") }, Note, "nbd", "modprobe nbd nbds_max=64 max_part=16"},
		"netlink":   {func(m *Machine) { m.Driver = func() error { return syscall.EPROTONOSUPPORT } }, Warning, "netlink", "modprobe -r nbd"},
		"max_part":  {func(m *Machine) { file(m, "/sys/module/nbd/parameters/max_part", "0") }, Note, "max_part", "modprobe -r nbd"},
		"rights":    {func(m *Machine) { file(m, "/proc/self/status", "CapEff:\t0000000000000000\n") }, Note, "CAP_SYS_ADMIN", "packaging/volumes.conf"},
		"no RDMA":   {func(m *Machine) { m.List = func(string) ([]string, error) { return nil, fs.ErrNotExist } }, Note, "devices", ""},
		"uverbs":    {func(m *Machine) { lacksModule(m, "ib_uverbs") }, Error, "ib_uverbs", "modprobe ib_uverbs"},
		"locked": {func(m *Machine) {
			m.Limit = func(which int) (uint64, uint64) {
				if which == unix.RLIMIT_MEMLOCK {
					return 65536, 65536
				}
				return 1 << 20, 1 << 20
			}
		}, Warning, "locked memory", "LimitMEMLOCK=infinity"},
	} {
		m := good()
		c.break_(m)
		found := Examine(m, config.Default(), "/run/rdsd/rdsd.sock", nil, nil)
		found = slices.DeleteFunc(found, func(f Finding) bool { return f.Severity == OK || f.What == "volumes.port" })
		if len(found) == 0 || found[0].Severity != c.severity || found[0].What != c.what || !strings.Contains(found[0].Remedy, c.mend) || found[0].Text == "" {
			t.Errorf("%s: %+v", name, found)
		}
	}
	soft, m := config.Default(), good()
	soft.Volumes.RDMA = config.RDMASoft
	file(m, "/proc/sys/net/core/wmem_max", "8388608")
	var small []string
	for _, f := range Examine(m, soft, "/run/rdsd/rdsd.sock", []string{"net"}, nil) {
		if f.Severity == Warning {
			small = append(small, f.What+": "+f.Remedy)
		}
	}
	if want := "net.core.rmem_max for RDMA: sysctl -w net.core.rmem_max=8388608"; len(small) != 1 || small[0] != want {
		t.Errorf("buffers for a device: %q, want %q", small, want)
	}
	found := Examine(good(), config.Default(), "/run/rdsd/rdsd.sock", nil, nil)
	groups := map[string]int{}
	for _, f := range found {
		if groups[f.Group]++; f.Severity != OK || f.Remedy != "" {
			t.Errorf("on a machine that lacks nothing: %+v", f)
		}
	}
	for _, g := range Groups {
		if groups[g] == 0 {
			t.Errorf("nothing was found of %s", g)
		}
		for _, f := range Examine(good(), config.Default(), "/run/rdsd/rdsd.sock", []string{g}, nil) {
			if f.Group != g {
				t.Errorf("asked for %s: %+v", g, f)
			}
		}
	}
}

// busy is a machine whose ports are in use, by a daemon if connecting to one succeeds.
func busy(connect error) func(*Machine) {
	return func(m *Machine) {
		m.Listen = func(netip.AddrPort) error { return &os.SyscallError{Syscall: "bind", Err: syscall.EADDRINUSE} }
		m.Connect = func(string, string) error { return connect }
	}
}

// TestOfTheDaemon: limits, control group and state are those of the daemon where one runs, and what is this shell's alone is
// not taken for them.
func TestOfTheDaemon(t *testing.T) {
	const unit, shell = "/sys/fs/cgroup/system.slice/rdsd.service/memory.max", "/sys/fs/cgroup/user.slice/shell.scope/memory.max"
	nobody := func(m *Machine) { m.Daemon = func(string) int { return 0 } }
	foreign := func(m *Machine) { m.Daemon = func(string) int { return 78 } } // whose files cannot be read
	gone := func(m *Machine) {
		read := m.Read
		m.Read = func(p string) (string, error) {
			if p == unit {
				return "", fs.ErrNotExist
			}
			return read(p)
		}
	}
	small := func(path string) func(*Machine) { return func(m *Machine) { file(m, path, "536870912\n") } }
	fullAt := func(dir string) func(*Machine) {
		return func(m *Machine) {
			m.Free = func(p string) (Room, error) {
				if strings.HasPrefix(p, dir) {
					return Room{Bytes: 1 << 20, Files: 1 << 20}, nil
				}
				return Room{Bytes: 1 << 40, Files: 1 << 20}, nil
			}
		}
	}
	environ := func(text string) func(*Machine) { return func(m *Machine) { file(m, "/proc/77/environ", text) } }
	limits := func(m *Machine) {
		file(m, "/proc/77/limits", "Limit  Soft  Hard  Units\nMax open files            1024                 4096                 files\nMax locked memory         unlimited            unlimited            bytes\n")
	}
	for name, c := range map[string]struct {
		changes              []func(*Machine)
		severity, what, text string // of what is not ok; "": all is
	}{
		"the shell's group is small":              {[]func(*Machine){small(shell)}, "", "", ""},
		"the daemon's is":                         {[]func(*Machine){small(unit)}, Error, "memory of the control group", "/system.slice/rdsd.service (the daemon's) allows 536870912"},
		"nobody answers, and the unit's is":       {[]func(*Machine){nobody, small(shell), small(unit)}, Error, "memory of the control group", "rdsd.service (the daemon's)"},
		"it cannot be read, and the unit's is":    {[]func(*Machine){foreign, small(unit)}, Error, "memory of the control group", "rdsd.service (the daemon's)"},
		"nobody answers, and the shell's is":      {[]func(*Machine){nobody, small(shell)}, "", "", ""},
		"there is no unit, and the shell's is":    {[]func(*Machine){nobody, gone, small(shell)}, Warning, "memory of the control group", "shell.scope (this shell's)"},
		"there is no unit":                        {[]func(*Machine){nobody, gone}, "", "", ""},
		"the daemon has few descriptors":          {[]func(*Machine){limits}, Warning, "file descriptors", "the daemon may have 4096"},
		"the daemon's state":                      {[]func(*Machine){environ("A=1\x00STATE_DIRECTORY=/srv/rdsd:/other\x00"), fullAt("/srv/rdsd/volumes")}, Error, "state", "/srv/rdsd/volumes has 1048576"},
		"not where the daemon has it":             {[]func(*Machine){environ("STATE_DIRECTORY=/srv/rdsd"), fullAt("/var")}, "", "", ""},
		"the daemon has no directory of systemd":  {[]func(*Machine){environ("A=1"), fullAt("/var")}, "", "", ""},
		"its environment is not known":            {[]func(*Machine){fullAt("/var")}, Error, "state", "/var/lib/rdsd/volumes has"},
		"its environment is not known, /run full": {[]func(*Machine){fullAt("/run")}, Error, "state", "/run/rdsd/rdsd.sock.volumes has"},
	} {
		m := good()
		for _, change := range c.changes {
			change(m)
		}
		found := slices.DeleteFunc(Examine(m, config.Default(), "/run/rdsd/rdsd.sock", []string{"limits"}, nil), func(f Finding) bool { return f.Severity == OK })
		switch {
		case c.what == "" && len(found) == 0:
		case len(found) != 1 || found[0].Severity != c.severity || found[0].What != c.what || !strings.Contains(found[0].Text, c.text):
			t.Errorf("%s: %+v", name, found)
		}
	}
	m, c := good(), config.Default()
	if group, _, found := ShortGroup(m, c); found {
		t.Errorf("%+v is taken for too small", group)
	}
	small(shell)(m)
	if group, needs, _ := ShortGroup(m, c); group != (Group{"/user.slice/shell.scope", 512 << 20, false}) || needs != uint64(c.Limits.MemoryBytes)+64<<20 {
		t.Errorf("%+v, %d are needed", group, needs)
	}
}

// TestRunningDaemon: ports that a daemon has are no fault.
func TestRunningDaemon(t *testing.T) {
	m := good()
	busy(nil)(m)
	for _, f := range Examine(m, config.Default(), "/run/rdsd/rdsd.sock", []string{"net"}, nil) {
		if f.Severity != OK {
			t.Errorf("%+v", f)
		}
	}
}

// TestHere: the checks run on this machine, whatever it is.
func TestHere(t *testing.T) {
	m := Here()
	if name, mtu := m.MTU(netip.MustParseAddr("127.0.0.1")); name == "" || mtu == 0 {
		t.Errorf("loopback is on %q, MTU %d", name, mtu)
	}
	if _, hard := m.Limit(unix.RLIMIT_NOFILE); hard == 0 {
		t.Error("no file descriptors")
	}
	if free, err := m.Free(t.TempDir()); err != nil || free.Bytes == 0 || free.Files == 0 || free.ReadOnly {
		t.Errorf("%+v free, %v", free, err)
	}
	if free, err := m.Free("/sys"); err != nil || free.Files == 0 { // whose file system counts none
		t.Errorf("%+v free, %v", free, err)
	}
	if err := m.Listen(netip.MustParseAddrPort("192.0.2.1:1")); err == nil {
		t.Error("a port of another machine can be had")
	}
	if _, err := m.Read("/proc/self/status"); err != nil {
		t.Error(err)
	}
	if _, err := m.List("/proc/self"); err != nil {
		t.Error(err)
	}
	if _, err := m.Mode("/nobody/is/here"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := m.Connect("unix", "/nobody/is/here"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	socket := t.TempDir() + "/s"
	if pid := m.Daemon(socket); pid != 0 {
		t.Errorf("process %d listens where nobody does", pid)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if pid := m.Daemon(socket); pid != os.Getpid() {
		t.Errorf("process %d listens, and not this one", pid)
	}
	if len(Examine(m, config.Default(), "/run/rdsd/rdsd.sock", nil, nil)) < 6 {
		t.Error("hardly anything was looked at")
	}
}

// TestWaysToPeers: the way to each peer that is named is looked at, and where large packets
// vanish and nobody says so, that is told with what mends it.
func TestWaysToPeers(t *testing.T) {
	m := good()
	reaches := map[string]int{"127.0.0.2": 9000, "127.0.0.3": 1500, "127.0.0.4": 1500, "127.0.0.5": 0}
	m.Probe = func(from, to netip.Addr, bytes int) (bool, int) {
		if !from.IsLoopback() {
			t.Errorf("from %v", from)
		}
		if to.String() == "127.0.0.3" { // it says what fits
			return bytes <= reaches[to.String()], min(bytes, 1500)
		}
		return bytes <= reaches[to.String()], bytes
	}
	c := config.Default()
	rule := func(p string, deny bool) {
		c.Peers = append(c.Peers, config.PeerRule{Address: config.Prefix{Prefix: netip.MustParsePrefix(p)}, Deny: deny})
	}
	rule("127.0.0.2/32", false)
	rule("127.0.0.3/32", false)
	rule("127.0.0.4/32", false)
	rule("127.0.0.9/32", true)  // is none
	rule("127.0.0.0/24", false) // names nobody
	rule("10.0.0.7/32", false)  // there is no address here for it
	got := map[string]Finding{}
	for _, f := range Examine(m, c, "/run/rdsd/rdsd.sock", []string{"net"}, []netip.Addr{netip.MustParseAddr("127.0.0.5"), netip.MustParseAddr("127.0.0.4")}) {
		if strings.HasPrefix(f.What, "way to ") {
			got[strings.TrimPrefix(f.What, "way to ")] = f
		}
	}
	for peer, want := range map[string]struct{ severity, text, mend string }{
		"127.0.0.2": {OK, "packets of 9000 bytes arrive", ""}, "127.0.0.3": {OK, "1500 bytes", ""},
		"127.0.0.4": {Warning, "vanish", "ip link set eth0 mtu 1500, or sysctl -w net.ipv4.tcp_mtu_probing=1"}, "127.0.0.5": {Note, "nothing comes back", "ping -c 3 127.0.0.5"},
	} {
		if f := got[peer]; f.Severity != want.severity || !strings.Contains(f.Text, want.text) || !strings.Contains(f.Remedy, want.mend) {
			t.Errorf("%s: %+v", peer, f)
		}
	}
	if len(got) != 4 {
		t.Errorf("%v", got)
	}
}

// TestProbeHere: on loopback the largest packet arrives, and one that is larger than
// the interface takes is known not to.
func TestProbeHere(t *testing.T) {
	from, to := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	_, mtu := mtuOf(from)
	for _, size := range []int{smallest, 1500, min(mtu, 0xffff)} {
		if arrived, _ := probe(from, to, size); !arrived {
			t.Errorf("%d bytes do not arrive", size)
		}
	}
	if arrived, known := probe(from, to, smallest); !arrived || known < min(mtu, 0xffff) {
		t.Errorf("the path carries %d bytes, the interface %d", known, mtu)
	}
	if arrived, _ := probe(netip.MustParseAddr("192.0.2.1"), to, smallest); arrived {
		t.Error("a packet from an address of nobody arrives")
	}
}
