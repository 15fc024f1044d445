package rtrs

import (
	"errors"
	"slices"
	"syscall"
	"testing"
)

// TestShortRead: a read that the server has answered with success is one only if it
// has written all of it, whoever ended the key; its error goes before that.
func TestShortRead(t *testing.T) {
	for _, c := range []struct {
		name    string
		missing int
		errno   uint16
		revoked bool // by the server
		want    error
	}{
		{"all is there", 0, 0, false, nil},
		{"a byte is missing", 1, 0, false, ErrShortRead},
		{"all is missing", 4096, 0, false, ErrShortRead},
		{"all is there, revoked", 0, 0, true, nil},
		{"a byte is missing, revoked", 1, 0, true, ErrShortRead},
		{"an error", 4096, uint16(syscall.ENOSPC), false, syscall.ENOSPC},
		{"an error, revoked", 1, uint16(syscall.ENOSPC), true, syscall.ENOSPC},
	} {
		f, p := upClient(t, ClientConfig{})
		f.short = c.missing
		r := f.submit(Read, make([]byte, 4096))
		o := one(t, f.take())
		if c.revoked {
			delete(f.keys, r.key)
			if err := p.Invalidated(f.now, o.conn, r.key, len(r.Data)-c.missing); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.answer(o, c.errno, 9); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if one(t, f.done) != r || !errors.Is(r.Err, c.want) || (r.Err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.name, r.Err, c.want)
		}
		if c.want == ErrShortRead && !errors.Is(r.Err, syscall.EIO) {
			t.Errorf("%s: %v is not EIO", c.name, r.Err)
		}
		if p.State() != Connected || len(f.keys) != 0 || len(f.c.free) != 4 {
			t.Errorf("%s: the path is %v, %d keys are left, %d permits of 4 are free", c.name, p.State(), len(f.keys), len(f.c.free))
		}
		if told := slices.ContainsFunc(f.events, func(e Event) bool { return e.Kind == EventViolation }); told != (c.want == ErrShortRead) {
			t.Errorf("%s: the event of a broken protocol: %v", c.name, told)
		}
	}
}
