package rnbd

import (
	"bytes"
	"time"

	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
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

func open1(name string, access rnbdwire.Access) ([]byte, error) {
	return (&rnbdwire.Open{Access: access, Name: name}).Append(nil)
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// rawOpen opens a volume past the Client.
func (e *end) rawOpen(name string, access rnbdwire.Access) (rnbdwire.OpenRsp, error) {
	b, err := e.raw(rawRead, must(open1(name, access)), rnbdwire.OpenRspLen)
	if err != nil {
		return rnbdwire.OpenRsp{}, err
	}
	return rnbdwire.ParseOpenRsp(b)
}

func rawIO(id uint32, op rnbdwire.Op, f rnbdwire.Flags, sector uint64, size uint32) []byte {
	return (&rnbdwire.IO{DeviceID: id, Sector: sector, RW: rnbdwire.RW(op, f), Size: size}).Append(nil)
}

// rawClose closes a device past the Client.
func (e *end) rawClose(id uint32) error {
	_, err := e.raw(rawWrite, rnbdwire.AppendClose(nil, id), 0)
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
