package node

import (
	"net/http"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
)

// steps are the functions of which one is on the stack while the state of an engine
// changes, or while what that ordered is carried out: all of the cores, and the ends
// of the shells' steps. After a panic there nothing can be relied on.
var steps = []string{
	"github.com/rdsd/rdsd/rds.",
	"github.com/rdsd/rdsd/conn.",
	"github.com/rdsd/rdsd/cong.",
	"github.com/rdsd/rdsd/rtrs.",
	"github.com/rdsd/rdsd/rnbd.",
	"github.com/rdsd/rdsd/node/datagram.(*Local).Unlock",
	"github.com/rdsd/rdsd/node/datagram.(*Local).carryOut",
	"github.com/rdsd/rdsd/node/datagram.(*Local).transmit",
	"github.com/rdsd/rdsd/node/volume.(*server).finish",
	"github.com/rdsd/rdsd/node/volume.(*client).finish",
	"github.com/rdsd/rdsd/node/volume.(*flushes).run",
}

// takeLocks takes each lock that a step is made under and gives it back.
func (n *Node) takeLocks() {
	if n.hosts != nil {
		n.hosts.TakeLocks()
	}
	if h := n.volumes.Load(); h != nil {
		h.TakeLocks()
	}
}

// guardedCodec decodes and encodes messages for calls that are not handlers yet, and
// so not under the interceptor that contains panics.
type guardedCodec struct {
	datagramCodec
	guard *guard.Guard
}

var _ encoding.CodecV2 = guardedCodec{}

func (c guardedCodec) Marshal(v any) (_ mem.BufferSlice, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = c.guard.Caught(guard.Call, p)
		}
	}()
	return c.datagramCodec.Marshal(v)
}

func (c guardedCodec) Unmarshal(data mem.BufferSlice, v any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = c.guard.Caught(guard.Call, p)
		}
	}()
	if _, stream := v.(*inMsg); !stream {
		guard.Point("decode")
	}
	return c.datagramCodec.Unmarshal(data, v)
}

// guardPage contains panics of requests to the page.
func guardPage(g *guard.Guard, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler {
				panic(p) // how a handler ends a connection
			}
			http.Error(w, g.Caught(guard.Page, p).Error(), http.StatusInternalServerError)
		}()
		guard.Point("page")
		h.ServeHTTP(w, r)
	})
}

// Work implements reactor.Owner.
func (r *ringSock) Work() guard.What { return guard.Socket }

// Fault implements reactor.Owner: the work for this socket has panicked. Its client is
// told as far as that goes without a lock that the panic may have left behind.
func (r *ringSock) Fault(err error) {
	if r.closed {
		return
	}
	if r.s.wmu.TryLock() {
		r.s.wmu.Unlock()
		r.end(rdserr.With(rdserr.ErrIO, "%v", err))
		return
	}
	r.close()
}

// Work implements reactor.Owner.
func (c *ringControl) Work() guard.What { return guard.Socket }

// Fault implements reactor.Owner.
func (c *ringControl) Fault(err error) { c.r.Fault(err) }
