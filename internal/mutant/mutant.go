package mutant

// The rules, and what breaking each does.
const (
	SkipFlagTest   = iota + 1 // accept retransmissions that had arrived
	AckEarly                  // acknowledge one datagram more than was received
	RetransOrder              // send new datagrams before retransmissions
	KeepRestart               // keep unacknowledged datagrams over the peer's restart
	ForgetRefusal             // acknowledge before the refusal has left
	SkipHold                  // send on to a port that refuses
	CancelQueued              // leave cancelled datagrams in the queue
	LoseWake                  // a cleared port wakes nobody
	NoMapOnConnect            // no congestion map after a reconnect
	OldLink                   // take frames of a link that was given up
	DoubleOutcome             // report an outcome twice now and then
	IgnoreHard                // place beyond the hard limit
	NoResume                  // never tell the receiver that a flow resumes
	LeakBudget                // a closed socket keeps its share of the memory budget
	KernelEarly               // take what was written to a kernel for acknowledged
	SprayLanes                // put each datagram on any lane
	PauseRdsd                 // stop a link between rdsd for one full receiver
	NoSpace                   // an outcome gives its room in the send buffer to nobody
	TrainOnce                 // a train's outcome is that of one datagram
	SplitRest                 // what stands behind the table of a train is lost when it is split
	SendTrains                // trains go to peers that take none
	LoseRest                  // what is left of a train that was read in part is lost
	FreedQuiet                // memory a client gives back does not clear its port
	CellStale                 // a refused message keeps its sequence in its cell
	MoveEarly                 // a flow leaves its lane while something of it is under way
	NoDrained                 // a closed socket's last outcome is not told
	CollectNone               // nobody asks clients for what they gave back when the node's memory is spent
	Count          = iota     // number of rules
)

// Names of the rules, by number.
var Names = [...]string{SkipFlagTest: "SkipFlagTest", AckEarly: "AckEarly", RetransOrder: "RetransOrder", KeepRestart: "KeepRestart",
	ForgetRefusal: "ForgetRefusal", SkipHold: "SkipHold", CancelQueued: "CancelQueued", LoseWake: "LoseWake", NoMapOnConnect: "NoMapOnConnect",
	OldLink: "OldLink", DoubleOutcome: "DoubleOutcome", IgnoreHard: "IgnoreHard", NoResume: "NoResume", LeakBudget: "LeakBudget",
	KernelEarly: "KernelEarly", SprayLanes: "SprayLanes", PauseRdsd: "PauseRdsd", NoSpace: "NoSpace",
	TrainOnce: "TrainOnce", SplitRest: "SplitRest", SendTrains: "SendTrains", LoseRest: "LoseRest", FreedQuiet: "FreedQuiet", CellStale: "CellStale", NoDrained: "NoDrained", MoveEarly: "MoveEarly",
	CollectNone: "CollectNone"}
