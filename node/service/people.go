package service

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
func (f *Front) newPage() *webpage.Page {
	return webpage.New(webpage.Deps{
		Admin:   &adminServer{front: f},
		Volumes: &volumeServer{front: f},
		As: func(ctx context.Context, id config.Identity) context.Context {
			return context.WithValue(ctx, identityKey{}, id)
		},
		Allow: func(uid uint32) error {
			if f.deps.Limiter.Allow(uid, time.Now()) {
				return nil
			}
			return f.deps.Limiter.Refusal(uid, f.deps.Count)
		},
		Conf:     f.deps.Conf,
		Memory:   f.deps.Memory,
		Guard:    f.deps.Guard,
		Log:      f.deps.Log,
		Stopping: f.deps.Stopping,
	})
}

// GetCongestionHistory is the last hour of congestion.
func (a *adminServer) GetCongestionHistory(_ context.Context, r *rdsdv1.GetCongestionHistoryRequest) (*rdsdv1.CongestionHistory, error) {
	if a.front.hour == nil {
		return &rdsdv1.CongestionHistory{}, nil
	}
	var one netip.AddrPort
	if r.HasEndpoint() {
		var err error
		if one, err = client.Endpoint("endpoint", r.GetEndpoint()); err != nil {
			return nil, err
		}
	}
	return a.front.hour.History(one), nil
}
