package rdsd

import "time"

// Defaults of the receive window.
const (
	defaultWindowDatagrams = 4096
	defaultWindowBytes     = 4 << 20
)

// BindOption is a choice for one socket.
type BindOption func(*bindConfig)

type bindConfig struct {
	sendBuffer      int
	recvBuffer      int
	label           string
	windowDatagrams int
	windowBytes     int
	outcomes        bool
	reconnect       bool
	mask            uint64
	spin            time.Duration
	frontEnd        FrontEnd
	replies         bool // a reply port: datagrams that no request waits for are dropped
}

// WithSendBuffer sets SndBuf: how many bytes may be accepted and not yet
// acknowledged before Send waits and TrySend says EAGAIN. The daemon may grant
// less; 0 is its default.
func WithSendBuffer(bytes int) BindOption { return func(c *bindConfig) { c.sendBuffer = bytes } }

// WithRecvBuffer sets RcvBuf, the soft limit in bytes over which the daemon
// marks the port congested. 0 is its default.
func WithRecvBuffer(bytes int) BindOption { return func(c *bindConfig) { c.recvBuffer = bytes } }

// WithLabel gives the socket a name that administrators see, at most 64 bytes.
func WithLabel(label string) BindOption { return func(c *bindConfig) { c.label = label } }

// WithRecvWindow bounds what the daemon may push ahead of Recv into this process: datagrams
// and bytes (the last datagram may pass the bytes). Datagrams beyond that wait in the
// daemon and count against RcvBuf. Default 4096 datagrams, 4 MiB; values below 1 mean the
// default.
func WithRecvWindow(datagrams, bytes int) BindOption {
	return func(c *bindConfig) {
		c.windowDatagrams, c.windowBytes = defaultWindowDatagrams, defaultWindowBytes
		if datagrams > 0 {
			c.windowDatagrams = min(datagrams, 1<<30)
		}
		if bytes > 0 {
			c.windowBytes = bytes
		}
	}
}

// WithOutcomes asks for one Outcome for each accepted datagram. The
// application must then read Outcomes: when 65536 runs of unread ones have
// gathered, sends wait (TrySend: EAGAIN) until it does.
func WithOutcomes() BindOption { return func(c *bindConfig) { c.outcomes = true } }

// WithReconnect says whether the socket binds itself again, to the same port, after the
// daemon went away. Default true. Without it every call returns rdserr.ErrShutdown from
// then on, once Recv has handed out the datagrams that had arrived.
func WithReconnect(on bool) BindOption { return func(c *bindConfig) { c.reconnect = on } }

// WithCongestionMask makes WatchCongestion also report updates that free a port p with bit
// (p mod 64) set, of any destination. Default 0: only destinations this socket has sent to.
func WithCongestionMask(mask uint64) BindOption { return func(c *bindConfig) { c.mask = mask } }

func newBindConfig(opts []BindOption) bindConfig {
	c := bindConfig{
		windowDatagrams: defaultWindowDatagrams,
		windowBytes:     defaultWindowBytes,
		reconnect:       true,
		spin:            defaultSpin,
	}
	for _, o := range opts {
		o(&c)
	}
	return c
}
