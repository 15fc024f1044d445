package base

import (
	"io/fs"
	"testing"

	"github.com/rdsd/rdsd/node/config"
)

// TestForeign: where some have no number, or nobody knows whether, the overflow number is nobody's;
// where all have one it is that of a user like others.
func TestForeign(t *testing.T) {
	const ids, over, status = "/proc/self/uid_map", "/proc/sys/kernel/overflowuid", "/proc/self/status"
	nobody := foreign{true, config.NobodyID}
	for name, c := range map[string]struct {
		files map[string]string
		want  foreign
	}{
		"the first namespace":         {map[string]string{ids: "         0          0 4294967295\n", over: "65534\n"}, foreign{}},
		"all of it in pieces":         {map[string]string{ids: "0 1 1\n1 0 1\n2 2 4294967293\n", over: "65534\n"}, foreign{}},
		"one user":                    {map[string]string{ids: "65534 1000 1\n", over: "65534\n"}, nobody},
		"a container's usual numbers": {map[string]string{ids: "0 1000 1\n1 100000 65536\n", over: "65534\n"}, nobody},
		"nobody has one":              {map[string]string{ids: "", over: "65534\n"}, nobody},
		"another number":              {map[string]string{ids: "0 1000 1\n", over: "0\n"}, foreign{true, 0}},
		"no sysctl":                   {map[string]string{ids: "0 1000 1\n"}, nobody},
		"no namespaces":               {map[string]string{status: "Name:\trdsd\n"}, foreign{}},
		"no /proc":                    {nil, nobody},
	} {
		got := readForeign("uid", func(name string) ([]byte, error) {
			if b, ok := c.files[name]; ok {
				return []byte(b), nil
			}
			return nil, fs.ErrNotExist
		})
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
