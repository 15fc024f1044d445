package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/rdsd/rdsd/rdserr"
)

const (
	// maxOptionData is the longest data of an option that is read; longer ones
	// are skipped and refused.
	maxOptionData = 32 << 10
	// maxSkip is the longest that is skipped; beyond it the client is cut off.
	maxSkip = 1 << 20
	// maxOptions is how many options a client may send.
	maxOptions = 1024
)

// catalog holds the exports a client can ask for. A Server is one.
type catalog interface {
	lookup(name string) (*export, error)
	list() []*export
}

// agreed is the outcome of a negotiation.
type agreed struct {
	x          *export // nil: the client aborted
	structured bool
	allocation bool // base:allocation, for this export
	driver     bool // it was not agreed: the client is the kernel's driver
}

// haggling is a negotiation under way.
type haggling struct {
	rw       io.ReadWriter
	cat      catalog
	noZeroes bool
	agreed
	metaName string // the export base:allocation was selected for
	metaSet  bool
	out      []byte // replies to one option, sent together
	data     []byte
}

// haggle negotiates as a server, up to the last byte before the transmission
// phase. An orderly abort is no error.
func haggle(rw io.ReadWriter, cat catalog) (*agreed, error) {
	h := &haggling{rw: rw, cat: cat}
	if err := h.exchangeGreeting(); err != nil {
		return nil, err
	}
	for range maxOptions {
		done, err := h.option()
		if err != nil {
			return nil, err
		}
		if done {
			return &h.agreed, nil
		}
	}
	return nil, rdserr.With(rdserr.ErrTooMany, "more than %d options", maxOptions)
}

// exchangeGreeting exchanges the fixed beginning.
func (h *haggling) exchangeGreeting() error {
	be := binary.BigEndian
	b := be.AppendUint64(nil, magicInit)
	b = be.AppendUint64(b, magicOption)
	b = be.AppendUint16(b, flagFixedNewstyle|flagNoZeroes)
	if _, err := h.rw.Write(b); err != nil {
		return err
	}
	var flags [4]byte
	if _, err := io.ReadFull(h.rw, flags[:]); err != nil {
		return err
	}
	f := be.Uint32(flags[:])
	if f&^uint32(flagFixedNewstyle|flagNoZeroes) != 0 {
		return rdserr.With(rdserr.ErrProtocol, "client flags %#x; only %#x are known", f, flagFixedNewstyle|flagNoZeroes)
	}
	h.noZeroes = f&flagNoZeroes != 0
	return nil
}

// option reads one option and answers it. done: the negotiation is over.
func (h *haggling) option() (done bool, err error) {
	be := binary.BigEndian
	var head [16]byte
	if _, err := io.ReadFull(h.rw, head[:]); err != nil {
		return false, err
	}
	if m := be.Uint64(head[:]); m != magicOption {
		return false, rdserr.With(rdserr.ErrProtocol, "an option begins with %#x, not %#x", m, uint64(magicOption))
	}
	opt, n := be.Uint32(head[8:]), be.Uint32(head[12:])
	h.out = h.out[:0]
	// The stream has to stay in step: the data of an option that is too long is read and
	// thrown away, unless even that is too much.
	if n > maxOptionData {
		if n > maxSkip || opt == optExportName {
			return false, rdserr.With(rdserr.ErrProtocol, "option %d with %d bytes; at most %d", opt, n, maxOptionData)
		}
		if _, err := io.CopyN(io.Discard, h.rw, int64(n)); err != nil {
			return false, err
		}
		h.fail(opt, repErrTooBig, "an option has at most %d bytes of data", maxOptionData)
		return false, h.send()
	}
	if cap(h.data) < int(n) {
		h.data = make([]byte, n)
	}
	h.data = h.data[:n]
	if _, err := io.ReadFull(h.rw, h.data); err != nil {
		return false, err
	}

	switch opt {
	case optExportName:
		return true, h.exportName(string(h.data))
	case optAbort:
		h.reply(opt, repAck)
		h.x = nil
		// The specification asks for an answer, and allows the client to be gone by then.
		h.send() // the client need not wait for it
		return true, nil
	case optList:
		h.listExports()
	case optInfo, optGo:
		done = h.info(opt)
	case optStructuredReply:
		h.structuredReply()
	case optListMetaContext, optSetMetaContext:
		h.metaContext(opt)
	case optStartTLS:
		h.fail(opt, repErrUnsup, "this server has no TLS; it is reached by a Unix socket")
	default:
		h.fail(opt, repErrUnsup, "option %d is not known here", opt)
	}
	if err := h.send(); err != nil {
		return false, err
	}
	return done, nil
}

func (h *haggling) send() error {
	_, err := h.rw.Write(h.out)
	return err
}

// reply appends a reply whose data is the given pieces.
func (h *haggling) reply(opt, kind uint32, data ...[]byte) {
	n := 0
	for _, d := range data {
		n += len(d)
	}
	be := binary.BigEndian
	h.out = be.AppendUint64(h.out, magicOptReply)
	h.out = be.AppendUint32(h.out, opt)
	h.out = be.AppendUint32(h.out, kind)
	h.out = be.AppendUint32(h.out, uint32(n))
	for _, d := range data {
		h.out = append(h.out, d...)
	}
}

func (h *haggling) fail(opt, kind uint32, format string, args ...any) {
	h.reply(opt, kind, fmt.Appendf(nil, format, args...))
}

