package nbd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// scripted is a server that runs serve for its one connection.
func scripted(t *testing.T, serve func(nc net.Conn)) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "rdsd")
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if nc, err := l.Accept(); err == nil {
			nc.SetDeadline(time.Now().Add(10 * time.Second))
			serve(nc)
			nc.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
		os.RemoveAll(dir)
	})
	return socket
}

func simpleReply(value uint32, cookie uint64, data ...byte) []byte {
	be := binary.BigEndian
	b := be.AppendUint32(nil, magicSimple)
	b = be.AppendUint32(b, value)
	return append(be.AppendUint64(b, cookie), data...)
}

func chunk(flags, kind uint16, cookie uint64, data ...[]byte) []byte {
	be := binary.BigEndian
	all := bytes.Join(data, nil)
	b := be.AppendUint32(nil, magicStructured)
	b = be.AppendUint16(b, flags)
	b = be.AppendUint16(b, kind)
	b = be.AppendUint64(b, cookie)
	b = be.AppendUint32(b, uint32(len(all)))
	return append(b, all...)
}

// TestClientReplies: what a server may answer to a read of 16 bytes at 512, and
// what it may not. The first request has cookie 1.
func TestClientReplies(t *testing.T) {
	data := bytes.Repeat([]byte{7}, 16)
	join := func(bs ...[]byte) []byte { return bytes.Join(bs, nil) }
	for _, c := range []struct {
		what   string
		answer []byte
		want   error // nil: data, or zeroes for what is a hole
		got    []byte
	}{
		{"simple", simpleReply(0, 1, data...), nil, data},
		{"simple error", simpleReply(errIO, 1), syscall.EIO, nil},
		{"in pieces, out of order", join(
			chunk(0, replyOffsetData, 1, u64(520), data[:8]),
			chunk(0, replyOffsetHole, 1, u64(512), u32(8)),
			chunk(replyFlagDone, replyNone, 1)), nil, append(make([]byte, 8), data[:8]...)},
		{"error after data", join(
			chunk(0, replyOffsetData, 1, u64(512), data[:8]),
			chunk(replyFlagDone, replyErrorOffset, 1, u32(errNoSpc), u16(4), []byte("full"), u64(520))), syscall.ENOSPC, nil},
		{"an error of a kind to come", chunk(replyFlagDone, 1<<15+9, 1, u32(errPerm), []byte("xyz")), syscall.EPERM, nil},

		{"another cookie", simpleReply(0, 2, data...), rdserr.ErrProtocol, nil},
		{"no reply at all", []byte("HTTP/1.1 400 Bad"), rdserr.ErrProtocol, nil},
		{"too little", join(chunk(replyFlagDone, replyOffsetData, 1, u64(512), data[:8])), rdserr.ErrProtocol, nil},
		{"nothing", chunk(replyFlagDone, replyNone, 1), rdserr.ErrProtocol, nil},
		{"before the buffer", chunk(replyFlagDone, replyOffsetData, 1, u64(511), data), rdserr.ErrProtocol, nil},
		{"behind the buffer", chunk(replyFlagDone, replyOffsetData, 1, u64(513), data), rdserr.ErrProtocol, nil},
		{"an offset that wraps", chunk(replyFlagDone, replyOffsetData, 1, u64(1<<64-8), data), rdserr.ErrProtocol, nil},
		{"too long", chunk(replyFlagDone, replyOffsetData, 1, u64(512), data, data), rdserr.ErrProtocol, nil},
		{"twice", join(chunk(0, replyOffsetData, 1, u64(512), data), chunk(0, replyOffsetData, 1, u64(512), data)), rdserr.ErrProtocol, nil},
		{"a long hole", chunk(replyFlagDone, replyOffsetHole, 1, u64(512), u32(17)), rdserr.ErrProtocol, nil},
		{"extents", chunk(replyFlagDone, replyBlockStatus, 1, u32(allocationID), u32(512), u32(0)), rdserr.ErrProtocol, nil},
		{"an error that is none", chunk(replyFlagDone, replyError, 1, u32(0), u16(0)), rdserr.ErrProtocol, nil},
		{"a text longer than its chunk", chunk(replyFlagDone, replyError, 1, u32(errIO), u16(9), []byte("x")), rdserr.ErrProtocol, nil},
		{"an unknown kind", chunk(replyFlagDone, 99, 1, data), rdserr.ErrProtocol, nil},
		{"an endless chunk", append(chunk(0, replyError, 1)[:16], 0xff, 0xff, 0xff, 0xff), rdserr.ErrProtocol, nil},
		{"the end", nil, rdserr.ErrReset, nil},
		{"half an answer", simpleReply(0, 1, data[:9]...), rdserr.ErrReset, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			s, err := NewServer(Options{Reactor: testReactor})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Add(Export{Device: memory(t, 4096)}); err != nil {
				t.Fatal(err)
			}
			socket := scripted(t, func(nc net.Conn) {
				haggle(nc, s)
				io.ReadFull(nc, make([]byte, requestSize))
				nc.Write(c.answer)
				if c.want == rdserr.ErrReset {
					return
				}
				io.ReadFull(nc, make([]byte, requestSize)) // until the client is through
			})
			k := dial(t, socket, "")
			buf := make([]byte, 16)
			_, err = k.ReadAt(buf, 512)
			switch {
			case c.want == nil && (err != nil || !bytes.Equal(buf, c.got)):
				t.Errorf("%v, %v", buf, err)
			case c.want != nil && !errors.Is(err, c.want):
				t.Errorf("%v, want %v", err, c.want)
			}
			if sticky := errors.Is(c.want, rdserr.ErrProtocol) || errors.Is(c.want, rdserr.ErrReset); sticky && !errors.Is(k.Flush(), c.want) {
				t.Error("the connection goes on")
			}
		})
	}
}

