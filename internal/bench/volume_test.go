package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Volumes: each server holds one of volumeBytes, in memory or in a file, and
// fio's nbd engine reads and writes it through one connection. Before that it
// is written whole. Servers of others are as their packages start them.

const volumeBytes = 64 << 20

// ioLoad is what fio does.
type ioLoad struct {
	name  string // of the program
	row   string // of the row
	rw    string // fio's word
	bytes int    // of one request
	depth int    // requests in flight
}

var ioLoads = []ioLoad{
	{"4 KiB read × 32", "4k-read", "randread", 4 << 10, 32},
	{"4 KiB write × 32", "4k-write", "randwrite", 4 << 10, 32},
	{"4 KiB read × 1", "4k-read-1", "randread", 4 << 10, 1},
	{"4 KiB write × 1", "4k-write-1", "randwrite", 4 << 10, 1},
	{"128 KiB read × 8", "128k-read", "randread", 128 << 10, 8},
	{"128 KiB write × 8", "128k-write", "randwrite", 128 << 10, 8},
	{"1 MiB read × 4", "1m-read", "randread", 1 << 20, 4},
	{"1 MiB write × 4", "1m-write", "randwrite", 1 << 20, 4},
}

// stores are where volumes are kept.
var stores = []string{"memory", "file", "tmpfs"}

// volumeServers start a server of each sort in a world and say where fio finds it.
var volumeServers = map[string]func(w *world, store string) (uri string, err error){
	"nbdkit":         (*world).nbdkit,
	"nbdkit chain":   (*world).nbdkitChain,
	"qemu-nbd":       (*world).qemuNBD,
	"qemu-nbd chain": (*world).qemuChain,
	"nbd-server":     (*world).nbdServer,
}

var (
	singleServers = []string{"nbdkit", "qemu-nbd", "nbd-server"}
	chainServers  = []string{"nbdkit chain", "qemu-nbd chain"}
)

// volume measures a server of others.
func volume(server, store string, l ioLoad) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		uri, err := volumeServers[server](w, store)
		if err != nil {
			return sample{}, err
		}
		f, err := w.fio(uri, l, d, true)
		if err != nil {
			return sample{}, err
		}
		return w.fioDone(f)
	}
}

// fio starts it; with fill it first writes the whole volume. What that
// measures begins a fifth of d later.
func (w *world) fio(uri string, l ioLoad, d time.Duration, fill bool) (*proc, error) {
	binary, err := exec.LookPath("fio")
	if err != nil {
		return nil, skip("fio: not installed")
	}
	args := []string{"--output-format=json", "--ioengine=nbd", "--uri=" + uri, "--thread",
		"--size=" + strconv.Itoa(volumeBytes), "--randrepeat=0", "--norandommap"}
	if fill {
		args = append(args, "--name=fill", "--rw=write", "--bs=1m", "--iodepth=4")
	}
	args = append(args, "--name=load", "--stonewall", "--rw="+l.rw, "--bs="+strconv.Itoa(l.bytes),
		"--iodepth="+strconv.Itoa(l.depth), "--time_based", milliseconds("--runtime=", d), milliseconds("--ramp_time=", d/5))
	p, err := w.start("fio", exec.Command(binary, args...), nil)
	if err == nil {
		// It ends by itself, which is no failure.
		w.ends = append(w.ends, p)
	}
	return p, err
}

func milliseconds(option string, d time.Duration) string {
	return fmt.Sprintf("%s%dms", option, max(1, d.Milliseconds()))
}

// fioResult is what is used of fio's output.
type fioResult struct {
	Jobs []struct {
		Name        string `json:"jobname"`
		Error       int
		Read, Write struct {
			IOPS float64
			Clat struct {
				Percentile map[string]float64 // ns
			} `json:"clat_ns"`
		}
	}
}

// fioDone waits for fio and reads its result.
func (w *world) fioDone(p *proc) (s sample, err error) {
	if err := w.until("fio ends", func() bool {
		select {
		case <-p.exited:
			return true
		default:
			return false
		}
	}); err != nil {
		return s, err
	}
	out := p.out.String()
	var r fioResult
	if i := strings.IndexByte(out, '{'); p.err != nil || i < 0 {
		return s, fmt.Errorf("fio: %v: %s", p.err, out)
	} else if err := json.NewDecoder(strings.NewReader(out[i:])).Decode(&r); err != nil {
		return s, fmt.Errorf("fio: %w: %s", err, out)
	}
	for _, j := range r.Jobs {
		if j.Error != 0 {
			return s, fmt.Errorf("fio: %s: %w", j.Name, syscall.Errno(j.Error))
		}
		if j.Name != "load" {
			continue
		}
		d := j.Read
		if d.IOPS == 0 {
			d = j.Write
		}
		quantile := func(q string) time.Duration { return time.Duration(d.Clat.Percentile[q]) }
		s = sample{rate: d.IOPS, p50: quantile("50.000000"), p99: quantile("99.000000"), p999: quantile("99.900000")}
	}
	if s.rate == 0 {
		return s, errors.New("fio did nothing: " + out)
	}
	return s, nil
}

