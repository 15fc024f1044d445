package adversary

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/rdsd/rdsd/transport"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// Raider is a path of a session of volumes, connection by connection and frame
// by frame. It can keep to the protocol, and does not have to.
type Raider struct {
	Cons  []RaiderCon
	C     rtrswire.Chunks
	Descs []rtrswire.Desc // one for each chunk
	// Mem is where the server is asked to put what is read, and Read what stands there; nil: it
	// comes with the frames.
	Mem  rtrswire.Desc
	Read []byte
}

// RaiderCon is one of its connections.
type RaiderCon interface {
	// Send sends a frame whose number and length are right.
	Send(t transport.Tag, data []byte) error
	// Next waits for a frame, and answers heartbeats.
	Next() (t transport.Tag, data []byte, err error)
	Close() error
}

// tcpCon is a connection of a path over TCP.
type tcpCon struct {
	net.Conn
	seq uint32 // of the last frame sent
	in  uint32 // of the last frame read

	// For heartbeats, which a reader answers beside the act.
	mu sync.Mutex // guards seq and what is written
}

// Link opens a link and does its handshake with private data.
func (s *Stage) Link(from netip.Addr, private []byte) (net.Conn, []byte, error) {
	c, err := s.Dial(from, 0, s.Volumes)
	if err != nil {
		return nil, nil, err
	}
	b, err := transport.AppendHandshake(nil, transport.TagConnect, private)
	if err != nil {
		return nil, nil, err
	}
	if _, err := c.Write(b); err != nil {
		return nil, nil, err
	}
	var t transport.Tag
	head := make([]byte, transport.TagLen)
	if _, err = io.ReadFull(c, head); err != nil {
		return nil, nil, err
	}
	if err = t.Parse(head, 0); err != nil {
		return nil, nil, err
	}
	answer := make([]byte, t.Len)
	_, err = io.ReadFull(c, answer)
	return c, answer, err
}

// errEnded is returned when no answer came.
var errEnded = fmt.Errorf("adversary: not let in")

// Raid connects a path of a session of its own, of n connections, from an
// address; name is the session's. Half of them show the mark of an rdsd: a server lets others
// have a name that is in use only when its session has ended.
func (s *Stage) Raid(from netip.Addr, name string, n int) (*Raider, error) {
	return s.raidBy(name, n, rtrswire.Desc{Addr: 0x10000, Key: 0xabcd, Len: 1 << 20}, func(private []byte) (RaiderCon, []byte, error) {
		c, answer, err := s.Link(from, private)
		if err != nil {
			return nil, nil, err
		}
		return &tcpCon{Conn: c}, answer, nil
	})
}

// raidBy is Raid with connections that link makes.
func (s *Stage) raidBy(name string, n int, mem rtrswire.Desc, link func(private []byte) (RaiderCon, []byte, error)) (*Raider, error) {
	r, marked := &Raider{Mem: mem}, s.IntN(2) == 0
	var session, path [rtrswire.UUIDLen]byte
	s.noise(session[:])
	s.noise(path[:])
	for i := range n {
		req := rtrswire.ConnReq{Conn: uint16(i), Conns: uint16(n), Attempt: 1, Path: path, Session: session, FirstConn: true}
		b := req.Append(nil)
		if marked {
			rtrswire.SetFences(b)
		}
		c, private, err := link(b)
		if err != nil {
			return nil, err
		}
		rsp, err := rtrswire.ParseConnRsp(private)
		if err != nil || rsp.Errno() != 0 {
			c.Close()
			return nil, fmt.Errorf("%w: errno %d, %v", errEnded, rsp.Errno(), err)
		}
		r.Cons = append(r.Cons, c)
		if i == 0 {
			if r.C, err = rsp.Chunks(); err != nil {
				return nil, err
			}
		}
	}
	info, err := rtrswire.AppendInfoReq(nil, name)
	if err != nil {
		return nil, err
	}
	if err := r.Cons[0].Send(transport.Tag{Kind: transport.OpSend}, info); err != nil {
		return nil, err
	}
	for {
		t, data, err := r.Cons[0].Next()
		if err != nil {
			return nil, err
		}
		if k, err := rtrswire.MessageType(data); t.Kind != transport.OpSend || err != nil || k != rtrswire.InfoRspType {
			continue
		}
		descs, err := rtrswire.ParseInfoRsp(data, r.C)
		if err != nil {
			return nil, err
		}
		r.Descs = r.C.Spread(nil, descs)
		return r, nil
	}
}

