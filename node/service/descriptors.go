package service

import (
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
)

// DescriptorsNeeded is the sum of what the limits allow.
func DescriptorsNeeded(c *config.Config) uint64 {
	l, v := &c.Limits, &c.Volumes
	links := uint64(l.MaxPeers)*uint64(c.RDS.Lanes) + uint64(l.MaxHandshakes)
	clients := uint64(l.MaxClients) * (base.ClientFDs + base.RingFDs)
	volumes := uint64(v.MaxExports) + 2*uint64(v.MaxMappings) + 2*uint64(v.MaxSessions)
	pairs := uint64(0)
	if c.RDS.Pairs == config.PairsAuto {
		pairs = base.MaxPairs*base.PairFDs + 1
	}
	return links + clients + base.RingMakingFDs + pairs + volumes + maxHTTPConns + base.BaseFDs
}
