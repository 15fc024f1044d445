package volume

import (
	"sync"
	"testing"

	"github.com/rdsd/rdsd/blk"
)

// closing is a store that has its last user close it before it is resized.
type closing struct {
	blk.Device
	once   *sync.Once
	unmap  func()
	closed chan struct{}
}

func (d *closing) Unwrap() blk.Device { return d.Device }

func (d *closing) Close() error {
	defer close(d.closed)
	return d.Device.Close()
}

func (d *closing) Resize(size uint64) error {
	d.once.Do(func() {
		d.unmap()
		<-d.closed
	})
	r, _ := blk.As[blk.Resizer](d.Device)
	return r.Resize(size)
}

// TestResizeWhileTheLastUserGoes: that a store is closed under a resize is no failure of it.
func TestResizeWhileTheLastUserGoes(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	var once sync.Once
	var m MappingInfo
	server.wrap = func(name string, d blk.Device) blk.Device {
		return &closing{d, &once, func() {
			if err := client.h.Unmap(testCtx(t), m.ID, true); err != nil {
				t.Error(err)
			}
		}, make(chan struct{})}
	}
	server.start()
	client.start()
	mustExport(t, server.h, file(t, "disk", 8<<20))
	m = mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"})
	if n, err := server.h.ResizeExport(testCtx(t), "disk", 16<<20); err != nil || n != 16<<20 {
		t.Errorf("%d bytes, %v", n, err)
	}
	if m = mustMap(t, client.h, MapSpec{Node: server.node(), Name: "disk"}); m.Info.Size != 16<<20 {
		t.Errorf("%d bytes", m.Info.Size)
	}
}
