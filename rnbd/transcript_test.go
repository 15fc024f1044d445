package rnbd

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/crc32"
	"math/rand"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/transcript"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

const (
	programs     = 60
	programSteps = 250
)

// TestPrograms: servers and clients do what they did. After each step of a drawn program all
// that can be seen is compared: messages and their answers, news at both ends, outcomes, the
// times of the next calls, what an administrator is shown, what the next daemon is left with.
func TestPrograms(t *testing.T) {
	transcript.Check(t, "testdata/programs.hash", *update, programs, func(t *testing.T, seed int) (steps []string) {
		p := newProgram(t, int64(seed))
		for range programSteps {
			p.act()
			steps = append(steps, p.seen())
		}
		p.end()
		return append(steps, p.seen())
	})
}

// numbered is a store with an identity, as a file's, below the fault layer of a program.
type numbered struct {
	*blk.Mem
	id blk.FileID
}

func (n numbered) ID() blk.FileID { return n.id }

// program is a world in which things happen that were drawn.
type program struct {
	*world
	out   *strings.Builder
	boot  uint64
	mems  map[string]numbered
	asked []*asked
	vols  map[*end][]*Volume
}

// asked is a request of a user.
type asked struct {
	r    *blk.Request
	done bool
}

var programNames = []string{"a", "b", "c"}

func newProgram(t *testing.T, seed int64) *program {
	p := &program{world: newWorld(t, ServerConfig{Boot: 1, FirstID: 40, MaxOpen: 5}), out: &strings.Builder{}, boot: 1,
		mems: map[string]numbered{}, vols: map[*end][]*Volume{}}
	p.world.rnd = rand.New(rand.NewSource(seed))
	p.shuffle, p.noLog = true, true
	p.sent = func(e *end, r *rtrs.Req) {
		data := 0
		if r.Op == rtrs.Write {
			data = int(crc32.ChecksumIEEE(r.Data))
		}
		p.note("at %v %s sends %v %x, flow %d, admin %v, %d bytes %08x", p.now, e.name, r.Op, r.Usr, r.Flow, r.Admin, len(r.Data), data)
	}
	for i, name := range programNames {
		m, err := blk.NewMem(blk.MemOptions{Size: 1 << 18})
		if err != nil {
			t.Fatal(err)
		}
		p.mems[name] = numbered{m, blk.FileID{Dev: 1, Ino: uint64(i + 1)}}
	}
	p.layers = func(d blk.Device) blk.Device {
		f := blk.NewFault(d, 1)
		p.faults = append(p.faults, f)
		return f
	}
	for _, name := range programNames {
		p.export(p.offer(name))
	}
	for i, name := range []string{"x", "y", "z"} {
		cfg := ClientConfig{AskEvery: time.Second, OnLoss: rtrs.OnLoss(p.world.rnd.Intn(2)), LossTimeout: 3 * time.Second, IOTimeout: 5 * time.Second}
		if p.world.rnd.Intn(4) == 0 {
			cfg.AskEvery = -1
		}
		e := p.newEnd(name, fmt.Sprintf("10.0.0.%d", i+1), cfg)
		e.maxIO = 4096 << p.world.rnd.Intn(4)
		e.lateGone, e.asKernel = p.world.rnd.Intn(2) == 0, p.world.rnd.Intn(4) == 0
		e.connect()
	}
	return p
}

// offer is an export as an administrator may make it.
func (p *program) offer(name string) *Export {
	x := &Export{Name: name, Path: "/" + name, Open: func(string, blk.FileOptions) (blk.Device, error) {
		if p.world.rnd.Intn(12) == 0 {
			return nil, []error{rdserr.ErrNotFound, rdserr.ErrPerm, blk.ErrReadOnly, rdserr.ErrIO}[p.world.rnd.Intn(4)]
		}
		return p.mems[name], nil
	}}
	switch p.world.rnd.Intn(6) {
	case 0:
		x.ReadOnly = true
	case 1, 2:
		x.Shared = true
	case 3:
		x.Sessions = []string{"x", "?y", "*z"}
	case 4:
		x.Allow = []netip.Prefix{netip.MustParsePrefix("10.0.0.2/31")}
	}
	return x
}

