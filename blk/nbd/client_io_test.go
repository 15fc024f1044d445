package nbd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

func dial(t testing.TB, socket, name string) *Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := Dial(ctx, socket, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// TestClientReadsItsWrites: many requests at a time, larger than one may be,
// each block where it belongs.
func TestClientReadsItsWrites(t *testing.T) {
	const size, block = 41 << 20, 512 << 10
	_, socket := serve(t, Options{}, Export{Name: "a/b c", Device: jittery(memory(t, size))})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := DialURI(ctx, URI(socket, "a/b c"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if i := c.Info(); i.Size != size || i.LogicalBlock != 512 || i.MaxBytes != maxPayload || !i.FUA || i.ReadOnly || i.MaxDiscard == 0 {
		t.Errorf("%+v", i)
	}
	want := make([]byte, size)
	rand.New(rand.NewSource(1)).Read(want)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for off := w * block; off < 8<<20; off += 4 * block {
				if _, err := c.WriteAt(want[off:off+block], int64(off)); err != nil {
					t.Errorf("write at %d: %v", off, err)
				}
			}
		})
	}
	wg.Wait()
	// Longer than one request may be.
	if n, err := c.WriteAt(want[8<<20:], 8<<20); n != 33<<20 || err != nil {
		t.Fatal(n, err)
	}
	if err := c.Flush(); err != nil {
		t.Error(err)
	}
	got := make([]byte, size+1)
	if n, err := c.ReadAt(got, 0); n != size || err != io.EOF || !bytes.Equal(got[:size], want) {
		t.Errorf("read %d bytes, %v; equal: %v", n, err, bytes.Equal(got[:size], want))
	}
	if n, err := c.ReadAt(got[:512], size); n != 0 || err != io.EOF {
		t.Errorf("read at the end: %d, %v", n, err)
	}
	if err := c.WriteZeroes(4096, 8192); err != nil {
		t.Error(err)
	}
	if err := c.Trim(size-4096, 4096); err != nil {
		t.Error(err)
	}
	if _, err := c.ReadAt(got[:16384], 0); err != nil || len(bytes.Trim(got[4096:12288], "\x00")) > 0 || !bytes.Equal(got[:4096], want[:4096]) {
		t.Errorf("after write zeroes: %v", err)
	}
	for what, err := range map[string]error{
		"write":  second(c.WriteAt(want[:1024], size-512)),
		"zeroes": c.WriteZeroes(size, 512),
		"trim":   c.Trim(-1, 512),
		"status": second(c.BlockStatus(0, size+1)),
		"read":   second(c.ReadAt(got[:1], -1)),
	} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s beyond the export: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestClientBlockStatus(t *testing.T) {
	m := memory(t, 16<<20)
	_, socket := serve(t, Options{}, Export{Device: m})
	if err := blk.WriteAt(m, make([]byte, 64<<10), 1<<20, 0); err != nil {
		t.Fatal(err)
	}
	c := dial(t, socket, "")
	var got []blk.Extent
	for off := int64(0); off < c.Size(); {
		es, err := c.BlockStatus(off, c.Size()-off)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range es {
			got = append(got, e)
			off += int64(e.Len)
		}
	}
	if len(got) != 3 || got[0] != (blk.Extent{Len: 1 << 20, Hole: true, Zero: true}) || got[1] != (blk.Extent{Len: 64 << 10}) {
		t.Errorf("%+v", got)
	}
}

// TestClientErrors: what the server says is handed on, with its errno.
func TestClientErrors(t *testing.T) {
	f := blk.NewFault(memory(t, 1<<20), 1)
	_, socket := serve(t, Options{}, Export{Name: "x", Device: f}, Export{Name: "ro", Device: memory(t, 4096), ReadOnly: true})
	c := dial(t, socket, "x")
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpRead), Off: 4096, Len: 512, Err: blk.ErrMedium})
	buf := make([]byte, 8192)
	if _, err := c.ReadAt(buf, 0); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "read at 0, 8192 bytes: ") {
		t.Errorf("bad sector: %v", err)
	}
	if _, err := c.ReadAt(buf[:4096], 0); err != nil {
		t.Errorf("beside it: %v", err)
	}
	if _, err := c.ReadAt(buf[:10], 3); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "512") {
		t.Errorf("misaligned: %v", err)
	}
	ro := dial(t, socket, "ro")
	if _, err := ro.WriteAt(buf[:4096], 0); !errors.Is(err, syscall.EPERM) || !ro.Info().ReadOnly {
		t.Errorf("write to a read-only export: %v", err)
	}
	if _, err := Dial(t.Context(), socket, "nope"); !errors.Is(err, rdserr.ErrNotFound) || !strings.Contains(err.Error(), `"nope"`) {
		t.Errorf("unknown export: %v", err)
	}
	if _, err := Dial(t.Context(), socket+".not", ""); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("no socket: %v", err)
	}
	for _, uri := range []string{"nbd://host/x", "nbd+unix:///x", "nbd+unix://host/x?socket=/s", "%", "/dev/null"} {
		if _, err := DialURI(t.Context(), uri); !errors.Is(err, rdserr.ErrInvalid) {
			t.Errorf("%s: %v", uri, err)
		}
	}
}

