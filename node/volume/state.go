package volume

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rnbd"
)

// Design notes.
//
// Every mapping and every persistent export stands in one file of the state
// directory, written anew at each change: to a file beside it, synchronised,
// then renamed over it. A start after a clean stop takes up what is persistent
// and what the kernel still holds (/dev/nbdN); a start after a crash, of the
// daemon and not of the machine, takes up the sockets of all mappings as well,
// so that who uses them finds them again.
//
// The directory belongs to one Host at a time, which holds a lock on it.

const (
	stateFile    = "volumes.json"
	stateVersion = 1
)

// state is the content of the file.
type state struct {
	Version  int            `json:"version"`
	Boot     string         `json:"boot"`             // of the machine, when it was written
	Running  bool           `json:"running"`          // it has not been stopped in order since
	Writes   uint64         `json:"writes,omitempty"` // one more each time it is written
	NextID   uint64         `json:"next_id"`
	Exports  []exportState  `json:"exports,omitempty"`
	Mappings []mappingState `json:"mappings,omitempty"`
	Past     []pastState    `json:"past,omitempty"` // in the order of rnbd.Server.Past
	Forgot   uint32         `json:"forgot,omitempty"`
	Held     []heldState    `json:"held,omitempty"`
	Kernels  *kernelsState  `json:"kernels,omitempty"`
}

// pastState is what the server knows of a file or block device (rnbd.Past).
type pastState struct {
	Dev      uint64        `json:"dev"`
	Ino      uint64        `json:"ino,omitempty"`
	Block    bool          `json:"block,omitempty"`
	Syncs    uint32        `json:"failed_syncs,omitempty"`
	Writer   string        `json:"writer,omitempty"`
	WriterIs *writerState  `json:"writer_is,omitempty"`
	Behind   []string      `json:"behind,omitempty"`
	Behinds  []writerState `json:"behind_are,omitempty"` // as many; none: an earlier version wrote it
	Beside   []besideState `json:"beside,omitempty"`
	Where    string        `json:"where,omitempty"`
	Earlier  bool          `json:"earlier,omitempty"`
}

// besideState is one that had it for writing beside the writer when both went.
type besideState struct {
	Name string `json:"name"`
	writerState
}

// writerState is what is known of a session beside its name (rnbd.Writer).
type writerState struct {
	UUID string       `json:"uuid,omitempty"`
	From []netip.Addr `json:"from,omitempty"`
}

func stateOfPast(p *rnbd.Past) pastState {
	s := pastState{Dev: p.ID.Dev, Ino: p.ID.Ino, Block: p.ID.Block, Syncs: p.Syncs, Writer: p.Writer.Name, Where: p.Where, Earlier: p.Earlier}
	if is := stateOfWriter(&p.Writer); is.UUID != "" || len(is.From) > 0 {
		s.WriterIs = &is
	}
	for i := range p.Behind {
		s.Behind = append(s.Behind, p.Behind[i].Name)
		s.Behinds = append(s.Behinds, stateOfWriter(&p.Behind[i]))
	}
	for i := range p.Beside {
		s.Beside = append(s.Beside, besideState{p.Beside[i].Name, stateOfWriter(&p.Beside[i])})
	}
	return s
}

func stateOfWriter(w *rnbd.Writer) writerState {
	s := writerState{From: w.From}
	if w.UUID != [16]byte{} {
		s.UUID = hex.EncodeToString(w.UUID[:])
	}
	return s
}

func (s *pastState) past() rnbd.Past {
	p := rnbd.Past{ID: blk.FileID{Dev: s.Dev, Ino: s.Ino, Block: s.Block}, Syncs: s.Syncs, Where: s.Where, Earlier: s.Earlier}
	p.Writer = s.WriterIs.writer(s.Writer)
	for i, name := range s.Behind {
		var is *writerState
		if len(s.Behinds) == len(s.Behind) {
			is = &s.Behinds[i]
		}
		p.Behind = append(p.Behind, is.writer(name))
	}
	for i := range s.Beside {
		p.Beside = append(p.Beside, s.Beside[i].writer(s.Beside[i].Name))
	}
	return p
}

// writer is that of a name; nil: nothing else is known.
func (s *writerState) writer(name string) rnbd.Writer {
	w := rnbd.Writer{Name: name}
	if s != nil {
		w.From = s.From
		if b, err := hex.DecodeString(s.UUID); err == nil {
			copy(w.UUID[:], b)
		}
	}
	return w
}

// heldState is which store a session has open under a name (rnbd.Held).
type heldState struct {
	Session string `json:"session"`
	Name    string `json:"name"`
	Dev     uint64 `json:"dev"`
	Ino     uint64 `json:"ino,omitempty"`
	Block   bool   `json:"block,omitempty"`
	Born    int64  `json:"born,omitempty"`
	Where   string `json:"where,omitempty"`
	Earlier bool   `json:"earlier,omitempty"`
	Reads   bool   `json:"reads,omitempty"`
}

