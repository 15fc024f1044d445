package node

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/rdsd/rdsd/internal/netlocal"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/volume"
)

// volumesCloseTime is what volumes have to close in order beyond what is left of
// api.drain_timeout.
const volumesCloseTime = 2 * time.Second

// startVolumes makes the host of volumes on the core's reactors.
func (n *Node) startVolumes() error {
	if n.hosts == nil {
		return nil // a core without links, in tests
	}
	cfg := n.deps.Config.VolumeConfig()
	err := makeSocketDir(cfg.SocketDir, cfg.SocketMode)
	if err == nil && n.deps.Config.Volumes.SocketDir == "" && cfg.SocketDir != "" {
		err = volume.OwnDirectory(cfg.SocketDir) // that of the configuration may be anybody's
	}
	if err != nil {
		return n.deps.Config.Failed("volumes.socket_dir", fmt.Errorf("volumes.socket_dir: %w", err))
	}
	if err := n.openRDMA(); err != nil {
		return err
	}
	list := n.peers.OneSided()
	deps := volume.Deps{Provider: list[0].Provider, Reactors: n.hosts.Reactors(), Log: n.deps.Log, Guard: n.deps.Guard, Layer: n.layer, Memory: n.deps.Memory, Evict: n.hosts.Evict, Local: netlocal.IsLocal,
		Room: func() error { return n.deps.FDs.Room(base.StoreFDs, base.KeepOfStores) }}
	for _, t := range list[1:] {
		deps.Others = append(deps.Others, volume.Transport{Name: t.Name, Provider: t.Provider, Port: t.Port, Devices: t.Devices})
	}
	if n.tune != nil {
		n.tune(&deps)
	}
	h, err := volume.New(cfg, deps)
	if err != nil {
		n.closeRDMA()
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
	defer n.closeRDMA()
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
