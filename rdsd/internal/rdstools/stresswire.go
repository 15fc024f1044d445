package rdstools

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// The bytes rds-stress puts on its control connection and into its datagrams,
// as version 2.0.7 has them. Integers are big-endian and packed.
const (
	optionsBytes = 59 // the option block
	versionBytes = 16 // precedes the block when TOS or async is used
	headerBytes  = 63 // at the head of every datagram
	checkedBytes = 19 // of the header are compared with what is expected
)

// options is what the active side tells the passive one.
type options struct {
	depth, reqSize, ackSize uint32
	rdmaSize                uint32
	sendAddr, recvAddr      netip.Addr // IPv4
	port, tasks             uint16
	runTime                 uint32 // seconds; 0: no end

	summaryOnly, rtprio, tracing, verify    uint8
	showParams, showPerfdata, congMonitor   uint8
	useOnce, useGetMR, useFence, cacheMRs   uint8
	keyOMeter, suppressWarnings             uint8
	oneWay, rwMode                          uint8
	rdmaVector, rdmaAlignment, connectRetry uint32

	// tos and async travel only in the long form.
	tos, async uint8
}

// long reports whether the block needs the version before and two bytes after it.
func (o *options) long() bool { return o.tos != 0 || o.async != 0 }

// append adds the block as it goes over the wire.
func (o *options) append(b []byte) []byte {
	if o.long() {
		v := bytes.Repeat([]byte{0xff}, versionBytes)
		v[copy(v, Version)] = 0
		b = append(b, v...)
	}
	be := binary.BigEndian
	for _, v := range []uint32{o.depth, o.reqSize, o.ackSize, o.rdmaSize, addr32(o.sendAddr), addr32(o.recvAddr)} {
		b = be.AppendUint32(b, v)
	}
	b = be.AppendUint16(b, o.port)
	b = be.AppendUint16(b, o.tasks)
	b = be.AppendUint32(b, o.runTime)
	for _, p := range o.flags() {
		b = append(b, *p)
	}
	for _, v := range []uint32{o.rdmaVector, o.rdmaAlignment, o.connectRetry} {
		b = be.AppendUint32(b, v)
	}
	if o.long() {
		b = append(b, o.tos, o.async)
	}
	return b
}

// flags are the 15 single bytes, in the order of the wire.
func (o *options) flags() [15]*uint8 {
	return [...]*uint8{
		&o.summaryOnly, &o.rtprio, &o.tracing, &o.verify, &o.showParams, &o.showPerfdata, &o.congMonitor,
		&o.useOnce, &o.useGetMR, &o.useFence, &o.cacheMRs, &o.keyOMeter, &o.suppressWarnings, &o.oneWay, &o.rwMode,
	}
}

// parse reads exactly optionsBytes.
func (o *options) parse(b []byte) {
	be := binary.BigEndian
	o.depth, o.reqSize, o.ackSize, o.rdmaSize = be.Uint32(b), be.Uint32(b[4:]), be.Uint32(b[8:]), be.Uint32(b[12:])
	o.sendAddr, o.recvAddr = netip.AddrFrom4([4]byte(b[16:])), netip.AddrFrom4([4]byte(b[20:]))
	o.port, o.tasks, o.runTime = be.Uint16(b[24:]), be.Uint16(b[26:]), be.Uint32(b[28:])
	for i, p := range o.flags() {
		*p = b[32+i]
	}
	o.rdmaVector, o.rdmaAlignment, o.connectRetry = be.Uint32(b[47:]), be.Uint32(b[51:]), be.Uint32(b[55:])
}

// readOptions reads the block of the active side in either form.
func readOptions(r io.Reader) (*options, error) {
	o := new(options)
	b := make([]byte, optionsBytes)
	if _, err := io.ReadFull(r, b[:versionBytes]); err != nil {
		return nil, fmt.Errorf("failed to read the options of the other side: %w", err)
	}
	rest, long := b[versionBytes:], isVersion(b[:versionBytes])
	if long {
		rest = b
	}
	if _, err := io.ReadFull(r, rest); err != nil {
		return nil, fmt.Errorf("failed to read the options of the other side: %w", err)
	}
	o.parse(b)
	if long {
		var tail [2]byte
		if _, err := io.ReadFull(r, tail[:]); err != nil {
			return nil, fmt.Errorf("failed to read the options of the other side: %w", err)
		}
		o.tos, o.async = tail[0], tail[1]
	}
	return o, o.validate()
}

