package memtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

// TestStoreInMemory: a peer fills a volume in memory that is larger than the node. It is
// told that there is no space; the node keeps its limit, and serves others.
func TestStoreInMemory(t *testing.T) {
	port := rdsdtest.FreePort(t, rdsdtest.AddrA, rdsdtest.AddrB)
	server := startSmall(t, rdsdtest.AddrA, port)
	user := startSmall(t, rdsdtest.AddrB, port)
	watchMemory(t, server, limit)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	volumes := server.Dial().Volumes()
	if _, err := volumes.Export(ctx, rdsd.ExportSpec{Name: "disk", Kind: rdsd.KindMemory, Size: 256 << 20}); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, []byte(strings.Repeat("not zero", 256<<20/8)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(ctx, rdsdtest.Binary(t), "--socket", user.Socket, "volume", "copy", image, server.Addr.String()+":disk").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "is full") {
		t.Errorf("a volume of four times the limit was filled: %v\n%s", err, out)
	}
	works(t, server, rdsd.Rings)
	works(t, server, rdsd.GRPC)
	if err := volumes.Unexport(ctx, "disk", true); err != nil {
		t.Fatal(err)
	}
	settled(t, server, "memory_stores", 0)
}
