package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// TestServerThatSaysItWrong: one bit of what frames a server's words, at any place of the
// negotiation, and the client gives up: it believes nothing of what follows.
func TestServerThatSaysItWrong(t *testing.T) {
	said := whatAServerSays("x", repAck)
	frame := []int{17} // the flags, of which fixed newstyle is the last bit
	for i := range 16 {
		frame = append(frame, i)
	}
	for at := 18; at < len(said); at += 20 + int(binary.BigEndian.Uint32(said[at+16:])) {
		for i := range 12 {
			frame = append(frame, at+i)
		}
	}
	if len(frame) < 16+6*12 {
		t.Fatalf("only %d bytes are looked at", len(frame))
	}
	for _, at := range frame {
		wrong := slices.Clone(said)
		wrong[at] ^= 1
		c := &Client{nc: newTape(wrong, 99)}
		if err := c.negotiate("x"); !errors.Is(err, rdserr.ErrProtocol) {
			t.Errorf("byte %d of %d is wrong: %v", at, len(said), err)
		}
	}
	for n, want := range map[int]error{maxString: nil, maxString + 1: rdserr.ErrInvalid} {
		c := &Client{nc: newTape(said, 99)}
		if err := c.negotiate(strings.Repeat("n", n)); !errors.Is(err, want) {
			t.Errorf("a name of %d bytes: %v, want %v", n, err, want)
		}
	}
}

// TestInfoThatIsAskedFor: of each choice of information a client gets just that, and what the
// export is.
func TestInfoThatIsAskedFor(t *testing.T) {
	_, socket := serve(t, Options{}, Export{Name: "x", Description: "described", Device: memory(t, 1<<20)})
	c := dialClient(t, socket)
	c.greet(3)
	types := []uint16{infoName, infoDescription, infoBlockSize}
	for choice := range 1 << len(types) {
		want := []uint16{infoExport}
		for i, kind := range types {
			if choice&(1<<i) != 0 {
				want = append(want, kind)
			}
		}
		var got []uint16
		for kind := range c.info("x", want[1:]...) {
			got = append(got, kind)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("asked for %v, got %v", want, got)
		}
	}
}

// TestZeroesAsData: a server that knows no write zeroes gets all of them as data, in pieces that
// it takes.
func TestZeroesAsData(t *testing.T) {
	info := everything
	info.Size, info.MaxWriteZeroes = 8<<20, 0
	d := newNoting(info)
	_, socket := serve(t, Options{}, Export{Device: d})
	for _, x := range []struct {
		most uint32
		n    int64
		want []int
	}{
		{0, 512, []int{512}},
		{0, 1 << 20, []int{1 << 20}},
		{0, 2<<20 + 512, []int{1 << 20, 1 << 20, 512}},
		{4096, 3*4096 + 512, []int{4096, 4096, 4096, 512}},
		{4096, 512, []int{512}},
	} {
		c := dial(t, socket, "")
		if x.most > 0 {
			c.info.MaxBytes = x.most
		}
		if err := c.WriteZeroes(1024, x.n); err != nil {
			t.Fatal(err)
		}
		var want []string
		at := 1024
		for _, n := range x.want {
			want = append(want, fmt.Sprintf("%v %d+%d %v", blk.OpWrite, at, n, blk.Flags(0)))
			at += n
		}
		if got := d.asked(); got != strings.Join(want, ", ") {
			t.Errorf("%d zeroes, at most %d at a time: %s", x.n, x.most, got)
		}
		c.Close()
	}
}

// TestConnectAnyIndex: a device of any number, 0 as well, is the one that was connected.
func TestConnectAnyIndex(t *testing.T) {
	for _, index := range []string{"00", "01", "0f"} {
		withGenl(t, []string{`1c000000 2a00 0000 02000000 00000000  01 01 0000  0800 0100 ` + index + `000000 |` + acknowledged}, "", func() {
			if n, err := Connect(AnyDevice, attached); fmt.Sprintf("%02x", n) != index || err != nil {
				t.Errorf("device %s: %d, %v", index, n, err)
			}
		})
	}
}

