package rnbd

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

var cached = blk.Info{Size: 1 << 20, LogicalBlock: 512, PhysicalBlock: 4096, MaxBytes: blk.MaxIO,
	MaxDiscard: blk.MaxSize, MaxWriteZeroes: blk.MaxSize, FUA: true, WriteCache: true}

// TestOrderOfSyncs: what a device is asked for each combination of flags.
func TestOrderOfSyncs(t *testing.T) {
	const (
		fua = rnbdwire.FUA
		pre = rnbdwire.Preflush
	)
	for _, c := range []struct {
		what       string
		fua, cache bool // of the device
		kernel     bool // the client is one
		op         rnbdwire.Op
		flags      rnbdwire.Flags
		want       string
	}{
		{"plain", true, true, false, rnbdwire.Write, rnbdwire.Sync, "write 0+512"},
		{"FUA", true, true, false, rnbdwire.Write, fua, "write 0+512 fua"},
		{"FUA may have been PREFLUSH", true, true, true, rnbdwire.Write, fua, "flush, write 0+512 fua"},
		{"PREFLUSH", true, true, false, rnbdwire.Write, pre, "flush, write 0+512 fua"},
		{"both", true, true, true, rnbdwire.Write, pre | fua, "flush, write 0+512 fua"},
		{"FUA, device without", false, true, false, rnbdwire.Write, fua, "write 0+512, flush"},
		{"PREFLUSH, device without", false, true, false, rnbdwire.Write, pre, "flush, write 0+512, flush"},
		{"FUA, nothing cached", true, false, true, rnbdwire.Write, fua | pre, "write 0+512 fua"},
		{"FUA, nothing cached and no FUA", false, false, false, rnbdwire.Write, fua, "write 0+512"},
		{"flush", true, true, false, rnbdwire.Flush, fua, "flush"},
		{"read with everything", true, true, true, rnbdwire.Read, fua | pre | 1<<31, "read 0+512"},
		{"discard", true, true, false, rnbdwire.Discard, rnbdwire.Sync, "discard 0+512"},
		{"discard FUA", true, true, false, rnbdwire.Discard, fua, "discard 0+512 fua"},
		{"zeroes", true, true, false, rnbdwire.WriteZeroes, 0, "write zeroes 0+512"},
		{"zeroes that stay", true, true, false, rnbdwire.WriteZeroes, rnbdwire.NoUnmap, "write zeroes 0+512 no-unmap"},
		{"unknown flags", true, true, false, rnbdwire.Write, 0xfffff000, "write 0+512"},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t, ServerConfig{})
			info := cached
			info.FUA, info.WriteCache = c.fua, c.cache
			d := newRecorder(info)
			w.export(&Export{Name: "d", Device: d})
			e := w.client("c")
			if c.kernel {
				if _, err := e.raw(rawRead, rnbdwire.AppendSessInfo(nil, rnbdwire.SessInfo, 2), 36); err != nil {
					t.Fatal(err)
				}
			}
			rsp, err := e.rawOpen("d", rw)
			if err != nil {
				t.Fatal(err)
			}
			op, room := rawWrite, 0
			switch c.op {
			case rnbdwire.Read:
				op, room = rawRead, 512
			case rnbdwire.Flush:
				op = rawRead
			case rnbdwire.Write:
				room = 512
			}
			size := uint32(512)
			if c.op == rnbdwire.Flush {
				size = 0
			}
			if _, err := e.raw(op, rawIO(rsp.DeviceID, c.op, c.flags, 0, size), room); err != nil {
				t.Fatal(err)
			}
			if got := d.asked(); got != c.want {
				t.Errorf("asked %q, want %q", got, c.want)
			}
		})
	}
}

