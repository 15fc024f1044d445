package volume

import (
	"syscall"
	"testing"
)

// TestFindNames: a mapping is found by what the commands call it, with a NODE that is an address of
// IPv6 in brackets and without.
func TestFindNames(t *testing.T) {
	h := &Host{}
	for _, s := range []MapSpec{
		{ID: "v1", Node: "store", Name: "disk"},
		{ID: "v2", Node: "store:16400", Name: "disk"},
		{ID: "v3", Node: "fd00::7", Name: "disk"},
		{ID: "v4", Node: "[fd00::7]:16400", Name: "disk"},
		{ID: "v5", Node: "fd00::7", Name: "other"},
	} {
		h.mappings = append(h.mappings, &mapping{id: s.ID, spec: s})
	}
	for what, id := range map[string]string{
		"v1": "v1", "store:disk": "v1", "store:16400:disk": "v2", "[fd00::7]:disk": "v3", "fd00::7:disk": "v3",
		"[fd00::7]:16400:disk": "v4", "[fd00::7]:other": "v5",
	} {
		if m, err := h.find(what); err != nil || m.id != id {
			t.Errorf("%s: %v, %v; want %s", what, m, err, id)
		}
	}
	for _, what := range []string{"", "store", ":disk", "[fd00::8]:disk", "fd00::7", "other"} {
		_, err := h.find(what)
		is(t, what, err, syscall.ENOENT, "there is no mapping")
	}
}