// isVersion tells the version text from the head of a bare block, whose first
// field, the depth, would have to be over 800 million to look like it.
func isVersion(b []byte) bool {
	text, _, ok := bytes.Cut(b, []byte{0})
	return ok && string(text) == Version
}

// maxDatagram is the limit of RDS.
const maxDatagram = 1 << 20

// validate refuses what would make no sense, or memory without bound, before
// anything is allocated by it.
func (o *options) validate() error {
	switch {
	case o.rdmaSize != 0:
		return errors.New("RDMA (-D) is not possible: this node speaks RDS over TCP")
	case o.ackSize < headerBytes || o.ackSize > maxDatagram:
		return fmt.Errorf("ack size must be %d to %d bytes, not %d", headerBytes, maxDatagram, o.ackSize)
	case o.reqSize < headerBytes || o.reqSize > maxDatagram:
		return fmt.Errorf("req size must be %d to %d bytes, not %d", headerBytes, maxDatagram, o.reqSize)
	case o.depth < 1 || o.depth > 65535:
		return fmt.Errorf("depth must be 1 to 65535, not %d", o.depth)
	case o.tasks < 1 || int(o.port)+int(o.tasks) > 65535:
		return fmt.Errorf("%d tasks from port %d on do not fit below port 65536", o.tasks, o.port)
	case uint64(o.tasks)*uint64(o.tasks)*uint64(o.depth) > 1<<24:
		return fmt.Errorf("%d tasks with depth %d are %d messages in flight; at most %d", o.tasks, o.depth, uint64(o.tasks)*uint64(o.tasks)*uint64(o.depth), 1<<24)
	}
	return nil
}

// socketBytes is what the old tool asks for as socket buffers.
func (o *options) socketBytes() int {
	return int(min(2*uint64(o.tasks)*uint64(o.depth)*(uint64(o.reqSize)+uint64(o.ackSize)), 1<<31-1))
}

const (
	opRequest = 1
	opAck     = 2
)

// header is at the head of every datagram. The RDMA fields are always zero
// here; they are carried so that the length and the echo are right.
type header struct {
	seq      uint32
	from, to netip.AddrPort
	index    uint16
	op       uint8
	retry    uint8 // async senders: this repeats an earlier seq
}

// retryOffset is where the retry byte stands: after 19 checked bytes, the
// RDMA op (1), four u64 and two u32.
const retryOffset = checkedBytes + 1 + 4*8 + 2*4

// put writes the header into the first headerBytes of b.
func (h *header) put(b []byte) {
	clear(b[:headerBytes])
	be := binary.BigEndian
	be.PutUint32(b, h.seq)
	be.PutUint32(b[4:], addr32(h.from.Addr()))
	be.PutUint32(b[8:], addr32(h.to.Addr()))
	be.PutUint16(b[12:], h.from.Port())
	be.PutUint16(b[14:], h.to.Port())
	be.PutUint16(b[16:], h.index)
	b[18] = h.op
	b[retryOffset] = h.retry
}

func parseHeader(b []byte) header {
	be := binary.BigEndian
	return header{
		seq:   be.Uint32(b),
		from:  netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:])), be.Uint16(b[12:])),
		to:    netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[8:])), be.Uint16(b[14:])),
		index: be.Uint16(b[16:]),
		op:    b[18],
		retry: b[retryOffset],
	}
}

// pattern is what follows the header with --verify: a sequence that runs
// through all byte values and shifts by one in each block of 256, so that
// swapped blocks show.
func pattern(n int) []byte {
	b := make([]byte, n)
	k := byte(11)
	for i := range b {
		b[i] = k
		k = 41*(k+3) + byte((i+1)>>8)
	}
	return b
}

func addr32(a netip.Addr) uint32 {
	if !a.Is4() {
		return 0
	}
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}
