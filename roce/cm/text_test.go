package cm

import (
	"bytes"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/roce"
)

// kinds are the messages by their names.
var kinds = func() map[string]attr {
	m := map[string]attr{}
	for a, name := range attrNames {
		m[name] = a
	}
	return m
}()

// textOf is a message in the notation of scripts: what differs from one to the next. The
// private data is text without the zeros behind it.
func textOf(mad []byte) string {
	a, tid, body, ok := open(mad)
	if !ok {
		return fmt.Sprintf("no message: %x", mad)
	}
	be := func(s string, b []byte) string {
		if b = bytes.TrimRight(b, "\x00"); len(b) == 0 {
			return ""
		}
		for _, x := range b {
			if x < ' ' || x > '~' {
				return fmt.Sprintf(" %s=0x%x", s, b)
			}
		}
		return fmt.Sprintf(" %s=%s", s, b)
	}
	switch a {
	case attrREQ:
		var p req
		if !p.parse(body) {
			return "a REQ without a header"
		}
		port, _ := servicePort(p.service)
		return fmt.Sprintf("REQ local=%#x tid=%#x from=%v to=%v qpn=%d psn=%#x mtu=%d%s", p.local, tid,
			netip.AddrPortFrom(p.header.src, p.header.port), netip.AddrPortFrom(p.header.dst, port), p.qpn, uint32(p.recvPSN), mtuBytes(p.mtu), be("private", p.private))
	case attrREP:
		var p rep
		p.parse(body)
		return fmt.Sprintf("REP local=%#x remote=%#x tid=%#x qpn=%d psn=%#x%s", p.local, p.remote, tid, p.qpn, uint32(p.recvPSN), be("private", p.private))
	case attrREJ:
		var p rej
		p.parse(body)
		return fmt.Sprintf("REJ local=%#x remote=%#x tid=%#x about=%s reason=%d%s%s", p.local, p.remote, tid, abouts[p.about], p.reason, be("info", p.info), be("private", p.private))
	case attrMRA:
		var p mra
		p.parse(body)
		return fmt.Sprintf("MRA local=%#x remote=%#x tid=%#x about=%s service=%d", p.local, p.remote, tid, abouts[p.about], p.service)
	case attrDREQ:
		var p dreq
		p.parse(body)
		return fmt.Sprintf("DREQ local=%#x remote=%#x tid=%#x qpn=%d", p.local, p.remote, tid, p.qpn)
	}
	local, remote := ids(body)
	return fmt.Sprintf("%v local=%#x remote=%#x tid=%#x", a, local, remote, tid)
}

var abouts = []string{"REQ", "REP", "none", "3"}

// fields are words of the form k=v.
type fields map[string]string

func fieldsOf(t testing.TB, words []string) fields {
	f := fields{}
	for _, w := range words {
		k, v, ok := strings.Cut(w, "=")
		if !ok {
			t.Fatalf("%q is not k=v", w)
		}
		f[k] = v
	}
	return f
}

// num is a number, or the default.
func (f fields) num(t testing.TB, k string, def uint64) uint64 {
	s, ok := f[k]
	if !ok {
		return def
	}
	n, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		t.Fatalf("%s: %v", k, err)
	}
	return n
}

func (f fields) param(t testing.TB) Param {
	return Param{
		QPN: uint32(f.num(t, "qpn", 17)), RecvPSN: roce.PSN(f.num(t, "psn", 0x100)), MTU: int(f.num(t, "mtu", 1024)),
		Retry: 7, RNRRetry: 7, Ack: 19, Private: []byte(f["private"]),
	}
}

// message is one in the notation of scripts, from the address.
func (f fields) message(t testing.TB, kind string, from, to netip.Addr) []byte {
	var mad [MADLen]byte
	n32 := func(k string, def uint64) uint32 { return uint32(f.num(t, k, def)) }
	local, remote, tid := n32("local", 0), n32("remote", 0), f.num(t, "tid", 1)
	about := uint8(0)
	for i, s := range abouts {
		if f["about"] == s {
			about = uint8(i)
		}
	}
	switch kinds[kind] {
	case attrREQ:
		port := uint16(n32("port", 4000))
		(&req{
			local: local, service: f.num(t, "service", serviceID(1234)), guid: f.num(t, "guid", 0), qpn: n32("qpn", 17), recvPSN: roce.PSN(n32("psn", 0x200)),
			transport: uint8(n32("transport", 0)), localTimeout: uint8(n32("timeout", 20)), remoteTimeout: 20, maxRetries: 15,
			retry: 7, rnrRetry: 7, ackTimeout: 19, pkey: 0xffff, mtu: uint8(n32("mtucode", 3)),
			localGID: from, remoteGID: to, header: ipHeader{port: port, src: f.addr("src", from), dst: f.addr("dst", to)},
			private: []byte(f["private"]),
		}).put(&mad, tid)
	case attrREP:
		(&rep{local: local, remote: remote, guid: f.num(t, "guid", 0), qpn: n32("qpn", 17), recvPSN: roce.PSN(n32("psn", 0x200)), rnrRetry: 7, private: []byte(f["private"])}).put(&mad, tid)
	case attrREJ:
		(&rej{local: local, remote: remote, about: about, reason: Reason(n32("reason", 28)), private: []byte(f["private"])}).put(&mad, tid)
	case attrMRA:
		(&mra{local: local, remote: remote, about: about, service: uint8(n32("service", 24))}).put(&mad, tid)
	case attrRTU:
		(&rtu{local, remote}).put(&mad, tid)
	case attrDREQ:
		(&dreq{local, remote, n32("qpn", 17)}).put(&mad, tid)
	case attrDREP:
		(&drep{local, remote}).put(&mad, tid)
	default:
		t.Fatalf("no message is called %q", kind)
	}
	return mad[:]
}

func (f fields) addr(k string, def netip.Addr) netip.Addr {
	if s, ok := f[k]; ok {
		return netip.MustParseAddr(s)
	}
	return def
}
