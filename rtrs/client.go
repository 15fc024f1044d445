package rtrs

import (
	"math/rand"
	"net/netip"
	"time"
)

// Client is one session as a client.
type Client struct {
	cfg ClientConfig
	env ClientEnv
	rnd *rand.Rand
}

// ClientPath is one path of a client. Its exported fields do not change.
type ClientPath struct {
	Local, Remote netip.AddrPort // Local may be without an address or port: the system chooses
	Ctx           any            // the shell's
}

// PathInfo describes a path.
type PathInfo struct {
	Local, Remote netip.AddrPort
	State         State
	Since         time.Duration // when it came to be in that state
	Attempts      int           // to connect, that failed in a row
	Err           error         // why it was lost or could not be made, the last time
	Stats         PathStats
}

// NewClient returns a session without a path.
func NewClient(cfg ClientConfig, env ClientEnv, rnd *rand.Rand, now time.Duration) (*Client, error) {
	return nil, nil
}

// AddPath adds a path and begins to connect it.
func (c *Client) AddPath(now time.Duration, local, remote netip.AddrPort) (*ClientPath, error) {
	return nil, nil
}

// Remove ends p for good; its requests go on on other paths.
func (c *Client) Remove(now time.Duration, p *ClientPath) error { return nil }

// Disconnect ends p until Reconnect.
func (c *Client) Disconnect(now time.Duration, p *ClientPath) error { return nil }

// Reconnect connects p anew: at once if it waits for its next attempt or was
// disconnected; a connected one is given up first.
func (c *Client) Reconnect(now time.Duration, p *ClientPath) error { return nil }

// SetPolicy changes how requests choose a path.
func (c *Client) SetPolicy(p Policy) {}

// Paths are the paths in the order they were added. The slice is the Client's.
func (c *Client) Paths() []*ClientPath { return nil }

// Name is the session's name; UUID the number that is shown to the server.
func (c *Client) Name() string   { return c.cfg.Name }
func (c *Client) UUID() [16]byte { return [16]byte{} }

// MaxIO is the most bytes of data in a request, 0 before the first Up. It can
// change when the session comes Up again.
func (c *Client) MaxIO() int { return 0 }

// Depth is how many requests are in flight at most, 0 before the first Up.
func (c *Client) Depth() int { return 0 }

// Stats are the numbers of the session.
func (c *Client) Stats() ClientStats { return ClientStats{} }

// Submit takes r; nil: Done follows, at the latest when the limits of the
// configuration say so. What cannot be sent now, because no permit is free or
// no path is connected, waits in order. An error, ErrClosed or ErrTooLarge:
// r was not taken.
func (c *Client) Submit(now time.Duration, r *Req) error { return nil }

// Resume lets requests without Admin run, after Up.
func (c *Client) Resume(now time.Duration) {}

// Each calls f for every request that is not done, those submitted first at
// first. Between Up and Resume none without Admin is being sent, so what they
// have in Usr may be changed, and they may be given to Cancel from within f.
func (c *Client) Each(f func(r *Req)) {}

// Cancel ends r with err; false: it is being sent, and is not cancelled.
func (c *Client) Cancel(now time.Duration, r *Req, err error) bool { return false }

// Close ends the session: every path is hung up, every request done with
// ErrClosed as soon as its memory is not used any more, then ClientEnv.Closed.
func (c *Client) Close(now time.Duration) {}

// Tick does what is due. The returned time is when to call it next, unless
// another call makes something due earlier: Next says, at any time.
func (c *Client) Tick(now time.Duration) (next time.Duration) { return Never }

// Next is when Tick is to be called.
func (c *Client) Next() time.Duration { return Never }

// Info describes p.
func (p *ClientPath) Info() PathInfo { return PathInfo{} }

// ResetStats sets the statistics to zero.
func (p *ClientPath) ResetStats() {}

// Dialed: connection conn is made, and the server answered with rsp.
func (p *ClientPath) Dialed(now time.Duration, conn int, rsp []byte) {}

// Refused: connection conn could not be made. rsp is what the server said, nil
// if it did not.
func (p *ClientPath) Refused(now time.Duration, conn int, rsp []byte, err error) {}

// Lost: connection conn ended by itself.
func (p *ClientPath) Lost(now time.Duration, conn int, err error) {}

// Gone: what ClientEnv.Hang asked for has happened.
func (p *ClientPath) Gone(now time.Duration) {}

// Written, Received and Invalidated are what the handler of the link of
// connection conn was told. An error: the peer broke the protocol, the path is
// being hung up.
func (p *ClientPath) Written(now time.Duration, conn int, key uint32, addr uint64, n int, imm uint32) error {
	return nil
}
func (p *ClientPath) Received(now time.Duration, conn int, data []byte, imm uint32, hasImm bool) error {
	return nil
}
func (p *ClientPath) Invalidated(now time.Duration, conn int, key uint32) error { return nil }
