package adversary

import (
	"regexp"
	"testing"
)

// TestActs: names are what flags and reports can hold, each once.
func TestActs(t *testing.T) {
	form := regexp.MustCompile(`^[a-z]+/[a-z-]+$`)
	seen := map[string]bool{}
	for _, a := range Acts {
		if !form.MatchString(a.Name) || seen[a.Name] || a.Weight < 1 || a.Play == nil {
			t.Errorf("act %q, weight %d", a.Name, a.Weight)
		}
		seen[a.Name] = true
	}
	if _, err := Choose([]string{"no/such"}, nil); err == nil {
		t.Error("an act that is none was chosen")
	}
	if got, err := Choose([]string{"ring/", "bell/full"}, []string{"ring/words"}); err != nil || len(got) < 3 || got[0].Name == "ring/words" {
		t.Errorf("%d acts, %v", len(got), err)
	}
	if _, err := Choose([]string{"bell/full"}, []string{"bell/"}); err == nil {
		t.Error("none is left, and that is no error")
	}
}
