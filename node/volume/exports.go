package volume

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rnbd"
	"github.com/rdsd/rdsd/rtrs"
)

// export is an export of the configuration or of a call.
type export struct {
	spec   ExportSpec // Kind is what it is
	origin string
	exp    *rnbd.Export
	since  time.Time

	// Guarded by Host.mu.
	info     blk.Info  // when it was looked at last
	err      error     // it could not be opened then
	lost     time.Time // with err: since when
	looking  bool      // lookAgain runs
	resizing int       // resizes that are at its store
	ending   bool      // removeExport: none begins any more

	failed error // of the store, the last; told while the counters have errors
}

// Export offers a volume. It returns when the store could be opened; a file is
// opened again when a client comes. EEXIST: the name is taken.
func (h *Host) Export(ctx context.Context, s ExportSpec) (ExportInfo, error) {
	if s.Persist && h.cfg.StateDir == "" {
		return ExportInfo{}, rdserr.With(rdserr.ErrInvalid, "export %.40q: nothing can persist: there is no volumes.state_dir", s.Name)
	}
	x, err := h.addExport(h.look(ctx, s), OriginCall, true)
	if err != nil {
		return ExportInfo{}, err
	}
	if err := h.saveBy(ctx); s.Persist && err != nil {
		h.removeExport(x, true)
		return ExportInfo{}, err
	}
	return h.exportInfo(s.Name)
}

// addExport does so with a store that was looked at. must: it has to be possible to open it now.
func (h *Host) addExport(at look, origin string, must bool) (*export, error) {
	s, dev, err := at.spec, at.dev, at.err
	if err != nil && (must || at.wrong || s.Kind == KindMemory) {
		return nil, notFound(err)
	}
	x := &export{spec: s, origin: origin, since: h.machine.Wall(), info: at.info}
	absent := err // why it cannot be opened now
	x.exp = &rnbd.Export{Name: s.Name, Path: s.Path, Volatile: s.Kind == KindMemory,
		Rules: rnbd.Rules{ReadOnly: s.ReadOnly, Shared: s.Shared, Allow: s.Allow, Sessions: s.Sessions},
		File:  h.fileOptions(s.ReadOnly, s.LogicalBlock), Open: h.machine.Store}
	if dev != nil {
		x.exp.Device = h.layers(storeKey{x.exp, s.Name}, dev)
	}
	err = h.enterExport(x)
	if err == nil {
		now := h.srv.lock(h.now())
		if err = h.srv.rn.Export(x.exp); err == nil {
			h.srv.tally(x.exp.Device)
		}
		h.srv.finish(now)
		if err != nil {
			h.leaveExports(x)
		}
	}
	if err != nil {
		if dev != nil {
			dev.Close()
		}
		return nil, err
	}
	if err := h.srv.listen(); err != nil {
		h.removeExport(x, true)
		return nil, err
	}
	if absent != nil {
		h.mu.Lock()
		h.storeLost(x, absent)
		h.mu.Unlock()
	}
	h.ev.add(Event{Kind: EventExport, Export: s.Name, State: "exported", Size: at.info.Size, Err: absent, Text: "volume " + s.Name + " is exported"})
	return x, nil
}

// enterExport adds it to the tables.
func (h *Host) enterExport(x *export) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closing:
		return rdserr.ErrShutdown
	case h.exports[x.spec.Name] != nil:
		return rdserr.With(rdserr.ErrExists, "there is an export %q already", x.spec.Name)
	case len(h.exports) >= h.cfg.MaxExports:
		return rdserr.With(rdserr.ErrTooMany, "there are %d exports already (volumes.max_exports)", len(h.exports))
	}
	h.exports[x.spec.Name] = x
	return nil
}

// leaveExports takes it out of the tables, and out of the state, in which it may be written, or may be being written, by now.
func (h *Host) leaveExports(x *export) {
	h.mu.Lock()
	if h.exports[x.spec.Name] == x {
		delete(h.exports, x.spec.Name)
	}
	h.mu.Unlock()
	if x.spec.Persist {
		h.saver.mark()
	}
}

