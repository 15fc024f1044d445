package node

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/node/config"
)

// ReloadFrom loads the configuration anew and takes it over, as Reload does, with a
// word to systemd before and after. What is wrong with it is logged, and changes
// nothing. A node that does not serve, yet or any more, says so and does nothing.
func (n *Node) ReloadFrom(o config.LoadOptions) {
	if s := n.state.Load(); s != stateServing {
		n.deps.Log.Warn("a request to reload the configuration is ignored", "state", stateNames[s])
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // the next request waits for this one
	defer cancel()
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err == nil {
		notify(ctx, n.deps.Log, fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, t.Nano()/1000))
	}
	err := n.deps.Guard.Do(guard.Task, func() {
		guard.Point("reload")
		next, err := config.Load(o)
		if err == nil {
			err = n.Reload(next)
		}
		if err != nil {
			n.deps.Log.Error("the configuration was not reloaded: it stays as it is", "error", err)
		}
	})
	if err != nil {
		n.deps.Log.Error("the configuration was reloaded in part, if at all", "error", err)
	}
	notify(ctx, n.deps.Log, daemon.SdNotifyReady)
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
	now := n.deps.Conf().With(next)
	changed, restart := now.Changes(n.deps.Conf()), next.Changes(now)
	n.deps.SetConf(now)
	n.apply(now)
	dropped := 0
	if n.hosts != nil {
		dropped = n.hosts.DropRefused()
	}
	if h := n.volumes.Load(); h != nil {
		dropped += h.DropRefused(n.peers.StillOneSided)
	}
	level, what := slog.LevelInfo, "configuration reloaded"
	if len(restart) > 0 { // whoever changed it believes that it is in force
		level, what = slog.LevelWarn, "configuration reloaded in part: restart_needed has what the next start takes over"
	}
	n.deps.Log.Log(context.Background(), level, what, "changed", changed, "restart_needed", restart, "dropped", dropped)
	return nil
}

// apply tells those who keep a copy.
func (n *Node) apply(c *config.Config) {
	if n.level != nil {
		n.level.Set(c.Log.Level.Level)
	}
	if h, ok := n.deps.Log.Handler().(*limitHandler); ok {
		h.shared.setPerSecond(c.Log.LinesPerS)
	}
	n.clients.SetMaxPerUser(c.Limits.MaxSocketsPerUID)
	n.users.SetMax(c.Limits.MaxClients, c.Limits.MaxClientsPerUID)
	n.limiter.Set(c.API.CallsPerSec, c.API.CallsBurst)
}