func (p *program) note(format string, args ...any) { fmt.Fprintf(p.out, format+"; ", args...) }

func errno(err error) int {
	if err == nil {
		return 0
	}
	return int(rdserr.Errno(err))
}

func (p *program) act() {
	rnd := p.world.rnd
	e := p.ends[rnd.Intn(len(p.ends))]
	name := programNames[rnd.Intn(len(programNames))]
	var v *Volume
	if l := p.vols[e]; len(l) > 0 {
		v = l[rnd.Intn(len(l))]
	}
	acts := []struct {
		weight int
		what   string
		do     func()
	}{
		{60, "io", func() { p.io(e, v) }},
		{30, "step", func() { p.step() }},
		{15, "run", p.world.run},
		{10, "one", e.deliverOne},
		{14, "map", func() { p.mapOne(e, name) }},
		{6, "unmap", func() {
			if v != nil {
				p.note("%d", errno(v.Unmap(p.now)))
			}
		}},
		{5, "force", func() {
			if v != nil {
				p.note("%d", errno(v.ForceUnmap(p.now)))
			}
		}},
		{6, "remap", func() {
			if v != nil {
				p.note("%d", errno(v.Remap(p.now)))
			}
		}},
		{3, "ask", func() {
			if v != nil {
				v.Ask(p.now)
			}
		}},
		{3, "resize here", func() {
			if v != nil {
				p.note("%d", errno(v.Resize(uint64(1+rnd.Intn(64))<<12)))
			}
		}},
		{10, "cut", func() {
			if e.up {
				e.cut()
			}
		}},
		{25, "connect", func() {
			if !e.up {
				p.clear()
				e.connect()
			}
		}},
		{12, "tick", func() { p.world.tick(time.Duration(rnd.Intn(1500)) * time.Millisecond) }},
		{4, "long", func() { p.world.tick(4 * time.Second) }},
		{8, "fault", p.fault},
		{10, "release", p.releaseAll},
		{4, "force close", func() {
			if e.up {
				p.note("%d", errno(p.takeAway(e, name)))
			}
		}},
		{3, "unexport", func() { p.note("%d", errno(p.srv.Unexport(p.now, p.named(name)))) }},
		{2, "force unexport", func() { p.note("%d", errno(p.srv.ForceUnexport(p.now, p.named(name)))) }},
		{8, "export", func() { p.note("%d", errno(p.srv.Export(p.offer(name)))) }},
		{4, "resize", func() { p.note("%d", errno(p.mems[name].Resize(uint64(1+rnd.Intn(64))<<12))) }},
		{3, "hold", func() { p.holdOpen = !p.holdOpen }},
		{3, "hold notes", func() { p.holdNote = !p.holdNote }},
		{3, "start", p.start},
		{2, "raw", func() { p.raw(e) }},
	}
	sum := 0
	for _, a := range acts {
		sum += a.weight
	}
	n := rnd.Intn(sum)
	for _, a := range acts {
		if n -= a.weight; n < 0 {
			p.note("%s %s", e.name, a.what)
			a.do()
			return
		}
	}
}

func (p *program) io(e *end, v *Volume) {
	if v == nil {
		return
	}
	rnd := p.world.rnd
	r := &blk.Request{Op: []blk.Op{blk.OpRead, blk.OpRead, blk.OpWrite, blk.OpWrite, blk.OpWrite, blk.OpFlush, blk.OpWriteZeroes, blk.OpDiscard}[rnd.Intn(8)]}
	if r.Op != blk.OpFlush {
		r.Off, r.Len = uint64(rnd.Intn(70))<<12, uint64(1+rnd.Intn(6))<<12
		if rnd.Intn(8) == 0 {
			r.Len = 512
		}
	}
	switch r.Op {
	case blk.OpRead:
		r.Buf = make([]byte, r.Len)
	case blk.OpWrite:
		r.Buf = bytes.Repeat([]byte{byte(rnd.Intn(256))}, int(r.Len))
	}
	if r.Op.Writes() && rnd.Intn(6) == 0 {
		r.Flags = blk.FUA
	}
	p.note("%v %v at %d, %d", r.Op, r.Flags, r.Off, r.Len)
	a := &asked{r: r}
	p.asked = append(p.asked, a)
	r.Ctx, r.Queue = &a.done, blk.CompleteFunc(func(r *blk.Request) {
		*r.Ctx.(*bool) = true
		p.note("at %v %v at %d has ended: %d %08x", p.now, r.Op, r.Off, errno(r.Err), crc32.ChecksumIEEE(r.Buf))
	})
	v.Submit(p.now, []*blk.Request{r})
}

