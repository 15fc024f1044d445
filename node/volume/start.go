package volume

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rnbd"
)

const (
	// startWait bounds how long the start waits for file systems. The node has its datagrams after it.
	startWait = 10 * time.Second
	// startLooks is how many roots, and how many exports, are looked at at a time. Those that
	// stand still keep their turn (waits); half of all turns is for what is asked afterwards.
	startLooks = maxWaits / 4
)

// look is a store that was looked at.
type look struct {
	spec  ExportSpec // Kind is what it is
	dev   blk.Device // memory; nil: it is opened when a client comes
	info  blk.Info
	err   error // it could not be opened
	wrong bool  // spec is
}

// look makes what s asks for and looks at it, until ctx ends.
func (h *Host) look(ctx context.Context, s ExportSpec) look {
	if err := s.check(); err != nil {
		return look{spec: s, err: err, wrong: true}
	}
	at := look{spec: s}
	open := func() error {
		at.dev, at.info, at.err = h.openExport(&at.spec)
		return at.err
	}
	if s.Kind == KindMemory || s.Path == "" { // there is no file system to wait for
		if err := h.guard.Do(guard.Volume, func() { open() }); err != nil {
			at.err = err
		}
		return at
	}
	known := make(chan look, 1) // what comes too late is nobody's
	err := h.do(ctx, s.Path, func() error {
		err := open()
		known <- at
		return err
	})
	select {
	case at := <-known:
		return at
	default:
		return look{spec: s, err: err}
	}
}

// startExports offers what is configured and what is persistent. A store that
// cannot be opened now is tried when a client comes. All are looked at beside each other, and
// entered in their order: one whose file system stands still keeps the start until ctx ends, and
// no other from being looked at. Until then the port is taken and nobody is let in: a volume that
// is not entered yet would not exist, which a kernel's client does not ask again.
func (h *Host) startExports(ctx context.Context, old *state) error {
	if h.cfg.Listen == ListenAlways || len(h.cfg.Roots) > 0 {
		if err := h.srv.listen(); err != nil {
			return err
		}
	}
	var roots []*rnbd.Root
	added := 0
	defer func() {
		for _, r := range roots[added:] {
			r.Close()
		}
	}()
	for _, s := range h.cfg.Roots {
		r := &rnbd.Root{Path: s.Path, Rules: rnbd.Rules{ReadOnly: s.ReadOnly, Shared: s.Shared, Allow: s.Allow, Sessions: s.Sessions}, File: h.fileOptions(s.ReadOnly, 0)}
		if err := r.Prepare(); err != nil {
			return rootFailed(err)
		}
		roots = append(roots, r)
	}
	specs := slices.Clone(h.cfg.Exports)
	for i := range old.Exports {
		specs = append(specs, old.Exports[i].spec())
	}
	// Roots are first, because what is wrong with them ends the start.
	held := beside(h, len(roots), func(i int) error { return h.do(ctx, roots[i].Path, roots[i].Hold) })
	looked := beside(h, len(specs), func(i int) look { return h.look(ctx, specs[i]) })
	for i := range h.cfg.Exports {
		if _, err := h.addExport(looked(i), OriginConfig, false); err != nil {
			return err
		}
	}
	if len(old.Exports) > 0 {
		// As for what is configured: a node that exports and cannot be reached is no use, and whoever
		// starts it can do something about it.
		if err := h.srv.listen(); err != nil {
			return err
		}
	}
	for i := range old.Exports {
		o := &old.Exports[i]
		if _, err := h.addExport(looked(len(h.cfg.Exports)+i), OriginCall, false); err != nil {
			h.leaveExport(o, err)
			h.ev.add(Event{Kind: EventExport, Export: o.Name, State: "failed", Err: err, Text: "volume " + o.Name + " is not exported again"})
		}
	}
	for i, r := range roots {
		// A directory whose file system does not answer may be there. It has its place among the
		// roots, so that no name below it leads to a root behind it meanwhile.
		if err := held(i); rdserr.Errno(err) == rdserr.ErrTimeout.Errno {
			h.log.Warn("volume: an export root is looked for when a client comes", "root", r.Path, "err", err)
		} else if err != nil {
			return rootFailed(err)
		}
		now := h.srv.lock(h.now())
		h.srv.rn.AddRoot(r)
		h.srv.finish(now)
		added++
	}
	h.srv.ready.Store(true)
	return nil
}

func rootFailed(err error) error { return rdserr.With(rdserr.ErrInvalid, "volumes.roots: %v", err) }

// beside begins f for 0 to n-1, startLooks at a time in this order, and returns what waits for
// the outcome of one.
func beside[T any](h *Host, n int, f func(i int) T) (outcome func(i int) T) {
	outcomes, done := make([]T, n), make([]chan struct{}, n)
	for i := range done {
		done[i] = make(chan struct{})
	}
	var next atomic.Int64
	for range min(n, startLooks) {
		h.machine.Go(func() { // ends when all have begun and its own have ended
			defer h.guard.Recover(guard.Step, nil) // somebody would wait for ever
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				outcomes[i] = f(int(i))
				close(done[i])
			}
		})
	}
	return func(i int) T {
		h.machine.Wait(Forever, done[i])
		return outcomes[i]
	}
}
