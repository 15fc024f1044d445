package volume

import (
	"context"
	"testing"
)

// TestAMappingIsGivenBackOnce holds that a mapping that is ended twice, by Map that gives it up and by Unmap, takes its part of the session
// back once: another that uses the session would lose it.
func TestAMappingIsGivenBackOnce(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	for _, name := range []string{"a", "b"} {
		mustExport(t, server.h, file(t, name, 1<<20))
	}
	a := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "a"})
	b := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "b"})
	client.h.mu.Lock()
	m, err := client.h.find(b.ID)
	client.h.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	m.end(true)
	m.end(true)
	m.leave(context.Background())
	if err := m.bringUp(context.Background(), &m.spec, true); err == nil {
		t.Error("a mapping that has ended was brought up")
	}
	if i, err := client.h.Mapping(a.ID); err != nil || i.State != StateOpen {
		t.Fatalf("the other mapping of the session is %+v, %v", i, err)
	}
	client.h.mu.Lock()
	refs := client.h.clients[a.Session].refs
	client.h.mu.Unlock()
	if refs != 1 {
		t.Errorf("the session is used %d times; want once", refs)
	}
	if err := writePattern(open(t, a), 0, 64<<10, 1, 4096); err != nil {
		t.Error(err)
	}
}
