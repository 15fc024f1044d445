package client

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec named "proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/api/rdsd/v1/fastwire"
	"github.com/rdsd/rdsd/internal/msgpool"
	"github.com/rdsd/rdsd/internal/quota"
)

// The server's codec. The bytes are those of rdsd.proto and the other side
// needs nothing special; only the hot messages of a socket's stream are read
// and written by hand:
//
//   - SendBatch stays in the buffer it arrived in until the engine has seen it,
//     which copies what it accepts;
//   - RecvBatch goes out as two buffers, the fields and the payload, so that a
//     payload is copied once;
//   - SendResult without errors is a handful of bytes.
//
// Everything else, and whatever another encoder lays out differently, goes
// through package proto. codec_test.go compares both ways.
type datagramCodec struct{}

var protoCodec = encoding.GetCodecV2("proto")

func (datagramCodec) Name() string { return "proto" }

func (datagramCodec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(marshaler); ok {
		return m.marshal(), nil
	}
	return protoCodec.Marshal(v)
}

func (datagramCodec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*inMsg)
	if !ok {
		if err := plain(data.Len(), mostOf(v)); err != nil {
			return err
		}
		return protoCodec.Unmarshal(data, v)
	}
	return in.unmarshal(data)
}

// marshaler is a message that lays itself out.
type marshaler interface{ marshal() mem.BufferSlice }

// Encoded is a message in its bytes, more than 1 KiB of them. Done is called when gRPC has written them, but not
// if their stream is reset before that.
type Encoded struct {
	Bytes []byte
	Done  func()
}

func (e Encoded) marshal() mem.BufferSlice {
	return mem.BufferSlice{mem.NewBuffer(&e.Bytes, written(e.Done))}
}

// written is the pool of a single buffer, to which it comes back when it has been written.
type written func()

func (written) Get(n int) *[]byte { return new(make([]byte, n)) }

func (f written) Put(*[]byte) { f() }

// inMsg is one message of a client: either batch is set (isBatch) or msg is.
// It is reused from message to message; release before the next.
type inMsg struct {
	isBatch bool
	batch   inBatch
	msg     *rdsdv1.ClientMessage
	buf     mem.Buffer     // backs batch.payload; nil when the bytes are the collector's
	account *quota.Account // of the client's user, once its socket is bound
	paid    int64          // of account, for the lists of batch
}

func (in *inMsg) unmarshal(data mem.BufferSlice) error {
	in.isBatch, in.msg = false, nil
	buf := data.MaterializeToBuffer(msgpool.Pool)
	p := buf.ReadOnlyData()
	if read, err := in.admit(p); read || err != nil {
		buf.Free()
		return err
	}
	if len(p) > 0 && p[0] == fastwire.ClientSend {
		if body, rest, ok := fastwire.Cut(p[1:]); ok && len(rest) == 0 && in.batch.parse(body) {
			in.isBatch, in.buf = true, buf
			in.batch.message = messageBytes(len(p))
			return nil
		}
	}
	defer buf.Free()
	m := &rdsdv1.ClientMessage{}
	if err := proto.Unmarshal(p, m); err != nil {
		in.forget() // whoever receives it does not release it
		return err
	}
	if m.WhichBody() == rdsdv1.ClientMessage_Send_case {
		in.isBatch = true
		in.batch.fromProto(m.GetSend())
		in.batch.message = messageBytes(len(p))
		return nil
	}
	in.msg = m
	return nil
}

// release gives back what the message holds.
func (in *inMsg) release() {
	if in.buf != nil {
		in.buf.Free()
		in.buf = nil
	}
	in.batch.payload = nil
	in.msg = nil
	in.forget()
}
