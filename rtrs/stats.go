package rtrs

import "time"

// PathStats are the statistics of a client's path, as the kernel's sysfs has
// them in stats/rdma, stats/reconnects and cur_latency. ResetStats sets all but
// Inflight and Latency to zero.
type PathStats struct {
	Reads, ReadBytes   uint64 // requests sent; bytes include the user headers
	Writes, WriteBytes uint64
	Inflight           int           // requests not answered yet
	Failovers          uint64        // requests taken over from a path that was lost
	Reconnects         uint64        // times it was connected again
	ReconnectsFailed   uint64        // attempts that failed
	Latency            time.Duration // of the last heartbeat's answer; 0: none yet
}

// ServerPathStats are those of a server's path.
type ServerPathStats struct {
	Reads, ReadBytes   uint64
	Writes, WriteBytes uint64
	Inflight           int
	Errors             uint64 // requests answered with an error
}

// ClientStats are numbers of a client as a whole.
type ClientStats struct {
	Up       bool
	Depth    int    // chunks of the server, 0 before the first Up
	MaxIO    int    // bytes, likewise
	Queued   int    // requests that wait for a permit or a path
	Inflight int    // requests sent and not answered
	Stranded int    // requests of a path that died and is not fenced
	Done     uint64 // requests that succeeded
	Failed   uint64 // requests with an error of either side
	Retried  uint64 // times a request was sent again
	// Timeouts are times that a request passed IOTimeout: its path was given up, or the store has it,
	// and then the first of those in flight on the path counts.
	Timeouts uint64
	Fences   uint64 // epochs that the server fenced for us
	// Unfenced are epochs whose requests were sent again without a fence, since the server is
	// a kernel and its time had passed; or failed, with RetryNever and a path that was removed.
	Unfenced   uint64
	Ups, Downs uint64
}
