package node

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/volume"
)

// copyOf is a configuration of its own with the same values.
func copyOf(c *config.Config) *config.Config {
	out := *c
	return &out
}

// TestReload: what can be reloaded takes effect, what cannot is named and stays.
func TestReload(t *testing.T) {
	cfg := testConfig(t)
	n, logs := newFakeNode(t, cfg, &fakeCore{})
	next := copyOf(cfg)
	if err := n.Reload(next); err == nil {
		t.Error("a node that does not run was reloaded")
	}
	n.level = new(slog.LevelVar)
	startNode(t, n)
	uid := uint32(12345)
	user := config.Identity{UID: uid}
	rule := config.PeerRule{}
	if err := rule.Address.UnmarshalText([]byte("10.1.0.0/16")); err != nil {
		t.Fatal(err)
	}
	next.Ports = []config.PortGrant{{UID: &uid, Range: config.PortRange{First: 500, Last: 600}}}
	next.Peers = []config.PeerRule{rule}
	next.API.AdminUIDs = []uint32{uid}
	next.API.CallsPerSec, next.API.CallsBurst = 1, 2
	next.Limits.MaxClients, next.Limits.MaxClientsPerUID = 7, 1
	next.Limits.MaxSocketsPerUID = 1
	next.Log.LinesPerS = 3
	next.Log.Level.Level = slog.LevelError
	next.RDS.Lanes = 2
	next.Limits.MaxPeers = 99
	if err := n.Reload(next); err != nil {
		t.Fatal(err)
	}
	if err := n.deps.Conf().MayBind(user, 550); err != nil {
		t.Errorf("a new grant: %v", err)
	}
	if ok, _ := n.deps.Conf().PeerPolicy(netip.MustParseAddr("10.1.2.3")); !ok {
		t.Error("a new rule has no effect")
	}
	if !n.deps.Conf().IsAdmin(user, 0) {
		t.Error("a new administrator is none")
	}
	if n.level.Level() != slog.LevelError {
		t.Errorf("the log's level is %v", n.level.Level())
	}
	account, err := n.users.Add(user, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.users.Add(user, 1); err == nil {
		t.Error("the new limit of clients has no effect")
	}
	n.users.Remove(user, account, 1)
	if n.deps.Conf().RDS.Lanes != cfg.RDS.Lanes || n.deps.Conf().Limits.MaxPeers != cfg.Limits.MaxPeers {
		t.Error("what needs a restart has changed")
	}
	if !strings.Contains(logs.String(), "level=WARN msg=\"configuration reloaded in part") {
		t.Errorf("no warning:\n%s", logs.String())
	}
	if want := `restart_needed="[rds.lanes limits.max_peers]"`; !strings.Contains(logs.String(), want) {
		t.Errorf("no %s in the log:\n%s", want, logs.String())
	}
	before := n.deps.Conf()
	bad := copyOf(next)
	bad.RDS.Lanes = 77
	if err := n.Reload(bad); err == nil || n.deps.Conf() != before {
		t.Errorf("a wrong configuration was taken: %v", err)
	}
}

// TestReloadNotifiesSystemd: RELOADING with the time it began, then READY.
func TestReloadNotifiesSystemd(t *testing.T) {
	cfg := testConfig(t)
	c := listenNotify(t, filepath.Join(filepath.Dir(cfg.API.Socket), "notify"))
	n, logs := newFakeNode(t, cfg, &fakeCore{})
	startNode(t, n)
	buf := make([]byte, 256)
	read := func() string {
		k, err := c.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:k])
	}
	if s := read(); s != "READY=1" {
		t.Fatal(s)
	}
	file := filepath.Join(filepath.Dir(cfg.API.Socket), "c.toml")
	if err := os.WriteFile(file, []byte("version = 1\n[rds]\nlanes = 99\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.ReloadFrom(config.LoadOptions{File: file})
	if s := read(); !strings.HasPrefix(s, "RELOADING=1\nMONOTONIC_USEC=") {
		t.Errorf("%q", s)
	}
	if s := read(); s != "READY=1" {
		t.Errorf("%q", s)
	}
	if !strings.Contains(logs.String(), "c.toml:3: rds.lanes") {
		t.Errorf("the log does not say what is wrong:\n%s", logs.String())
	}
}

// TestReloadEndsVolumes: who may not be a peer any more loses the paths to volumes, too.
func TestReloadEndsVolumes(t *testing.T) {
	var nodes []*Node
	port, rdsPort := freePort(t), freePort(t)
	var cfgs []*config.Config
	for range 2 {
		cfg := testConfig(t)
		cfg.RDS.Addresses, cfg.RDS.Port = []netip.Addr{loopbackAddr()}, rdsPort
		cfg.Volumes.Port = port
		cfg.Volumes.Name = "n" + strings.ReplaceAll(cfg.RDS.Addresses[0].String(), ".", "-")
		n, err := New(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		startNode(t, n)
		nodes, cfgs = append(nodes, n), append(cfgs, cfg)
	}
	ctx := testContext(t)
	near, far := nodes[0].volumes.Load(), nodes[1].volumes.Load()
	if _, err := far.Export(ctx, volume.ExportSpec{Name: "one", Kind: volume.KindMemory, Size: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if _, err := near.Map(ctx, volume.MapSpec{Node: cfgs[1].RDS.Addresses[0].String(), Name: "one"}); err != nil {
		t.Fatal(err)
	}
	next := copyOf(cfgs[1])
	next.Peers = []config.PeerRule{{Address: config.Prefix{Prefix: netip.PrefixFrom(cfgs[0].RDS.Addresses[0], 32)}, Deny: true}}
	if err := nodes[1].Reload(next); err != nil {
		t.Fatal(err)
	}
	await.Until(t, 10*time.Second, "the path is closed, and refused when it is made anew", func() bool {
		p := near.Paths()[0]
		return p.State != volume.PathConnected && p.ReconnectsFailed > 0 && len(far.Sessions()) == 0
	})
}
