package node

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/rdserr"
)

// TestVolumesOverRDMA: two daemons with volumes.rdma, a session with a path over TCP and one over
// RDMA, and its requests on either. A daemon without it says so.
func TestVolumesOverRDMA(t *testing.T) {
	port := freePort(t)
	soft := func(c *config.Config) {
		c.Volumes.Port, c.Volumes.RDMA, c.Volumes.RDMAPort = port, config.RDMASoft, 1234
	}
	x, y := startIll(t, soft), startIll(t, soft)
	ctx := testContext(t)
	if _, err := y.n.volumes.Load().Export(ctx, volume.ExportSpec{Name: "mem", Kind: volume.KindMemory, Size: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	h := x.n.volumes.Load()
	here, there := x.addr().String(), y.addr().String()
	ib := volume.PathSpec{Src: here, Dst: there, Transport: volume.TransportIB}
	m, err := h.Map(ctx, volume.MapSpec{Node: there, Name: "mem", Policy: "rr", Paths: []volume.PathSpec{ib, {Src: here, Dst: there}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.WaitPath(ctx, m.Session, volume.PathSpec{Dst: there, Transport: volume.TransportTCP}, volume.PathConnected); err != nil {
		t.Fatal(err)
	}
	for _, h := range []*volume.Host{h, y.n.volumes.Load()} {
		var over []string
		for _, p := range h.Paths() {
			if p.State != volume.PathConnected || (p.Transport == volume.TransportIB) != (p.Device != "" && p.DevicePort == 1) {
				t.Errorf("%+v", p)
			}
			over = append(over, p.Transport)
		}
		if slices.Sort(over); !slices.Equal(over, []string{"", "ib"}) {
			t.Errorf("paths over %q", over)
		}
	}
	dev, err := nbd.DialURI(ctx, m.URI)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	page := []byte(strings.Repeat("x", 4096))
	for i := range int64(20) {
		if _, err := dev.WriteAt(page, i*4096); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range h.Paths() {
		if p.Writes < 5 {
			t.Errorf("%d writes over %q", p.Writes, p.Transport)
		}
	}
	// What it had goes on over TCP.
	if err := h.DisconnectPath(ctx, m.Session, ib); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4096)
	if _, err := dev.ReadAt(got, 4096); err != nil || string(got) != string(page) {
		t.Errorf("over the other path: %v", err)
	}

	none := startIll(t, func(c *config.Config) { c.Volumes.Port = port })
	_, err = none.n.volumes.Load().Map(ctx, volume.MapSpec{Node: there, Name: "mem", Paths: []volume.PathSpec{{Dst: there, Transport: volume.TransportIB}}})
	if !errors.Is(err, rdserr.ErrNotSupported) || !strings.Contains(err.Error(), "volumes.rdma") {
		t.Errorf("without RDMA: %v", err)
	}

	// Two devices of one address cannot be.
	cfg := testConfig(t)
	cfg.RDS.Addresses = []netip.Addr{y.addr()}
	soft(cfg)
	cfg.RDS.Port++
	n, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Run(ctx); err == nil || !strings.Contains(err.Error(), "volumes.rdma") || !strings.Contains(err.Error(), "4791") {
		t.Errorf("the port of another device: %v", err)
	}
}
