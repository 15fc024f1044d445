package rdstools

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func sampleOptions() options {
	return options{
		depth: 2, reqSize: 4096, ackSize: 63, sendAddr: addr("10.0.0.2"), recvAddr: addr("10.0.0.1"),
		port: 4000, tasks: 3, runTime: 60, verify: 1, congMonitor: 1, useFence: 1, suppressWarnings: 0xff, oneWay: 1,
		rdmaVector: 1, connectRetry: 5,
	}
}

// The block of `rds-stress -r 10.0.0.1 -s 10.0.0.2 -q 4096 -d 2 -t 3 -T 60 -v
// -o --connect-retries 5`, field by field.
var sampleBlock = strings.Join([]string{
	"00000002", // depth
	"00001000", // request size
	"0000003f", // ack size
	"00000000", // RDMA size
	"0a000002", // send address
	"0a000001", // receive address
	"0fa0",     // starting port
	"0003",     // tasks
	"0000003c", // run time
	"00",       // summary only
	"00",       // rtprio
	"00",       // tracing
	"01",       // verify
	"00",       // show params
	"00",       // show perfdata
	"01",       // congestion monitor
	"00",       // use once
	"00",       // use get_mr
	"01",       // use fence
	"00",       // cache mrs
	"00",       // key-o-meter
	"ff",       // suppress warnings
	"01",       // one way
	"00",       // rw mode
	"00000001", // RDMA vector
	"00000000", // RDMA alignment
	"00000005", // connect retries
}, "")

func TestOptionBlock(t *testing.T) {
	o := sampleOptions()
	got := o.append(nil)
	if len(got) != 59 {
		t.Errorf("the block has %d bytes, not 59", len(got))
	}
	if h := hex.EncodeToString(got); h != sampleBlock {
		t.Errorf("block\n got %s\nwant %s", h, sampleBlock)
	}
	back, err := readOptions(bytes.NewReader(got))
	if err != nil || *back != o {
		t.Errorf("read back %+v, %v; want %+v", back, err, o)
	}
}

// With a TOS or async the block stands between the version and two bytes.
func TestOptionBlockLong(t *testing.T) {
	o := sampleOptions()
	o.tos, o.async = 7, 1
	got := o.append(nil)
	want := "322e302e3700ffffffffffffffffffff" + sampleBlock + "0701"
	if h := hex.EncodeToString(got); h != want {
		t.Errorf("block\n got %s\nwant %s", h, want)
	}
	back, err := readOptions(bytes.NewReader(got))
	if err != nil || *back != o {
		t.Errorf("read back %+v, %v; want %+v", back, err, o)
	}
	for n := range got {
		if _, err := readOptions(bytes.NewReader(got[:n])); err == nil {
			t.Errorf("%d of %d bytes were taken for a whole block", n, len(got))
		}
	}
}

func TestOptionsRefused(t *testing.T) {
	for _, c := range []struct {
		why    string
		change func(*options)
	}{
		{"RDMA", func(o *options) { o.rdmaSize = 4096 }},
		{"ack size must be", func(o *options) { o.ackSize = 62 }},
		{"req size must be", func(o *options) { o.reqSize = 1<<20 + 1 }},
		{"depth must be", func(o *options) { o.depth = 0 }},
		{"depth must be", func(o *options) { o.depth = 1 << 31 }},
		{"do not fit below port", func(o *options) { o.tasks = 0 }},
		{"do not fit below port", func(o *options) { o.port, o.tasks = 65000, 1000 }},
		{"in flight", func(o *options) { o.tasks, o.depth = 2000, 65535 }},
	} {
		o := sampleOptions()
		c.change(&o)
		if _, err := readOptions(bytes.NewReader(o.append(nil))); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%+v: %v, want %q", o, err, c.why)
		}
	}
}

