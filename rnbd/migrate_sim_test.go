package rnbd

import (
	"bytes"
	"encoding/binary"
	"math/rand"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// watched is a store that tells of each write, in order.
type watched struct {
	blk.Device
	wrote func(id uint64)
}

func (d *watched) Unwrap() blk.Device { return d.Device }

func (d *watched) Submit(batch []*blk.Request) {
	for _, r := range batch {
		if r.Op == blk.OpWrite {
			d.wrote(binary.LittleEndian.Uint64(r.Buf))
		}
	}
	d.Device.Submit(batch)
}

// mover is a client that maps one volume in any mode.
type mover struct {
	*end
	v     *Volume
	waits map[uint64]int // writes that waited when its session was lost, by how many had been done then
	out   map[uint64]*bool
}

// lose cuts m off when so many writes have been done.
func (m *mover) lose(done int) {
	m.cut()
	for id, ended := range m.out {
		if _, was := m.waits[id]; !*ended && !was {
			m.waits[id] = done
		}
	}
}

// TestMigrationsKeepOrder: whoever has a volume beside whom, however sessions are lost and the daemon ends, a
// write that waited for its session goes on only if no other session has written since that was lost.
func TestMigrationsKeepOrder(t *testing.T) {
	late, beside := 0, 0
	for seed := range int64(400) {
		rnd := rand.New(rand.NewSource(seed))
		exp := &Export{Name: "d", Path: filepath.Join(t.TempDir(), "f")}
		writeFile(t, exp.Path, 1<<20)
		w := newWorld(t, ServerConfig{Boot: 7, Notes: true})
		w.noLog = true
		var log []uint64 // each write that the store had: its client in the low bits
		var all []*mover
		w.layers = func(d blk.Device) blk.Device {
			return &watched{d, func(id uint64) {
				who := all[id%4]
				if since, was := who.waits[id]; was {
					late++
					for _, o := range log[since:] {
						if o%4 != id%4 {
							t.Fatalf("seed %d: write %d of %s goes over %d", seed, id, who.name, o)
						}
					}
				}
				log = append(log, id)
			}}
		}
		w.export(exp)
		for _, name := range []string{"a", "b", "c"} {
			all = append(all, &mover{end: w.client(name), waits: map[uint64]int{}, out: map[uint64]*bool{}})
		}
		disk, held := w.srv.Past(), w.srv.Held()
		for id := uint64(1); id < 120; id++ {
			who := all[rnd.Intn(3)]
			if who.v != nil && stateOf(who.v) == Unmapped {
				who.v = nil
			}
			switch n := rnd.Intn(16); {
			case who.v == nil && who.up:
				access := []rnbdwire.Access{rw, migration}[rnd.Intn(2)]
				if v, err := who.tryMap("d", access); err == nil {
					who.v = v
				}
			case n < 6 && who.v != nil:
				buf := bytes.Repeat([]byte{0}, 512)
				binary.LittleEndian.PutUint64(buf, id*4+uint64(who.name[0]-'a'))
				done := who.submit(who.v, &blk.Request{Op: blk.OpWrite, Len: 512, Buf: buf})
				who.out[binary.LittleEndian.Uint64(buf)] = done
				if !who.up {
					who.waits[binary.LittleEndian.Uint64(buf)] = len(log)
				}
			case n < 10 && who.up:
				who.lose(len(log))
			case n < 13 && !who.up:
				w.run()
				who.connect()
			case n == 13 && who.v != nil && who.up:
				_ = who.v.Unmap(w.now)
			case n == 14 && who.v != nil:
				_ = who.v.Remap(w.now)
			case n == 15 && rnd.Intn(3) == 0:
				for _, m := range all {
					if m.up {
						m.lose(len(log))
					}
				}
				w.run()
				if rnd.Intn(2) == 0 { // in order
					disk, held = w.srv.Past(), w.srv.Held()
				}
				w.restart(ServerConfig{Boot: 7, Past: disk, Held: held, Notes: true}, exp)
			}
			if rnd.Intn(4) > 0 {
				w.run()
			}
			for _, p := range w.srv.past {
				if len(p.beside) > 0 {
					beside++
				}
			}
			disk, held = w.srv.Past(), w.srv.Held()
			w.tick(time.Duration(rnd.Intn(2)) * time.Second)
		}
		for _, m := range all {
			if m.up {
				m.lose(len(log))
			}
		}
		w.run()
	}
	if late < 100 || beside < 100 {
		t.Errorf("%d writes waited, and %d times two had the volume: too few to show anything", late, beside)
	}
}