// --- the servers --------------------------------------------------------------------

// volumeFile is a file for a server to serve: on a disk, through the page
// cache, or in a file system in memory.
func (w *world) volumeFile(store string) (path string, err error) {
	where := ""
	if store != "file" {
		where = "/dev/shm"
	}
	dir, err := os.MkdirTemp(where, "rdsd-bench-")
	if err != nil {
		return "", skip("no place for a volume: %v", err)
	}
	w.dirs = append(w.dirs, dir)
	path = filepath.Join(dir, "volume")
	return path, os.WriteFile(path, make([]byte, volumeBytes), 0o600)
}

// server starts one that listens on a TCP port of loopback, or, with socket, on
// a Unix socket in dir. args gets the port or the path.
func (w *world) server(program string, socket bool, args func(at string) []string) (at string, err error) {
	binary, err := findProgram(program, "/usr/sbin", "/usr/local/bin")
	if err != nil {
		return "", skip("%s: not installed", program)
	}
	network, address := "tcp", ""
	if socket {
		dir, err := w.tempDir()
		if err != nil {
			return "", err
		}
		network, at = "unix", filepath.Join(dir, "s")
		address = at
	} else {
		port, err := freePort()
		if err != nil {
			return "", err
		}
		at = strconv.Itoa(port)
		address = net.JoinHostPort("127.0.0.1", at)
	}
	if _, err := w.start(program, exec.Command(binary, args(at)...), nil); err != nil {
		return "", err
	}
	return at, w.until(program+" listens", func() bool {
		c, err := net.Dial(network, address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func tcpURI(port string) string    { return "nbd://127.0.0.1:" + port + "/" }
func socketURI(path string) string { return "nbd+unix:///?socket=" + path }

func (w *world) nbdkit(store string) (uri string, err error) {
	plugin := []string{"memory", strconv.Itoa(volumeBytes), "allocator=malloc"}
	if store != "memory" {
		path, err := w.volumeFile(store)
		if err != nil {
			return "", err
		}
		plugin = []string{"file", path}
	}
	port, err := w.server("nbdkit", false, func(at string) []string {
		return append([]string{"-f", "-p", at, "-i", "127.0.0.1"}, plugin...)
	})
	return tcpURI(port), err
}

func (w *world) nbdkitChain(store string) (uri string, err error) {
	behind, err := w.nbdkit(store)
	if err != nil {
		return "", err
	}
	at, err := w.server("nbdkit", true, func(at string) []string { return []string{"-f", "-U", at, "nbd", "uri=" + behind} })
	return socketURI(at), err
}

func (w *world) qemuNBD(store string) (uri string, err error) {
	path, err := w.volumeFile(store)
	if err != nil {
		return "", err
	}
	port, err := w.server("qemu-nbd", false, func(at string) []string {
		return []string{"-t", "-e", "4", "-f", "raw", "-b", "127.0.0.1", "-p", at, path}
	})
	return tcpURI(port), err
}

func (w *world) qemuChain(store string) (uri string, err error) {
	behind, err := w.qemuNBD(store)
	if err != nil {
		return "", err
	}
	at, err := w.server("qemu-nbd", true, func(at string) []string { return []string{"-t", "-e", "4", "-f", "raw", "-k", at, behind} })
	return socketURI(at), err
}

// nbdServer forks away from whoever starts it, so it gets a shell in a PID
// namespace of its own, with which it ends.
func (w *world) nbdServer(store string) (uri string, err error) {
	binary, err := findProgram("nbd-server", "/usr/sbin")
	if err != nil {
		return "", skip("nbd-server: not installed")
	}
	if os.Geteuid() != 0 {
		return "", skip("nbd-server: it is kept in a PID namespace, which takes root")
	}
	path, err := w.volumeFile(store)
	if err != nil {
		return "", err
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	config := filepath.Join(filepath.Dir(path), "config")
	if err := os.WriteFile(config, fmt.Appendf(nil, "[generic]\nlistenaddr = 127.0.0.1\nport = %d\n[v]\nexportname = %s\n", port, path), 0o600); err != nil {
		return "", err
	}
	cmd := exec.Command("/bin/sh", "-c", `"$0" -C "$1" && exec sleep 1000`, binary, config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if _, err := w.start("nbd-server", cmd, nil); err != nil {
		return "", err
	}
	return tcpURI(strconv.Itoa(port)) + "v", w.until("nbd-server listens", func() bool {
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}
