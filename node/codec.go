package node

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec named "proto"
	"google.golang.org/grpc/mem"
)

// datagramCodec is protobuf's, with the two hot messages of a socket's stream
// read and written by hand.
type datagramCodec struct{}

var protoCodec = encoding.GetCodecV2("proto")

func (datagramCodec) Name() string { return "proto" }

func (datagramCodec) Marshal(v any) (mem.BufferSlice, error) { return protoCodec.Marshal(v) }

func (datagramCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return protoCodec.Unmarshal(data, v)
}
