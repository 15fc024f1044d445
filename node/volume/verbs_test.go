package volume

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/rdsd/rdsd/transport"
	"github.com/rdsd/rdsd/transport/ib"
	"github.com/rdsd/rdsd/transport/ib/soft"
)

// overVerbs has the node's links made by a device of its first address, which is one that no
// other test has: the device's UDP port is always the same.
func (n *testNode) overVerbs() {
	n.cfg.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{127, byte(64 + rand.N(64)), byte(rand.N(256)), byte(2 + rand.N(250))})}
	n.links = func(transport.OneSidedProvider) transport.OneSidedProvider {
		d, err := soft.Open(soft.Config{Addr: n.cfg.Addresses[0], Reactor: n.r})
		if err != nil {
			n.t.Fatal(err)
		}
		p := ib.New(d)
		n.unlink = func() {
			p.Close()
			if err := d.Close(); err != nil {
				n.t.Errorf("%s: the device: %v", n.cfg.Name, err)
			}
		}
		return p
	}
}

// verbsPair is a server and a mapper whose links are RoCE.
func verbsPair(t testing.TB) (server, mapper *testNode) {
	server, mapper = newServerNode(t, 1234), newClientNode(t, 1234)
	server.overVerbs()
	mapper.overVerbs()
	server.start()
	mapper.start()
	return server, mapper
}

func (n *testNode) verbsPath(to *testNode) []PathSpec {
	return []PathSpec{{Src: n.node(), Dst: to.node()}}
}

// TestVolumesOverVerbs: a session's requests, large ones and small, over RoCE.
func TestVolumesOverVerbs(t *testing.T) {
	server, mapper := verbsPair(t)
	const size = 4 << 20
	mustExport(t, server.h, file(t, "disk", size))
	m := mustMap(t, mapper.h, MapSpec{Node: server.node(), Name: "disk", Paths: mapper.verbsPath(server)})
	c := open(t, m)
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i * 7 >> 3)
	}
	for off, n := 0, 512; off < size; off, n = off+n, min(2*n, 1<<20) {
		n = min(n, size-off)
		if _, err := c.WriteAt(want[off:off+n], int64(off)); err != nil {
			t.Fatalf("%d bytes at %d: %v", n, off, err)
		}
	}
	got := make([]byte, size)
	for off, n := 0, 1<<20; off < size; off, n = off+n, max(n/2, 4096) {
		n = min(n, size-off)
		if _, err := c.ReadAt(got[off:off+n], int64(off)); err != nil {
			t.Fatalf("%d bytes at %d: %v", n, off, err)
		}
	}
	if !bytes.Equal(got, want) {
		t.Error("other bytes were read than were written")
	}
}

// TestRestartOverVerbs: a path comes back by itself when its server does.
func TestRestartOverVerbs(t *testing.T) {
	server, mapper := verbsPair(t)
	disk := file(t, "disk", 1<<20)
	disk.Persist = true
	mustExport(t, server.h, disk)
	m := mustMap(t, mapper.h, MapSpec{Node: server.node(), Name: "disk", Paths: mapper.verbsPath(server)})
	c := open(t, m)
	page := bytes.Repeat([]byte{5}, 4096)
	for i := range 3 {
		if _, err := c.WriteAt(page, int64(i)*4096); err != nil {
			t.Fatal(err)
		}
		server.crash()
		server.start()
	}
	for i := range 3 {
		got := make([]byte, 4096)
		if _, err := c.ReadAt(got, int64(i)*4096); err != nil || !bytes.Equal(got, page) {
			t.Errorf("page %d after restarts: %v", i, err)
		}
	}
}
