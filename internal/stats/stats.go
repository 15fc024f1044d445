package stats

import "reflect"

// Counters under the names rds-info -c prints (net/rds/stats.c), then those
// of rdsd itself. The kernel's counters that can never move in user space
// (page_remainder_hit and the like) are kept, so that the old tools' output has
// the old lines.
type Counters struct {
	ConnReset           uint64 `name:"conn_reset" help:"links lost or dropped"`
	RecvDropBadChecksum uint64 `name:"recv_drop_bad_checksum" help:"headers with a wrong checksum; each resets its link"`
	RecvDropOldSeq      uint64 `name:"recv_drop_old_seq" help:"retransmissions of what had arrived"`
	RecvDropNoSock      uint64 `name:"recv_drop_no_sock" help:"datagrams for a port nobody owns"`
	RecvDropDeadSock    uint64 `name:"recv_drop_dead_sock" help:"unread datagrams of closed sockets"`
	RecvDeliverRaced    uint64 `name:"recv_deliver_raced" help:"kernel only"`
	RecvDelivered       uint64 `name:"recv_delivered" help:"datagrams read by applications"`
	RecvQueued          uint64 `name:"recv_queued" help:"datagrams placed in a receive queue"`
	RecvImmediateRetry  uint64 `name:"recv_immediate_retry" help:"kernel only"`
	RecvDelayedRetry    uint64 `name:"recv_delayed_retry" help:"kernel only"`
	RecvAckRequired     uint64 `name:"recv_ack_required" help:"frames that asked for an acknowledgement"`
	RecvRDMABytes       uint64 `name:"recv_rdma_bytes" help:"kernel only"`
	RecvPing            uint64 `name:"recv_ping" help:"pings received, handshakes included"`
	SendQueueEmpty      uint64 `name:"send_queue_empty" help:"transmit turns that emptied the queue"`
	SendQueueFull       uint64 `name:"send_queue_full" help:"sends that met a full send buffer"`
	SendLockContention  uint64 `name:"send_lock_contention" help:"sends that left their frames to another transmitter"`
	SendLockQueueRaced  uint64 `name:"send_lock_queue_raced" help:"kernel only"`
	SendImmediateRetry  uint64 `name:"send_immediate_retry" help:"kernel only"`
	SendDelayedRetry    uint64 `name:"send_delayed_retry" help:"transmit turns that met a full link and went on when it had room"`
	SendDropAcked       uint64 `name:"send_drop_acked" help:"datagrams acknowledged before they were sent again"`
	SendAckRequired     uint64 `name:"send_ack_required" help:"frames sent that ask for an acknowledgement"`
	SendQueued          uint64 `name:"send_queued" help:"datagrams accepted"`
	SendRDMA            uint64 `name:"send_rdma" help:"kernel only"`
	SendRDMABytes       uint64 `name:"send_rdma_bytes" help:"kernel only"`
	SendPong            uint64 `name:"send_pong" help:"pings and pongs sent, handshakes included"`
	PageRemainderHit    uint64 `name:"page_remainder_hit" help:"kernel only"`
	PageRemainderMiss   uint64 `name:"page_remainder_miss" help:"kernel only"`
	CopyToUser          uint64 `name:"copy_to_user" help:"payload bytes read by applications"`
	CopyFromUser        uint64 `name:"copy_from_user" help:"payload bytes accepted from applications"`
	CongUpdateQueued    uint64 `name:"cong_update_queued" help:"congestion updates sent"`
	CongUpdateReceived  uint64 `name:"cong_update_received" help:"congestion updates received"`
	CongSendError       uint64 `name:"cong_send_error" help:"sends refused because the destination is congested"`
	CongSendBlocked     uint64 `name:"cong_send_blocked" help:"sends that wait because the destination is congested"`
	RecvBytesAdded      uint64 `name:"recv_bytes_added_to_sock" help:"payload bytes put into receive queues"`
	RecvBytesFreed      uint64 `name:"recv_bytes_freed_fromsock" help:"payload bytes taken from receive queues"`
	SendStuckRm         uint64 `name:"send_stuck_rm" help:"kernel only"`

	TCPDataReady    uint64 `name:"tcp_data_ready_calls" help:"reads from TCP that brought bytes"`
	TCPWriteSpace   uint64 `name:"tcp_write_space_calls" help:"times a full link took bytes again"`
	TCPSndbufFull   uint64 `name:"tcp_sndbuf_full" help:"writes that met a full socket buffer"`
	TCPConnectRaced uint64 `name:"tcp_connect_raced" help:"kernel only"`
	TCPListenStale  uint64 `name:"tcp_listen_closed_stale" help:"stale links replaced by a new one of the same peer"`

	SentBytes        uint64 `name:"sent_bytes" own:"1" help:"bytes given to links, headers included"`
	ReceivedBytes    uint64 `name:"received_bytes" own:"1" help:"bytes taken from links, headers included"`
	SentFrames       uint64 `name:"sent_frames" own:"1" help:"frames given to links"`
	ReceivedFrames   uint64 `name:"received_frames" own:"1" help:"frames taken from links"`
	SendJoined       uint64 `name:"send_joined" own:"1" help:"datagrams that left in one frame with others that were posted apart"`
	Retransmitted    uint64 `name:"retransmitted_frames" own:"1" help:"frames sent again"`
	AckOnlySent      uint64 `name:"ack_only_sent" own:"1" help:"frames sent for their acknowledgement alone"`
	AckOnlyReceived  uint64 `name:"ack_only_received" own:"1" help:"frames received for their acknowledgement alone"`
	HeartbeatSent    uint64 `name:"heartbeat_sent" own:"1" help:"heartbeats asked of the peer"`
	HeartbeatLost    uint64 `name:"heartbeat_lost" own:"1" help:"links dropped because the peer fell silent"`
	CreditStall      uint64 `name:"credit_stall" own:"1" help:"transmit turns stopped for lack of credits"`
	CreditWithheld   uint64 `name:"credit_withheld" own:"1" help:"times credits were kept back because the memory budget was spent"`
	HoldEnter        uint64 `name:"hold_enter" own:"1" help:"datagrams kept back because their destination is full"`
	HoldResume       uint64 `name:"hold_resume" own:"1" help:"flows resumed after being kept back"`
	LaneMoved        uint64 `name:"lane_moved" own:"1" help:"flows that left a loaded lane for another"`
	RefuseNoPort     uint64 `name:"refuse_no_port" own:"1" help:"datagrams refused to the sender: no such port"`
	RefuseNoRoom     uint64 `name:"refuse_no_room" own:"1" help:"datagrams refused to the sender: receiver at its hard limit"`
	ReadPaused       uint64 `name:"read_paused" own:"1" help:"times a kernel link was paused because a receiver is full"`
	ProtocolError    uint64 `name:"protocol_error" own:"1" help:"links reset because the peer broke the protocol"`
	IllegalEvent     uint64 `name:"illegal_event" own:"1" help:"events a lane's state does not allow"`
	PongDropped      uint64 `name:"pong_dropped" own:"1" help:"pings not answered because too many answers wait"`
	PeerRestarted    uint64 `name:"peer_restarted" own:"1" help:"new incarnations of peers"`
	PeerKindChanged  uint64 `name:"peer_kind_changed" own:"1" help:"peers that turned from kernel to rdsd or back"`
	HandshakeTimeout uint64 `name:"handshake_timeout" own:"1" help:"handshakes the peer did not answer"`
	PokeSent         uint64 `name:"poke_sent" own:"1" help:"connections made only to ask the peer to connect"`
	PokeReceived     uint64 `name:"poke_received" own:"1" help:"pokes received"`
	DialFailed       uint64 `name:"dial_failed" own:"1" help:"connection attempts that failed"`
	Reconnects       uint64 `name:"reconnects" own:"1" help:"connection attempts after the first"`
	AcceptRefused    uint64 `name:"accept_refused" own:"1" help:"connections refused: no lane for them"`
	SendTooMany      uint64 `name:"send_too_many" own:"1" help:"sends refused because too many datagrams of the socket are undecided"`
	SendTimeout      uint64 `name:"send_timeout" own:"1" help:"waiting sends whose deadline passed"`
	SendCancelled    uint64 `name:"send_cancelled" own:"1" help:"datagrams cancelled before they left"`
	OutcomeDelivered uint64 `name:"outcome_delivered" own:"1" help:"datagrams whose outcome is delivered"`
	OutcomeFailed    uint64 `name:"outcome_failed" own:"1" help:"datagrams whose outcome is failed"`
	OutcomeUnknown   uint64 `name:"outcome_unknown" own:"1" help:"datagrams whose outcome is unknown"`
	PeersEvicted     uint64 `name:"peers_evicted" own:"1" help:"peers that rested and made room for others"`
	MemoryRefused    uint64 `name:"memory_refused" own:"1" help:"datagrams not placed because the memory budget was spent"`
}

// Field describes one counter.
type Field struct {
	Name string // as in the struct tag
	Help string
	Own  bool // not a counter of the kernel
}

// Kernel reports whether nothing but a kernel can move the counter. It is there so that
// rds-info prints the lines it prints on a kernel.
func (f *Field) Kernel() bool { return f.Help == kernelOnly }

// kernelOnly is the help text of such a counter.
const kernelOnly = "kernel only"

// Fields lists the counters in the order of the struct.
var Fields = func() (fs []Field) {
	t := reflect.TypeFor[Counters]()
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		fs = append(fs, Field{tag.Get("name"), tag.Get("help"), tag.Get("own") != ""})
	}
	return fs
}()

// Values appends the counters' values, in the order of Fields.
func (c *Counters) Values(v []uint64) []uint64 {
	s := reflect.ValueOf(c).Elem()
	for i := range s.NumField() {
		v = append(v, s.Field(i).Uint())
	}
	return v
}

// Add adds d to c, field by field.
func (c *Counters) Add(d *Counters) {
	s, o := reflect.ValueOf(c).Elem(), reflect.ValueOf(d).Elem()
	for i := range s.NumField() {
		f := s.Field(i)
		f.SetUint(f.Uint() + o.Field(i).Uint())
	}
}
