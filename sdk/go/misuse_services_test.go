package rdsd

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
)

// TestServicesWithoutAContext: every call of Admin and Volumes, of a client that Dial did not return or with a nil
// context, is an error that names what is missing, and ends no program.
func TestServicesWithoutAContext(t *testing.T) {
	dialled, err := Dial(filepath.Join(t.TempDir(), "none"))
	if err != nil {
		t.Fatal(err)
	}
	defer dialled.Close()
	calls := 0
	for _, c := range []struct {
		client *Client
		ctx    context.Context
		want   error
	}{{nil, context.Background(), errNoClient}, {&Client{}, context.Background(), errNoClient}, {dialled, context.Context(nil), errNoContext}} {
		for _, service := range []any{c.client.Admin(), c.client.Volumes()} {
			v := reflect.ValueOf(service)
			for i := range v.NumMethod() {
				name, m := v.Type().Method(i).Name, v.Method(i)
				calls++
				if err := callWith(t, m, c.ctx); !errors.Is(err, rdserr.ErrInvalid) || !errors.Is(err, c.want) {
					t.Errorf("%v.%s: %v, want %v", v.Type(), name, err, c.want)
				}
			}
		}
	}
	if calls < 100 {
		t.Errorf("%d calls", calls)
	}
}

// callWith calls m with ctx and arguments that are nothing, or what it takes to be asked at all, and returns its error.
func callWith(t *testing.T, m reflect.Value, ctx context.Context) error {
	var in []reflect.Value
	for i := range m.Type().NumIn() {
		a := reflect.New(m.Type().In(i)).Elem()
		switch p := a.Addr().Interface().(type) {
		case *context.Context:
			*p = ctx
		case *string:
			*p = "name"
		case *netip.AddrPort:
			*p = peerAddr
		case *netip.Addr:
			*p = peerAddr.Addr()
		case *VolumePolicy:
			*p = "round-robin"
		case *MapSpec:
			p.Session = "name"
		}
		if m.Type().IsVariadic() && i == m.Type().NumIn()-1 {
			break
		}
		in = append(in, a)
	}
	out := m.Call(in)
	last := out[len(out)-1]
	if last.Kind() == reflect.Func { // a loop: its last error
		var err error
		for _, e := range last.Seq2() {
			err, _ = e.Interface().(error)
		}
		return err
	}
	err, _ := last.Interface().(error)
	return err
}
