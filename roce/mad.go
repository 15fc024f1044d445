package roce

import (
	"fmt"
	"net/netip"
)

// Management datagrams are those of connection managers, which queue pair 1 is for: a SEND of
// a datagram (UD) with a key that everybody knows.
const (
	MADLen = 256 // of every management datagram

	madQP  = 1
	madKey = 0x80010000
)

// mad is a management datagram that waits.
type mad struct {
	to   netip.AddrPort
	data [MADLen]byte
}

// SendMAD sends a management datagram of 256 bytes to queue pair 1 at to. mad is copied. It
// fails with ErrWork if mad is of another length or to of another family than d's address, and
// with ErrFull if too many wait for Fill.
func (d *Device) SendMAD(to netip.AddrPort, data []byte) error {
	addr := plain(to.Addr())
	switch {
	case len(data) != MADLen:
		return fmt.Errorf("%w: a management datagram of %d bytes, want %d", ErrWork, len(data), MADLen)
	case !addr.IsValid() || addr.Is4() != d.cfg.Local.Is4():
		return fmt.Errorf("%w: a management datagram from %v to %v: %w", ErrWork, d.cfg.Local, to, ErrFamily)
	case d.mads.n == len(d.mads.slots):
		return ErrFull
	}
	m := mad{to: netip.AddrPortFrom(to.Addr().Unmap(), to.Port())}
	copy(m.data[:], data)
	d.mads.push(m)
	return nil
}

// fillMAD makes b the next management datagram, if there is one. They come before all else:
// there are few, and what they answer is waited for.
func (d *Device) fillMAD(b *Burst) bool {
	if d.mads.n == 0 {
		return false
	}
	d.mad = d.mads.pop()
	d.begin(b, d.mad.to)
	b.add(&d.out, &Packet{
		Op: DatagramSendOnly, Migrated: migrated, PKey: DefaultPKey, Dest: madQP, Source: madQP, QKey: madKey,
	}, [3][]byte{d.mad.data[:]})
	d.stats.SentPkts++
	return true
}

// receiveMAD takes d.packet, which is for queue pair 1 and stands in pkt.
func (d *Device) receiveMAD(from netip.AddrPort, pkt []byte) {
	p := &d.packet
	switch {
	case p.Op != DatagramSendOnly || p.QKey != madKey || p.Source != madQP || len(p.Payload) != MADLen:
		d.drop(DropMAD)
	case !samePartition(p.PKey):
		d.drop(DropPartition)
	case !d.intact(from, pkt):
		d.drop(DropICRC)
	default:
		d.stats.RcvdPkts++
		d.env.MAD(from, p.Payload)
	}
	p.Payload = nil
}
