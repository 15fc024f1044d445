package datagram

import (
	"testing"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/peers"
)

// testDeps is what a node would give for a configuration, without a log.
func testDeps(t testing.TB, c *config.Config) *base.Deps {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	d := base.New(c, nil)
	d.Guard = &guard.Guard{Log: d.Log}
	return d
}

// newTestHost makes a Host of configuration c with a registry of its own.
func newTestHost(t testing.TB, c *config.Config) *Host {
	d := testDeps(t, c)
	return New(d, peers.New(d))
}
