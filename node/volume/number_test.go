package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk/nbd"
)

// twoServers are servers of one volume each, and a node with kernel devices that maps them.
func twoServers(t *testing.T) (one, two, client *testNode, k *fakeKernel) {
	one, client, k = withKernel(t)
	mustExport(t, one.h, memory("one", 8<<20))
	two = newServerNode(t, one.cfg.Port)
	two.cfg.Addresses, one.cfg.Exports = serverAddrs[1:], []ExportSpec{memory("one", 8<<20)}
	return one, two, client, k
}

// foreign attaches a device for somebody else.
func (k *fakeKernel) foreign(t *testing.T, index int, backend string) {
	t.Helper()
	if _, err := k.connect(index, nbd.Attach{Size: 1 << 20, BlockSize: 512, Timeout: time.Second, DeadTimeout: time.Second, Backend: backend}); err != nil {
		t.Fatal(err)
	}
}

// TestRememberedNumberIsNobodyElses: a mapping that waits for its server keeps the number of a
// device that is gone. The next that asks for any device gets another, and keeps it over the
// next start.
func TestRememberedNumberIsNobodyElses(t *testing.T) {
	one, two, client, k := twoServers(t)
	first := mustMap(t, client.h, MapSpec{Node: "127.0.0.2", Name: "one", As: AsNBD, Persist: true})
	client.stop()
	k.disconnect(0)
	one.stop()
	two.start()
	mustExport(t, two.h, memory("two", 8<<20))
	client.start()
	second := mustMap(t, client.h, MapSpec{Node: "127.0.0.3", Name: "two", As: AsNBD})
	index, err := parseNBD(second.Device)
	if err != nil {
		t.Fatal(err)
	}
	x := startTraffic(t, &disk{k: k, index: index})
	x.progress(t, 30)
	client.stop()
	time.Sleep(20 * time.Millisecond) // requests meet no connection
	client.start()
	eventually(t, second.Device+" has a connection again", func() bool { return k.device(index).conn != nil })
	x.progress(t, 30)
	x.end(t)
	if second.Device == first.Device {
		t.Errorf("both mappings have %s", first.Device)
	}
	two.stop()
	one.start()
	eventually(t, "the first is back", func() bool {
		i, err := client.h.Mapping(first.ID)
		return err == nil && i.State == StateOpen && i.Device == first.Device
	})
}

// TestNumberThatWasNotWrittenDown: a device is taken up by the next start by what the kernel knows it by, where
// the state has no number for it, or that of another.
func TestNumberThatWasNotWrittenDown(t *testing.T) {
	for _, written := range []string{"", "/dev/nbd0", "/dev/nbd7"} {
		for _, persist := range []bool{false, true} {
			t.Run(fmt.Sprintf("%q, persistent %v", written, persist), func(t *testing.T) {
				server, client, k := withKernel(t)
				mustExport(t, server.h, memory("mem", 8<<20))
				k.foreign(t, 0, "foreign")
				m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem", As: AsNBD, Persist: persist})
				if m.Device != "/dev/nbd1" {
					t.Fatalf("it has %s", m.Device)
				}
				x := startTraffic(t, &disk{k: k, index: 1})
				x.progress(t, 30)
				client.stop()
				name := filepath.Join(client.cfg.StateDir, stateFile)
				b, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				var st state
				if err := json.Unmarshal(b, &st); err != nil {
					t.Fatal(err)
				}
				if st.Mappings[0].Device = written; written == "" {
					st.Mappings[0].Chosen = false
				}
				if b, err = json.Marshal(st); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(name, b, 0o600); err != nil {
					t.Fatal(err)
				}
				client.start()
				eventually(t, "it has a connection again", func() bool { return k.device(1).conn != nil })
				x.progress(t, 30)
				x.end(t)
				eventually(t, "it is shown", func() bool {
					i, err := client.h.Mapping(m.ID)
					return err == nil && i.State == StateOpen && i.Device == "/dev/nbd1"
				})
				if !client.h.mappings[0].resume || client.h.mappings[0].wants != "" {
					t.Error("it was attached anew, or is taken for one that was asked for")
				}
			})
		}
	}
}

