package roce

// DropReason says why a packet was not taken. Nothing is answered to one that was not.
type DropReason uint8

// Why packets are not taken.
const (
	DropMalformed DropReason = iota // it is no packet: see Packet.Parse
	DropQueuePair                   // there is no such queue pair
	DropState                       // the queue pair does not receive now
	DropSource                      // it is not from the queue pair's peer
	DropICRC                        // its CRC is wrong
	DropPartition                   // it is for another partition
	DropWindow                      // its number is far from all that are expected
	DropResponse                    // it answers what was not asked, or with another length
	DropOpcode                      // no queue pair of a reliable connection has such packets
	DropMAD                         // it is for queue pair 1 and no management datagram
	NumDropReasons
)

var dropNames = [NumDropReasons]string{
	"malformed", "queue_pair", "state", "source", "icrc", "partition", "window", "response", "opcode", "mad",
}

func (r DropReason) String() string { return dropNames[r] }
