package rnbd

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/blk"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
	"github.com/rdsd/rdsd/wire/wiretest"
)

// recorder is a device that notes what it is asked, and says yes.
type recorder struct {
	blk.State
	log []string
}

func newRecorder(info blk.Info) *recorder {
	d := &recorder{}
	d.SetInfo(&info)
	return d
}

func (d *recorder) Submit(batch []*blk.Request) {
	for _, r := range batch {
		if r.Err = d.Info().Check(r); r.Err != nil {
			continue
		}
		s := r.Op.String()
		if r.Op != blk.OpFlush {
			s += fmt.Sprintf(" %d+%d", r.Off, r.Len)
		}
		if r.Flags&blk.FUA != 0 {
			s += " fua"
		}
		if r.Flags&blk.NoUnmap != 0 {
			s += " no-unmap"
		}
		d.log = append(d.log, s)
		for i := range r.Buf {
			if r.Op == blk.OpRead {
				r.Buf[i] = byte(i)
			}
		}
	}
	blk.Complete(batch)
}

func (d *recorder) Close() error { return nil }

// asked is what it was asked since the last time.
func (d *recorder) asked() string {
	s := strings.Join(d.log, ", ")
	d.log = nil
	return s
}

// vector is a request of wire/rtrs, whose user header is RNBD's, or an answer of
// wire/rnbd.
type vector struct{ wiretest.Vector }

func vectors(t testing.TB) (vs []vector) {
	all := append(wiretest.Read(t, "../wire/rtrs/testdata/rtrs.txt", "desc"), wiretest.Read(t, "../wire/rnbd/testdata/rnbd.txt")...)
	for _, v := range all {
		vs = append(vs, vector{v})
	}
	return vs
}

func (v *vector) num(name string) uint64 {
	n, _ := strconv.ParseUint(v.Fields[name], 0, 64)
	return n
}

// captured are the vectors of a kind that a kernel sent, the first of each name.
func captured(t testing.TB, kind string) map[string]*vector {
	m := map[string]*vector{}
	for _, v := range vectors(t) {
		if v.Kind == kind && v.Captured() && m[v.Name] == nil {
			m[v.Name] = &v
		}
	}
	if len(m) == 0 {
		t.Fatalf("no captured vector of kind %s", kind)
	}
	return m
}

// user is the user header of a captured request.
func (v *vector) user() []byte { return v.Hex[:v.num("usrlen")] }

// ram0 and loop0 are the kernel's devices that were captured.
var (
	ram0  = blk.Info{Size: 524288 << 9, LogicalBlock: 512, PhysicalBlock: 4096, MaxBytes: 255 << 9, MaxSegments: 128}
	loop0 = blk.Info{Size: 131072 << 9, LogicalBlock: 512, PhysicalBlock: 512, MaxBytes: 2560 << 9, MaxSegments: 128,
		MaxDiscard: 8388607 << 9, DiscardGranularity: 4096, WriteCache: true}
)

// TestAnswersAreTheKernels: to a kernel's own requests the server answers byte
// for byte what a kernel's server has answered.
func TestAnswersAreTheKernels(t *testing.T) {
	w := newWorld(t, ServerConfig{FirstID: 1<<32 - 1})
	for name, info := range map[string]blk.Info{"dev/ram0": ram0, "dev/loop0": loop0, "filler": ram0} {
		w.export(&Export{Name: name, Device: newRecorder(info)})
	}
	e := w.client("c")
	req, open := captured(t, "request"), captured(t, "openrsp")
	if _, err := e.raw(rawRead, must(open1("filler", rnbdwire.ReadOnly)), 56); err != nil {
		t.Fatal(err) // it takes number 2^32-1
	}
	for _, c := range []struct {
		usr  []byte
		want []byte
	}{
		{req["sess-info"].user(), captured(t, "sessinforsp")["version-2"].Hex},
		{req["open"].user(), open["device-0"].Hex},
		{req["open-2"].user(), open["device-1"].Hex},
		{req["open"].user(), open["device-0"].Hex}, // again, while it is open
	} {
		got, err := e.raw(rawRead, c.usr, len(c.want))
		if err != nil || !bytes.Equal(got, c.want) {
			t.Errorf("%x\nanswered %x, %v\nwant     %x", c.usr, got, err, c.want)
		}
	}
}

