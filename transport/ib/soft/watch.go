package soft

import (
	"context"
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/netlocal"
	"github.com/rdsd/rdsd/transport/ib"
)

// watcher has a device follow its interface.
type watcher struct {
	open func() (news, error)
	rest func(over <-chan struct{}) // between attempts to do what has failed

	over context.Context // until close
	end  func()
	done sync.WaitGroup

	mu  sync.Mutex
	now news // nil: it has failed, and another one has to be opened; guarded by mu
}

// news tell that something of the machine's network has changed.
type news interface {
	Next() error
	Close() error
}

// again is how long the kernel has rest that could not be asked.
const again = time.Second

// watchDevice has d follow its interface from now on.
func watchDevice(d *Device) *watcher {
	o := newWatcher(func() (n news, err error) {
		d.cfg.Within(func() { n, err = netlocal.WatchChanges() })
		return n, err
	}, func(over <-chan struct{}) {
		t := time.NewTimer(again)
		defer t.Stop()
		select {
		case <-t.C:
		case <-over:
		}
	})
	if err := o.renew(); err != nil {
		o.warn(d, err)
	}
	o.done.Add(1)
	go o.run(d) // ends when o is closed
	return o
}

func newWatcher(open func() (news, error), rest func(over <-chan struct{})) *watcher {
	o := &watcher{open: open, rest: rest}
	o.over, o.end = context.WithCancel(context.Background())
	return o
}

func (o *watcher) warn(d *Device, err error) {
	d.cfg.Log.Warn("changes of interfaces are not told of for the moment: the one of a RoCE device is asked for each second", "device", d.name(), "error", err)
}

// run looks at once, for what has changed before there were news, and whenever there are. While the kernel
// tells none, or does not say what there is, it looks each second.
func (o *watcher) run(d *Device) {
	defer o.done.Done()
	defer d.cfg.Guard.Recover(guard.Task, nil)
	for known := d.look(); ; known = d.look() {
		var err error
		if known {
			err = o.next(d)
		}
		if err != nil || !known {
			o.rest(o.over.Done())
		}
		if o.over.Err() != nil {
			return
		}
	}
}

// next waits for news. What has happened while there was nobody to tell is news as well.
func (o *watcher) next(d *Device) error {
	o.mu.Lock()
	n := o.now
	o.mu.Unlock()
	if n == nil {
		return o.renew()
	}
	err := n.Next()
	if err != nil {
		o.mu.Lock()
		o.now = nil
		o.mu.Unlock()
		n.Close()
		if o.over.Err() == nil {
			o.warn(d, err)
		}
	}
	return err
}

// renew opens what has failed.
func (o *watcher) renew() error {
	n, err := o.open()
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.over.Err(); err != nil {
		n.Close()
		return err
	}
	o.now = n
	return nil
}

func (o *watcher) close() {
	o.end()
	o.mu.Lock()
	if o.now != nil {
		o.now.Close()
	}
	o.mu.Unlock()
	o.done.Wait()
}

// caps are what a device of this package does.
var caps = ib.Caps{AnyMemory: true, Places: true, Faults: true, PeerRevokes: true, Fills: true, Guards: true, SecretKeys: true}

var _ ib.Verbs = (*Device)(nil)
