package adversary

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/roce/cm"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// Users of the parties. Root keeps the daemons and the canary.
const (
	victimUID    = 64001
	adversaryUID = 65534
)

// memoryBytes is limits.memory_bytes of the daemons, and memorySlack what the
// process may take beside it.
const (
	memoryBytes = 256 << 20
	memorySlack = 64 << 20
)

// rdmaPort is where the daemons are reached over RDMA. Nobody else has a device of their addresses.
const rdmaPort = 1234

// world is two daemons, each with a volume for the victims or the adversary
// mapped from the other.
type world struct {
	t       testing.TB
	dir     string
	exe     string // the test binary, where every user may run it
	daemons [2]*daemon
	uri     string // of the victims' mapping
	targets [2]Target
	unlucky []string // addresses of the canary's that something failed for
}

// daemon is a process of rdsd.
type daemon struct {
	name, socket, http, log string
	addr                    netip.Addr
	cmd                     *exec.Cmd
	ended                   chan struct{}
	peak                    atomic.Int64 // VmRSS, bytes, the largest seen
}

var (
	addresses = [2]netip.Addr{netip.MustParseAddr("127.81.0.2"), netip.MustParseAddr("127.81.0.3")}
	allowed   = netip.MustParsePrefix("127.80.7.0/24")
	larger    = netip.MustParsePrefix("127.82.0.0/24")
	strangers = netip.MustParsePrefix("127.79.0.0/20")
	good      = netip.MustParsePrefix("127.70.0.0/16") // of the canary, allowed
)

func newWorld(t testing.TB) *world {
	dir, err := os.MkdirTemp("", "adv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &world{t: t, dir: dir, exe: filepath.Join(dir, "adversary.test")}
	must(t, os.Chmod(dir, 0o755))
	must(t, copyFile(w.exe, os.Args[0]))
	port, volumes := rdsdtest.FreePort(t, addresses[:]...), rdsdtest.FreePort(t, addresses[:]...)
	for i, name := range []string{"a", "b"} {
		w.daemons[i] = w.start(name, addresses[i], port, volumes)
	}
	for i, d := range w.daemons {
		w.targets[i] = Target{Socket: d.socket, Daemon: d.addr, Other: w.daemons[1-i].addr, Port: uint16(port), Volumes: uint16(volumes), RDMA: rdmaPort,
			Export: "theirs", HTTP: d.http, Allowed: allowed, Larger: larger, Stranger: strangers}
	}
	w.volumes()
	return w
}

func (w *world) start(name string, addr netip.Addr, port, volumes int) *daemon {
	// The ledger lies beside the socket, on a tmpfs as /run is: the kernel makes
	// whoever writes to a page of a disk's file wait while that is written back.
	sub, err := os.MkdirTemp("/dev/shm", "adv")
	must(w.t, err)
	w.t.Cleanup(func() { os.RemoveAll(sub) })
	must(w.t, os.Chmod(sub, 0o755))
	d := &daemon{name: name, addr: addr, socket: filepath.Join(sub, "s"), log: filepath.Join(w.dir, name+".log"),
		http: fmt.Sprintf("%v:%d", addr, rdsdtest.FreePort(w.t, addr)), ended: make(chan struct{})}
	lines := 20.0 // of one message a second, as usual
	if *runLogs != "" {
		lines = 100000
	}
	config := fmt.Sprintf(`version = 1
[rds]
addresses = [%q]
port = %d
heartbeat_interval = "1s"
heartbeat_timeout = "5s"
[api]
socket = %q
socket_mode = "0666"
[http]
listen = %q
pprof = true
[log]
lines_per_second = %v
[limits]
memory_bytes = %d
[volumes]
port = %d
rdma = "soft"
rdma_port = %d
name = %q
socket_mode = "0666"
[[peers]]
address = %q
kernel = true
uids = [%d]
[[peers]]
address = %q
kernel = true
uids = [%d]
[[peers]]
address = %q
`, addr, port, d.socket, d.http, lines, memoryBytes, volumes, rdmaPort, name, allowed, adversaryUID, larger, adversaryUID, good)
	path := filepath.Join(w.dir, name+".toml")
	must(w.t, os.WriteFile(path, []byte(config), 0o600))
	out, err := os.Create(d.log)
	must(w.t, err)
	d.cmd = exec.Command(rdsdtest.Binary(w.t), "serve", "--config", path)
	d.cmd.Stdout, d.cmd.Stderr = out, out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(w.t, startNice(d.cmd))
	out.Close()
	go func() { // ends with the process
		defer close(d.ended)
		d.cmd.Wait()
	}()
	w.t.Cleanup(func() {
		d.cmd.Process.Kill()
		<-d.ended
		if b, err := os.ReadFile(d.log); err == nil && w.t.Failed() {
			if *runLogs != "" {
				must(w.t, os.WriteFile(filepath.Join(*runLogs, name+".log"), b, 0o644))
			}
			w.t.Logf("what daemon %s says of the victims, and of the peers that had no luck:\n%s", name, ofVictims(b, w.unlucky))
			w.t.Logf("end of the log of daemon %s:\n%s", name, tail(b, 3<<10))
		}
	})
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if st, err := d.status(); err == nil && st.State == "serving" {
			return d
		}
		if time.Now().After(until) || d.gone() {
			b, _ := os.ReadFile(d.log)
			w.t.Fatalf("daemon %s does not serve:\n%s", name, b)
		}
	}
}

