package volume

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// illDisk is a directory that can be written to, and whose file cannot be read, or not set aside.
type illDisk struct {
	Disk
	read   func() error // before it is; an error: it is not
	aside  error
	closed *atomic.Bool
}

func (d illDisk) Close() {
	d.Disk.Close()
	d.closed.Store(true)
}

func (d illDisk) Read() ([]byte, error) {
	if err := d.read(); err != nil {
		return nil, err
	}
	return d.Disk.Read()
}

func (d illDisk) SetAside() (string, error) { return "", d.aside }

// TestStateThatIsNotRead: a file system that fails, or stands still, keeps nobody from starting. What is persistent
// is not there and nothing can be, nobody is let in whom the state would have to name, and the file is the same for
// the next start.
func TestStateThatIsNotRead(t *testing.T) {
	var closed atomic.Bool
	ill := func(dir string, read func() error, aside error) (Disk, error) {
		d, err := openDisk(dir)
		return illDisk{d, read, aside, &closed}, err
	}
	well := func() error { return nil }
	for _, c := range []struct {
		what  string
		disk  func(dir string, still <-chan struct{}) (Disk, error)
		file  string // "": what an earlier Host has left
		errno syscall.Errno
	}{
		{"a directory that gives EIO", func(string, <-chan struct{}) (Disk, error) { closed.Store(true); return nil, syscall.EIO }, "", syscall.EIO},
		{"a file that gives EIO", func(dir string, _ <-chan struct{}) (Disk, error) {
			return ill(dir, func() error { return syscall.EIO }, nil)
		}, "", syscall.EIO},
		{"a directory that stands still", func(dir string, still <-chan struct{}) (Disk, error) { <-still; return ill(dir, well, nil) }, "", syscall.ETIMEDOUT},
		{"a file that stands still", func(dir string, still <-chan struct{}) (Disk, error) {
			return ill(dir, func() error { <-still; return nil }, nil)
		}, "", syscall.ETIMEDOUT},
		{"one that cannot be set aside", func(dir string, _ <-chan struct{}) (Disk, error) { return ill(dir, well, syscall.EROFS) }, "{", syscall.EROFS},
	} {
		t.Run(c.what, func(t *testing.T) {
			port := freePort(t)
			server, client := newServerNode(t, port), newClientNode(t, port)
			server.start()
			kept := file(t, "kept", 1<<20)
			kept.Persist = true
			mustExport(t, server.h, kept)
			server.stop()
			name := filepath.Join(server.cfg.StateDir, stateFile)
			if c.file != "" {
				if err := os.WriteFile(name, []byte(c.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			before, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			server.cfg.Exports = []ExportSpec{file(t, "disk", 1<<20)}
			closed.Store(false)
			still := make(chan struct{})
			h := hasty(server, func(m *Machine) { m.Disk = func(dir string) (Disk, error) { return c.disk(dir, still) } })
			is(t, "the state", stateError(h), c.errno, "volumes.state_dir")
			if l, err := h.Check(testCtx(t), ""); err != nil || !slices.ContainsFunc(l, func(f Finding) bool {
				return f.What == "state" && f.Severity == SeverityError && strings.Contains(f.Fix, "start the daemon again")
			}) {
				t.Errorf("check says %+v, %v", l, err)
			}
			more := file(t, "more", 1<<20)
			more.Persist = true
			_, err = h.Export(testCtx(t), more)
			is(t, "a persistent export", err, c.errno, "volumes.state_dir")
			if l := h.Exports(); len(l) != 1 || l[0].Name != "disk" {
				t.Errorf("there are %+v", l)
			}
			client.start()
			_, err = client.h.Map(testCtx(t), MapSpec{Node: server.node(), Name: "disk"})
			is(t, "a writer", err, syscall.EIO, "disk")
			mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Access: AccessRO})
			close(still)
			is(t, "the stop", h.Close(testCtx(t)), c.errno, "volumes.state_dir")
			eventually(t, "the directory is given back", closed.Load)
			if after, err := os.ReadFile(name); err != nil || string(after) != string(before) {
				t.Fatalf("the file was written over (%v): %s", err, after)
			}
			if c.file != "" {
				return
			}
			server.start()
			if l := server.h.Exports(); len(l) != 2 || stateError(server.h) != nil {
				t.Errorf("the next start has %+v, %v", l, stateError(server.h))
			}
		})
	}
}

// TestStateOnAReadOnlyFileSystem: what was written before it became so is taken up, and no other daemon takes it.
func TestStateOnAReadOnlyFileSystem(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "disk", 1<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Persist: true})
	if err := writePattern(open(t, m), 0, 4096, 1, 4096); err != nil { // not flushed, else the mapping waits until the state says so
		t.Fatal(err)
	}
	client.stop()
	readOnly := func(name string, flag int, mode os.FileMode) (*os.File, error) {
		if flag&(os.O_RDWR|os.O_CREATE) != 0 {
			return nil, &os.PathError{Op: "open", Path: name, Err: syscall.EROFS}
		}
		return os.OpenFile(name, flag, mode)
	}
	h := hasty(client, func(m *Machine) {
		m.Disk = func(dir string) (Disk, error) {
			d, err := openDirectory(dir, readOnly)
			if err != nil {
				return nil, err
			}
			d.replace = func(string, []byte) error { return syscall.EROFS }
			return d, nil
		}
	})
	user, _ := opensAgain(t, m)
	if err := checkPattern(user, 0, 4096, 1, 4096); err != nil {
		t.Error(err)
	}
	user.Close()
	eventually(t, "it is told", func() bool { return errors.Is(stateError(h), syscall.EROFS) })
	if _, err := openDirectory(client.cfg.StateDir, readOnly); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("another daemon takes the directory: %v", err)
	}
	is(t, "the stop", h.Close(testCtx(t)), syscall.EROFS, "volumes.state_dir")
	if err := os.Remove(filepath.Join(client.cfg.StateDir, "volumes.lock")); err != nil {
		t.Fatal(err)
	}
	if _, err := openDirectory(client.cfg.StateDir, readOnly); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a directory that was never used: %v", err)
	}
}

