package nbd

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// Client is a connection to an export of an NBD server, for programs that copy or check a
// volume; it is not a device of the data path. Its methods may be called at the same time;
// requests are answered in any order. They wait as long as the server takes; Close ends
// them.
type Client struct {
	nc         net.Conn
	info       blk.Info
	zeroes     bool   // the server has write zeroes
	allocation bool   // base:allocation was agreed on
	context    uint32 // its number

	send sync.Mutex // one request is written at a time

	mu    sync.Mutex
	calls map[uint64]*call // guarded by mu; by cookie
	last  uint64           // guarded by mu; the last cookie given
	err   error            // guarded by mu; why the connection ended

	gone chan struct{} // closed when the reader has ended
}

// call is a request on its way. It belongs to the reader while it is in calls, until done
// is closed.
type call struct {
	cmd     uint16
	off     uint64
	n       uint32
	buf     []byte // cmdRead: where the data goes
	placed  uint64 // bytes of it that arrived
	parts   []span // where they lie, in order, without neighbours
	context uint32 // cmdBlockStatus: the only context to be reported
	extents []blk.Extent
	err     error
	done    chan struct{}
}

// zeroPiece is the longest trim, write zeroes or block status in one request, bytes.
const zeroPiece = 1 << 30

// Dial connects to the export name of the server at a Unix socket.
func Dial(ctx context.Context, socket, name string) (*Client, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	c := &Client{nc: nc, calls: map[uint64]*call{}, gone: make(chan struct{})}
	err = c.negotiate(name)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		nc.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	go c.read() // ended by Close or the end of the connection
	return c, nil
}

// DialURI connects to the export nbd+unix:///NAME?socket=PATH.
func DialURI(ctx context.Context, uri string) (*Client, error) {
	socket, name, err := ParseURI(uri)
	if err != nil {
		return nil, err
	}
	return Dial(ctx, socket, name)
}

// ParseURI takes a URI nbd+unix:///NAME?socket=PATH apart.
func ParseURI(uri string) (socket, name string, err error) {
	u, err := url.Parse(uri)
	switch {
	case err != nil:
		return "", "", rdserr.With(rdserr.ErrInvalid, "%q is not a URI: %v", uri, err)
	case u.Scheme != "nbd+unix":
		return "", "", rdserr.With(rdserr.ErrInvalid, "%q: want nbd+unix:///NAME?socket=PATH", uri)
	case u.Host != "" || u.Query().Get("socket") == "":
		return "", "", rdserr.With(rdserr.ErrInvalid, "%q names no socket: want nbd+unix:///NAME?socket=PATH", uri)
	}
	return u.Query().Get("socket"), strings.TrimPrefix(u.Path, "/"), nil
}

// URI is the URI of an export on a Unix socket, as NBD clients take it.
func URI(socket, name string) string {
	u := url.URL{Scheme: "nbd+unix", Path: "/" + name}
	u.RawQuery = "socket=" + strings.NewReplacer("+", "%20", "%2F", "/").Replace(url.QueryEscape(socket))
	return u.String()
}

// Info describes the export as the server did when the client connected.
func (c *Client) Info() *blk.Info { return &c.info }

// Size is the size of the export when the client connected, bytes.
func (c *Client) Size() int64 { return int64(c.info.Size) }

// ReadAt fills p from off on. At the end of the export it reads less and
// returns io.EOF.
func (c *Client) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, rdserr.With(rdserr.ErrInvalid, "read at %d", off)
	}
	if off >= c.Size() {
		return 0, io.EOF
	}
	short := int64(len(p)) > c.Size()-off
	if short {
		p = p[:c.Size()-off]
	}
	for n := 0; n < len(p); {
		piece := p[n:min(len(p), n+int(c.info.MaxBytes))]
		if err := c.do(&call{cmd: cmdRead, off: uint64(off) + uint64(n), n: uint32(len(piece)), buf: piece}, 0, nil); err != nil {
			return n, err
		}
		n += len(piece)
	}
	if short {
		return len(p), io.EOF
	}
	return len(p), nil
}

