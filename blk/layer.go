package blk

import "sync/atomic"

// A layer is a Device over another one, embedded. Closing the uppermost closes
// the whole stack; a layer that is only a view (ReadOnly, Split) may just be
// dropped instead.

// As finds the first of a stack of layers that is a T.
func As[T any](d Device) (t T, ok bool) {
	for d != nil {
		if t, ok = d.(T); ok {
			return t, true
		}
		layer, below := d.(interface{ Unwrap() Device })
		if !below {
			break
		}
		d = layer.Unwrap()
	}
	return t, false
}

// view is a device with another Info than the one below.
type view struct {
	Device
	change func(*Info)
	cache  atomic.Pointer[viewInfo]
}

type viewInfo struct{ below, seen *Info }

func (v *view) Unwrap() Device { return v.Device }

func (v *view) Info() *Info {
	below := v.Device.Info()
	c := v.cache.Load()
	if c == nil || c.below != below {
		seen := *below
		v.change(&seen)
		c = &viewInfo{below, &seen}
		v.cache.Store(c)
	}
	return c.seen
}

func (v *view) Watch(f func(*Info)) (stop func()) {
	return v.Device.Watch(func(*Info) { f(v.Info()) })
}

// readOnly refuses requests that write.
type readOnly struct{ view }

// ReadOnly is a view of a device through which nothing is written.
func ReadOnly(d Device) Device {
	r := &readOnly{}
	r.Device = d
	r.change = func(i *Info) { i.ReadOnly = true }
	return r
}

func (l *readOnly) Submit(batch []*Request) {
	info := l.Info()
	handOn(l.Device, batch, func(r *Request) bool {
		if !r.Op.Writes() {
			return false
		}
		r.Err = info.Check(r)
		one := [1]*Request{r}
		Complete(one[:])
		return true
	})
}

// handOn submits to d the requests of a batch that take does not take.
func handOn(d Device, batch []*Request, take func(*Request) bool) {
	from := 0 // batch[from:i] waits to be handed on
	for i, r := range batch {
		// A request is looked at before it is handed on: afterwards it belongs to d.
		if !take(r) {
			continue
		}
		if from < i {
			d.Submit(batch[from:i])
		}
		from = i + 1
	}
	if from < len(batch) {
		d.Submit(batch[from:])
	}
}
