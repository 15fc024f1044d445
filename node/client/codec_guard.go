package client

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/rdsd/rdsd/internal/guard"
)

// NewCodec is the codec of a server of gRPC whose messages for sockets this room reads
// and writes. What goes wrong in it is contained by g.
func NewCodec(g *guard.Guard) encoding.CodecV2 { return guardedCodec{guard: g} }

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
