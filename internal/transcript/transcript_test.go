package transcript

import (
	"strings"
	"testing"
)

// The first step that differs is the one that is named, wherever it is.
func TestDiffers(t *testing.T) {
	was := []string{"a", "b", "c", "d"}
	for at := range was {
		now := append([]string(nil), was...)
		now[at] = "other"
		if got := differs(3, now, line(was)); !strings.Contains(got, "seed 3 ") || !strings.Contains(got, "in step "+string(rune('0'+at))+" ") || !strings.HasSuffix(got, ": other") {
			t.Errorf("step %d: %s", at, got)
		}
	}
	if got := differs(0, was, line(was[:2])); !strings.Contains(got, "in step 2 ") {
		t.Errorf("two steps more: %s", got)
	}
	if got := differs(0, was[:2], line(was)); !strings.Contains(got, "in step 2 ") {
		t.Errorf("two steps less: %s", got)
	}
}