// TestNumberThatAnotherHas: where the kernel has somebody else's device under the number of one
// that is gone, a mapping that asked for none in particular gets another. One that asked for it waits.
func TestNumberThatAnotherHas(t *testing.T) {
	for _, asked := range []string{"", "/dev/nbd0"} {
		t.Run("asked for "+asked, func(t *testing.T) {
			server, client, k := withKernel(t)
			mustExport(t, server.h, memory("mem", 8<<20))
			m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem", As: AsNBD, Device: asked, Persist: true})
			client.stop()
			k.disconnect(0)
			k.foreign(t, 0, "foreign")
			want := "/dev/nbd1"
			for range 2 {
				client.start()
				if asked != "" {
					eventually(t, "it says that it waits", func() bool {
						i, err := client.h.Mapping(m.ID)
						return err == nil && strings.Contains(i.LastError, "/dev/nbd0 is in use")
					})
					k.giveUp(0)
					want = asked
				}
				eventually(t, "it has "+want, func() bool {
					i, err := client.h.Mapping(m.ID)
					return err == nil && i.State == StateOpen && i.Device == want
				})
				client.stop()
				if asked == "" && k.device(0).attach.Backend != "foreign" {
					t.Fatal("the foreign device is gone")
				}
				for i := range 2 {
					k.giveUp(i)
				}
				k.foreign(t, 0, "foreign")
			}
		})
	}
}

// TestNumberThatAnotherHasByNothing: a foreign device that the kernel knows by nothing is left
// alone, also by the next Host.
func TestNumberThatAnotherHasByNothing(t *testing.T) {
	for _, old := range []bool{false, true} {
		for _, asked := range []string{"", "/dev/nbd0"} {
			t.Run(fmt.Sprintf("old %v, asked for %s", old, asked), func(t *testing.T) {
				server, client, k := withKernel(t)
				k.old = old
				mustExport(t, server.h, memory("mem", 8<<20))
				m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem", As: AsNBD, Device: asked, Persist: true})
				k.disconnect(0)
				eventually(t, "it is seen", func() bool {
					i, err := client.h.Mapping(m.ID)
					return err == nil && i.Device == "" && i.LastError == noDevice
				})
				k.foreign(t, 0, "")
				client.stop()
				client.start()
				eventually(t, "it waits, or has another", func() bool {
					i, err := client.h.Mapping(m.ID)
					return err == nil && (asked == "" && i.Device == "/dev/nbd1" || asked != "" && strings.Contains(i.LastError, "/dev/nbd0 is in use"))
				})
				k.mu.Lock()
				defer k.mu.Unlock()
				if k.strayed > 0 || k.devices[0].size != 1<<20 {
					t.Errorf("the foreign device was reconfigured %d times", k.strayed)
				}
			})
		}
	}
}

// TestUnmapEndsTheWaitForADevice: a mapping that waits for the kernel to see that the connection of its
// device is dead is ended all the same.
func TestUnmapEndsTheWaitForADevice(t *testing.T) {
	server, client, _ := withKernel(t)
	mustExport(t, server.h, memory("mem", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "mem", As: AsNBD, Persist: true})
	client.stop()
	tried := make(chan struct{})
	once := sync.OnceFunc(func() { close(tried) })
	client.cfg.DeadTimeout = time.Hour
	client.drv.reconfigure = func(index int, a nbd.Attach) error {
		if len(a.Sockets) > 0 {
			once()
		}
		return nil // and drops them
	}
	client.start()
	<-tried
	if err := client.h.Unmap(testCtx(t), m.ID, true); err != nil {
		t.Error(err)
	}
}

// TestNumberThatTwoGoBy: of two mappings that a state has under one number, as daemons before
// this one could leave it, the device is his whom the kernel has it for.
func TestNumberThatTwoGoBy(t *testing.T) {
	for _, chosen := range []bool{false, true} {
		server, client, k := withKernel(t)
		mustExport(t, server.h, memory("one", 8<<20))
		mustExport(t, server.h, memory("two", 8<<20))
		first := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "one", As: AsNBD, Persist: true})
		second := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "two", As: AsNBD})
		client.stop()
		k.disconnect(0)
		st := written(t, client)
		for i := range st.Mappings {
			st.Mappings[i].Device, st.Mappings[i].Chosen = "/dev/nbd1", chosen
		}
		b, err := json.Marshal(st)
		if err == nil {
			err = os.WriteFile(filepath.Join(client.cfg.StateDir, stateFile), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		k.mu.Lock()
		k.devices[1].close()
		k.devices[1].conn = nil // it has noticed
		k.mu.Unlock()
		client.start()
		eventually(t, "the device has a connection again", func() bool { return k.device(1).conn != nil })
		if i := back(t, client, second.ID); i.State != StateOpen || i.Device != "/dev/nbd1" {
			t.Errorf("its owner is back as %+v", i)
		}
		if err := writePattern(&disk{k: k, index: 1}, 0, 4096, 1, 4096); err != nil {
			t.Error(err)
		}
		if chosen {
			if i := back(t, client, first.ID); i.State != StateOpen || i.Device != "/dev/nbd0" {
				t.Errorf("the other is back as %+v", i)
			}
		} else if i, err := client.h.Mapping(first.ID); err != nil || !strings.Contains(i.LastError, "another mapping has the device") {
			t.Errorf("the other is back as %+v, %v", i, err)
		}
		client.stop()
		server.stop()
	}
}

