package node

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/netlocal"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/node/peers"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/tcp"
)

// unguarded is TCP as a transport that cannot ask before a peer writes.
type unguarded struct{ *tcp.Provider }

func (u unguarded) OneSidedCaps() transport.OneSidedCaps {
	c := u.Provider.OneSidedCaps()
	c.Guards = false
	return c
}

// TestVolumeOverAnotherTransport: two daemons have a transport of links beside TCP. A session
// with a path over each serves through the loss of either.
func TestVolumeOverAnotherTransport(t *testing.T) {
	port, volumes, other := freePort(t), freePort(t), freePort(t)
	var nodes []*Node
	for range 2 {
		cfg := testConfig(t)
		cfg.RDS.Addresses = []netip.Addr{loopbackAddr()}
		cfg.RDS.Port, cfg.Volumes.Port, cfg.Volumes.Listen = port, volumes, "always"
		cfg.Volumes.Name = "n" + strings.ReplaceAll(cfg.RDS.Addresses[0].String(), ".", "-")
		n, err := New(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		re, err := reactor.New(reactor.Options{Name: "other", CPU: -1, SpinFor: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { re.Close() })
		n.peers.Use(peers.OneSidedTransport{Name: "other", Provider: unguarded{tcp.New(re)}, Port: other, Owner: netlocal.Owner})
		startNode(t, n)
		nodes = append(nodes, n)
	}
	near, far := nodes[0].volumes.Load(), nodes[1].volumes.Load()
	ctx := testContext(t)
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := far.Export(ctx, volume.ExportSpec{Name: "disk", Kind: volume.KindFile, Path: file}); err != nil {
		t.Fatal(err)
	}
	to := nodes[1].deps.Config.RDS.Addresses[0].String()
	m, err := near.Map(ctx, volume.MapSpec{Node: to, Name: "disk", Paths: []volume.PathSpec{{Dst: to}, {Dst: to, Transport: "other"}}})
	if err != nil {
		t.Fatal(err)
	}
	up := func() (names []string) {
		for _, p := range near.Paths() {
			if p.State == "connected" {
				names = append(names, p.Transport)
			}
		}
		return names
	}
	await.Until(t, 10*time.Second, "both paths", func() bool { return len(up()) == 2 })
	dev, err := nbd.DialURI(ctx, m.URI)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	for i, lost := range []volume.PathSpec{{}, {Transport: "other"}, {Transport: "tcp"}} {
		if lost != (volume.PathSpec{}) {
			if err := near.DisconnectPath(ctx, m.Session, lost); err != nil {
				t.Fatal(err)
			}
			await.Until(t, 10*time.Second, "one path", func() bool { return len(up()) == 1 })
			if left := up()[0]; (left == "other") == (lost.Transport == "other") {
				t.Fatalf("without %v the path over %q is left", lost, left)
			}
		}
		b, got := bytes.Repeat([]byte{byte(i + 1)}, 64<<10), make([]byte, 64<<10)
		if _, err := dev.WriteAt(b, int64(i)<<16); err != nil {
			t.Fatal(err)
		}
		if _, err := dev.ReadAt(got, int64(i)<<16); err != nil || !bytes.Equal(got, b) {
			t.Fatalf("read back without %v: %v", lost, err)
		}
		if lost != (volume.PathSpec{}) {
			if err := near.ReconnectPath(ctx, m.Session, lost); err != nil {
				t.Fatal(err)
			}
			await.Until(t, 10*time.Second, "both paths again", func() bool { return len(up()) == 2 })
		}
	}
	if names := up(); !slices.Contains(names, "other") || !slices.Contains(names, "") {
		t.Errorf("up are %q", names)
	}
}