// removeExport ends x, and not another one that has its name by now. It is ErrNotFound if x has ended
// meanwhile.
func (h *Host) removeExport(x *export, force bool) error {
	h.mu.Lock()
	if x.resizing > 0 && !force {
		h.mu.Unlock()
		return rdserr.With(rnbd.ErrBusy, "%q: its store is being resized; wait for the end of that, or force it (--force)", x.spec.Name)
	}
	x.ending = true
	h.mu.Unlock()
	now := h.srv.lock(h.now())
	unexport := h.srv.rn.Unexport
	if force {
		unexport = h.srv.rn.ForceUnexport
	}
	err := unexport(now, x.exp)
	if err == nil {
		h.srv.forgetCounts(x.exp)
	}
	h.srv.finish(now)
	if err == nil {
		h.leaveExports(x)
		return nil
	}
	h.mu.Lock()
	x.ending = false
	h.mu.Unlock()
	return err
}

func (h *Host) fileOptions(readOnly bool, block uint32) blk.FileOptions {
	return blk.FileOptions{ReadOnly: readOnly, LogicalBlock: block, Guard: h.guard}
}

// openExport makes what s asks for and looks at it. Memory is returned, a file
// is closed again. It sets s.Kind.
func (h *Host) openExport(s *ExportSpec) (blk.Device, blk.Info, error) {
	if s.Kind == KindMemory || s.Path == "" {
		s.Kind = KindMemory
		o := blk.MemOptions{Size: s.Size, LogicalBlock: s.LogicalBlock, ReadOnly: s.ReadOnly, Guard: h.guard}
		if h.memory != nil {
			o.Purse = storeMemory{h.memory.Account(quota.Holder{})}
		}
		m, err := blk.NewMem(o)
		if err != nil {
			if o.Purse != nil {
				o.Purse.Close()
			}
			return nil, blk.Info{}, err
		}
		return m, *m.Info(), nil
	}
	if s.Create {
		if err := createFile(s.Path, s.Size); err != nil {
			return nil, blk.Info{}, err
		}
		s.Create, s.Size = false, 0
	}
	f, kind, err := h.openStore(s)
	if err != nil {
		return nil, blk.Info{}, err
	}
	s.Kind = kind
	info := *f.Info()
	if err := f.Close(); err != nil {
		return nil, blk.Info{}, err
	}
	if info.Size == 0 {
		return nil, info, rdserr.With(rdserr.ErrInvalid, "%s is empty; want at least one block of %d bytes (--create with --size makes a file)", s.Path, info.LogicalBlock)
	}
	return nil, info, nil
}

// openStore opens the file or block device of s, which has to be of the kind that s says.
func (h *Host) openStore(s *ExportSpec) (d blk.Device, kind string, err error) {
	o := h.fileOptions(s.ReadOnly, s.LogicalBlock)
	if h.machine.Store != nil {
		d, err = h.machine.Store(s.Path, o)
		return d, KindFile, err
	}
	st, err := os.Stat(s.Path)
	if err != nil {
		return nil, "", err
	}
	kind = KindFile
	if st.Mode().Type()&fs.ModeDevice != 0 {
		kind = KindBlock
	}
	if s.Kind != "" && s.Kind != kind {
		return nil, "", rdserr.With(rdserr.ErrInvalid, "%s is a %s, not a %s", s.Path, kind, s.Kind)
	}
	f, err := blk.OpenFile(s.Path, o)
	if err != nil {
		return nil, "", err
	}
	return f, kind, nil
}

// notFound adds what would be right to the error of a file that is not there, for who exports it. Where an
// export has lost its file an empty one in its place would be wrong.
func notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return rdserr.With(rdserr.ErrNotFound, "%v (--create with --size makes a file)", err)
	}
	return err
}

// createFile makes a sparse file unless there is something at path.
func createFile(path string, size uint64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = f.Truncate(int64(size))
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		os.Remove(path)
	}
	return err
}

