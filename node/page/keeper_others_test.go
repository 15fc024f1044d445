package page

import (
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/node/page/hour"
	"github.com/rdsd/rdsd/rds"
)

// TestKeeperOthers: ports beyond those that are told apart are told together, and that
// they are congested as long as a single one is.
func TestKeeperOthers(t *testing.T) {
	k := NewKeeper(nil)
	notice := func(n int, congested bool) rds.Notice {
		return rds.Notice{Endpoint: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 2}), uint16(n+1)), Congested: congested}
	}
	var list []rds.Notice
	for n := range hour.MaxPorts {
		list = append(list, notice(n, true))
	}
	k.follow(list)
	for n, more := range []int{0, 1, 2} {
		if more > 0 {
			k.follow([]rds.Notice{notice(hour.MaxPorts+n, true)})
		}
		o := k.History(netip.AddrPort{}).GetOthers()
		if o.GetCongestedPorts() != uint32(more) || o.GetCongested() != (more > 0) || o.HasEndpoint() {
			t.Errorf("with %d ports more: %v", more, o)
		}
	}
	if n := len(k.History(netip.AddrPort{}).GetPort()); n != hour.MaxPorts {
		t.Errorf("%d ports are told apart", n)
	}
}
