package rdsd

import (
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"

	"github.com/rdsd/rdsd/internal/msgpool"
	"github.com/rdsd/rdsd/rdserr"
)

// DefaultTarget is where Dial looks for the daemon when neither its argument
// nor $RDSD_SOCKET says otherwise.
const DefaultTarget = "unix:///run/rdsd/rdsd.sock"

// maxRecvMsgBytes bounds one message of the daemon: a batch of datagrams with
// room for the largest (1 MiB) several times over.
const maxRecvMsgBytes = 16 << 20

// streamWindow and connWindow are what the daemon may send ahead of who reads a stream, or all
// streams. They bound nothing that matters: a stream is read as soon as something comes, and how
// much comes is what the socket's receive window grants.
const (
	streamWindow = 4 << 20
	connWindow   = 16 << 20
)

// Client is a connection to one daemon. It carries any number of sockets and is
// safe for concurrent use.
type Client struct {
	target   string
	frontEnd FrontEnd
	conn     *grpc.ClientConn

	mu      sync.Mutex
	closed  bool                 // guarded by mu
	sockets map[*Socket]struct{} // guarded by mu; open ones
}

// Option changes how Dial connects.
type Option func(*clientConfig)

type clientConfig struct {
	dial     []grpc.DialOption
	frontEnd FrontEnd
	chosen   bool // by WithFrontEnd
}

// WithDialOptions adds options of grpc-go: other credentials, a dialer,
// interceptors for the admin calls. They come after the SDK's own and win: with other
// credentials it is for whoever brings them to notice that a daemon on another machine is gone.
func WithDialOptions(opts ...grpc.DialOption) Option {
	return func(c *clientConfig) { c.dial = append(c.dial, opts...) }
}

// Dial names the daemon to talk to and does no I/O: an absent daemon shows at
// the first Bind. The target is a path of a Unix socket, or any target of
// grpc-go ("unix:///run/rdsd/rdsd.sock", "dns:///node7:16387"). Empty means
// $RDSD_SOCKET, or DefaultTarget without it. $RDSD_FRONT_END ("auto", "grpc",
// "rings") stands in for WithFrontEnd.
func Dial(target string, opts ...Option) (*Client, error) {
	target = resolveTarget(target)
	cfg := clientConfig{dial: []grpc.DialOption{
		grpc.WithTransportCredentials(listening{insecure.NewCredentials()}),
		grpc.WithDisableRetry(),
		grpc.WithChainUnaryInterceptor(sayWhyNoDaemon(target)),
		grpc.WithChainStreamInterceptor(sayWhyNoStream(target)),
		experimental.WithBufferPool(msgpool.Pool),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxRecvMsgBytes)),
		// With windows of its own choice grpc-go sends a ping for every message that comes when
		// none is under way, to learn how much the way holds: two more wake-ups on either side.
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		// The sockets' own backoff decides when to try again (reconnect.go); this
		// one keeps the channel's from being slower than theirs.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: backoffMin, Multiplier: 2, Jitter: 0.5, MaxDelay: backoffMax},
			MinConnectTimeout: connectTime(target),
		}),
	}}
	for _, o := range opts {
		o(&cfg)
	}
	fail := func(err error) (*Client, error) {
		return nil, opError("dial", netip.AddrPort{}, netip.AddrPort{}, err)
	}
	// The environment stands in for an option that was not given; an option wins.
	if !cfg.chosen {
		if err := cfg.frontEnd.set(os.Getenv("RDSD_FRONT_END")); err != nil {
			return fail(err)
		}
	}
	if _, ok := ringsPath(target); cfg.frontEnd == Rings && !ok {
		return fail(rdserr.With(rdserr.ErrInvalid, "rings need the path of a Unix socket on this node, not %q", target))
	}
	conn, err := grpc.NewClient(target, cfg.dial...)
	if err != nil {
		return fail(rdserr.With(rdserr.ErrInvalid, "target %q: %v", target, err))
	}
	return &Client{target: target, frontEnd: cfg.frontEnd, conn: conn, sockets: make(map[*Socket]struct{})}, nil
}

// connectTime is how long one attempt to connect may take. A daemon of this machine that stands still has
// so long for the first word that what ends a call before is its context; one that dies ends the attempt at once.
// Another machine may be gone without a word.
func connectTime(target string) time.Duration {
	if _, local := ringsPath(target); local {
		return silentTime
	}
	return 5 * time.Second
}

func resolveTarget(target string) string {
	if target == "" {
		target = os.Getenv("RDSD_SOCKET")
	}
	switch {
	case target == "":
		return DefaultTarget
	case strings.HasPrefix(target, "/"):
		return unixURL(target)
	case strings.HasPrefix(target, "@"):
		return "unix-abstract:" + target[1:]
	case strings.HasPrefix(target, "./"), strings.HasPrefix(target, "../"), !strings.Contains(target, ":"):
		if abs, err := filepath.Abs(target); err == nil && strings.ContainsAny(target, "%?#") {
			return unixURL(abs) // gRPC decodes no relative path
		}
		return "unix:" + target
	}
	return target
}

// unixURL is the target of an absolute path. gRPC reads it as a URL, in which "#", "?" and
// "%" mean something else.
func unixURL(path string) string { return "unix://" + (&url.URL{Path: path}).EscapedPath() }

// Target returns the daemon's address, as given to grpc-go.
func (c *Client) Target() string { return c.target }

// Close closes every socket of the client and the connection. A Bind under way fails with
// rdserr.ErrClosed. Closing twice is no error.
func (c *Client) Close() error {
	// Dial has set conn, and nobody else can.
	if c == nil || c.conn == nil {
		return opError("close", netip.AddrPort{}, netip.AddrPort{}, errNoClient)
	}
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	open := make([]*Socket, 0, len(c.sockets))
	for s := range c.sockets {
		open = append(open, s)
	}
	c.mu.Unlock()
	var wg sync.WaitGroup
	for _, s := range open {
		wg.Go(func() { s.Close() })
	}
	wg.Wait() // also for those that another Close has begun to close
	if !first {
		return nil
	}
	if err := c.conn.Close(); err != nil {
		return fmt.Errorf("rdsd: close: %w", err)
	}
	return nil
}

func (c *Client) add(s *Socket) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errClientClosed
	}
	c.sockets[s] = struct{}{}
	return nil
}

// remove forgets s, and reports whether the client is closed.
func (c *Client) remove(s *Socket) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sockets, s)
	return c.closed
}
