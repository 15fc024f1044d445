package volume

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// Check looks for what is wrong with a mapping, found as by Unmap, an export, a
// session, or, with "", everything.
func (h *Host) Check(ctx context.Context, what string) ([]Finding, error) {
	var k checks
	found := what == ""
	for _, m := range h.Mappings() {
		if what == "" || what == m.ID || what == m.Device || what == m.Node+":"+m.Name {
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

func (k *checks) mapping(m *MappingInfo) {
	n, what := len(k.list), "mapping "+m.ID
	switch {
	case m.State == StateInit:
		k.add(SeverityError, what, "see that the node can be reached and exports the volume", "not open yet: %s", m.LastError)
	case m.State == StateClosed && m.PathsUp == 0:
		k.add(SeverityError, what, "see to the paths of session "+m.Session, "no path to %s; %d requests wait", m.Node, m.Waiting)
	case m.State == StateClosed:
		k.add(SeverityError, what, "see to the volume there, then remap "+m.ID, "the server does not have the volume: %s", m.LastError)
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

func (k *checks) export(ctx context.Context, h *Host, x *ExportInfo) {
	n, what := len(k.list), "export "+x.Name
	if x.Origin != OriginRoot && x.Kind != KindMemory {
		ctx, cancel := h.machine.Timeout(ctx, 5*time.Second)
		err := h.do(ctx, x.Path, func() error {
			f, err := blk.OpenFile(x.Path, blk.FileOptions{ReadOnly: x.ReadOnly, LogicalBlock: x.LogicalBlock})
			if err == nil {
				err = f.Close()
			}
			return err
		})
		cancel()
		if err != nil {
			k.add(SeverityError, what, "see to "+x.Path, "the store cannot be opened: %v", err)
		}
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
			k.add(SeverityWarning, what, "see to the network between these addresses", "the path from %s to %s is %s since %v: %s", p.Src, p.Dst, p.State, time.Since(p.Since).Round(time.Millisecond), p.LastError)
		}
	}
	k.ok(n, what, "%d paths connected", s.PathsUp)
}

func (k *checks) host(h *Host) {
	if err := h.store.aside; err != nil {
		k.add(SeverityError, "state", "stop the daemon, mend the file, and give it its name back; or map and export anew", "what was persistent is not there: %v", err)
	}
	switch err := h.store.lastError(); {
	case err != nil:
		k.add(SeverityError, "state", "see to the directory", "what is persistent cannot be written down: %v", err)
	case h.cfg.StateDir == "":
		k.add(SeverityWarning, "state", "set volumes.state_dir", "nothing persists, and mappings do not survive the daemon")
	}
	h.mu.Lock()
	left := h.left()
	h.mu.Unlock()
	for _, l := range left {
		if l.export != nil {
			k.add(SeverityError, "export "+l.export.Name, "see to that and start the daemon again, or unexport it", "it could not be exported again at the start: %v", l.err)
		}
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
