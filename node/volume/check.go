package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rnbd"
)

// Check looks for what is wrong with a mapping, found as by Unmap, an export, a
// session, or, with "", everything.
func (h *Host) Check(ctx context.Context, what string) ([]Finding, error) {
	var k checks
	found := what == ""
	for _, m := range h.Mappings() {
		if what == "" || what == m.ID || what == m.Device || names(what, m.Node, m.Name) {
			found = true
			k.mapping(&m)
		}
	}
	exports := h.Exports()
	for i := range exports {
		if x := &exports[i]; what == "" || what == x.Name {
			found = true
			k.export(ctx, h, x)
		}
	}
	paths := h.Paths()
	for _, s := range h.Sessions() {
		if what == "" || what == s.Name || what == s.ID {
			found = true
			k.session(&s, paths)
		}
	}
	if what == "" {
		k.host(h)
	}
	if !found {
		return nil, rdserr.With(rdserr.ErrNotFound, "there is no mapping, export or session %q", what)
	}
	return k.list, nil
}

type checks struct{ list []Finding }

func (k *checks) add(severity, what, fix, format string, args ...any) {
	k.list = append(k.list, Finding{Severity: severity, What: what, Text: fmt.Sprintf(format, args...), Fix: fix})
}

// ok adds a finding that all is well unless one was added since n.
func (k *checks) ok(n int, what, format string, args ...any) {
	if len(k.list) == n {
		k.add(SeverityOK, what, "", format, args...)
	}
}

// worseFrom is an error for what lasts for the limit, and a warning before.
func worseFrom(d, limit time.Duration) string {
	if d >= limit {
		return SeverityError
	}
	return SeverityWarning
}

func (k *checks) mapping(m *MappingInfo) {
	n, what := len(k.list), "mapping "+m.ID
	if m.State == StateInit || m.State == StateClosed {
		text, fix := m.NotOpen()
		k.add(SeverityError, what, fix, "%s", text)
	}
	if m.State == StateOpen {
		if m.As == AsSocket {
			if st, err := os.Stat(m.Socket); err != nil || st.Mode()&os.ModeSocket == 0 {
				k.add(SeverityError, what, "unmap it and map it again", "the socket %s is gone", m.Socket)
			}
		}
		if m.As == AsNBD && m.LastError == noDevice {
			k.add(SeverityError, what, "unmap it and map it again", noDevice)
		}
		if m.As == AsNBD && m.LastError == noConnection {
			k.add(SeverityError, what, "start rdsd again", noConnection)
		}
		if m.Stalled() {
			k.add(worseFrom(m.Oldest, m.IOTimeout), what, "see to the store there: rdsd check and the kernel's log on "+m.Node, "a request has not been answered for %v, though a path is connected", m.Oldest.Round(time.Millisecond))
		}
		for _, o := range m.Ops {
			if o.Errors > 0 {
				k.add(SeverityWarning, what, "see the events and the server's log", "%d of %d operations %q have failed", o.Errors, o.Completed, o.Op)
			}
		}
		if m.PathCount == 1 {
			k.add(SeverityWarning, what, "add a path over another network", "there is one path only: if it fails, requests wait")
		}
	}
	k.ok(n, what, "open, %d paths of %d connected", m.PathsUp, m.PathCount)
}

// NotOpen is why it is not open, with the last error, and what mends that. Only some of it is the other node's to mend, and
// to remap a volume that others have changed would have who uses it go on over that.
func (m *MappingInfo) NotOpen() (text, fix string) {
	text, fix = m.notOpen()
	if m.LastError != "" {
		text += ": " + m.LastError
	}
	return text, fix
}

// notOpen is NotOpen without the last error.
func (m *MappingInfo) notOpen() (text, fix string) {
	volume, show := m.Node+":"+m.Name, fmt.Sprintf("on %s: rdsd volume show %s", m.Node, m.Name)
	then := "; then here: rdsd volume remap " + m.ID
	if m.State == StateInit {
		then = "; it is tried again by itself"
	}
	switch {
	case m.State == StateUnmapped:
		return "it is being unmapped", "wait: that takes seconds, whatever the other node does"
	case m.Left && m.Errno == rdserr.ErrTooMany.Errno:
		return "it was not taken up at the start", "raise volumes.max_mappings and systemctl restart rdsd; or rdsd volume unmap " + m.ID
	case m.Left:
		return "it was not taken up at the start", "mend that on this node and systemctl restart rdsd; or rdsd volume unmap " + m.ID
	case m.Here:
		return "what is persistent cannot be written on this node, and before that it is not mapped again", "see to the disk of volumes.state_dir, here; it is tried again by itself"
	case m.NoDevice:
		return "this node cannot make a device of it", "mend that on this node; it is tried again by itself"
	case m.PathsUp == 0: // then nobody there was asked about the volume
		host, _, err := splitNode(m.Node, 0) // ping has another port
		if err != nil {
			host = m.Node
		}
		return fmt.Sprintf("no path to %s, so %s cannot be used; waiting requests: %d", m.Node, volume, m.Pending()),
			fmt.Sprintf("rdsd volume paths shows what each path of session %s fails of; rdsd ping %s", m.Session, host)
	}
	switch m.Errno {
	case rdserr.ErrNotFound.Errno:
		return fmt.Sprintf("%s does not have the volume %s", m.Node, m.Name), fmt.Sprintf("on %s: rdsd volume ls, and export it%s", m.Node, then)
	case rnbd.ErrStale.Errno:
		return volume + " is not what was mapped", "look at the data; then rdsd volume remap " + m.ID + ", or unmap it and map it anew"
	case rnbd.ErrNotOpen.Errno:
		return fmt.Sprintf("%s has taken the volume %s from this node", m.Node, m.Name), show + " says who writes it now; look at the data" + then
	case rnbd.ErrWriter.Errno:
		return fmt.Sprintf("another session writes the volume %s of %s", m.Name, m.Node), show + " says which; once it has ended, look at the data" + then
	case rdserr.ErrPerm.Errno:
		return fmt.Sprintf("%s does not let this node have the volume %s", m.Node, m.Name), show + " has its --allow and --allow-session; mend them, or the rules there" + then
	}
	return fmt.Sprintf("%s has not opened the volume %s", m.Node, m.Name), fmt.Sprintf("on %s: rdsd check, rdsd volume check %s, and rdsd errors%s", m.Node, m.Name, then)
}

