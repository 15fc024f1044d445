package rnbd

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

const (
	ro        = rnbdwire.ReadOnly
	rw        = rnbdwire.ReadWrite
	migration = rnbdwire.Migration
)

// TestWhoMayWrite: who may open what, beside those who have it open.
func TestWhoMayWrite(t *testing.T) {
	for _, c := range []struct {
		have   []rnbdwire.Access
		ask    rnbdwire.Access
		shared bool
		want   error
	}{
		{nil, ro, false, nil},
		{nil, rw, false, nil},
		{nil, migration, false, nil},
		{[]rnbdwire.Access{ro, ro}, ro, false, nil},
		{[]rnbdwire.Access{ro}, rw, false, nil},
		{[]rnbdwire.Access{rw}, ro, false, nil},
		{[]rnbdwire.Access{rw}, rw, false, ErrWriter},
		{[]rnbdwire.Access{rw}, migration, false, nil},
		{[]rnbdwire.Access{migration}, migration, false, nil},
		{[]rnbdwire.Access{migration}, rw, false, ErrWriter},
		{[]rnbdwire.Access{rw, migration}, migration, false, ErrWriter},
		{[]rnbdwire.Access{rw, migration}, rw, false, ErrWriter},
		{[]rnbdwire.Access{rw, migration}, ro, false, nil},
		{[]rnbdwire.Access{rw, rw, migration}, rw, true, nil},
	} {
		t.Run(fmt.Sprintf("%v beside %v shared %v", c.ask, c.have, c.shared), func(t *testing.T) {
			w := newWorld(t, ServerConfig{})
			m, _ := blk.NewMem(blk.MemOptions{Size: 1 << 20})
			w.export(&Export{Name: "d", Device: m, Rules: Rules{Shared: c.shared}})
			for i, a := range c.have {
				w.client(fmt.Sprint("s", i)).mustMap("d", a)
			}
			_, err := w.client("asks").tryMap("d", c.ask)
			wantErr(t, "open", err, c.want)
		})
	}
}

// TestWriterGoesAndComes: the writer's place is free when it has closed the
// volume or its session is lost, and its last write has ended.
func TestWriterGoesAndComes(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	f, _ := w.fault("d", 1<<20)
	a, b := w.client("a"), w.client("b")
	va := a.mustMap("d", rw)
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true, Count: 1})
	done := a.submit(va, &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)})
	w.run()
	a.cut()
	w.run()
	_, err := b.tryMap("d", rw)
	wantErr(t, "while the lost writer's last write is at the store", err, ErrWriter)
	a2 := w.newEnd("a", "10.0.0.1", ClientConfig{}) // the same name: a daemon that was started again
	a2.connectNow()
	_, err = a2.tryMap("d", rw)
	wantErr(t, "for the session itself", err, ErrBusy)
	f.Release()
	w.run()
	vb := b.mustMap("d", rw)
	if *done {
		t.Error("the write was answered over a session that is lost")
	}
	_, err = a2.tryMap("d", rw)
	wantErr(t, "beside the next writer", err, ErrWriter)
	if err := vb.Unmap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	a2.mustMap("d", rw)
}

// TestSharedUnderOneNameAlone: who has a file for itself has it so also where another export of that file is shared, and a write of one
// that it was taken from goes over nothing that another has written since, whatever the file is exported as then.
func TestSharedUnderOneNameAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	writeFile(t, path, 1<<20)
	w := newWorld(t, ServerConfig{})
	var f *blk.Fault
	w.layers = func(d blk.Device) blk.Device {
		f = blk.NewFault(d, 1)
		w.faults = append(w.faults, f)
		return f
	}
	w.export(&Export{Name: "mine", Path: path})
	w.export(&Export{Name: "ours", Path: path, Rules: Rules{Shared: true}})
	a, b := w.client("a"), w.client("b")
	va := a.mustMap("mine", rw)
	store := f
	_, err := b.tryMap("ours", rw)
	wantErr(t, "beside one that has it for itself", err, ErrWriter)
	if _, err := b.tryMap("ours", ro); err != nil {
		t.Errorf("to read: %v", err)
	}
	store.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true, Count: 1})
	a.submit(va, &blk.Request{Op: blk.OpWrite, Len: 512, Buf: make([]byte, 512)})
	w.run()
	if err := w.srv.ForceUnexport(w.now, w.named("mine")); err != nil {
		t.Fatal(err)
	}
	c := w.client("c")
	_, err = c.tryMap("ours", rw)
	wantErr(t, "while its write is at the store", err, ErrBusy)
	store.Release()
	w.run()
	c.mustMap("ours", rw)
	w.client("d").mustMap("ours", rw)
}

