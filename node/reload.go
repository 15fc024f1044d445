package node

import (
	"errors"
	"fmt"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/node/config"
)

// conf is the configuration as it is now. Whatever Reload can change is read from
// it each time; what is fixed at the start may be read from Node.cfg.
func (n *Node) conf() *config.Config { return n.live.Load() }

// ReloadFrom loads the configuration anew and takes it over, as Reload does, with a
// word to systemd before and after. What is wrong with it is logged, and changes
// nothing. A node that does not serve, yet or any more, says so and does nothing.
func (n *Node) ReloadFrom(o config.LoadOptions) {
	if s := n.state.Load(); s != stateServing {
		n.log.Warn("a request to reload the configuration is ignored", "state", stateNames[s])
		return
	}
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err == nil {
		notify(n.log, fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, t.Nano()/1000))
	}
	next, err := config.Load(o)
	if err == nil {
		err = n.Reload(next)
	}
	if err != nil {
		n.log.Error("the configuration was not reloaded: it stays as it is", "error", err)
	}
	notify(n.log, daemon.SdNotifyReady)
}

// Reload takes over from next, a valid configuration, what can be changed while the
// node runs, and names in the log what changed and what has to wait for the next
// start. It may be called from any goroutine, one call at a time taking effect.
func (n *Node) Reload(next *config.Config) error {
	if err := next.Validate(); err != nil {
		return err
	}
	n.reloading.Lock()
	defer n.reloading.Unlock()
	if s := n.state.Load(); s != stateServing {
		return fmt.Errorf("the node is %s", stateNames[s])
	}
	now := n.conf().With(next)
	changed, restart := now.Changes(n.conf()), next.Changes(now)
	n.live.Store(now)
	n.apply(now)
	dropped := 0
	if n.hosts != nil {
		dropped = n.hosts.dropRefused()
	}
	n.log.Info("configuration reloaded", "changed", changed, "restart_needed", restart, "dropped", dropped)
	return nil
}

// apply tells those who keep a copy.
func (n *Node) apply(c *config.Config) {
	if n.level != nil {
		n.level.Set(c.Log.Level.Level)
	}
	if h, ok := n.log.Handler().(*limitHandler); ok {
		h.shared.setPerSecond(c.Log.LinesPerS)
	}
	n.sockets.setMaxPerUID(c.Limits.MaxSocketsPerUID)
	n.grpc.clients.setMax(c.Limits.MaxClients, c.Limits.MaxClientsPerUID)
	n.grpc.limiter.set(c.API.CallsPerSec, c.API.CallsBurst)
}

func (t *socketTable) setMaxPerUID(most int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.maxPerUID = most
}

func (t *clientTable) setMax(most, perUID int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.max, t.maxPerUID = most, perUID
}

func (l *uidLimiter) set(perSecond float64, burst int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate, l.burst = rate.Limit(perSecond), burst
	for _, b := range l.users {
		b.SetLimit(l.rate)
		b.SetBurst(burst)
	}
	l.shared.SetLimit(l.rate)
	l.shared.SetBurst(burst)
}

// limits is what a user may do now.
func (l *uidLimiter) limits() (perSecond rate.Limit, burst int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rate, l.burst
}

var errNotAllowed = errors.New("the configuration does not allow this peer any more")

// dropRefused gives up the links to peers that are not allowed any more. It does not
// forget them: what is queued waits for a rule or its sender's cancel.
func (a *hosts) dropRefused() (dropped int) {
	for _, h := range a.list {
		e, now := h.lock()
		var gone []*conn.Path
		for _, pe := range e.Peers() {
			kernel := pe.Conn().Kind() == conn.KindKernel || pe.Conn().Kind() == conn.KindKernelLegacy
			if !a.engineConfig.AllowPeer(pe.Addr()) || kernel && !a.engineConfig.AllowKernel(pe.Addr()) {
				pe.Conn().Paths(func(p *conn.Path) { gone = append(gone, p) })
			}
		}
		for _, p := range gone {
			if e.Drop(now, p, errNotAllowed) {
				dropped++
			}
		}
		h.unlock()
	}
	return dropped
}
