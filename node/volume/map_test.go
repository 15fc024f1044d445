package volume

import (
	"testing"
)

func TestMapWriteReadBack(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	for _, s := range []ExportSpec{memory("mem", 8<<20), file(t, "dir/file", 8<<20)} {
		x := mustExport(t, server.h, s)
		if x.Info.Size != 8<<20 || x.Origin != OriginCall {
			t.Fatalf("exported as %+v", x)
		}
		m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: s.Name, Paths: server.twoPaths()})
		if m.State != StateOpen || m.Info.Size != 8<<20 || m.PathsUp < 1 || m.Info.LogicalBlock != 512 {
			t.Fatalf("mapped as %+v", m)
		}
		c := open(t, m)
		for _, piece := range []int{512, 4096, 128 << 10, 1 << 20, 3 << 20} {
			n := min(int64(8<<20), int64(piece)*64)
			if err := writePattern(c, 0, n, byte(piece>>9), piece); err != nil {
				t.Fatal(err)
			}
			if err := checkPattern(c, 0, n, byte(piece>>9), piece); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
		c.Close()
		eventually(t, "client gone", func() bool { i, _ := client.h.Mapping(m.ID); return i.Users == 0 })
		if err := client.h.Unmap(testCtx(t), m.URI, false); err != nil {
			t.Fatal(err)
		}
		eventually(t, "closed at the server", func() bool { i, _ := server.h.exportInfo(s.Name); return len(i.Users) == 0 })
	}
	if n := len(client.h.Sessions()); n != 0 {
		t.Fatalf("%d sessions after the last volume was unmapped", n)
	}
}
