package rdstools

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	rdsd "github.com/rdsd/rdsd/sdk/go"
)

var timeZero time.Time

func datagram(a netip.Addr, port uint16, b []byte) rdsd.Datagram {
	return rdsd.Datagram{Addr: netip.AddrPortFrom(a, port), Payload: b}
}

// sampleTask is task 0 of the side 10.0.0.1, with two tasks on each side.
func sampleTask() *task { return sampleSide("10.0.0.1", "10.0.0.2", 0, 1) }

func sampleSide(own, other string, nr, verify uint8) *task {
	o := &options{depth: 3, reqSize: 300, ackSize: 100, sendAddr: addr(other), recvAddr: addr(own), port: 4000, tasks: 2, verify: verify}
	return newTask(o, netip.AddrPortFrom(addr(own), 4001+uint16(nr)), true)
}

// carry hands what from would send to the tasks of the other side.
func carry(t *testing.T, from *task, to ...*task) int {
	t.Helper()
	batch, _ := from.collect(nil, nil, batchDatagrams)
	for _, d := range batch {
		dst := to[d.Addr.Port()-4001]
		if _, err := dst.take(rdsd.Datagram{Addr: from.local, Payload: bytes.Clone(d.Payload)}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	return len(batch)
}

// TestConversation: requests up to the depth, acks in order, seq over both.
func TestConversation(t *testing.T) {
	a0, b0, b1 := sampleSide("10.0.0.1", "10.0.0.2", 0, 1), sampleSide("10.0.0.2", "10.0.0.1", 0, 1), sampleSide("10.0.0.2", "10.0.0.1", 1, 1)
	b0.work, b1.work = false, false // one-way: only a0 asks
	for round := range 50 {
		if n := carry(t, a0, b0, b1); n != 6 {
			t.Fatalf("round %d: %d datagrams sent, want depth 3 to each of 2 tasks", round, n)
		}
		if n := carry(t, a0, b0, b1); n != 0 {
			t.Fatalf("round %d: %d datagrams sent with the pipelines full", round, n)
		}
		for _, b := range []*task{b0, b1} {
			if n := carry(t, b, a0); n != 3 {
				t.Fatalf("round %d: %d acks, want 3", round, n)
			}
		}
	}
	st := a0.read()
	if st.reqTx.nr != 300 || st.ackRx.nr != 300 || st.rttUsecs.nr != 300 || st.reqRx.nr != 0 {
		t.Errorf("stats %+v", st)
	}
	if p := a0.pairs[1]; p.sendSeq != 150 || p.recvSeq != 150 || p.pending != 0 {
		t.Errorf("pair %+v", p)
	}
	if st := b1.read(); st.reqRx.total != 150*300 || st.ackTx.total != 150*100 {
		t.Errorf("stats of the other side %+v", st)
	}
}

// TestBothWays: with requests both ways, seq counts requests and acks together.
func TestBothWays(t *testing.T) {
	a := sampleSide("10.0.0.1", "10.0.0.2", 0, 0)
	b := sampleSide("10.0.0.2", "10.0.0.1", 0, 0)
	other := sampleSide("10.0.0.2", "10.0.0.1", 1, 0) // never answers
	for range 20 {
		carry(t, a, b, other)
		batch, _ := b.collect(nil, nil, batchDatagrams)
		for _, d := range batch {
			if d.Addr != a.local {
				continue // b's requests to the task that is not there
			}
			if _, err := a.take(rdsd.Datagram{Addr: b.local, Payload: bytes.Clone(d.Payload)}, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
	}
	p := a.pairs[0]
	if p.recvSeq < 100 {
		t.Errorf("20 rounds of depth 3 moved only %d datagrams: %+v", p.recvSeq, p)
	}
	if st := a.read(); st.reqRx.nr+st.ackRx.nr != uint64(p.recvSeq) {
		t.Errorf("seq %d is not requests and acks together: %+v", p.recvSeq, st)
	}
}

// TestRefusedDatagrams: everything the old tool would die of is named.
func TestRefusedDatagrams(t *testing.T) {
	good := func() []byte {
		b := make([]byte, 300)
		h := header{from: netip.MustParseAddrPort("10.0.0.2:4001"), to: netip.MustParseAddrPort("10.0.0.1:4001"), op: opRequest}
		h.put(b)
		copy(b[headerBytes:], pattern(300-headerBytes))
		return b
	}
	if _, err := sampleTask().take(datagram(addr("10.0.0.2"), 4001, good()), timeZero); err != nil {
		t.Fatalf("a good datagram was refused: %v", err)
	}
	for _, c := range []struct {
		why    string
		port   uint16
		change func(b []byte) []byte
	}{
		{"no task of the other side", 4003, func(b []byte) []byte { return b }},
		{"no task of the other side", 9, func(b []byte) []byte { return b }},
		{"less than the header", 4001, func(b []byte) []byte { return b[:62] }},
		{"unknown op 3", 4001, func(b []byte) []byte { b[18] = 3; return b }},
		{"has 299 bytes, not 300", 4001, func(b []byte) []byte { return b[:299] }},
		{"has a header that was not expected", 4001, func(b []byte) []byte { b[3] = 1; return b }},
		{"has a header that was not expected", 4001, func(b []byte) []byte { b[17] = 1; return b }},
		{"has a header that was not expected", 4002, func(b []byte) []byte { return b }},
		{"corrupted payload at offset 7; 2 of 237 bytes", 4001, func(b []byte) []byte { b[70] ^= 1; b[90] ^= 1; return b }},
		{"ack from 10.0.0.2:4001 without a request", 4001, func(b []byte) []byte { b[18] = opAck; return b[:100] }},
	} {
		_, err := sampleTask().take(datagram(addr("10.0.0.2"), c.port, c.change(good())), timeZero)
		if err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%v, want %q", err, c.why)
		}
	}
	late := sampleTask()
	late.pairs[0].recvSeq = 5
	b := good()
	b[retryOffset] = 1
	if _, err := late.take(datagram(addr("10.0.0.2"), 4001, b), timeZero); err != nil || late.pairs[0].recvSeq != 5 {
		t.Errorf("a repeat of an async sender: %v", err)
	}
}

func TestClassicColumns(t *testing.T) {
	var st stats
	for range 1000 {
		st.reqTx.add(1024)
		st.reqRx.add(1024)
		st.ackTx.add(63)
		st.ackRx.add(63)
		st.sendUsecs.add(3)
		st.rtt(250 * time.Microsecond)
	}
	var b bytes.Buffer
	printStressHeading(&b)
	printStressLine(&b, 4, st, 2*time.Second, -1, false)
	printStressLine(&b, 4, st, 2*time.Second, -1, true)
	want := "tsks   tx/s   rx/s  tx+rx K/s    mbi K/s    mbo K/s tx us/c   rtt us cpu %\n" +
		"   4   1000   1000    1061.52       0.00       0.00    3.00   250.00 -1.00\n" +
		"   4    500    500    1061.52       0.00       0.00    3.00   250.00 -1.00  (average)\n"
	if b.String() != want {
		t.Errorf("columns\n got %q\nwant %q", b.String(), want)
	}
	if st.rttBuckets[7] != 1000 {
		t.Errorf("250 µs belongs into [128 - 256]: %v", st.rttBuckets)
	}
}
