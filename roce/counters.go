package roce

// Counters of a device, under the names of rxe's (drivers/infiniband/sw/rxe/rxe_hw_counters.c)
// where it has one.
type Counters struct {
	SentPkts            uint64 `name:"sent_pkts" help:"packets given to the network"`
	RcvdPkts            uint64 `name:"rcvd_pkts" help:"packets taken"`
	DuplicateRequest    uint64 `name:"duplicate_request" help:"requests that had come before"`
	OutOfSeqRequest     uint64 `name:"out_of_seq_request" help:"requests that came while one before them was missing"`
	RcvdRNRErr          uint64 `name:"rcvd_rnr_err" help:"messages for which the peer had no receive posted"`
	SendRNRErr          uint64 `name:"send_rnr_err" help:"messages of peers for which no receive was posted, or whose memory was not to be had"`
	RcvdSeqErr          uint64 `name:"rcvd_seq_err" help:"times that the peer missed a packet"`
	AckDeferred         uint64 `name:"ack_deferred" help:"acknowledgements asked for that another one, not sent yet, includes"`
	RetryExceededErr    uint64 `name:"retry_exceeded_err" help:"queue pairs that gave their silent peer up"`
	RetryRNRExceededErr uint64 `name:"retry_rnr_exceeded_err" help:"queue pairs whose peer had no receive posted too often"`
	CompleterRetryErr   uint64 `name:"completer_retry_err" help:"times that sending went back to the first packet without an acknowledgement"`
	SendErr             uint64 `name:"send_err" help:"packets that the system did not take; they count as sent"`
	RDMASends           uint64 `name:"rdma_sends" help:"work requests that were done"`
	RDMARecvs           uint64 `name:"rdma_recvs" help:"receives that a message of a peer was for"`

	// Those that rxe does not have.
	AckTimeouts uint64 `name:"ack_timeouts" help:"times that no acknowledgement came in time"`
	SentAcks    uint64 `name:"sent_acks" help:"packets sent that are acknowledgements alone, negative ones included"`
	AckRepeats  uint64 `name:"ack_repeats" help:"acknowledgements sent once more because nothing came after them"`
	ReadReplays uint64 `name:"read_replays" help:"READs of peers that were answered again"`
	GapsClosed  uint64 `name:"gaps_closed" help:"times that sending went back and the peer said something new later, two at most each time: silence for good is not among them"`
	BadSyndrome uint64 `name:"bad_syndrome" help:"acknowledgements that say nothing known"`
}

// add adds those of o.
func (c *Counters) add(o *Counters) {
	c.SentPkts += o.SentPkts
	c.RcvdPkts += o.RcvdPkts
	c.DuplicateRequest += o.DuplicateRequest
	c.OutOfSeqRequest += o.OutOfSeqRequest
	c.RcvdRNRErr += o.RcvdRNRErr
	c.SendRNRErr += o.SendRNRErr
	c.RcvdSeqErr += o.RcvdSeqErr
	c.AckDeferred += o.AckDeferred
	c.RetryExceededErr += o.RetryExceededErr
	c.RetryRNRExceededErr += o.RetryRNRExceededErr
	c.CompleterRetryErr += o.CompleterRetryErr
	c.SendErr += o.SendErr
	c.RDMASends += o.RDMASends
	c.RDMARecvs += o.RDMARecvs
	c.AckTimeouts += o.AckTimeouts
	c.SentAcks += o.SentAcks
	c.AckRepeats += o.AckRepeats
	c.ReadReplays += o.ReadReplays
	c.GapsClosed += o.GapsClosed
	c.BadSyndrome += o.BadSyndrome
}
