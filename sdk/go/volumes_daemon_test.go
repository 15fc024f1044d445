package rdsd_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// Two daemons: one exports a file, the other maps it; each is killed while the
// volume is in use. What was written is there, and the mapping is back by itself.
func TestVolumesOfRealDaemons(t *testing.T) {
	near, far := rdsdtest.Pair(t)
	ctx := within(t, 60*time.Second)
	nearVol, farVol := near.Dial().Volumes(), far.Dial().Volumes()
	file := filepath.Join(t.TempDir(), "disk")
	const size = 1 << 20
	e, err := farVol.Export(ctx, rdsd.ExportSpec{Name: "disk", Path: file, Create: true, Size: size, Persist: true})
	if err != nil {
		t.Fatal(err)
	}
	if e.Kind != rdsd.KindFile || e.Info == nil || e.Info.Size != size || e.Origin != rdsd.OriginCall || !e.Persist {
		t.Errorf("exported %+v", e)
	}
	if _, err := farVol.Export(ctx, rdsd.ExportSpec{Name: "disk", Path: file}); !errors.Is(err, rdserr.ErrExists) {
		t.Errorf("exported again: %v", err)
	}
	if _, err := nearVol.Map(ctx, rdsd.MapSpec{Node: far.Addr.String(), Name: "else"}); !errors.Is(err, rdserr.ErrNotFound) {
		t.Errorf("mapped what is not there: %v", err)
	}
	m, err := nearVol.Map(ctx, rdsd.MapSpec{Node: far.Addr.String(), Name: "disk", Session: "s", Policy: rdsd.PolicyRoundRobin, Persist: true,
		Paths: []rdsd.PathSpec{{Src: near.Addr.String(), Dst: far.Addr.String()}}})
	if err != nil {
		t.Fatal(err)
	}
	if m.State != rdsd.MappingOpen || m.Attach != rdsd.AttachSocket || m.Info.Size != size || m.Policy != rdsd.PolicyRoundRobin || m.Session != "s" {
		t.Errorf("mapped %+v", m)
	}
	want := bytes.Repeat([]byte("rdsd"), 1024)
	write(t, m, 0, want)

	added, err := nearVol.AddPath(ctx, "s", rdsd.PathSpec{Src: "127.0.0.1", Dst: far.Addr.String()})
	if err != nil || added.Session != "s" {
		t.Fatalf("added %+v, %v", added, err)
	}
	paths, err := nearVol.Paths(ctx, "s")
	if err != nil || len(paths) != 2 {
		t.Fatalf("paths %+v, %v", paths, err)
	}
	for _, p := range rtrs.Policies() {
		for _, said := range []string{p.Kernel, p.Short, p.Name} {
			if err := nearVol.SetPolicy(ctx, "s", rdsd.VolumePolicy(said)); said != "" && err != nil {
				t.Errorf("%q: %v", said, err)
			}
			sessions, err := nearVol.Sessions(ctx)
			if err != nil || len(sessions) != 1 || said != "" && string(sessions[0].Policy) != p.Name || !sessions[0].Up || sessions[0].Paths != 2 {
				t.Errorf("%q: sessions %+v, %v", said, sessions, err)
			}
		}
	}
	if err := nearVol.SetPolicy(ctx, "s", "best"); !errors.Is(err, rdserr.ErrInvalid) || !strings.Contains(err.Error(), "want "+rtrs.PolicyNames()) {
		t.Errorf("a policy that there is not: %v", err)
	}
	if err := nearVol.ResetStats(ctx, "s", rdsd.PathSpec{}); err != nil {
		t.Error(err)
	}

	// The exporting daemon dies and comes back: the volume is closed and open.
	events := nearVol.Watch(ctx)
	far.Kill()
	far.Run()
	states := map[string]bool{}
	for e, err := range events {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == rdsd.EventMapping && e.Mapping == m.ID {
			states[e.State] = true
		}
		if states["closed"] && states["open"] {
			break
		}
	}
	if got := read(t, m, 0, len(want)); !bytes.Equal(got, want) {
		t.Error("what was written before the exporting daemon died is not there")
	}

	// The mapping daemon dies: the socket is back at its place by itself.
	near.Kill()
	near.Run()
	nearVol = near.Dial().Volumes()
	again := m
	for ; again.State != rdsd.MappingOpen || again == m; time.Sleep(5 * time.Millisecond) {
		if again, err = nearVol.Mapping(ctx, m.ID); err != nil {
			t.Fatal(err)
		}
	}
	if again.Device != m.Device || again.URI != m.URI {
		t.Errorf("mapped at %s, was at %s", again.URI, m.URI)
	}
	write(t, m, size-len(want), want)
	if got := read(t, m, 0, len(want)); !bytes.Equal(got, want) {
		t.Error("what was written before the mapping daemon died is not there")
	}
	if err := nearVol.Unmap(ctx, "no such", false); !errors.Is(err, rdserr.ErrNotFound) {
		t.Errorf("unmap of nothing: %v", err)
	}
	err = rdserr.ErrBusy
	for errors.Is(err, rdserr.ErrBusy) && ctx.Err() == nil { // until the daemon has seen that we have left
		err = nearVol.Unmap(ctx, m.ID, false)
	}
	if err != nil {
		t.Error(err)
	}
	onDisk, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(onDisk[size-len(want):], want) {
		t.Errorf("the file does not hold what was written last: %v", err)
	}
}

func dialVolume(t *testing.T, m *rdsd.Mapping) *nbd.Client {
	t.Helper()
	c, err := nbd.DialURI(within(t, 20*time.Second), m.URI)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func write(t *testing.T, m *rdsd.Mapping, off int, p []byte) {
	t.Helper()
	c := dialVolume(t, m)
	defer c.Close()
	if _, err := c.WriteAt(p, int64(off)); err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, m *rdsd.Mapping, off, n int) []byte {
	t.Helper()
	c := dialVolume(t, m)
	defer c.Close()
	p := make([]byte, n)
	if _, err := c.ReadAt(p, int64(off)); err != nil {
		t.Fatal(err)
	}
	return p
}

// The example that maps, until it is interrupted.
func TestMapvolumeExample(t *testing.T) {
	near, far := rdsdtest.Pair(t)
	ctx := within(t, 30*time.Second)
	if _, err := far.Dial().Volumes().Export(ctx, rdsd.ExportSpec{Name: "mem", Kind: rdsd.KindMemory, Size: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, rdsdtest.Build(t, "github.com/rdsd/rdsd/sdk/go/examples/mapvolume"), far.Addr.String(), "mem")
	cmd.Env = append(os.Environ(), "RDSD_SOCKET="+near.Socket)
	w := &lineWriter{lines: make(chan string, 100)}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	wantLine(t, w.lines, " has 1048576 bytes$")
	wantLine(t, w.lines, " is open$")
	_ = cmd.Process.Signal(syscall.SIGINT)
	wantLine(t, w.lines, " is gone$")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if _, left, err := near.Dial().Volumes().List(context.WithoutCancel(ctx)); err != nil || len(left) != 0 {
		t.Errorf("left: %+v, %v", left, err)
	}
}