// TestSameVolumeByOtherNames: a file is one volume whatever it is called, so it
// has one writer, and one device.
func TestSameVolumeByOtherNames(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.img")
	writeFile(t, path, 1<<20)
	if err := os.Link(path, filepath.Join(dir, "b.img")); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, ServerConfig{})
	w.export(&Export{Name: "named", Path: path})
	w.root(&Root{Path: dir})
	a, b, c := w.client("a"), w.client("b"), w.client("c")
	va := a.mustMap("named", rw)
	for _, name := range []string{"a.img", "b.img", "//a.img", "named"} {
		_, err := b.tryMap(name, rw)
		wantErr(t, name, err, ErrWriter)
	}
	c.mustMap("b.img", ro)
	if n := len(w.srv.Devices()); n != 1 {
		t.Errorf("%d devices are open; want one for all", n)
	}
	if err := va.Unmap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	b.mustMap("a.img", rw)
	a.cut()
	b.cut()
	c.cut()
	w.run()
	if n := len(w.srv.Devices()); n != 0 {
		t.Errorf("%d devices are open and nobody uses them", n)
	}
	for _, d := range w.closed {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(w.closed) != 1+4+2 { // the one in use, and one opened for each name asked
		t.Errorf("%d devices closed", len(w.closed))
	}
}

// TestOpenAgain: a name that is open in the session is the device that is open,
// with what holds now; its mode is not looked at.
func TestOpenAgain(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	m := w.mem("d", 1<<20)
	e := w.client("c")
	first, err := e.rawOpen("d", ro)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Resize(2 << 20); err != nil {
		t.Fatal(err)
	}
	again, err := e.rawOpen("d", rw)
	if err != nil || again.DeviceID != first.DeviceID || again.Sectors != 4096 {
		t.Errorf("%+v, %v", again, err)
	}
	_, err = e.raw(rawWrite, rawIO(first.DeviceID, rnbdwire.Write, 0, 0, 512), 512)
	wantErr(t, "write to what was opened ro", err, blk.ErrReadOnly)
	if err := e.rawClose(first.DeviceID); err != nil {
		t.Fatal(err)
	}
	if err := e.rawClose(first.DeviceID); err != nil {
		t.Errorf("a number that is not known: %v", err)
	}
	third, err := e.rawOpen("d", rw)
	if err != nil || third.DeviceID == first.DeviceID {
		t.Errorf("number %d again, %v", third.DeviceID, err)
	}
}

// TestNumbersAreOfTheSession: a session has no way to another one's devices.
func TestNumbersAreOfTheSession(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 1<<20)
	a, b := w.client("a"), w.client("b")
	rsp, err := a.rawOpen("d", ro)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.raw(rawRead, rawIO(rsp.DeviceID, rnbdwire.Read, 0, 0, 512), 512)
	wantErr(t, "read of another session's device", err, ErrNotOpen)
	_, err = b.raw(rawRead, rnbdwire.AppendInfo(nil, rsp.DeviceID), rnbdwire.OpenRspLen)
	wantErr(t, "its description", err, ErrNotOpen)
	if err := b.rawClose(rsp.DeviceID); err != nil {
		t.Fatal(err)
	}
	if _, err = a.raw(rawRead, rawIO(rsp.DeviceID, rnbdwire.Read, 0, 0, 512), 512); err != nil {
		t.Errorf("another session closed it: %v", err)
	}
}

