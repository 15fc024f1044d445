package service

import (
	"context"
	"strings"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/node/health"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/rds"
)

// problems is what is not as it should be with the node, and what mends it. It takes the
// locks that lists take, for a page at a time, and nothing here waits.
func (f *Front) problems(s *snapshot) []health.Problem {
	var x health.Exam
	f.examineNode(&x)
	if len(s.holders) > 0 {
		x.Holder(strings.TrimPrefix(s.holders[0].Name, holderName), s.holders[0].Used)
	}
	for _, b := range s.Budgets {
		x.Budget(b.Name, b.Used, b.Limit, b.RefusedAgo)
	}
	if f.deps.Host != nil {
		for _, h := range f.deps.Host.Locals() {
			h.EachPeer(func(_ *rds.Engine, pe *rds.Peer) { f.examinePeer(&x, h, pe) })
			examinePorts(&x, h)
		}
	}
	if h := f.deps.Volumes(); h != nil {
		examineVolumes(&x, h, time.Now())
	}
	logged, _ := f.deps.Errors()
	for i := range logged {
		e := &logged[i]
		x.Logged(&health.Logged{Message: e.Message, Error: e.Why, Peer: e.Peer, Age: time.Since(e.Last), Count: e.Count})
	}
	return x.Problems()
}

// examine says in st what is not as it should be.
func (f *Front) examine(s *snapshot, st *rdsdv1.Status) {
	list := f.problems(s)
	var out []*rdsdv1.Problem
	for i := range list {
		out = append(out, problemPB(&list[i]))
	}
	st.SetProblem(out)
	st.SetHealthy(health.Healthy(list))
	st.SetSeverity(rdsdv1.ProblemSeverity(health.Worst(list)))
	if a := f.deps.HTTPAddr(); a != nil {
		st.SetHttpAddress(a.String())
		if a.Network() == "unix" {
			st.SetHttpAddress("unix:" + a.String())
		}
	}
}

func problemPB(p *health.Problem) *rdsdv1.Problem {
	m := &rdsdv1.Problem{}
	m.SetCode(p.Code.String())
	m.SetSeverity(rdsdv1.ProblemSeverity(p.Severity))
	m.SetSubject(text(p.Subject))
	m.SetText(text(p.Text))
	m.SetRemedy(text(p.Remedy))
	m.SetSinceNs(uint64(max(p.Since, 0)))
	return m
}

func (f *Front) examineNode(x *health.Exam) {
	c := f.deps.Conf()
	facts := health.Node{State: f.deps.State(), Lonely: c.Lonely(), Loopback: true, Notes: f.deps.Config.Notes(),
		NoLedger: f.deps.Config.LedgerPath() == "", Need: DescriptorsNeeded(f.deps.Config), Have: f.deps.FDs.Most(), Capped: f.deps.Config.Limits.MaxDescriptors != 0}
	for w := range guard.Kinds {
		facts.Panics += f.deps.Guard.Count(w)
	}
	for _, a := range f.deps.Config.RDS.Addresses {
		facts.Loopback = facts.Loopback && a.IsLoopback()
	}
	if f.deps.Config.API.RemoteListen != "" {
		facts.Insecure = f.deps.Config.API.RemoteListen
	}
	if h := f.deps.Volumes(); h != nil {
		facts.NoVolumes = f.deps.Config.VolumeConfig().StateDir == ""
		facts.Volumes = uint64(len(h.Exports()) + len(h.Mappings()))
		for _, t := range h.StateTroubles() {
			facts.StateLost = append(facts.StateLost, health.Lost{Why: t.Err.Error(), Mend: t.Mend})
		}
	}
	x.Node(&facts)
}

// examinePeer is called with the lock held.
func (f *Front) examinePeer(x *health.Exam, h *datagram.Local, pe *rds.Peer) {
	c := pe.Conn()
	p := health.Peer{Local: h.Addr(), Remote: pe.Addr(), Waiting: uint64(pe.Owed())}
	p.Allowed, _ = h.Host().Peers().MayPeer(pe.Addr())
	c.EachLane(func(cp *conn.Lane) {
		i := cp.Info()
		switch {
		case i.State == conn.Up:
			p.Up++
		// An idle lane to a peer that never answered is not tried any more: whoever pinged a
		// wrong address once would be told of it until the daemon ends.
		case i.Attempts > 0 && (i.State != conn.Down || c.Kind() != conn.KindUnknown):
			p.Failing++
			if since := h.StepTime() - i.Failing; since >= p.FailingFor {
				p.FailingFor, p.Attempts = since, i.Attempts
				if i.LastErr != nil {
					p.LastError = i.LastErr.Error()
				}
			}
		}
		if i.Paused {
			p.Paused++
		}
	})
	if p.Up == 0 && p.Failing == 0 && p.Allowed && p.Paused == 0 {
		return
	}
	x.Peer(&p)
}

