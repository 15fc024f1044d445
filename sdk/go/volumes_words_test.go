package rdsd

import (
	"errors"
	"testing"

	"github.com/rdsd/rdsd/rdserr"
)

// TestWords: a word has one number and back; what neither side knows is said.
func TestWords(t *testing.T) {
	words := []string{"", "one", "two"}
	for i, w := range words {
		if got := wordOf(words, int32(i)); got != w {
			t.Errorf("%d is %q, want %q", i, got, w)
		}
		if got, err := word[int32]("what", words, w); got != int32(i) || err != nil {
			t.Errorf("%q is %d, %v", w, got, err)
		}
	}
	for e, want := range map[int32]string{-1: "unknown (-1)", 3: "unknown (3)", 1 << 30: "unknown (1073741824)"} {
		if got := wordOf(words, e); got != want {
			t.Errorf("%d is %q, want %q", e, got, want)
		}
	}
	if _, err := word[int32]("what", words, "three"); !errors.Is(err, rdserr.ErrInvalid) {
		t.Errorf("a word nobody knows: %v", err)
	}
}