// TestDirectoryOfOneThatEnds: a daemon that was killed has its lock for a moment yet.
func TestDirectoryOfOneThatEnds(t *testing.T) {
	dir := t.TempDir()
	before, err := openDisk(dir)
	if err != nil {
		t.Fatal(err)
	}
	ended := time.AfterFunc(50*time.Millisecond, func() { before.Close() })
	defer ended.Stop()
	after, err := openDisk(dir)
	if err != nil {
		t.Fatalf("the next one: %v", err)
	}
	after.Close()
}

// TestStateThatEndsTheStart: what is wrong with the configuration, and what the system lacks for a moment.
func TestStateThatEndsTheStart(t *testing.T) {
	for _, want := range []error{syscall.EBUSY, syscall.ENOTDIR, syscall.EACCES, syscall.EPERM, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		m := thisMachine(nil)
		m.Disk = func(dir string) (Disk, error) { return nil, &os.PathError{Op: "open", Path: dir, Err: want} }
		if _, _, err := openStore(m, nil, "/any", ""); !errors.Is(err, want) {
			t.Errorf("%v: %v", want, err)
		}
	}
}

// TestStateThatIsNotReadAndMappings: who goes on with a mapping of before would not learn what a Host that does not know
// of it has done in its name. Such a Host maps nothing, and asks no other node about a volume.
func TestStateThatIsNotReadAndMappings(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	ctx := testCtx(t)
	mustExport(t, server.h, file(t, "disk", 1<<20))
	disk := MapSpec{Node: server.node(), Name: "disk", Persist: true}
	m := mustMap(t, client.h, disk)
	if err := writePattern(open(t, m), 0, 4096, 1, 4096); err != nil {
		t.Fatal(err)
	}
	client.stop()
	h := hasty(client, func(m *Machine) { m.Disk = func(string) (Disk, error) { return nil, syscall.EIO } })
	for _, s := range []MapSpec{
		{},
		{Access: AccessRO},
		{Access: AccessMigration, Session: "another"},
		{ID: "mine", Socket: m.Socket},
	} {
		s.Node, s.Name = disk.Node, disk.Name
		i, err := h.Map(ctx, s)
		is(t, "a mapping", err, syscall.EIO, "volumes.state_dir")
		if err != nil {
			continue
		}
		if err := writePattern(open(t, i), 0, 4096, 9, 4096); err != nil && s.Access != AccessRO {
			t.Error(err)
		}
		if err := h.Unmap(ctx, i.ID, true); err != nil {
			t.Error(err)
		}
	}
	_, err := h.RemoteInfo(ctx, disk)
	is(t, "a question", err, syscall.EIO, "volumes.state_dir")
	if l := h.Mappings(); len(l) != 0 {
		t.Errorf("there are %+v", l)
	}
	is(t, "the stop", h.Close(ctx), syscall.EIO, "volumes.state_dir")
	client.start()
	if i := back(t, client, m.ID); i.State != StateOpen {
		t.Errorf("back as %v, %q", i.State, i.LastError)
	}
	user, _ := opensAgain(t, m)
	if err := checkPattern(user, 0, 4096, 1, 4096); err != nil {
		t.Errorf("as if nobody had written: %v", err)
	}
}

// TestStateSetAsideAndSockets: a program that waits for its mapping's socket to be back does not reach another volume of
// that name by it, when the daemon does not know any more that there was one.
func TestStateSetAsideAndSockets(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "disk", 1<<20))
	mustExport(t, server.h, file(t, "more", 1<<20))
	disk := MapSpec{Node: server.node(), Name: "disk", Access: AccessRO, Persist: true}
	before := mustMap(t, client.h, disk)
	client.stop()
	if err := os.WriteFile(filepath.Join(client.cfg.StateDir, stateFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	ids := []string{before.ID}
	for _, name := range []string{"disk", "more"} { // the second by a start that knows of the first
		client.start()
		m := mustMap(t, client.h, MapSpec{Node: disk.Node, Name: name, Access: AccessRO, Persist: true})
		if m.Socket == before.Socket || slices.Contains(ids, m.ID) {
			t.Errorf("%s is %s at %s, and %v were there before, %s", name, m.ID, m.Socket, ids, before.Socket)
		}
		ids = append(ids, m.ID)
		client.stop()
	}
}

// stateError is what is wrong with what is persistent; nil: nothing.
func stateError(h *Host) (err error) {
	for _, t := range h.StateTroubles() {
		err = errors.Join(err, t.Err)
	}
	return err
}
