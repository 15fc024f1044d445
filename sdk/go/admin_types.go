package rdsd

import (
	"net/netip"
	"time"
)

// What Admin returns. The names in the JSON of these types are those that the
// commands of rdsd print with --json: durations are nanoseconds (_ns), sizes bytes
// (_bytes), and a list that is empty is [] and not null.

// Status is a daemon as a whole.
type Status struct {
	Version           string        `json:"version"`
	Instance          uint64        `json:"instance"` // changes with every start of the daemon
	State             string        `json:"state"`    // "serving" or "draining"
	Uptime            time.Duration `json:"uptime_ns"`
	LocalAddresses    []netip.Addr  `json:"local_addresses"`     // those it speaks RDS from
	RDSPort           uint16        `json:"rds_port"`            // TCP port of its RDS listener
	Peers             uint32        `json:"peers"`               // it knows of
	PeersUp           uint32        `json:"peers_up"`            // of these, with a path that is up
	Sockets           uint32        `json:"sockets"`             // bound by applications
	MemoryUsedBytes   uint64        `json:"memory_used_bytes"`   // charged to MemoryBudgetBytes
	MemoryBudgetBytes uint64        `json:"memory_budget_bytes"` // limits.memory_bytes of the configuration
	ConfigFile        string        `json:"config_file"`         // "": none, defaults alone
	Budgets           []Budget      `json:"budgets"`
	HTTPAddress       string        `json:"http_address"` // of its page for monitoring, "127.0.0.1:16386" or "unix:/run/rdsd/http.sock"; "": off
	Healthy           bool          `json:"healthy"`      // no problem is a warning or an error
	Severity          Severity      `json:"severity"`     // of the worst problem
	Problems          []Problem     `json:"problems"`     // the worst first
}

// Problem is something that is not as it should be, and what mends it. Codes stay what
// they are: docs/operations.md has all of them.
type Problem struct {
	Code     string        `json:"code"` // "peer-down", "port-congested", ...
	Severity Severity      `json:"severity"`
	Subject  string        `json:"subject"`  // what it is about: "peer 10.0.0.2", "limits.max_peers"; "": the node
	Text     string        `json:"text"`     // what is so
	Remedy   string        `json:"remedy"`   // a command, or a line of the configuration, and when to use it
	Since    time.Duration `json:"since_ns"` // for so long; 0: not known, or since the daemon started
}

// ErrorLog is what the daemon's log has said of errors.
type ErrorLog struct {
	Errors    []LoggedError `json:"errors"`    // the last one first
	Forgotten uint64        `json:"forgotten"` // distinct errors that had to make room for others
}

// LoggedError is a warning or an error of the daemon's log, however often it was
// logged: lines that say the same of the same thing are one.
type LoggedError struct {
	Severity Severity  `json:"severity"`
	Message  string    `json:"message"` // what the line says
	Subject  string    `json:"subject"` // of what: "peer=10.0.0.2 path=0"; may be ""
	Error    string    `json:"error"`   // why, as the last line said; may be ""
	First    time.Time `json:"first"`   // of the daemon's wall clock, UTC
	Last     time.Time `json:"last"`
	Count    uint64    `json:"count"` // lines, with those that log.lines_per_second left out
}

// Budget is one configured limit and what is used of it.
type Budget struct {
	Name    string `json:"name"` // "memory", "peers", "sockets", "handshakes", ...
	Used    uint64 `json:"used"`
	Limit   uint64 `json:"limit"`
	Refused uint64 `json:"refused"` // how often it said no
}

// PeerKind is what the other end of a connection is.
type PeerKind string

// The kinds of peers.
const (
	PeerUnknown      PeerKind = "unknown" // it has not said yet
	PeerRDSD         PeerKind = "rdsd"
	PeerKernelLegacy PeerKind = "kernel-legacy" // Linux before lanes by source port: one path
	PeerKernel       PeerKind = "kernel"        // Linux with lanes by source port
)

// PeerState is the state of a lane to a peer, or of the best one it has.
type PeerState string

// The states of lanes to peers, the best one first.
const (
	StateUp            PeerState = "up"
	StateConnecting    PeerState = "connecting"
	StateDisconnecting PeerState = "disconnecting"
	StateError         PeerState = "error" // the last attempt failed; another one comes
	StateDown          PeerState = "down"
	StateUnknown       PeerState = "unknown" // a peer without lanes
)