// Send is RaiderCon.Send.
func (c *tcpCon) Send(t transport.Tag, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	t.Seq, t.Len = c.seq, uint32(len(data))
	b := make([]byte, transport.TagLen, transport.TagLen+len(data))
	t.Put(b)
	_, err := c.Write(append(b, data...))
	return err
}

// Next is RaiderCon.Next.
func (c *tcpCon) Next() (t transport.Tag, data []byte, err error) {
	head := make([]byte, transport.TagLen)
	for {
		if _, err = io.ReadFull(c, head); err != nil {
			return t, nil, err
		}
		c.in++
		if err = t.Parse(head, c.in); err != nil {
			return t, nil, err
		}
		data = make([]byte, t.Len)
		if _, err = io.ReadFull(c, data); err != nil {
			return t, nil, err
		}
		if t.Kind == transport.OpWriteImm && rtrswire.Imm(t.Imm).Type() == rtrswire.Heartbeat {
			if err = c.Send(transport.Tag{Kind: transport.OpWriteImm, Imm: uint32(rtrswire.ImmHeartbeatAck)}, nil); err != nil {
				return t, nil, err
			}
			continue
		}
		return t, data, nil
	}
}

// Alive reads and forgets what comes on all connections, heartbeats answered.
func (r *Raider) Alive(s *Stage) {
	for _, c := range r.Cons {
		s.Go(func() {
			for {
				if _, _, err := c.Next(); err != nil {
					return
				}
			}
		})
	}
}

// Request sends a request in a chunk: usr, and data to write or readLen bytes to read.
func (r *Raider) Request(con int, chunk uint32, op rtrswire.Type, usr, data []byte, readLen int) error {
	at := r.Descs[chunk]
	msg := rtrswire.Req{Type: op, UsrLen: uint16(len(usr))}
	frame := transport.Tag{Kind: transport.OpWriteImm, Key: at.Key, Addr: at.Addr}
	n := len(data)
	if op == rtrswire.Read {
		n = readLen
		frame.Addr += uint64(readLen)
		if readLen > 0 {
			msg.SGCnt = 1
			msg.Desc = rtrswire.Desc{Addr: r.Mem.Addr, Key: r.Mem.Key, Len: uint32(readLen)}
		}
	}
	frame.Imm = uint32(r.C.Req(chunk, uint32(n+len(usr))))
	return r.Cons[con].Send(frame, msg.Append(append(append([]byte(nil), data...), usr...)))
}

// Open opens a volume and returns the device's number; every frame until the
// answer is read, so Alive must not run.
func (r *Raider) Open(name string, access rnbdwire.Access) (id uint32, err error) {
	usr := make([]byte, 6, rnbdwire.OpenLen)
	usr[0], usr[4] = byte(rnbdwire.OpenType), byte(access)
	usr = append(usr, name[:min(len(name), rnbdwire.NameLen)]...)
	usr = append(usr, make([]byte, rnbdwire.OpenLen-len(usr))...)
	if err := r.Request(0, 0, rtrswire.Read, usr, nil, rnbdwire.OpenRspLen); err != nil {
		return 0, err
	}
	var answer []byte
	for {
		t, data, err := r.Cons[0].Next()
		if err != nil {
			return 0, err
		}
		answer = append(answer, data...)
		switch t.Kind {
		case transport.OpWrite:
			continue
		case transport.OpSendImm:
			if k, err := rtrswire.ParseRKeyRsp(data); err == nil && int(k.BufID) < len(r.Descs) {
				r.Descs[k.BufID].Key = k.Key
			}
			answer = answer[:len(answer)-len(data)]
		case transport.OpWriteImm:
		default:
			answer = answer[:len(answer)-len(data)]
			continue
		}
		if _, errno, _ := rtrswire.Imm(t.Imm).Done(); errno != 0 {
			return 0, fmt.Errorf("adversary: refused with errno %d", errno)
		}
		if r.Read != nil {
			answer = r.Read[:rnbdwire.OpenRspLen]
		}
		rsp, err := rnbdwire.ParseOpenRsp(answer)
		return rsp.DeviceID, err
	}
}
