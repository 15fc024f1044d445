package volume

import (
	"context"
	"log/slog"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/internal/reactor"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/transport"
)

// Deps is what a Host is given.
type Deps struct {
	Provider transport.OneSidedProvider
	Reactors []*reactor.Reactor // run timers; they outlive the Host
	Log      *slog.Logger // nil: none
}

// Host is what a daemon does with volumes.
type Host struct {
	cfg Config
	log *slog.Logger
}

// New starts a Host: it listens as the configuration says and, in the
// background, exports and maps again what is persistent. An error is one of the
// configuration, of the state directory, or of a port that is taken.
func New(cfg Config, deps Deps) (*Host, error) { return &Host{cfg: cfg, log: deps.Log}, nil }

// Close ends everything in order: NBD clients get their answers, sessions are
// closed, stores synchronised and closed. What is still under way when ctx ends
// is cut. What is persistent stays so; kernel devices stay attached and wait for
// the next Host for their dead-connection timeout.
func (h *Host) Close(ctx context.Context) error { return nil }

// Export offers a volume. It returns when the store is open. EEXIST
// (syscall): the name is taken.
func (h *Host) Export(ctx context.Context, s ExportSpec) (ExportInfo, error) {
	return ExportInfo{}, rdserr.ErrNotSupported
}

// Unexport ends an export. While sessions have it open this is refused with
// EBUSY, unless force: then their requests fail.
func (h *Host) Unexport(ctx context.Context, name string, force bool) error {
	return rdserr.ErrNotSupported
}

// Exports lists the exports by name, those opened below roots included.
func (h *Host) Exports() []ExportInfo { return nil }

// ExportCounts are counters and latencies of an export's store since it was
// opened; false: there is no such export, or it is not open.
func (h *Host) ExportCounts(name string) (c [blk.NumOps]blk.OpCounts, ok bool) { return c, false }

// Map maps a volume of another node. It returns when the device is there.
// Errors bear the errno the server answered: ENOENT, EACCES, EPERM (a writer
// has it), EBUSY; EEXIST: it is mapped in this session already; without an
// answer ETIMEDOUT, EHOSTUNREACH, ECONNREFUSED.
func (h *Host) Map(ctx context.Context, s MapSpec) (MappingInfo, error) {
	return MappingInfo{}, rdserr.ErrNotSupported
}

// Unmap ends a mapping, by ID, by the device's path or by NODE:NAME. While a
// program has it open this is refused with EBUSY; with force what is in flight
// fails, and it returns within seconds whatever the server does.
func (h *Host) Unmap(ctx context.Context, what string, force bool) error {
	return rdserr.ErrNotSupported
}

// Remap opens a mapping again that the server has refused (MappingFailed).
func (h *Host) Remap(ctx context.Context, what string) (MappingInfo, error) {
	return MappingInfo{}, rdserr.ErrNotSupported
}

// Mappings lists the mappings, oldest first.
func (h *Host) Mappings() []MappingInfo { return nil }

// Mapping describes one, found as by Unmap.
func (h *Host) Mapping(what string) (MappingInfo, error) {
	return MappingInfo{}, rdserr.ErrNotFound
}

// MappingCounts are counters and latencies of a mapping; false: there is none.
func (h *Host) MappingCounts(what string) (c [blk.NumOps]blk.OpCounts, ok bool) { return c, false }

// ResizeExport sets the size of a file or memory, in bytes, and tells who has it
// open; 0: it looks which size the store has. It returns the size afterwards.
func (h *Host) ResizeExport(ctx context.Context, name string, size uint64) (uint64, error) {
	return 0, rdserr.ErrNotSupported
}

// ResizeMapping takes the size the server says a volume has now. size is what it
// has to be, else it is left as it is (EINVAL); 0: any.
func (h *Host) ResizeMapping(ctx context.Context, what string, size uint64) (uint64, error) {
	return 0, rdserr.ErrNotSupported
}

// Sessions lists the sessions in both roles.
func (h *Host) Sessions() []SessionInfo { return nil }

// Paths lists the paths of all sessions.
func (h *Host) Paths() []PathInfo { return nil }

// AddPath adds a path to a client's session, named by name or ID.
func (h *Host) AddPath(ctx context.Context, session string, p PathSpec) (PathInfo, error) {
	return PathInfo{}, rdserr.ErrNotSupported
}

// RemovePath takes a path from a client's session; its requests move to others.
// A path is named by its ends; Src, ports, or both may be left out where what is
// left fits one path only.
func (h *Host) RemovePath(ctx context.Context, session string, p PathSpec) error {
	return rdserr.ErrNotSupported
}

// DisconnectPath closes a path. A client's stays so until ReconnectPath; that of
// a server comes back if the client wants it to.
func (h *Host) DisconnectPath(ctx context.Context, session string, p PathSpec) error {
	return rdserr.ErrNotSupported
}

// ReconnectPath connects a client's path anew, now.
func (h *Host) ReconnectPath(ctx context.Context, session string, p PathSpec) error {
	return rdserr.ErrNotSupported
}

// SetPolicy changes how a client's session chooses among its paths.
func (h *Host) SetPolicy(ctx context.Context, session, policy string) error {
	return rdserr.ErrNotSupported
}

// ResetStats sets the statistics of a path to 0; with an empty session of all
// sessions, with an empty path of all paths.
func (h *Host) ResetStats(ctx context.Context, session string, p PathSpec) error {
	return rdserr.ErrNotSupported
}

// RemoteInfo asks a node about a volume: it opens it read-only, over a session of
// its own unless there is one, and closes it. Of s, Node, Name, Session and
// Paths are used.
func (h *Host) RemoteInfo(ctx context.Context, s MapSpec) (VolumeInfo, error) {
	return VolumeInfo{}, rdserr.ErrNotSupported
}

// Check looks for what is wrong with a mapping, found as by Unmap, an export, a
// session, or, with "", everything.
func (h *Host) Check(ctx context.Context, what string) ([]Finding, error) {
	return nil, rdserr.ErrNotSupported
}

// Watch brings the events after number since, as far as they are kept, and those
// to come, until stop is called, which closes the channel. A reader that is too
// slow finds an EventGap. ^uint64(0) as since: only what is to come.
func (h *Host) Watch(since uint64) (events <-chan Event, stop func()) {
	c := make(chan Event)
	return c, func() {}
}
