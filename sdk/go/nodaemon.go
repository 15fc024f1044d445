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
	"google.golang.org/grpc/metadata"
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

// plainly gives the error of a call that gRPC made up, as the daemon did not answer, words about the daemon
// rather than about gRPC's transport. Of a daemon of another machine gRPC knows more than is found here.
func plainly(target string, err error) error {
	// The daemon refuses with that code as well, and with details.
	s, ok := status.FromError(err)
	if _, local := ringsPath(target); !ok || s.Code() != codes.Unavailable || len(s.Details()) != 0 || !local {
		return err
	}
	if why := whyNoDaemon(target); why != "" {
		return status.Errorf(codes.Unavailable, "no daemon at %s: %s", target, why)
	}
	return status.Errorf(codes.Unavailable, "the daemon at %s does not answer, or has ended the connection before it did", target)
}

// sayWhyNoDaemon gives the calls of the other services that reason, too.
func sayWhyNoDaemon(target string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return plainly(target, call(ctx, method, req, reply, conn, opts...))
	}
}

// sayWhyNoStream is sayWhyNoDaemon for what is watched. The streams of sockets have words of their own (session.go).
func sayWhyNoStream(target string) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, conn, method, opts...)
		if desc.ClientStreams {
			return s, err
		}
		if err != nil {
			return nil, plainly(target, err)
		}
		return plainStream{s, target}, nil
	}
}

// plainStream is a stream whose errors are in the words of plainly.
type plainStream struct {
	grpc.ClientStream
	target string
}

func (s plainStream) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	return md, plainly(s.target, err)
}

func (s plainStream) RecvMsg(m any) error { return plainly(s.target, s.ClientStream.RecvMsg(m)) }
