package shm

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/wire"
)

var update = flag.Bool("update", false, "write testdata/*.txt and programs.hash anew")

const vectorsHead = `# Golden vectors of the layout in docs/shm.md, version 3. Every language reads
# this file in its tests. Written by: go test ./shm -run Vectors -update
#
#   vector KIND NAME     begins a vector
#   field NAME VALUE     what the bytes say
#   size N               how many bytes there are; those not listed are 0
#   at OFFSET HEX        bytes
`

type vector struct {
	kind, name string
	fields     []string // name and value in turn
	b          []byte
}

func (v *vector) text(w *strings.Builder) {
	fmt.Fprintf(w, "\nvector %s %s\n", v.kind, v.name)
	for i := 0; i < len(v.fields); i += 2 {
		fmt.Fprintf(w, "field %s %s\n", v.fields[i], v.fields[i+1])
	}
	fmt.Fprintf(w, "size %d\n", len(v.b))
	dump(w, v.b)
}

// dump lists what is not 0, 32 bytes a line.
func dump(w *strings.Builder, b []byte) {
	for off := 0; off < len(b); off += 32 {
		line := bytes.TrimRight(b[off:min(off+32, len(b))], "\x00")
		if len(line) > 0 {
			fmt.Fprintf(w, "at %d %x\n", off, line)
		}
	}
}

func entryBytesOf(e *entry) []byte { return bytes.Clone((*[entryBytes]byte)(unsafe.Pointer(e))[:]) }

