package nbd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// client is the other end, byte by byte, so that a test can say anything.
type client struct {
	t  testing.TB
	nc net.Conn
}

func dialClient(t testing.TB, socket string) *client {
	t.Helper()
	nc, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(20 * time.Second))
	return &client{t, nc}
}

func (c *client) send(b []byte) {
	c.t.Helper()
	if _, err := c.nc.Write(b); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

func (c *client) recv(n int) []byte {
	c.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c.nc, b); err != nil {
		c.t.Fatalf("receive: %v", err)
	}
	return b
}

// wantEnd expects the server to close the connection without another byte.
func (c *client) wantEnd(why string) {
	c.t.Helper()
	var b [1]byte
	if n, err := c.nc.Read(b[:]); n != 0 || !isEnd(err) {
		c.t.Fatalf("%s: read %d bytes, %v; want the connection closed", why, n, err)
	}
}

func isEnd(err error) bool {
	var timeout net.Error
	return err != nil && !(errors.As(err, &timeout) && timeout.Timeout())
}

func (c *client) greet(flags uint32) {
	c.t.Helper()
	b := c.recv(18)
	if !bytes.Equal(b[:16], []byte("NBDMAGICIHAVEOPT")) || binary.BigEndian.Uint16(b[16:]) != 3 {
		c.t.Fatalf("greeting % x", b)
	}
	c.send(binary.BigEndian.AppendUint32(nil, flags))
}

// option builds an option.
func option(opt uint32, data []byte) []byte {
	be := binary.BigEndian
	b := be.AppendUint64(nil, magicOption)
	b = be.AppendUint32(b, opt)
	b = be.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

// infoData is the data of NBD_OPT_INFO and NBD_OPT_GO.
func infoData(name string, types ...uint16) []byte {
	b := append(u32(len(name)), name...)
	b = append(b, u16(len(types))...)
	for _, t := range types {
		b = append(b, u16(int(t))...)
	}
	return b
}

// metaData is the data of the options for metadata contexts.
func metaData(name string, queries ...string) []byte {
	b := append(u32(len(name)), name...)
	b = append(b, u32(len(queries))...)
	for _, q := range queries {
		b = append(append(b, u32(len(q))...), q...)
	}
	return b
}

type optReply struct {
	kind uint32
	data []byte
}

// ask sends an option and returns the replies up to the final one.
func (c *client) ask(opt uint32, data []byte) (replies []optReply) {
	c.t.Helper()
	c.send(option(opt, data))
	for {
		b := c.recv(20)
		if m, o := binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]); m != magicOptReply || o != opt {
			c.t.Fatalf("reply to option %d begins % x", opt, b)
		}
		r := optReply{binary.BigEndian.Uint32(b[12:]), c.recv(int(binary.BigEndian.Uint32(b[16:])))}
		replies = append(replies, r)
		if r.kind == repAck || r.kind >= 1<<31 {
			return replies
		}
	}
}

// want expects the final reply to an option to be of a kind.
func (c *client) want(what string, opt uint32, data []byte, kind uint32) []optReply {
	c.t.Helper()
	replies := c.ask(opt, data)
	if last := replies[len(replies)-1]; last.kind != kind {
		c.t.Fatalf("%s: answered %#x %q, want %#x", what, last.kind, last.data, kind)
	}
	return replies
}

// enter negotiates the transmission phase.
func enter(t testing.TB, socket, name string, structured bool) *client {
	t.Helper()
	c := dialClient(t, socket)
	c.enter(name, structured)
	return c
}

func (c *client) enter(name string, structured bool) {
	c.t.Helper()
	c.greet(3)
	if structured {
		c.want("structured replies", optStructuredReply, nil, repAck)
		c.want("base:allocation", optSetMetaContext, metaData(name, allocationName), repAck)
	}
	c.want("go", optGo, infoData(name, infoBlockSize), repAck)
}

// command builds a request.
func command(cmd, flags uint16, cookie, off uint64, n uint32, payload []byte) []byte {
	be := binary.BigEndian
	b := be.AppendUint32(nil, magicRequest)
	b = be.AppendUint16(b, flags)
	b = be.AppendUint16(b, cmd)
	b = be.AppendUint64(b, cookie)
	b = be.AppendUint64(b, off)
	b = be.AppendUint32(b, n)
	return append(b, payload...)
}

// reply is a reply of either kind.
type reply struct {
	cookie     uint64
	value      uint32 // the error
	text       string
	kind       uint16 // of a structured reply
	data       []byte
	structured bool
}

// reply reads one; n is the length of the data if it is a simple reply to a read.
func (c *client) reply(n int) (r reply) {
	c.t.Helper()
	be := binary.BigEndian
	switch m := be.Uint32(c.recv(4)); m {
	case magicSimple:
		b := c.recv(12)
		r = reply{cookie: be.Uint64(b[4:]), value: be.Uint32(b)}
		if r.value == 0 {
			r.data = c.recv(n)
		}
	case magicStructured:
		b := c.recv(16)
		r = reply{cookie: be.Uint64(b[4:]), kind: be.Uint16(b[2:]), structured: true}
		if be.Uint16(b) != replyFlagDone {
			c.t.Fatalf("a chunk with flags %#x: replies are in one piece", be.Uint16(b))
		}
		r.data = c.recv(int(be.Uint32(b[12:])))
		if r.kind == replyError {
			r.value = be.Uint32(r.data)
			r.text = string(r.data[6:])
			if int(be.Uint16(r.data[4:])) != len(r.text) {
				c.t.Fatalf("an error text of %d bytes in a reply of %d", be.Uint16(r.data[4:]), len(r.data))
			}
			r.data = nil
		}
		if r.kind == replyOffsetData {
			r.data = r.data[8:]
		}
	default:
		c.t.Fatalf("a reply begins with %#x", m)
	}
	return r
}

// do sends a command and returns its reply, which has to carry its cookie.
func (c *client) do(cmd, flags uint16, off uint64, n uint32, payload []byte) reply {
	c.t.Helper()
	cookie := uint64(0x1122334455667788) ^ off
	c.send(command(cmd, flags, cookie, off, n, payload))
	want := 0
	if cmd == cmdRead {
		want = int(n)
	}
	r := c.reply(want)
	if r.cookie != cookie {
		c.t.Fatalf("reply with cookie %#x, want %#x", r.cookie, cookie)
	}
	return r
}

func (r reply) String() string {
	return fmt.Sprintf("error %d %q, %d bytes", r.value, r.text, len(r.data))
}
