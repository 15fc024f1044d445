package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// DefaultSocket is where a daemon listens for clients unless told otherwise.
const DefaultSocket = "/run/rdsd/rdsd.sock"

// Reason says what stands between a command and the daemon.
type Reason int

const (
	Unreachable Reason = iota // nobody listens there
	Denied                    // this user may not use the socket
	BadTarget                 // what was given names no socket
)

// Error is why a daemon could not be reached, with what would be right.
type Error struct {
	Reason Reason
	Text   string
	Err    error // the cause; may be nil
}

func (e *Error) Error() string { return e.Text }
func (e *Error) Unwrap() error { return e.Err }

// Target returns flag, else RDSD_SOCKET, else DefaultSocket.
func Target(flag string) string {
	if flag != "" {
		return flag
	}
	if s := os.Getenv("RDSD_SOCKET"); s != "" {
		return s
	}
	return DefaultSocket
}

// Dial opens a client of the daemon at target. The SDK dials lazily, so a
// daemon that is not there is looked for first and named in the error.
func Dial(ctx context.Context, target string) (*rdsd.Client, error) {
	if err := knock(ctx, target); err != nil {
		return nil, err
	}
	c, err := rdsd.Dial(target)
	if err != nil {
		return nil, &Error{BadTarget, fmt.Sprintf("cannot use %q as the daemon's socket: %v; give a path or a target such as unix:///run/rdsd/rdsd.sock", target, err), err}
	}
	return c, nil
}

// Socket is the Unix socket that target names, a path or "@name"; "" when it names none,
// as one of another machine does not.
func Socket(target string) string {
	if network, addr := split(target); network == "unix" {
		return addr
	}
	return ""
}

// knock checks that somebody listens at target.
func knock(ctx context.Context, target string) error {
	network, addr := split(target)
	if network == "" {
		return nil // gRPC resolves it itself
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err == nil {
		return c.Close()
	}
	return because(network, addr, err)
}

// split finds what to dial for a target; network "" when only gRPC knows.
func split(target string) (network, addr string) {
	if rest, ok := strings.CutPrefix(target, "unix:"); ok {
		if abs, ok := strings.CutPrefix(rest, "//"); ok {
			if path, err := url.PathUnescape(abs); err == nil { // as gRPC reads it
				abs = path
			}
			return "unix", abs
		}
		return "unix", rest
	}
	if name, ok := strings.CutPrefix(target, "unix-abstract:"); ok {
		return "unix", "@" + name
	}
	if strings.HasPrefix(target, "/") || strings.HasPrefix(target, ".") || !strings.Contains(target, ":") {
		return "unix", target
	}
	if _, _, err := net.SplitHostPort(target); err == nil {
		return "tcp", target
	}
	return "", ""
}

func because(network, addr string, err error) error {
	start := "start one with: rdsd serve --socket " + addr
	if network != "unix" {
		return &Error{Unreachable, fmt.Sprintf("cannot reach the daemon at %s: %v", addr, err), err}
	}
	switch {
	case errors.Is(err, syscall.ENOENT) && ringsAnswer(addr):
		return &Error{Unreachable, fmt.Sprintf("the socket %s was removed while its daemon runs, which goes on with whom it has and refuses a second one beside it; start it again to have the socket: systemctl restart rdsd", addr), err}
	case errors.Is(err, syscall.ENOENT):
		return &Error{Unreachable, fmt.Sprintf("no daemon at %s: there is no such socket; %s (or name another with --socket or RDSD_SOCKET)", addr, start), err}
	case errors.Is(err, syscall.ECONNREFUSED) && notSocket(addr):
		return &Error{BadTarget, fmt.Sprintf("%s is not a socket; --socket and RDSD_SOCKET name the socket of a running daemon", addr), err}
	case errors.Is(err, syscall.ECONNREFUSED):
		return &Error{Unreachable, fmt.Sprintf("no daemon at %s: the socket is there but nobody listens, so the daemon stopped; %s", addr, start), err}
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return &Error{Denied, fmt.Sprintf("uid %d may not use the daemon's socket %s: it is for its owner and group (mode 0660); join that group or use root", os.Getuid(), addr), err}
	}
	return &Error{Unreachable, fmt.Sprintf("cannot reach the daemon at %s: %v", addr, err), err}
}

// ringsAnswer reports whether a daemon listens at the socket for rings beside that of the API.
func ringsAnswer(addr string) bool {
	c, err := net.DialTimeout("unixpacket", addr+".rings", time.Second)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

func notSocket(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode()&os.ModeSocket == 0
}

// Cause is err without the SDK's prefix (operation and addresses), for a
// sentence that has said those already. errors.Is goes on working.
func Cause(err error) error {
	e, ok := errors.AsType[*rdsd.OpError](err)
	switch {
	case !ok:
		return err
	case e.Undecided:
		return fmt.Errorf("%w (it may have been accepted)", e.Err)
	}
	return e.Err
}
