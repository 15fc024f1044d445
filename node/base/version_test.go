package base

import (
	"regexp"
	"testing"
)

// TestVersion: a program says a version whatever built it, and the linker's if there is one.
func TestVersion(t *testing.T) {
	defer func(was string) { version = was }(version)
	version = ""
	if got := Version(); !regexp.MustCompile(`^\d+\.\d+\.\d+`).MatchString(got) {
		t.Errorf("this program is %q", got)
	}
	version = "1.2.3-test"
	if got := Version(); got != version {
		t.Errorf("%q, and the linker says %q", got, version)
	}
}
