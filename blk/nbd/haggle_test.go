package nbd

import (
	"bytes"
	"context"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/rdsd/rdsd/blk"
)

func TestGreeting(t *testing.T) {
	_, socket := serve(t, Options{}, Export{Device: memory(t, 1<<20)})
	for _, flags := range []uint32{0, 1, 2, 3} {
		c := dialClient(t, socket)
		c.greet(flags)
		c.want("list", optList, nil, repAck)
	}
	for _, flags := range []uint32{4, 1 << 31, 0xffffffff} {
		c := dialClient(t, socket)
		c.greet(flags)
		c.wantEnd("unknown client flags")
	}
	c := dialClient(t, socket)
	c.greet(3)
	c.send(bytes.Repeat([]byte{'x'}, 16))
	c.wantEnd("an option without its magic")
}

func TestOptions(t *testing.T) {
	_, socket := serve(t, Options{}, Export{Name: "a", Description: "first", Device: memory(t, 1<<20)}, Export{Name: "b", Device: memory(t, 1<<20)})
	c := dialClient(t, socket)
	c.greet(3)
	big := make([]byte, maxOptionData+1)
	for _, o := range []struct {
		what string
		opt  uint32
		data []byte
		want uint32
	}{
		{"list with data", optList, []byte("x"), repErrInvalid},
		{"unknown option", 77, []byte("data"), repErrUnsup},
		{"TLS", optStartTLS, nil, repErrUnsup},
		{"extended headers", 11, nil, repErrUnsup},
		{"too long", 77, big, repErrTooBig},
		{"unknown export", optInfo, infoData("c"), repErrUnknown},
		{"go to an unknown export", optGo, infoData("c"), repErrUnknown},
		{"the default export, which is not there", optGo, infoData(""), repErrUnknown},
		{"info without data", optInfo, nil, repErrInvalid},
		{"info cut short", optInfo, infoData("a", 3)[:8], repErrInvalid},
		{"info with a rest", optInfo, append(infoData("a", 3), 0), repErrInvalid},
		{"info with a name longer than its data", optInfo, append(u32(1<<31), 'a'), repErrInvalid},
		{"info with a name over the limit", optInfo, infoData(strings.Repeat("a", maxString+1)), repErrInvalid},
		{"info with 65535 types announced", optInfo, append(infoData("a")[:5], 0xff, 0xff), repErrInvalid},
		{"structured replies with data", optStructuredReply, []byte{0}, repErrInvalid},
		{"contexts before structured replies", optSetMetaContext, metaData("a", allocationName), repErrInvalid},
		{"structured replies", optStructuredReply, nil, repAck},
		{"contexts without data", optSetMetaContext, nil, repErrInvalid},
		{"contexts cut short", optSetMetaContext, metaData("a", allocationName)[:12], repErrInvalid},
		{"4 billion queries", optListMetaContext, append(metaData("a")[:5], 0xff, 0xff, 0xff, 0xff), repErrInvalid},
		{"contexts with a rest", optListMetaContext, append(metaData("a"), 0), repErrInvalid},
		{"contexts of an unknown export", optSetMetaContext, metaData("c", allocationName), repErrUnknown},
		{"still alive", optInfo, infoData("a"), repAck},
		{"abort", optAbort, []byte("ignored"), repAck},
	} {
		c.want(o.what, o.opt, o.data, o.want)
	}
	c.wantEnd("after abort")
}

func TestList(t *testing.T) {
	_, socket := serve(t, Options{}, Export{Name: "b", Device: memory(t, 1<<20)}, Export{Name: "a", Description: "first", Device: memory(t, 1<<20)})
	c := dialClient(t, socket)
	c.greet(3)
	got := c.want("list", optList, nil, repAck)
	if len(got) != 3 || string(got[0].data) != "\x00\x00\x00\x01afirst" || string(got[1].data) != "\x00\x00\x00\x01b" {
		t.Errorf("list: %v", got)
	}
}

// info asks for all information about an export.
func (c *client) info(name string, types ...uint16) map[uint16][]byte {
	c.t.Helper()
	m := map[uint16][]byte{}
	for _, r := range c.want("info", optInfo, infoData(name, types...), repAck) {
		if r.kind == repInfo {
			m[binary.BigEndian.Uint16(r.data)] = r.data[2:]
		}
	}
	return m
}

