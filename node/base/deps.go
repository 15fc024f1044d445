package base

import (
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/internal/toll"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
)

// Deps is what a room of a node is given. There is one for a node; it does not change
// after New but for the configuration that can be reloaded.
type Deps struct {
	Config   *config.Config // as it was at the start; see Conf
	Log      *slog.Logger
	Guard    *guard.Guard
	Count    *Counters
	Budget   *rds.Budget // datagrams' part of memory
	Memory   *quota.Node // the one account of all that is held for somebody
	FDs      Descriptors
	Tolls    toll.Users // what clients make the daemon's calls cost
	Instance uint64     // random; changes with every start, never 0
	Started  time.Time
	Stopping chan struct{} // closed when the node begins to end what is left

	live atomic.Pointer[config.Config]
}

// New is what the rooms of a node of configuration c are given. log may be nil: then
// nothing is logged. Guard is for the node to set.
func New(c *config.Config, log *slog.Logger) *Deps {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	budget := &rds.Budget{Limit: int64(c.Limits.MemoryBytes)}
	d := &Deps{
		Config:   c,
		Count:    &Counters{},
		Budget:   budget,
		Memory:   quota.New(budget.Limit, budget.Datagrams),
		Instance: rand.Uint64() | 1,
		Started:  time.Now(),
		Stopping: make(chan struct{}),
	}
	budget.Rest = d.Memory.Rest()
	d.Log = log
	d.SetConf(c)
	return d
}

// Conf is the configuration as it is now. Whatever a reload can change is read from
// it each time; what is fixed at the start may be read from Config.
func (d *Deps) Conf() *config.Config { return d.live.Load() }

// SetConf makes c the configuration from now on.
func (d *Deps) SetConf(c *config.Config) { d.live.Store(c) }

// User is the account of a client's user; Close must follow.
func (d *Deps) User(id config.Identity) *quota.Account {
	return d.Memory.Account(quota.User(id.UID))
}

// ErrDraining is what a daemon that is being stopped says to whoever wants something new.
var ErrDraining = rdserr.With(rdserr.ErrShutdown, "the daemon is shutting down")

// Budget is one configured limit and what is used of it.
type Budget struct {
	Name                 string
	Used, Limit, Refused uint64
	RefusedAgo           time.Duration // since it refused last; 0: it did not, or that is not known
}