// Peer is the connection between a local address and one of another node.
type Peer struct {
	Local          netip.Addr    `json:"local"`
	Remote         netip.Addr    `json:"remote"`
	Kind           PeerKind      `json:"kind"`
	Authenticated  bool          `json:"authenticated"` // false until nodes speak TLS
	State          PeerState     `json:"state"`         // the best of its lanes'
	Incarnation    uint64        `json:"incarnation"`   // of the peer; 0 when unknown
	Lanes          uint32        `json:"lanes"`         // how many both ends have agreed on
	RTT            time.Duration `json:"rtt_ns"`        // last measured; 0 when none
	Queued         uint64        `json:"queued"`        // datagrams not yet sent
	QueuedBytes    uint64        `json:"queued_bytes"`
	Unacked        uint64        `json:"unacked"` // datagrams sent, not acknowledged
	UnackedBytes   uint64        `json:"unacked_bytes"`
	Held           uint64        `json:"held"`            // datagrams it refused for lack of room, to be sent again
	CongestedPorts uint32        `json:"congested_ports"` // ports of it that are marked congested
	LastError      string        `json:"last_error"`      // of the first lane that has one
	Paths          []PeerPath    `json:"paths"`           // the lanes that were used, by their index
	VolumePaths    []VolumePath  `json:"volume_paths"`    // those of volumes between the two, whichever end is the client
}

// PeerPath is one lane of a Peer, with a link of its own.
type PeerPath struct {
	Index          uint32        `json:"index"` // of the lane, from 0
	State          PeerState     `json:"state"`
	NextTxSeq      uint64        `json:"next_tx_seq"`
	NextRxSeq      uint64        `json:"next_rx_seq"`
	LocalEndpoint  string        `json:"local_endpoint"` // of the transport, "10.0.0.1:16385"; "" without a link
	RemoteEndpoint string        `json:"remote_endpoint"`
	UpFor          time.Duration `json:"up_since_ns"` // since it came up; 0 when not up
	Reconnects     uint64        `json:"reconnects"`
	LastError      string        `json:"last_error"`
	SentBytes      uint64        `json:"sent_bytes"`
	ReceivedBytes  uint64        `json:"received_bytes"`
	SendCredits    uint32        `json:"send_credits"` // of rdsd peers
	ReadPaused     bool          `json:"read_paused"`  // a full receiver stops the link of a kernel
	ErrorAge       time.Duration `json:"error_age_ns"` // how long ago LastError was; 0 without one
	Attempts       uint32        `json:"attempts"`     // in a row that brought no usable link
	RetryIn        time.Duration `json:"retry_in_ns"`  // when it is tried again; 0: now, or it does not wait for that
}

// PeerFilter chooses peers by the addresses of both ends; one that is not valid
// fits any.
type PeerFilter struct {
	Local  netip.Addr
	Remote netip.Addr
}

// SocketInfo is a socket that an application has bound, of any client of the daemon.
// Accepted is the sum of Delivered, Cancelled, Failed, Unknown and InFlight.
type SocketInfo struct {
	Local              netip.AddrPort `json:"local"`
	UID                uint32         `json:"uid"`
	PID                uint32         `json:"pid"`
	Label              string         `json:"label"` // WithLabel
	SendBufferBytes    uint64         `json:"send_buffer_bytes"`
	SendQueuedBytes    uint64         `json:"send_queued_bytes"` // accounted against the send buffer
	RecvBufferBytes    uint64         `json:"recv_buffer_bytes"`
	RecvQueuedBytes    uint64         `json:"recv_queued_bytes"`
	RecvHardLimitBytes uint64         `json:"recv_hard_limit_bytes"`
	RecvQueued         uint64         `json:"recv_queued"` // datagrams not read yet
	Congested          bool           `json:"congested"`   // its port is marked so
	Accepted           uint64         `json:"accepted"`    // datagrams, as all that follow
	Delivered          uint64         `json:"delivered"`
	Cancelled          uint64         `json:"cancelled"`
	Failed             uint64         `json:"failed"`
	Unknown            uint64         `json:"unknown"`
	InFlight           uint64         `json:"in_flight"`
	Received           uint64         `json:"received"`      // read by the application
	WaitingSends       uint32         `json:"waiting_sends"` // calls that wait for room
	Inode              uint64         `json:"inode"`         // the daemon's number of the socket
	RingBytes          uint64         `json:"ring_bytes"`    // memory shared with the client, in use; 0 without rings
	RingMaxBytes       uint64         `json:"ring_max_bytes"`
	Program            string         `json:"program"` // what the kernel calls the process PID; "" when it cannot be told
}

// QueueKind is where a datagram waits.
type QueueKind string

// The queues of a daemon.
const (
	QueueAll     QueueKind = ""        // asked for: every one of them
	QueueSend    QueueKind = "send"    // waiting to be sent
	QueueRetrans QueueKind = "retrans" // sent, not acknowledged
	QueueRecv    QueueKind = "recv"    // received, not read
)