// TestRefused: B5. What is not possible is answered, and the device is not
// even flushed.
func TestRefused(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	d := newRecorder(cached)
	info := cached
	info.LogicalBlock = 4096
	big := newRecorder(info)
	info = cached
	info.MaxDiscard, info.MaxWriteZeroes, info.MaxBytes = 0, 0, 4096
	poor := newRecorder(info)
	for name, dev := range map[string]*recorder{"d": d, "big": big, "poor": poor} {
		w.export(&Export{Name: name, Device: dev})
	}
	e := w.client("c")
	ids := map[string]uint32{}
	for _, name := range []string{"d", "big", "poor"} {
		rsp, err := e.rawOpen(name, rw)
		if err != nil {
			t.Fatal(err)
		}
		ids[name] = rsp.DeviceID
	}
	roRsp, err := w.client("reader").rawOpen("d", ro)
	if err != nil {
		t.Fatal(err)
	}
	reader := w.ends[1]
	const sectors = 1 << 20 >> 9
	io := func(name string, op rnbdwire.Op, f rnbdwire.Flags, sector uint64, size uint32) []byte {
		return rawIO(ids[name], op, f, sector, size)
	}
	read, write, flush := rnbdwire.Read, rnbdwire.Write, rnbdwire.Flush
	for _, c := range []struct {
		what string
		op   int // 0 READ, 1 WRITE
		usr  []byte
		room int
		want error
	}{
		{"behind the end", 0, io("d", read, 0, sectors, 512), 512, blk.ErrRange},
		{"over the end", 0, io("d", read, 0, sectors-1, 1024), 1024, blk.ErrRange},
		{"sector that wraps in bytes", 0, io("d", read, 0, 1<<55, 512), 512, blk.ErrRange},
		{"sector that wraps to 0", 0, io("d", read, 0, 1<<63, 512), 512, blk.ErrRange},
		{"the last sector there is", 0, io("d", read, 0, 1<<64-1, 512), 512, blk.ErrRange},
		{"half a sector", 0, io("d", read, 0, 0, 100), 100, blk.ErrAlign},
		{"a sector of a 4096 device", 1, io("big", write, 0, 0, 512), 512, blk.ErrAlign},
		{"at a sector of a 4096 device", 1, io("big", write, 0, 1, 4096), 4096, blk.ErrAlign},
		{"larger than it takes", 1, io("poor", write, 0, 0, 8192), 8192, blk.ErrTooBig},
		{"discard it cannot", 1, io("poor", rnbdwire.Discard, 0, 0, 512), 0, blk.ErrNotSupported},
		{"zeroes it cannot", 1, io("poor", rnbdwire.WriteZeroes, 0, 0, 512), 0, blk.ErrNotSupported},
		{"discard over the end", 1, io("d", rnbdwire.Discard, 0, 0, 1<<20+512), 0, blk.ErrRange},
		{"discard of nothing", 1, io("d", rnbdwire.Discard, 0, 0, 0), 0, blk.ErrRequest},
		{"bad write with PREFLUSH", 1, io("d", write, rnbdwire.Preflush, sectors, 512), 512, blk.ErrRange},
		{"read with more room", 0, io("d", read, 0, 0, 512), 1024, blk.ErrRequest},
		{"read with less room", 0, io("d", read, 0, 0, 1024), 512, blk.ErrRequest},
		{"read without room", 0, io("d", read, 0, 0, 512), 0, blk.ErrRequest},
		{"write of fewer bytes", 1, io("d", write, 0, 0, 1024), 512, blk.ErrRequest},
		{"write of more bytes", 1, io("d", write, 0, 0, 512), 1024, blk.ErrRequest},
		{"write of nothing", 1, io("d", write, 0, 0, 0), 0, blk.ErrRequest},
		{"flush with data", 0, io("d", flush, 0, 0, 0), 512, blk.ErrRequest},
		{"discard with data", 1, io("d", rnbdwire.Discard, 0, 0, 512), 512, blk.ErrRequest},
		{"read by WRITE", 1, io("d", read, 0, 0, 512), 512, blk.ErrRequest},
		{"write by READ", 0, io("d", write, 0, 0, 512), 512, blk.ErrRequest},
		{"flush by WRITE", 1, io("d", flush, 0, 0, 0), 0, blk.ErrRequest},
		{"secure erase", 1, io("d", rnbdwire.SecureErase, 0, 0, 512), 0, blk.ErrNotSupported},
		{"unknown operation", 1, io("d", 6, 0, 0, 512), 0, blk.ErrRequest},
		{"operation 255", 1, io("d", 255, 0, 0, 512), 0, blk.ErrRequest},
		{"unknown device", 0, rawIO(ids["d"]+1000, read, 0, 0, 512), 512, ErrNotOpen},
		{"short IO", 0, io("d", read, 0, 0, 512)[:23], 512, rdserr.ErrInvalid},
		{"no message", 0, nil, 512, rdserr.ErrInvalid},
		{"half a type", 0, []byte{4}, 512, rdserr.ErrInvalid},
		{"unknown type", 0, []byte{9, 0, 0, 0}, 512, rdserr.ErrInvalid},
		{"an answer", 0, (&rnbdwire.OpenRsp{}).Append(nil), 512, rdserr.ErrInvalid},
		{"SESS_INFO by WRITE", 1, rnbdwire.AppendSessInfo(nil, rnbdwire.SessInfo, 2), 36, rdserr.ErrInvalid},
		{"SESS_INFO without room", 0, rnbdwire.AppendSessInfo(nil, rnbdwire.SessInfo, 2), 35, rdserr.ErrInvalid},
		{"short SESS_INFO", 0, make([]byte, 35), 36, rdserr.ErrInvalid},
		{"OPEN without room", 0, must(open1("d", ro)), 55, rdserr.ErrInvalid},
		{"OPEN by WRITE", 1, must(open1("d", ro)), 56, rdserr.ErrInvalid},
		{"OPEN in mode 3", 0, append([]byte{2, 0, 0, 0, 3}, make([]byte, 259)...), 56, rdserr.ErrInvalid},
		{"short CLOSE", 1, []byte{5, 0, 0, 0, 0, 0, 0}, 0, rdserr.ErrInvalid},
		{"CLOSE by READ", 0, rnbdwire.AppendClose(nil, ids["d"]), 8, rdserr.ErrInvalid},
		{"INFO without room", 0, rnbdwire.AppendInfo(nil, ids["d"]), 55, rdserr.ErrInvalid},
		{"short INFO", 0, []byte{1, 0x80, 0, 0}, 56, rdserr.ErrInvalid},
	} {
		op := rawRead
		if c.op == 1 {
			op = rawWrite
		}
		_, err := e.raw(op, c.usr, c.room)
		wantErr(t, c.what, err, c.want)
	}
	for _, op := range []rnbdwire.Op{write, rnbdwire.Discard, rnbdwire.WriteZeroes} {
		room := 0
		if op == write {
			room = 512
		}
		_, err := reader.raw(rawWrite, rawIO(roRsp.DeviceID, op, rnbdwire.FUA, 0, 512), room)
		wantErr(t, "ro session: "+op.String(), err, blk.ErrReadOnly)
	}
	if got := d.asked() + big.asked() + poor.asked(); got != "" {
		t.Errorf("the devices were asked %q", got)
	}
	if _, err := e.raw(rawRead, io("d", read, 0, sectors-1, 512), 512); err != nil {
		t.Errorf("the last sector: %v", err)
	}
	if _, err := reader.raw(rawRead, rawIO(roRsp.DeviceID, flush, 0, 0, 0), 0); err != nil {
		t.Errorf("flush of a reader: %v", err)
	}
}

