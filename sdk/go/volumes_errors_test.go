package rdsd

import (
	"errors"
	"reflect"
	"syscall"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
)

// Every call says that the daemon refused it, in its own name, and brings nothing else.
func TestEveryVolumeCallTellsItsError(t *testing.T) {
	f := &fakeVolumes{err: rdserr.With(rdserr.ErrNotFound, "the reason")}
	v := newFakeVolumes(t, f) // calls that it does not know are refused too
	ctx := volumeContext(t)
	p := PathSpec{}
	for _, c := range []struct {
		op   string
		call func() (any, error)
	}{
		{"export", func() (any, error) { return v.Export(ctx, ExportSpec{}) }},
		{"unexport", func() (any, error) { return nil, v.Unexport(ctx, "e", false) }},
		{"force close", func() (any, error) { return nil, v.ForceClose(ctx, "e", "s") }},
		{"map", func() (any, error) { return v.Map(ctx, MapSpec{}) }},
		{"unmap", func() (any, error) { return nil, v.Unmap(ctx, "m", false) }},
		{"remap", func() (any, error) { return v.Remap(ctx, "m") }},
		{"list volumes", func() (any, error) { e, _, err := v.List(ctx); return e, err }},
		{"list volumes", func() (any, error) { _, m, err := v.List(ctx); return m, err }},
		{"get volume", func() (any, error) { return v.Mapping(ctx, "m") }},
		{"get volume", func() (any, error) { return v.ExportNamed(ctx, "e") }},
		{"volume info", func() (any, error) { return v.Info(ctx, MapSpec{}) }},
		{"resize", func() (any, error) { return v.ResizeExport(ctx, "e", 1) }},
		{"resize", func() (any, error) { return v.ResizeMapping(ctx, "m", 1) }},
		{"check", func() (any, error) { return v.Check(ctx, "") }},
		{"list sessions", func() (any, error) { return v.Sessions(ctx) }},
		{"list paths", func() (any, error) { return v.Paths(ctx, "s") }},
		{"add path", func() (any, error) { return v.AddPath(ctx, "s", p) }},
		{"remove path", func() (any, error) { return nil, v.RemovePath(ctx, "s", p) }},
		{"disconnect path", func() (any, error) { return nil, v.DisconnectPath(ctx, "s", p) }},
		{"reconnect path", func() (any, error) { return nil, v.ReconnectPath(ctx, "s", p) }},
		{"set policy", func() (any, error) { return nil, v.SetPolicy(ctx, "s", "round-robin") }},
		{"reset statistics", func() (any, error) { return nil, v.ResetStats(ctx, "s", p) }},
	} {
		got, err := c.call()
		if op, ok := errors.AsType[*OpError](err); !ok || op.Op != c.op || op.Err == nil {
			t.Errorf("%s: %v", c.op, err)
		}
		if got != nil && !reflect.ValueOf(got).IsZero() {
			t.Errorf("%s: refused, and brings %+v", c.op, got)
		}
	}
}

// An event's error has the daemon's errno and words, as far as it says them; no errno with
// words is an I/O error, and an errno without words has its own.
func TestEventErrors(t *testing.T) {
	if err := eventError(0, ""); err != nil {
		t.Errorf("nothing: %v", err)
	}
	for _, c := range []struct {
		errno    syscall.Errno
		text     string
		sentinel error
		says     string
	}{
		{0, "words", rdserr.ErrIO, "words"},
		{syscall.ENOENT, "words", rdserr.ErrNotFound, "words"},
		{syscall.ENOENT, "", rdserr.ErrNotFound, rdserr.ErrNotFound.Error()},
		{syscall.EXDEV, "words", syscall.EXDEV, "words: " + syscall.EXDEV.Error()},
		{syscall.EXDEV, "", syscall.EXDEV, syscall.EXDEV.Error()},
	} {
		if err := eventError(c.errno, c.text); !errors.Is(err, c.sentinel) || err.Error() != c.says {
			t.Errorf("%d with %q: %v, want %q", c.errno, c.text, err, c.says)
		}
	}
}