// ofVictims are the lines of a log that speak of the victims' user, or of these peers.
func ofVictims(b []byte, peers []string) []byte {
	said := []string{fmt.Sprintf("uid=%d", victimUID)}
	for _, p := range peers {
		said = append(said, "peer="+p+" ", "path="+p+":")
	}
	var out []byte
	for line := range bytes.Lines(b) {
		if slices.ContainsFunc(said, func(s string) bool { return bytes.Contains(line, []byte(s)) }) {
			out = append(out, line...)
		}
	}
	return tail(out, 4<<10)
}

// volumes has each daemon export a volume that the adversary may write and map
// the other's, and the victims one of b that a maps.
func (w *world) volumes() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	export := func(d *daemon, name string, size uint64, allow netip.Prefix) {
		must(w.t, d.with(func(c *rdsd.Client) error {
			_, err := c.Volumes().Export(ctx, rdsd.ExportSpec{Name: name, Path: filepath.Join(w.dir, d.name+name), Create: true, Size: size, Shared: true,
				AllowAddresses: []netip.Prefix{allow, netip.PrefixFrom(addresses[0], 31)}})
			return err
		}))
	}
	for _, d := range w.daemons {
		export(d, "theirs", 16<<20, allowed)
	}
	export(w.daemons[1], "disk", victimBlock*victimBlocks, netip.PrefixFrom(addresses[0], 32))
	for i, d := range w.daemons {
		must(w.t, d.with(func(c *rdsd.Client) error {
			m, err := c.Volumes().Map(ctx, rdsd.MapSpec{Node: w.daemons[1-i].addr.String(), Name: "theirs", Attach: rdsd.AttachSocket, SocketPath: d.socket + ".nbd"})
			if err != nil {
				return err
			}
			w.targets[i].NBD = m.Device
			if i == 0 {
				if m, err = c.Volumes().Map(ctx, rdsd.MapSpec{Node: w.daemons[1].addr.String(), Name: "disk", Attach: rdsd.AttachSocket, SocketPath: d.socket + ".disk"}); err != nil {
					return err
				}
				w.uri = m.URI
			}
			return nil
		}))
	}
}

