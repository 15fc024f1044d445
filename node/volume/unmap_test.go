package volume

import (
	"testing"

	"github.com/rdsd/rdsd/blk"
)

// slow is a store that keeps every request until release is closed.
type slow struct {
	blk.Device
	at      chan struct{} // a request has come
	release chan struct{}
}

func (d slow) Submit(batch []*blk.Request) {
	d.at <- struct{}{}
	<-d.release
	d.Device.Submit(batch)
}

func (d slow) Unwrap() blk.Device { return d.Device }

// ended is a user of a volume who waits for one request.
type ended chan error

func (c ended) Complete(batch []*blk.Request) { c <- batch[0].Err }

// TestUnmapWithARequestAtTheServer: a mapping that nobody uses any more, but for a request
// that the server is slow to answer, is ended all the same. When the answer comes the
// session, which goes on for others, forgets the volume.
func TestUnmapWithARequestAtTheServer(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	at, release := make(chan struct{}, 1), make(chan struct{})
	server.wrap = func(name string, d blk.Device) blk.Device {
		if name == "slow" {
			return slow{d, at, release}
		}
		return d
	}
	server.start()
	client.start()
	mustExport(t, server.h, memory("slow", 1<<20))
	mustExport(t, server.h, memory("well", 1<<20))
	well := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "well"})
	m := mustMap(t, client.h, MapSpec{Node: server.node(), Name: "slow"})
	_, dev, err := client.h.volume(m.ID)
	if err != nil {
		t.Fatal(err)
	}
	request := make(ended, 1)
	dev.Submit([]*blk.Request{{Op: blk.OpRead, Len: 4096, Buf: make([]byte, 4096), Queue: request}})
	<-at
	if err := client.h.Unmap(testCtx(t), m.ID, false); err != nil {
		t.Fatal(err)
	}
	if n := len(client.h.Mappings()); n != 1 {
		t.Errorf("%d mappings, want the one that is still there", n)
	}
	close(release) // what the server has comes back in the server's time
	<-request
	eventually(t, "the session forgets the volume", func() bool {
		defer dev.c.look()()
		return len(dev.c.rn.Volumes()) == 1
	})
	if err := writePattern(open(t, well), 0, 64<<10, 1, 4096); err != nil {
		t.Errorf("another volume of the session: %v", err)
	}
}
