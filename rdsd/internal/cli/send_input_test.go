package cli

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestReadInputWaits: lines come when they are there, and the wait for the next one ends with
// the command.
func TestReadInputWaits(t *testing.T) {
	r, w := io.Pipe()
	defer r.Close()
	go func() { // ends with the second write, which nobody reads before
		io.WriteString(w, "one\r\ntwo\nthr")
		io.WriteString(w, "ee\n")
	}()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var got []string
	err := (&app{in: r}).readInput(ctx, sendOptions{lines: true}, func(p []byte, more bool) error {
		if more {
			p = append(p, '+')
		}
		if got = append(got, string(p)); len(got) == 3 {
			cancel() // the input stays open
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || strings.Join(got, " ") != "one+ two three" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestLines: every line is one, whatever ends it, and the last one may have no end.
func TestLines(t *testing.T) {
	long := strings.Repeat("x", maxDatagramBytes)
	for in, want := range map[string]string{"": "", "\n": "||", "a": "|a|", "a\n\nb\r\nc": "|a||||b||c|", long + "\r\n" + long: "|" + long + "||" + long + "|"} {
		var got strings.Builder
		if err := lines(strings.NewReader(in), "it", func(p []byte, _ bool) error {
			got.WriteString("|" + string(p) + "|")
			return nil
		}); err != nil || got.String() != want {
			t.Errorf("%.20q: %.40q, %v", in, got.String(), err)
		}
	}
	for _, in := range []string{long + "x", long + "x\n", long + long} {
		if err := lines(strings.NewReader("a\n"+in), "it", func([]byte, bool) error { return nil }); err == nil || !strings.Contains(err.Error(), "too long") {
			t.Errorf("a line of more than 1 MiB: %v", err)
		}
	}
}