func (p *program) mapOne(e *end, name string) {
	access := []rnbdwire.Access{ro, rw, rw, rnbdwire.Migration}[p.world.rnd.Intn(4)]
	verifier := uint64(0)
	if p.world.rnd.Intn(4) == 0 {
		verifier = 5
	}
	var v *Volume
	var err error
	if verifier == 0 {
		v, err = e.c.Map(p.now, name, access)
	} else {
		v, err = e.c.MapAgain(p.now, name, access, Kept{Verifier: verifier})
	}
	if p.note("%s %v %d: %d", name, access, verifier, errno(err)); err == nil {
		p.vols[e] = append(p.vols[e], v)
	}
}

// fault has one of the stores that are open misbehave.
func (p *program) fault() {
	if len(p.faults) == 0 {
		return
	}
	rnd := p.world.rnd
	r := []blk.Rule{{Stall: true, Count: 1 + rnd.Intn(3)}, {Ops: blk.Ops(blk.OpWrite), Err: blk.ErrMedium, Count: 1}, {Ops: blk.Ops(blk.OpFlush), Err: blk.ErrMedium, Count: 1},
		{Ops: blk.Ops(blk.OpRead), Err: blk.ErrMedium, Count: 2}}[rnd.Intn(4)]
	p.faults[rnd.Intn(len(p.faults))].Add(r)
}

func (p *program) releaseAll() {
	for _, f := range p.faults {
		f.Release()
	}
}

// clear ends what is at the stores, as a fence of the session would.
func (p *program) clear() {
	for _, f := range p.faults {
		f.Clear()
		f.Release()
	}
	p.holdOpen, p.holdNote = false, false
	p.world.run()
}

func (p *program) held() []Held {
	held := p.srv.Held()
	slices.SortFunc(held, func(a, b Held) int {
		return cmp.Or(cmp.Compare(a.Session, b.Session), cmp.Compare(a.Name, b.Name), cmp.Compare(strconv.FormatBool(a.Reads), strconv.FormatBool(b.Reads)))
	})
	return held
}

// start replaces the daemon that serves, or its machine.
func (p *program) start() {
	for _, e := range p.ends {
		if e.up {
			e.cut()
		}
	}
	p.clear()
	past, held := p.srv.Past(), p.held()
	slices.SortFunc(past, func(a, b Past) int { return cmp.Compare(a.Where, b.Where) })
	if p.world.rnd.Intn(3) == 0 {
		p.boot++
		for i := range held {
			held[i].Earlier = true
		}
		for i := range past {
			past[i].Earlier = true
		}
	}
	exports := p.srv.Exports()
	slices.SortFunc(exports, func(a, b *Export) int { return cmp.Compare(a.Name, b.Name) })
	p.faults = nil
	p.world.restart(ServerConfig{Boot: p.boot, FirstID: uint32(p.world.rnd.Intn(50)), MaxOpen: 5, Past: past, Held: held, Notes: p.world.rnd.Intn(2) == 0}, exports...)
}