func TestMostOpen(t *testing.T) {
	w := newWorld(t, ServerConfig{MaxOpen: 2})
	for i := range 3 {
		w.mem(fmt.Sprint("d", i), 1<<20)
	}
	e := w.client("c")
	e.mustMap("d0", ro)
	v := e.mustMap("d1", ro)
	_, err := e.tryMap("d2", ro)
	wantErr(t, "one more", err, rdserr.ErrTooMany)
	if err := v.Unmap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	e.mustMap("d2", ro)
}

// TestTakenFromSession: what is forced closed ends its requests, answers
// ENOTCONN, stays reserved until the client closes it, and may be opened anew.
func TestTakenFromSession(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	f, _ := w.fault("d", 1<<20)
	e := w.client("c")
	rsp, err := e.rawOpen("d", rw)
	if err != nil {
		t.Fatal(err)
	}
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Stall: true, Count: 1})
	write := e.rawStart(rawWrite, rawIO(rsp.DeviceID, rnbdwire.Write, 0, 0, 512), 512)
	w.run()
	late := e.rawStart(rawRead, rawIO(rsp.DeviceID, rnbdwire.Read, 0, 0, 512), 512) // not handed to the store yet
	if w.srv.ForceClose(w.now, e.sess, "nothing") || !w.srv.ForceClose(w.now, e.sess, "/d") {
		t.Fatal("another volume was taken, or this one was not")
	}
	w.run()
	wantErr(t, "what was not at the store yet", late.Err, ErrNotOpen)
	_, err = e.raw(rawRead, rawIO(rsp.DeviceID, rnbdwire.Read, 0, 0, 512), 512)
	wantErr(t, "a read", err, ErrNotOpen)
	other := w.newEnd("other", "10.0.0.2", ClientConfig{})
	other.connectNow()
	_, err = other.tryMap("d", rw)
	wantErr(t, "another writer while the last write is at the store", err, ErrBusy)
	_, err = e.rawOpen("d", rw)
	wantErr(t, "the session itself", err, ErrBusy)
	f.Release()
	w.run()
	if !write.Ctx.(*rawWait).done || write.Err != nil {
		t.Errorf("what was at the store: %v", write.Err)
	}
	if o := w.srv.Open(); len(o) != 1 || !o[0].Forced || o[0].DeviceID != rsp.DeviceID || o[0].Device != nil {
		t.Errorf("%+v", o)
	}
	if w.srv.ForceClose(w.now, e.sess, "d") {
		t.Error("it was taken once more")
	}
	again, err := e.rawOpen("d", rw)
	if err != nil || again.DeviceID == rsp.DeviceID {
		t.Errorf("opened anew: %+v, %v", again, err)
	}
	if err := e.rawClose(rsp.DeviceID); err != nil {
		t.Fatal(err)
	}
	if o := w.srv.Open(); len(o) != 1 || o[0].Forced {
		t.Errorf("%+v", o)
	}
}

// TestCloseWaits: CLOSE is answered when the last request has ended.
func TestCloseWaits(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	f, _ := w.fault("d", 1<<20)
	e := w.client("c")
	rsp, err := e.rawOpen("d", rw)
	if err != nil {
		t.Fatal(err)
	}
	f.Add(blk.Rule{Stall: true, Count: 1})
	write := e.rawStart(rawWrite, rawIO(rsp.DeviceID, rnbdwire.Write, 0, 0, 512), 512)
	w.run()
	cl := e.rawStart(rawWrite, rnbdwire.AppendClose(nil, rsp.DeviceID), 0)
	w.run()
	if cl.Ctx.(*rawWait).done {
		t.Fatal("closed while a write is at the store")
	}
	_, err = e.raw(rawRead, rawIO(rsp.DeviceID, rnbdwire.Read, 0, 0, 512), 512)
	wantErr(t, "a read meanwhile", err, ErrNotOpen)
	f.Release()
	w.run()
	if !write.Ctx.(*rawWait).done || !cl.Ctx.(*rawWait).done || write.Err != nil || cl.Err != nil {
		t.Errorf("write %v, close %v", write.Err, cl.Err)
	}
}

