package vm

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/node/volume"
)

// What rdsd does beside a kernel, measured: the second half of `make bench`, in a guest whose
// clock counts instructions. There is one processor, on which both ends of everything run, so
// a rate says how much has to be done for one operation at both ends, and nothing of what
// caches or a second processor would make of it. Every pass runs each program once; a row is
// the median of the ratios of passes.

var (
	benchRun    = flag.Bool("vm.bench", false, "measure and print the report (make bench-vm)")
	benchPasses = flag.Int("vm.passes", 9, "passes of the report")
	benchFor    = flag.Duration("vm.for", 300*time.Millisecond, "length of one measurement, by the guest's clock")
	benchRdsd   = flag.String("vm.rdsd", "", "the program rdsd that is measured")
)

// benchLimit is for machines that others use too.
const benchLimit = 40 * time.Minute

// measured are programs and what each did in each pass.
type measured struct {
	t       *testing.T
	names   []string
	run     map[string]func() float64
	samples map[string][]float64
	idle    map[string]float64 // seconds for which the processor had nothing to do, of all passes
}

// program adds one; run returns a rate.
func (m *measured) program(name string, run func() float64) {
	if !chosen(m.t, name) {
		return
	}
	if m.run == nil {
		m.run, m.samples, m.idle = map[string]func() float64{}, map[string][]float64{}, map[string]float64{}
	}
	m.names = append(m.names, name)
	m.run[name] = run
}

// passes runs everything in turn.
func (m *measured) passes() {
	for range *benchPasses {
		for _, name := range m.names {
			before := idleSeconds(m.t)
			m.samples[name] = append(m.samples[name], m.profiled(name, m.run[name]))
			m.idle[name] += idleSeconds(m.t) - before
		}
	}
}

// idleSeconds is for how long the processor has had nothing to do.
func idleSeconds(t *testing.T) float64 {
	t.Helper()
	const perSecond, idleField = 100, 4 // of proc(5)
	n, err := strconv.Atoi(strings.Fields(read(t, "/proc/stat"))[idleField])
	if err != nil {
		t.Fatal(err)
	}
	return float64(n) / perSecond
}

// idleness prints who waited: with one processor nobody has to, unless for a timer.
func (m *measured) idleness() {
	for _, name := range m.names {
		if v := m.idle[name] / float64(*benchPasses); v > benchFor.Seconds()/20 {
			m.say(fmt.Sprintf("%s: %.3f s without work in each pass, start and end included", name, v))
		}
	}
}

// heading begins the report's table.
func (m *measured) heading() {
	m.say("| row | what | measured | against | ratio: median (least to most) | bar | |")
	m.say("|---|---|---|---|---|---|---|")
}

func (m *measured) say(line string) { fmt.Println("bench:", line) }

// row prints a line of it. A bar of 0 is none.
func (m *measured) row(name, what, ours, base string, bar float64) {
	if len(m.samples[ours]) == 0 || len(m.samples[base]) == 0 {
		return // not chosen
	}
	var ratio []float64
	for i, v := range m.samples[ours] {
		ratio = append(ratio, v/m.samples[base][i])
	}
	verdict, shown := "-", "-"
	if bar != 0 {
		verdict, shown = "meets", fmt.Sprintf("≥ %g", bar)
		if medianOf(ratio) < bar {
			verdict = "MISSES"
		}
	}
	m.say(fmt.Sprintf("| %s | %s | %.3g/s | %.3g/s: %s | %.3f (%.3f to %.3f) | %s | %s |", name, what, medianOf(m.samples[ours]),
		medianOf(m.samples[base]), base, medianOf(ratio), slices.Min(ratio), slices.Max(ratio), shown, verdict))
}

func medianOf(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// needBench skips what measures unless it was asked for.
func needBench(t *testing.T) {
	t.Helper()
	switch {
	case !*benchRun:
		t.Skip("elsewhere: measures for minutes, with make bench-vm")
	case *benchRdsd == "":
		t.Fatal("-vm.rdsd: no program")
	}
	for _, name := range []string{"nbd-server", "nbd-client"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%s: not installed (scripts/setup.sh does it, as root on Debian)", name)
		}
	}
}

// diskBytes is the size of each volume.
const diskBytes = 32 << 20

