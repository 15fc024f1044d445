package cli

import (
	"context"
	"net/netip"
	"time"

	"github.com/rdsd/rdsd/rdsd/internal/dial"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// source is where a command that only reads has it from: a daemon, or what a daemon
// said once (bugreport).
type source interface {
	Status(context.Context) (*rdsd.Status, error)
	Peers(context.Context, rdsd.PeerFilter) ([]rdsd.Peer, error)
	Sockets(context.Context) ([]rdsd.SocketInfo, error)
	Queue(ctx context.Context, kind rdsd.QueueKind, limit uint32) (list []rdsd.QueuedDatagram, truncated bool, err error)
	Counters(ctx context.Context, peer netip.Addr) ([]rdsd.Counter, error)
	Congestion(context.Context) (list []rdsd.CongestedPort, leftOut int, err error)
	CongestionHistory(context.Context, netip.AddrPort) (*rdsd.CongestionHistory, error)
	Errors(context.Context) (*rdsd.ErrorLog, error)
	Config(context.Context) (string, error)
	Volumes(context.Context) (*volumesView, error)
	VolumeSessions(context.Context) ([]rdsd.VolumeSession, error)
	VolumePaths(context.Context) ([]rdsd.VolumePath, error)
	Now() time.Time // when it said so
}

// live is a daemon that answers.
type live struct {
	*rdsd.Admin
	volumes *rdsd.Volumes
}

// Now implements source.
func (live) Now() time.Time { return time.Now() }

// Volumes implements source.
func (l live) Volumes(ctx context.Context) (*volumesView, error) {
	var v volumesView
	var err error
	v.Exports, v.Mappings, err = l.volumes.List(ctx)
	return &v, err
}

// VolumeSessions implements source.
func (l live) VolumeSessions(ctx context.Context) ([]rdsd.VolumeSession, error) {
	return l.volumes.Sessions(ctx)
}

// VolumePaths implements source.
func (l live) VolumePaths(ctx context.Context) ([]rdsd.VolumePath, error) {
	return l.volumes.Paths(ctx, "")
}

// read runs fn with what there is to read, within --timeout.
func (a *app) read(ctx context.Context, fn func(context.Context, source) error) error {
	if a.from != "" {
		r, err := openReport(a.from)
		if err != nil {
			return err
		}
		return fn(ctx, r)
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return dial.Cause(fn(ctx, live{c.Admin(), c.Volumes()}))
}
