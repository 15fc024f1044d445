package cli

import (
	"bytes"
	"testing"
)

// TestTablesAreClean: a label is text in a table, whatever it says.
func TestTablesAreClean(t *testing.T) {
	var out bytes.Buffer
	writeTable(&out, []string{"\x1b[2Jlabel\nPORT"}, []column[string]{{"label", func(s string) any { return s }}})
	if got := out.String(); got != "LABEL\n"+`\x1b[2Jlabel\x0aPORT`+"\n" {
		t.Errorf("%q", got)
	}
}
