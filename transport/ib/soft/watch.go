package soft

import (
	"sync"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/netlocal"
	"github.com/rdsd/rdsd/transport/ib"
)

// watcher has a device follow its interface.
type watcher struct {
	w    *netlocal.ChangeWatch
	done sync.WaitGroup
}

func watchDevice(d *Device) (*watcher, error) {
	var w *netlocal.ChangeWatch
	var err error
	d.cfg.Within(func() { w, err = netlocal.WatchChanges() })
	if err != nil {
		return nil, err
	}
	o := &watcher{w: w}
	o.done.Add(1)
	go o.run(d) // ends when w is closed
	return o, nil
}

func (o *watcher) run(d *Device) {
	defer o.done.Done()
	defer d.cfg.Guard.Recover(guard.Task, nil)
	for o.w.Next() == nil {
		d.Changed()
	}
}

func (o *watcher) close() {
	o.w.Close()
	o.done.Wait()
}

// caps are what a device of this package does.
var caps = ib.Caps{AnyMemory: true, Places: true, Faults: true, PeerRevokes: true, Fills: true, Guards: true, SecretKeys: true}

var _ ib.Verbs = (*Device)(nil)
