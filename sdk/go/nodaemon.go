package rdsd

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// knockTime bounds how long whyNoDaemon tries a socket of this machine.
const knockTime = time.Second

// whyNoDaemon says what is wrong with a Unix socket where no daemon answers and what
// would be right, in the words of the other SDKs: gRPC tells of its transport. It is ""
// for other targets, and where somebody listens now.
func whyNoDaemon(target string) string {
	rings, ok := ringsPath(target)
	if !ok {
		return ""
	}
	path := strings.TrimSuffix(rings, ".rings")
	c, err := net.DialTimeout("unix", path, knockTime)
	switch {
	case err == nil:
		c.Close()
	case errors.Is(err, syscall.ENOENT):
		return "there is no such socket; start the daemon (rdsd serve), or name its socket by the client's target or $RDSD_SOCKET"
	case errors.Is(err, syscall.ECONNREFUSED) && !isSocket(path):
		return "it is not a socket; name a daemon's by the client's target or $RDSD_SOCKET"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "its daemon has ended; start it again (rdsd serve)"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return "this user may not connect to it; the daemon's api.socket_group says who may"
	}
	return ""
}

func isSocket(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode()&os.ModeSocket != 0
}

// sayWhyNoDaemon gives the calls of the other services that reason, too.
func sayWhyNoDaemon(target string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := call(ctx, method, req, reply, conn, opts...)
		// The daemon refuses with that code as well, and with details.
		if s, ok := status.FromError(err); ok && s.Code() == codes.Unavailable && len(s.Details()) == 0 {
			if why := whyNoDaemon(target); why != "" {
				return status.Errorf(codes.Unavailable, "no daemon at %s: %s", target, why)
			}
		}
		return err
	}
}