// TestControlOfAClosedConnection: it is told, and nothing is done.
func TestControlOfAClosedConnection(t *testing.T) {
	kernel, ours, err := KernelPair()
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	failed := errors.New("failed")
	for _, want := range []error{nil, failed} {
		if err := control(ours, func(int) error { return want }); err != want {
			t.Errorf("%v, want %v", err, want)
		}
	}
	ours.Close()
	if err := control(ours, func(int) error { t.Error("it was done"); return nil }); !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.EINVAL) {
		t.Errorf("%v", err)
	}
}

// TestOrderlyEnds: the end of the stream is orderly between two requests, and the end of the
// time is where the server or the export stops; nothing else is.
func TestOrderlyEnds(t *testing.T) {
	for _, stopping := range []bool{false, true} {
		for _, leaving := range []bool{false, true} {
			c := &conn{}
			c.stopping.Store(stopping)
			c.leaving.Store(leaving)
			for err, want := range map[error]bool{io.EOF: true, os.ErrDeadlineExceeded: stopping || leaving, io.ErrUnexpectedEOF: false, syscall.ECONNRESET: false, net.ErrClosed: false} {
				if c.ended(err) != want {
					t.Errorf("stopping %v, leaving %v: %v is an orderly end: %v", stopping, leaving, err, !want)
				}
			}
		}
	}
	for what, c := range map[string]*conn{"in a header": {w: 1}, "in a payload": {big: &op{}}, "in what is skipped": {skip: 1}} {
		if c.ended(io.EOF) {
			t.Errorf("an orderly end %s", what)
		}
	}
}

// TestReaderWaitsForItsBuffer: a reader without need of a request waits while others read in
// its buffer and there is no room for another one.
func TestReaderWaitsForItsBuffer(t *testing.T) {
	for refs, want := range map[int32]bool{1: false, 2: true, 3: true} {
		c := &conn{srv: &Server{opts: Options{MaxBytes: 1}}, need: -1, inFlight: 1, bytes: 1, rb: &recvBuf{}}
		c.rb.refs.Store(refs)
		if c.waitsForRoom() != want {
			t.Errorf("%d references: waits %v", refs, !want)
		}
	}
}

// alone is a device that is asked for its holes by one at a time, and waits in between.
type alone struct {
	blk.Device
	here    atomic.Int32
	entered chan int32
	let     chan struct{}
}

func (d *alone) Map(off, n uint64, out []blk.Extent) ([]blk.Extent, error) {
	d.entered <- d.here.Add(1)
	<-d.let
	d.here.Add(-1)
	return append(out, blk.Extent{Len: n}), nil
}

// TestLookupsOneByOne: of one connection one status is asked for at a time, however many
// wait, and each is answered.
func TestLookupsOneByOne(t *testing.T) {
	d := &alone{Device: memory(t, 1<<20), entered: make(chan int32, 64), let: make(chan struct{}, 64)}
	_, socket := serve(t, Options{}, Export{Device: d})
	c := enter(t, socket, "", true)
	const each = 3
	for round := range 50 {
		for range each {
			c.send(command(cmdBlockStatus, 0, 7, 0, 4096, nil))
		}
		c.send(command(cmdRead, 0, 8, 0, 512, nil)) // the others are queued when this is answered
		if r := c.reply(512); r.value != 0 {
			t.Fatalf("round %d: %v", round, r)
		}
		for range each {
			if n := <-d.entered; n != 1 {
				t.Fatalf("round %d: %d are asked at a time", round, n)
			}
			d.let <- struct{}{}
			if r := c.reply(0); r.value != 0 {
				t.Fatalf("round %d: %v", round, r)
			}
		}
	}
}
