package client

import (
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/shm"
)

// heldPair is a pair of from and to that is open, and both ends of it.
func heldPair(t *testing.T, id uint64, from, to *ringSock) (*pair, *shm.PairSender, *shm.PairReceiver) {
	t.Helper()
	mem, err := shm.CreatePair(id, shm.MinPairBytes)
	if err != nil {
		t.Fatal(err)
	}
	out, err := shm.OpenPair(mem.WordsFD, mem.DataFD, mem.Bytes, shm.PairSends)
	if err != nil {
		t.Fatal(err)
	}
	in, err := shm.OpenPair(mem.WordsFD, mem.ReadFD, mem.Bytes, shm.PairReads)
	if err != nil {
		t.Fatal(err)
	}
	mem.Lent()
	t.Cleanup(func() {
		out.Close()
		in.Close()
		mem.Close()
		mem.Disown()
	})
	return &pair{id: id, front: from.front, host: from.host, bytes: int(mem.Bytes), ends: [2]*ringSock{from, to}, state: pairOpen, sealed: true, mem: mem},
		shm.NewPairSender(out), shm.NewPairReceiver(in)
}

// TestPairsAreListedByPages: who lists what lies in pairs in parts, each time from the beginning, gets each
// datagram once; and of one pair not fewer than a list has.
func TestPairsAreListedByPages(t *testing.T) {
	n, cfg := startClients(t)
	local, socks := n.attachRings(t, cfg, 3)
	local.Lock()
	defer local.Unlock()
	reader := socks[0]
	defer func() { reader.pairs = socketPairs{} }() // what was put there is no pair of the node
	put := func(from *ringSock, id uint64, datagrams int) {
		p, out, _ := heldPair(t, id, from, reader)
		reader.pairs.add(p, &reader.pairs.in, from.sock.Addr().Port())
		if b := out.Begin(datagrams); b == nil || !out.Put(len(b), datagrams) {
			t.Fatal("there is no room in the pair")
		}
	}
	put(socks[1], 8, 300)
	put(socks[2], 7, 300)
	for range 10 {
		by := map[netip.AddrPort]int{}
		shown := 0
		for more := true; more; {
			seen, page := 0, 0
			more = false
			reader.sock.EachQueued(func(src netip.AddrPort, _ int) bool {
				if seen++; seen <= shown {
					return true
				}
				by[src]++
				shown++
				page++
				more = page == 128
				return !more
			})
		}
		if a, b := by[socks[1].sock.Addr()], by[socks[2].sock.Addr()]; a != 300 || b != 300 {
			t.Fatalf("%d and %d are listed of 300 in each pair", a, b)
		}
	}

	reader.pairs = socketPairs{}
	put(socks[1], 9, 4000)
	listed := 0
	reader.sock.EachQueued(func(netip.AddrPort, int) bool { listed++; return true })
	if listed != 4000 {
		t.Errorf("%d of 4000 are listed", listed)
	}
}

// TestReadersThatAreRung: of the readers of its pairs a socket has those rung that sleep and have news.
func TestReadersThatAreRung(t *testing.T) {
	n, cfg := startClients(t)
	local, socks := n.attachRings(t, cfg, 4)
	from := socks[0]
	var outs []*shm.PairSender
	local.Lock()
	for i, to := range socks[1:] {
		p, out, _ := heldPair(t, uint64(i), from, to)
		from.pairs.add(p, &from.pairs.out, to.sock.Addr().Port())
		p.mem.Sleeps(i < 2)
		outs = append(outs, out)
	}
	local.Unlock()
	defer func() {
		local.Lock()
		from.pairs = socketPairs{} // what was put there is no pair of the node
		local.Unlock()
	}()
	if !outs[0].Awaken() || outs[2].Awaken() { // there is no news for the second
		t.Fatal("the first reader does not sleep, or the third does")
	}
	before := n.deps.Count.PairWakes.Load()
	done := make(chan struct{})
	from.react.DoFor(from, func() {
		from.ringReaders()
		from.ringReaders()
		close(done)
	})
	<-done
	if rung := n.deps.Count.PairWakes.Load() - before; rung != 1 {
		t.Errorf("%d readers were rung, 1 sleeps and has news", rung)
	}
}