// TestClientClose: calls that wait end, and so does the connection under them.
func TestClientClose(t *testing.T) {
	for what, end := range map[string]func(*Client, *Server){
		"closed":  func(c *Client, _ *Server) { c.Close() },
		"removed": func(_ *Client, s *Server) { s.Close() },
	} {
		f := blk.NewFault(memory(t, 1<<20), 1)
		s, socket := serve(t, Options{}, Export{Device: f})
		f.Add(blk.Rule{Ops: blk.Ops(blk.OpRead), Stall: true})
		defer f.Release()
		c, err := Dial(t.Context(), socket, "")
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() { got <- second(c.ReadAt(make([]byte, 512), 0)) }()
		waitFor(t, "the read to be held", func() bool { return f.Held() == 1 })
		end(c, s)
		if err := <-got; err == nil {
			t.Errorf("%s: the read succeeded", what)
		}
		c.Close()
		if err := c.Flush(); err == nil {
			t.Errorf("%s: a flush succeeded afterwards", what)
		}
	}
}

func TestClientURI(t *testing.T) {
	for _, c := range []struct{ socket, name, uri string }{
		{"/run/x/nbd", "disk", "nbd+unix:///disk?socket=/run/x/nbd"},
		{"/run/x", "", "nbd+unix:///?socket=/run/x"},
		{"/tmp/a b&c+d", "e f/g%?#", "nbd+unix:///e%20f/g%25%3F%23?socket=/tmp/a%20b%26c%2Bd"},
	} {
		if got := URI(c.socket, c.name); got != c.uri {
			t.Errorf("URI(%q, %q) = %s, want %s", c.socket, c.name, got, c.uri)
		}
		if s, n, err := ParseURI(c.uri); s != c.socket || n != c.name || err != nil {
			t.Errorf("ParseURI(%s) = %q, %q, %v", c.uri, s, n, err)
		}
	}
}

// TestClientOfQemu: a server of other people, which sends holes and errors in
// its own way.
func TestClientOfQemu(t *testing.T) {
	if _, err := exec.LookPath("qemu-nbd"); err != nil {
		t.Skip("qemu-nbd is not installed (Debian package qemu-utils, see scripts/setup.sh)")
	}
	path, content := image(t)
	dir, err := os.MkdirTemp("", "rdsd") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "q")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-nbd", "-t", "-k", socket, "-x", "img", "-f", "raw", "--discard=unmap", path)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); cmd.Wait() }()
	var c *Client
	waitFor(t, "qemu-nbd", func() bool {
		c, err = Dial(ctx, socket, "img")
		return err == nil
	})
	defer c.Close()
	got := make([]byte, len(content))
	if _, err := c.ReadAt(got, 0); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the image is read differently: %v", err)
	}
	holes := 0
	for off := int64(0); off < c.Size(); {
		es, err := c.BlockStatus(off, c.Size()-off)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range es {
			if e.Hole {
				holes++
			}
			off += int64(e.Len)
		}
	}
	if holes == 0 {
		t.Error("the image has no holes")
	}
	if _, err := c.WriteAt(content[:4096], 2<<20); err != nil {
		t.Error(err)
	}
	if err := c.WriteZeroes(0, 1<<20); err != nil {
		t.Error(err)
	}
	if err := c.Flush(); err != nil {
		t.Error(err)
	}
	if _, err := c.ReadAt(got[:1<<20], 0); err != nil || len(bytes.Trim(got[:1<<20], "\x00")) > 0 {
		t.Errorf("after write zeroes: %v", err)
	}
	if t.Failed() {
		t.Log(out.String())
	}
}