type exportState struct {
	Name         string         `json:"name"`
	Kind         string         `json:"kind,omitempty"`
	Path         string         `json:"path"`
	ReadOnly     bool           `json:"read_only,omitempty"`
	Shared       bool           `json:"shared,omitempty"`
	LogicalBlock uint32         `json:"logical_block,omitempty"`
	Allow        []netip.Prefix `json:"allow,omitempty"`
	Sessions     []string       `json:"sessions,omitempty"`
}

type mappingState struct {
	ID          string     `json:"id"`
	Node        string     `json:"node"`
	Name        string     `json:"name"`
	As          string     `json:"as"`
	Socket      string     `json:"socket,omitempty"`
	Device      string     `json:"device,omitempty"`  // /dev/nbdN
	Chosen      bool       `json:"chosen,omitempty"`  // nobody asked for that one
	Backend     string     `json:"backend,omitempty"` // what the kernel knows it by
	Session     string     `json:"session"`
	Paths       []PathSpec `json:"paths"`
	Policy      string     `json:"policy"`
	QueueDepth  int        `json:"queue_depth,omitempty"`
	Access      string     `json:"access"`
	IOTimeout   string     `json:"io_timeout"`
	LossTimeout string     `json:"loss_timeout"`
	OnLoss      string     `json:"on_loss"`
	Persist     bool       `json:"persist"`

	Unfenced      string `json:"unfenced,omitempty"`
	UnfencedAfter string `json:"unfenced_after,omitempty"`
	MaxReconnects int    `json:"max_reconnect_attempts,omitempty"`

	Verifier uint64 `json:"verifier,omitempty"` // rnbd.Kept
	Volatile bool   `json:"volatile,omitempty"`
	Block    uint16 `json:"logical_block,omitempty"`
	SyncLost bool   `json:"sync_lost,omitempty"`
	Stale    bool   `json:"stale,omitempty"`
	Flushed  bool   `json:"flushed,omitempty"`

	Unused bool `json:"unused,omitempty"` // nobody has used it since the machine was started, or its device was detached
}

func (s *ExportSpec) state() exportState {
	return exportState{s.Name, s.Kind, s.Path, s.ReadOnly, s.Shared, s.LogicalBlock, s.Allow, s.Sessions}
}

func (s *exportState) spec() ExportSpec {
	return ExportSpec{Name: s.Name, Kind: s.Kind, Path: s.Path, ReadOnly: s.ReadOnly, Shared: s.Shared,
		LogicalBlock: s.LogicalBlock, Allow: s.Allow, Sessions: s.Sessions, Persist: true}
}

func (s *mappingState) kept() rnbd.Kept {
	return rnbd.Kept{Verifier: s.Verifier, Volatile: s.Volatile, LogicalBlock: s.Block, SyncLost: s.SyncLost, Stale: s.Stale, Flushed: s.Flushed}
}

func (s *MapSpec) state(wants, backend string, k rnbd.Kept) mappingState {
	m := mappingState{ID: s.ID, Node: s.Node, Name: s.Name, As: s.As, Backend: backend, Session: s.Session,
		Paths: s.Paths, Policy: s.Policy, QueueDepth: s.QueueDepth, Access: s.Access, IOTimeout: s.IOTimeout.String(),
		LossTimeout: s.LossTimeout.String(), OnLoss: s.OnLoss, Persist: s.Persist,
		Unfenced: s.Unfenced, UnfencedAfter: s.UnfencedAfter.String(), MaxReconnects: s.MaxReconnects,
		Verifier: k.Verifier, Volatile: k.Volatile, Block: k.LogicalBlock, SyncLost: k.SyncLost, Stale: k.Stale, Flushed: k.Flushed}
	if s.As == AsNBD {
		m.Device, m.Chosen = s.Device, wants == "" && s.Device != ""
		if s.Device == "" { // it was detached, or has not been attached yet
			m.Device = wants
		}
	} else {
		m.Socket = s.Socket
	}
	return m
}

func (s *mappingState) spec() (MapSpec, error) {
	io, err1 := time.ParseDuration(s.IOTimeout)
	loss, err2 := time.ParseDuration(s.LossTimeout)
	var after time.Duration // the default, if a version wrote it that did not know it
	var err3 error
	if s.UnfencedAfter != "" {
		after, err3 = time.ParseDuration(s.UnfencedAfter)
	}
	return MapSpec{ID: s.ID, Node: s.Node, Name: s.Name, As: s.As, Socket: s.Socket, Device: s.Device, Session: s.Session,
		Paths: s.Paths, Policy: s.Policy, QueueDepth: s.QueueDepth, Access: s.Access, IOTimeout: io, LossTimeout: loss,
		OnLoss: s.OnLoss, Persist: s.Persist,
		Unfenced: s.Unfenced, UnfencedAfter: after, MaxReconnects: s.MaxReconnects}, errors.Join(err1, err2, err3)
}

