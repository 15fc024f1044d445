package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/internal/unixsock"
	"github.com/rdsd/rdsd/rdserr"
)

// Front is how a mapped volume appears on this node.
type Front interface {
	// Users returns how many programs have it open, as far as that can be told
	// without waiting.
	Users() int
	// Busy reports whether somebody has it open, as far as that is seen; an error: it cannot be told. It may wait.
	Busy() (bool, error)
	// Resized is called when the volume has another size.
	Resized(*blk.Info)
	// Close ends it. leave: what a later Host can take up stays. It returns when
	// no request is with the device any more, or soon after ctx ends.
	Close(ctx context.Context, leave bool) error
}

// socketFront is an NBD server on a Unix socket of its own.
type socketFront struct {
	srv  *nbd.Server
	path string
	kept bool // the next Host shows it again at path, after an end in order too
	done sync.WaitGroup
}

// openSocket offers a device at path, under name and as the default export. kept:
// the next Host does so too.
func openSocket(path, name string, kept bool, mode fs.FileMode, d blk.Device, home *reactor.Reactor, log *slog.Logger, h *Host) (*socketFront, error) {
	srv, err := nbd.NewServer(nbd.Options{Reactor: home, Log: log, Guard: h.guard, Charge: h.chargeUser()})
	if err != nil {
		return nil, err
	}
	if err := srv.Add(nbd.Export{Name: "", Device: d}); err != nil {
		return nil, err
	}
	if err := srv.Add(nbd.Export{Name: name, Device: d}); err != nil {
		return nil, err
	}
	l, err := listen(path, mode)
	if err != nil {
		return nil, err
	}
	f := &socketFront{srv: srv, path: path, kept: kept}
	f.done.Add(1)
	go func() { // ends with close
		defer f.done.Done()
		defer h.guard.Recover(guard.Volume, func(error) { l.Close() })
		srv.Serve(l)
	}()
	return f, nil
}

// listen makes the socket of a mapping at path. Its directory has to be there: whoever maps
// may name any, and what the daemon would make in their place is the daemon's.
func listen(path string, mode fs.FileMode) (net.Listener, error) {
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	l, err := unixsock.Listen("unix", path, mode, unixsock.KeepGroup)
	switch {
	case errors.Is(err, unixsock.ErrInUse):
		return nil, rdserr.With(rdserr.ErrAddrInUse, "%v", err)
	case errors.Is(err, unixsock.ErrNoSocket):
		return nil, rdserr.With(rdserr.ErrExists, "%v", err)
	}
	return l, err
}

func (f *socketFront) Users() int { return f.srv.Stats().Open }

func (f *socketFront) Busy() (bool, error) { return f.Users() > 0, nil }

func (f *socketFront) Resized(*blk.Info) {} // NBD tells the size once; new clients see the new one

func (f *socketFront) Close(ctx context.Context, leave bool) error {
	os.Remove(f.path)
	end := f.srv.Shutdown
	if leave && f.kept {
		end = f.srv.Leave
	}
	if err := end(ctx); err != nil {
		return err // the listener may not be closed yet
	}
	f.done.Wait()
	return nil
}