// exportName is the old way to choose an export. Its only refusal is to hang up.
func (h *haggling) exportName(name string) error {
	x, err := h.cat.lookup(name)
	if err != nil {
		return err
	}
	h.enter(x)
	i := x.dev.Info()
	be := binary.BigEndian
	b := be.AppendUint64(nil, i.Size)
	b = be.AppendUint16(b, transmissionFlags(i, h.structured))
	if !h.noZeroes {
		b = append(b, make([]byte, 124)...)
	}
	_, err = h.rw.Write(b)
	return err
}

// enter records the terms of the transmission phase.
func (h *haggling) enter(x *export) {
	h.x = x
	h.allocation = h.structured && h.metaSet && h.metaName == x.Name
}

func (h *haggling) listExports() {
	if len(h.data) != 0 {
		h.fail(optList, repErrInvalid, "NBD_OPT_LIST has no data")
		return
	}
	for _, x := range h.cat.list() {
		h.reply(optList, repServer, u32(len(x.Name)), []byte(x.Name), []byte(x.Description))
	}
	h.reply(optList, repAck)
}

// info answers NBD_OPT_INFO and NBD_OPT_GO; true when the transmission phase begins.
func (h *haggling) info(opt uint32) bool {
	p := parser{b: h.data}
	name := p.str()
	wanted := uint32(1 << infoExport) // a bit for each type that was asked for
	for range p.u16() {
		if t := p.u16(); t <= infoBlockSize {
			wanted |= 1 << t
		}
		if p.bad {
			break
		}
	}
	// Bytes too many or too few: nothing of it is believed.
	if !p.atEnd() {
		h.fail(opt, repErrInvalid, "malformed: want a name, a number and so many information types")
		return false
	}
	x, ok := h.find(opt, name)
	if !ok {
		return false
	}
	i := x.dev.Info()
	// NBD_INFO_EXPORT is sent always, the others only if they were asked for.
	h.reply(opt, repInfo, u16(infoExport), u64(i.Size), u16(int(transmissionFlags(i, h.structured))))
	if wanted&(1<<infoName) != 0 {
		h.reply(opt, repInfo, u16(infoName), []byte(x.Name))
	}
	if wanted&(1<<infoDescription) != 0 && x.Description != "" {
		h.reply(opt, repInfo, u16(infoDescription), []byte(x.Description))
	}
	if wanted&(1<<infoBlockSize) != 0 {
		preferred := max(i.PhysicalBlock, 4096)
		h.reply(opt, repInfo, u16(infoBlockSize), u32(int(i.LogicalBlock)), u32(int(preferred)), u32(maxPayload))
	}
	// The ACK comes last: to GO it ends the negotiation, and the next byte is a request.
	h.reply(opt, repAck)
	if opt == optGo {
		h.enter(x)
	}
	return opt == optGo
}

// find looks an export up and answers for one that is not there.
func (h *haggling) find(opt uint32, name string) (*export, bool) {
	x, err := h.cat.lookup(name)
	switch {
	case errors.Is(err, rdserr.ErrShutdown):
		h.fail(opt, repErrShutdown, "the server is shutting down")
	case err != nil:
		h.fail(opt, repErrUnknown, "there is no export of this name")
	}
	return x, err == nil
}

func (h *haggling) structuredReply() {
	if len(h.data) != 0 {
		h.fail(optStructuredReply, repErrInvalid, "NBD_OPT_STRUCTURED_REPLY has no data")
		return
	}
	h.structured = true
	h.reply(optStructuredReply, repAck)
}

// metaContext answers NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT.
// There is one context. Queries of other namespaces select nothing.
func (h *haggling) metaContext(opt uint32) {
	set := opt == optSetMetaContext
	// The choice is for one export by name: GO to another one forgets it.
	if set {
		h.metaSet = false // in any case
	}
	if !h.structured {
		h.fail(opt, repErrInvalid, "structured replies come first")
		return
	}
	p := parser{b: h.data}
	name := p.str()
	queries := p.u32()
	// A list without queries asks for all contexts; a set without queries selects none.
	match := queries == 0 && !set
	for range queries {
		q := p.str()
		if p.bad {
			break
		}
		// A namespace alone lists its contexts, and selects nothing.
		match = match || q == allocationName || q == "base:" && !set
	}
	if !p.atEnd() {
		h.fail(opt, repErrInvalid, "malformed: want a name, a number and so many queries")
		return
	}
	x, ok := h.find(opt, name)
	if !ok {
		return
	}
	if match {
		id := 0 // reserved in a list
		if set {
			id = allocationID
			h.metaSet, h.metaName = true, x.Name
		}
		h.reply(opt, repMetaContext, u32(id), []byte(allocationName))
	}
	h.reply(opt, repAck)
}

// parser takes option data apart; once something does not fit, bad stays set.
type parser struct {
	b   []byte
	bad bool
}

func (p *parser) atEnd() bool { return !p.bad && len(p.b) == 0 }

func (p *parser) take(n int) []byte {
	if p.bad || n > len(p.b) {
		p.bad = true
		return make([]byte, min(n, 8))
	}
	t := p.b[:n]
	p.b = p.b[n:]
	return t
}

func (p *parser) u16() uint16 { return binary.BigEndian.Uint16(p.take(2)) }
func (p *parser) u32() uint32 { return binary.BigEndian.Uint32(p.take(4)) }

// str takes a length and a string of at most maxString bytes.
func (p *parser) str() string {
	n := p.u32()
	if n > maxString {
		p.bad = true
	}
	if p.bad {
		return ""
	}
	return string(p.take(int(n)))
}

func u16(v int) []byte    { return binary.BigEndian.AppendUint16(nil, uint16(v)) }
func u32(v int) []byte    { return binary.BigEndian.AppendUint32(nil, uint32(v)) }
func u64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }
