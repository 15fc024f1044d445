package rdsd

import (
	"context"
	"iter"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// WatchOption changes what Volumes.Watch begins with.
type WatchOption func(*rdsdv1.VolumeWatchRequest)

// WatchAfter begins with the events after a number, as far as the daemon still has them;
// missing ones show as an EventGap.
func WatchAfter(number uint64) WatchOption {
	return func(r *rdsdv1.VolumeWatchRequest) { r.SetAfter(number); r.SetKept(number == 0) }
}

// WatchOf says of which start of the daemon the number of WatchAfter is (VolumeEvent.Instance). If
// it was another, an EventGap comes and then what the daemon has kept: numbers begin anew with each.
func WatchOf(instance uint64) WatchOption {
	return func(r *rdsdv1.VolumeWatchRequest) { r.SetInstance(instance) }
}

// WatchKept begins with all events the daemon still has.
func WatchKept() WatchOption { return WatchAfter(0) }

// Watch reports what happens to volumes from the moment it returns (or from an
// earlier one, see WatchOption) until ctx ends or the loop is left. A failure,
// such as a daemon that stops, is the last element. Ranging over it works once;
// if that never happens, the watch lasts until ctx ends.
func (v *Volumes) Watch(ctx context.Context, opts ...WatchOption) iter.Seq2[*VolumeEvent, error] {
	req := &rdsdv1.VolumeWatchRequest{}
	for _, o := range opts {
		o(req)
	}
	return watch(ctx, "watch volumes", v.pb.Watch, req, eventFromProto)
}
