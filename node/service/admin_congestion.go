package service

import (
	"context"
	"time"

	"google.golang.org/grpc"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/client"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/wire"
)

// maxCulprits bounds how many senders are shown for a congested port.
const maxCulprits = 16

// readersTime is how long other daemons may take to say who reads their congested
// ports. Those of a version that does not know the question never answer.
const readersTime = 150 * time.Millisecond

// askReaders has the peers asked about their congested ports, and waits for what
// they say, but not for long.
func askReaders(ctx context.Context, l []*datagram.Local) {
	due := 0
	for _, h := range l {
		due += h.AskReaders()
	}
	ctx, cancel := context.WithTimeout(ctx, readersTime)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for due > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		due = 0
		for _, h := range l {
			due += h.Look().ReadersDue()
			h.Unlook()
		}
	}
}

// ListCongestion shows what is congested now, who should read it, who fills it
// and who waits.
func (a *adminServer) ListCongestion(ctx context.Context, _ *rdsdv1.ListCongestionRequest) (*rdsdv1.ListCongestionResponse, error) {
	askReaders(ctx, a.front.deps.Host.Locals())
	var list []*rdsdv1.CongestedPort
	leftOut := 0
	for _, h := range a.front.deps.Host.Locals() {
		first := len(list)
		leftOut += h.EachCongested(func(_ *rds.Engine, c *rds.CongestedPort) { list = append(list, congestedPB(h.StepTime(), c)) }, nil)
		for _, p := range list[first:] {
			if p.GetLocal() {
				fillersPB(h, p)
			}
		}
	}
	resp := &rdsdv1.ListCongestionResponse{}
	resp.SetPort(list)
	resp.SetLeftOut(uint64(leftOut))
	return resp, nil
}

func congestedPB(now time.Duration, c *rds.CongestedPort) *rdsdv1.CongestedPort {
	p := &rdsdv1.CongestedPort{}
	p.SetEndpoint(client.EndpointPB(c.Endpoint))
	p.SetLocal(c.Local)
	p.SetSinceNs(uint64(max(now-c.Since, 0)))
	p.SetWaitingSenders(uint32(c.Waiting))
	p.SetBlocked(c.Blocked)
	if c.Socket == nil {
		r := datagram.ReaderThere(c.Reader, wire.MaxFillers)
		p.SetQueuedBytes(r.QueuedBytes)
		p.SetReaderUid(r.UID)
		p.SetReaderPid(r.PID)
		p.SetCulprit(culpritsPB(r.Fillers))
		return p
	}
	p.SetQueuedBytes(uint64(c.Socket.Info().RecvQueued))
	p.SetReaderUid(c.Socket.Options().UID)
	p.SetReaderPid(c.Socket.Options().PID)
	return p
}

// fillersPB says who fills a port of this node.
func fillersPB(h *datagram.Local, p *rdsdv1.CongestedPort) {
	r, _ := h.Reader(uint16(p.GetEndpoint().GetPort()), maxCulprits) // of a socket that was closed meanwhile: nobody
	p.SetCulprit(culpritsPB(r.Fillers))
}

func culpritsPB(fillers []rds.Culprit) (list []*rdsdv1.Culprit) {
	for _, k := range fillers {
		x := &rdsdv1.Culprit{}
		x.SetSource(client.EndpointPB(k.Source))
		x.SetQueuedDatagrams(uint64(k.N))
		x.SetQueuedBytes(uint64(k.Bytes))
		list = append(list, x)
	}
	return list
}

// WatchCongestion reports ports as they become congested and clear. The time
// is the wall clock's, for reading; nothing depends on it.
func (a *adminServer) WatchCongestion(r *rdsdv1.WatchCongestionRequest, stream grpc.ServerStreamingServer[rdsdv1.CongestionNotice]) error {
	leave, err := a.front.watches.enter(stream.Context())
	if err != nil {
		return err
	}
	defer leave()
	// Who does not read has so many notices kept for it.
	account := a.front.deps.Memory.Account(quota.User(identityFrom(stream.Context()).UID))
	defer account.Close()
	if err := account.Take(quota.Clients, datagram.WatchBytes); err != nil {
		return err
	}
	defer account.Give(quota.Clients, datagram.WatchBytes)
	// Watch first, list then: a change in between is told twice, never missed.
	w, stop := a.front.deps.Host.WatchCongestion()
	defer stop()
	if err := stream.SendHeader(nil); err != nil { // from here on no change is missed
		return err
	}
	if r.GetIncludeCurrent() {
		for _, h := range a.front.deps.Host.Locals() {
			var ports []rds.Notice // a page: who does not read holds no more
			var err error
			h.EachCongested(func(_ *rds.Engine, c *rds.CongestedPort) {
				ports = append(ports, rds.Notice{Endpoint: c.Endpoint, Local: c.Local, Congested: true})
			}, func() bool {
				for i := 0; i < len(ports) && err == nil; i++ {
					err = stream.Send(notice(ports[i]))
				}
				ports = ports[:0]
				return err == nil
			})
			if err != nil {
				return err
			}
		}
	}
	return a.tellNotices(stream, w)
}

// tellNotices sends what w is told until nobody wants it, or some was lost: whoever goes by
// changes alone would take a port for congested, or clear, for ever.
func (a *adminServer) tellNotices(stream grpc.ServerStreamingServer[rdsdv1.CongestionNotice], w *datagram.Watch) error {
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case <-a.front.deps.Stopping:
			return base.ErrDraining
		case notices := <-w.C:
			if w.Lost.Load() {
				return rdserr.With(rdserr.ErrTooMany, "changes came faster than they were read, and some are lost; watch again, from what is congested then")
			}
			for _, n := range notices {
				if err := stream.Send(notice(n)); err != nil {
					return err
				}
			}
		}
	}
}

func notice(n rds.Notice) *rdsdv1.CongestionNotice {
	m := &rdsdv1.CongestionNotice{}
	m.SetUnixNs(time.Now().UnixNano())
	m.SetEndpoint(client.EndpointPB(n.Endpoint))
	m.SetLocal(n.Local)
	m.SetCongested(n.Congested)
	return m
}
