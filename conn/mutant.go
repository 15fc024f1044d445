package conn

// Rules the simulator must notice when they are broken.
const (
	mutSkipFlagTest   = iota + 1 // accept retransmissions that had arrived
	mutAckEarly                  // acknowledge one datagram more than was placed
	mutRetransOrder              // send new datagrams before retransmissions
	mutKeepRestart               // keep unacknowledged datagrams over the peer's restart
	mutForgetRefusal             // acknowledge before the refusal has left
	mutSkipHold                  // send on to a port that refuses
	mutCancelQueued              // let a cancelled datagram leave
	mutLoseWake                  // a cleared port wakes nobody
	mutNoMapOnConnect            // no congestion map after a reconnect
	mutReplyOldLink              // take frames of a link that was replaced
	mutDoubleOutcome             // report an outcome twice
	mutIgnoreHard                // place beyond the hard limit
)
