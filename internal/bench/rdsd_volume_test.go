package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
)

// Volumes of rdsd: one daemon exports, the other one maps over TCP on loopback.

// volumesBuilt tells whether the program has volumes yet.
var volumesBuilt = sync.OnceValue(func() error {
	out, err := exec.Command(rdsdBinary, "serve", "--help").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--volume-port") {
		return skip("this rdsd has no volumes")
	}
	return nil
})

// volumeDaemons starts two daemons, the first of which maps what the second one exports. env is
// what the environment tells them.
func (w *world) volumeDaemons(env ...string) ([]*daemon, error) {
	if rdsdBinary == "" {
		return nil, skip("no rdsd program")
	}
	if err := volumesBuilt(); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	return w.daemonsWith([]string{"--volume-port", strconv.Itoa(port)}, env, nodeA, nodeB)
}

// volume runs rdsd volume and returns what it prints.
func (d *daemon) volume(args ...string) (string, error) {
	cmd := exec.Command(rdsdBinary, append([]string{"volume", "--socket", d.target}, args...)...)
	var warn strings.Builder
	cmd.Stderr = &warn
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("rdsd volume %s: %w: %s", strings.Join(args, " "), err, warn.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// mappedVolume exports a volume at one daemon, maps it at another, over TCP or over RoCEv2 in
// user space, and writes it.
func (w *world) mappedVolume(store, over string) (ds []*daemon, uri string, err error) {
	var env []string
	from := nodeB + ":v"
	if over == overRoCE {
		if err := rocePort(nodeA, nodeB); err != nil {
			return nil, "", err
		}
		env, from = []string{"RDSD_VOLUMES_RDMA=soft"}, "ib:"+from
	}
	if ds, err = w.volumeDaemons(env...); err != nil {
		return nil, "", err
	}
	what := []string{"--memory", "--size", strconv.Itoa(volumeBytes)}
	if store != "memory" {
		path, err := w.volumeFile(store)
		if err != nil {
			return nil, "", err
		}
		what = []string{path}
	}
	if _, err := ds[1].volume(append([]string{"export", "v"}, what...)...); err != nil {
		return nil, "", err
	}
	if uri, err = ds[0].volume("map", from, "--as", "socket"); err != nil {
		return nil, "", err
	}
	return ds, uri, useVolume(uri, volumeBytes)
}

// rdsdVolume measures a mapped volume.
func rdsdVolume(store, over string, l ioLoad) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		w := newWorld(d)
		defer w.close()
		_, uri, err := w.mappedVolume(store, over)
		if err != nil {
			return sample{}, err
		}
		f, err := w.fio(uri, l, d, false)
		if err != nil {
			return sample{}, err
		}
		return w.fioDone(f)
	}
}

// rdsdVolumeAllocs measures what the daemons allocate meanwhile. A look at their
// metrics allocates thousands of objects itself, more after a pause: the window
// is long, and what the same looks cost without load is taken off.
func rdsdVolumeAllocs(store string, l ioLoad) func(time.Duration) (sample, error) {
	return func(d time.Duration) (sample, error) {
		window := 8 * d
		w := newWorld(window)
		defer w.close()
		ds, uri, err := w.mappedVolume(store, overTCP)
		if err != nil {
			return sample{}, err
		}
		during := func(d time.Duration) (objects float64, err error) {
			before, err1 := mallocs(ds)
			time.Sleep(d)
			after, err2 := mallocs(ds)
			return after - before, errors.Join(err1, err2)
		}
		var idle []float64
		for range 5 {
			n, err := during(d)
			if err != nil {
				return sample{}, err
			}
			idle = append(idle, n)
		}
		before := ds[1].cpu()
		f, err := w.fio(uri, l, window+2*d+time.Second, false)
		if err != nil {
			return sample{}, err
		}
		if err := w.until("fio begins", func() bool { return ds[1].cpu() > before+10*time.Millisecond }); err != nil {
			return sample{}, err
		}
		time.Sleep(d)
		n, err := during(window)
		if err != nil {
			return sample{}, err
		}
		s, err := w.fioDone(f)
		s.allocs = max(0, n-median(idle)) / (s.rate * window.Seconds())
		return s, err
	}
}

// useVolume writes the first bytes of a mapped volume, several requests at a time.
func useVolume(uri string, bytes int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := nbd.DialURI(ctx, uri)
	if err != nil {
		return fmt.Errorf("%s: %w", uri, err)
	}
	defer c.Close()
	const piece = 1 << 20
	failed := make(chan error, bytes/piece)
	limit := make(chan struct{}, 8)
	for off := 0; off < bytes; off += piece {
		limit <- struct{}{}
		go func() { // ends with the request; Close ends that
			_, err := c.WriteAt(make([]byte, piece), int64(off))
			failed <- err
			<-limit
		}()
	}
	for range bytes / piece {
		err = errors.Join(err, <-failed)
	}
	return err
}

// rdsdIdleVolumes measures what a session takes that was used and is idle, in
// the one of the two daemons in which it takes more.
func rdsdIdleVolumes(d time.Duration) (sample, error) {
	const sessions = 24
	w := newWorld(d)
	defer w.close()
	ds, err := w.volumeDaemons()
	if err != nil {
		return sample{}, err
	}
	dir, err := w.tempDir()
	if err != nil {
		return sample{}, err
	}
	one := func(i int) error {
		name := "v" + strconv.Itoa(i)
		path := filepath.Join(dir, name+".volume")
		if err := os.WriteFile(path, make([]byte, 8<<20), 0o600); err != nil {
			return err
		}
		if _, err := ds[1].volume("export", name, path); err != nil {
			return err
		}
		uri, err := ds[0].volume("map", nodeB+":"+name, "--as", "socket", "--session", name)
		if err != nil {
			return err
		}
		return useVolume(uri, 8<<20)
	}
	if err := one(0); err != nil { // what is there once comes with the first
		return sample{}, err
	}
	before, err := w.settled(ds)
	if err != nil {
		return sample{}, err
	}
	for i := range sessions {
		if err := one(i + 1); err != nil {
			return sample{}, err
		}
	}
	after, err := w.settled(ds)
	if err != nil {
		return sample{}, err
	}
	return sample{rate: max(after[0]-before[0], after[1]-before[1], 0.001) / sessions}, err
}

// settled is the resident memory of each daemon, MiB, when nothing was asked of
// it for a while: after 10 s the pages of a session's chunks are given back.
func (w *world) settled(ds []*daemon) (list []float64, err error) {
	time.Sleep(13 * time.Second)
	for _, p := range ds {
		n, err := anonymous(p.cmd.Process.Pid)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, w.dead()
}

// anonymous is the memory of a process that is no file's, MiB.
func anonymous(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	sum := 0.
	for line := range strings.Lines(string(b)) {
		name, rest, _ := strings.Cut(line, ":")
		if name != "RssAnon" && name != "RssShmem" {
			continue
		}
		kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
		if err != nil {
			return 0, err
		}
		sum += kb / 1024
	}
	return sum, nil
}