func TestDataHeader(t *testing.T) {
	h := header{
		seq: 0x01020304, from: netip.MustParseAddrPort("10.0.0.1:4001"), to: netip.MustParseAddrPort("10.0.0.2:4003"),
		index: 5, op: opAck, retry: 1,
	}
	b := bytes.Repeat([]byte{0xee}, 64)
	h.put(b)
	want := strings.Join([]string{
		"01020304",             // seq
		"0a000001", "0a000002", // from, to address
		"0fa1", "0fa3", // from, to port
		"0005",             // index
		"02",               // op
		"00",               // RDMA op
		"0000000000000000", // RDMA address
		"0000000000000000", // RDMA physical address
		"0000000000000000", // RDMA pattern
		"0000000000000000", // RDMA key
		"00000000",         // RDMA size
		"00000000",         // RDMA vector
		"01", "00", "00",   // retry, remote error, pending
		"ee", // not part of it
	}, "")
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("header\n got %s\nwant %s", got, want)
	}
	if back := parseHeader(b); back != h {
		t.Errorf("parsed %+v, want %+v", back, h)
	}
}

// The pattern of --verify: 11, then k -> 41(k+3) plus the number of the block
// of 256, by an independent reckoning in wide integers.
func TestPattern(t *testing.T) {
	got := pattern(1000)
	k := uint64(11)
	for i, b := range got {
		if b != byte(k) {
			t.Fatalf("byte %d is %#x, want %#x", i, b, byte(k))
		}
		k = 41*(k+3) + uint64((i+1)/256)
		k &= 0xffffffff
	}
	if h := hex.EncodeToString(got[:6]); h != "0b3e694ca73a" {
		t.Errorf("pattern starts %s", h)
	}
	if bytes.Equal(got[:256], got[256:512]) {
		t.Error("swapped blocks of 256 bytes would not show")
	}
}

func TestNumbers(t *testing.T) {
	for in, want := range map[string]uint64{"0": 0, "4096": 4096, "0x10": 16, "4k": 4096, "1M": 1 << 20, "2g": 2 << 30} {
		if got, err := parseNumber(in); err != nil || got != want {
			t.Errorf("parseNumber(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "k", "-1", "1.5", "10kk", "99999999999999999999", "17179869184g"} {
		if got, err := parseNumber(in); err == nil {
			t.Errorf("parseNumber(%q) = %d, want an error", in, got)
		}
	}
	for in, want := range map[string]string{"1": "1s", "0.5": "500ms", "10ms": "10ms", "10msec": "10ms", "50us": "50µs", "50usec": "50µs"} {
		if got, err := parseInterval(in); err != nil || got.String() != want {
			t.Errorf("parseInterval(%q) = %v, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"", "s", "-1", "1h", "1e99"} {
		if got, err := parseInterval(in); err == nil {
			t.Errorf("parseInterval(%q) = %v, want an error", in, got)
		}
	}
}

// FuzzOptions: whatever comes over the control connection is refused or safe,
// and what is accepted goes back to the same bytes.
func FuzzOptions(f *testing.F) {
	o := sampleOptions()
	f.Add(o.append(nil))
	o.tos = 1
	f.Add(o.append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := readOptions(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, err := readOptions(bytes.NewReader(o.append(nil)))
		if err != nil || *again != *o {
			t.Errorf("%+v became %+v, %v", o, again, err)
		}
	})
}

// FuzzTask: whatever bytes a datagram has, a task takes or refuses them.
func FuzzTask(f *testing.F) {
	h := header{from: netip.MustParseAddrPort("10.0.0.2:4001"), to: netip.MustParseAddrPort("10.0.0.1:4001"), op: opRequest}
	b := make([]byte, 100)
	h.put(b)
	f.Add(b, uint16(4001))
	f.Add([]byte{}, uint16(0))
	f.Fuzz(func(t *testing.T, b []byte, port uint16) {
		tk := sampleTask()
		tk.take(datagram(addr("10.0.0.2"), port, b), timeZero)
		if p := tk.pairs[0]; p.unacked > tk.o.depth || p.pending > tk.o.depth {
			t.Errorf("more under way than the depth: %+v", p)
		}
	})
}
