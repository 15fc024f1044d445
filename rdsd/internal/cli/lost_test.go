package cli

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
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

// TestBugreportInterrupted: an archive that lacks what nobody waited for is none.
func TestBugreportInterrupted(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	ctx, cancel := context.WithCancel(t.Context())
	stop, err := serveFake(socket, grpc.ChainUnaryInterceptor(func(c context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if info.FullMethod == rdsdv1.Admin_ListSockets_FullMethodName {
			cancel()
			<-c.Done()
		}
		return handle(c, req)
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	file := filepath.Join(dir, "report.tar.gz")
	var out, said bytes.Buffer
	code := run(ctx, []string{"bugreport", file, "--socket", socket, "--timeout", "0"}, strings.NewReader(""), &out, &said)
	if _, err := os.Stat(file); code != exitInterrupted || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("exit %d, %s%s; the archive: %v", code, &out, &said, err)
	}
}
