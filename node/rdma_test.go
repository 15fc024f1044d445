package node

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/volume"
)

// rdmaNode is a daemon with volumes over RDMA, which has not run.
func rdmaNode(t *testing.T, port, volumes uint16, more ...netip.Addr) *Node {
	t.Helper()
	cfg := testConfig(t)
	cfg.RDS.Addresses = append([]netip.Addr{loopbackAddr()}, more...)
	cfg.RDS.Port, cfg.Volumes.Port, cfg.Volumes.Listen, cfg.Volumes.RDMA = port, volumes, "always", config.RDMASoft
	cfg.Volumes.Name = "n" + strings.ReplaceAll(cfg.RDS.Addresses[0].String(), ".", "-")
	n, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestVolumesOverRDMAAndTCP: two daemons with volumes.rdma = "soft". A session with a path over
// TCP and one over RoCE serves through the loss of either, peers are charged for what their
// links keep, and nothing of that is left when all is unmapped.
func TestVolumesOverRDMAAndTCP(t *testing.T) {
	port, volumes := freePort(t), freePort(t)
	var nodes []*Node
	for range 2 {
		n := rdmaNode(t, port, volumes)
		startNode(t, n)
		nodes = append(nodes, n)
	}
	if local := nodes[0].rdma.Load().links[0].Local; local == nil || !local(nodes[1].deps.Config.RDS.Addresses[0]) {
		t.Error("requests of this machine are not told from others") // of which transport/ib refuses what is nobody knows whose
	}
	near, far := nodes[0].volumes.Load(), nodes[1].volumes.Load()
	ctx := testContext(t)
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := far.Export(ctx, volume.ExportSpec{Name: "disk", Kind: volume.KindFile, Path: file}); err != nil {
		t.Fatal(err)
	}
	charged := func(n *Node) int64 { return n.deps.Memory.Kinds()[quota.Peers].Used }
	before := charged(nodes[1])
	to := nodes[1].deps.Config.RDS.Addresses[0].String()
	m, err := near.Map(ctx, volume.MapSpec{Node: to, Name: "disk", Paths: []volume.PathSpec{{Dst: to}, {Dst: to, Transport: "ib"}}})
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
	await.Until(t, 20*time.Second, "both paths", func() bool { return len(up()) == 2 })
	if charged(nodes[1]) <= before {
		t.Error("the peer's links cost nothing")
	}
	dev, err := nbd.DialURI(ctx, m.URI)
	if err != nil {
		t.Fatal(err)
	}
	for i, lost := range []volume.PathSpec{{}, {Transport: "ib"}, {Transport: "tcp"}} {
		if lost != (volume.PathSpec{}) {
			if err := near.DisconnectPath(ctx, m.Session, lost); err != nil {
				t.Fatal(err)
			}
			await.Until(t, 20*time.Second, "one path", func() bool { return len(up()) == 1 })
		}
		b, got := bytes.Repeat([]byte{byte(i + 1)}, 1<<20), make([]byte, 1<<20)
		if _, err := dev.WriteAt(b, int64(i)<<20); err != nil {
			t.Fatal(err)
		}
		if _, err := dev.ReadAt(got, int64(i)<<20); err != nil || !bytes.Equal(got, b) {
			t.Fatalf("read back without %v: %v", lost, err)
		}
		if lost != (volume.PathSpec{}) {
			if err := near.ReconnectPath(ctx, m.Session, lost); err != nil {
				t.Fatal(err)
			}
			await.Until(t, 20*time.Second, "both paths again", func() bool { return len(up()) == 2 })
		}
	}
	dev.Close()
	// The daemon hears of that a moment later.
	await.Until(t, 10*time.Second, "the mapping is not in use", func() bool { return near.Unmap(ctx, m.ID, false) == nil })
	await.Until(t, 20*time.Second, "the peers' memory given back", func() bool { return charged(nodes[1]) == before })
}

// TestRDMAPortIsTaken: a daemon whose address has no port of RoCE left does not start, and says
// which key wants it. The devices of its other addresses are gone then.
func TestRDMAPortIsTaken(t *testing.T) {
	n := rdmaNode(t, freePort(t), freePort(t), loopbackAddr())
	listen := func(i int) {
		c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.deps.Config.RDS.Addresses[i], roceUDPPort)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	listen(1)
	err := n.Run(testContext(t))
	if !errors.Is(err, syscall.EADDRINUSE) && (err == nil || !strings.Contains(err.Error(), "4791")) || !strings.Contains(err.Error(), "volumes.rdma") {
		t.Errorf("%v", err)
	}
	listen(0)
}