// TestKernelsRequests: every request of a kernel's client that was captured is
// carried out.
func TestKernelsRequests(t *testing.T) {
	seen := map[string]int{}
	for _, v := range vectors(t) {
		if v.Kind != "request" || v.Fields["rnbd"] != "io" || v.Fields["invalid"] != "" {
			continue
		}
		info := blk.Info{Size: 1 << 50, LogicalBlock: 512, PhysicalBlock: 4096, MaxBytes: blk.MaxIO,
			MaxDiscard: blk.MaxSize, MaxWriteZeroes: blk.MaxSize, FUA: true, WriteCache: true}
		w := newWorld(t, ServerConfig{FirstID: uint32(v.num("device"))})
		if v.num("device") == RandomID { // 0 is taken for random: let one go before
			w = newWorld(t, ServerConfig{FirstID: 1<<32 - 1})
		}
		d := newRecorder(info)
		w.export(&Export{Name: "d", Device: d})
		e := w.client("c")
		if v.num("device") == RandomID {
			w.mem("filler", 4096)
			e.mustMap("filler", rnbdwire.ReadOnly)
		}
		e.mustMap("d", rnbdwire.ReadWrite)
		op := rawRead
		if v.Fields["type"] == "write" {
			op = rawWrite
		}
		_, err := e.raw(op, v.user(), int(v.num("datalen")))
		seen[v.Fields["op"]]++
		want := fmt.Sprintf("%s %d+%d", v.Fields["op"], v.num("sector")*512, v.num("size"))
		switch v.Fields["op"] {
		case "flush":
			want = "flush"
		case "write-zeroes":
			want = strings.Replace(want, "write-zeroes", "write zeroes", 1)
		case "secure-erase":
			wantErr(t, "secure erase", err, blk.ErrNotSupported)
			continue
		}
		got := d.asked()
		if err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: asked %q, %v; want %q", v.Name, got, err, want)
		}
	}
	for _, op := range []string{"read", "write", "flush", "discard", "write-zeroes"} {
		if seen[op] == 0 {
			t.Errorf("no vector with %s", op)
		}
	}
}

// TestMessagesAreTheKernels: what the client sends is what a kernel's client
// has sent, but for the mark that tells an rdsd and for the priority.
func TestMessagesAreTheKernels(t *testing.T) {
	req := captured(t, "request")
	w := newWorld(t, ServerConfig{FirstID: 1<<32 - 1})
	w.mem("filler", 4096)
	for name, info := range map[string]blk.Info{"/dev/ram0": ram0, "/dev/loop0": loop0} {
		info.Size, info.MaxBytes = 1<<50, blk.MaxIO
		w.export(&Export{Name: cleanName(name), Device: newRecorder(info)})
	}
	e := w.client("c")
	e.maxIO = rtrswire.ChunkSize - rtrswire.HdrSize
	e.mustMap("filler", rnbdwire.ReadOnly)
	sent := e.log[0]
	copy(sent[5:], make([]byte, 5))
	if want := req["sess-info"].user(); !bytes.Equal(sent, want) {
		t.Errorf("SESS_INFO %x\nwant      %x", sent, want)
	}
	vols := map[uint64]*Volume{}
	for id, name := range []string{"open", "open-2"} {
		v := req[name]
		vols[uint64(id)] = e.mustMap(v.Fields["name"], rnbdwire.ReadWrite)
		if got := e.log[len(e.log)-1]; !bytes.Equal(got, v.user()) {
			t.Errorf("OPEN %x\nwant %x", got, v.user())
		}
	}
	compared := 0
	for _, v := range vectors(t) {
		if v.Kind != "request" || v.Fields["rnbd"] != "io" || !v.Captured() || vols[v.num("device")] == nil {
			continue
		}
		r := &blk.Request{Off: v.num("sector") << 9, Len: v.num("size")}
		switch v.Fields["op"] {
		case "read":
			r.Buf = make([]byte, r.Len)
		case "write":
			r.Op, r.Buf = blk.OpWrite, make([]byte, r.Len)
		case "flush":
			r.Op, r.Off = blk.OpFlush, 0
		default:
			continue
		}
		if err := e.do(vols[v.num("device")], r); err != nil {
			t.Fatalf("%s: %v", v.Name, err)
		}
		want := bytes.Clone(v.user())
		copy(want[24:], make([]byte, 8)) // priority and padding
		if got := e.log[len(e.log)-1]; !bytes.Equal(got, want) {
			t.Errorf("%s: %x\nwant %x", v.Name, got, want)
		}
		compared++
	}
	if compared < 15 {
		t.Errorf("only %d compared", compared)
	}
}