// TestErrorsOfTheStore reach the request they belong to, by their number, and
// nobody else's.
func TestErrorsOfTheStore(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	f, _ := w.fault("d", 1<<20)
	e := w.client("c")
	v := e.mustMap("d", rw)
	for _, want := range []error{blk.ErrMedium, blk.ErrNoSpace} {
		f.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Off: 4096, Len: 512, Err: want, Short: 512, Count: 1})
		bad := e.submit(v, &blk.Request{Op: blk.OpWrite, Off: 4096, Len: 4096, Buf: make([]byte, 4096)})
		good := e.write(v, 8192, 7, 4096, 0)
		w.run()
		if !*bad || good != nil {
			t.Errorf("the one beside it: %v", good)
		}
		if err := v.Err(); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
		if err := e.write(v, 4096, 7, 4096, 0); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	}
	f.Add(blk.Rule{Ops: blk.Ops(blk.OpRead), Err: blk.ErrMedium, Count: 1})
	buf := bytes.Repeat([]byte{0x11}, 4096)
	if err := e.do(v, &blk.Request{Op: blk.OpRead, Len: 4096, Buf: buf}); !errors.Is(err, blk.ErrMedium) || !bytes.Equal(buf, bytes.Repeat([]byte{0x11}, 4096)) {
		t.Errorf("a read that failed: %v, and brought %x", err, buf[:8])
	}
	n := 0
	for _, ev := range w.events {
		if ev.Kind == ServerIOError {
			n++
		}
	}
	if n != 3 || e.countEvents(VolumeIOError) != 3 {
		t.Errorf("%d errors told at the server and %d at the client; want 3, one for each time", n, e.countEvents(VolumeIOError))
	}
}

