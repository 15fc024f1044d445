package volume

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/blk"
)

// heldClose is a store whose close takes until release.
type heldClose struct {
	blk.Device
	asked   chan<- struct{} // has room
	release <-chan struct{}
	closed  *atomic.Bool
}

func (d *heldClose) Unwrap() blk.Device { return d.Device }

func (d *heldClose) Close() error {
	d.asked <- struct{}{}
	<-d.release
	err := d.Device.Close()
	d.closed.Store(true)
	return err
}

// TestUnexportWaitsForTheClose: who is told that a volume is not exported any more may have it written elsewhere, and what the close
// of the store here writes back would go over that. A caller who does not wait for it is told so, and force waits for nothing.
func TestUnexportWaitsForTheClose(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	asked := make(chan struct{}, 3)
	releases, closed := map[string]chan struct{}{}, map[string]*atomic.Bool{}
	for _, name := range []string{"waits", "gives up", "forces"} {
		releases[name], closed[name] = make(chan struct{}), &atomic.Bool{}
	}
	server.wrap = func(name string, d blk.Device) blk.Device {
		return &heldClose{d, asked, releases[name], closed[name]}
	}
	server.start()
	client.start()
	free := sync.OnceFunc(func() {
		for _, c := range releases {
			close(c)
		}
	})
	t.Cleanup(free)
	for name := range releases {
		mustExport(t, server.h, file(t, name, 1<<20))
		m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: name})
		if err := client.h.Unmap(testCtx(t), m.ID, false); err != nil {
			t.Fatal(err)
		}
		<-asked
	}
	if err := server.h.Unexport(testCtx(t), "forces", true); err != nil || closed["forces"].Load() {
		t.Errorf("by force: %v, and it is closed: %v", err, closed["forces"].Load())
	}
	ctx, giveUp := context.WithCancel(testCtx(t))
	giveUp()
	is(t, "given up", server.h.Unexport(ctx, "gives up", false), syscall.ETIMEDOUT, "still being closed")
	go func() { // ends when it is not exported, or with the test
		for len(server.h.Exports()) > 0 && t.Context().Err() == nil {
			time.Sleep(2 * time.Millisecond)
		}
		free()
	}()
	if err := server.h.Unexport(testCtx(t), "waits", false); err != nil || !closed["waits"].Load() {
		t.Errorf("%v, and it is closed: %v", err, closed["waits"].Load())
	}
}
