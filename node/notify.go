package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notify tells systemd about the state of the service; without NOTIFY_SOCKET
// it does nothing.
func notify(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("sd_notify failed", "error", err)
	}
}

// watchdog tells systemd that we are alive, twice per WatchdogSec, as long as
// alive says so; it ends with ctx. alive may block: a node that is stuck then
// misses its time, which is what the watchdog is for.
func watchdog(ctx context.Context, log *slog.Logger, alive func()) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil || interval <= 0 {
		return
	}
	t := time.NewTicker(interval / 2)
	defer t.Stop()
	for {
		alive()
		notify(log, daemon.SdNotifyWatchdog)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
