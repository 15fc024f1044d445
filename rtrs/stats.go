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
	Timeouts uint64 // requests that gave their path up
	Fences   uint64 // epochs that the server fenced for us
	// Unfenced are epochs whose requests were sent again without a fence, since the server is
	// a kernel and its time had passed.
	Unfenced   uint64
	Ups, Downs uint64
}