// Unexport ends an export. While sessions have it open, or requests of those that had it are at its store, this is
// refused with EBUSY, unless force: then their requests fail, and what the store has begun ends by itself. Without force it
// returns when the store is closed. One of the configuration is back after a restart.
func (h *Host) Unexport(ctx context.Context, name string, force bool) error {
	h.mu.Lock()
	x := h.exports[name]
	h.mu.Unlock()
	left := func(l *leftover) bool { return l.export != nil && l.export.Name == name }
	if x == nil {
		if h.forgetLeft(left) {
			return h.saveDone(ctx, "volume %q is not exported any more", name)
		}
		return rdserr.With(rdserr.ErrNotFound, "there is no export %q", name)
	}
	if err := h.removeExport(x, force); err != nil {
		return err
	}
	old := h.forgetLeft(left)
	h.ev.add(Event{Kind: EventExport, Export: name, State: "removed", Text: "volume " + name + " is not exported any more"})
	if x.spec.Persist || old {
		if err := h.saveDone(ctx, "volume %q is not exported any more", name); err != nil {
			return err
		}
	}
	// What was written and not flushed may go to the store as late as with the close.
	if !force && !h.srv.allClosed(ctx, x.exp) {
		return rdserr.With(rdserr.ErrTimeout, "volume %q is not exported any more, but its store is still being closed, and what the system holds of it may yet be written there", name)
	}
	return nil
}

// ForceClose takes an export from one session that has it open, named by name or id. The session
// may open it again.
func (h *Host) ForceClose(ctx context.Context, export, session string) error {
	s := h.srv
	now := s.lock(h.now())
	err := s.forceClose(now, export, session)
	s.finish(now)
	return err
}

