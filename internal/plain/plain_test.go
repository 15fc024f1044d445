package plain

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestText: nothing that a terminal obeys comes through, in any of the forms there are,
// and what is only text stays as it is.
func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"db":                    "db",
		"Größe 数据 ✓":            "Größe 数据 ✓",
		"\x1b[2Jgone":           `\x1b[2Jgone`,
		"\x1b]0;title\x07":      `\x1b]0;title\x07`,
		"a\nb\tc\rd":            `a\x0ab\x09c\x0dd`,
		"\u009b31mred":          `\u009b31mred`, // CSI of the second half of Latin 1
		"\x9b31mred":            `\x9b31mred`,   // and as a single byte, which is no UTF-8
		"\u202etxt.exe":         `\u202etxt.exe`,
		"zero\u200bwidth":       `zero\u200bwidth`,
		"line\u2028end\u2029":   `line\u2028end\u2029`,
		"\xff\xfe":              `\xff\xfe`,
		"\U000e0041tag \x7fdel": `\ue0041tag \x7fdel`,
	} {
		if got := Text(in); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
	if got := Lines("a\x1b\nb\u009b"); got != `a\x1b`+"\n"+`b\u009b` {
		t.Errorf("lines: %q", got)
	}
}

func FuzzText(f *testing.F) {
	f.Add("\x1b[2J\u009b\x9b\U000e0041")
	f.Fuzz(func(t *testing.T, s string) {
		for _, text := range []string{Text(s), strings.ReplaceAll(Lines(s), "\n", "")} {
			if !utf8.ValidString(text) || strings.ContainsFunc(text, unsafeRune) {
				t.Errorf("%q is shown as %q", s, text)
			}
		}
		text, err := json.MarshalIndent([]string{s}, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		out := bytes.NewBuffer(JSON(text))
		if strings.ContainsFunc(strings.ReplaceAll(out.String(), "\n", ""), unsafeRune) {
			t.Errorf("%q is %q in JSON", s, out)
		}
		var back []string
		if err := json.Unmarshal(out.Bytes(), &back); err != nil || len(back) != 1 || utf8.ValidString(s) && back[0] != s {
			t.Errorf("%q comes back from JSON as %q (%v)", s, back, err)
		}
	})
}
