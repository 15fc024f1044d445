package volume

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rnbd"
)

// mapping is a volume of another node with its place on this one.
//
// It is entered in Host.mappings first, so that ID, socket and volume are taken;
// then bringUp connects, opens and shows it, for Map at once, for what was
// persistent again and again until it is there.
type mapping struct {
	h      *Host
	id     string
	spec   MapSpec // complete; guarded by Host.mu as far as bringUp changes it: Device, and what is the session's
	ctx    context.Context
	cancel context.CancelFunc // of bringUp
	gone   chan struct{}      // closed when nothing of it is left

	turn turn // one of bringUp, end, leave at a time; before any other lock

	// Changed with turn and Host.mu held. What the stages have brought stays readable after
	// them.
	stage stage
	c     *client       // from joined on
	dev   *volumeDevice // from opened on
	stats *blk.Stats    // the same
	front Front         // from shown on
	asked *volumeDevice // joined; the server was asked to open it, and has not answered

	again bool      // its users go on with what they had of an earlier Host
	kept  rnbd.Kept // guarded by Host.mu; what the next Host has to know of the volume
	gave  bool      // guarded by Host.mu; it was left to the next Host, and kept does not change any more

	said     bool  // guarded by turn; the state does not say that it is unused
	restored bool  // an earlier Host had it
	unsaid   bool  // the state still says that all was flushed (restore)
	resume   bool  // the kernel has the device already
	ending   bool  // guarded by Host.mu; Unmap
	lastErr  error // guarded by c.mu
	failErr  error // guarded by c.mu; of the last request that failed
	startErr error // guarded by Host.mu; why it could not be restored yet
	since    time.Time
	backend  string // what the kernel knows it by
	wants    string // the kernel device that was asked for; "": any. Another is in spec.Device while it has one, or to find it again
}

// mapTimeout bounds Map where the caller does not.
const mapTimeout = time.Minute

// Map maps a volume of another node. It returns when the device is there.
// Errors bear the errno the server answered: ENOENT, EACCES, EPERM (a writer
// has it), EBUSY; EEXIST: it is mapped in this session already, or the ID or
// the socket is taken; without an answer ETIMEDOUT, EHOSTUNREACH, ECONNREFUSED.
func (h *Host) Map(ctx context.Context, raw MapSpec) (MappingInfo, error) {
	s := raw
	if err := h.cfg.complete(&s); err != nil {
		return MappingInfo{}, err
	}
	if s.As == AsNBD {
		if err := h.drv.present(); err != nil {
			return MappingInfo{}, err
		}
	}
	up, end, err := h.call(ctx)
	if err != nil {
		return MappingInfo{}, err
	}
	defer end()
	m, err := h.enterMapping(s)
	if err != nil {
		return MappingInfo{}, err
	}
	up, stop := h.machine.Either(up, m.ctx) // which Unmap ends
	defer stop()
	m.turn.Lock()
	err = m.bringUp(up, &raw, true)
	m.turn.Unlock()
	if err == nil {
		// It is there, also if the Host ends meanwhile.
		if err = h.saveBy(ctx); err != nil && !s.Persist && s.As != AsNBD {
			err = nil // the data path goes on; Check tells
		}
	}
	if err != nil {
		m.unwrite()
		m.end(true)
		return MappingInfo{}, fmt.Errorf("map %s of %s: %w", s.Name, s.Node, err)
	}
	return h.Mapping(m.id)
}

// unwrite takes a mapping that was not made out of the state, in which one that lasts may have been
// written meanwhile: the next start would make it. One that was left to the next start stays.
func (m *mapping) unwrite() {
	if !m.spec.lasts() {
		return
	}
	m.turn.Lock() // leave is done, or finds it ending
	defer m.turn.Unlock()
	m.h.mu.Lock()
	m.ending = m.ending || !m.gave
	m.h.mu.Unlock()
	m.h.saver.mark()
}