// TestFailedSyncStays: B7 through everything, for flush and FUA: nothing syncs
// any more, for anybody who has the volume, until all have closed it.
func TestFailedSyncStays(t *testing.T) {
	for _, c := range []struct {
		what string
		rule blk.Rule
		do   func(e *end, v *Volume) error
	}{
		{"flush", blk.Rule{Ops: blk.Ops(blk.OpFlush)}, (*end).flush},
		{"FUA", blk.Rule{Ops: blk.Ops(blk.OpWrite), Off: 512, Len: 512}, func(e *end, v *Volume) error { return e.write(v, 512, 1, 512, blk.FUA) }},
	} {
		w := newWorld(t, ServerConfig{})
		f, _ := w.fault("d", 1<<20)
		a, b := w.client("a"), w.client("b")
		va, vb := a.mustMap("d", rw), b.mustMap("d", ro)
		c.rule.Err, c.rule.Count = blk.ErrMedium, 1
		f.Add(c.rule)
		if err := a.write(va, 8192, 1, 4096, 0); err != nil {
			t.Fatal(err)
		}
		wantErr(t, c.what, c.do(a, va), blk.ErrMedium)
		for range 2 {
			wantErr(t, c.what+": flush afterwards", a.flush(va), blk.ErrSyncFailed)
			wantErr(t, c.what+": FUA afterwards", a.write(va, 4096, 1, 512, blk.FUA), blk.ErrSyncFailed)
			wantErr(t, c.what+": another session's flush", b.flush(vb), blk.ErrSyncFailed)
			if err := a.write(va, 4096, 2, 512, 0); err != nil {
				t.Errorf("%s: a plain write: %v", c.what, err)
			}
			// It is not forgotten by being opened again by itself.
			a.cut()
			a.connect()
			if s, _ := va.State(); s != Open {
				t.Fatalf("%v, %v", s, va.Err())
			}
		}
		if a.countEvents(VolumeSyncLost) != 1 {
			t.Errorf("%s: told %d times", c.what, a.countEvents(VolumeSyncLost))
		}
	}
}

// fullOnce is a purse that is empty once.
type fullOnce struct{ empty bool }

func (p *fullOnce) Take(int64) error {
	if p.empty {
		p.empty = false
		return rdserr.ErrNoMemory
	}
	return nil
}
func (*fullOnce) Give(int64) {}
func (*fullOnce) Close()     {}

// TestNoRoomIsNoLostSync: a write with FUA for which there is no room is refused, and nothing before it is
// lost: when there is room, it and flushes succeed, and a store that is opened again is the same.
func TestNoRoomIsNoLostSync(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	purse := &fullOnce{}
	m, err := blk.NewMem(blk.MemOptions{Size: 1 << 20, Purse: purse})
	if err != nil {
		t.Fatal(err)
	}
	w.export(&Export{Name: "d", Device: m, Volatile: true})
	e := w.client("c")
	v := e.mustMap("d", rw)
	if err := e.write(v, 0, 1, 512, 0); err != nil {
		t.Fatal(err)
	}
	purse.empty = true
	wantErr(t, "without room", e.write(v, 512<<10, 1, 512, blk.FUA), blk.ErrNoSpace)
	if err := cmp.Or(e.flush(v), e.write(v, 512<<10, 1, 512, blk.FUA)); err != nil {
		t.Errorf("with room: %v", err)
	}
	for _, p := range w.srv.past {
		if p.syncs != 0 {
			t.Errorf("%d syncs count as lost", p.syncs)
		}
	}
	if e.countEvents(VolumeIOError) != 1 || e.countEvents(VolumeSyncLost) != 0 {
		t.Error("it is told as another error")
	}
}

// TestFailedSyncIsSeenAfterReopening: the store that was opened anew knows
// nothing of a failed sync; who has unflushed writes is told by the verifier.
// The serving daemon may be started again meanwhile. What failed may have been a
// write that told it in the sync's place (blk.SyncLost).
func TestFailedSyncIsSeenAfterReopening(t *testing.T) {
	for _, restart := range []bool{false, true} {
		for _, op := range []blk.Op{blk.OpFlush, blk.OpWrite} {
			t.Run(fmt.Sprintf("restart=%v/%v", restart, op), func(t *testing.T) { failedSyncIsSeen(t, restart, op) })
		}
	}
}

