package node

import (
	"bytes"
	"crypto/sha256"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/volume"
)

// TestToolsOverRDMA: nbdcopy fills a volume whose only path is over RoCE and reads it back, and
// fio writes and verifies there; at the end the store has what nbdcopy read.
func TestToolsOverRDMA(t *testing.T) {
	tools := map[string]string{}
	for name, pkg := range map[string]string{"nbdcopy": "libnbd-bin", "fio": "fio"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skipf("%s is not installed (%s)", name, pkg)
		}
		tools[name] = path
	}
	port, volumes := freePort(t), freePort(t)
	var nodes []*Node
	for range 2 {
		n := rdmaNode(t, port, volumes)
		startNode(t, n)
		nodes = append(nodes, n)
	}
	near, far := nodes[0].volumes.Load(), nodes[1].volumes.Load()
	ctx, dir := testContext(t), t.TempDir()
	const size = 24 << 20
	store, from, back := filepath.Join(dir, "store"), filepath.Join(dir, "from"), filepath.Join(dir, "back")
	content := make([]byte, size)
	rand.New(rand.NewSource(1)).Read(content)
	for path, b := range map[string][]byte{store: make([]byte, size), from: content} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := far.Export(ctx, volume.ExportSpec{Name: "disk", Kind: volume.KindFile, Path: store}); err != nil {
		t.Fatal(err)
	}
	to := nodes[1].deps.Config.RDS.Addresses[0].String()
	m, err := near.Map(ctx, volume.MapSpec{Node: to, Name: "disk", Paths: []volume.PathSpec{{Dst: to, Transport: transportRDMA}}})
	if err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(ctx, tools[name], args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
	}
	run("nbdcopy", "--flush", "--connections=2", "--requests=32", from, m.URI)
	run("nbdcopy", m.URI, back)
	if b, err := os.ReadFile(back); err != nil || !bytes.Equal(b, content) {
		t.Fatalf("nbdcopy reads back other bytes than it wrote: %v", err)
	}
	run("fio", "--name=v", "--ioengine=nbd", "--uri="+m.URI, "--rw=randrw", "--bsrange=512-128k", "--iodepth=16", "--size=16M",
		"--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--loops=1")
	run("nbdcopy", m.URI, back)
	// The client's daemon says that it is done before the last bytes of its own are on the disk,
	// and the server's store is a file that this test can read at any time.
	await.Until(t, 10*time.Second, "the store has what was read", func() bool {
		a, errA := os.ReadFile(store)
		b, errB := os.ReadFile(back)
		return errA == nil && errB == nil && sha256.Sum256(a) == sha256.Sum256(b)
	})
	var packets uint64
	for _, d := range nodes[1].rdmaDevices() {
		for _, c := range d.Counters {
			if c.Name == "rcvd_pkts" {
				packets += c.Value
			}
		}
	}
	// Packets have 4 KiB at loopback.
	if least := uint64(size / 4096); packets < least {
		t.Errorf("%d packets were received over RoCE, want at least %d", packets, least)
	}
}