// enterMapping takes the ID, the socket and the volume.
func (h *Host) enterMapping(s MapSpec) (*mapping, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing {
		return nil, rdserr.ErrShutdown
	}
	if len(h.mappings) >= h.cfg.MaxMappings {
		return nil, rdserr.With(rdserr.ErrTooMany, "there are %d mappings already (volumes.max_mappings)", len(h.mappings))
	}
	taken := map[string]bool{}
	for _, m := range h.mappings {
		taken[m.id] = true
	}
	for _, l := range h.left() { // a chosen one would take its place, and end it
		if l.mapping != nil {
			taken[l.mapping.ID] = true
		}
	}
	for s.ID == "" {
		if id := fmt.Sprintf("v%d", h.nextID); !taken[id] {
			s.ID = id
		}
		h.nextID++
	}
	if s.As == AsSocket && s.Socket == "" {
		if h.cfg.SocketDir == "" {
			return nil, rdserr.With(rdserr.ErrInvalid, "there is no volumes.socket_dir; name the socket")
		}
		s.Socket = filepath.Join(h.cfg.SocketDir, s.ID+".sock")
		if len(s.Socket) > maxSocketPath {
			return nil, rdserr.With(rdserr.ErrInvalid, "socket %q: want at most %d bytes; name the socket, or choose another volumes.socket_dir", s.Socket, maxSocketPath)
		}
	}
	for _, m := range h.mappings {
		switch o := &m.spec; {
		case m.id == s.ID:
			return nil, rdserr.With(rdserr.ErrExists, "there is a mapping %s already", s.ID)
		case o.Session == s.Session && o.Name == s.Name:
			return nil, rdserr.With(rdserr.ErrExists, "%s of %s is mapped already, as %s", s.Name, s.Node, m.id)
		case s.Socket != "" && o.Socket == s.Socket:
			return nil, rdserr.With(rdserr.ErrExists, "mapping %s has the socket %s already", m.id, s.Socket)
		case s.Device != "" && (o.Device == s.Device || m.wants == s.Device):
			return nil, rdserr.With(rdserr.ErrExists, "mapping %s has the device %s already", m.id, s.Device)
		}
	}
	m := &mapping{h: h, id: s.ID, spec: s, wants: s.Device, since: h.machine.Wall(), gone: make(chan struct{}), turn: newTurn(h.machine)}
	m.ctx, m.cancel = context.WithCancel(h.ctx)
	if s.As == AsNBD {
		m.backend = fmt.Sprintf("rdsd:%s:%016x", s.ID, h.seed())
	}
	h.mappings = append(h.mappings, m)
	return m, nil
}

// bringUp makes the mapping. What it has done when it fails, end undoes. turn is
// held.
func (m *mapping) bringUp(ctx context.Context, raw *MapSpec, strict bool) error {
	h := m.h
	if m.stage == over {
		return rdserr.With(rdserr.ErrCanceled, "it was given up meanwhile")
	}
	if m.stage == taken {
		h.mu.Lock()
		s := m.spec // of which keepPaths may take a path away
		h.mu.Unlock()
		c, err := h.session(ctx, &s, raw, strict)
		if err != nil {
			return err
		}
		h.mu.Lock()
		m.c = c
		m.move(joined)
		m.takeOver()
		h.mu.Unlock()
	}
	if m.stage == joined {
		if err := m.open(ctx, strict); err != nil {
			return err
		}
	}
	if m.stage == opened {
		// The state may have it as unused, which is not true from show on.
		if !m.said && !m.again && (m.restored || m.spec.lasts()) {
			if err := h.saveBy(ctx); err != nil {
				return err
			}
			m.said = true
		}
		if err := m.show(); err != nil {
			return deviceError{err}
		}
	}
	return nil
}

// takeOver has m, which has joined its session, be written down as what that is: m may be the one that makes it at the next
// start, or the only one that is back then. So have the others the paths that m has brought. mu is held.
func (m *mapping) takeOver() {
	defer m.c.look()()
	m.c.shares(&m.spec)
	for _, o := range m.h.mappings {
		if o.c == m.c {
			o.spec.Paths = m.spec.Paths
		}
	}
}

// deviceError is why this node cannot make a device of a volume that is open.
type deviceError struct{ error }

func (e deviceError) Unwrap() error { return e.error }