// golden is every vector. Each decoder must read its own encoder's bytes.
func golden(t *testing.T) (all []vector) {
	f := fmt.Sprint
	add := func(kind, name string, b []byte, fields ...string) {
		all = append(all, vector{kind, name, fields, b})
	}
	same := func(got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("decoded %+v, encoded %+v", got, want)
		}
	}

	for _, local := range []string{"10.1.2.3:4000", "[2001:db8::5]:65535"} {
		s := Spec{Local: netip.MustParseAddrPort(local), UID: 1000, PID: 4242, SndBuf: 1 << 20, RcvBuf: 2 << 20, Instance: 0x1122334455667788}
		h, _ := s.header()
		h.ID = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
		b := make([]byte, HeaderBytes)
		h.Put(b)
		var back Header
		if err := back.Parse(b, h.RegionBytes); err != nil {
			t.Error(err)
		}
		same(back, h)
		add("header", local, b, "version", f(Version), "region_bytes", f(h.RegionBytes), "id", fmt.Sprintf("%x", h.ID), "instance", f(h.Instance),
			"local", h.Local.String(), "uid", f(h.UID), "pid", f(h.PID), "max_datagram", f(h.MaxDatagram), "sndbuf", f(h.SndBuf), "rcvbuf", f(h.RcvBuf),
			"flows", f(h.Flows), "sends", f(h.Sends), "events", f(h.Events), "receives", f(h.Receives), "releases", f(h.Releases), "takes", f(h.Takes),
			"flow_off", f(h.FlowOff), "flow_state_off", f(h.FlowStateOff), "send_off", f(h.SendOff), "event_off", f(h.EventOff), "recv_off", f(h.RecvOff),
			"release_off", f(h.ReleaseOff), "send_arena_off", f(h.SendArenaOff), "send_arena_bytes", f(h.SendArenaBytes),
			"recv_arena_off", f(h.RecvArenaOff), "recv_arena_bytes", f(h.RecvArenaBytes),
			"daemon_off", f(h.DaemonOff))
	}

	for _, w := range []struct {
		name string
		w    Word
	}{{"one", MakeWord(KindEach, 64, 1)}, {"largest", MakeWord(KindEach, MaxDatagram, 1)}, {"train", MakeWord(KindEach, 65536, 4096)},
		{"grown", MakeWord(KindEach, 64, 1).Grow(1, 64)}, {"table", MakeWord(KindTable, 1000, 30)}, {"open", MakeWord(KindOpen, 0, 0)},
		{"claimed", MakeWord(KindEach, 64, 1) | WordClaimed}, {"no_append", MakeWord(KindEach, 64, 1) | WordNoAppend}} {
		add("word", w.name, le.AppendUint64(nil, uint64(w.w)), "bytes", f(w.w.Bytes()), "count", f(w.w.Count()), "kind", f(w.w.Kind()),
			"no_append", f(uint64(w.w&WordNoAppend)>>62), "claimed", f(uint64(w.w&WordClaimed)>>63))
	}

	for i, d := range []SendDesc{{Tag: 1 << 60, Slot: 64 * 1000, Flow: 7, Gen: 9, Cookie: 0xfffffffe, Flags: FlagWant}, {Tag: 5}, {Tag: 6, Slot: 64 * 7}} {
		var e entry
		w := MakeWord([]int{KindEach, KindEach, KindMixed}[i], 1000, 10)
		d.put(&e)
		e[0] = uint64(w)
		var back SendDesc
		back.get(&e, w)
		d.Kind, d.Count, d.Bytes = w.Kind(), w.Count(), w.Bytes()
		same(back, d)
		add("send", f("tag", d.Tag), entryBytesOf(&e), "word", f(uint64(w)), "tag", f(d.Tag), "slot", f(d.Slot), "flow", f(d.Flow), "gen", f(d.Gen),
			"cookie", f(d.Cookie), "flags", f(d.Flags))
	}

	for _, dst := range []string{"192.168.0.9:1", "[fe80::1]:40000"} {
		x := FlowEntry{Dst: netip.MustParseAddrPort(dst), Gen: 2147483649}
		var e entry
		var back FlowEntry
		x.put(&e)
		back.get(&e)
		same(back, x)
		add("flow", f("gen", x.Gen, "family", x.Dst.Addr().BitLen()), entryBytesOf(&e), "dst", dst, "gen", f(x.Gen))
	}

	for _, s := range []FlowState{MakeFlowState(3, FlowClear, 0), MakeFlowState(0xffffffff, FlowCongested, 0), MakeFlowState(5, FlowRefused, uint16(unix.EHOSTUNREACH))} {
		add("flow_state", f("state", s.State()), le.AppendUint64(nil, uint64(s)), "errno", f(s.Errno()), "state", f(s.State()), "gen", f(s.Gen()))
	}

	events := map[string]Event{
		"delivered":   {Kind: EventOutcome, Outcome: Delivered, Flags: EventLast, Count: 4096, Tag: 77, Cookie: 3},
		"unknown":     {Kind: EventOutcome, Outcome: Unknown, Why: 4, Count: 1, Tag: ^uint64(0), Cookie: 4},
		"refused":     {Kind: EventRefused, Flags: EventLast, Count: 2, Tag: 9, Cookie: 5, Errno: uint32(unix.EMSGSIZE)},
		"congested":   {Kind: EventCongestion, Flags: EventCongested, Dst: netip.MustParseAddrPort("10.0.0.7:700")},
		"uncongested": {Kind: EventCongestion, Dst: netip.MustParseAddrPort("[fd00::7]:700")},
		"freed":       {Kind: EventFreed, Tag: 1<<63 | 1},
	}
	for _, name := range slices.Sorted(maps.Keys(events)) {
		v := events[name]
		var e entry
		var back Event
		v.put(&e)
		back.get(&e)
		same(back, v)
		fields := []string{"kind", f(v.Kind), "outcome", f(v.Outcome), "reason", f(v.Why), "flags", f(v.Flags), "count", f(v.Count), "tag", f(v.Tag),
			"cookie", f(v.Cookie), "errno", f(v.Errno)}
		if v.Dst.IsValid() {
			fields = append(fields, "dst", v.Dst.String())
		}
		add("event", name, entryBytesOf(&e), fields...)
	}

	for _, d := range []RecvDesc{
		{Word: MakeWord(KindTable, 4+3, 1), Slot: 128, Src: netip.MustParseAddrPort("10.0.0.7:65535"), Lane: NoLane},
		{Word: MakeWord(KindEach, 65536, 64), Slot: 1 << 20, Src: netip.MustParseAddrPort("[2001:db8::1]:2"), Lane: 12, Seq: 1 << 40},
	} {
		var e entry
		var back RecvDesc
		d.put(&e)
		back.get(&e)
		same(back, d)
		add("receive", f("slot", d.Slot), entryBytesOf(&e), "bytes", f(d.Word.Bytes()), "count", f(d.Word.Count()), "kind", f(d.Word.Kind()), "slot", f(d.Slot),
			"src", d.Src.String(), "lane", f(d.Lane), "seq", f(d.Seq))
	}

	add("release", "slot", le.AppendUint64(nil, 1<<20+64), "slot", f(1<<20+64))

	msg := bytes.Repeat([]byte{0xab}, 5)
	head, piece := packetOf(msg)
	add("packet", "whole", append(head[:], piece...), "goes_on", "0", "message", fmt.Sprintf("%x", piece))
	head, _ = packetOf(make([]byte, MaxPiece+1))
	add("packet_head", "piece", head[:], "goes_on", "1")

	lh := LedgerHeader{Instance: 99, Lanes: 4, Regions: 2, Sends: 64, Commits: 1, Boot: [16]byte{0xb0}}
	lh.lay()
	b := make([]byte, HeaderBytes)
	lh.Put(b)
	var lback LedgerHeader
	if err := lback.Parse(b, lh.FileBytes); err != nil {
		t.Error(err)
	}
	same(lback, lh)
	add("ledger_header", "small", b, "version", "1", "file_bytes", f(lh.FileBytes), "instance", f(lh.Instance), "lanes", f(lh.Lanes), "regions", f(lh.Regions),
		"sends", f(lh.Sends), "commits", f(lh.Commits), "commit_off", f(lh.CommitOff), "lane_off", f(lh.LaneOff), "region_off", f(lh.RegionOff),
		"send_off", f(lh.SendOff), "boot", fmt.Sprintf("%x", lh.Boot))

	led := newLedger(t, LedgerSpec{Lanes: 4, Regions: 2, Commits: 1})
	lane, err := led.Lane(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), 3)
	if err != nil {
		t.Fatal(err)
	}
	lane.SetPeer(2, 11, 12)
	*lane.NextSeq = 1000
	lane.SetReceived(500, []uint64{3, 499, 501})
	var lr LaneRecord
	if !lr.get(lane.mem) {
		t.Error("a lane that is not in use")
	}
	same(lr, LaneRecord{Lane: 3, Local: netip.MustParseAddr("10.0.0.1"), Remote: netip.MustParseAddr("10.0.0.2"), Kind: 2, Incarnation: 11, PeerIncarnation: 12,
		NextSeq: 1000, Received: 500, Refusals: []uint64{3, 499}})
	add("lane", "refusals", bytes.Clone(lane.mem), "lane", "3", "local", "10.0.0.1", "remote", "10.0.0.2", "kind", "2", "incarnation", "11",
		"peer_incarnation", "12", "next_seq", "1000", "received", "500", "refusals", "3,499", "not_valid_yet", "501")

	for _, s := range []SendRecord{
		{Cell: 5<<56 | 1234, Order: 10, Slot: 64 * 99, Word: MakeWord(KindEach, 100, 10), Tag: 1 << 33, Cookie: 8, Dst: MakeTarget(testDst), Flags: FlagWant,
			Progress: 3 | 7<<progressBits | progressUnder | 1<<progressAcct},
		{Order: 11, Word: MakeWord(KindEach, 0, 1), Flags: FlagRefusing},
	} {
		var e entry
		var back SendRecord
		s.put(&e)
		back.get(&e)
		same(back, s)
		add("send_entry", f("order", s.Order), entryBytesOf(&e), "cell", f(s.Cell), "order", f(s.Order), "slot", f(s.Slot), "progress", f(s.Progress),
			"finished_account_0", f(s.Finished(0)), "finished_account_1", f(s.Finished(1)), "word", f(uint64(s.Word)), "tag", f(s.Tag), "cookie", f(s.Cookie),
			"dst", s.Dst.AddrPort().String(), "flags", f(s.Flags))
	}

	rb := make([]byte, recordBytes)
	want := RegionRecord{ID: [16]byte{1, 2, 3}, Inode: 77, Bytes: 1 << 24, Local: testLocal, UID: 1000, PID: 4242, SendHead: 7, Events: 6, Account: 1,
		RecvTail: 5, Taken: [2]uint64{40, 41}, Finished: [2]uint64{38, 39}}
	want.put(rb)
	g := &LedgerRegion{mem: rb, words: recordWords(rb)}
	g.took(5, 40)
	g.took(6, 41)
	g.acct = 1
	g.publish(5, 38)
	g.publish(6, 39)
	g.words[wordRecvTail].Store(5)
	var got RegionRecord
	got.get(rb)
	same(got, want)
	add("region_entry", "account_1", rb, "id", fmt.Sprintf("%x", want.ID), "inode", "77", "bytes", f(want.Bytes), "local", want.Local.String(), "uid", "1000", "pid", "4242",
		"send_head", "7", "events", "6", "account", "1", "recv_tail", "5", "taken", "41", "finished", "39")

	rec := make([]byte, commitBytes(2))
	for i, v := range []uint32{1, 2, 3, 2} {
		le.PutUint32(rec[4*i:], v)
	}
	le.PutUint64(rec[16:], 500)
	le.PutUint64(rec[24:], 77)
	for i, v := range []uint64{0, 9, 1, 44} {
		le.PutUint64(rec[commitHead+8*i:], v)
	}
	c, err := parseCommit(rec, 2, 4)
	if err != nil || c == nil {
		t.Fatal(c, err)
	}
	same(*c, commitRecord{lanes: [2]commitLane{{3, 500}, {2, 77}}, regions: []commitRegion{{0, 9}, {1, 44}}})
	add("commit", "two_regions", rec, "valid", "1", "lane", "3", "received", "500", "here", "2", "here_received", "77", "region_0_recv_tail", "9", "region_1_recv_tail", "44")
	return all
}