// store keeps the state on disk. Without a directory it keeps nothing.
type store struct {
	disk Disk // nil: there is no directory, or it could not be opened
	mark Mark // nil: there is none
	boot string

	aside  error // what an earlier Host has left could not be used
	unread bool  // because it could not be read: it stays as it is, and nothing is written

	mu     sync.Mutex // one writes at a time, for as long as the disk takes
	writes uint64     // guarded by mu; state.Writes of the last
	emu    sync.Mutex // after mu
	err    error      // guarded by emu; of the last write
}

// openStore takes the directory and reads what an earlier Host has left; marks is where the number of the last state is kept, too. An
// error is one that ends the start.
func openStore(m *Machine, g *guard.Guard, dir, marks string) (*store, state, error) {
	s := &store{boot: m.Boot}
	fresh := state{Version: stateVersion, Boot: s.boot, NextID: 1}
	if dir == "" {
		return s, fresh, nil
	}
	if m.Mark != nil && m.Boot != "" && marks != "" && marks != dir {
		s.mark = m.Mark(marks, dir)
	}
	old, err := s.take(m, g, dir)
	switch {
	case err == nil:
		return s, old, nil
	case s.disk != nil && errors.Is(err, fs.ErrNotExist):
		return s, fresh, nil
	case s.disk != nil && errors.Is(err, errGone):
		s.aside, err = err, nil
	case s.disk != nil && rdserr.Errno(err) == rdserr.ErrInvalid.Errno:
		err = s.setAside(err) // the file system has answered a moment ago
	}
	if err != nil && endsStart(err) {
		s.close()
		return nil, fresh, err
	}
	if err != nil {
		s.aside, s.unread = fmt.Errorf("%w; nothing is written there before a start that can read it", err), true
	}
	// Of later starts too, which know no more: failed syncs are counted from here, where
	// no client's count is, and any volume may have been written by others.
	fresh.Forgot = 1<<30 | uint32(m.Seed())>>2
	// So are mappings: programs connect again to the sockets of those that nobody knows now.
	fresh.NextID = uint64(fresh.Forgot)
	return s, fresh, nil
}

// endsStart tells whether a Host cannot be without its directory for err: another has it, it is no directory or
// not the daemon's, which is a mistake of who configured it, or the system lacks what any start needs and the next
// one may find. A node does not do without its datagrams for whatever else a file system can have.
func endsStart(err error) bool {
	return slices.ContainsFunc([]error{unix.EBUSY, unix.ENOTDIR, unix.EACCES, unix.EPERM, unix.EMFILE, unix.ENFILE, unix.ENOMEM},
		func(e error) bool { return errors.Is(err, e) })
}

// take opens the directory and reads it, in startWait. What a file system that stands still answers later is
// nobody's, and given back.
func (s *store) take(m *Machine, g *guard.Guard, dir string) (state, error) {
	type taken struct {
		disk Disk
		st   state
		err  error
	}
	ctx, cancel := m.Timeout(context.Background(), startWait)
	defer cancel()
	known, done := make(chan taken, 1), make(chan struct{})
	m.Go(func() { // ends when the file system answers
		defer close(done)
		defer g.Recover(guard.Volume, func(e error) { known <- taken{err: e} })
		var t taken
		if d, err := m.Disk(dir); err != nil {
			t.err = fmt.Errorf("volumes.state_dir: %w", err)
		} else {
			t.disk = d
			t.st, t.err = s.readMarked(d)
		}
		known <- t
		if ctx.Err() == nil {
			return
		}
		select {
		case <-known: // nobody has waited so long
			if t.disk != nil {
				t.disk.Close()
			}
		default:
		}
	})
	m.Wait(Forever, done, ctx.Done())
	select {
	case t := <-known:
		s.disk = t.disk
		return t.st, t.err
	default:
		return state{}, rdserr.With(rdserr.ErrTimeout, "volumes.state_dir: the file system has not answered in time")
	}
}

// setAside begins without the file, which cannot be used: one file of volumes is no
// reason for a node to be without its datagrams. It is kept for whoever can mend
// it, under a name that is not taken. What it said of failed syncs and of writers is
// not known now, so clients are told that the machine was started anew, which makes
// them let no flush succeed before they map again.
func (s *store) setAside(why error) error {
	aside, err := s.disk.SetAside()
	if err != nil {
		return fmt.Errorf("volumes.state_dir: %w (%w)", why, err)
	}
	s.aside = rdserr.With(rdserr.ErrInvalid, "%v; it is kept as %s", why, aside)
	return nil
}