// QueuedDatagram is one datagram in a queue of the daemon.
type QueuedDatagram struct {
	Queue  QueueKind      `json:"queue"`
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	Seq    uint64         `json:"seq"`
	Bytes  uint64         `json:"bytes"`
	Lane   uint32         `json:"lane"`
}

// Counter is one counter of the daemon, or of a peer.
type Counter struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
	Help  string `json:"help,omitempty"` // what it counts
}

// CongestedPort is a port that is congested, as seen from the daemon's node, and who
// is held up by it. Of a port of another node, what its reader has queued, who the
// reader is and who fills it are known if that node runs rdsd, and are 0 otherwise.
type CongestedPort struct {
	Endpoint       netip.AddrPort `json:"endpoint"`
	Local          bool           `json:"local"`    // the reader is on this node
	CongestedFor   time.Duration  `json:"since_ns"` // of a port of another node that concerns no socket here at least so long: since that node last told a change
	QueuedBytes    uint64         `json:"queued_bytes"`
	ReaderUID      uint32         `json:"reader_uid"`
	ReaderPID      uint32         `json:"reader_pid"`
	WaitingSenders uint32         `json:"waiting_senders"` // sockets of this node that wait for it
	Blocked        uint64         `json:"blocked"`         // sends refused or blocked by it so far
	Culprits       []Culprit      `json:"culprits"`        // who fills it, largest first
}

// Culprit is a sender of what a CongestedPort has queued.
type Culprit struct {
	Source          netip.AddrPort `json:"source"`
	QueuedDatagrams uint64         `json:"queued_datagrams"`
	QueuedBytes     uint64         `json:"queued_bytes"`
}

// CongestionHistory is the last hour of congestion, in slots of equal length of which the
// newest is not over. What comes and goes within some milliseconds may be missing.
type CongestionHistory struct {
	End    time.Time     `json:"end"`     // of the newest slot, by the daemon's clock
	Slot   time.Duration `json:"slot_ns"` // the length of one
	Slots  int           `json:"slots"`   // that are kept; slot 0 is the oldest
	Kept   time.Duration `json:"kept_ns"` // for so long it has been kept: less than the slots after a start
	Ports  []PortHistory `json:"ports"`   // longest congested first; bounded
	Others PortHistory   `json:"others"`  // the ports that are kept no more, together: their times are added
}

// PortHistory is a port in the last hour. The reader and the culprits are those that were
// last known.
type PortHistory struct {
	Endpoint       netip.AddrPort `json:"endpoint"`
	Local          bool           `json:"local"`        // the reader is on this node
	Congested      bool           `json:"congested"`    // now
	CongestedFor   time.Duration  `json:"congested_ns"` // in the hour
	Times          uint32         `json:"times"`        // how often it became congested, since it is kept
	Slots          []PortSlot     `json:"slots"`        // those in which it was congested, oldest first
	ReaderUID      uint32         `json:"reader_uid"`   // 0 with ReaderPID 0: not known
	ReaderPID      uint32         `json:"reader_pid"`
	ReaderProgram  string         `json:"reader_program"`
	Culprits       []Culprit      `json:"culprits"`        // who filled it, largest first
	CongestedPorts uint32         `json:"congested_ports"` // of Others: how many of them are congested now
}

// PortSlot is for how long a port was congested in a slot.
type PortSlot struct {
	Index        int           `json:"index"` // 0 is the oldest
	CongestedFor time.Duration `json:"congested_ns"`
}

// CongestionMaps are the maps of nodes that have a congested port, at most 64 of them.
type CongestionMaps struct {
	Maps    []CongestionMap `json:"maps"`
	LeftOut int             `json:"left_out"` // nodes that have a congested port and no map here
}

// CongestionMap is which ports of a node are congested.
type CongestionMap struct {
	Node     netip.Addr `json:"node"`
	Local    bool       `json:"local"`     // this node
	SeenFrom netip.Addr `json:"seen_from"` // the address of this node whose peer it is
	Ports    []uint16   `json:"ports"`     // rising
}

// CongestionNotice says that a port became congested or clear.
type CongestionNotice struct {
	Time      time.Time      `json:"time"`
	Endpoint  netip.AddrPort `json:"endpoint"`
	Local     bool           `json:"local"` // the reader is on this node
	Congested bool           `json:"congested"`
}

// PingSpec asks for a ping.
type PingSpec struct {
	Remote  netip.Addr
	Local   netip.Addr    // not valid: any address of the daemon of the same family
	Timeout time.Duration // how long the daemon waits for the answer; 0: 5 s
}

// Pong is the answer to a ping.
type Pong struct {
	Local netip.Addr    `json:"local"` // where the ping left from
	RTT   time.Duration `json:"rtt_ns"`
}
