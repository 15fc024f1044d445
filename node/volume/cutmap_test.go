package volume

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"
)

// TestMapThatAStopCutsShort: what a stop writes down has no mapping of which nobody was told that it is there,
// also when the stop itself is cut short. One that is there stands in it.
func TestMapThatAStopCutsShort(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	c := client.start()
	mustExport(t, server.h, memory("there", 1<<20))
	there := mustMap(t, c, MapSpec{Node: server.node(), Name: "there", Persist: true})
	l, err := net.Listen("tcp", fmt.Sprint("127.0.0.77:", port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	told := make(chan error, 1)
	go func() { // it is connected to, and nobody answers
		_, err := c.Map(context.Background(), MapSpec{Node: "127.0.0.77", Name: "cut", Persist: true})
		told <- err
	}()
	mapped := func() (list []string) {
		for _, m := range c.snapshot(false).Mappings {
			list = append(list, m.Name)
		}
		return list
	}
	eventually(t, "it is being mapped", func() bool { return len(c.Mappings()) == 2 })
	if now := mapped(); len(now) != 1 || now[0] != there.Name {
		t.Errorf("a stop would write down %v", now)
	}
	client.stop()
	select {
	case err := <-told:
		if err == nil {
			t.Error("it is mapped")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Map has not ended with the daemon")
	}
	client.start()
	if l := client.h.Mappings(); len(l) != 1 || l[0].ID != there.ID {
		t.Errorf("after the start: %+v", l)
	}
}
