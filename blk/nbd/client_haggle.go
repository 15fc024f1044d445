package nbd

import (
	"encoding/binary"
	"io"
	"math"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// repErrBlockSize and repErrTLS are answers other servers have.
const (
	repErrTLS       = 1<<31 + 5
	repErrBlockSize = 1<<31 + 8
)

// negotiate is the client's side up to the transmission phase.
func (c *Client) negotiate(name string) error {
	if len(name) > maxString {
		return rdserr.With(rdserr.ErrInvalid, "the name of the export has %d bytes; at most %d", len(name), maxString)
	}
	be := binary.BigEndian
	var hello [18]byte
	if _, err := io.ReadFull(c.nc, hello[:]); err != nil {
		return ended(err)
	}
	flags := be.Uint16(hello[16:])
	if be.Uint64(hello[:]) != magicInit || be.Uint64(hello[8:]) != magicOption || flags&flagFixedNewstyle == 0 {
		return rdserr.With(rdserr.ErrProtocol, "this is no NBD server with fixed newstyle negotiation (it says % x)", hello)
	}
	if _, err := c.nc.Write(be.AppendUint32(nil, uint32(flags&(flagFixedNewstyle|flagNoZeroes)))); err != nil {
		return ended(err)
	}
	// Before the meta context, which the specification allows only after structured replies
	// were agreed on.
	structured, err := c.option(optStructuredReply, nil, nil)
	if err != nil {
		return err
	}
	if structured == repAck {
		query := append(append(u32(len(name)), name...), u32(1)...)
		query = append(append(query, u32(len(allocationName))...), allocationName...)
		// The answer to GO reports any error of the name.
		if _, err := c.option(optSetMetaContext, query, func(kind uint32, data []byte) error {
			if kind == repMetaContext && len(data) > 4 && string(data[4:]) == allocationName {
				c.allocation, c.context = true, be.Uint32(data)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	// The limits of a server that says nothing about block sizes.
	c.info = blk.Info{LogicalBlock: 1, PhysicalBlock: 4096, MaxBytes: maxPayload}
	said := false
	data := append(append(u32(len(name)), name...), append(u16(1), u16(infoBlockSize)...)...)
	final, err := c.option(optGo, data, func(kind uint32, data []byte) error {
		if kind != repInfo || len(data) < 2 {
			return nil
		}
		switch t := be.Uint16(data); {
		case t == infoExport && len(data) == 12:
			said = true
			return c.described(be.Uint64(data[2:]), be.Uint16(data[10:]))
		case t == infoBlockSize && len(data) == 14:
			return c.blockSizes(be.Uint32(data[2:]), be.Uint32(data[6:]), be.Uint32(data[10:]))
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case final == repErrUnknown:
		return rdserr.With(rdserr.ErrNotFound, "the NBD server has no export %q", name)
	case final == repErrPolicy, final == repErrTLS:
		return rdserr.With(rdserr.ErrPerm, "the NBD server does not let this client use export %q", name)
	case final == repErrShutdown:
		return rdserr.With(rdserr.ErrShutdown, "the NBD server is shutting down")
	case final == repErrBlockSize:
		return rdserr.With(rdserr.ErrNotSupported, "export %q has a block size this client cannot use", name)
	case final != repAck:
		return rdserr.With(rdserr.ErrNotSupported, "the NBD server refused export %q (%#x)", name, final)
	case !said:
		return rdserr.With(rdserr.ErrProtocol, "the NBD server did not describe export %q", name)
	}
	return nil
}

// option sends one option, hands every reply but the last to each and returns
// the kind of the last.
func (c *Client) option(opt uint32, data []byte, each func(kind uint32, data []byte) error) (uint32, error) {
	be := binary.BigEndian
	b := be.AppendUint64(nil, magicOption)
	b = be.AppendUint32(b, opt)
	b = be.AppendUint32(b, uint32(len(data)))
	if _, err := c.nc.Write(append(b, data...)); err != nil {
		return 0, ended(err)
	}
	// A server that never ends its replies must not keep the client here.
	for range maxOptions {
		var head [20]byte
		if _, err := io.ReadFull(c.nc, head[:]); err != nil {
			return 0, ended(err)
		}
		kind, n := be.Uint32(head[12:]), be.Uint32(head[16:])
		if be.Uint64(head[:]) != magicOptReply || be.Uint32(head[8:]) != opt || n > maxOptionData {
			return 0, rdserr.With(rdserr.ErrProtocol, "the reply to option %d begins with % x", opt, head)
		}
		text := make([]byte, n)
		if _, err := io.ReadFull(c.nc, text); err != nil {
			return 0, ended(err)
		}
		// The highest bit marks an error, and an error ends an option as an ACK does.
		if kind == repAck || kind&(1<<31) != 0 {
			return kind, nil
		}
		if each != nil {
			if err := each(kind, text); err != nil {
				return 0, err
			}
		}
	}
	return 0, rdserr.With(rdserr.ErrProtocol, "more than %d replies to option %d", maxOptions, opt)
}

func (c *Client) described(size uint64, flags uint16) error {
	if size > math.MaxInt64 {
		return rdserr.With(rdserr.ErrProtocol, "an export of %d bytes", size)
	}
	i, has := &c.info, func(f uint16) bool { return flags&f != 0 }
	i.Size = size
	i.ReadOnly, i.Rotational, i.MultiConn = has(FlagReadOnly), has(FlagRotational), has(FlagCanMultiConn)
	i.FUA, i.WriteCache, i.FastZero = has(FlagSendFUA), has(FlagSendFlush), has(FlagSendFastZero)
	if has(FlagSendTrim) {
		i.MaxDiscard = math.MaxUint32
	}
	if has(FlagSendWriteZeroes) {
		i.MaxWriteZeroes = math.MaxUint32
	}
	c.zeroes = has(FlagSendWriteZeroes)
	return nil
}

func (c *Client) blockSizes(least, preferred, most uint32) error {
	if least == 0 || least&(least-1) != 0 || preferred < least || most < least {
		return rdserr.With(rdserr.ErrProtocol, "block sizes %d, %d, %d", least, preferred, most)
	}
	c.info.LogicalBlock, c.info.PhysicalBlock = least, preferred
	c.info.MaxBytes = min(most, maxPayload) &^ (least - 1)
	if c.info.MaxBytes == 0 {
		return rdserr.With(rdserr.ErrProtocol, "blocks of %d bytes", least)
	}
	return nil
}