func (d *daemon) with(f func(*rdsd.Client) error) error {
	c, err := rdsd.Dial(d.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	return f(c)
}

func (d *daemon) status() (st *rdsd.Status, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err = d.with(func(c *rdsd.Client) error {
		st, err = c.Admin().Status(ctx)
		return err
	})
	return st, err
}

func (d *daemon) pid() int { return d.cmd.Process.Pid }

// gone reports whether the daemon has ended.
func (d *daemon) gone() bool {
	select {
	case <-d.ended:
		return true
	default:
		return false
	}
}

// resident is VmRSS in bytes, and keeps the largest.
func (d *daemon) resident() int64 {
	n := int64(d.proc("VmRSS:")) << 10
	for {
		old := d.peak.Load()
		if n <= old || d.peak.CompareAndSwap(old, n) {
			return n
		}
	}
}

// proc is a number of /proc/PID/status.
func (d *daemon) proc(key string) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.pid()))
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, _ := strconv.Atoi(strings.Fields(rest)[0])
			return n
		}
	}
	return 0
}

// residue is what a daemon keeps for those who talk to it.
type residue struct {
	Descriptors                  int // without the links between the daemons
	Goroutines, Regions, Sockets int
	Budgets                      map[string]uint64
	files                        map[string]int
}

func (d *daemon) residue() (r residue, err error) {
	r.files = map[string]int{}
	dir := fmt.Sprintf("/proc/%d/fd/", d.pid())
	fds, err := os.ReadDir(dir)
	if err != nil {
		return r, err
	}
	for _, fd := range fds {
		name, _ := os.Readlink(dir + fd.Name())
		kind, _, _ := strings.Cut(name, ":[")
		r.files[kind]++
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", d.pid()))
	if err != nil {
		return r, err
	}
	r.Regions = bytes.Count(maps, []byte("rdsd-ring"))
	st, err := d.status()
	if err != nil {
		return r, err
	}
	r.Sockets, r.Budgets = int(st.Sockets), map[string]uint64{}
	for _, b := range st.Budgets {
		r.Budgets[b.Name] = b.Used
	}
	stacks, err := d.goroutines()
	if err != nil {
		return r, err
	}
	n, _, _ := strings.Cut(strings.TrimPrefix(stacks, "goroutine profile: total "), "\n")
	r.Goroutines, _ = strconv.Atoi(n)
	links, err := d.links()
	r.Descriptors = len(fds) - links
	return r, err
}

// links is how many lanes to the other daemon are up: they stay, and come with
// traffic.
func (d *daemon) links() (n int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err = d.with(func(c *rdsd.Client) error {
		peers, err := c.Admin().Peers(ctx, rdsd.PeerFilter{})
		for _, p := range peers {
			if p.Remote != addresses[0] && p.Remote != addresses[1] {
				continue
			}
			for _, path := range p.Paths {
				if path.State == rdsd.StateUp {
					n++
				}
			}
		}
		return err
	})
	return n, err
}

// holds says in one line what the daemon's memory is held for, and by what of Go.
func (d *daemon) holds() string {
	var b strings.Builder
	asked := time.Now()
	st, err := d.status()
	if err != nil {
		return err.Error()
	}
	for _, k := range st.Budgets {
		if k.Used >= 1<<20 && strings.HasPrefix(k.Name, "memory") {
			fmt.Fprintf(&b, "%s %d MiB, ", k.Name, k.Used>>20)
		}
	}
	page, _ := d.page("/debug/pprof/heap?debug=1", 5*time.Second)
	for line := range strings.Lines(string(page)) {
		rest, ok := strings.CutPrefix(line, "# Heap")
		if name, value, _ := strings.Cut(strings.TrimSpace(rest), " = "); ok && name != "Objects" {
			n, _ := strconv.ParseInt(value, 10, 64)
			fmt.Fprintf(&b, "Go's Heap%s %d MiB, ", name, n>>20)
		}
	}
	return fmt.Sprintf("%stold in %v", b.String(), time.Since(asked).Round(time.Millisecond))
}

// goroutines is the profile of what the daemon's goroutines are at.
func (d *daemon) goroutines() (string, error) {
	b, err := d.page("/debug/pprof/goroutine?debug=1", 5*time.Second)
	return string(b), err
}

func (d *daemon) page(path string, limit time.Duration) ([]byte, error) {
	return page(d.http, path, limit)
}

func page(at, path string, limit time.Duration) ([]byte, error) {
	c := http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get("http://" + at + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// over lists what is more in r than in base. Of each peer so many connections over RoCE may still be ending.
func (r residue) over(base residue, ending uint64) (list []string) {
	more := func(what string, now, then, slack uint64) {
		if now > then+slack {
			list = append(list, fmt.Sprintf("%s: %d, before %d", what, now, then))
		}
	}
	more("descriptors", uint64(r.Descriptors), uint64(base.Descriptors), 0)
	more("goroutines", uint64(r.Goroutines), uint64(base.Goroutines), 4) // those of gRPC and HTTP that ask
	more("regions", uint64(r.Regions), uint64(base.Regions), 0)
	more("sockets", uint64(r.Sockets), uint64(base.Sockets), 0)
	for name, used := range r.Budgets {
		then := base.Budgets[name]
		switch {
		case keptBudgets[name] || strings.HasPrefix(name, "memory of peer 127.81.0."):
			continue
		case strings.HasPrefix(name, "memory of peer ") && (used <= peerRecord+ending*cm.ConnBytes || used%peerRecord == 0):
			continue
		case measuredBudgets[name]:
			more("budget "+name, used, then, measuredSlack)
			continue
		case name == "memory":
			for _, kept := range []string{"memory_peers", "memory_chunks", "memory_regions"} {
				used, then = used-r.Budgets[kept], then-base.Budgets[kept]
			}
		}
		more("budget "+name, used, then, 0)
	}
	return list
}

// keptBudgets are not given back at once, by design: peers stay known until
// their place is wanted, with a record each, and chunks that were used stay with
// the session of the two daemons, which lives on.
// Descriptors are counted without the links between the two (residue).
var keptBudgets = map[string]bool{"peers": true, "memory_peers": true, "memory_chunks": true, "descriptors": true}

// measuredBudgets are what the kernel says is resident of files and shared memory:
// pages of the program and of the ledger that were first used meanwhile are in them.
// That no region is left is seen by their number.
var measuredBudgets = map[string]bool{"memory_regions": true, "memory of node": true}

const (
	measuredSlack = 8 << 20
	// peerRecord is what a peer is charged that nothing else is held for, and as much for each 1,024
	// refusals that it has not acknowledged: they are kept with it (conn/keep.go).
	peerRecord = 20 << 10
	// endingConns is how many of a peer's connections over RoCE may still be ending a while after it has gone.
	// A path with its queue pair has more than these together.
	endingConns = uint64(64)
)

// role is a process of the test binary.
type role struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	errs bytes.Buffer
}

// role starts one as a user of its own.
func (w *world) role(name string, uid uint32, order any) (*role, error) {
	b, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	r := &role{name: name, cmd: exec.Command(w.exe)}
	r.cmd.Dir = "/"
	r.cmd.Env = append(os.Environ(), roleEnv+"="+name, orderEnv+"="+string(b), "GOMAXPROCS=2")
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if uid != 0 {
		r.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid, NoSetGroups: false}
	}
	r.cmd.Stderr = &r.errs
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.out = bufio.NewScanner(out)
	r.out.Buffer(nil, 64<<20)
	if name == "worker" {
		return r, r.cmd.Start()
	}
	return r, startNice(r.cmd)
}

// ask says a word and reads the answer.
func (r *role) ask(word string, into any) error {
	if _, err := io.WriteString(r.in, word+"\n"); err != nil {
		return fmt.Errorf("%s: %w\n%s", r.name, err, r.errs.String())
	}
	if !r.out.Scan() {
		r.cmd.Wait()
		return fmt.Errorf("%s has ended\n%s", r.name, r.errs.String())
	}
	return json.Unmarshal(r.out.Bytes(), into)
}

// end ends it and waits.
func (r *role) end() {
	r.in.Close()
	done := time.AfterFunc(10*time.Second, func() { r.cmd.Process.Kill() })
	defer done.Stop()
	r.cmd.Wait()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}

func tail(b []byte, n int) []byte { return b[max(0, len(b)-n):] }
