package volumetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rdsd/rdsd/transport"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// raider is a client made of a socket and package wire. It can keep to the
// protocol, and does not have to.
type raider struct {
	t     testing.TB
	cons  []*raiderCon
	c     rtrswire.Chunks
	descs []rtrswire.Desc // one for each chunk
	loot  *loot
}

// raiderConns is how many connections its path has: one for messages, one for
// requests.
const raiderConns = 2

type raiderCon struct {
	nc  net.Conn
	in  chan frame    // closed when the link has ended
	out chan struct{} // closed by close

	mu  sync.Mutex
	seq uint32 // guarded by mu; of the last frame sent
}

// frame is one that arrived.
type frame struct {
	transport.Tag
	data []byte
}

// loot is everything that servers have sent to raiders.
type loot struct {
	mu sync.Mutex
	b  []byte
}

func (l *loot) add(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, b...)
}

// holds tells whether secret was sent.
func (l *loot) holds(secret string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.b, []byte(secret))
}

// refused is an errno that a connection was refused with.
type refused uint16

func (r refused) Error() string { return fmt.Sprintf("refused with errno %d", uint16(r)) }

var errEnded = errors.New("the link has ended")

// raid connects a path of a session. The link may be refused.
func raid(t testing.TB, l *loot, from, to, name string) (*raider, error) {
	r := &raider{t: t, loot: l}
	var session, path [rtrswire.UUIDLen]byte
	for i := range session {
		session[i], path[i] = byte(rand.Uint32()), byte(rand.Uint32())
	}
	t.Cleanup(r.close)
	for i := range uint16(raiderConns) {
		req := rtrswire.ConnReq{Conn: i, Conns: raiderConns, Attempt: 1, Path: path, Session: session, FirstConn: true}
		nc, private, err := r.dial(from, to, req.Append(nil))
		if err != nil {
			return nil, err
		}
		rsp, err := rtrswire.ParseConnRsp(private)
		if err != nil {
			return nil, err
		}
		if rsp.Errno() != 0 {
			nc.Close()
			return nil, refused(rsp.Errno())
		}
		c := &raiderCon{nc: nc, in: make(chan frame, 1024), out: make(chan struct{})}
		r.cons = append(r.cons, c)
		go r.read(c) // ends with the link
		if i == 0 {
			if r.c, err = rsp.Chunks(); err != nil {
				return nil, err
			}
		}
	}
	info := make([]byte, 2, 272) // longer names than are allowed, too
	info = append(info, name...)
	info = append(info, make([]byte, max(272-len(info), 0))...)
	if err := r.cons[0].send(transport.Tag{Kind: transport.OpSend}, info[:272]); err != nil {
		return nil, err
	}
	for {
		f, err := r.cons[0].next()
		if err != nil {
			return nil, err
		}
		if f.Kind != transport.OpSend {
			continue
		}
		if k, err := rtrswire.MessageType(f.data); err != nil || k != rtrswire.InfoRspType {
			return nil, fmt.Errorf("a message of type %v, %v", k, err)
		}
		descs, err := rtrswire.ParseInfoRsp(f.data, r.c)
		if err != nil {
			return nil, err
		}
		r.descs = r.c.Spread(nil, descs)
		return r, nil
	}
}

// dial does the handshake of a link.
func (r *raider) dial(from, to string, private []byte) (net.Conn, []byte, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 5 * time.Second}
	nc, err := d.Dial("tcp", to)
	if err != nil {
		return nil, nil, err
	}
	hello, err := transport.AppendHandshake(nil, transport.TagConnect, private)
	if err != nil {
		return nil, nil, err
	}
	nc.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err = nc.Write(hello); err == nil {
		var t transport.Tag
		head := make([]byte, transport.TagLen)
		if _, err = io.ReadFull(nc, head); err == nil {
			if err = t.Parse(head, 0); err == nil {
				private = make([]byte, t.Len)
				_, err = io.ReadFull(nc, private)
			}
		}
	}
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	nc.SetDeadline(time.Time{})
	return nc, private, nil
}

func (r *raider) read(c *raiderCon) {
	defer close(c.in)
	head := make([]byte, transport.TagLen)
	for seq := uint32(1); ; seq++ {
		if _, err := io.ReadFull(c.nc, head); err != nil {
			return
		}
		var f frame
		if err := f.Parse(head, seq); err != nil {
			r.t.Errorf("the server has sent %v", err)
			return
		}
		f.data = make([]byte, f.Len)
		if _, err := io.ReadFull(c.nc, f.data); err != nil {
			return
		}
		r.loot.add(f.data)
		if f.Kind == transport.OpWriteImm && rtrswire.Imm(f.Imm).Type() == rtrswire.Heartbeat {
			c.send(transport.Tag{Kind: transport.OpWriteImm, Imm: uint32(rtrswire.ImmHeartbeatAck)}, nil)
			continue
		}
		select {
		case c.in <- f:
		case <-c.out:
			return
		}
	}
}

