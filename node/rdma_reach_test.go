package node

import (
	"context"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/volume"
)

// TestWhyAMapOverRDMAFails: what a call says of a node that is absent, of one that is not listening,
// and of one that refuses this one. It is told by the daemon, before the caller gives up.
func TestWhyAMapOverRDMAFails(t *testing.T) {
	port := freePort(t)
	soft := func(listen string) func(*config.Config) {
		return func(c *config.Config) {
			c.Volumes.Port, c.Volumes.RDMA, c.Volumes.Listen = port, config.RDMASoft, listen
		}
	}
	x := startIll(t, soft("always"))
	deaf := startIll(t, soft("never"))
	wary := startIll(t, func(c *config.Config) {
		soft("always")(c)
		c.Peers = []config.PeerRule{rule(t, x.addr().String(), false, true)}
	})
	v := rdsdv1.NewVolumeServiceClient(dial(t, x.cfg))
	for _, c := range []struct {
		what  string
		to    netip.Addr
		wait  time.Duration
		errno syscall.Errno
		says  []string
	}{
		{"absent", loopbackAddr(), 5 * time.Second, syscall.ETIMEDOUT, []string{"nobody has answered on UDP port 4791", "volumes.rdma"}},
		{"deaf", deaf.addr(), time.Minute, syscall.ECONNREFUSED, []string{"nobody listens there", "volumes.listen"}},
		{"wary", wary.addr(), time.Minute, syscall.EACCES, []string{"[[peers]]"}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), c.wait)
		_, err := v.Map(ctx, rdsdv1.VolumeMapRequest_builder{Node: c.to.String(), Name: "disk",
			Path: []*rdsdv1.VolumePathSpec{rdsdv1.VolumePathSpec_builder{Destination: c.to.String(), Transport: volume.TransportIB}.Build()}}.Build())
		cancel()
		wantErrno(t, c.what, err, c.errno)
		if err == nil || !strings.Contains(err.Error(), c.to.String()) {
			t.Errorf("%s: %v, which does not name it", c.what, err)
			continue
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v, which does not say %q", c.what, err, s)
			}
		}
	}
}
