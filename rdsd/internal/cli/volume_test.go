package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdsd/internal/image"
	"github.com/rdsd/rdsd/rdserr"
)

func TestParseVolume(t *testing.T) {
	for _, c := range []struct{ in, node, name string }{
		{"store:disk", "store", "disk"},
		{"10.0.0.7:disk", "10.0.0.7", "disk"},
		{"10.0.0.7:99:a/b", "10.0.0.7:99", "a/b"},
		{"[fd00::7]:disk", "fd00::7", "disk"},
		{"[fd00::7]:99:disk", "[fd00::7]:99", "disk"},
	} {
		node, name, err := parseVolume("V", c.in)
		if node != c.node || name != c.name || err != nil {
			t.Errorf("%s: %q, %q, %v", c.in, node, name, err)
		}
		if back := volumeText(node, name); back != c.in {
			t.Errorf("%s comes back as %s", c.in, back)
		}
	}
	for _, s := range []string{"", "x", ":", "x:", ":x", "x:0:y", "x:y:z", "x:1:", "[::1]", "[::1]x", "[::1]:", "[::1", "[1.2.3.4]:x", "fd00::7:x", "a b:x", "a/b:x"} {
		if node, name, err := parseVolume("V", s); exitOf(err) != exitUsage {
			t.Errorf("%q: %q, %q, %v", s, node, name, err)
		}
	}
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]uint64{
		"0": 0, "512": 512, "4k": 4096, "512M": 512 << 20, "1.5G": 3 << 29, "10GiB": 10 << 30, "2TiB": 2 << 40, "2tib": 2 << 40, " 1G ": 1 << 30, "8P": 8 << 50, "7B": 7,
	} {
		if got, err := parseSize("S", s); got != want || err != nil {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "G", "-1", "1e3", "1.2.3", "0.3", "9000000P", "1X", "1GB", "1kB", "1.5MB", "KB", "1IB", "1I", "1KKB", "1GBB", "1BB", "1/2", "0x10", "1 G", "∞", strings.Repeat("9", 40)} {
		if got, err := parseSize("S", s); exitOf(err) != exitUsage {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
	for n, want := range map[uint64]string{0: "0 B", 512: "512 B", 4096: "4 KiB", 20 << 30: "20 GiB", 3 << 29: "1536 MiB", 1000: "1000 B", 3_000_000: "2.9 MiB (3000000 bytes)"} {
		if got := sizeText(n); got != want {
			t.Errorf("sizeText(%d) = %q, want %q", n, got, want)
		}
	}
}

// TestVolumeExitCodes: what a daemon says of volumes, in exit codes.
func TestVolumeExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{rdserr.ErrNotFound, exitMissing}, {rdserr.ErrExists, exitExists}, {rdserr.ErrBusy, exitBusy}, {rdserr.ErrPerm, exitDenied},
		{rdserr.ErrOwned, exitDenied}, {rdserr.ErrReadOnly, exitDenied}, {rdserr.ErrNoSpace, exitFailed}, {rdserr.ErrTimeout, exitTimeout},
		{syscall.EIO, exitFailed}, {&image.Different{}, exitFailed},
	} {
		if got := exitOf(c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
	}
}

func TestBar(t *testing.T) {
	for _, c := range []struct {
		done, total int64
		took        time.Duration
		width       int
		want        string
	}{
		{0, 1 << 30, 0, 80, "copying   [" + strings.Repeat("-", 40) + "]   0%  0 B of 1.0 GiB"},
		{1 << 29, 1 << 30, 2 * time.Second, 80, "copying   [#########---------]  50%  512.0 MiB of 1.0 GiB  256.0 MiB/s  2s left"},
		{1 << 29, 1 << 30, 2 * time.Second, 60, "copying     50%  512.0 MiB of 1.0 GiB  256.0 MiB/s  2s left"[:59]},
		{0, 0, time.Second, 60, "copying   [##############################] 100%  0 B of 0 B"},
		{1, 2, time.Second, 0, ""},
	} {
		got := bar("copying", c.done, c.total, c.took, c.width)
		if got != c.want && c.want != "" || len(got) >= max(1, c.width) {
			t.Errorf("%d of %d: %q (%d columns), want %q", c.done, c.total, got, len(got), c.want)
		}
	}
}

// TestProgress: without a terminal nothing is shown, with --json lines are.
func TestProgress(t *testing.T) {
	var out, errw bytes.Buffer
	a := &app{out: &out, err: &errw}
	m := new(image.Meter)
	m.Done.Store(5)
	p := a.showProgress(m, 10)
	p.stop()
	if out.Len()+errw.Len() > 0 {
		t.Errorf("no terminal: %q, %q", &out, &errw)
	}
	a.json = true
	p = a.showProgress(m, 10)
	p.draw(p.start.Add(time.Second))
	p.stop()
	var v progressView
	if err := json.NewDecoder(&out).Decode(&v); err != nil || v != (progressView{"copying", 5, 10, duration(time.Second)}) {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := out.ReadByte(); !errors.Is(err, io.EOF) || errw.Len() > 0 {
		t.Errorf("more than a line: %q", &errw)
	}
	a.json = false
	p = &progress{a: a, meter: m, total: 10, width: 60, start: time.Now(), end: make(chan struct{})}
	p.draw(p.start)
	p.stop()
	if got := errw.String(); !strings.HasPrefix(got, "\r\x1b[Kcopying   [") || !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("on a terminal: %q", got)
	}
}

// TestCopyErrorLeavesWhatIsWhole: a file that got everything stays, whatever becomes of comparing it.
func TestCopyErrorLeavesWhatIsWhole(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx    context.Context
		copied bool
		err    error
		code   int
		says   string
	}{
		{t.Context(), true, &image.Different{Off: 5}, exitIncomplete, "was copied to b, but the target differs"},
		{ended, true, context.Canceled, exitInterrupted, "was copied to b; comparing them was interrupted"},
		{t.Context(), true, syscall.EIO, exitFailed, "was copied to b; comparing them: input/output error"},
		{ended, false, context.Canceled, exitInterrupted, "the copy was interrupted; b was removed"},
		{t.Context(), false, syscall.EIO, exitFailed, "input/output error; b was removed"},
	} {
		file := filepath.Join(t.TempDir(), "b")
		f, err := image.Create(file, 512, false)
		if err != nil {
			t.Fatal(err)
		}
		err = copyError(c.ctx, &operand{arg: "a"}, &operand{arg: "b", target: f}, c.copied, c.err)
		f.Close()
		_, lost := os.Stat(file)
		if exitOf(err) != c.code || !strings.Contains(err.Error(), c.says) || (lost == nil) != c.copied {
			t.Errorf("%v, copied %v: %v (%d), the file: %v", c.err, c.copied, err, exitOf(err), lost)
		}
	}
}
