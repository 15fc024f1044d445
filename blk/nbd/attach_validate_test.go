package nbd

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rdserr"
)

// What the kernel would take wrongly is refused, at the first value that is too much.
func TestAttachEdges(t *testing.T) {
	for _, c := range []struct {
		what string
		edit func(*Attach)
		ok   bool
	}{
		{"plain", func(*Attach) {}, true},
		{"the least timeouts", func(a *Attach) { a.Timeout, a.DeadTimeout = 1, 1 }, true},
		{"no timeout", func(a *Attach) { a.Timeout = 0 }, false},
		{"no dead timeout", func(a *Attach) { a.DeadTimeout = 0 }, false},
		{"a negative one", func(a *Attach) { a.DeadTimeout = -1 }, false},
		{"as many sockets as may be", func(a *Attach) {
			a.Sockets = a.Sockets[:0:0]
			a.Sockets = append(a.Sockets, make([]int, maxSockets)...)
		}, true},
		{"one more", func(a *Attach) { a.Sockets = append(a.Sockets[:0:0], make([]int, maxSockets+1)...) }, false},
		{"the longest name", func(a *Attach) { a.Backend = strings.Repeat("n", maxName) }, true},
		{"a byte longer", func(a *Attach) { a.Backend = strings.Repeat("n", maxName+1) }, false},
		{"NUL first", func(a *Attach) { a.Backend = "\x00n" }, false},
		{"NUL last", func(a *Attach) { a.Backend = "n\x00" }, false},
	} {
		a := Attach{Timeout: time.Second, DeadTimeout: time.Second}
		c.edit(&a)
		if err := a.validate(); (err == nil) != c.ok || err != nil && !errors.Is(err, rdserr.ErrInvalid) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
