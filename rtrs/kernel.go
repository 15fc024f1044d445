package rtrs

import (
	"fmt"
	"time"
)

// KernelTimes are how a path to a kernel is watched, by either side. A field that is zero
// has the kernel's own value, which nobody can change there
// (drivers/infiniband/ulp/rtrs/rtrs-pri.h): a kernel that loses a path tries it again after
// 31 s at the earliest, so that it must not be lost for a moment of silence.
type KernelTimes struct {
	HeartbeatEvery time.Duration // 5 s
	MissedLimit    int           // intervals of silence that end a path; 6
	ConnectTimeout time.Duration // for each of a path's connections, and the first messages; 30 s
}

// withDefaults fills in fields that are zero, and returns an error for a wrong one.
func (k KernelTimes) withDefaults() (KernelTimes, error) {
	def(&k.HeartbeatEvery, 5*time.Second)
	def(&k.MissedLimit, 6)
	def(&k.ConnectTimeout, 30*time.Second)
	if k.ConnectTimeout < 0 {
		return k, fmt.Errorf("%v for a connection of a kernel, it cannot be negative", k.ConnectTimeout)
	}
	return k, checkHeartbeat(k.HeartbeatEvery, k.MissedLimit)
}

// pulse is the interval of a path's heartbeats, and how many of them may pass in silence.
type pulse struct {
	every  time.Duration
	missed int
}

// silence returns how long a path may be silent.
func (h pulse) silence() time.Duration { return h.every * time.Duration(h.missed) }

// pulse returns that of a path: ours, or if the other end is a kernel, k's.
func (k *KernelTimes) pulse(kernel bool, ours pulse) pulse {
	if kernel {
		return pulse{k.HeartbeatEvery, k.MissedLimit}
	}
	return ours
}