func TestVectors(t *testing.T) {
	var w strings.Builder
	w.WriteString(vectorsHead)
	all := golden(t)
	for i := range all {
		all[i].text(&w)
	}
	checkGolden(t, "testdata/vectors.txt", w.String())
}

const regionHead = `# A small region as both ends left it, docs/shm.md version 3: what a client wrote
# and what the daemon answered. Written by: go test ./shm -run Region -update
# Bytes that are not listed are 0. In it: flow 2 (generation 1) to 10.0.0.2:5000, clear; three
# sends taken, of which cookie 1 (2 datagrams "aabb") is delivered, cookie 2 refused (EMSGSIZE: a train of 100,000 bytes)
# and cookie 3 ("third") on its way; a fourth in the ring ("fourth"); received and not taken:
# a train "xxyyzz" and one with a table ("p", "qq"); one slot released and not looked at; the
# daemon asleep; the client waits for receive descriptors and events.
`

// TestGoldenRegion: the memory of a region after a few steps.
func TestGoldenRegion(t *testing.T) {
	s := Spec{Local: testLocal, UID: 1000, PID: 42, Instance: 7, SndBuf: 1 << 17, RcvBuf: 4096,
		Flows: 8, Sends: 4, Events: 4, Receives: 4, Releases: 8, SendArena: 1 << 18, RecvArena: 4096}
	h, m := newPair(t, s, nil)
	clear(h.r.ID[:])
	h.r.Header.Put(h.r.mem)
	m.flow(2, 1, testDst)
	d := SendDesc{Tag: 100, Flow: 2, Gen: 1, Cookie: 1, Flags: FlagWant}
	m.post(MakeWord(KindEach, 4, 2), d, []byte("aabb"))
	d = SendDesc{Tag: 200, Flow: 2, Gen: 1, Cookie: 2, Slot: 64}
	m.post(MakeWord(KindEach, 100000, 2), d, nil)
	d = SendDesc{Tag: 300, Flow: 2, Gen: 1, Cookie: 3, Slot: 128}
	m.post(MakeWord(KindEach, 5, 1), d, []byte("third"))
	d = SendDesc{Tag: 400, Flow: 2, Gen: 1, Cookie: 4, Slot: 192}
	m.post(MakeWord(KindEach, 6, 1), d, []byte("fourth"))
	h.SetFlow(2, 1, FlowClear, 0)
	id, _ := h.Taken(next(t, h), MakeTarget(testDst), true)
	p := next(t, h)
	h.Taken(p, MakeTarget(testDst), false)
	h.Refused(p, uint16(unix.EMSGSIZE))
	h.Taken(next(t, h), MakeTarget(testDst), true)
	h.Outcome(id, 100, 2, Delivered, 0, true)
	h.PlaceCopy(testDst, wire.One([]byte("first")), 1, 40)
	h.Publish()
	m.received(true)
	for i, s := range []string{"xx", "yy", "zz"} {
		h.PlaceCopy(testDst, wire.One([]byte(s)), 1, 41+uint64(i))
	}
	h.PlaceCopy(testDst, wire.Train{Body: []byte("\x00\x00\x00\x01\x00\x00\x00\x02pqq"), Count: 2, Table: true}, 1, 44)
	h.Publish()
	h.asleep = true
	m.r.DaemonSleeps().Store(DaemonWaitsSend) // as Sleep does when there is nothing
	m.r.ClientSleeps().Store(ClientWaitsRecv | ClientWaitsEvent)
	var w strings.Builder
	w.WriteString(regionHead)
	fmt.Fprintf(&w, "size %d\n", len(h.r.mem))
	dump(&w, h.r.mem)
	checkGolden(t, "testdata/region.txt", w.String())
}

func checkGolden(t *testing.T, path, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(b) != text {
		t.Errorf("%s differs from what the code writes; a change of the layout needs a new version", path)
	}
}
