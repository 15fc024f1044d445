package volume

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
)

// otherWrites has another node map disk of server, write there, and unmap it.
func otherWrites(t *testing.T, server *testNode) {
	t.Helper()
	o := newClientNode(t, server.cfg.Port)
	o.cfg.Name = "other"
	o.start()
	m := mustMap(t, o.h, MapSpec{Node: server.node(), Name: "disk"})
	c := open(t, m)
	if err := writePattern(c, 0, 4096, 9, 4096); err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := o.h.Unmap(testCtx(t), m.ID, true); err != nil {
		t.Fatal(err)
	}
	o.stop()
}

// back waits until a mapping is there again and returns how it stands.
func back(t *testing.T, n *testNode, id string) (i MappingInfo) {
	t.Helper()
	eventually(t, id+" is back", func() bool {
		var err error
		i, err = n.h.Mapping(id)
		return err == nil && i.State != StateInit && (i.State != StateOpen || i.Device != "")
	})
	return i
}

// TestAnotherWroteWhileTheDaemonWasAway: who uses the device has requests and pages that wait
// and that belong over what it knew. They do not go over what another node has written while
// the daemon was away, however it ended, and however often it is started.
func TestAnotherWroteWhileTheDaemonWasAway(t *testing.T) {
	for _, end := range []string{"stop", "crash"} {
		t.Run(end, func(t *testing.T) {
			port := freePort(t)
			server, client := newServerNode(t, port), newClientNode(t, port)
			server.start()
			client.start()
			mustExport(t, server.h, file(t, "disk", 8<<20))
			m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Persist: end == "stop"})
			if err := writePattern(open(t, m), 0, 4096, 1, 4096); err != nil {
				t.Fatal(err)
			}
			ends := map[string]func(){"stop": client.stop, "crash": client.crash}[end]
			ends()
			otherWrites(t, server)
			for range 3 {
				client.start()
				i := back(t, client, m.ID)
				if i.State != StateClosed || i.Errno != syscall.ESTALE {
					t.Fatalf("back as %v, %q", i.State, i.LastError)
				}
				c, _ := opensAgain(t, m)
				if err := writePattern(c, 0, 4096, 1, 4096); err == nil {
					t.Fatal("a write went over the other node's")
				}
				c.Close()
				eventually(t, "it is written down", func() bool {
					st, err := readState(client.h.store.disk)
					return err == nil && len(st.Mappings) == 1 && st.Mappings[0].Stale
				})
				eventually(t, "it is closed there", func() bool { return len(server.h.Exports()[0].Users) == 0 })
				ends()
			}
			client.start()
			back(t, client, m.ID)
			eventually(t, "taken as it is", func() bool {
				_, err := client.h.Remap(testCtx(t), m.ID)
				return err == nil
			})
			c, _ := opensAgain(t, m)
			if err := checkPattern(c, 0, 4096, 9, 4096); err != nil {
				t.Fatal(err)
			}
			if err := writePattern(c, 0, 4096, 2, 4096); err != nil {
				t.Fatal(err)
			}
			c.Close()
			ends()
			client.start() // nobody has written since
			if i := back(t, client, m.ID); i.State != StateOpen {
				t.Errorf("back as %v, %q", i.State, i.LastError)
			}
		})
	}
}

