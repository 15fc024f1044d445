package volume

import (
	"slices"
	"time"

	"github.com/rdsd/rdsd/blk/nbd"
	"github.com/rdsd/rdsd/rdserr"
)

// leftover is an export or a mapping of the state that could not be taken up at the start,
// because of a limit that is lower now, say. It stays in the state, for a start that can, until
// it is ended by name, or another of its name is there.
type leftover struct {
	export  *exportState // or
	mapping *mappingState
	err     error     // why
	at      time.Time // when
}

// leaveExport keeps an export that could not be taken up.
func (h *Host) leaveExport(o *exportState, err error) {
	h.mu.Lock()
	h.leftovers = append(h.leftovers, leftover{export: o, err: err, at: h.machine.Wall()})
	h.mu.Unlock()
}

// leaveMapping keeps a mapping that could not be taken up. With again its users may still be
// there.
func (h *Host) leaveMapping(o *mappingState, again bool, err error) {
	if !again { // written down as of this start of the machine, it would say that they are
		o.Verifier, o.Volatile, o.Block, o.SyncLost, o.Stale, o.Flushed, o.Unused = 0, false, 0, false, false, false, true
	}
	h.mu.Lock()
	h.leftovers = append(h.leftovers, leftover{mapping: o, err: err, at: h.machine.Wall()})
	h.mu.Unlock()
}

// left lists those that nothing has taken the place of. mu is held.
func (h *Host) left() (list []leftover) {
	for _, l := range h.leftovers {
		switch {
		case l.export != nil && h.exports[l.export.Name] != nil:
		case l.mapping != nil && slices.ContainsFunc(h.mappings, func(m *mapping) bool { return m.id == l.mapping.ID }):
		default:
			list = append(list, l)
		}
	}
	return list
}

// called reports whether what names a mapping that was left, as by find.
func (l *leftover) called(what string) bool {
	s := l.mapping
	return s != nil && what != "" && (names(what, s.Node, s.Name) || slices.Contains([]string{s.ID, s.Socket, s.Device, nbd.URI(s.Socket, s.Name)}, what))
}

// forgetLeft ends those that is tells of, and reports whether there were any. The state is to
// be saved then.
func (h *Host) forgetLeft(is func(l *leftover) bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dropLeft(is)
}

// dropLeft is forgetLeft with mu held.
func (h *Host) dropLeft(is func(l *leftover) bool) bool {
	n := len(h.leftovers)
	h.leftovers = slices.DeleteFunc(h.leftovers, func(l leftover) bool { return is(&l) })
	return len(h.leftovers) < n
}

func (l *leftover) exportInfo() ExportInfo {
	return ExportInfo{ExportSpec: l.export.spec(), Origin: OriginCall, State: "failed", Since: l.at, Error: l.err.Error(), Left: true, errno: rdserr.Errno(l.err)}
}

func (l *leftover) mappingInfo() MappingInfo {
	s, _ := l.mapping.spec() // as far as it can be read
	s.Device = ""            // which may be another's now
	i := MappingInfo{MapSpec: s, State: StateInit, Since: l.at, Left: true}
	i.fails(l.err)
	return i
}

// leftMapping finds a mapping that was left; ErrNotFound is err. mu is held.
func (h *Host) leftMapping(what string, err error) (MappingInfo, error) {
	l, err := h.findLeft(what, err)
	if err != nil {
		return MappingInfo{}, err
	}
	return l.mappingInfo(), nil
}

// findLeft finds a mapping that was left, where find has found none because of err. mu is held.
func (h *Host) findLeft(what string, err error) (*leftover, error) {
	if rdserr.Errno(err) != rdserr.ErrNotFound.Errno {
		return nil, err
	}
	var found *leftover
	for _, l := range h.left() {
		switch {
		case !l.called(what):
		case l.mapping.ID == what:
			return &l, nil
		case found != nil:
			return nil, manyMappings(what, found.mapping.ID, l.mapping.ID)
		default:
			found = &l
		}
	}
	if found == nil {
		return nil, err
	}
	return found, nil
}

// alsoLeft is an error if what, by which m was found, is the NODE:NAME of a mapping that was left as well: either may be meant. mu is held.
func (h *Host) alsoLeft(what string, m *mapping) error {
	if what == m.id || !names(what, m.spec.Node, m.spec.Name) {
		return nil
	}
	for _, l := range h.left() {
		if l.mapping != nil && names(what, l.mapping.Node, l.mapping.Name) {
			return manyMappings(what, m.id, l.mapping.ID)
		}
	}
	return nil
}

// endLeft forgets a mapping that was left, found as by findLeft.
func (h *Host) endLeft(what string, err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	l, err := h.findLeft(what, err)
	if err == nil {
		h.dropLeft(func(o *leftover) bool { return o.mapping == l.mapping })
	}
	return err
}
