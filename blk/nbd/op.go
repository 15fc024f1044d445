package nbd

import (
	"encoding/binary"
	"strings"

	"github.com/rdsd/rdsd/blk"
)

// op is one command of a client, from its header to the last byte of its reply.
// A connection makes them as they are needed and uses them again.
type op struct {
	req    blk.Request // Ctx is the op, Queue the connection
	cmd    uint16
	flags  uint16
	cookie uint64

	rb    *recvBuf // the receive buffer that holds the payload of a write, if one does
	buf   []byte   // a buffer of its own, of getBuf: payload, or data of the reply
	data  []byte   // the reply's data
	err   error    // the outcome
	next  *op      // of the list it is in
	bytes int      // bytes of the connection's memory that it was given
}

// opList is a queue of ops.
type opList struct{ head, tail *op }

func (l *opList) push(o *op) {
	o.next = nil
	if l.tail == nil {
		l.head = o
	} else {
		l.tail.next = o
	}
	l.tail = o
}

func (l *opList) pop() *op {
	o := l.head
	if o != nil {
		if l.head = o.next; l.head == nil {
			l.tail = nil
		}
		o.next = nil
	}
	return o
}

// append moves all of m to the end of l.
func (l *opList) append(m *opList) {
	if m.head == nil {
		return
	}
	if l.tail == nil {
		l.head = m.head
	} else {
		l.tail.next = m.head
	}
	l.tail = m.tail
	*m = opList{}
}

// maxMessage bounds the text of an error reply, in bytes.
const maxMessage = 200

// maxHeader is the largest header of a reply, message included.
const maxHeader = structuredSize + 6 + maxMessage

// header appends the header of the reply, and the message of an error. With
// structured replies agreed on, a read and every error has one; other successes
// stay simple, which is shorter.
func (o *op) header(b []byte, structured bool) []byte {
	be := binary.BigEndian
	value := errorValue(o.err, o.cmd)
	// A simple reply is allowed for everything but a read, once structured ones were agreed
	// on.
	if !structured || value == 0 && o.data == nil {
		b = be.AppendUint32(b, magicSimple)
		b = be.AppendUint32(b, value)
		return be.AppendUint64(b, o.cookie)
	}
	b = be.AppendUint32(b, magicStructured)
	// Every reply is one chunk: the data is complete when the device is done.
	b = be.AppendUint16(b, replyFlagDone)
	kind, length, text := uint16(replyOffsetData), len(o.data), ""
	switch {
	case value != 0:
		text = o.err.Error()
		// Cut to the specification's limit, and not inside of a character.
		text = strings.ToValidUTF8(text[:min(len(text), maxMessage)], "")
		kind, length = replyError, 6+len(text)
	case o.cmd == cmdBlockStatus:
		kind = replyBlockStatus
	default:
		length += 8
	}
	b = be.AppendUint16(b, kind)
	b = be.AppendUint64(b, o.cookie)
	b = be.AppendUint32(b, uint32(length))
	switch kind {
	case replyError:
		b = be.AppendUint32(b, value)
		b = be.AppendUint16(b, uint16(len(text)))
		b = append(b, text...)
	case replyOffsetData:
		b = be.AppendUint64(b, o.req.Off)
	}
	return b
}