// TestLostSyncIsKnownToTheNextDaemon: that completed writes may be lost is no less true
// because the daemon was started again.
func TestLostSyncIsKnownToTheNextDaemon(t *testing.T) {
	_, client, stores, m := withFaults(t, file(t, "disk", 8<<20), MapSpec{Persist: true})
	c := open(t, m)
	if err := writePattern(c, 0, 4096, 1, 4096); err != nil {
		t.Fatal(err)
	}
	stores.add(blk.Rule{Ops: blk.Ops(blk.OpFlush), Err: blk.ErrMedium, Count: 1})
	if err := c.Flush(); err == nil {
		t.Fatal("the flush did not fail")
	}
	eventually(t, "it is written down", func() bool {
		st, err := readState(client.h.store.disk)
		return err == nil && len(st.Mappings) == 1 && st.Mappings[0].SyncLost
	})
	for _, ends := range []func(){client.stop, client.crash, client.stop} {
		ends()
		client.start()
		c, _ := opensAgain(t, m)
		if err := c.Flush(); !errors.Is(err, syscall.EIO) {
			t.Fatalf("a flush of what may be lost: %v", err)
		}
		if err := writePattern(c, 0, 4096, 1, 4096); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if err := client.h.Unmap(testCtx(t), m.ID, true); err != nil {
		t.Fatal(err)
	}
	m = mustMap(t, client.h, MapSpec{Node: m.Node, Name: m.Name, Paths: m.Paths})
	if err := open(t, m).Flush(); err != nil {
		t.Errorf("mapped anew: %v", err)
	}
}

// fillDisk is a directory that nothing can be written to while it is full.
type fillDisk struct {
	Disk
	full *atomic.Bool
}

func (d fillDisk) Write(b []byte) error {
	if d.full.Load() {
		return syscall.ENOSPC
	}
	return d.Disk.Write(b)
}

// written is what stands in a node's file.
func written(t *testing.T, n *testNode) (st state) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(n.cfg.StateDir, stateFile))
	if err == nil {
		err = json.Unmarshal(b, &st)
	}
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// TestFlushedIsTakenBackBeforeTheFirstWrite: an end in order writes down that all was flushed. A
// daemon that cannot take that back lets nobody write, for the next one would believe it.
func TestFlushedIsTakenBackBeforeTheFirstWrite(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.boot = "one"
	server.cfg.Exports = []ExportSpec{file(t, "disk", 8<<20)}
	server.start()
	client.start()
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Persist: true})
	user := open(t, m)
	if err := writePattern(user, 0, 4096, 1, 4096); err != nil {
		t.Fatal(err)
	}
	if err := user.Flush(); err != nil {
		t.Fatal(err)
	}
	client.stop()
	if st := written(t, client); !st.Mappings[0].Flushed {
		t.Fatalf("an end in order has left %+v", st.Mappings[0])
	}

	var full atomic.Bool
	full.Store(true)
	client.disk = func(dir string) (Disk, error) {
		d, err := openDisk(dir)
		return fillDisk{d, &full}, err
	}
	client.start()
	eventually(t, "it says why it is not there", func() bool {
		i, err := client.h.Mapping(m.ID)
		return err == nil && i.State == StateInit && i.Here && strings.Contains(i.LastError, syscall.ENOSPC.Error())
	})
	if c, err := nbd.DialURI(testCtx(t), m.URI); err == nil {
		c.Close()
		t.Error("programs can write while the state says that all was flushed")
	}
	full.Store(false)
	user, _ = opensAgain(t, m)
	if st := written(t, client); st.Mappings[0].Flushed {
		t.Errorf("programs can write, and the state has %+v", st.Mappings[0])
	}
	if err := writePattern(user, 0, 4096, 2, 4096); err != nil {
		t.Fatal(err)
	}
	user.Close()
	client.crash()
	server.stop()
	server.boot = "two"
	server.start()
	client.start()
	user, _ = opensAgain(t, m)
	if err := user.Flush(); !errors.Is(err, syscall.EIO) {
		t.Errorf("a flush over a write that may be lost: %v", err)
	}
}

// TestRestartsThatLoseNothing: both daemons, and the machines under them, are started again
// in one way or another. Users of the mapping notice where something may be lost, and only there.
func TestRestartsThatLoseNothing(t *testing.T) {
	for _, c := range []struct {
		what    string
		flush   bool   // before the end
		crash   bool   // of the mapping daemon
		boot    string // of the mapping node, afterwards
		serving string // of the serving one; "-": its daemon is not started again
		other   bool   // another node writes meanwhile
		away    bool   // the serving one cannot be reached when the mapping daemon is started first
		err     error  // of a flush
	}{
		{what: "the mapping daemon", serving: "-"},
		{what: "the mapping daemon, killed", crash: true, serving: "-"},
		{what: "both daemons", flush: false, serving: "one"},
		{what: "the serving machine with everything flushed", flush: true, serving: "two"},
		{what: "the serving machine with a write that was not flushed", serving: "two", err: syscall.EIO},
		{what: "the serving machine, and what was flushed is not known", flush: true, crash: true, serving: "two", err: syscall.EIO},
		{what: "both machines", boot: "two", serving: "two"},
		{what: "the mapping machine, and another has written", boot: "two", serving: "-", other: true},
		{what: "both daemons, and nobody knows of which start of the machine", boot: unknownBoot, serving: unknownBoot, err: syscall.EIO},
		{what: "the serving machine, which does not know it, with everything flushed", flush: true, boot: unknownBoot, serving: unknownBoot},
		{what: "the mapping machine, its daemon once more, and another has written", boot: "two", serving: "-", other: true, away: true},
	} {
		t.Run(c.what, func(t *testing.T) {
			port := freePort(t)
			server, client := newServerNode(t, port), newClientNode(t, port)
			server.boot, client.boot = "one", "one"
			server.cfg.Exports = []ExportSpec{file(t, "disk", 8<<20)}
			server.start()
			client.start()
			m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Persist: true})
			user := open(t, m)
			if err := writePattern(user, 0, 4096, 1, 4096); err != nil {
				t.Fatal(err)
			}
			if c.flush {
				if err := user.Flush(); err != nil {
					t.Fatal(err)
				}
			}
			if c.crash {
				client.crash()
			} else {
				client.stop()
			}
			if c.serving != "-" {
				server.stop()
				server.boot = c.serving
				server.start()
			}
			if c.other {
				otherWrites(t, server)
			}
			if c.boot != "" {
				client.boot = c.boot
			}
			if c.away {
				server.stop()
				client.start()
				client.stop()
				server.start()
			}
			client.start()
			if i := back(t, client, m.ID); i.State != StateOpen {
				t.Fatalf("back as %v, %q", i.State, i.LastError)
			}
			user, _ = opensAgain(t, m)
			if !c.other {
				if err := checkPattern(user, 0, 4096, 1, 4096); err != nil {
					t.Fatal(err)
				}
			}
			if err := writePattern(user, 0, 4096, 2, 4096); err != nil {
				t.Fatal(err)
			}
			if err := user.Flush(); c.err == nil && err != nil || c.err != nil && !errors.Is(err, c.err) {
				t.Errorf("a flush: %v; want %v", err, c.err)
			}
		})
	}
}

// TestDeviceWhoseUsersAreGone: a device of the kernel that is still attached has users that
// go on; one that it has no more is begun anew.
func TestDeviceWhoseUsersAreGone(t *testing.T) {
	for _, gone := range []bool{false, true} {
		server, client, k := withKernel(t)
		mustExport(t, server.h, file(t, "disk", 8<<20))
		m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", As: AsNBD, Persist: true})
		client.stop()
		otherWrites(t, server)
		if gone {
			k.disconnect(0)
		} else {
			k.mu.Lock()
			d := k.devices[0]
			d.close()
			d.conn = nil // it has noticed
			k.mu.Unlock()
		}
		client.start()
		want := StateClosed
		if gone {
			want = StateOpen
		}
		if i := back(t, client, m.ID); i.State != want {
			t.Errorf("gone %v: back as %v, %q; want %v", gone, i.State, i.LastError, want)
		}
		client.stop()
		server.stop()
	}
}

