package rdsd

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/rdsd/rdsd/rdserr"
)

// FrontEnd is a way to the daemon.
type FrontEnd uint8

const (
	// Auto is Rings where they are to be had, else GRPC.
	Auto FrontEnd = iota
	// GRPC is a stream: any target, any machine.
	GRPC
	// Rings is memory shared with a daemon on this node: no system call and no
	// waiting for an answer on the way of a datagram.
	Rings
)

// String returns "auto", "grpc" or "rings".
func (f FrontEnd) String() string {
	switch f {
	case GRPC:
		return "grpc"
	case Rings:
		return "rings"
	}
	return "auto"
}

func (f *FrontEnd) set(text string) error {
	switch text {
	case "", "auto":
		*f = Auto
	case "grpc":
		*f = GRPC
	case "rings":
		*f = Rings
	default:
		return rdserr.With(rdserr.ErrInvalid, "front end %q (RDSD_FRONT_END): it is auto, grpc or rings", text)
	}
	return nil
}

// WithFrontEnd says how sockets of this client reach the daemon. Auto, the
// default, takes rings when the target is the path of a Unix socket, the daemon
// offers them there (a socket of that name with ".rings" added) and grants them.
// With Rings it is an error when that is not so: Dial's for another target,
// Bind's (rdserr.ErrShutdown, ErrNotSupported, ErrNoMemory) else.
func WithFrontEnd(f FrontEnd) Option {
	return func(c *clientConfig) { c.frontEnd, c.chosen = f, true }
}

// FrontEnd returns the front end of the socket: Rings or GRPC.
func (s *Socket) FrontEnd() FrontEnd {
	if s == nil || s.fe == nil {
		return Auto
	}
	return s.fe.kind()
}

// ringsPath is where the ring control socket of a target is.
func ringsPath(target string) (string, bool) {
	path, ok := strings.CutPrefix(target, "unix:")
	if !ok {
		return "", false
	}
	if abs, ok := strings.CutPrefix(path, "//"); ok {
		var err error
		if path, err = url.PathUnescape(abs); err != nil {
			return "", false // gRPC will report the error
		}
	}
	return path + ".rings", path != ""
}

// open chooses the front end and makes the first link.
func (s *Socket) open(ctx context.Context) (link, error) {
	if s.cfg.frontEnd != GRPC {
		if path, ok := ringsPath(s.client.target); ok && s.mayTry(path) {
			l, err := s.openRings(ctx, path)
			if err == nil || s.cfg.frontEnd == Rings || !withoutRings(err) {
				return l, err
			}
		}
	}
	st := newStream(s)
	s.setFrontEnd(st)
	return st.connect(ctx)
}

// setFrontEnd sets it for Close, which may come before there is a link.
func (s *Socket) setFrontEnd(fe frontEnd) {
	s.mu.Lock()
	s.fe = fe
	s.mu.Unlock()
}

// mayTry says whether there is something to try at path.
func (s *Socket) mayTry(path string) bool {
	if s.cfg.frontEnd == Rings {
		return true // and an error that names the missing part
	}
	_, err := os.Stat(path)
	return err == nil
}

// noRings is why rings are not to be had, when that says nothing against a
// stream.
type noRings struct{ error }

func (e noRings) Unwrap() error { return e.error }

func withoutRings(err error) bool {
	_, ok := errors.AsType[noRings](err)
	return ok
}

// Bounds of WithSpin, and the value without it: more than two wakes of a thread on another
// core.
const (
	defaultSpin = 50 * time.Microsecond
	maxSpin     = 10 * time.Millisecond
)

// WithSpin sets how long a call that waits keeps looking (giving the core to
// others that want it) before it sleeps, over rings. Being woken up takes tens of
// microseconds, looking costs processor time. Default 50 µs; 0 sleeps at once, as
// every call does with one processor alone; at most 10 ms.
func WithSpin(d time.Duration) BindOption {
	return func(c *bindConfig) { c.spin = min(max(d, 0), maxSpin) }
}