// examinePorts looks at the congested ports page by page, and then, without the lock, at
// the readers of those that may be listed.
func examinePorts(x *health.Exam, h *datagram.Local) {
	var page []health.Port
	h.EachCongested(func(_ *rds.Engine, c *rds.CongestedPort) {
		p := health.Port{Endpoint: c.Endpoint, Local: c.Local, Held: c.Local && c.Socket == nil, Away: c.Away, For: h.StepTime() - c.Since, Waiting: c.Waiting}
		if p.For < health.Grace {
			return
		}
		tellReader(&p, datagram.ReaderThere(c.Reader, 1))
		page = append(page, p)
	}, func() bool {
		for i := range page {
			p := &page[i]
			if p.Local && x.Lists(p.Local, p.For) {
				r, _ := h.Reader(p.Endpoint.Port(), 1)
				tellReader(p, r)
			}
			x.Port(p)
		}
		page = page[:0]
		return true
	})
}

// tellReader says who ought to read a port, in the words of a room that knows no socket.
func tellReader(p *health.Port, r datagram.PortReader) {
	p.Queued, p.PID, p.UID, p.Label, p.Culprit = r.QueuedBytes, r.PID, r.UID, r.Label, r.Culprit()
}

func examineVolumes(x *health.Exam, h *volume.Host, now time.Time) {
	for _, m := range h.Mappings() {
		f := health.Mapping{ID: m.ID, Node: m.Node, Name: m.Name, Open: m.State == volume.StateOpen, For: now.Sub(m.Since), RequestError: m.FailedWhy,
			SyncLost: m.SyncLost, Paths: m.PathCount}
		if !f.Open {
			f.Why, f.Mend = m.NotOpen()
		}
		f.Failed, f.Done = requests(m.Ops)
		f.FailedAgo = m.FailedAgo
		if f.Limit = m.IOTimeout; m.Stalled() {
			f.Stalled = m.Oldest
		}
		x.Mapping(&f)
	}
	for _, e := range h.Exports() {
		f := health.Export{Name: e.Name, Path: e.Path, Failed: e.State == "failed", Error: e.Error, For: now.Sub(e.Since)}
		if e.Left {
			f.Why, f.Mend = e.NotTaken()
		}
		f.Errors, f.Done = requests(e.Ops)
		f.FailedAgo = e.FailedAgo
		if f.Limit = volume.StallLong; e.Stalled() {
			f.Stalled = e.Oldest
		}
		x.Export(&f)
	}
	for _, s := range h.Sessions() {
		at := "at once"
		if s.Unfenced == volume.UnfencedAfter {
			at = "after " + s.UnfencedAfter.String()
		}
		x.Session(&health.Session{Name: s.Name, Unfenced: s.UnfencedFailovers, At: at})
	}
	for _, p := range h.Paths() {
		if p.Role == volume.RoleClient {
			x.VolumePath(&health.VolumePath{Session: p.Session, Src: p.Src, Dst: p.Dst, State: p.State, LastError: p.LastError,
				Connected: p.State == "connected", For: now.Sub(p.Down), Mend: p.Mend()})
		}
	}
}

func requests(ops []volume.OpCounters) (failed, done uint64) {
	for _, o := range ops {
		failed, done = failed+o.Errors, done+o.Completed
	}
	return failed, done
}

// GetConfig brings the configuration as it is now. No key of it is a secret.
func (a *adminServer) GetConfig(context.Context, *rdsdv1.GetConfigRequest) (*rdsdv1.GetConfigResponse, error) {
	var b strings.Builder
	if err := a.front.deps.Conf().DumpOrigins(&b); err != nil {
		return nil, err
	}
	resp := &rdsdv1.GetConfigResponse{}
	resp.SetToml(b.String())
	return resp, nil
}
