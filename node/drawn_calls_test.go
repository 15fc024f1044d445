package node

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/node/config"
)

// drawnRequests are requests of any form that their messages have: fields that are missing, alone and together, numbers
// and enum values at and beyond their ends, texts and lists of any length.
type drawnRequests struct {
	*rand.Rand
	addr []byte // of the node
}

func oneOf[T any](d *drawnRequests, of ...T) T { return of[d.IntN(len(of))] }

func (d *drawnRequests) fill(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if d.IntN(2) == 0 || f.ContainingOneof() != nil && d.IntN(3) == 0 {
			continue
		}
		switch {
		case f.IsList():
			l := m.Mutable(f).List()
			for range oneOf(d, 0, 1, 3, 500) {
				if f.Kind() != protoreflect.MessageKind {
					l.Append(d.value(f))
					continue
				}
				e := l.NewElement()
				if d.IntN(3) > 0 {
					d.fill(e.Message())
				}
				l.Append(e)
			}
		case f.Kind() == protoreflect.MessageKind:
			if s := m.Mutable(f).Message(); d.IntN(4) > 0 {
				d.fill(s)
			}
		default:
			m.Set(f, d.value(f))
		}
	}
}

func (d *drawnRequests) value(f protoreflect.FieldDescriptor) protoreflect.Value {
	n := oneOf[uint64](d, 0, 1, 2, 3, 1000, 4000, 65535, 65536, 1<<20, 1<<31, math.MaxUint32, math.MaxInt64, 1<<63, math.MaxUint64)
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n&1 == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(oneOf(d, int32(n), d.Int32N(int32(f.Enum().Values().Len())))))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(oneOf(d, "", "v/1", "127.77.255.9", "/dev/null", "a\x00b", "\x1b[2J\n", "../x", "%s", "*", strings.Repeat("é", 30000)))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(oneOf(d, d.addr, d.addr, nil, make([]byte, 3), make([]byte, 4), make([]byte, 16), make([]byte, 1000)))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	}
	return protoreflect.ValueOfUint64(n)
}

// call makes one call of m, which may be of any sort, and leaves it at any point.
func (d *drawnRequests) call(ctx context.Context, cc *grpc.ClientConn, m protoreflect.MethodDescriptor) error {
	ctx, cancel := context.WithTimeout(ctx, oneOf(d, 0, time.Microsecond, 5*time.Millisecond, 50*time.Millisecond))
	defer cancel()
	st, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()))
	sent := 1
	if m.IsStreamingClient() {
		sent = d.IntN(8)
	}
	for i := 0; i < sent && err == nil; i++ {
		req := dynamicpb.NewMessage(m.Input())
		switch {
		case m.IsStreamingClient() && i == 0 && d.IntN(8) > 0:
			bind := rdsdv1.Bind_builder{Local: rdsdv1.Endpoint_builder{Address: d.addr, Port: uint32(oneOf(d, 0, 4000))}.Build(), InitialCreditDatagrams: uint32(d.IntN(3))}.Build()
			err = st.SendMsg(rdsdv1.ClientMessage_builder{Bind: bind}.Build())
			continue
		case d.IntN(6) > 0:
			d.fill(req)
		}
		if d.IntN(10) == 0 {
			req.SetUnknown([]byte{0xfa, 0x7f, 1, 'x'})
		}
		err = st.SendMsg(req)
	}
	if err == nil && d.IntN(3) > 0 {
		err = st.CloseSend()
	}
	for range d.IntN(10) {
		if err == nil {
			err = st.RecvMsg(dynamicpb.NewMessage(m.Output()))
		}
	}
	return err
}

// TestDrawnCalls makes every call of the API with drawn requests, and leaves each at a drawn point: nothing panics, no error is
// without a reason, and once the client has gone nothing of it is left.
func TestDrawnCalls(t *testing.T) {
	port := freePort(t)
	n, cfg := startWith(t, func(c *config.Config) { c.API.CallsPerSec, c.API.CallsBurst, c.Volumes.Port = 1e6, 1e6, port })
	before := n.deps.Memory.Kinds()
	var methods []protoreflect.MethodDescriptor
	for _, file := range []protoreflect.FileDescriptor{rdsdv1.File_rdsd_v1_rdsd_proto, rdsdv1.File_rdsd_v1_volume_proto} {
		for i := range file.Services().Len() {
			for s, k := file.Services().Get(i), 0; k < s.Methods().Len(); k++ {
				methods = append(methods, s.Methods().Get(k))
			}
		}
	}
	cc := dial(t, cfg)
	for seed := range uint64(400) {
		d := &drawnRequests{rand.New(rand.NewPCG(seed, 1)), cfg.RDS.Addresses[0].AsSlice()}
		m := methods[int(seed)%len(methods)]
		err := d.call(t.Context(), cc, m)
		switch st, ok := status.FromError(err); {
		case !ok, strings.HasPrefix(st.Message(), "grpc: failed to unmarshal"): // EOF of a stream; a message that is too long
		case st.Code() == codes.Internal, st.Code() == codes.Unknown, st.Code() == codes.DataLoss, err != nil && st.Message() == "":
			t.Errorf("seed %d: %s: %v", seed, m.FullName(), err)
		}
	}
	for w := range guard.Kinds {
		if c := n.deps.Guard.Count(w); c > 0 {
			t.Errorf("%d panics in a %v", c, w)
		}
	}
	volumes := rdsdv1.NewVolumeServiceClient(cc)
	list, err := volumes.List(testContext(t), &rdsdv1.VolumeListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range list.GetExport() {
		if _, err := volumes.Unexport(testContext(t), rdsdv1.VolumeUnexportRequest_builder{Name: x.GetName(), Force: true}.Build()); err != nil {
			t.Error(err)
		}
	}
	cc.Close()
	await.Until(t, 20*time.Second, "all is given back", func() bool {
		now := n.deps.Memory.Kinds()
		for k := range now {
			if now[k].Used > before[k].Used {
				return false
			}
		}
		return n.users.Len() == 0 && n.clients.Budget().Used == 0 && n.hosts.Traces() == 0 && n.deps.Budget.Sending() == 0 && n.deps.Budget.Held() == 0
	})
}
