package rnbd

import (
	"bytes"
	"time"

	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/wire"
)

const (
	rawRead  = rtrs.Read
	rawWrite = rtrs.Write
)

// rawWait is a client that keeps what comes to it.
type rawWait struct{ done bool }

// raw sends a message to the server, past the Client, and returns what is
// answered to a read, of room bytes; of a write, room bytes are its data.
func (e *end) raw(op rtrs.Op, usr []byte, room int) ([]byte, error) {
	r := e.rawStart(op, usr, room)
	e.w.run()
	if !r.Ctx.(*rawWait).done {
		return nil, errPending
	}
	return r.Data, r.Err
}

func (e *end) rawStart(op rtrs.Op, usr []byte, room int) *rtrs.Req {
	r := &rtrs.Req{Op: op, Usr: usr, Ctx: &rawWait{}}
	if room > 0 {
		r.Data = bytes.Repeat([]byte{0x77}, room)
	}
	e.send(r)
	return r
}

func open1(name string, access wire.RNBDAccess) ([]byte, error) {
	return (&wire.RNBDOpen{Access: access, Name: name}).Append(nil)
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// rawOpen opens a volume past the Client.
func (e *end) rawOpen(name string, access wire.RNBDAccess) (wire.RNBDOpenRsp, error) {
	b, err := e.raw(rawRead, must(open1(name, access)), wire.RNBDOpenRspLen)
	if err != nil {
		return wire.RNBDOpenRsp{}, err
	}
	return wire.ParseRNBDOpenRsp(b)
}

func rawIO(id uint32, op wire.RNBDOp, f wire.RNBDFlags, sector uint64, size uint32) []byte {
	return (&wire.RNBDIO{DeviceID: id, Sector: sector, RW: wire.RNBDRW(op, f), Size: size}).Append(nil)
}

// rawClose closes a device past the Client.
func (e *end) rawClose(id uint32) error {
	_, err := e.raw(rawWrite, wire.AppendRNBDClose(nil, id), 0)
	return err
}

// done is Client.Done, with what raw has sent sorted out.
func (e *end) done(now time.Duration, r *rtrs.Req) {
	if x, ok := r.Ctx.(*rawWait); ok {
		x.done = true
		return
	}
	e.c.Done(now, r)
}
