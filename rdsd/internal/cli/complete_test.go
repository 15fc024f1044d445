package cli

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
)

// TestWordsAreTypedAsTheyAre: bash puts what several words have in common into the line as it is, and runs what
// stands there at the next tab. No word is offered that a shell would not take for itself, and none
// that would be a flag; others are.
func TestWordsAreTypedAsTheyAre(t *testing.T) {
	lines := []string{"peers drop", "sockets close", "cancel --from", "volume show", "volume map", "volume map x --session", "volume unmap", "volume unexport",
		"volume force-close disk", "volume sessions set", "volume sessions policy", "volume paths remove app-store"}
	words := func(line string) (l []string) {
		var out, errw bytes.Buffer
		if code := run(t.Context(), append(append([]string{"__complete"}, strings.Fields(line)...), ""), strings.NewReader(""), &out, &errw); code != exitOK {
			t.Fatalf("%s ends with %d: %s", line, code, &errw)
		}
		for w := range strings.Lines(out.String()) {
			if !strings.HasPrefix(w, ":") { // what a shell is to do with them
				l = append(l, strings.TrimSuffix(w, "\n"))
			}
		}
		return l
	}
	serve := func(more ...grpc.ServerOption) func() {
		socket := filepath.Join(t.TempDir(), "s")
		t.Setenv("RDSD_SOCKET", socket)
		stop, err := serveFake(socket, more...)
		if err != nil {
			t.Fatal(err)
		}
		return stop
	}
	stop := serve()
	for _, l := range lines {
		if len(words(l)) == 0 {
			t.Errorf("%s: nothing is offered", l)
		}
	}
	stop()
	for _, text := range []string{"$(touch mine)", "`touch mine`", ";touch", "|touch", "a b", "\x1b[31m", "\u202e", "'", `"`, `\`, "&", "<", ">", "*", "!1", "{a,b}", "~", "#"} {
		stop := serve(spoiled(text)...)
		for _, l := range lines {
			for _, w := range words(l) {
				word, about, _ := strings.Cut(w, "\t")
				if strings.Contains(word, text) || strings.ContainsAny(about, "\x1b\u202e") {
					t.Errorf("%s: offered is %q", l, w)
				}
			}
		}
		stop()
	}
	if got := offered([]string{"--force", "-x", "a-b\tone", "ac", "[fd00::7]:1,10.0.0.1@n%1_2+3=4/5"}, ""); len(got) != 3 {
		t.Errorf("offered are %q", got)
	}
	if got := offered([]string{"a-b\tone", "ac\ttwo", "b"}, "ac"); len(got) != 1 || got[0] != "ac\ttwo" {
		t.Errorf("offered are %q", got)
	}
}
