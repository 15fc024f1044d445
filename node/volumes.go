package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/tcp"
	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// volumesCloseTime is what volumes have to close in order beyond what is left of
// api.drain_timeout.
const volumesCloseTime = 2 * time.Second

// startVolumes makes the host of volumes on the core's reactors.
func (n *Node) startVolumes() error {
	if n.hosts == nil {
		return nil // a core without links, in tests
	}
	links := &volumeLinks{Provider: n.hosts.Links().(*tcp.Provider), allowed: n.deps.MayPeerVolumes, whose: n.deps.CheckAccepted, log: n.deps.Log, refused: &n.deps.LinksRefused}
	cfg := n.deps.Config.VolumeConfig()
	if err := makeSocketDir(cfg.SocketDir, cfg.SocketMode); err != nil {
		return n.deps.Config.Failed("volumes.socket_dir", fmt.Errorf("volumes.socket_dir: %w", err))
	}
	h, err := volume.New(cfg, volume.Deps{Provider: links, Reactors: n.hosts.Reactors(), Log: n.deps.Log, Guard: n.deps.Guard, Layer: n.layer, Memory: n.deps.Memory})
	if err != nil {
		for _, key := range []string{"volumes.state_dir", "volumes.port"} {
			if strings.HasPrefix(err.Error(), key) {
				return n.deps.Config.Failed(key, err)
			}
		}
		return fmt.Errorf("volumes: %w", err)
	}
	n.volumes.Store(h)
	return nil
}

// makeSocketDir makes the directory of mappings' sockets, if it is not there.
// Who may use a socket of mode must be able to reach it; what else is in the
// directory is for the daemon alone, by its own modes.
func makeSocketDir(dir string, mode fs.FileMode) error {
	if dir == "" {
		return nil
	}
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil || mode&0o077 == 0 {
		return err
	}
	return os.Chmod(dir, 0o711)
}

// stopVolumes closes them in order; until ctx ends, or a little longer.
func (n *Node) stopVolumes(ctx context.Context) {
	h := n.volumes.Load()
	if h == nil {
		return
	}
	end, cancel := context.WithTimeout(context.Background(), volumesCloseTime)
	defer cancel()
	if d, ok := ctx.Deadline(); ok && time.Until(d) > volumesCloseTime {
		end = ctx
	}
	if err := h.Close(end); err != nil {
		n.deps.Log.Warn("volumes were not closed in order", "error", err)
	}
}

var errNoVolumePeer = errors.New("it is not an allowed peer; allow it with a [[peers]] entry of the configuration, and in volumes.allow if there is a list")

// volumeLinks lets only allowed peers connect, and tells others why not: the
// [[peers]] rules hold for volumes as for datagrams.
type volumeLinks struct {
	*tcp.Provider
	allowed func(netip.Addr) bool
	whose   func(local, remote netip.AddrPort) error
	log     *slog.Logger
	refused *atomic.Uint64
}

// refusalErrno is what a peer is told that may not connect: EACCES, unless it was not
// judged, because the kernel had not the means to tell whose the connection is. Then
// it is told what was missing, and comes again.
func refusalErrno(why error) syscall.Errno {
	for _, want := range []syscall.Errno{syscall.ENOMEM, syscall.ENOBUFS, syscall.EMFILE, syscall.ENFILE} {
		if errors.Is(why, want) {
			return want
		}
	}
	return syscall.EACCES
}

// ListenOneSided implements transport.OneSidedProvider.
func (l *volumeLinks) ListenOneSided(local netip.AddrPort, accept func(transport.ConnRequest)) (transport.Listener, error) {
	return l.Provider.ListenOneSided(local, func(r transport.ConnRequest) {
		why := errNoVolumePeer
		if l.allowed(r.RemoteAddr().Addr()) {
			why = l.whose(r.LocalAddr(), r.RemoteAddr())
		}
		if why != nil {
			l.refused.Add(1)
			l.log.Warn("connection for volumes refused", "peer", r.RemoteAddr().Addr(), "why", why)
			no := rtrswire.Reject(uint16(refusalErrno(why)))
			r.Reject(no.Append(nil))
			return
		}
		accept(r)
	})
}
