package rnbd

import (
	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// limits are the most bytes of one message, as the server takes them.
type limits struct {
	block, data, discard, zeroes uint64
}

// most returns how many bytes of an operation go into one message: as much as the server
// takes, and for data, as much as the session carries.
func (v *Volume) most(op blk.Op) uint64 {
	l := &v.limits
	switch op {
	case blk.OpFlush:
		return 0
	case blk.OpDiscard:
		return l.discard
	case blk.OpWriteZeroes:
		return l.zeroes
	}
	return max(min(l.data, uint64(v.c.rt.MaxIO()))&^(l.block-1), l.block)
}

// describe takes the limits from the server's answer about the volume, and Info the first
// time. It returns an error if the volume cannot be used with them.
func (v *Volume) describe(rsp *rnbdwire.OpenRsp) error {
	if rsp.LogicalBlock == 0 {
		return rdserr.With(rdserr.ErrProtocol, "volume %q: the server says that its blocks have 0 bytes", v.name)
	}
	if rsp.Sectors > blk.MaxSize/rnbdwire.SectorSize {
		return rdserr.With(rdserr.ErrProtocol, "volume %q: the server says that it has %d sectors; at most %d are possible", v.name, rsp.Sectors, uint64(blk.MaxSize/rnbdwire.SectorSize))
	}
	info := infoOf(rsp, v.access)
	if err := info.Validate(); err != nil {
		return rdserr.With(rdserr.ErrProtocol, "volume %q: what the server says of it is not possible: %v", v.name, err)
	}
	// Limits in whole blocks, for pieces are cut by them.
	block := uint64(info.LogicalBlock)
	bytes := func(sectors uint32) uint64 {
		return uint64(min(sectors, maxSectors)) * rnbdwire.SectorSize &^ (block - 1)
	}
	l := limits{block, bytes(rsp.MaxHWSectors), bytes(rsp.MaxDiscard), bytes(rsp.MaxWriteZeroes)}
	// The server sets no limit: the session's own applies (most).
	if rsp.MaxHWSectors == 0 {
		l.data = uint64(info.MaxBytes)
	}
	if carried := uint64(v.c.rt.MaxIO()); min(l.data, carried) < block {
		return rdserr.With(rdserr.ErrProtocol, "volume %q: blocks of %d bytes, but messages of at most %d", v.name, block, min(l.data, carried))
	}
	v.limits = l
	if v.info == nil {
		v.info = info
	}
	return nil
}

// infoOf returns the server's answer about a volume as a blk.Info. Requests are cut to
// pieces, so they may be as long as those of any device.
func infoOf(rsp *rnbdwire.OpenRsp, access rnbdwire.Access) *blk.Info {
	block := uint32(rsp.LogicalBlock)
	whole := func(sectors uint32) uint64 {
		if uint64(sectors)*rnbdwire.SectorSize < uint64(block) {
			return 0 // not a block at once: not offered
		}
		return blk.MaxSize
	}
	i := &blk.Info{
		Size:           rsp.Sectors * rnbdwire.SectorSize &^ uint64(block-1),
		LogicalBlock:   block,
		PhysicalBlock:  max(block, uint32(rsp.PhysicalBlock)),
		MaxBytes:       blk.MaxIO,
		MaxSegments:    rsp.MaxSegments,
		MaxDiscard:     whole(rsp.MaxDiscard),
		MaxWriteZeroes: whole(rsp.MaxWriteZeroes),
		Rotational:     rsp.Rotational != 0,
		ReadOnly:       access == rnbdwire.ReadOnly,
		WriteCache:     rsp.Cache&rnbdwire.CacheWriteBack != 0,
		// Without a cache to write back every completed write is durable.
		FUA: rsp.Cache&(rnbdwire.CacheFUA|rnbdwire.CacheWriteBack) != rnbdwire.CacheWriteBack,
		// All users of the volume on this side share one session, and those of the
		// server's device one device.
		MultiConn: true,
	}
	if i.MaxDiscard > 0 {
		i.DiscardGranularity, i.DiscardAlignment = rsp.DiscardGranularity, rsp.DiscardAlignment
	}
	return i
}
