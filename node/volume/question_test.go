package volume

import (
	"context"
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
