package cli

import (
	"bytes"
	"syscall"
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

// full is a disk without room for more than so many bytes.
type full int

func (f *full) Write(b []byte) (int, error) {
	n := min(len(b), int(*f))
	*f -= full(n)
	if n < len(b) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

// TestWhatIsNotPrintedFails: a command whose output could not be written, the first or
// the last of it, has failed and says so, although it had no other error.
func TestWhatIsNotPrintedFails(t *testing.T) {
	var whole, said bytes.Buffer
	args := []string{"exit-codes"}
	if code := run(t.Context(), args, nil, &whole, &said); code != exitOK || said.Len() > 0 {
		t.Fatalf("with room: exit %d, %q", code, said.String())
	}
	for _, room := range []int{0, whole.Len() - 1} {
		f := full(room)
		said.Reset()
		if code := run(t.Context(), args, nil, &f, &said); code != exitFailed || said.String() != "rdsd: no space left on device\n" {
			t.Errorf("with room for %d of %d bytes: exit %d, %q", room, whole.Len(), code, said.String())
		}
	}
}
