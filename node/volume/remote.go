package volume

import (
	"context"
	"fmt"

	"github.com/rdsd/rdsd/rdserr"
)

// RemoteInfo asks a node about a volume: it opens it read-only, over the session
// there is or one of its own, and closes it. Of raw, Node, Name, Session and
// Paths are used.
func (h *Host) RemoteInfo(ctx context.Context, raw MapSpec) (VolumeInfo, error) {
	s := MapSpec{Node: raw.Node, Name: raw.Name, Session: raw.Session, Paths: raw.Paths, Access: AccessRO}
	if err := h.cfg.complete(&s); err != nil {
		return VolumeInfo{}, err
	}
	ctx, end, err := h.call(ctx)
	if err != nil {
		return VolumeInfo{}, err
	}
	defer end()
	info, err := h.remoteInfo(ctx, &s)
	if err != nil {
		return info, fmt.Errorf("volume %s of %s: %w", s.Name, s.Node, err)
	}
	return info, nil
}

func (h *Host) remoteInfo(ctx context.Context, s *MapSpec) (VolumeInfo, error) {
	if err := h.awaited(s); err != nil {
		return VolumeInfo{}, err
	}
	c, err := h.session(ctx, s, nil, true) // one that is there stays as it is
	if err != nil {
		return VolumeInfo{}, err
	}
	defer h.release(c)
	ask := func() (*volumeDevice, error) {
		now := c.lock(h.now())
		d, err := c.openVolume(now, s.Name, AccessRO, nil, nil)
		c.finish(now)
		return d, err
	}
	d, err := ask()
	for until := h.now() + unmapWait; rdserr.Errno(err) == rdserr.ErrExists.Errno; d, err = ask() { // it is mapped here
		if d = h.mappedOver(c, s.Name); d != nil {
			return d.describe(s)
		}
		// A mapping that cannot be made is tried again and again, and each time is here for a moment.
		if h.now() >= until || h.machine.Wait(askAgain, ctx.Done()) == 0 {
			return VolumeInfo{}, rdserr.With(rdserr.ErrBusy, "it is being mapped or unmapped; ask again in a moment")
		}
	}
	if err != nil {
		return VolumeInfo{}, err
	}
	if err := d.wait(ctx, true); err != nil {
		return VolumeInfo{}, err
	}
	info, err := d.describe(s)
	if !d.unmap(false) {
		d.unmap(true)
	}
	return info, err
}

// awaited is an error if a mapping by which an earlier Host read the volume is not back yet. To the server
// the question would be that reader: as it closes the volume, the server forgets which one the mapping had,
// and the mapping's users would go on with another one that has the name now.
func (h *Host) awaited(s *MapSpec) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	is := func(session, name, access string) bool {
		return session == s.Session && name == s.Name && access == AccessRO
	}
	busy := func(id string) error {
		return rdserr.With(rdserr.ErrBusy, "it is being mapped again, as %s, and cannot be asked about before; unmap that, or wait", id)
	}
	for _, m := range h.mappings {
		if o := &m.spec; m.again && m.dev == nil && is(o.Session, o.Name, o.Access) {
			return busy(m.id)
		}
	}
	for _, l := range h.left() {
		if o := l.mapping; o != nil && !o.Unused && is(o.Session, o.Name, o.Access) {
			return busy(o.ID)
		}
	}
	return nil
}

// mappedOver finds a volume of a session that is mapped.
func (h *Host) mappedOver(c *client, name string) *volumeDevice {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.mappings {
		if m.c == c && m.spec.Name == name {
			return m.dev
		}
	}
	return nil
}

func (d *volumeDevice) describe(s *MapSpec) (VolumeInfo, error) {
	defer d.c.look()()
	i := VolumeInfo{Node: s.Node, Name: s.Name, QueueDepth: d.c.rt.Depth()}
	info := d.v.Info()
	if info == nil {
		return i, rdserr.With(rdserr.ErrBusy, "it is being opened")
	}
	i.Info = *info
	i.Info.MaxBytes = d.v.Piece()
	return i, nil
}
