package client

import (
	"errors"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
)

// TestOnEnd: whoever asks to be told of the end of a stream is, also when the end was
// first, and once.
func TestOnEnd(t *testing.T) {
	for _, first := range []bool{false, true} {
		s := &sockStream{end: make(chan error, 1)}
		var told []error
		if first {
			s.finish(rdserr.ErrClosed)
		}
		s.onEnd(func(err error) { told = append(told, err) })
		if !first {
			s.finish(rdserr.ErrClosed)
		}
		if len(told) != 1 || !errors.Is(told[0], rdserr.ErrClosed) {
			t.Errorf("the end was first: %v; told %v", first, told)
		}
	}
}