func failedSyncIsSeen(t *testing.T, restart bool, failing blk.Op) {
	path := filepath.Join(t.TempDir(), "f")
	writeFile(t, path, 1<<20)
	w := newWorld(t, ServerConfig{Boot: 7})
	var f *blk.Fault
	w.layers = func(d blk.Device) blk.Device { f = blk.NewFault(d, 1); return f }
	exp := &Export{Name: "d", Path: path, Rules: Rules{Shared: true}}
	w.export(exp)
	a, b := w.client("a"), w.client("b")
	va, vb := a.mustMap("d", rw), b.mustMap("d", rw)
	first := w.srv.Devices()[0].(*blk.Fault)
	if err := a.write(va, 0, 1, 4096, 0); err != nil {
		t.Fatal(err)
	}
	if failing == blk.OpFlush {
		first.Add(blk.Rule{Ops: blk.Ops(blk.OpFlush), Err: blk.ErrMedium, Count: 1})
		wantErr(t, "b's flush", b.flush(vb), blk.ErrMedium)
	} else {
		first.Add(blk.Rule{Ops: blk.Ops(blk.OpWrite), Err: blk.SyncLost{Err: blk.ErrMedium}, Count: 1})
		wantErr(t, "b's write", b.write(vb, 8192, 2, 4096, 0), blk.ErrMedium)
	}
	a.cut()
	b.cut()
	w.run()
	if len(w.srv.Devices()) != 0 {
		t.Fatal("still open")
	}
	if restart {
		w.restart(ServerConfig{Boot: 7, Past: w.srv.Past()}, exp)
	}
	b.connect()
	a.connect()
	wantErr(t, "a's flush of what b's failed flush may have lost", a.flush(va), blk.ErrSyncFailed)
	if failing == blk.OpFlush { // else b has written nothing that could be lost
		wantErr(t, "b's flush", b.flush(vb), blk.ErrSyncFailed)
	}
	if err := va.Unmap(w.now); err != nil {
		t.Fatal(err)
	}
	w.run()
	va = a.mustMap("d", rw)
	if err := a.flush(va); err != nil {
		t.Errorf("after it was mapped anew: %v", err)
	}
}

