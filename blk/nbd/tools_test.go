package nbd

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
)

// The clients people use, against real exports.

// run runs a tool and returns what it printed.
func run(t *testing.T, pkg, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed (Debian package %s, see scripts/setup.sh)", name, pkg)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = t.TempDir()                                                   // fio leaves files behind
	cmd.Env = append(os.Environ(), "PATH=/usr/bin:/bin:"+os.Getenv("PATH")) // nbdsh wants Debian's Python
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %.200s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func uri(socket, export string) string { return "nbd+unix:///" + export + "?socket=" + socket }

// fileVolume is a sparse file as a device.
func fileVolume(t testing.TB, size int64, o blk.FileOptions) *blk.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "volume")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	f, err := blk.OpenFile(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// image is a file of 12 MiB with holes and random data.
func image(t *testing.T) (path string, content []byte) {
	t.Helper()
	content = make([]byte, 12<<20)
	rng := rand.New(rand.NewSource(4))
	for _, at := range []int{0, 3<<20 + 4096, 8 << 20} {
		rng.Read(content[at : at+1<<20])
	}
	path = filepath.Join(t.TempDir(), "image")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for at := 0; at < len(content); at += 4096 {
		if b := content[at : at+4096]; len(bytes.TrimLeft(b, "\x00")) > 0 {
			if _, err := f.WriteAt(b, int64(at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := f.Truncate(int64(len(content))); err != nil {
		t.Fatal(err)
	}
	return path, content
}

func TestNbdinfo(t *testing.T) {
	_, socket := serve(t, Options{},
		Export{Name: "disk", Description: "a disk", Device: memory(t, 1<<30)},
		Export{Name: "frozen", Device: fileVolume(t, 1<<20, blk.FileOptions{LogicalBlock: 4096}), ReadOnly: true})
	var got struct {
		Protocol   string
		Structured bool
		Exports    []map[string]any
	}
	out := run(t, "libnbd-bin", "nbdinfo", "--json", "--list", uri(socket, ""))
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got.Protocol != "newstyle-fixed" || !got.Structured || len(got.Exports) != 2 {
		t.Fatalf("%s", out)
	}
	for i, want := range []map[string]any{
		{"export-name": "disk", "description": "a disk", "export-size": float64(1 << 30), "is_read_only": false, "is_rotational": false,
			"can_cache": true, "can_df": true, "can_fast_zero": true, "can_flush": true, "can_fua": true, "can_multi_conn": true,
			"can_trim": true, "can_zero": true, "block_size_minimum": 512.0, "block_size_preferred": 4096.0, "block_size_maximum": float64(32 << 20)},
		{"export-name": "frozen", "export-size": float64(1 << 20), "is_read_only": true, "can_trim": false, "can_zero": false,
			"can_fast_zero": false, "block_size_minimum": 4096.0},
	} {
		for key, value := range want {
			if got.Exports[i][key] != value {
				t.Errorf("export %d: %s is %v, want %v", i, key, got.Exports[i][key], value)
			}
		}
	}
}

// TestNbdcopy: in, from export to export over several connections, and out again.
func TestNbdcopy(t *testing.T) {
	path, content := image(t)
	m := memory(t, uint64(len(content)))
	_, socket := serve(t, Options{}, Export{Name: "mem", Device: m},
		Export{Name: "file", Device: fileVolume(t, int64(len(content)), blk.FileOptions{})})
	run(t, "libnbd-bin", "nbdcopy", "--flush", path, uri(socket, "mem"))
	if m.Allocated() > 4<<20 {
		t.Errorf("%d bytes are allocated for 3 MiB of data", m.Allocated())
	}
	run(t, "libnbd-bin", "nbdcopy", "--flush", "--connections=4", "--requests=32", uri(socket, "mem"), uri(socket, "file"))
	back := filepath.Join(t.TempDir(), "back")
	run(t, "libnbd-bin", "nbdcopy", uri(socket, "file"), back)
	got, err := os.ReadFile(back)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("what came back differs (%d bytes, %v)", len(got), err)
	}
	if out := run(t, "libnbd-bin", "nbdinfo", "--map", "--totals", uri(socket, "file")); !strings.Contains(out, "hole,zero") || !strings.Contains(out, "data") {
		t.Errorf("nbdinfo --map:\n%s", out)
	}
}

func TestQemuImg(t *testing.T) {
	path, content := image(t)
	_, socket := serve(t, Options{}, Export{Name: "file", Device: fileVolume(t, int64(len(content)), blk.FileOptions{})})
	run(t, "qemu-utils", "qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", path, uri(socket, "file"))
	run(t, "qemu-utils", "qemu-img", "compare", "-s", "-f", "raw", "-F", "raw", path, uri(socket, "file"))
	back := filepath.Join(t.TempDir(), "back.qcow2")
	run(t, "qemu-utils", "qemu-img", "convert", "-f", "raw", "-O", "qcow2", uri(socket, "file"), back)
	run(t, "qemu-utils", "qemu-img", "compare", "-f", "raw", "-F", "qcow2", path, back)
	if out := run(t, "qemu-utils", "qemu-img", "map", "--output=json", "-f", "raw", uri(socket, "file")); !strings.Contains(out, `"zero": true`) || !strings.Contains(out, `"data": true`) {
		t.Errorf("qemu-img map:\n%s", out)
	}
}

func TestQemuIO(t *testing.T) {
	_, socket := serve(t, Options{}, Export{Device: fileVolume(t, 16<<20, blk.FileOptions{})})
	out := run(t, "qemu-utils", "qemu-io", "-f", "raw",
		"-c", "write -P 0x11 0 1M", "-c", "write -f -P 0x22 1M 64k", "-c", "flush",
		"-c", "read -P 0x11 0 1M", "-c", "read -P 0x22 1M 64k",
		"-c", "write -z 64k 64k", "-c", "write -z -u 128k 64k", "-c", "write -z -f 192k 4k", "-c", "write -zn 196k 4k",
		"-c", "read -P 0 64k 136k", "-c", "read -P 0x11 200k 56k",
		"-c", "discard 256k 256k", "-c", "read -P 0x11 512k 512k",
		"-c", "aio_write -P 0x33 2M 4M", "-c", "aio_write -P 0x44 8M 4M", "-c", "aio_flush", "-c", "read -P 0x33 2M 4M", "-c", "read -P 0x44 8M 4M",
		"-c", "read -P 0x22 1M 64k", uri(socket, ""))
	if strings.Contains(out, "Pattern verification failed") || strings.Count(out, "wrote ") != 8 {
		t.Errorf("qemu-io:\n%s", out)
	}
}

// TestNbdsh: libnbd's own checks of what is allowed are off, so that the
// server's are seen.
func TestNbdsh(t *testing.T) {
	_, socket := serve(t, Options{}, Export{Name: "x", Device: fileVolume(t, 16<<20, blk.FileOptions{})})
	out := run(t, "python3-libnbd", "nbdsh", "-c", `
import errno
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri("`+uri(socket, "x")+`")
assert h.get_size() == 16 << 20 and h.get_protocol() == "newstyle-fixed"
assert h.get_structured_replies_negotiated() and h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
assert h.get_block_size(nbd.SIZE_MINIMUM) == 512 and h.can_multi_conn()
h.set_strict_mode(0)

buf = bytes(range(256)) * 256
h.pwrite(buf, 1 << 20, nbd.CMD_FLAG_FUA)
assert h.pread(len(buf), 1 << 20) == buf
assert h.pread(len(buf), 1 << 20, nbd.CMD_FLAG_DF) == buf
h.flush()

def fails(want, f, *args):
    try:
        f(*args)
    except nbd.Error as e:
        assert e.errnum == want, (f, args, e)
        return
    raise AssertionError("%r%r was carried out" % (f, args))
fails(errno.EINVAL, h.pread, 512, 16 << 20)
fails(errno.ENOSPC, h.pwrite, bytes(512), 16 << 20)
fails(errno.EINVAL, h.pread, 100, 3)
fails(errno.EINVAL, h.trim, 512, (16 << 20) - 256)
fails(errno.EINVAL, h.pread, 512, 0, nbd.CMD_FLAG_NO_HOLE)

extents = []
h.block_status(16 << 20, 0, lambda context, offset, entries, err: extents.append((context, offset, list(entries))) or 0)
assert extents == [("base:allocation", 0, [1 << 20, 3, 65536, 0, (15 << 20) - 65536, 3])], extents
h.zero(65536, 1 << 20, nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(len(buf), 1 << 20) == bytes(len(buf))
h.cache(1 << 20, 0)

reads = []
writes = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([i]) * 8192), i * 8192) for i in range(64)]
for cookie in writes:
    while not h.aio_command_completed(cookie):
        h.poll(-1)
for i in range(64):
    b = nbd.Buffer(8192)
    reads.append((h.aio_pread(b, i * 8192), b, i))
for cookie, b, i in reads:
    while not h.aio_command_completed(cookie):
        h.poll(-1)
    assert b.to_bytearray() == bytearray([i]) * 8192, i
h.shutdown()
print("done")
`)
	if !strings.Contains(out, "done") {
		t.Errorf("nbdsh:\n%s", out)
	}
}

// TestFio: random writes of mixed sizes by two connections, each block with its
// checksum, then all of it read back. Writes that overlap are not in flight
// together: with a mixed load or without that, fio finds faults with any server.
func TestFio(t *testing.T) {
	if out := run(t, "fio", "fio", "--enghelp"); !strings.Contains(out, "nbd") {
		t.Skip("elsewhere: this fio has no nbd engine")
	}
	const size = 64 << 20
	for name, d := range map[string]blk.Device{
		"memory": memory(t, size),
		"file":   fileVolume(t, size, blk.FileOptions{}),
		"slow":   jittery(memory(t, size)),
	} {
		t.Run(name, func(t *testing.T) {
			s, socket := serve(t, Options{}, Export{Device: d})
			run(t, "fio", "fio", "--name=verify", "--ioengine=nbd", "--uri="+uri(socket, ""), "--rw=randwrite", "--bsrange=4k-128k", "--serialize_overlap=1",
				"--iodepth=32", "--numjobs=2", "--size=16M", "--offset_increment=32M", "--fsync=64", "--verify=crc32c", "--verify_fatal=1", "--randseed=7")
			if n := s.Stats(); n.Requests < 500 || n.Failed != 0 {
				t.Errorf("%+v", n)
			}
		})
	}
}
