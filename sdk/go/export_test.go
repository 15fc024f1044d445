//go:build linux && (amd64 || arm64 || loong64 || mips64le || ppc64le || riscv64)

package rdsd

import "testing"

// What the tests of package rdsd_test use of those of this package.
var (
	OpenHere     = openHere
	WantOpenHere = wantOpenHere
	Eventually   = eventually
	LocalAddr    = localAddr
	PeerAddr     = peerAddr
	StuckAddr    = stuckAddr
)

// Patience is how long these tests wait for what must come.
const Patience = patience

// RingDaemon is the small daemon of rings_test.go.
type RingDaemon struct{ d *ringDaemon }

func NewRingDaemon(t *testing.T) RingDaemon { return RingDaemon{newRingDaemon(t)} }

func (d RingDaemon) Dial() *Client { return d.d.dial() }
func (d RingDaemon) Start()        { d.d.start() }
func (d RingDaemon) Stop()         { d.d.stop() }