func readState(d Disk) (state, error) {
	b, err := d.Read()
	if err != nil {
		return state{}, fmt.Errorf("volumes.state_dir: %w", err)
	}
	return parseState(b)
}

func parseState(b []byte) (st state, err error) {
	if err := json.Unmarshal(b, &st); err != nil {
		return st, rdserr.With(rdserr.ErrInvalid, "%s cannot be read (%v)", stateFile, err)
	}
	if sum, rest, has := summed(b); has && !bytes.Equal(sum, sumLine(rest)) {
		return st, rdserr.With(rdserr.ErrInvalid, "%s does not match its sum: it was damaged, or somebody has changed it and left the line \"sum\"", stateFile)
	}
	if st.Version != stateVersion {
		return st, rdserr.With(rdserr.ErrInvalid, "%s has version %d; this daemon knows %d", stateFile, st.Version, stateVersion)
	}
	st.NextID = max(st.NextID, 1)
	return st, nil
}

// crashed tells whether the Host that left st ended without a stop, on a machine
// that has surely not started anew since: a volume that somebody had mapped before
// that would be opened for writing for nobody, in the way of who took over.
func (s *store) crashed(st *state) bool { return st.Running && s.sameBoot(st) }

// sameBoot tells whether the machine has surely not been started since st was written. Where the kernel does not
// say which start this is (a chroot or container without /proc) neither this is sure nor otherBoot.
func (s *store) sameBoot(st *state) bool { return s.boot != "" && st.Boot == s.boot }

// otherBoot tells whether it surely has been.
func (s *store) otherBoot(st *state) bool { return s.boot != "" && st.Boot != "" && st.Boot != s.boot }

// past is what the Host that left st knew of files. Of a machine that may have been started since
// there is left who wrote, by the place of the file.
func (s *store) past(st *state) (list []rnbd.Past) {
	earlier := !s.sameBoot(st)
	for _, p := range st.Past {
		if earlier && p.Where == "" { // written by a version that did not know it
			continue
		}
		k := p.past()
		k.Earlier = k.Earlier || earlier
		list = append(list, k)
	}
	return list
}

// held is which stores sessions had open under which names.
func (s *store) held(st *state) (list []rnbd.Held) {
	for _, g := range st.Held {
		list = append(list, rnbd.Held{Session: g.Session, Name: g.Name, ID: blk.FileID{Dev: g.Dev, Ino: g.Ino, Block: g.Block},
			Born: g.Born, Where: g.Where, Earlier: g.Earlier || !s.sameBoot(st), Reads: g.Reads})
	}
	return list
}

// write replaces the file by what now is; never one that was not read.
func (s *store) write(now func() state) error {
	if s.unread {
		return s.aside
	}
	if s.disk == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := now() // here, so that the last to look is the last to write
	s.writes++
	st.Version, st.Boot, st.Writes = stateVersion, s.boot, s.writes
	b, err := json.MarshalIndent(st, "", "\t")
	if err != nil {
		return err
	}
	rest := append(b[len(stateOpens):], '\n')
	if err = s.disk.Write(slices.Concat([]byte(stateOpens), sumLine(rest), rest)); err != nil {
		err = fmt.Errorf("volumes.state_dir: %w", err)
	} else if s.mark != nil {
		s.mark.Write(s.boot, s.writes)
	}
	s.emu.Lock()
	s.err = err
	s.emu.Unlock()
	return err
}

// lastError is how the last write ended. It does not wait for one that is under way.
func (s *store) lastError() error {
	s.emu.Lock()
	defer s.emu.Unlock()
	return s.err
}

// Trouble is what is wrong with what is persistent, and what mends it.
type Trouble struct {
	Err  error
	Mend string
}

// StateTroubles says why what was persistent is not there, and why what is so now is not being kept.
func (h *Host) StateTroubles() (list []Trouble) {
	if err := h.store.aside; err != nil {
		t := Trouble{fmt.Errorf("what was persistent is not there: %w", err), "stop the daemon, mend the file, take its line \"sum\" away, and give it its name back, if no volume was written meanwhile; or map and export anew"}
		if errors.Is(err, errGone) {
			t.Mend = "map and export anew"
		}
		if h.store.unread {
			t = Trouble{fmt.Errorf("what is persistent is not there, nothing can be, and no volume can be mapped or asked about: %w", err), "see to the file system of volumes.state_dir, and start the daemon again"}
		}
		list = append(list, t)
	}
	if err := h.store.lastError(); err != nil {
		list = append(list, Trouble{fmt.Errorf("what is persistent cannot be written down: %w", err), "see to the directory of volumes.state_dir, and make room there if it is full; it is tried again by itself"})
	}
	return list
}

func (s *store) close() {
	if s.disk != nil {
		s.disk.Close()
	}
}
