package client

import (
	"math/bits"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/api/rdsd/v1/fastwire"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/rdserr"
)

// What a message becomes when it is read is not as long as the message. An empty Endpoint in a
// list takes two bytes and becomes 128, a number one byte and becomes four. So what brings no
// datagrams has to be short, and the lists of a batch are counted before they are read, charged
// to the client's user while there are any, and not kept for the next batch if they are long.

const (
	// maxPlainBytes bounds messages that bring no datagrams: what a socket asks for beside
	// sending, and the requests of all other calls.
	maxPlainBytes = 64 << 10
	// maxForeignBytes bounds the requests of services that gRPC brings along, health and reflection: a name
	// or two. They have no lists, but stand as long as their client likes.
	maxForeignBytes = 1 << 10
	// freeBytes is what a message may have without its lists being looked at.
	freeBytes = 4 << 10
	// maxListed bounds the entries of a list that is read at all. With more than a batch may
	// have (maxBatchDatagrams) the batch is refused; with more than this its stream ends.
	maxListed = 4 * maxBatchDatagrams
	// numberBytes and endBytes are what an entry takes, whoever reads it.
	numberBytes = 4
	endBytes    = 128
	// keptNumbers and keptEnds are what is kept of the lists for the next batch.
	keptNumbers = 4096
	keptEnds    = 256
)

// plain says why a message with n bytes beside datagrams is not read, nil if it may be.
func plain(n, most int) error {
	if n > most {
		return rdserr.With(rdserr.ErrTooLarge, "a message of %d bytes, datagrams of a bound socket aside; it has at most %d", n, most)
	}
	return nil
}

// mostOf bounds the bytes of m, which brings no datagrams.
func mostOf(m any) int {
	if p, ok := m.(proto.Message); ok && p.ProtoReflect().Descriptor().ParentFile().Package() == rdsdv1.File_rdsd_v1_rdsd_proto.Package() {
		return maxPlainBytes
	}
	return maxForeignBytes
}

// messageHead is what gRPC puts before a message.
const messageHead = 5

// RequestBytes is what the first message of a call may become when it is read, of which n bytes have come: a list
// of empty Endpoints, two bytes each. One that is too long is not read.
func RequestBytes(n int64) int64 {
	if n -= messageHead; n <= 0 || n > maxPlainBytes {
		return 0
	}
	return n * endBytes / 2
}

// batchSize is what a ClientMessage has of lists, which it keeps if it is a batch, and of bytes
// beside: it may have several bodies, of which the last one counts.
type batchSize struct {
	beside           int
	id               uint64
	lengths, indices int // entries
	ends             int
}

// measure looks at a ClientMessage that was not read.
func measure(p []byte) (b batchSize, err error) {
	for len(p) > 0 {
		num, kind, tag := protowire.ConsumeTag(p)
		if tag < 0 {
			return b, protowire.ParseError(tag)
		}
		p = p[tag:]
		n := protowire.ConsumeFieldValue(num, kind, p)
		if n < 0 {
			return b, protowire.ParseError(n)
		}
		if num == fastwire.ClientSend>>3 && kind == protowire.BytesType {
			body, _ := protowire.ConsumeBytes(p)
			if err := b.add(body); err != nil {
				return b, err
			}
		} else {
			b.beside += tag + n
		}
		p = p[n:]
	}
	if b.lengths > maxListed || b.indices > maxListed || b.ends > maxListed {
		return b, rdserr.With(rdserr.ErrTooLarge, "send has lists of %d, %d and %d entries; a batch has at most %d datagrams", b.lengths, b.ends, b.indices, maxBatchDatagrams)
	}
	return b, nil
}

// add counts the lists of a SendBatch.
func (b *batchSize) add(p []byte) error {
	for len(p) > 0 {
		num, kind, n := protowire.ConsumeTag(p)
		if n < 0 {
			return protowire.ParseError(n)
		}
		p = p[n:]
		if n = protowire.ConsumeFieldValue(num, kind, p); n < 0 {
			return protowire.ParseError(n)
		}
		switch num {
		case fastwire.SendID >> 3:
			if kind == protowire.VarintType {
				b.id, _ = protowire.ConsumeVarint(p)
			}
		case fastwire.SendLength >> 3:
			b.lengths += numbers(kind, p)
		case fastwire.SendIndex >> 3:
			b.indices += numbers(kind, p)
		case fastwire.SendDestination >> 3:
			b.ends++
		}
		p = p[n:]
	}
	return nil
}

// numbers is how many a field of a list of numbers has: many if they are packed.
func numbers(kind protowire.Type, p []byte) (n int) {
	if kind != protowire.BytesType {
		return 1
	}
	body, _ := protowire.ConsumeBytes(p)
	for _, c := range body {
		if c < 0x80 { // the last byte of a number
			n++
		}
	}
	return n
}

// cost is what the lists take.
func (b *batchSize) cost() int64 {
	return numberBytes*int64(b.lengths+b.indices) + endBytes*int64(b.ends)
}

// messageBytes is what a message of n bytes takes, which is in memory of msgpool; of a short one nobody counts it.
func messageBytes(n int) int64 {
	if n <= freeBytes {
		return 0
	}
	return 1 << bits.Len(uint(n-1))
}

// admit decides whether a ClientMessage is read. One that is a batch whose lists cannot be
// paid for becomes a batch that is refused: then it is read, as far as anybody needs it.
func (in *inMsg) admit(p []byte) (read bool, err error) {
	if len(p) <= freeBytes {
		return false, nil
	}
	if in.account == nil { // without a socket nothing is sent, and nobody pays
		return false, plain(len(p), maxPlainBytes)
	}
	b, err := measure(p)
	if err == nil {
		err = plain(b.beside, maxPlainBytes)
	}
	if err != nil {
		return false, err
	}
	cost := b.cost()
	if err := in.account.Take(quota.Waiting, cost); err != nil {
		in.isBatch = true
		in.batch.reset()
		in.batch.id, in.batch.refused, in.batch.many = b.id, err, b.lengths
		return true, nil
	}
	in.paid = cost
	return false, nil
}

// forget lets go of lists that are too long to be kept, and of what was paid for them.
func (in *inMsg) forget() {
	b := &in.batch
	if cap(b.lengths) > keptNumbers {
		b.lengths = nil
	}
	if cap(b.index) > keptNumbers {
		b.index = nil
	}
	if cap(b.dests) > keptEnds {
		b.dests = nil
	}
	in.account.Give(quota.Waiting, in.paid)
	in.paid = 0
}