// open opens the volume and waits for the answer.
func (m *mapping) open(ctx context.Context, strict bool) error {
	h, c := m.h, m.c
	d := m.asked
	former := m.former()
	for d == nil {
		now := c.lock(h.now())
		var err error
		d, err = c.openVolume(now, m.spec.Name, m.spec.Access, m, former)
		c.finish(now)
		if err == nil {
			break
		}
		if rdserr.Errno(err) != rdserr.ErrExists.Errno {
			return err
		}
		// No other mapping has it, so RemoteInfo asks for it just now.
		if h.machine.Wait(askAgain, ctx.Done()) == 0 {
			return rdserr.With(rdserr.ErrTimeout, "the server has not answered in time")
		}
	}
	m.asked = nil
	err, answered := d.await(ctx, strict)
	if err != nil && m.again && !answered {
		// With the answer may come that others have written, and a CLOSE would be the end of what
		// the server knows of that. It is waited for, by the next attempt or the next Host.
		m.asked = d
		return err
	}
	if err != nil {
		d.giveUp()
		return err
	}
	h.mu.Lock()
	m.dev, m.stats = d, blk.NewStats(d)
	m.kept = d.kept()
	m.move(opened)
	h.mu.Unlock()
	return nil
}

// show makes the device.
func (m *mapping) show() error {
	h := m.h
	log := h.log.With("mapping", m.id)
	var f Front
	var err error
	switch {
	case h.machine.Front != nil:
		f, err = h.machine.Front(&m.spec, m.stats)
	case m.spec.As == AsSocket:
		f, err = openSocket(m.spec.Socket, m.spec.Name, m.spec.Persist, h.cfg.SocketMode, m.stats, m.c.home, log, h)
	default:
		f, err = m.attach()
	}
	if err != nil {
		return err
	}
	h.mu.Lock()
	m.front = f
	m.move(shown)
	k, kernel := f.(*kernelFront)
	if kernel {
		if m.spec.Device = nbdPath(k.index); k.lost.Load() {
			m.spec.Device = ""
		}
	}
	h.mu.Unlock()
	if kernel {
		// It may have the size that an earlier Host told, or the one from before front was set.
		k.Resized(m.stats.Info())
	}
	return nil
}

// resized tells the device of another size.
func (m *mapping) resized() {
	m.h.work.Go(func() { // ends when the kernel was told
		defer m.h.guard.Recover(guard.Volume, nil)
		m.h.mu.Lock()
		f, dev := m.front, m.dev
		m.h.mu.Unlock()
		if f != nil {
			f.Resized(dev.Info())
		}
	})
}

// end undoes what bringUp has done, as far as it came, and forgets the mapping.
// Without force nobody uses it any more. It takes a few seconds at most.
func (m *mapping) end(force bool) {
	m.cancel()
	m.turn.Lock()
	defer m.turn.Unlock()
	was, first := m.finish()
	if !first {
		return
	}
	h := m.h
	released := false
	if was == joined && m.asked != nil {
		m.asked.giveUp()
	}
	if was >= opened && force { // first, so that nobody waits for a request
		now := m.c.lock(h.now())
		m.dev.v.ForceUnmap(now)
		m.c.finish(now)
		// What the server has comes back with the end of the links. Others of
		// the session go on, and then it comes back in the server's time.
		h.release(m.c)
		released = true
	}
	if was == shown {
		ctx, cancel := h.machine.Timeout(context.Background(), frontEnd)
		if err := m.front.Close(ctx, false); err != nil {
			h.log.Warn("volume: a device was not ended in order", "mapping", m.id, "err", err)
		}
		cancel()
	}
	if was >= opened && !m.dev.unmap(force) && !force {
		m.dev.unmap(true)
	}
	if was >= joined && !released {
		h.release(m.c)
	}
	h.mu.Lock()
	if i := slices.Index(h.mappings, m); i >= 0 {
		h.mappings = slices.Delete(h.mappings, i, i+1)
		close(m.gone)
	}
	h.mu.Unlock()
}

// frontEnd is how long clients of the device have to read their last answers.
const frontEnd = 2 * time.Second
