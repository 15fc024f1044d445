package blk

import "sync"

// hook lets a layer that only observes hear of a completion: while the request is below,
// its Queue is the layer and its Ctx the hook, which keeps the former values.
type hook struct {
	queue Completer
	ctx   any
	since int64 // ns, of the layer's clock
}

var hooks = sync.Pool{New: func() any { return new(hook) }}

func setHook(r *Request, layer Completer, since int64) {
	h := hooks.Get().(*hook)
	h.queue, h.ctx, h.since = r.Queue, r.Ctx, since
	r.Queue, r.Ctx = layer, h
}

// unhook restores the request and returns since.
func unhook(r *Request) int64 {
	h := r.Ctx.(*hook)
	since := h.since
	r.Queue, r.Ctx = h.queue, h.ctx
	*h = hook{}
	hooks.Put(h)
	return since
}