// TestDurable: B1. After a power cut at the server what was flushed, or written
// with FUA, is there.
func TestDurable(t *testing.T) {
	for seed := range int64(20) {
		m, err := blk.NewMem(blk.MemOptions{Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		vol := blk.NewVolatile(m, seed)
		w := newWorld(t, ServerConfig{})
		w.export(&Export{Name: "d", Device: vol})
		e := w.client("c")
		v := e.mustMap("d", rw)
		for i := range 8 {
			if err := e.write(v, uint64(i)*4096, byte(i+1), 4096, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.flush(v); err != nil {
			t.Fatal(err)
		}
		if err := e.write(v, 8*4096, 9, 4096, blk.FUA); err != nil {
			t.Fatal(err)
		}
		for i := range 9 { // not flushed
			if err := e.write(v, uint64(i)*4096+65536, 0x55, 4096, 0); err != nil {
				t.Fatal(err)
			}
		}
		if vol.Unsynced() == 0 {
			t.Fatal("nothing would be in danger: the test shows nothing")
		}
		if err := vol.PowerCut(); err != nil {
			t.Fatal(err)
		}
		_, err = e.read(v, 0, 512)
		wantErr(t, "without power", err, blk.ErrMedium)
		vol.Restore()
		for i := range 9 {
			if b, err := e.read(v, uint64(i)*4096, 4096); b != byte(i+1) || err != nil {
				t.Errorf("block %d: %d, %v", i, b, err)
			}
		}
	}
}

// TestHoles: a discard gives a file's space back, and so do zeroes unless they
// are to stay.
func TestHoles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	writeFile(t, path, 1<<20)
	w := newWorld(t, ServerConfig{})
	w.export(&Export{Name: "d", Path: path})
	e := w.client("c")
	v := e.mustMap("d", rw)
	if v.Info().MaxDiscard == 0 {
		t.Skip("the file system has no holes")
	}
	hole := func(off uint64) bool {
		f, ok := blk.As[blk.Mapper](w.srv.Devices()[0])
		if !ok {
			t.Fatal("no map")
		}
		ext, err := f.Map(off, 65536, make([]blk.Extent, 0, 1))
		if err != nil {
			t.Fatal(err)
		}
		return ext[0].Hole
	}
	for off, r := range map[uint64]*blk.Request{
		0:       {Op: blk.OpDiscard},
		1 << 16: {Op: blk.OpWriteZeroes},
		2 << 16: {Op: blk.OpWriteZeroes, Flags: blk.NoUnmap | blk.FUA},
	} {
		r.Off, r.Len = off, 1<<16
		if err := e.do(v, r); err != nil {
			t.Fatal(err)
		}
		if hole(off) != (r.Flags&blk.NoUnmap == 0) {
			t.Errorf("%v at %d: hole %v", r.Op, off, hole(off))
		}
		if b, err := e.read(v, off, 1<<16); b != 0 || err != nil {
			t.Errorf("%v at %d: reads %d, %v", r.Op, off, b, err)
		}
	}
	if b, err := e.read(v, 3<<16, 1<<16); b != byte(len(path)) || err != nil {
		t.Errorf("the rest: %d, %v", b, err)
	}
}

// TestDescribe: OPEN_RSP says what is so, within what its fields can hold.
func TestDescribe(t *testing.T) {
	i := blk.Info{Size: 1 << 40, LogicalBlock: 4096, PhysicalBlock: 1 << 16, MaxBytes: blk.MaxIO, MaxDiscard: blk.MaxSize,
		DiscardGranularity: 65536, DiscardAlignment: 512, MaxWriteZeroes: 1 << 20, Rotational: true, FUA: true, WriteCache: true}
	want := rnbdwire.OpenRsp{DeviceID: 9, Sectors: 1 << 31, MaxHWSectors: blk.MaxIO >> 9, MaxDiscard: 8388600, DiscardGranularity: 65536, DiscardAlignment: 512,
		MaxWriteZeroes: 1 << 11, PhysicalBlock: 1 << 15, LogicalBlock: 4096, MaxSegments: 128, Rotational: 1, Cache: rnbdwire.CacheFUA | rnbdwire.CacheWriteBack}
	if got := describe(&i, 9); got != want {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	i.ReadOnly = true
	if got := describe(&i, 9); got.MaxDiscard != 0 || got.MaxWriteZeroes != 0 || got.DiscardGranularity != 0 {
		t.Errorf("read-only: %+v", got)
	}
	i = blk.Info{Size: 1 << 20, LogicalBlock: 1 << 16, PhysicalBlock: 1 << 16, MaxBytes: 1 << 20}
	w := newWorld(t, ServerConfig{})
	w.export(&Export{Name: "d", Device: newRecorder(i)})
	_, err := w.client("c").rawOpen("d", ro)
	wantErr(t, "blocks that RNBD cannot tell of", err, blk.ErrNotSupported)
}

// TestFairness: a volume with a long queue does not hold up the others.
func TestFairness(t *testing.T) {
	w := newWorld(t, ServerConfig{})
	a, b := newRecorder(cached), newRecorder(cached)
	w.export(&Export{Name: "a", Device: a})
	w.export(&Export{Name: "b", Device: b})
	e := w.client("c")
	ra, err := e.rawOpen("a", rw)
	if err != nil {
		t.Fatal(err)
	}
	rb, err := e.rawOpen("b", rw)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		e.rawStart(rawRead, rawIO(ra.DeviceID, rnbdwire.Read, 0, 0, 512), 512)
	}
	e.rawStart(rawRead, rawIO(rb.DeviceID, rnbdwire.Read, 0, 0, 512), 512)
	var order []string
	for {
		d, batch := w.srv.Next(w.now, make([]*blk.Request, 0, 10))
		if d == nil {
			break
		}
		name := "a"
		if d == blk.Device(b) {
			name = "b"
		}
		order = append(order, name)
		for _, r := range batch {
			r.Queue = w
		}
		w.atStore += len(batch)
		d.Submit(batch)
	}
	if len(order) != 11 || order[1] != "b" {
		t.Errorf("%v; want the second volume's turn after the first batch", order)
	}
	w.run()
}

// TestVersionIsTheSmaller: whoever asks with a version hears the smaller of it and ours.
func TestVersionIsTheSmaller(t *testing.T) {
	for asked, want := range map[uint8]uint8{1: 1, rnbdwire.Version: rnbdwire.Version, rnbdwire.Version + 5: rnbdwire.Version} {
		e := newWorld(t, ServerConfig{}).client("c")
		rsp, err := e.raw(rawRead, rnbdwire.AppendSessInfo(nil, rnbdwire.SessInfo, asked), rnbdwire.SessInfoLen)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := rnbdwire.ParseSessInfo(rsp, rnbdwire.SessInfoRsp); err != nil || got != want {
			t.Errorf("asked with version %d: %d, %v; want %d", asked, got, err, want)
		}
	}
}