// TestUsedIsKnownBeforeItIs: a mapping that the machine was started after has no users until its
// device is there. That it may have some stands in the state before they can do anything.
func TestUsedIsKnownBeforeItIs(t *testing.T) {
	server, client, k := withKernel(t)
	client.stop()
	client.boot = "one"
	unused := func() bool {
		var st state
		b, err := os.ReadFile(filepath.Join(client.cfg.StateDir, stateFile))
		if err == nil {
			err = json.Unmarshal(b, &st)
		}
		if err != nil || len(st.Mappings) != 1 {
			t.Errorf("the state: %+v, %v", st, err)
			return false
		}
		return st.Mappings[0].Unused
	}
	attached := make(chan bool, 1)
	client.drv.connect = func(index int, a nbd.Attach) (int, error) {
		attached <- unused()
		return k.connect(index, a)
	}
	client.start()
	s := file(t, "disk", 8<<20)
	mustExport(t, server.h, s)
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", As: AsNBD, Persist: true})
	if <-attached {
		t.Error("mapped: it is attached, and the state has it as unused")
	}
	client.stop()
	server.stop()
	k.disconnect(0)
	client.boot = "two"
	client.start()
	if !unused() {
		t.Error("after a start of the machine it is not known that nobody uses it")
	}
	name := filepath.Join(client.cfg.StateDir, stateFile)
	if err := errors.Join(os.Remove(name), os.Mkdir(name, 0o700)); err != nil { // a rename over it fails
		t.Fatal(err)
	}
	server.cfg.Exports = []ExportSpec{s}
	server.start()
	eventually(t, "it is not attached while the state cannot be written, and that is why", func() bool {
		i, err := client.h.Mapping(m.ID)
		return err == nil && strings.Contains(i.LastError, "volumes.state_dir")
	})
	select {
	case <-attached:
		t.Error("attached, and the state could not be written")
	default:
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is attached", func() bool { return len(attached) > 0 })
	if <-attached {
		t.Error("mapped again: it is attached, and the state has it as unused")
	}
}

// TestEndsWhileItIsAsked: the answer to the OPEN of a mapping that is restored may say that
// others have written. Who ends before it is there leaves that to the next; who unmaps ends it.
func TestEndsWhileItIsAsked(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	var held atomic.Pointer[chan struct{}]
	var opening atomic.Int32
	server.wrap = func(_ string, d blk.Device) blk.Device {
		if c := held.Load(); c != nil {
			opening.Add(1)
			<-*c
		}
		return d
	}
	hold := func() (release func()) {
		c := make(chan struct{})
		held.Store(&c)
		opening.Store(0)
		return sync.OnceFunc(func() { held.Store(nil); close(c) })
	}
	asked := func() bool { return opening.Load() > 0 }
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "disk", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Persist: true})
	client.stop()
	otherWrites(t, server)

	release := hold()
	defer release()
	client.start()
	eventually(t, "it is asked for", asked)
	client.stop()
	release()
	eventually(t, "it is closed there", func() bool { return len(server.h.Exports()[0].Users) == 0 })

	client.start()
	if i := back(t, client, m.ID); i.State != StateClosed {
		t.Fatalf("back as %v, %q", i.State, i.LastError)
	}
	client.stop()

	release = hold()
	defer release()
	client.start()
	eventually(t, "it is asked for", asked)
	if err := client.h.Unmap(testCtx(t), m.ID, false); err != nil {
		t.Fatal(err)
	}
	release()
	eventually(t, "it is closed there", func() bool { return len(server.h.Exports()[0].Users) == 0 })
	mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
}

// TestWhatIsDoneAndNotWritten: what has ended, or is changed, and cannot be written down is not told as if nothing had happened.
func TestWhatIsDoneAndNotWritten(t *testing.T) {
	var full atomic.Bool
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	for _, n := range []*testNode{server, client} {
		n.disk = func(dir string) (Disk, error) {
			d, err := openDisk(dir)
			return fillDisk{d, &full}, err
		}
		n.start()
	}
	x := file(t, "disk", 8<<20)
	x.Persist = true
	mustExport(t, server.h, x)
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", Persist: true})
	full.Store(true)
	said := func(what string, err error, done string) {
		t.Helper()
		if !errors.Is(err, syscall.ENOSPC) || !strings.HasPrefix(err.Error(), done+", but a start finds it as it was") {
			t.Errorf("%s: %v", what, err)
		}
	}
	i, err := client.h.SetSession(testCtx(t), m.Session, SessionChange{MaxReconnects: 7})
	if said("changed", err, "session "+m.Session+" is changed"); i.MaxReconnects != 7 {
		t.Errorf("it has %d attempts", i.MaxReconnects)
	}
	said("unmapped", client.h.Unmap(testCtx(t), m.ID, false), "mapping "+m.ID+" has ended")
	eventually(t, "nobody has it", func() bool { x, err := server.h.exportInfo("disk"); return err == nil && len(x.Users) == 0 })
	said("not exported", server.h.Unexport(testCtx(t), "disk", false), `volume "disk" is not exported any more`)
	if len(client.h.Mappings()) != 0 || len(server.h.Exports()) != 0 {
		t.Error("they are there")
	}
	full.Store(false)
	eventually(t, "it is written", func() bool { return len(written(t, client).Mappings)+len(written(t, server).Exports) == 0 })
}
