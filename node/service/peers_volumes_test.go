package service

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/volume"
)

// TestPeersWithVolumes: the paths of volumes stand with the peer they lead to, whichever
// end is the client; who has nothing else is a peer too, once.
func TestPeersWithVolumes(t *testing.T) {
	path := func(role, session, src, dst string) volume.PathInfo {
		return volume.PathInfo{PathSpec: volume.PathSpec{Src: src, Dst: dst}, Session: session, Role: role}
	}
	paths := []volume.PathInfo{
		path(volume.RoleClient, "to-2", "10.0.0.1:40112", "10.0.0.2:16388"),
		path(volume.RoleServer, "from-2", "10.0.0.2:40113", "10.0.0.1:16388"),
		path(volume.RoleClient, "other-local", "10.0.1.1:40114", "10.0.0.2:16388"),
		path(volume.RoleClient, "to-3", "10.0.0.1", "10.0.0.3:16388"),
		path(volume.RoleServer, "from-3", "[::ffff:10.0.0.3]:40115", "10.0.0.1:16388"),
		path(volume.RoleClient, "not-yet", "", "[fd00::4]:16388"),
		path(volume.RoleClient, "no-address", "10.0.0.1", "later.test:16388"),
	}
	for _, c := range []struct {
		local, remote string
		want          []string
	}{
		{"", "", []string{"10.0.0.1 10.0.0.2 to-2 from-2", "10.0.1.1 10.0.0.2 other-local", "10.0.0.1 10.0.0.3 to-3 from-3", "invalid IP fd00::4 not-yet"}},
		{"10.0.0.1", "", []string{"10.0.0.1 10.0.0.2 to-2 from-2", "10.0.0.1 10.0.0.3 to-3 from-3"}},
		{"", "10.0.0.3", []string{"10.0.0.1 10.0.0.2", "10.0.0.1 10.0.0.3 to-3 from-3"}},
	} {
		known := &rdsdv1.Peer{} // of datagrams; it was chosen before
		known.SetLocal([]byte{10, 0, 0, 1})
		known.SetRemote([]byte{10, 0, 0, 2})
		var local, remote netip.Addr
		if c.local != "" {
			local = netip.MustParseAddr(c.local)
		}
		if c.remote != "" {
			remote = netip.MustParseAddr(c.remote)
		}
		var got []string
		for _, p := range withVolumes([]*rdsdv1.Peer{known}, paths, local, remote, time.Now()) {
			text := addrOf(p.GetLocal()).String() + " " + addrOf(p.GetRemote()).String()
			for _, v := range p.GetVolumePath() {
				text += " " + v.GetSession()
			}
			got = append(got, text)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("local %q, remote %q:\n%q, want\n%q", c.local, c.remote, got, c.want)
		}
	}
}
