package nbd

import (
	"strings"
	"unicode/utf8"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
)

// Export is a device under a name.
type Export struct {
	Name        string     // "" is the default export
	Description string     // for people; may be empty
	Device      blk.Device // stays the caller's
	ReadOnly    bool
}

// maxName bounds the length of export names and descriptions, in bytes.
const maxName = 255

// export is the server's record of an Export.
type export struct {
	Export
	dev      blk.Device // with the views that make it fit: any length, perhaps read-only
	mapper   blk.Mapper
	prefetch blk.Prefetcher
}

func newExport(e Export) (*export, error) {
	for what, s := range map[string]string{"name": e.Name, "description": e.Description} {
		if len(s) > maxName || !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 {
			return nil, rdserr.With(rdserr.ErrInvalid, "%s of export %.40q: want at most %d bytes of UTF-8 without NUL", what, s, maxName)
		}
	}
	if e.Device == nil {
		return nil, rdserr.With(rdserr.ErrInvalid, "export %q has no device", e.Name)
	}
	if err := e.Device.Info().Validate(); err != nil {
		return nil, err
	}
	x := &export{Export: e, dev: e.Device}
	x.mapper, _ = blk.As[blk.Mapper](e.Device)
	x.prefetch, _ = blk.As[blk.Prefetcher](e.Device)
	if e.ReadOnly {
		x.dev = blk.ReadOnly(x.dev)
	}
	less := func(n, than uint64) bool { return n > 0 && n < than }
	if i := x.dev.Info(); i.MaxBytes < blk.MaxIO || less(i.MaxDiscard, blk.MaxSize) || less(i.MaxWriteZeroes, blk.MaxSize) {
		x.dev = blk.Split(x.dev)
	}
	return x, nil
}

// transmissionFlags returns the flags for a device's abilities. Trim is offered to writers
// only if the device discards; multi-conn only if the device says that a flush covers all
// its users.
func transmissionFlags(i *blk.Info, structured bool) uint16 {
	flags := uint16(FlagHasFlags | FlagSendFlush | FlagSendCache)
	for _, f := range []struct {
		set  bool
		flag uint16
	}{
		{i.ReadOnly, FlagReadOnly},
		{i.FUA, FlagSendFUA},
		{i.Rotational, FlagRotational},
		{i.MaxDiscard > 0 && !i.ReadOnly, FlagSendTrim},
		{i.MaxWriteZeroes > 0 && !i.ReadOnly, FlagSendWriteZeroes},
		{i.MaxWriteZeroes > 0 && i.FastZero && !i.ReadOnly, FlagSendFastZero},
		{structured, FlagSendDF},
		{i.MultiConn, FlagCanMultiConn},
	} {
		if f.set {
			flags |= f.flag
		}
	}
	return flags
}

// KernelFlags are the transmission flags for the kernel's driver, which speaks
// simple replies only.
func KernelFlags(i *blk.Info) uint64 {
	return uint64(transmissionFlags(i, false) &^ (FlagSendCache | FlagSendFastZero))
}
