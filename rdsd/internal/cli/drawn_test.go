package cli

import (
	"context"
	"math"
	"math/rand/v2"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// drawnAnswers makes of what the fake daemon says what no daemon does: parts that are missing or there twice,
// numbers of any size, enum values and addresses that there are not.
type drawnAnswers struct {
	mu  sync.Mutex
	rng *rand.Rand // guarded by mu
}

func (d *drawnAnswers) said(m any) any {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := proto.Clone(m.(proto.Message))
	if d.rng.IntN(10) == 0 {
		proto.Reset(c)
	}
	d.alter(c.ProtoReflect(), 0)
	return c
}

func drawn[T any](d *drawnAnswers, of ...T) T { return of[d.rng.IntN(len(of))] }

// alter changes one part in a few. mu is held.
func (d *drawnAnswers) alter(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f, k := fields.Get(i), d.rng.IntN(10)
		switch {
		case f.IsList():
			l := m.Mutable(f).List()
			if k == 0 {
				l.Truncate(0)
			}
			for range d.rng.IntN(3) {
				switch {
				case k > 3 || depth > 3:
				case f.Kind() == protoreflect.MessageKind:
					l.Append(l.NewElement())
				default:
					l.Append(d.value(f))
				}
			}
			for j := 0; f.Kind() == protoreflect.MessageKind && j < l.Len(); j++ {
				d.alter(l.Get(j).Message(), depth+1)
			}
		case k == 0:
			m.Clear(f)
		case f.Kind() == protoreflect.MessageKind:
			if m.Has(f) || k <= 3 && depth < 4 {
				d.alter(m.Mutable(f).Message(), depth+1)
			}
		case k == 1:
			m.Set(f, d.value(f))
		}
	}
}

func (d *drawnAnswers) value(f protoreflect.FieldDescriptor) protoreflect.Value {
	n := drawn[uint64](d, 0, 1, 2, 7, 719, 720, 65535, 65536, 1<<31, math.MaxUint32, math.MaxInt64, 1<<63, math.MaxUint64)
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n&1 == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(int32(n)))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(drawn(d, "", "x", ":", "10.0.0.1", "[", "%s", "unix:", "nbd+unix:///", "\n"))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(make([]byte, drawn(d, 0, 1, 3, 4, 16, 17, 8192, 10000)))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	}
	return protoreflect.ValueOfUint64(n)
}

// TestDrawnAnswers: whatever a daemon answers, no command panics or does not end.
func TestDrawnAnswers(t *testing.T) {
	for seed := range uint64(3) {
		d := &drawnAnswers{rng: rand.New(rand.NewPCG(seed, 1))}
		socket := filepath.Join(t.TempDir(), "s")
		stop, err := serveFake(socket, grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			r, err := handle(ctx, req)
			if err != nil {
				return nil, err
			}
			return d.said(r), nil
		}), grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			return handle(srv, spoiledStream{s, d.said})
		}))
		if err != nil {
			t.Fatal(err)
		}
		for _, form := range []string{"", " --json", " -o tsv"} {
			for _, c := range asked {
				func() {
					defer func() {
						if p := recover(); p != nil {
							t.Errorf("seed %d: rdsd %s%s: %v\n%s", seed, c, form, p, debug.Stack())
						}
					}()
					runHostile(t, strings.Replace(c, "--for 5s", "--for 100ms", 1)+form, socket, "300ms")
				}()
			}
		}
		stop()
	}
}