// raw sends a message that no client of ours would send now.
func (p *program) raw(e *end) {
	if !e.up {
		return
	}
	rnd := p.world.rnd
	id := uint32(38 + rnd.Intn(8))
	var r *rtrs.Req
	switch rnd.Intn(4) {
	case 0:
		r = e.rawStart(rawWrite, rnbdwire.AppendClose(nil, id), 0)
	case 1:
		r = e.rawStart(rawRead, rawIO(id, rnbdwire.Read, 0, uint64(rnd.Intn(600)), 4096), 4096)
	case 2:
		r = e.rawStart(rawRead, rnbdwire.AppendInfo(nil, id), rnbdwire.OpenRspLen)
	default:
		r = e.rawStart(rawRead, must(open1(programNames[rnd.Intn(3)], rw)), rnbdwire.OpenRspLen)
	}
	p.world.run()
	p.note("raw %x: %v %d %08x", r.Usr, r.Ctx.(*rawWait).done, errno(r.Err), crc32.ChecksumIEEE(r.Data))
}

// seen is what there was to be seen since it was asked last.
func (p *program) seen() string {
	for _, e := range p.ends {
		e.finished()
	}
	p.asked = slices.DeleteFunc(p.asked, func(a *asked) bool { return a.done })
	for _, e := range p.ends {
		p.seenOf(e)
	}
	for _, ev := range p.events {
		p.note("server: %v %s %s %v %v %d", ev.Kind, ev.Name, ev.Session, ev.Access, ev.Op, errno(ev.Err))
	}
	p.note("%d closed, %d kept, %d notes, %d openings", len(p.closed), p.kept, len(p.notes), len(p.openings))
	p.events, p.closed, p.kept = nil, nil, 0
	open := p.srv.Open()
	slices.SortFunc(open, func(a, b OpenInfo) int {
		return cmp.Or(cmp.Compare(a.Session.Name, b.Session.Name), cmp.Compare(a.DeviceID, b.DeviceID))
	})
	for _, o := range open {
		p.note("open: %s %s %v %d, %d, since %v, %v", o.Session.Name, o.Name, o.Access, o.DeviceID, o.Inflight, o.Since, o.Forced)
	}
	past := p.srv.Past()
	slices.SortFunc(past, func(a, b Past) int { return cmp.Compare(a.Where, b.Where) })
	for _, x := range past {
		slices.SortFunc(x.Behind, func(a, b Writer) int { return cmp.Compare(a.Name, b.Name) })
		p.note("past: %+v", x)
	}
	for _, x := range p.held() {
		p.note("held: %+v", x)
	}
	s := p.out.String()
	p.out.Reset()
	return s
}

func (p *program) seenOf(e *end) {
	for _, ev := range e.events {
		p.note("%s: %v %s %v %v %d %v %d", e.name, ev.Kind, ev.Volume.Name(), ev.From, ev.To, ev.Size, ev.Op, errno(ev.Err))
	}
	e.events = nil
	p.note("%s: %d changed, next in %v", e.name, e.changed, e.c.Next()-p.now)
	for _, v := range p.vols[e] {
		err, mapped := e.mapped[v]
		st, since := v.State()
		sent, held := v.Inflight()
		p.note("%s: %v since %v, mapped %v %d, unmapped %v, %d and %d, asking %v, %d, verifier %x", v.Name(), st, since, mapped, errno(err), e.unmapped[v], sent, held, v.Asking(), errno(v.Err()), v.Kept().Verifier)
		if i := v.Info(); i != nil {
			p.note("%d %d %d, piece %d", i.Size, i.LogicalBlock, i.MaxBytes, v.Piece())
		}
	}
	p.vols[e] = slices.DeleteFunc(p.vols[e], func(v *Volume) bool {
		err, mapped := e.mapped[v]
		return e.unmapped[v] || mapped && err != nil
	})
}

// end lets everything end: nothing that was asked for is left without an outcome.
func (p *program) end() {
	p.clear()
	for _, e := range p.ends {
		if !e.up {
			e.connect()
		}
		for _, v := range p.vols[e] {
			v.ForceUnmap(p.now)
		}
	}
	p.world.run()
	p.world.tick(10 * time.Second)
	for _, e := range p.ends {
		e.finished()
		for _, v := range e.c.Volumes() {
			p.t.Errorf("%s has %q in %v", e.name, v.Name(), stateOf(v))
		}
	}
	for _, a := range p.asked {
		if !a.done {
			p.t.Errorf("%v at %d has no outcome", a.r.Op, a.r.Off)
		}
	}
}