func (k *checks) export(ctx context.Context, h *Host, x *ExportInfo) {
	n, what := len(k.list), "export "+x.Name
	if x.Left {
		text, fix := x.NotTaken()
		k.add(SeverityError, what, fix, "%s", text)
		return
	}
	if x.Origin != OriginRoot && x.Kind != KindMemory {
		ctx, cancel := h.machine.Timeout(ctx, 5*time.Second)
		is, err := h.lookNow(ctx, x)
		cancel()
		if err != nil {
			k.add(SeverityError, what, "see to "+x.Path, "the store cannot be opened: %v", err)
		}
		// Flushed or not, what is written to a file that has no name any more ends with the last that has it open.
		gone, known := errors.Is(err, fs.ErrNotExist), is != blk.FileID{}
		if !x.ReadOnly && slices.ContainsFunc(x.files, func(id blk.FileID) bool { return gone || known && id != is }) {
			k.add(SeverityError, what, "move that file back, if it has another name now; else save it, on a node that has the volume mapped, before it is unmapped or the daemon here ends: rdsd volume copy NODE:"+x.Name+" FILE",
				"sessions have another file open than the one at %s, which was moved, removed or replaced: what they write is not there, and of one that was removed it is lost when they close it", x.Path)
		}
	}
	if x.Stalled() {
		k.add(worseFrom(x.Oldest, StallLong), what, "see to the disk of the store, and the kernel's log", "a request to the store has not completed for %v", x.Oldest.Round(time.Millisecond))
	}
	for _, o := range x.Ops {
		if o.Errors > 0 {
			k.add(SeverityWarning, what, "see the events and the kernel's log", "%d of %d operations %q have failed", o.Errors, o.Completed, o.Op)
		}
	}
	k.ok(n, what, "%d bytes, open in %d sessions", x.Info.Size, len(x.Users))
}

func (k *checks) session(s *SessionInfo, paths []PathInfo) {
	if s.Role != RoleClient {
		return // the client's to see to
	}
	n, what := len(k.list), "session "+s.Name
	for _, p := range paths {
		if p.SessionID == s.ID && p.State != "connected" {
			why := ""
			if p.LastError != "" {
				why = ": " + p.LastError
			}
			k.add(SeverityWarning, what, p.Mend(), "the path %v is %s for %v%s", PathSpec{Src: p.Src, Dst: p.Dst}, p.State, time.Since(p.Down).Round(time.Millisecond), why)
		}
	}
	k.ok(n, what, "%d paths connected", s.PathsUp)
}

// Mend is what mends a path that is not connected.
func (p *PathInfo) Mend() string {
	network := "see to the network between these addresses, and that " + p.opened() + " is open; "
	again := fmt.Sprintf("rdsd volume paths reconnect %s %s,%s", p.Session, p.Src, p.Dst)
	switch {
	case p.Unmade:
		from := ""
		if p.Src != "" {
			from = p.Src + ","
		}
		return fmt.Sprintf("see to what is said of it (the name, the addresses of this node); it is tried again by itself. rdsd volume paths remove %s %s%s gives it up", p.Session, from, p.Dst)
	case p.Replaced:
		return "another session of this name from this node took its place (a second daemon?): unmap its volumes, and map them again with a --session of their own"
	case p.GivenUp:
		return fmt.Sprintf("it was given up (max_reconnect_attempts, %d in a row): %sthen %s", p.Attempts, network, again)
	case p.State == "disconnected":
		return "an administrator has disconnected it: " + again
	}
	return network + "rdsd volume paths"
}

// opened is what has to be open for it.
func (p *PathInfo) opened() string {
	if p.Transport == TransportIB {
		return "UDP port 4791"
	}
	port := uint16(16388)
	if at, err := netip.ParseAddrPort(p.Dst); err == nil {
		port = at.Port()
	}
	return fmt.Sprintf("TCP port %d", port)
}

func (k *checks) host(h *Host) {
	for _, t := range h.StateTroubles() {
		k.add(SeverityError, "state", t.Mend, "%v", t.Err)
	}
	if h.cfg.StateDir == "" {
		k.add(SeverityWarning, "state", "set volumes.state_dir", "nothing persists, and mappings do not survive the daemon")
	}
	if s := h.srv; s.wanted != (geometry{}) {
		var names []string
		if now := s.kernels(); now != nil {
			for _, x := range now.Sessions {
				names = append(names, x.Name)
			}
		}
		k.add(SeverityWarning, "kernels", "unmap there and start the daemon again, or configure what is", "sessions have %v, not what is configured (%v), because kernels know it so: %s",
			s.geo, s.wanted, strings.Join(names, " "))
	}
	if err := h.drv.present(); err != nil {
		k.add(SeverityWarning, "kernel nbd", "modprobe nbd, if kernel devices are wanted", "%v", err)
	}
}
