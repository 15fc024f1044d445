package cli

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestWhoCannotPrintEnds: what goes on until it is interrupted ends when nobody can be told
// any more, and says so.
func TestWhoCannotPrintEnds(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	stop, err := serveFake(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for _, c := range []string{"ping 10.0.0.2 -i 1ms", "ping 10.0.0.2 -i 1ms --json", "congestion --watch", "volume events", "top -b -d 100ms"} {
		var said bytes.Buffer
		f := full(30)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		code := run(ctx, append(strings.Fields(c), "--socket", socket), strings.NewReader(""), &f, &said)
		if ctx.Err() != nil || code != exitFailed || said.String() != "rdsd: no space left on device\n" {
			t.Errorf("rdsd %s: exit %d, %q, %v", c, code, &said, ctx.Err())
		}
		cancel()
	}
}
