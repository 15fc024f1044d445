package volume

import (
	"context"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
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

// TestASessionEndsBeforeTheNext holds that the next session of a name begins when the last one was told to end, however long that takes to
// be said: a server would see two that live.
func TestASessionEndsBeforeTheNext(t *testing.T) {
	port := freePort(t)
	client := newClientNode(t, port)
	client.start()
	s := MapSpec{Node: "127.0.0.1", Name: "a"}
	if err := client.h.cfg.complete(&s); err != nil {
		t.Fatal(err)
	}
	first, err := client.h.session(testCtx(t), &s, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	first.mu.Lock() // it is busy, and cannot be told
	released := make(chan struct{})
	go func() {
		client.h.release(first)
		close(released)
	}()
	await.Until(t, time.Minute, "The session is about to be closed.", func() bool {
		client.h.mu.Lock()
		defer client.h.mu.Unlock()
		return first.refs == 0
	})
	if c, err := client.h.join(testCtx(t), &s, nil, true); c != nil || err != errEnding {
		t.Errorf("while it is being closed there is %v, %v", c, err)
	}
	first.mu.Unlock()
	<-released
	next, err := client.h.session(testCtx(t), &s, nil, true)
	if err != nil || next == first {
		t.Fatalf("the next is the last: %v, %v", next == first, err)
	}
	client.h.release(next)
}
