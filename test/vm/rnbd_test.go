package vm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The kernel's RNBD, both ends, and what uses a disk.

// mapping has one scenario at a time find out which disk is its new one.
var mapping sync.Mutex

const rnbdCtl = "/sys/class/rnbd-client/ctl/map_device"

// mapSpec says what the kernel's client maps.
type mapSpec struct {
	session, device string
	paths           []string // "source@destination" or "destination"
	more            string   // further options
}

// kernelMap has the kernel's rnbd-client map a volume and returns its disk. At the test's end
// it is unmapped.
func kernelMap(t *testing.T, m mapSpec) string {
	t.Helper()
	mapping.Lock()
	defer mapping.Unlock()
	before := disks(t)
	spec := "sessname=" + m.session
	for _, p := range m.paths {
		src, dst, ok := strings.Cut(p, "@")
		if ok {
			spec += fmt.Sprintf(" path=ip:%s@ip:%s", src, dst)
		} else {
			spec += " path=ip:" + p
		}
	}
	spec += " device_path=" + m.device
	if m.more != "" {
		spec += " " + m.more
	}
	if err := write(rnbdCtl, spec); err != nil {
		t.Fatalf("map %q: %v", spec, err)
	}
	for _, d := range disks(t) {
		if !slices.Contains(before, d) {
			t.Cleanup(func() { kernelUnmap(t, d) })
			return d
		}
	}
	t.Fatalf("map %q: no disk", spec)
	return ""
}

// kernelUnmap has the kernel's client give up a disk, if it has not.
func kernelUnmap(t *testing.T, disk string) {
	t.Helper()
	at := filepath.Join("/sys/block", filepath.Base(disk), "rnbd/unmap_device")
	if _, err := os.Stat(at); err != nil {
		return
	}
	// It is busy for a moment when somebody has just closed it.
	var err error
	for begun := time.Now(); time.Since(begun) < 10*time.Second; time.Sleep(100 * time.Millisecond) {
		if err = write(at, "normal"); err == nil {
			return
		}
	}
	t.Errorf("unmap %s: %v", disk, err)
}

// kernelPaths returns the directories of the paths of a session of the kernel's client.
func kernelPaths(t *testing.T, session string) []string {
	t.Helper()
	list, err := filepath.Glob("/sys/class/rtrs-client/" + session + "/paths/*")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// inState waits until a path of the kernel's client is in a state.
func inState(t *testing.T, path, state string, limit time.Duration) {
	t.Helper()
	until(t, filepath.Base(path)+" "+state, limit, func() bool { return read(t, path+"/state") == state })
}

// disks lists the disks of the kernel's client.
func disks(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob("/dev/rnbd*")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// fio writes and reads a disk at random for so many mebibytes and verifies every block by its
// checksum, while it runs and at the end. It has to find no difference.
func fio(t *testing.T, disk string, mib int) *process {
	t.Helper()
	return start(t, fioArgs(disk, mib)...)
}

func fioArgs(disk string, mib int) []string {
	return []string{
		"fio", "--name=verify", "--filename=" + disk, "--direct=1", "--ioengine=libaio", "--iodepth=16",
		"--rw=randrw", "--bsrange=4k-64k", fmt.Sprintf("--size=%dm", mib), "--verify=crc32c", "--verify_fatal=1",
		"--verify_backlog=64", "--fallocate=none", "--thread", "--minimal",
	}
}

// traffic is fio again and again until it is stopped.
type traffic struct {
	*process
	disk  string
	end   string // a file that ends it
	begun time.Time
}

// busy begins traffic on a disk, with what fio is told besides.
func busy(t *testing.T, disk string, more ...string) *traffic {
	t.Helper()
	w := &traffic{disk: disk, end: filepath.Join(t.TempDir(), "end"), begun: time.Now()}
	one := strings.Join(append(fioArgs(disk, 4), more...), " ")
	w.process = start(t, "sh", "-c", fmt.Sprintf("while [ ! -e %s ]; do %s || exit 1; done", w.end, one))
	w.goesOn(30 * time.Second)
	return w
}

// goesOn waits until the disk has completed some requests more.
func (w *traffic) goesOn(limit time.Duration) {
	w.t.Helper()
	from := w.completed()
	until(w.t, "the traffic goes on", limit, func() bool {
		select {
		case <-w.done:
			w.t.Fatalf("the traffic has ended: %v\n%s", w.err, w.said())
		default:
		}
		return w.completed() > from+40
	})
}

// completed is how many reads and writes the disk has completed.
func (w *traffic) completed() (n int) {
	f := strings.Fields(read(w.t, "/sys/block/"+filepath.Base(w.disk)+"/stat"))
	for _, i := range []int{0, 4} {
		v, err := strconv.Atoi(f[i])
		if err != nil {
			w.t.Fatal(err)
		}
		n += v
	}
	return n
}

// stop ends the traffic, which must have found no difference.
func (w *traffic) stop(limit time.Duration) {
	w.t.Helper()
	if err := os.WriteFile(w.end, nil, 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.wait(limit)
}

// fileSystem makes an ext4 on a disk, copies a tree of files there, and compares it after
// another mount.
func fileSystem(t *testing.T, disk string) {
	t.Helper()
	from, at := filepath.Join(t.TempDir(), "tree"), t.TempDir()
	rnd := rand.NewChaCha8([32]byte{1})
	for i := range 40 {
		dir := filepath.Join(from, fmt.Sprint(i%7))
		content := make([]byte, i*i*100) // up to 150 KB
		_, _ = rnd.Read(content)         // never fails
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, fmt.Sprint("file", i)), content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", disk)
	run(t, "mount", disk, at)
	undo(t, "umount", "-l", at)
	run(t, "cp", "-a", from, at)
	run(t, "umount", at)
	run(t, "mount", disk, at)
	run(t, "diff", "-r", from, filepath.Join(at, "tree"))
	run(t, "umount", at)
	run(t, "e2fsck", "-f", "-n", disk)
}