// TestBenchVolumes: RNBD from us to the kernel's client and from the kernel to us, against
// nbd-server with nbd-client and against the kernel's RNBD with itself, 4 KiB, 32 at a time.
func TestBenchVolumes(t *testing.T) {
	needBench(t)
	InCounted(t, benchLimit, func(t *testing.T) {
		run(t, "modprobe", "crc32_pclmul") // what rxe uses on a machine that has it
		top := topology{links: 2}
		links := []link{top.link(0), top.link(1)}
		top.make(t, links)
		both := twoKernelsAt(t, "10.8.0")
		// Two disks: each is used by one client.
		load(t, "brd", "rd_nr=2", fmt.Sprintf("rd_size=%d", diskBytes>>10))
		until(t, "/dev/ram1", 5*time.Second, func() bool { _, err := os.Stat("/dev/ram1"); return err == nil })
		load(t, "rtrs-server", "sess_queue_depth=128")
		load(t, "rnbd-server")
		load(t, "rnbd-client")
		run(t, "modprobe", "nbd") // it stays: a device whose server was killed is not let go of for a while

		kernels := kernelMap(t, mapSpec{session: "kernels", device: "/dev/ram0", paths: []string{fmt.Sprintf("%v@%v", both.addr, both.other)}})

		d := startDaemon(t, links[0].other, "RDSD_VOLUMES_RDMA=soft")
		d.rdsd("volume", "export", "v", "--memory", "--size", fmt.Sprint(diskBytes))
		served := kernelMap(t, mapSpec{session: "ours", device: "v", paths: []string{fmt.Sprintf("%v@%v", links[0].addr, links[0].other)}})

		// A node in a process of its own has its device's socket in our namespace, and the
		// kernel's NBD device here.
		l := links[1]
		l.other = netip.AddrFrom4([4]byte{10, 9, 1, 2})
		neighbours(t, l, ours)
		startNode(t, nodeSpec{Addr: l.other, State: t.TempDir(), Map: &volume.MapSpec{Node: l.addr.String(), Name: "dev/ram1", As: volume.AsNBD, Device: "/dev/nbd1"}})

		nbd := nbdOver(t, links[0].other, "/dev/nbd0")

		m := &measured{t: t}
		for _, rw := range []string{"read", "write"} {
			for _, p := range []struct{ name, disk string }{
				{"rdsd serves", served}, {"the kernel's RNBD", kernels}, {"nbd-server", nbd}, {"rdsd as nbd", "/dev/nbd1"},
			} {
				m.program(p.name+", "+rw, func() float64 { return ioRate(t, p.disk, "rand"+rw) })
			}
		}
		m.passes()
		m.heading()
		for _, rw := range []string{"read", "write"} {
			what := "4 KiB " + rw + " × 32, rdsd's volume in memory used by the kernel's RNBD client"
			m.row("vm-serve-4k-"+rw, what+", against nbd-server with nbd-client", "rdsd serves, "+rw, "nbd-server, "+rw, 1)
			m.row("vm-serve-4k-"+rw+"-kernels", "the same against the kernel's RNBD with itself (goal 0.7)", "rdsd serves, "+rw, "the kernel's RNBD, "+rw, 0.6)
			m.row("vm-map-4k-"+rw, "4 KiB "+rw+" × 32, a disk of the kernel's RNBD server mapped by rdsd as nbd, against nbd-server with nbd-client",
				"rdsd as nbd, "+rw, "nbd-server, "+rw, 0.8)
		}
		m.idleness()
	})
}

// ioRate is what fio does on a disk, requests a second.
func ioRate(t *testing.T, disk, rw string) float64 {
	t.Helper()
	out := run(t, "fio", "--output-format=json", "--name=load", "--filename="+disk, "--direct=1", "--ioengine=libaio", "--iodepth=32",
		"--rw="+rw, "--bs=4k", fmt.Sprint("--size=", diskBytes), "--randrepeat=0", "--norandommap", "--thread", "--time_based",
		fmt.Sprintf("--runtime=%dms", benchFor.Milliseconds()), fmt.Sprintf("--ramp_time=%dms", benchFor.Milliseconds()/5))
	var r struct {
		Jobs []struct{ Read, Write struct{ IOPS float64 } }
	}
	if i := strings.IndexByte(out, '{'); i < 0 {
		t.Fatalf("fio: %s", out)
	} else if err := json.NewDecoder(strings.NewReader(out[i:])).Decode(&r); err != nil || len(r.Jobs) != 1 {
		t.Fatalf("fio: %v: %s", err, out)
	}
	return r.Jobs[0].Read.IOPS + r.Jobs[0].Write.IOPS
}

// nbdOver has nbd-server serve a file on tmpfs in our namespace, and the kernel use it.
func nbdOver(t *testing.T, addr netip.Addr, disk string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "bench-")
	if err != nil {
		t.Fatal(err)
	}
	file, config := filepath.Join(dir, "volume"), filepath.Join(dir, "config")
	if err := os.WriteFile(file, make([]byte, diskBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("[generic]\nuser = root\nlistenaddr = %v\nport = 10809\n[v]\nexportname = %s\n", addr, file)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, "ip", "netns", "exec", ours, "nbd-server", "-d", "-C", config)
	until(t, "nbd-client", time.Minute, func() bool {
		_, err := try(t, "nbd-client", addr.String(), "10809", disk, "-N", "v")
		return err == nil
	})
	undo(t, "nbd-client", "-d", disk)
	return disk
}

// daemon is an rdsd of ours.
type daemon struct {
	t      *testing.T
	socket string
}

// startDaemon starts one in our namespace at an address.
func startDaemon(t *testing.T, addr netip.Addr, env ...string) *daemon {
	t.Helper()
	return startDaemonIn(t, ours, addr, env...)
}

func startDaemonIn(t *testing.T, ns string, addr netip.Addr, env ...string) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{t, filepath.Join(dir, "socket")}
	config := filepath.Join(dir, "config")
	if err := os.WriteFile(config, []byte("version = 1\n[[peers]]\naddress = \"10.0.0.0/8\"\nkernel = true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	argv := append([]string{"ip", "netns", "exec", ns, "env"}, env...)
	p := start(t, append(argv, *benchRdsd, "serve", "--config", config, "--address", addr.String(), "--socket", d.socket, "--http", "", "--log-level", "warn")...)
	until(t, "rdsd serves", time.Minute, func() bool {
		select {
		case <-p.done:
			t.Fatalf("rdsd has ended: %v\n%s", p.err, p.said())
		default:
		}
		_, err := try(t, *benchRdsd, "status", "--socket", d.socket)
		return err == nil
	})
	return d
}

// rdsd runs one of its commands.
func (d *daemon) rdsd(args ...string) string {
	d.t.Helper()
	return run(d.t, append([]string{*benchRdsd, "--socket", d.socket, "--timeout", "1m"}, args...)...)
}
