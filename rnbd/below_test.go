package rnbd

import (
	"errors"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
)

// TestBelow: where volumes of a session are looked for, under a root with and without the
// session's name in its path. A name that would lead elsewhere is refused.
func TestBelow(t *testing.T) {
	for _, c := range []struct {
		rest, session, name string
		want                string // "": refused
	}{
		{"", "s", "disk", "disk"},
		{"", "a/../b", "disk", "disk"}, // it is no part of the path
		{"{session}", "s", "disk", "s/disk"},
		{"at/{session}/its", "s", "d/disk", "at/s/its/d/disk"},
		{"%SESSNAME%-of", "s", "disk", "s-of/disk"},
		{"{session}", "...", "disk", ".../disk"},
		{"{session}", strings.Repeat("s", 254), "disk", strings.Repeat("s", 254) + "/disk"},
		{"{session}", "", "disk", ""},
		{"{session}", ".", "disk", ""},
		{"{session}", "..", "disk", ""},
		{"{session}", "a/b", "disk", ""},
		{"{session}", "/", "disk", ""},
		{"{session}", "a/..", "disk", ""},
		{"{session}", "s\x00", "disk", ""},
		{"{session}", strings.Repeat("s", 256), "disk", ""},
	} {
		r := &Root{rest: c.rest}
		got, err := r.below(c.session, c.name)
		if got != c.want || (c.want == "") != errors.Is(err, rdserr.ErrInvalid) || c.want != "" && err != nil {
			t.Errorf("%q of session %.20q under %q: %.40q, %v; want %.40q", c.name, c.session, c.rest, got, err, c.want)
		}
	}
}