// TestClientGreetings: servers that are none, or not fit to be used.
func TestClientGreetings(t *testing.T) {
	be := binary.BigEndian
	hello := be.AppendUint16(be.AppendUint64(be.AppendUint64(nil, magicInit), magicOption), flagFixedNewstyle|flagNoZeroes)
	reply := func(opt, kind uint32, data ...[]byte) []byte {
		h := &haggling{}
		h.reply(opt, kind, data...)
		return h.out
	}
	unsup := reply(optStructuredReply, repErrUnsup)
	export := reply(optGo, repInfo, u16(infoExport), u64(4096), u16(FlagHasFlags))
	for _, c := range []struct {
		what string
		says [][]byte
		want error
	}{
		{"another protocol", [][]byte{[]byte("SSH-2.0-OpenSSH_9.2p1")}, rdserr.ErrProtocol},
		{"oldstyle", [][]byte{append(hello[:8:8], 0, 0, 0x42, 2, 0x81, 0x86, 0x12, 0x53, 0, 0)}, rdserr.ErrProtocol},
		{"hangs up", [][]byte{hello[:9]}, rdserr.ErrReset},
		{"answers another option", [][]byte{hello, reply(optGo, repAck)}, rdserr.ErrProtocol},
		{"a huge reply", [][]byte{hello, append(reply(optStructuredReply, repAck)[:16], 0x7f, 0, 0, 0)}, rdserr.ErrProtocol},
		{"knows no GO", [][]byte{hello, unsup, reply(optGo, repErrUnsup)}, rdserr.ErrNotSupported},
		{"wants TLS", [][]byte{hello, unsup, reply(optGo, repErrTLS)}, rdserr.ErrPerm},
		{"says nothing of the export", [][]byte{hello, unsup, reply(optGo, repAck)}, rdserr.ErrProtocol},
		{"a size below zero", [][]byte{hello, unsup, reply(optGo, repInfo, u16(infoExport), u64(1<<63), u16(1))}, rdserr.ErrProtocol},
		{"blocks of 0 bytes", [][]byte{hello, unsup, export, reply(optGo, repInfo, u16(infoBlockSize), u32(0), u32(0), u32(0))}, rdserr.ErrProtocol},
		{"most less than least", [][]byte{hello, unsup, export, reply(optGo, repInfo, u16(infoBlockSize), u32(512), u32(512), u32(0))}, rdserr.ErrProtocol},
		{"a description cut short", [][]byte{hello, unsup, reply(optGo, repInfo, u16(infoExport), u64(4096)), reply(optGo, repAck)}, rdserr.ErrProtocol},
		{"other news as long as a description", [][]byte{hello, unsup, reply(optGo, repInfo, u16(99), u64(4096), u16(1)), reply(optGo, repAck)}, rdserr.ErrProtocol},
		{"block sizes cut short", [][]byte{hello, unsup, export, reply(optGo, repInfo, u16(infoBlockSize), u32(0)), reply(optGo, repAck)}, nil},
		{"other news as long as block sizes", [][]byte{hello, unsup, export, reply(optGo, repInfo, u16(99), u32(0), u32(0), u32(0)), reply(optGo, repAck)}, nil},
		{"is good", [][]byte{hello, unsup, export, reply(optGo, repInfo, u16(99), u32(1)), reply(optGo, repAck)}, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			socket := scripted(t, func(nc net.Conn) {
				nc.Write(bytes.Join(c.says, nil))
				if c.want != rdserr.ErrReset {
					// The end, or a request: NBD_CMD_DISC.
					for b := make([]byte, 4); ; {
						if _, err := io.ReadFull(nc, b); err != nil || binary.BigEndian.Uint32(b) == magicRequest {
							return
						}
					}
				}
			})
			k, err := Dial(t.Context(), socket, "")
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if k != nil {
				k.Close()
			}
		})
	}
	t.Run("says nothing", func(t *testing.T) {
		socket := scripted(t, func(nc net.Conn) { io.Copy(io.Discard, nc) })
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := Dial(ctx, socket, ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
	t.Run("a name that is too long", func(t *testing.T) {
		_, socket := serve(t, Options{})
		if _, err := Dial(t.Context(), socket, strings.Repeat("x", 5000)); !errors.Is(err, rdserr.ErrInvalid) {
			t.Errorf("%v", err)
		}
	})
}

// FuzzReplies: no server makes the client panic, write beside the memory of a
// call, or give one back twice.
func FuzzReplies(f *testing.F) {
	f.Add(simpleReply(0, 1, make([]byte, 16)...))
	f.Add(chunk(replyFlagDone, replyOffsetData, 1, u64(512), make([]byte, 16)))
	f.Add(chunk(0, replyOffsetHole, 1, u64(520), u32(8)))
	f.Add(chunk(replyFlagDone, replyBlockStatus, 2, u32(5), u32(512), u32(3), u32(1<<20), u32(0)))
	f.Add(chunk(replyFlagDone, replyError, 3, u32(errIO), u16(2), []byte("no")))
	f.Fuzz(func(t *testing.T, b []byte) {
		memory := bytes.Repeat([]byte{0xd5}, 48)
		c := &Client{info: blk.Info{Size: 4096}, calls: map[uint64]*call{
			1: {cmd: cmdRead, off: 512, n: 16, buf: memory[16:32:32], done: make(chan struct{})},
			2: {cmd: cmdBlockStatus, off: 0, n: 4096, context: 5, done: make(chan struct{})},
			3: {cmd: cmdWrite, off: 0, n: 512, done: make(chan struct{})},
		}}
		status := c.calls[2]
		r := bufio.NewReader(bytes.NewReader(b))
		for c.reply(r) == nil {
		}
		if beside := append(memory[:16:16], memory[32:]...); len(bytes.Trim(beside, "\xd5")) > 0 {
			t.Errorf("written beside the buffer: % x", memory)
		}
		var sum uint64
		for _, e := range status.extents {
			sum += e.Len
		}
		if sum > 4096 {
			t.Errorf("extents of %d bytes", sum)
		}
	})
}

// TestClientCover: whatever order the parts of a read come in, each byte comes once.
func TestClientCover(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		const n = 24
		k := &call{cmd: cmdRead, off: 512, n: n, buf: make([]byte, n)}
		var have [n]bool
		left := n
		for left > 0 {
			from := rng.IntN(n)
			to := from + rng.IntN(min(6, n-from)+1)
			overlaps := slices.Contains(have[from:to], true)
			_, err := k.part(uint64(512+from), uint64(to-from))
			if (err != nil) != overlaps {
				t.Fatalf("%v, part [%d,%d) of %v: %v", have, from, to, k.parts, err)
			}
			if overlaps {
				continue
			}
			for i := from; i < to; i++ {
				have[i] = true
				left--
			}
			if k.placed != uint64(n-left) {
				t.Fatalf("%d bytes are placed; want %d", k.placed, n-left)
			}
		}
		if len(k.parts) != 1 || k.parts[0] != (span{0, n}) {
			t.Fatalf("in the end %v", k.parts)
		}
	}
	k := &call{cmd: cmdRead, n: 4 * maxParts, buf: make([]byte, 4*maxParts)}
	for i := range maxParts + 1 {
		_, err := k.part(uint64(2*i), 1)
		if (err != nil) != (i == maxParts) {
			t.Fatalf("part %d: %v", i, err)
		}
	}
}