func TestInfo(t *testing.T) {
	m4k, err := blk.NewMem(blk.MemOptions{Size: 8 << 20, LogicalBlock: 4096, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	_, socket := serve(t, Options{}, Export{Device: memory(t, 1<<20)}, Export{Name: "ro", Description: "frozen", Device: m4k})
	c := dialClient(t, socket)
	c.greet(3)

	if got := c.info(""); len(got) != 1 {
		t.Errorf("unasked information: %v", got)
	}
	be := binary.BigEndian
	got := c.info("", infoName, infoDescription, infoBlockSize, 99, infoBlockSize)
	if len(got) != 3 { // a description that is empty is not sent
		t.Errorf("information: %v", got)
	}
	if size, flags := be.Uint64(got[infoExport]), be.Uint16(got[infoExport][8:]); size != 1<<20 ||
		flags != FlagHasFlags|FlagSendFlush|FlagSendFUA|FlagSendTrim|FlagSendWriteZeroes|FlagSendFastZero|FlagCanMultiConn|FlagSendCache {
		t.Errorf("size %d, flags %#x", size, flags)
	}
	if b := got[infoBlockSize]; be.Uint32(b) != 512 || be.Uint32(b[4:]) != 4096 || be.Uint32(b[8:]) != 32<<20 {
		t.Errorf("block sizes % x", b)
	}

	c.want("structured replies", optStructuredReply, nil, repAck)
	got = c.info("ro", infoName, infoDescription, infoBlockSize)
	if flags := be.Uint16(got[infoExport][8:]); flags != FlagHasFlags|FlagReadOnly|FlagSendFlush|FlagSendFUA|FlagSendDF|FlagCanMultiConn|FlagSendCache {
		t.Errorf("flags of a read-only export %#x", flags)
	}
	if b := got[infoBlockSize]; be.Uint32(b) != 4096 || string(got[infoName]) != "ro" || string(got[infoDescription]) != "frozen" {
		t.Errorf("information: %v", got)
	}
}

func TestMetaContexts(t *testing.T) {
	_, socket := serve(t, Options{}, Export{Name: "a", Device: memory(t, 1<<20)}, Export{Name: "b", Device: memory(t, 1<<20)})
	c := dialClient(t, socket)
	c.greet(3)
	c.want("structured replies", optStructuredReply, nil, repAck)
	for _, q := range []struct {
		opt     uint32
		queries []string
		want    string
	}{
		{optListMetaContext, nil, "\x00\x00\x00\x00base:allocation"},
		{optListMetaContext, []string{"base:"}, "\x00\x00\x00\x00base:allocation"},
		{optListMetaContext, []string{"qemu:", "base:allocation"}, "\x00\x00\x00\x00base:allocation"},
		{optListMetaContext, []string{"qemu:"}, ""},
		{optSetMetaContext, nil, ""},
		{optSetMetaContext, []string{"base:"}, ""},
		{optSetMetaContext, []string{"base:other", "", "x"}, ""},
		{optSetMetaContext, []string{"base:allocation", "base:allocation"}, "\x00\x00\x00\x01base:allocation"},
	} {
		got := c.want("contexts", q.opt, metaData("a", q.queries...), repAck)
		if q.want == "" && len(got) != 1 || q.want != "" && (len(got) != 2 || string(got[0].data) != q.want) {
			t.Errorf("option %d, queries %q: %v", q.opt, q.queries, got)
		}
	}
	// A selection holds for its export only, and a later one that fails ends it.
	status := func(c *client) uint32 { return c.do(cmdBlockStatus, 0, 0, 4096, nil).value }
	c.want("go", optGo, infoData("b"), repAck)
	if v := status(c); v != errInval {
		t.Errorf("block status of an export it was not agreed on for: error %d", v)
	}
	c = dialClient(t, socket)
	c.greet(3)
	c.want("structured replies", optStructuredReply, nil, repAck)
	c.want("contexts", optSetMetaContext, metaData("a", allocationName), repAck)
	c.want("contexts", optSetMetaContext, metaData("nowhere", allocationName), repErrUnknown)
	c.want("go", optGo, infoData("a"), repAck)
	if v := status(c); v != errInval {
		t.Errorf("block status after a selection that failed: error %d", v)
	}
	if v := status(enter(t, socket, "a", true)); v != 0 {
		t.Errorf("block status: error %d", v)
	}
}

func TestExportName(t *testing.T) {
	_, socket := serve(t, Options{}, Export{Name: "a", Device: memory(t, 1<<20)})
	for flags, zeroes := range map[uint32]int{1: 124, 3: 0} {
		c := dialClient(t, socket)
		c.greet(flags)
		c.send(option(optExportName, []byte("a")))
		b := c.recv(10 + zeroes)
		if binary.BigEndian.Uint64(b) != 1<<20 || len(bytes.Trim(b[10:], "\x00")) != 0 {
			t.Errorf("flags %d: % x", flags, b)
		}
		if r := c.do(cmdRead, 0, 0, 512, nil); r.value != 0 || r.structured {
			t.Errorf("flags %d: read: %v", flags, r)
		}
	}
	for _, name := range []string{"", "b", strings.Repeat("a", maxOptionData+1)} {
		c := dialClient(t, socket)
		c.greet(3)
		c.send(option(optExportName, []byte(name)))
		c.wantEnd("an export that is not there")
	}
}

// TestEndless: neither many options nor huge ones keep the server busy.
func TestEndless(t *testing.T) {
	_, socket := serve(t, Options{}, Export{Device: memory(t, 1<<20)})
	c := dialClient(t, socket)
	c.greet(3)
	for i := range maxOptions - 1 {
		if got := c.ask(77, nil); got[0].kind != repErrUnsup {
			t.Fatalf("option %d: %v", i, got)
		}
	}
	c.ask(77, nil)
	c.wantEnd("the last option there may be")

	c = dialClient(t, socket)
	c.greet(3)
	c.send(append(option(77, nil)[:12], 0xff, 0xff, 0xff, 0xff))
	c.wantEnd("an option of 4 GiB")
}

func TestShuttingDown(t *testing.T) {
	s, _ := serve(t, Options{}, Export{Device: memory(t, 1<<20)})
	s.Shutdown(context.Background())
	var in bytes.Buffer
	in.Write([]byte{0, 0, 0, 3})
	in.Write(option(optGo, infoData("")))
	in.Write(option(optAbort, nil))
	var out bytes.Buffer
	g, err := haggle(&pair{&in, &out}, s)
	if err != nil || g.x != nil {
		t.Errorf("%+v, %v", g, err)
	}
	if kind := binary.BigEndian.Uint32(out.Bytes()[18+12:]); kind != repErrShutdown {
		t.Errorf("go is answered with %#x", kind)
	}
}

// pair is a connection made of what comes in and what goes out.
type pair struct{ in, out *bytes.Buffer }

func (p *pair) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p *pair) Write(b []byte) (int, error) { return p.out.Write(b) }
