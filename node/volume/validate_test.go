package volume

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/rtrs"
)

func TestDefaultConfigIsRight(t *testing.T) {
	if err := (Config{}).Validate(); err != nil {
		t.Fatal(err)
	}
	var c Config
	c.defaults()
	if !*c.AlwaysInvalidate || c.Heartbeat*time.Duration(c.MissedLimit) > time.Second || c.Name != hostName() {
		t.Fatalf("defaults %+v", c)
	}
	// What operations.md and volumes.md say.
	c.AlwaysInvalidate, c.Name = nil, ""
	want := Config{
		Port: DefaultPort, Listen: ListenAuto, OnLoss: OnLossWait, Unfenced: UnfencedAfter, Policy: rtrs.MinInflight.String(), Attach: AsSocket,
		QueueDepth: 512, MaxIO: 256 << 10, MaxSessions: 256, MaxConnections: 32768, Connections: 1, MissedLimit: 4, MaxReconnects: NoLimit, MaxMappings: 256, MaxExports: 1024,
		Heartbeat: 200 * time.Millisecond, ReconnectMin: 100 * time.Millisecond, ReconnectMax: 5 * time.Second,
		IOTimeout: 30 * time.Second, LossTimeout: 30 * time.Second, UnfencedAfter: 40 * time.Second,
		NBDTimeout: 10 * time.Second, DeadTimeout: time.Minute, SocketMode: 0o600,
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("defaults %+v, want %+v", c, want)
	}
}

func TestWrongConfigIsToldByKey(t *testing.T) {
	for key, change := range map[string]func(*Config){
		"addresses":          func(c *Config) { c.Addresses = []netip.Addr{netip.IPv4Unspecified()} },
		"listen":             func(c *Config) { c.Listen = "sometimes" },
		"name":               func(c *Config) { c.Name = "a.b" },
		"state_dir":          func(c *Config) { c.StateDir, c.SocketDir = "here", "/here" },
		"socket_dir":         func(c *Config) { c.SocketDir = "here" },
		"socket_mode":        func(c *Config) { c.SocketMode = 0o1777 },
		"nbd_timeout":        func(c *Config) { c.NBDTimeout = time.Millisecond },
		"nbd_dead_timeout":   func(c *Config) { c.DeadTimeout = time.Millisecond },
		"queue_depth":        func(c *Config) { c.QueueDepth = 2048 },
		"max_io_bytes":       func(c *Config) { c.MaxIO = 5000 },
		"max_sessions":       func(c *Config) { c.MaxSessions = -1 },
		"connections":        func(c *Config) { c.Connections = 17 },
		"heartbeat_missed":   func(c *Config) { c.MissedLimit = 101 },
		"max_mappings":       func(c *Config) { c.MaxMappings = -1 },
		"max_exports":        func(c *Config) { c.MaxExports = -1 },
		"heartbeat_interval": func(c *Config) { c.Heartbeat = time.Millisecond },
		"reconnect_min":      func(c *Config) { c.ReconnectMin = time.Minute },
		"reconnect_max":      func(c *Config) { c.ReconnectMax = time.Hour },
		"io_timeout":         func(c *Config) { c.IOTimeout = -time.Second },
		"loss_timeout":       func(c *Config) { c.LossTimeout = -time.Second },
		"on_loss":            func(c *Config) { c.OnLoss = "cry" },
		"policy":             func(c *Config) { c.Policy = "any" },
		"attach":             func(c *Config) { c.Attach = "scsi" },
		"exports":            func(c *Config) { c.Exports = []ExportSpec{{Name: "a", Size: 512}, {Name: "a", Size: 512}} },
		"roots":              func(c *Config) { c.Roots = []RootSpec{{Path: "x"}} },
	} {
		var c Config
		change(&c)
		err := c.Validate()
		if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "volumes."+key+": ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestWrongExportsAreRefused(t *testing.T) {
	for says, s := range map[string]ExportSpec{
		`".." is not allowed`:                     {Name: "../x", Size: 512},
		"at most 254":                             {Name: strings.Repeat("x/", 130) + "x", Size: 512},
		"want file, block or memory":              {Name: "a", Kind: "tape", Size: 512},
		"memory has no path":                      {Name: "a", Kind: KindMemory, Path: "/x", Size: 512},
		"want a size (memory)":                    {Name: "a"},
		"only a file":                             {Name: "a", Kind: KindBlock, Path: "/x", Size: 512, Create: true},
		"cannot persist":                          {Name: "a", Size: 512, Persist: true},
		"want an absolute one":                    {Name: "a", Path: "x"},
		"size of the file to create":              {Name: "a", Path: "/x", Create: true},
		"created read-only":                       {Name: "a", Path: "/x", Create: true, Size: 512, ReadOnly: true},
		"a size goes with memory":                 {Name: "a", Path: "/x", Size: 512},
		"logical block size 1024":                 {Name: "a", Size: 1024, LogicalBlock: 1024},
		"multiple of the logical block size 512":  {Name: "a", Size: 1000},
		"multiple of the logical block size 4096": {Name: "a", Size: 5120, LogicalBlock: 4096},
		"not a subnet":                            {Name: "a", Size: 512, Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}},
		"pattern":                                 {Name: "a", Size: 512, Sessions: []string{""}},
	} {
		if err := s.check(); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v; want %q", s, err, says)
		}
	}
}