// send sends a frame whose number and length are right.
func (c *raiderCon) send(t transport.Tag, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	t.Seq, t.Len = c.seq, uint32(len(data))
	b := make([]byte, transport.TagLen, transport.TagLen+len(data))
	t.Put(b)
	_, err := c.nc.Write(append(b, data...))
	return err
}

// next is the next frame that is no heartbeat.
func (c *raiderCon) next() (frame, error) {
	select {
	case f, ok := <-c.in:
		if !ok {
			return f, errEnded
		}
		return f, nil
	case <-time.After(5 * time.Second):
		return frame{}, errors.New("nothing came for 5 s")
	}
}

// ends fails the test if the path does not end soon: a link of it, and with it
// the others.
func (r *raider) ends(what string) {
	r.t.Helper()
	limit := time.After(10 * time.Second)
	for i, c := range r.cons {
		for open := true; open; {
			select {
			case _, open = <-c.in:
			case <-limit:
				r.t.Errorf("%s: connection %d goes on", what, i)
				return
			}
		}
	}
}

func (r *raider) close() {
	for _, c := range r.cons {
		select {
		case <-c.out:
		default:
			close(c.out)
		}
		c.nc.Close()
	}
}

// memory is where the raider says that answers are to be written: any numbers,
// the frames are looked at as they come.
const raiderKey, raiderAddr = 0xabcd, 0x10000

// request makes a request in a chunk, of dataLen bytes to write (data) or to
// read, and returns the errno it was answered with and what was written to the
// raider's memory. The chunk's key is renewed.
func (r *raider) request(con int, chunk uint32, op rtrswire.Type, usr, data []byte, readLen int) (errno uint16, answer []byte, err error) {
	at := r.descs[chunk]
	msg := rtrswire.Req{Type: op, UsrLen: uint16(len(usr))}
	frame := transport.Tag{Kind: transport.OpWriteImm, Key: at.Key, Addr: at.Addr}
	n := len(data)
	if op == rtrswire.Read {
		n = readLen
		frame.Addr += uint64(readLen)
		if readLen > 0 {
			msg.SGCnt = 1
			msg.Desc = rtrswire.Desc{Addr: raiderAddr, Key: raiderKey, Len: uint32(readLen)}
		}
	}
	frame.Imm = uint32(r.c.Req(chunk, uint32(n+len(usr))))
	body := msg.Append(append(append([]byte(nil), data...), usr...))
	if err := r.cons[con].send(frame, body); err != nil {
		return 0, nil, err
	}
	return r.answer(con, chunk)
}

// answer waits for the answer of the request in a chunk.
func (r *raider) answer(con int, chunk uint32) (errno uint16, data []byte, err error) {
	for {
		f, err := r.cons[con].next()
		if err != nil {
			return 0, nil, err
		}
		switch f.Kind {
		case transport.OpWrite:
			data = append(data, f.data...)
			continue
		case transport.OpWriteImm:
			data = append(data, f.data...)
		case transport.OpSendImm:
			k, err := rtrswire.ParseRKeyRsp(f.data)
			if err != nil {
				return 0, nil, err
			}
			r.descs[k.BufID].Key = k.Key
		}
		id, errno, _ := rtrswire.Imm(f.Imm).Done()
		if id != chunk {
			return 0, nil, fmt.Errorf("an answer to chunk %d, not %d", id, chunk)
		}
		return errno, data, nil
	}
}

// openVolume opens a volume and returns its number and its sectors.
func (r *raider) openVolume(name string, access rnbdwire.Access) (id uint32, sectors uint64, errno uint16, err error) {
	usr := make([]byte, 6, rnbdwire.OpenLen) // by hand: the name may be what it may not be
	usr[0], usr[4] = byte(rnbdwire.OpenType), byte(access)
	usr = append(usr, name[:min(len(name), rnbdwire.NameLen)]...)
	usr = append(usr, make([]byte, rnbdwire.OpenLen-len(usr))...)
	errno, b, err := r.request(0, 0, rtrswire.Read, usr, nil, rnbdwire.OpenRspLen)
	if err != nil || errno != 0 {
		return 0, 0, errno, err
	}
	rsp, err := rnbdwire.ParseOpenRsp(b)
	return rsp.DeviceID, rsp.Sectors, 0, err
}

// io makes an I/O. Of a write, data is written; of a read, n bytes are asked for.
func (r *raider) io(io rnbdwire.IO, data []byte, n int) (errno uint16, answer []byte, err error) {
	return r.request(1, 1, io.Op().Carrier(), io.Append(nil), data, n)
}
