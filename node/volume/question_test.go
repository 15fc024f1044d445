package volume

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestQuestionsLendNoLimits holds that a mapping does not take over the session that a question about a volume has begun: it would keep the
// limits of the defaults, or be refused for asking for others. It waits until the question has its answer.
func TestQuestionsLendNoLimits(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "a", 1<<20))
	ask := MapSpec{Node: server.node(), Name: "a", Access: AccessRO}
	if err := client.h.cfg.complete(&ask); err != nil {
		t.Fatal(err)
	}
	question, err := client.h.session(testCtx(t), &ask, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	want := MapSpec{Node: server.node(), Name: "a", IOTimeout: 7 * time.Second, OnLoss: OnLossError}
	short, cancel := context.WithTimeout(testCtx(t), 20*time.Millisecond)
	defer cancel()
	if i, err := client.h.Map(short, want); err == nil {
		t.Fatalf("mapped over the session of a question: %+v", i)
	}
	mapped := make(chan MappingInfo)
	go func() {
		i, err := client.h.Map(testCtx(t), want)
		if err != nil {
			t.Error(err)
		}
		mapped <- i
	}()
	client.h.release(question)
	if i := <-mapped; i.IOTimeout != want.IOTimeout || i.OnLoss != OnLossError || i.State != StateOpen {
		t.Errorf("mapped as %+v", i)
	}
	// A question takes a session as it is.
	again, err := client.h.session(testCtx(t), &ask, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	client.h.release(again)
}

// TestQuestionsLendNoPaths is the same for the paths that a question was asked over.
func TestQuestionsLendNoPaths(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "a", 1<<20))
	ask := MapSpec{Node: server.node(), Name: "a", Paths: server.twoPaths()[1:], Access: AccessRO}
	if err := client.h.cfg.complete(&ask); err != nil {
		t.Fatal(err)
	}
	question, err := client.h.session(testCtx(t), &ask, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "its path", func() bool { return client.h.Sessions()[0].PathsUp == 1 })
	want := MapSpec{Node: server.node(), Name: "a"}
	short, cancel := context.WithTimeout(testCtx(t), 200*time.Millisecond)
	defer cancel()
	i, err := client.h.Map(short, want)
	client.h.release(question)
	if err == nil {
		t.Fatalf("mapped over the paths of a question: %+v", i.Paths)
	}
	if i := mustMap(t, client.h, want); i.PathCount != 1 || !strings.HasPrefix(i.Paths[0].Dst, server.node()) {
		t.Errorf("mapped over %+v", i.Paths)
	}
}

// TestQuestionsEndNoReader: a question about a volume does not pass for the mapping that reads it and is not back
// yet, whose users would go on with another file.
func TestQuestionsEndNoReader(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	ctx := testCtx(t)
	mustExport(t, server.h, file(t, "disk", 1<<20))
	mustExport(t, server.h, file(t, "written", 1<<20))
	ask := MapSpec{Node: server.node(), Name: "disk"}
	m := mustMap(t, client.h, MapSpec{Node: ask.Node, Name: ask.Name, Access: AccessRO, Persist: true})
	w := mustMap(t, client.h, MapSpec{Node: ask.Node, Name: "written", Session: "another", Persist: true})
	client.stop()
	for _, name := range []string{"disk", "written"} {
		if err := server.h.Unexport(ctx, name, true); err != nil {
			t.Fatal(err)
		}
	}
	client.start()
	for _, id := range []string{m.ID, w.ID} {
		eventually(t, "it was tried", func() bool {
			i, err := client.h.Mapping(id)
			return err == nil && i.LastError != ""
		})
	}
	_, err := client.h.RemoteInfo(ctx, ask)
	is(t, "the reader's", err, syscall.EBUSY, m.ID)
	for range 20 { // also beside an attempt of the mapping's own
		_, err = client.h.RemoteInfo(ctx, MapSpec{Node: ask.Node, Name: "written", Session: "another"})
		is(t, "the writer's", err, syscall.ENOENT, "")
	}
	mustExport(t, server.h, file(t, "disk", 1<<20))
	if i := back(t, client, m.ID); i.State != StateClosed {
		t.Errorf("with another file: %v", i.State)
	}
	if i, err := client.h.RemoteInfo(ctx, ask); err != nil {
		t.Errorf("afterwards: %+v, %v", i, err)
	}
}
