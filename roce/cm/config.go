package cm

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"time"
)

// Config is what a Manager is made with. Zero means the default, where there is one.
type Config struct {
	Local netip.Addr // the device's address; it has no default
	GUID  uint64     // the device's, by which kernels know it; the default is made of the address
	MTU   int        // the largest that the path to a peer may have; 4096

	MaxConns    int // connections, those in time-wait included; 65,536
	MaxAsked    int // of these, those that peers asked for and that are not established; 1,024
	MaxAskedOne int // of these, those of one source, an IPv4 address or an IPv6 network of 64 bits; 128

	// Strangers is how many messages may be sent at once to whoever has not shown that he is there, and
	// how many more in 1.92 s: 96, of which those of 3 s fit a socket of 208 KiB.
	Strangers int

	Answer   time.Duration // how long the application has to accept or reject; 60 s
	Repeat   time.Duration // a message is first repeated after this, then after twice as long, up to what kernels wait; 200 ms
	TimeWait time.Duration // how long an ended connection's numbers are not used again; 4.3 s
}

// codeTime is the time that a code means: 4.096 µs × 2^code.
func codeTime(code uint8) time.Duration { return 4096 * time.Nanosecond << code }

// Times that this side announces and waits, as the kernel's rdma_cm does
// (drivers/infiniband/core/cma.c, CMA_CM_RESPONSE_TIMEOUT, CMA_IBOE_PACKET_LIFETIME,
// CMA_MAX_CM_RETRIES, CMA_CM_MRA_SETTING).
const (
	responseCode = 20 // of a peer's answer: 4.3 s
	lifeCode     = 18 // of a packet on its way: 1.1 s
	serviceCode  = 24 // of an answer that takes longer (MRA): 69 s
	maxRetries   = 15 // a message is sent so often again

	// ackDelayCode is of the time within which the device acknowledges, for the peer to know: 4.3 s,
	// and not a card's 134 ms, because a process may be without a processor for so long. A
	// kernel that dials sends again after 8.6 s then, and not after 2.1 s (cm_ack_timeout in
	// drivers/infiniband/core/cm.c): rxe of Linux 6.1 may stop for good when it goes back (ADR 40).
	ackDelayCode = 20

	response = 4096 * time.Nanosecond << responseCode
	life     = 4096 * time.Nanosecond << lifeCode
	// A REQ waits for two packets and an answer: 6.4 s. A REP and a DREQ wait for an answer.
	reqTimeout = 2*life + response
	service    = 4096 * time.Nanosecond << serviceCode
)

// Limits of how long a state lasts when the peer is silent, or only says that it takes longer.
const (
	reqPatience  = (maxRetries + 1) * reqTimeout // 103 s
	respPatience = (maxRetries + 1) * response   // 69 s
	// MaxDial is the longest time from Dial to Connected or Refused, or from Accept.
	MaxDial = 5 * time.Minute
)

// mtuMax is the largest MTU of a path.
const mtuMax = 4096

// withDefaults returns c as it is used, or fails with ErrConfig.
func (c Config) withDefaults() (Config, error) {
	if !c.Local.IsValid() || c.Local.IsUnspecified() || c.Local.IsMulticast() {
		return c, fmt.Errorf("%w: address %v, want one of this host", ErrConfig, c.Local)
	}
	c.Local = c.Local.Unmap()
	c.MTU = cmp.Or(c.MTU, mtuMax)
	if mtuCode(c.MTU) == 0 {
		return c, fmt.Errorf("%w: MTU %d, want 256, 512, 1024, 2048 or 4096", ErrConfig, c.MTU)
	}
	c.GUID = cmp.Or(c.GUID, guidOf(c.Local))
	c.MaxConns = cmp.Or(c.MaxConns, 1<<16)
	c.MaxAsked = cmp.Or(c.MaxAsked, 1<<10)
	c.MaxAskedOne = cmp.Or(c.MaxAskedOne, 128)
	c.Strangers = cmp.Or(c.Strangers, strangerBurst)
	c.Answer = cmp.Or(c.Answer, time.Minute)
	c.Repeat = cmp.Or(c.Repeat, 200*time.Millisecond)
	c.TimeWait = cmp.Or(c.TimeWait, response)
	if c.MaxConns < 1 || c.MaxAsked < 1 || c.MaxAskedOne < 1 || c.Strangers < 1 {
		return c, fmt.Errorf("%w: limits of %d, %d and %d connections and %d messages, want 1 or more", ErrConfig, c.MaxConns, c.MaxAsked, c.MaxAskedOne, c.Strangers)
	}
	if c.Answer < 0 || c.Repeat < time.Millisecond || c.Repeat > response || c.TimeWait < 0 {
		return c, fmt.Errorf("%w: times %v, %v and %v; Repeat is 1 ms to %v", ErrConfig, c.Answer, c.Repeat, c.TimeWait, response)
	}
	return c, nil
}

// guidOf makes a GUID of an address, marked as locally administered. It is the same after a
// restart: kernels tell by it that a queue pair's number is one they knew before.
func guidOf(a netip.Addr) uint64 {
	h := fnv.New64a()
	b := a.As16()
	h.Write(b[:])
	return h.Sum64()&^(3<<56) | 2<<56
}

// sourceOf is whose share of MaxAsked a peer's requests are. Whoever has one address of an
// IPv6 network usually has all of them.
func sourceOf(peer netip.Addr) netip.Addr {
	if !peer.Is6() {
		return peer
	}
	b := peer.As16()
	binary.BigEndian.PutUint64(b[8:], 0)
	return netip.AddrFrom16(b)
}