// WriteAt writes p at off. It is durable after the next Flush.
func (c *Client) WriteAt(p []byte, off int64) (int, error) {
	if err := c.inside("write", off, int64(len(p))); err != nil {
		return 0, err
	}
	for n := 0; n < len(p); {
		piece := p[n:min(len(p), n+int(c.info.MaxBytes))]
		if err := c.do(&call{cmd: cmdWrite, off: uint64(off) + uint64(n), n: uint32(len(piece))}, 0, piece); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return len(p), nil
}

// WriteZeroes makes n bytes at off read as zeroes; space is given back where
// the store can. A server that has no such command gets them as data.
func (c *Client) WriteZeroes(off, n int64) error {
	if err := c.inside("write zeroes", off, n); err != nil {
		return err
	}
	for n > 0 {
		k := min(n, zeroPiece)
		if c.zeroes {
			if err := c.do(&call{cmd: cmdWriteZeroes, off: uint64(off), n: uint32(k)}, 0, nil); err != nil {
				return err
			}
		} else {
			k = min(k, 1<<20, int64(c.info.MaxBytes))
			if _, err := c.WriteAt(make([]byte, k), off); err != nil {
				return err
			}
		}
		off, n = off+k, n-k
	}
	return nil
}

// Trim says that n bytes at off are not needed any more. Without effect if the
// server has no such command.
func (c *Client) Trim(off, n int64) error {
	if err := c.inside("trim", off, n); err != nil {
		return err
	}
	for n > 0 && c.info.MaxDiscard > 0 {
		k := min(n, zeroPiece)
		if err := c.do(&call{cmd: cmdTrim, off: uint64(off), n: uint32(k)}, 0, nil); err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}

// Flush makes earlier writes durable.
func (c *Client) Flush() error {
	if !c.info.WriteCache {
		return nil
	}
	return c.do(&call{cmd: cmdFlush}, 0, nil)
}

// BlockStatus returns the extents from off on: at least one, together at most n bytes. All
// of it is data if the server cannot tell.
func (c *Client) BlockStatus(off, n int64) ([]blk.Extent, error) {
	if err := c.inside("block status", off, n); err != nil {
		return nil, err
	}
	if !c.allocation {
		return []blk.Extent{{Len: uint64(n)}}, nil
	}
	k := &call{cmd: cmdBlockStatus, off: uint64(off), n: uint32(min(n, zeroPiece)), context: c.context}
	if err := c.do(k, 0, nil); err != nil {
		return nil, err
	}
	return k.extents, nil
}

func (c *Client) inside(what string, off, n int64) error {
	if off < 0 || n < 0 || off > c.Size() || n > c.Size()-off {
		return rdserr.With(blk.ErrRange, "%s at %d, length %d: the export has %d bytes", what, off, n, c.Size())
	}
	return nil
}

// Close disconnects in order and ends requests under way with an error. If there is
// nothing, it waits for the server to have ended the connection too, for at most a second:
// then the export has one user less.
func (c *Client) Close() error {
	c.mu.Lock()
	idle := len(c.calls) == 0 && c.err == nil
	if idle {
		c.err = errClientClosed
	}
	c.mu.Unlock()
	if !idle {
		c.fail(errClientClosed)
	}
	c.nc.SetWriteDeadline(time.Now().Add(time.Second)) // also for a call that writes now
	c.send.Lock()
	c.nc.Write(appendRequest(nil, cmdDisc, 0, 0, 0, 0)) // the server need not get it
	c.send.Unlock()
	if idle {
		c.nc.SetReadDeadline(time.Now().Add(time.Second))
		<-c.gone
	}
	err := c.nc.Close()
	<-c.gone
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

var errClientClosed = rdserr.With(rdserr.ErrClosed, "the NBD client was closed")

func appendRequest(b []byte, cmd, flags uint16, cookie, off uint64, n uint32) []byte {
	be := binary.BigEndian
	b = be.AppendUint32(b, magicRequest)
	b = be.AppendUint16(b, flags)
	b = be.AppendUint16(b, cmd)
	b = be.AppendUint64(b, cookie)
	b = be.AppendUint64(b, off)
	return be.AppendUint32(b, n)
}

// do sends a request and waits for its answer.
func (c *Client) do(k *call, flags uint16, payload []byte) error {
	k.done = make(chan struct{})
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	c.last++
	cookie := c.last
	c.calls[cookie] = k
	c.mu.Unlock()

	bufs := net.Buffers{appendRequest(make([]byte, 0, requestSize), k.cmd, flags, cookie, k.off, k.n), payload}
	c.send.Lock()
	_, err := bufs.WriteTo(c.nc)
	c.send.Unlock()
	if err != nil {
		c.fail(ended(err)) // half a request may be out
	}
	<-k.done
	return k.err
}

// fail ends the connection: the first reason counts. The reader then ends every
// call.
func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		c.nc.SetReadDeadline(time.Unix(1, 0)) // wakes the reader
	}
}

// ended returns the caller's error for the end of the connection.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return rdserr.With(rdserr.ErrReset, "the NBD server closed the connection")
	}
	return err
}