// TestWhatIsRememberedIsBounded: forgetting is safe: what clients were told
// before a sync failed counts as changed.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	w := newWorld(t, ServerConfig{Boot: 7})
	before := w.srv.verify(blk.FileID{Ino: 5}, nil)
	w.srv.syncLost(blk.FileID{Ino: 5})
	lost := w.srv.verify(blk.FileID{Ino: 5}, nil)
	if before == lost {
		t.Error("a failed sync does not show")
	}
	for i := range 2 * maxPast {
		w.srv.remember(blk.FileID{Ino: uint64(i), Dev: 1}, past{syncs: 1})
	}
	if len(w.srv.past) > maxPast {
		t.Errorf("%d are remembered", len(w.srv.past))
	}
	if now := w.srv.verify(blk.FileID{Ino: 5}, nil); now == before {
		t.Error("a forgotten sync looks like none")
	}
}

// takeAway takes a volume from one session.
func (w *world) takeAway(e *end, name string) error {
	if !w.srv.ForceClose(w.now, e.sess, name) {
		return rdserr.ErrNotFound
	}
	return nil
}

// TestHoldRefused: what cannot be charged is not opened, and can be later.
func TestHoldRefused(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	w.mem("d", 1<<20)
	a := w.client("a")
	w.noHold = rdserr.With(rdserr.ErrNoMemory, "nothing is left")
	_, err := a.tryMap("d", rw)
	wantErr(t, "without memory", err, rdserr.ErrNoMemory)
	w.noHold = nil
	a.mustMap("d", rw)
}

// TestVolumesBelowRoots: files below roots count as exports while they are open, once each, and
// one peer has at most three times as many as are left for all.
func TestVolumesBelowRoots(t *testing.T) {
	dir := t.TempDir()
	for i := range 6 {
		writeFile(t, filepath.Join(dir, fmt.Sprint(i)), 4096)
	}
	w := newWorld(t, ServerConfig{MaxVolumes: 6})
	w.mem("d", 1<<20)
	w.root(&Root{Path: dir})
	a := w.newEnd("a", "10.0.0.1", ClientConfig{})
	b := w.newEnd("b", "10.0.0.2", ClientConfig{})
	a.connectNow()
	b.connectNow()
	var open []*Volume
	for i := range 4 { // with one for the export that leaves 1
		open = append(open, a.mustMap(fmt.Sprint(i), ro))
	}
	_, err := a.tryMap("4", ro)
	wantErr(t, "the peer's part", err, rdserr.ErrTooMany)
	a.mustMap("d", ro)
	more := []*Volume{b.mustMap("0", ro), b.mustMap("4", ro)} // the first is open
	_, err = b.tryMap("5", ro)
	wantErr(t, "the limit", err, rdserr.ErrTooMany)
	unmap := func(list []*Volume) {
		for _, v := range list {
			if err := v.Unmap(w.now); err != nil {
				t.Fatal(err)
			}
			w.run()
			n := 0
			for _, k := range w.srv.belowOf {
				n += k
			}
			if n != w.srv.below {
				t.Errorf("the peers have %d, %d are open", n, w.srv.below)
			}
		}
	}
	unmap(open[1:])
	more = append(more, b.mustMap("5", ro))
	unmap(append(more, open[0]))
	if w.srv.below != 0 || len(w.srv.belowOf) != 0 {
		t.Errorf("at the end %d are open, of %d peers", w.srv.below, len(w.srv.belowOf))
	}
}
