package volume

import "testing"

// TestMigrationOverAStart: both ends of a migration go on after the serving daemon was started again, and the
// source alone after it was cancelled.
func TestMigrationOverAStart(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.cfg.Exports = []ExportSpec{file(t, "disk", 8<<20)}
	server.start()
	c := client.start()
	source := mustMap(t, c, MapSpec{Node: server.node(), Name: "disk", Session: "source"})
	io := open(t, source)
	if err := writePattern(io, 0, 4096, 1, 4096); err != nil {
		t.Fatal(err)
	}
	dest := mustMap(t, c, MapSpec{Node: server.node(), Name: "disk", Session: "dest", Access: AccessMigration})
	again := func() {
		t.Helper()
		server.stop()
		server.start()
		for _, m := range c.Mappings() {
			eventually(t, m.Session+" has it again", func() bool {
				i, err := c.Mapping(m.ID)
				return err == nil && i.State == StateOpen && i.PathsUp > 0
			})
		}
	}
	again()
	if err := writePattern(io, 0, 4096, 2, 4096); err != nil {
		t.Fatal(err)
	}
	if err := c.Unmap(testCtx(t), dest.ID, false); err != nil {
		t.Fatal(err)
	}
	again()
	if err := writePattern(io, 0, 4096, 3, 4096); err != nil {
		t.Fatal(err)
	}
}
