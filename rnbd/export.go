package rnbd

import (
	"net/netip"
	"strings"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// Rules say which sessions may open a volume and how. The zero value admits every session
// that the RTRS server has let in, for reading and writing, one writer at a time.
type Rules struct {
	ReadOnly bool           // nothing is written
	Shared   bool           // any number of writers at a time, which must agree among themselves
	Allow    []netip.Prefix // addresses that may open; empty: all
	Sessions []string       // names of sessions that may open, with * and ?; empty: all
}

// mayPeer tells whether requests from an address are taken.
func (r *Rules) mayPeer(from netip.Addr) bool {
	if len(r.Allow) == 0 {
		return true
	}
	from = from.Unmap().WithZone("")
	for _, p := range r.Allow {
		if p.Contains(from) {
			return true
		}
	}
	return false
}

func (r *Rules) maySession(name string) bool {
	if len(r.Sessions) == 0 {
		return true
	}
	for _, pattern := range r.Sessions {
		if glob(pattern, name) {
			return true
		}
	}
	return false
}

// check is nil if a session may open the volume in this mode.
func (r *Rules) check(name, session string, from netip.Addr, access rnbdwire.Access) error {
	switch {
	case !r.mayPeer(from):
		return rdserr.With(rdserr.ErrPerm, "volume %q: %v is not among the addresses that may open it", name, from)
	case !r.maySession(session):
		return rdserr.With(rdserr.ErrPerm, "volume %q: session %q is not among those that may open it", name, session)
	case r.ReadOnly && access != rnbdwire.ReadOnly:
		return rdserr.With(blk.ErrReadOnly, "volume %q is exported read-only; open it with access ro", name)
	}
	return nil
}

// glob matches * (any bytes) and ? (one byte).
func glob(pattern, s string) bool {
	var star, from = -1, 0 // where to go on after the last *
	i, j := 0, 0
	for j < len(s) {
		switch {
		case i < len(pattern) && pattern[i] == '*':
			star, from = i+1, j
			i++
		case i < len(pattern) && (pattern[i] == '?' || pattern[i] == s[j]):
			i, j = i+1, j+1
		case star >= 0: // let the last * take one byte more
			from++
			i, j = star, from
		default:
			return false
		}
	}
	return strings.Trim(pattern[i:], "*") == ""
}

// Export is a volume with a name of its own. It does not change while it is
// with a Server.
type Export struct {
	Name string // the name clients use; relative, at most 254 bytes
	Rules

	// Path is the file or block device, as the administrator named it. It is opened when a
	// client opens the export, and closed with the last one.
	Path string
	File blk.FileOptions // how; ReadOnly is that of Rules too
	// Open opens Path; nil: it is a file or block device of this machine.
	Open func(path string, o blk.FileOptions) (blk.Device, error)

	// Device is exported instead of a Path. It belongs to the Server, which has it closed
	// some time after the export was removed.
	Device blk.Device
	// Volatile says that the content of the Device ends with it (memory). A client that
	// comes back and finds another Device does not take it for the same volume.
	Volatile bool

	verifier uint64 // of a volatile Device
}

// Validate returns an error for a wrong export.
func (e *Export) Validate() error {
	switch err := blk.CheckName(e.Name); {
	case err != nil:
		return err
	case len(e.Name) >= rnbdwire.NameLen:
		return rdserr.With(rdserr.ErrInvalid, "volume name %.40q: %d bytes; at most %d", e.Name, len(e.Name), rnbdwire.NameLen-1)
	case (e.Path == "") == (e.Device == nil):
		return rdserr.With(rdserr.ErrInvalid, "export %q: want either a path or a device", e.Name)
	}
	return e.Rules.validate()
}

func (r *Rules) validate() error {
	for _, p := range r.Allow {
		if !p.IsValid() {
			return rdserr.With(rdserr.ErrInvalid, "a prefix that is none among the addresses that may open; want one like 10.1.0.0/16")
		}
	}
	return nil
}

// Root is a directory below which volumes are found by name.
type Root struct {
	// Path is the directory. {session} or %SESSNAME% in it stands for the name
	// of the session that opens.
	Path string
	Rules
	File blk.FileOptions // how files are opened

	dir  *blk.Root
	rest string // of Path, below dir, with the placeholder
	used int    // Openings that may look below dir; guarded by the Server's lock
	gone bool   // removed from the Server
}

// placeholders of the session's name in Root.Path; the second is the kernel's
// (dev_search_path).
var placeholders = []string{"{session}", "%SESSNAME%"}

// Open is Prepare and Hold.
func (r *Root) Open() error {
	if err := r.Prepare(); err != nil {
		return err
	}
	return r.Hold()
}

// Prepare makes r fit for Server.AddRoot. An error is one of its fields.
func (r *Root) Prepare() error {
	if !strings.HasPrefix(r.Path, "/") {
		return rdserr.With(rdserr.ErrInvalid, "export root %q: want an absolute path", r.Path)
	}
	if err := r.Rules.validate(); err != nil {
		return err
	}
	base, rest := r.Path, ""
	at := len(r.Path)
	for _, p := range placeholders {
		if i := strings.Index(r.Path, p); i >= 0 {
			at = min(at, i)
		}
	}
	// The placeholder stands for a name from the client, so only the path before it is opened as
	// the administrator wrote it; the rest is looked up below that, for each session, link by
	// link.
	if at < len(r.Path) {
		slash := strings.LastIndexByte(r.Path[:at], '/')
		base, rest = r.Path[:slash+1], cleanName(r.Path[slash+1:])
		if err := blk.CheckName(subst(rest, "session")); err != nil {
			return rdserr.With(rdserr.ErrInvalid, "export root %q: %v", r.Path, err)
		}
	}
	r.dir, r.rest = blk.NewRoot(base), rest
	return nil
}

// Hold holds the directory. It does I/O: call it without the lock. The path before its first
// part with a placeholder has to exist, and may lead through symbolic links. Where it was not
// called, or the file system has not answered yet, the directory is held when a client looks
// for something below it.
func (r *Root) Hold() error { return r.dir.Hold() }

// Close closes the directory, also while Hold waits for it. The shell calls it for
// ServerEnv.Close, or for a Root that no Server took.
func (r *Root) Close() error { return r.dir.Close() }

// below is the path, below dir, of a volume name as a session sent it: never
// out of it, because no part may be "..", and blk.Root follows no link.
func (r *Root) below(session, name string) (string, error) {
	if r.rest == "" {
		return name, nil
	}
	if err := blk.CheckName(session); err != nil || strings.IndexByte(session, '/') >= 0 {
		return "", rdserr.With(rdserr.ErrInvalid, "session %.40q: its name is part of the path below the export root; want 1 to 254 bytes without a slash, neither . nor ..", session)
	}
	return subst(r.rest, session) + "/" + name, nil
}

func subst(path, session string) string {
	for _, p := range placeholders {
		path = strings.ReplaceAll(path, p, session)
	}
	return path
}

// cleanName removes slashes at both ends and doubled ones, as a kernel does
// when it puts a name behind its search path.
func cleanName(name string) string {
	if !strings.Contains(name, "//") {
		return strings.Trim(name, "/")
	}
	parts := strings.FieldsFunc(name, func(r rune) bool { return r == '/' })
	return strings.Join(parts, "/")
}
