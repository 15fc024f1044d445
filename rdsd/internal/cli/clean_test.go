package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestClean: nothing that a terminal obeys comes through, in any of the forms there are,
// and what is only text stays as it is.
func TestClean(t *testing.T) {
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
		if got := clean(in); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
	if got := cleanLines("a\x1b\nb\u009b"); got != `a\x1b`+"\n"+`b\u009b` {
		t.Errorf("lines: %q", got)
	}
}

func FuzzClean(f *testing.F) {
	f.Add("\x1b[2J\u009b\x9b\U000e0041")
	f.Fuzz(func(t *testing.T, s string) {
		for _, text := range []string{clean(s), strings.ReplaceAll(cleanLines(s), "\n", "")} {
			if !utf8.ValidString(text) || strings.ContainsFunc(text, unsafeRune) {
				t.Errorf("%q is shown as %q", s, text)
			}
		}
		var out bytes.Buffer
		if err := writeJSON(&out, []string{s}); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsFunc(strings.ReplaceAll(out.String(), "\n", ""), unsafeRune) {
			t.Errorf("%q is %q in JSON", s, &out)
		}
		var back []string
		if err := json.Unmarshal(out.Bytes(), &back); err != nil || len(back) != 1 || utf8.ValidString(s) && back[0] != s {
			t.Errorf("%q comes back from JSON as %q (%v)", s, back, err)
		}
	})
}

// TestTablesAreClean: a label is text in a table, whatever it says.
func TestTablesAreClean(t *testing.T) {
	var out bytes.Buffer
	writeTable(&out, []string{"\x1b[2Jlabel\nPORT"}, []column[string]{{"label", func(s string) any { return s }}})
	if got := out.String(); got != "LABEL\n"+`\x1b[2Jlabel\x0aPORT`+"\n" {
		t.Errorf("%q", got)
	}
}