// forceClose is what ForceClose does, with the lock.
func (s *server) forceClose(now time.Duration, export, session string) error {
	var found []*rtrs.ServerSession
	for _, e := range s.rt.Sessions() {
		if x := s.sessions[e]; e.Name == session || x != nil && x.id == session {
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		return rdserr.With(rdserr.ErrNotFound, "there is no session %q of another node", session)
	}
	if len(found) > 1 {
		return rdserr.With(rdserr.ErrInvalid, "there are %d sessions %q of other nodes; name the one that is meant by its id", len(found), session)
	}
	if !s.rn.ForceClose(now, found[0], export) {
		return rdserr.With(rdserr.ErrNotFound, "session %q does not have volume %q open", session, export)
	}
	return nil
}

// storeFailed keeps why the store of an export has failed an operation.
func (h *Host) storeFailed(name string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if x := h.exports[name]; x != nil {
		x.failed = err
	}
}

// Exports lists the exports by name, those open below roots included.
func (h *Host) Exports() []ExportInfo {
	open, busy := h.srv.stores()
	// Sorted by what they belong to, so that the whole is looked at once and not once
	// for each export: other nodes decide how long it is.
	of := map[*rnbd.Export][]openVolume{}
	for _, o := range open {
		if o.Export != nil {
			of[o.Export] = append(of[o.Export], o)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]ExportInfo, 0, len(h.exports))
	for _, x := range h.exports {
		i := x.describe(of[x.exp])
		i.Oldest = max(i.Oldest, busy[i.key].oldest)
		i.count(of[x.exp])
		if x.failed != nil && i.State == "open" && slices.ContainsFunc(i.Ops, func(o OpCounters) bool { return o.Errors > 0 }) {
			i.Error = x.failed.Error()
		}
		list = append(list, i)
	}
	for _, l := range h.left() {
		if l.export != nil {
			list = append(list, l.exportInfo())
		}
	}
	below := map[int][]openVolume{} // by place in list
	byKey := map[storeKey]int{}
	find := func(o openVolume) *ExportInfo {
		key := storeKey{o.Root, o.Name}
		at, there := byKey[key]
		if !there {
			at = len(list)
			byKey[key] = at
			list = append(list, o.belowRoot())
		}
		below[at] = append(below[at], o)
		return &list[at]
	}
	for _, o := range open {
		if o.Export == nil {
			find(o).use(o)
		}
	}
	for _, o := range busy {
		if o.Export == nil {
			find(o).has(o)
		}
	}
	for at, open := range below {
		list[at].count(open)
	}
	slices.SortFunc(list, func(a, b ExportInfo) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func (h *Host) exportInfo(name string) (ExportInfo, error) {
	for _, i := range h.Exports() {
		if i.Name == name && i.Origin != OriginRoot {
			return i, nil
		}
	}
	return ExportInfo{}, rdserr.With(rdserr.ErrNotFound, "there is no export %q", name)
}

// describe is called with Host.mu held.
func (x *export) describe(open []openVolume) ExportInfo {
	i := ExportInfo{ExportSpec: x.spec, Origin: x.origin, State: "closed", Info: x.info, Since: x.since, key: storeKey{x.exp, x.spec.Name}}
	if x.err != nil {
		i.State, i.Error = "failed", x.err.Error()
	}
	if d := x.exp.Device; d != nil {
		i.State, i.Info = "open", *d.Info()
	}
	for _, o := range open {
		if o.Export == x.exp {
			i.use(o)
			x.info = i.Info
		}
	}
	if i.State == "failed" {
		i.Since = x.lost
	}
	i.Size = i.Info.Size
	return i
}

// belowRoot is an export of a volume that was found below a root.
func (o *openVolume) belowRoot() ExportInfo {
	kind := KindFile
	if f, ok := blk.As[*blk.File](o.Device); ok && f.ID().Block {
		kind = KindBlock
	}
	return ExportInfo{Origin: OriginRoot, State: "open", Since: o.began, key: storeKey{o.Root, o.Name},
		ExportSpec: ExportSpec{Name: o.Name, Kind: kind, Path: o.Root.Path, ReadOnly: o.Root.ReadOnly, Shared: o.Root.Shared, Allow: o.Root.Allow, Sessions: o.Root.Sessions}}
}

// use adds a session that has it open.
func (i *ExportInfo) use(o openVolume) {
	i.has(o)
	i.Users = append(i.Users, ExportUser{Session: o.Session.Name, Peer: o.peer, Access: o.Access.String(), Since: o.began, Kernel: o.Session.Kernel()})
}

// has takes over how the store is that o has.
func (i *ExportInfo) has(o openVolume) {
	i.Oldest = max(i.Oldest, o.oldest)
	if o.Device != nil {
		i.State, i.Error, i.Info = "open", "", *o.Device.Info()
		i.Size = i.Info.Size
		if f, ok := blk.As[*blk.File](o.Device); ok && !slices.Contains(i.files, f.ID()) {
			i.files = append(i.files, f.ID())
		}
	}
}

// count adds what the sessions that have it open have had done.
func (i *ExportInfo) count(open []openVolume) {
	i.Ops, i.FailedAgo = opCounters(counts(open)), failedAgo(open)
}

// counts adds up what the devices of an export counted, each once however many
// sessions have it open.
func counts(open []openVolume) (c [blk.NumOps]blk.OpCounts) {
	seen := map[blk.Device]bool{}
	for _, o := range open {
		if o.Device == nil || seen[o.Device] {
			continue
		}
		seen[o.Device] = true
		if s, ok := blk.As[*blk.Stats](o.Device); ok {
			for op, n := range s.Counts() {
				c[op].Add(&n)
			}
		}
	}
	return c
}

func opCounters(c [blk.NumOps]blk.OpCounts) []OpCounters {
	list := make([]OpCounters, blk.NumOps)
	for i := range c {
		n := &c[i]
		list[i] = OpCounters{Op: blk.Op(i).String(), Submitted: n.Submitted, Completed: n.Completed, Errors: n.Errors, Bytes: n.Bytes, Time: n.Time,
			P50: n.Quantile(0.5), P99: n.Quantile(0.99), P999: n.Quantile(0.999)}
	}
	return list
}
