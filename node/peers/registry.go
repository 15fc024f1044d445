package peers

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/transport/tcp"
)

// Registry is that of a node. There is one, which datagrams and volumes share.
type Registry struct {
	deps       *base.Deps
	handshakes handshakes
	dials      dials
	links      *tcp.Provider // set by Open
	others     []OneSidedTransport

	refused atomic.Uint64 // connections of peers refused, for any reason
}

// New makes the registry of a node. Nothing is opened before Open.
func New(d *base.Deps) *Registry { return &Registry{deps: d} }

// Admit enters an accepted connection whose peer has not said who it is, and Handshake.End
// must follow. user is whose it is (AcceptedFrom). An error says why there is no room for
// it. abort closes it at once: it is called, perhaps before Admit has returned, without a
// lock and at most once, when it has to make room for another.
func (r *Registry) Admit(now time.Time, remote netip.Addr, user int64, abort func()) (*Handshake, error) {
	return r.handshakes.begin(now, remote, user, abort, r.deps.Conf().Limits.MaxHandshakes, r.deps.Memory)
}

// Refuse counts and logs that a connection of a peer was refused. what names the kind of
// connection, and args are more for the log.
func (r *Registry) Refuse(what string, remote netip.Addr, why string, args ...any) {
	r.refused.Add(1)
	r.deps.Log.Warn(what+" refused", append([]any{"peer", remote, "why", why}, args...)...)
}

// Refused is how many connections of peers were refused, for any reason.
func (r *Registry) Refused() uint64 { return r.refused.Load() }

// Budgets are the limits of what is decided here, with what is used of them.
func (r *Registry) Budgets() []base.Budget {
	l := &r.deps.Conf().Limits
	return []base.Budget{r.handshakes.budget(l.MaxHandshakes), r.dials.budget(l.MaxDials)}
}