// TestAnyDevice: the search for one ends, whatever the kernel says.
func TestAnyDevice(t *testing.T) {
	k := newFakeKernel()
	d := k.driver()
	a := nbd.Attach{Size: 1 << 20, BlockSize: 512, Timeout: time.Second, DeadTimeout: time.Second}
	var got []int
	for range 3 {
		i, err := d.connectAny(map[int]bool{0: true, 2: true}, a)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, i)
	}
	if !slices.Equal(got, []int{1, 3, 4}) {
		t.Errorf("attached %v", got)
	}
	d.status = func(int) (map[int]bool, error) { return nil, syscall.EIO }
	if i, err := d.connectAny(map[int]bool{0: true, 2: true}, a); i != 5 || err != nil {
		t.Errorf("attached %d, %v, without being told", i, err)
	}
	if i, err := d.connectAny(nil, a); i != 0 || err != nil {
		t.Errorf("attached %d, %v, without being told", i, err)
	}
	d.connect = func(int, nbd.Attach) (int, error) { return 0, syscall.EBUSY }
	if _, err := d.connectAny(map[int]bool{0: true}, a); err == nil {
		t.Error("attached a device where all are in use")
	}
}

// TestDeviceOfAnEarlierStart: a mapping that is not attached has no device, whatever it had before.
// Another may have that now.
func TestDeviceOfAnEarlierStart(t *testing.T) {
	server, client, k := withKernel(t)
	client.stop()
	client.boot = "one"
	client.start()
	s := file(t, "disk", 8<<20)
	mustExport(t, server.h, s)
	mustExport(t, server.h, file(t, "other", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", As: AsNBD, Persist: true})
	has := func(when, device string) {
		t.Helper()
		i, err := client.h.Mapping(m.ID)
		if err != nil || i.Device != device {
			t.Errorf("%s: %+v, %v; want device %q", when, i, err, device)
		}
		if i, err := client.h.Mapping(m.Device); device == "" && err == nil && i.ID == m.ID {
			t.Errorf("%s: it is found as %s", when, m.Device)
		}
	}
	has("mapped", m.Device)
	client.stop()
	if err := server.h.Unexport(testCtx(t), "disk", true); err != nil {
		t.Fatal(err)
	}
	client.start()
	has("the kernel has it still", m.Device)
	client.stop()
	k.disconnect(0)
	client.boot = "two"
	client.start()
	has("the machine was started", "")
	o := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "other", As: AsNBD, Persist: true})
	if i, err := client.h.Mapping(o.Device); err != nil || i.ID != o.ID {
		t.Errorf("%s: %+v, %v; want %s", o.Device, i, err, o.ID)
	}
	client.stop()
	client.start()
	has("another has the device, and the daemon was started", "")
	client.stop()
	client.cfg.MaxMappings = 1
	client.start()
	if i, err := client.h.Mapping(o.ID); err != nil || i.SessionID != "" || i.Device != "" {
		t.Errorf("there was no room for %s: %+v, %v", o.ID, i, err)
	}
}

// TestKernelThatTellsNoDevices: where the kernel answers neither which devices it has nor what it knows
// one by, no device of a state is taken for one that lives, and it is not taken for told.
func TestKernelThatTellsNoDevices(t *testing.T) {
	_, client, _ := withKernel(t)
	h := client.h
	old := &state{Boot: h.store.boot, Mappings: []mappingState{{ID: "m", As: AsNBD, Device: "/dev/nbd3", Persist: true}}}
	h.drv.backend = func(int) (string, bool) { return "", false }
	for _, c := range []struct {
		attached map[int]bool
		err      error
		alive    bool
	}{
		{map[int]bool{3: true}, nil, true},
		{map[int]bool{4: true}, nil, false},
		{nil, syscall.ENOENT, false},
	} {
		h.drv.status = func(int) (map[int]bool, error) { return c.attached, c.err }
		if n := h.numbers(old); n.alive[0] != c.alive || n.taken[0] || n.told != (c.err == nil) {
			t.Errorf("the kernel says %v, %v: %+v", c.attached, c.err, n)
		}
	}
}

