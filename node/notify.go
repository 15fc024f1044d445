package node

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notifyEach is for how long one attempt waits for whoever reads NOTIFY_SOCKET.
const notifyEach = 100 * time.Millisecond

// notify tells systemd about the state of the service; without NOTIFY_SOCKET
// it does nothing. While nobody reads that socket, and it is full, it tries again until ctx ends, and
// once if ctx has ended: no end of a daemon waits for systemd.
func notify(ctx context.Context, log *slog.Logger, state string) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err == nil {
		defer c.Close()
		for {
			c.SetWriteDeadline(time.Now().Add(notifyEach))
			if _, err = c.Write([]byte(state)); !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
				break
			}
		}
	}
	if err != nil {
		log.Warn("sd_notify failed", "state", state, "error", err)
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
		notify(ctx, log, daemon.SdNotifyWatchdog)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
