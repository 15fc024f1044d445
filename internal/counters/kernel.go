package counters

// Kernel holds the general and TCP counters of Linux net/rds, in the order
// `rds-info -c` prints them. The fields are plain: whoever owns the struct
// guards it. Daemon and peer each have one.
//
// Names and order are those of net/rds/stats.c and net/rds/tcp_stats.c. A
// counter whose cause does not exist in user space stays 0 and says so.
type Kernel struct {
	ConnReset              uint64 `counter:"conn_reset" help:"Links that went down after they had been up, or were reset on an error."`
	RecvDropBadChecksum    uint64 `counter:"recv_drop_bad_checksum" help:"Frames whose header checksum was wrong; the link is reset."`
	RecvDropOldSeq         uint64 `counter:"recv_drop_old_seq" help:"Retransmitted frames that had already been received."`
	RecvDropNoSock         uint64 `counter:"recv_drop_no_sock" help:"Datagrams to a port nobody has bound."`
	RecvDropDeadSock       uint64 `counter:"recv_drop_dead_sock" help:"Datagrams to a socket that was being closed or was past its hard limit."`
	RecvDeliverRaced       uint64 `counter:"recv_deliver_raced" help:"Datagrams cancelled while they were being read. Always 0 here: reading is done under the lock."`
	RecvDelivered          uint64 `counter:"recv_delivered" help:"Datagrams handed to an application."`
	RecvQueued             uint64 `counter:"recv_queued" help:"Datagrams put in the receive queue of a socket."`
	RecvImmediateRetry     uint64 `counter:"recv_immediate_retry" help:"Reads of a link that went on at once for want of a buffer. Always 0 over TCP."`
	RecvDelayedRetry       uint64 `counter:"recv_delayed_retry" help:"Reads of a link put off, because a receiver was full or memory was short."`
	RecvAckRequired        uint64 `counter:"recv_ack_required" help:"Frames received that asked for an acknowledgement."`
	RecvRDMABytes          uint64 `counter:"recv_rdma_bytes" help:"Bytes read by RDMA operations. Always 0 over TCP."`
	RecvPing               uint64 `counter:"recv_ping" help:"Pings received, handshakes included."`
	SendQueueEmpty         uint64 `counter:"send_queue_empty" help:"Times the transmitter found nothing left to send."`
	SendQueueFull          uint64 `counter:"send_queue_full" help:"Sends refused or made to wait because the send buffer was full."`
	SendLockContention     uint64 `counter:"send_lock_contention" help:"Senders that found the transmit token taken and left their frame to its holder."`
	SendLockQueueRaced     uint64 `counter:"send_lock_queue_raced" help:"Times the holder of the transmit token found new frames after it had let go."`
	SendImmediateRetry     uint64 `counter:"send_immediate_retry" help:"Writes to a link tried again at once."`
	SendDelayedRetry       uint64 `counter:"send_delayed_retry" help:"Writes to a link put off until it has room or memory."`
	SendDropAcked          uint64 `counter:"send_drop_acked" help:"Frames about to be sent again that turned out to be acknowledged. The kernel never moves this one."`
	SendAckRequired        uint64 `counter:"send_ack_required" help:"Frames sent that asked for an acknowledgement."`
	SendQueued             uint64 `counter:"send_queued" help:"Datagrams accepted and queued for sending."`
	SendRDMA               uint64 `counter:"send_rdma" help:"RDMA operations posted. Always 0 over TCP."`
	SendRDMABytes          uint64 `counter:"send_rdma_bytes" help:"Bytes written by RDMA operations. Always 0 over TCP."`
	SendPong               uint64 `counter:"send_pong" help:"Pings and pongs sent, handshakes included."`
	PageRemainderHit       uint64 `counter:"page_remainder_hit" help:"Allocations served from the rest of a page. Always 0 in user space."`
	PageRemainderMiss      uint64 `counter:"page_remainder_miss" help:"Allocations that needed a new page. Always 0 in user space."`
	CopyToUser             uint64 `counter:"copy_to_user" help:"Payload bytes copied to applications."`
	CopyFromUser           uint64 `counter:"copy_from_user" help:"Payload bytes copied from applications."`
	CongUpdateQueued       uint64 `counter:"cong_update_queued" help:"Congestion maps and updates queued for sending."`
	CongUpdateReceived     uint64 `counter:"cong_update_received" help:"Congestion maps and updates received."`
	CongSendError          uint64 `counter:"cong_send_error" help:"Sends refused (ENOBUFS) because the destination port was congested."`
	CongSendBlocked        uint64 `counter:"cong_send_blocked" help:"Sends that waited because the destination port was congested."`
	RecvBytesAddedToSock   uint64 `counter:"recv_bytes_added_to_sock" help:"Payload bytes added to receive queues."`
	RecvBytesFreedFromSock uint64 `counter:"recv_bytes_freed_fromsock" help:"Payload bytes taken from receive queues."`
	SendStuckRm            uint64 `counter:"send_stuck_rm" help:"Times a transmitter handed over after a long turn with more still to send."`

	TCPDataReadyCalls    uint64 `counter:"tcp_data_ready_calls" help:"Times a TCP link became readable."`
	TCPWriteSpaceCalls   uint64 `counter:"tcp_write_space_calls" help:"Times a TCP link that was full became writable."`
	TCPSndbufFull        uint64 `counter:"tcp_sndbuf_full" help:"Writes that stopped because the TCP send buffer was full."`
	TCPConnectRaced      uint64 `counter:"tcp_connect_raced" help:"Connections given up because the other side's won."`
	TCPListenClosedStale uint64 `counter:"tcp_listen_closed_stale" help:"Accepted connections closed because the path was already up."`
}

// KernelTable reads a Kernel.
var KernelTable = NewTable[Kernel]()