// TestAttachedInVain: a device that the kernel has attached though whoever asked heard of an error is
// detached again; one that was attached before stays. What is lacking for a moment leaves no device behind, and
// none with its old size.
func TestAttachedInVain(t *testing.T) {
	server, client, k := withKernel(t)
	client.stop()
	client.boot = "one"
	client.start()
	mustExport(t, server.h, file(t, "disk", 8<<20))
	for _, device := range []string{"", "/dev/nbd0", "/dev/nbd3"} {
		k.with(func() { k.lost = unix.ENOBUFS })
		spec := MapSpec{Node: server.node(), Name: "disk", As: AsNBD, Device: device}
		if i, err := client.h.Map(testCtx(t), spec); !errors.Is(err, unix.ENOBUFS) {
			t.Fatalf("%q: mapped as %+v, %v", device, i, err)
		}
		if left, _ := k.status(nbd.AnyDevice); len(left) != 0 {
			t.Errorf("%q: left behind: %v", device, left)
		}
	}

	k.with(func() { k.lost = nil })
	lacking := 3
	drv := client.h.drv.disconnect
	client.h.drv.disconnect = func(i int) error {
		if lacking--; lacking >= 0 {
			return unix.EMFILE
		}
		return drv(i)
	}
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", As: AsNBD})
	short := []error{unix.EMFILE, unix.ENOBUFS, nil}
	k.with(func() { k.fail = func() (err error) { err, short = short[0], short[1:]; return err } })
	if _, err := server.h.ResizeExport(testCtx(t), "disk", 16<<20); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kernel knows the new size", func() bool { return k.device(0).size == 16<<20 })
	k.with(func() { k.fail = nil })
	if err := client.h.Unmap(testCtx(t), m.ID, false); err != nil {
		t.Fatal(err)
	}
	if left, _ := k.status(nbd.AnyDevice); len(left) != 0 || lacking >= 0 {
		t.Errorf("left behind: %v", left)
	}

	m = mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", As: AsNBD, Persist: true})
	client.stop()
	k.with(func() { k.fail = func() error { return unix.EPERM } }) // it is not taken up, and cannot be attached anew
	client.start()
	eventually(t, "told", func() bool {
		i, err := client.h.Mapping(m.ID)
		return err == nil && i.NoDevice && i.State == StateInit && i.PathsUp > 0
	})
	if b, _ := k.backend(0); b == "" {
		t.Error("a device with users was detached")
	}
	k.with(func() { // it takes it up now
		k.fail, k.devices[0].conn = nil, nil
	})
	eventually(t, "open", func() bool {
		i, err := client.h.Mapping(m.ID)
		return err == nil && i.State == StateOpen && i.LastError == ""
	})
}

func (k *fakeKernel) with(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

// TestUnreadName: where the name of a kernel device cannot be read for the moment, none is detached that may be in use,
// by this volume's users or by others who have got the number since.
func TestUnreadName(t *testing.T) {
	const ours, others, unread = "rdsd:m:1", "rdsd:n:2", "?"
	for name, c := range map[string]struct {
		names    []string // as they are read, the last from then on
		detaches int
	}{
		"ours":                  {[]string{ours}, 1},
		"ours, read later":      {[]string{unread, unread, ours}, 1},
		"another's":             {[]string{others}, 0},
		"another's, read later": {[]string{unread, others}, 0},
	} {
		detached := 0
		f := &kernelFront{index: 3, backend: ours, log: slog.New(slog.DiscardHandler)}
		f.drv.backend = func(int) (string, bool) {
			b := c.names[0]
			c.names = c.names[min(1, len(c.names)-1):]
			return b, b != unread
		}
		f.drv.disconnect = func(int) error { detached++; return nil }
		f.told.Store(true)
		if err := f.detach(t.Context()); err != nil || detached != c.detaches {
			t.Errorf("%s: detached %d times, %v", name, detached, err)
		}
	}

	server, client, k := withKernel(t)
	mustExport(t, server.h, file(t, "disk", 8<<20))
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk", As: AsNBD})
	client.h.mu.Lock()
	f := client.h.mappings[0].front.(*kernelFront)
	client.h.mu.Unlock()
	drv := k.driver()
	first := true
	drv.backend = func(i int) (string, bool) {
		if first {
			first = false
			return "", false
		}
		return k.backend(i)
	}
	if _, err := openKernel(t.Context(), drv, kernelOptions{index: f.index, backend: f.backend, timeout: f.timeout, dead: f.dead}, f.dev, nil, f.log, client.h); !errors.Is(err, unix.EBUSY) {
		t.Errorf("attached anew: %v", err)
	}
	if b, _ := k.backend(f.index); b != f.backend || m.Device == "" {
		t.Error("a device with users was detached")
	}
}
