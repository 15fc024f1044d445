package service

import (
	"testing"

	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
)

// TestDescriptorsNeeded: the sum is of all that the limits allow, each at its price.
func TestDescriptorsNeeded(t *testing.T) {
	for _, c := range []struct {
		what string
		tune func(*config.Config)
		more uint64
	}{
		{"a peer has lanes", func(c *config.Config) { c.Limits.MaxPeers++ }, 4},
		{"a lane is every peer's", func(c *config.Config) { c.RDS.Lanes++ }, 10},
		{"a handshake", func(c *config.Config) { c.Limits.MaxHandshakes++ }, 1},
		{"a client with rings", func(c *config.Config) { c.Limits.MaxClients++ }, 2},
		{"a pair that anybody may have", func(c *config.Config) { c.RDS.Pairs = config.PairsAuto }, base.MaxPairs*base.PairFDs + 1},
		{"an export's store", func(c *config.Config) { c.Volumes.MaxExports++ }, 1},
		{"a volume's socket and its connection", func(c *config.Config) { c.Volumes.MaxMappings++ }, 2},
		{"a session of volumes", func(c *config.Config) { c.Volumes.MaxSessions++ }, 2},
	} {
		cfg := config.Default()
		cfg.Limits.MaxPeers, cfg.RDS.Lanes = 10, 4
		cfg.RDS.Pairs = config.PairsOff
		before := DescriptorsNeeded(cfg)
		c.tune(cfg)
		if n := DescriptorsNeeded(cfg); n != before+c.more {
			t.Errorf("%s: %d more, want %d", c.what, n-before, c.more)
		}
	}
	if n := DescriptorsNeeded(&config.Config{}); n != maxHTTPConns+base.BaseFDs+base.RingMakingFDs {
		t.Errorf("%d for nobody, want %d", n, maxHTTPConns+base.BaseFDs+base.RingMakingFDs)
	}
}
