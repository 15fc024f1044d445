package volumetest

import (
	"bytes"
	"math/rand/v2"
	"os"

	"github.com/rdsd/rdsd/transport"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// bounds strikes beside the raider's own keys, and behind the end of its own device.
func (h *hostile) bounds() {
	size := func(r *raider) uint64 { return uint64(r.c.Size()) }
	for what, addr := range map[string]func(r *raider) uint64{
		"the end of a chunk":           func(r *raider) uint64 { return r.descs[3].Addr + size(r) - 1 },
		"behind a chunk":               func(r *raider) uint64 { return r.descs[3].Addr + size(r) },
		"before a chunk":               func(r *raider) uint64 { return r.descs[3].Addr - 1 },
		"another chunk of its own":     func(r *raider) uint64 { return r.descs[4].Addr },
		"nowhere":                      func(*raider) uint64 { return 0 },
		"the end of the address space": func(*raider) uint64 { return ^uint64(0) - 100 },
	} {
		h.strike(what, func(r *raider) transport.Tag { return transport.Tag{Key: r.descs[3].Key, Addr: addr(r)} })
	}

	r := h.enter()
	defer r.leave()
	id, sectors, errno, err := r.openVolume("theirs", rnbdwire.ReadWrite)
	if errno != 0 || err != nil || sectors != theirs/512 {
		h.t.Fatalf("its own volume: %d sectors, errno %d, %v", sectors, errno, err)
	}
	ro, _, errno, err := r.openVolume("readonly", rnbdwire.ReadOnly)
	if errno != 0 || err != nil {
		h.t.Fatalf("a read-only volume: errno %d, %v", errno, err)
	}
	bad := bytes.Repeat([]byte{raiderBytes}, 8192)
	for _, x := range []struct {
		what   string
		dev    uint32
		op     rnbdwire.Op
		sector uint64
		size   uint32
	}{
		{"a read behind the end", id, rnbdwire.Read, sectors, 512},
		{"a read across the end", id, rnbdwire.Read, sectors - 1, 1024},
		{"a read far away", id, rnbdwire.Read, 1 << 55, 512},
		{"a read where numbers wrap", id, rnbdwire.Read, ^uint64(0), 4096},
		{"a write behind the end", id, rnbdwire.Write, sectors, 512},
		{"a write across the end", id, rnbdwire.Write, sectors - 1, 8192},
		{"a write where numbers wrap", id, rnbdwire.Write, 1<<55 - 1, 8192},
		{"half a sector", id, rnbdwire.Write, 0, 100},
		{"zeroes across the end", id, rnbdwire.WriteZeroes, sectors - 1, 8192},
		{"zeroes where numbers wrap", id, rnbdwire.WriteZeroes, 1<<55 - 8, 8192},
		{"a discard without end", id, rnbdwire.Discard, 0, 0xfffffe00},
		{"a device of another session", id + 1000, rnbdwire.Read, 0, 512},
		{"no device", 0xffffffff, rnbdwire.Write, 0, 512},
		{"a write to what is read-only", ro, rnbdwire.Write, 0, 512},
		{"zeroes in what is read-only", ro, rnbdwire.WriteZeroes, 0, 512},
		{"a discard in what is read-only", ro, rnbdwire.Discard, 0, 512},
		{"a secure erase", id, rnbdwire.SecureErase, 0, 512},
		{"no operation", id, 77, 0, 512},
	} {
		io := rnbdwire.IO{DeviceID: x.dev, Sector: x.sector, RW: rnbdwire.RW(x.op, 0), Size: x.size}
		data, n := []byte(nil), 0
		switch x.op {
		case rnbdwire.Read:
			n = int(x.size)
		case rnbdwire.Write:
			data = bad[:x.size]
		}
		errno, answer, err := r.io(io, data, n)
		if err != nil {
			h.t.Fatalf("%s: %v", x.what, err)
		}
		if errno == 0 || len(answer) > 0 {
			h.t.Errorf("%s: errno %d, %d bytes", x.what, errno, len(answer))
		}
		h.n++
	}
	if st, err := os.Stat(h.w.file("theirs")); err != nil || st.Size() != theirs {
		h.t.Errorf("its own volume: %v, %v", st, err)
	}
	if errno, _, err := r.request(0, 0, rtrswire.Write, rnbdwire.AppendClose(nil, id), nil, 0); errno != 0 || err != nil {
		h.t.Fatalf("close: errno %d, %v", errno, err)
	}
	if errno, _, err := r.io(rnbdwire.IO{DeviceID: id, RW: rnbdwire.RW(rnbdwire.Write, 0), Size: 512}, bad[:512], 0); errno == 0 || err != nil {
		h.t.Errorf("a write to a device that was closed: errno %d, %v", errno, err)
	}
}

// order sends messages where none belong.
func (h *hostile) order() {
	fence := rtrswire.Fence{Type: rtrswire.FenceType, Attempt: 1}
	for what, strike := range map[string]func(r *raider){
		"a key revoked that is the server's": func(r *raider) {
			r.cons[1].send(transport.Tag{Kind: transport.OpSendInval, Key: r.descs[0].Key}, nil)
		},
		"a send of an unknown type": func(r *raider) {
			r.cons[0].send(transport.Tag{Kind: transport.OpSend}, []byte{99, 0, 0, 0, 0, 0, 0, 0})
		},
		"a send on the connection of requests": func(r *raider) {
			r.cons[1].send(transport.Tag{Kind: transport.OpSend}, make([]byte, 272))
		},
		"a second name": func(r *raider) {
			b, _ := rtrswire.AppendInfoReq(nil, "other")
			r.cons[0].send(transport.Tag{Kind: transport.OpSend}, b)
		},
		"a fence of a client that has none": func(r *raider) { r.cons[0].send(transport.Tag{Kind: transport.OpSend}, fence.Append(nil)) },
		"a request in no chunk": func(r *raider) {
			r.cons[1].send(transport.Tag{Kind: transport.OpWriteImm, Imm: 0x0fffffff}, nil)
		},
		"a frame out of number": func(r *raider) {
			r.cons[1].seq += 5
			r.cons[1].send(transport.Tag{Kind: transport.OpSend}, nil)
		},
		"a handshake in the middle": func(r *raider) {
			b, _ := transport.AppendHandshake(nil, transport.TagConnect, nil)
			r.cons[1].nc.Write(b)
		},
		"no frame at all": func(r *raider) { r.cons[1].nc.Write([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")) },
	} {
		r := h.enter()
		strike(r)
		r.ends(what)
		r.leave()
		h.n++
	}

	// A chunk that is changed while its request is carried out.
	for range 10 {
		r := h.enter()
		id, _, errno, err := r.openVolume("theirs", rnbdwire.ReadWrite)
		if errno != 0 || err != nil {
			h.t.Fatalf("errno %d, %v", errno, err)
		}
		at := r.descs[1]
		io := rnbdwire.IO{DeviceID: id, RW: rnbdwire.RW(rnbdwire.Write, 0), Size: 64 << 10}
		usr := io.Append(nil)
		msg := rtrswire.Req{Type: rtrswire.Write, UsrLen: uint16(len(usr))}
		data := make([]byte, io.Size)
		imm := uint32(r.c.Req(1, io.Size+uint32(len(usr))))
		r.cons[1].send(transport.Tag{Kind: transport.OpWriteImm, Key: at.Key, Addr: at.Addr, Imm: imm}, msg.Append(append(data, usr...)))
		r.cons[1].send(transport.Tag{Kind: transport.OpWrite, Key: at.Key, Addr: at.Addr}, bytes.Repeat([]byte{raiderBytes}, 4096))
		r.ends("a chunk that is changed while it is in use")
		r.leave()
		h.n++
	}
	if b, err := os.ReadFile(h.w.file("theirs")); err != nil || bytes.IndexByte(b, raiderBytes) >= 0 {
		h.t.Errorf("what was written to a chunk in use is in the volume (%v)", err)
	}
}

// answers bring what was asked for and nothing that was in memory before (B8).
func (h *hostile) answers() {
	r := h.enter()
	defer r.leave()
	id, _, errno, err := r.openVolume("theirs", rnbdwire.ReadOnly)
	if errno != 0 || err != nil {
		h.t.Fatalf("errno %d, %v", errno, err)
	}
	for what, usr := range map[string][]byte{
		"SESS_INFO":                      rnbdwire.AppendSessInfo(nil, rnbdwire.SessInfo, 2),
		"an unknown message":             append([]byte{200, 0}, make([]byte, 30)...),
		"half a message":                 {byte(rnbdwire.IOType), 0, 0, 0, 1},
		"no message":                     nil,
		"an I/O shorter than its answer": (&rnbdwire.IO{DeviceID: id, RW: rnbdwire.RW(rnbdwire.Read, 0), Size: 512}).Append(nil),
	} {
		errno, answer, err := r.request(1, 2, rtrswire.Read, usr, nil, 128<<10)
		if err != nil {
			h.t.Fatalf("%s: %v", what, err)
		}
		if beyond := answer[min(len(answer), rnbdwire.SessInfoLen):]; len(bytes.Trim(beyond, "\x00")) > 0 || errno != 0 && len(answer) > 0 {
			h.t.Errorf("%s: errno %d, an answer of %d bytes, not zero behind its end", what, errno, len(answer))
		}
		h.n++
	}
	errno, answer, err := r.io(rnbdwire.IO{DeviceID: id, RW: rnbdwire.RW(rnbdwire.Read, 0), Size: 128 << 10}, nil, 128<<10)
	if errno != 0 || err != nil || len(answer) != 128<<10 || len(bytes.Trim(answer, "\x00")) > 0 {
		h.t.Errorf("a read of zeroes: errno %d, %v, %d bytes, not all zero", errno, err, len(answer))
	}
}

// noise sends frames and requests of random content, with headers that are right.
func (h *hostile) noise() {
	rng := rand.New(rand.NewPCG(1, 2))
	kinds := []transport.OpKind{transport.OpWrite, transport.OpWriteImm, transport.OpSend, transport.OpSendImm, transport.OpSendInval, transport.TagConnect, 0, 99}
	for range some(200) {
		r := h.enter()
		_, _, errno, err := r.openVolume("theirs", rnbdwire.ReadOnly)
		if errno != 0 || err != nil {
			h.t.Fatalf("errno %d, %v", errno, err)
		}
		for range 1 + rng.IntN(20) {
			d := r.descs[rng.IntN(len(r.descs))]
			f := transport.Tag{Kind: transport.OpWriteImm, Key: d.Key, Addr: d.Addr, Imm: rng.Uint32() & 0x0fffffff}
			data := make([]byte, rng.IntN(2000))
			for i := range data {
				data[i] = byte(rng.Uint32()) >> rng.IntN(8)
			}
			if rng.IntN(4) == 0 {
				f.Kind = kinds[rng.IntN(len(kinds))]
				f.Imm = rng.Uint32()
			}
			if chunk := uint32(rng.IntN(int(r.c.Depth))); rng.IntN(2) == 0 { // a request that could be one
				f.Key, f.Addr = r.descs[chunk].Key, r.descs[chunk].Addr
				msg := rtrswire.Req{Type: rtrswire.Write, UsrLen: uint16(rng.IntN(40))}
				f.Imm = uint32(r.c.Req(chunk, uint32(len(data))))
				data = msg.Append(data)
			}
			if r.cons[rng.IntN(len(r.cons))].send(f, data) != nil {
				break
			}
			h.n++
		}
		r.leave()
	}
	eventually(h.t, "the raider's last session is over", func() bool {
		s, err := h.w.server.vols().Sessions(h.w.ctx())
		return err == nil && len(s) == 1
	})
}
