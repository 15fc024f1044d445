package adversary

import (
	"context"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// adminActs call what administrators call, without the right or without an end.
var adminActs = []Act{
	{"admin/without-right", 2, adminWithoutRight},
	{"admin/lists", 3, adminLists},
	{"admin/pings", 1, adminPings},
	{"admin/unread-watches", 2, adminWatches},
	{"admin/noise", 1, adminNoise},
}

// services is a gRPC connection, as anybody's program has it.
func (s *Stage) services() (*grpc.ClientConn, error) {
	c, err := grpc.NewClient("unix:"+s.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return keep(s, c), nil
}

// adminWithoutRight tries everything that only administrators may. The victims
// would notice; that it is not even said to have been done is checked here.
func adminWithoutRight(s *Stage) error {
	c, err := s.services()
	if err != nil {
		return nil
	}
	a, v := rdsdv1.NewAdminClient(c), rdsdv1.NewVolumeServiceClient(c)
	victim := endpoint(netip.AddrPortFrom(s.Daemon, 4000))
	if len(s.Victims) > 0 {
		victim = endpoint(oneOf(s, s.Victims...))
	}
	for what, call := range map[string]func(context.Context) error{
		"dropped a path": func(ctx context.Context) error {
			m := &rdsdv1.DropPathRequest{}
			m.SetRemote(s.Other.AsSlice())
			m.SetAllLanes(true)
			_, err := a.DropPath(ctx, m)
			return err
		},
		"cancelled what another has sent": func(ctx context.Context) error {
			m := &rdsdv1.CancelSentRequest{}
			m.SetLocal(victim)
			_, err := a.CancelSent(ctx, m)
			return err
		},
		"closed a socket": func(ctx context.Context) error {
			m := &rdsdv1.CloseSocketRequest{}
			m.SetLocal(victim)
			_, err := a.CloseSocket(ctx, m)
			return err
		},
		"exported a file": func(ctx context.Context) error {
			m := &rdsdv1.VolumeExportRequest{}
			m.SetName("shadow")
			m.SetPath("/etc/shadow")
			_, err := v.Export(ctx, m)
			return err
		},
		"took an export away": func(ctx context.Context) error {
			m := &rdsdv1.VolumeUnexportRequest{}
			m.SetName("disk")
			m.SetForce(true)
			_, err := v.Unexport(ctx, m)
			return err
		},
		"resized a volume": func(ctx context.Context) error {
			m := &rdsdv1.VolumeResizeRequest{}
			m.SetExport("disk")
			_, err := v.Resize(ctx, m)
			return err
		},
		"unmapped a volume": func(ctx context.Context) error {
			m := &rdsdv1.VolumeUnmapRequest{}
			_, err := v.Unmap(ctx, m)
			return err
		},
		"mapped a volume": func(ctx context.Context) error {
			m := &rdsdv1.VolumeMapRequest{}
			m.SetNode(s.Other.String())
			m.SetName("disk")
			_, err := v.Map(ctx, m)
			return err
		},
	} {
		if err := call(s.Ctx); err == nil {
			return violated("%s for user of no right", what)
		}
	}
	return nil
}

// adminLists asks for every list, in a loop, with much in the queues.
func adminLists(s *Stage) error {
	for range 4 {
		queued(s, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 99, 0, 5}), 5))
	}
	c, err := s.services()
	if err != nil {
		return nil
	}
	a, v := rdsdv1.NewAdminClient(c), rdsdv1.NewVolumeServiceClient(c)
	queue := &rdsdv1.ListQueueRequest{}
	queue.SetLimit(oneOf[uint32](s, 0, 1<<20, 1<<32-1))
	calls := []func(context.Context) error{
		func(ctx context.Context) error { _, err := a.ListQueue(ctx, queue); return err },
		func(ctx context.Context) error { _, err := a.ListPeers(ctx, &rdsdv1.ListPeersRequest{}); return err },
		func(ctx context.Context) error {
			_, err := a.ListSockets(ctx, &rdsdv1.ListSocketsRequest{})
			return err
		},
		func(ctx context.Context) error {
			_, err := a.ListCongestion(ctx, &rdsdv1.ListCongestionRequest{})
			return err
		},
		func(ctx context.Context) error {
			_, err := a.GetCounters(ctx, &rdsdv1.GetCountersRequest{})
			return err
		},
		func(ctx context.Context) error { _, err := a.GetStatus(ctx, &rdsdv1.GetStatusRequest{}); return err },
		func(ctx context.Context) error { _, err := v.List(ctx, &rdsdv1.VolumeListRequest{}); return err },
		func(ctx context.Context) error {
			_, err := v.ListSessions(ctx, &rdsdv1.VolumeListSessionsRequest{})
			return err
		},
		func(ctx context.Context) error { _, err := v.Check(ctx, &rdsdv1.VolumeCheckRequest{}); return err },
	}
	for !s.Over() {
		if oneOf(s, calls...)(s.Ctx) != nil {
			s.Pause(time.Millisecond)
		}
	}
	return nil
}

// adminPings pings nodes that are there and others, many at a time.
func adminPings(s *Stage) error {
	c, err := s.services()
	if err != nil {
		return nil
	}
	a := rdsdv1.NewAdminClient(c)
	for range 32 {
		to := oneOf(s, s.Other, s.Daemon, s.from(s.Allowed), s.from(s.Stranger))
		s.Go(func() {
			for !s.Over() {
				m := &rdsdv1.PingRequest{}
				m.SetRemote(to.AsSlice())
				m.SetTimeoutNs(int64(200 * time.Millisecond))
				if _, err := a.Ping(s.Ctx, m); err != nil {
					s.Pause(5 * time.Millisecond)
				}
			}
		})
	}
	s.Pause(time.Second)
	<-s.Ctx.Done()
	return nil
}

// adminWatches watches and does not read.
func adminWatches(s *Stage) error {
	for range 6 {
		c, err := s.services()
		if err != nil {
			return nil
		}
		a, v := rdsdv1.NewAdminClient(c), rdsdv1.NewVolumeServiceClient(c)
		for range 100 {
			if s.Over() {
				break
			}
			m := &rdsdv1.WatchCongestionRequest{}
			m.SetIncludeCurrent(true)
			a.WatchCongestion(s.Ctx, m)
			v.Watch(s.Ctx, &rdsdv1.VolumeWatchRequest{})
		}
	}
	s.Hold(500 * time.Millisecond)
	return nil
}

// adminNoise calls with arguments of random bytes.
func adminNoise(s *Stage) error {
	h, err := s.DialStream()
	if err != nil {
		return nil
	}
	s.Go(func() { h.Drain(true) })
	for !s.Over() {
		id, err := h.Call(oneOf(s, methodQueue, methodWatch, methodVolumes, "/rdsd.v1.Admin/ListPeers", "/rdsd.v1.Admin/Ping", "/rdsd.v1.Admin/GetCounters",
			"/rdsd.v1.VolumeService/Get", "/rdsd.v1.VolumeService/Info", "/rdsd.v1.VolumeService/ListPaths", "/rdsd.v1.Admin/DropPath"))
		if err != nil {
			return nil
		}
		body := s.noise(make([]byte, s.IntN(60)))
		if h.WriteData(id, true, append([]byte{0, 0, 0, 0, byte(len(body))}, body...)) != nil {
			return nil
		}
		if s.IntN(8) == 0 {
			s.Pause(time.Millisecond)
		}
	}
	return nil
}
