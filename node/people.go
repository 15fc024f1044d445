package node

import (
	"context"
	"net/netip"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/config"
	webpage "github.com/rdsd/rdsd/node/page"
)

// newPage makes the page of this node, which calls the services of the API in the name
// of whoever looks.
func (n *Node) newPage() *webpage.Page {
	return webpage.New(webpage.Deps{
		Admin:   &adminServer{node: n},
		Volumes: &volumeServer{node: n},
		As: func(ctx context.Context, id config.Identity) context.Context {
			return context.WithValue(ctx, identityKey{}, id)
		},
		Allow: func(uid uint32) error {
			if n.limiter.Allow(uid, time.Now()) {
				return nil
			}
			return n.limiter.Refusal(uid, n.deps.Count)
		},
		Conf:     n.deps.Conf,
		Memory:   n.deps.Memory,
		Guard:    n.deps.Guard,
		Log:      n.deps.Log,
		Stopping: n.deps.Stopping,
	})
}

// GetCongestionHistory is the last hour of congestion.
func (a *adminServer) GetCongestionHistory(_ context.Context, r *rdsdv1.GetCongestionHistoryRequest) (*rdsdv1.CongestionHistory, error) {
	if a.node.hour == nil {
		return &rdsdv1.CongestionHistory{}, nil
	}
	var one netip.AddrPort
	if r.HasEndpoint() {
		var err error
		if one, err = client.Endpoint("endpoint", r.GetEndpoint()); err != nil {
			return nil, err
		}
	}
	return a.node.hour.History(one), nil
}
