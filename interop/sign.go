package interop

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
)

// Signed datagrams, big-endian: magic u32, flow u32, number u64, length u32,
// CRC-32 u32 of the 20 bytes before it and of the body behind it. The body is
// a slice of one fixed pattern, chosen by flow and number. guest/signed.py is
// the twin of this file.
const (
	signMagic  = 0x52445331
	signHead   = 20
	SignedMin  = signHead + 4
	signPeriod = 65521 // prime: a slip by any power of two is seen
)

var signPattern = func() []byte {
	p := make([]byte, signPeriod*18)
	for i := range p {
		j := i % signPeriod
		p[i] = byte(j*j + 7*j + j>>8)
	}
	return p
}()

// Size tells how long datagram n of a flow is: between Min and Max, and each
// BigEvery-th (when not 0) Big bytes.
type Size struct {
	Min      int `json:"min"`
	Max      int `json:"max"`
	BigEvery int `json:"big_every"`
	Big      int `json:"big"`
}

// Of returns the length of datagram n.
func (s Size) Of(n int) int {
	if s.BigEvery > 0 && n%s.BigEvery == s.BigEvery-1 {
		return s.Big
	}
	return s.Min + int(uint32(n)*2654435761>>7)%(s.Max-s.Min+1)
}

// Sign appends datagram n of the flow, length bytes, to buf.
func Sign(buf []byte, flow uint32, n uint64, length int) []byte {
	at := len(buf)
	buf = binary.BigEndian.AppendUint32(buf, signMagic)
	buf = binary.BigEndian.AppendUint32(buf, flow)
	buf = binary.BigEndian.AppendUint64(buf, n)
	buf = binary.BigEndian.AppendUint32(buf, uint32(length))
	start := int((uint64(flow)*31 + n*17) % signPeriod)
	body := signPattern[start : start+length-SignedMin]
	sum := crc32.Update(crc32.ChecksumIEEE(buf[at:]), crc32.IEEETable, body)
	return append(binary.BigEndian.AppendUint32(buf, sum), body...)
}

// openSigned returns what Sign was given, ok false when a byte is not as it was.
func openSigned(p []byte) (flow uint32, n uint64, ok bool) {
	if len(p) < SignedMin || binary.BigEndian.Uint32(p) != signMagic ||
		int64(binary.BigEndian.Uint32(p[16:])) != int64(len(p)) {
		return 0, 0, false
	}
	sum := crc32.Update(crc32.ChecksumIEEE(p[:signHead]), crc32.IEEETable, p[SignedMin:])
	return binary.BigEndian.Uint32(p[4:]), binary.BigEndian.Uint64(p[8:]),
		sum == binary.BigEndian.Uint32(p[signHead:])
}

// Report is what a receiver saw. Missing counts numbers passed over or not
// come at all, Back those that came again or after a higher one of their flow.
type Report struct {
	Got     int      `json:"got"`
	Missing int      `json:"missing"`
	Back    int      `json:"back"`
	Bad     int      `json:"bad"`
	Strange int      `json:"strange"`
	Empty   int      `json:"empty"` // datagrams of no bytes: nothing to sign
	Timeout bool     `json:"timeout"`
	Seconds float64  `json:"seconds"`
	Notes   []string `json:"notes"`
}

// Err is nil when everything came once, whole and in order.
func (r Report) Err() error {
	if r.Missing == 0 && r.Back == 0 && r.Bad == 0 && r.Strange == 0 {
		return nil
	}
	return fmt.Errorf("got %d, missing %d, doubled or late %d, damaged %d, of unknown flow %d, timed out %v\n%s",
		r.Got, r.Missing, r.Back, r.Bad, r.Strange, r.Timeout, strings.Join(r.Notes, "\n"))
}

// Checker judges the datagrams of one receiver.
type Checker struct {
	flows  map[uint32]*flowState
	left   int
	report Report
}

type flowState struct{ want, next uint64 }

// NewChecker wants flow f to bring numbers 0 to want[f]-1.
func NewChecker(want map[uint32]int) *Checker {
	c := &Checker{flows: map[uint32]*flowState{}}
	for f, n := range want {
		c.flows[f] = &flowState{want: uint64(n)}
		c.left += n
	}
	return c
}

// Add judges one datagram.
func (c *Checker) Add(p []byte) {
	if len(p) == 0 {
		c.report.Empty++
		return
	}
	flow, n, ok := openSigned(p)
	if !ok {
		c.report.Bad++
		c.note("damaged datagram of %d bytes", len(p))
		return
	}
	f := c.flows[flow]
	if f == nil {
		c.report.Strange++
		c.note("unknown flow %d number %d", flow, n)
		return
	}
	c.report.Got++
	if n < f.next {
		c.report.Back++
		c.note("flow %d: %d after %d", flow, n, f.next-1)
		return
	}
	if n > f.next {
		c.report.Missing += int(n - f.next)
		c.note("flow %d: %d to %d missing", flow, f.next, n-1)
	}
	c.left -= int(n + 1 - f.next)
	f.next = n + 1
}

// Left is how many are still to come.
func (c *Checker) Left() int { return c.left }

// Report sums up.
func (c *Checker) Report() Report {
	r := c.report
	r.Missing += max(0, c.left)
	return r
}

func (c *Checker) note(format string, args ...any) {
	if len(c.report.Notes) < 20 {
		c.report.Notes = append(c.report.Notes, fmt.Sprintf(format, args...))
	}
}
