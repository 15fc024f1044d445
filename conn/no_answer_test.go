package conn

import (
	"errors"
	"strings"
	"testing"
)

// Of a link without an answer it is told which way nothing went.
func TestWhyNoAnswer(t *testing.T) {
	for _, c := range []struct {
		p    Lane
		want string
	}{
		{Lane{}, "nothing was sent to it"},
		{Lane{heard: true}, "nothing was sent to it"},
		{Lane{txOff: 1, writing: true, heard: true}, "what was sent to it has not left"},
		{Lane{txOff: 1, heard: true}, "something else came from it"},
		{Lane{txOff: 1}, "nothing came from it"},
	} {
		if err := c.p.whyNoAnswer(); !errors.Is(err, errNoAnswer) || !strings.HasSuffix(err.Error(), ": "+c.want) {
			t.Errorf("%v, not %q", err, c.want)
		}
	}
}
