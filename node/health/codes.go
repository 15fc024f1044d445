package health

import "time"

// Severity is how bad a problem is.
type Severity uint8

// Severities, in the order of the API.
const (
	OK      Severity = iota + 1
	Note             // worth knowing; nothing fails
	Warning          // something waits, or is refused, or will be
	Error            // something does not work
)

func (s Severity) String() string {
	return [...]string{"", "ok", "note", "warning", "error"}[s]
}

// Code is what sort of problem there is.
type Code uint8

// The codes, in the order in which problems of the same severity are listed.
const (
	Panicked Code = iota
	NotServing
	StateLost
	PeerDown
	PeerNotAllowed
	PeerRefused
	KernelNotAllowed
	PeerPartlyUp
	LinkPaused
	PortCongested
	RemoteCongested
	LimitReached
	LimitNear
	DescriptorsShort
	MappingDown
	VolumeStalled
	VolumePathDown
	ExportFailed
	VolumeErrors
	UnfencedFailovers
	OnePath
	NoPeers
	LoopbackOnly
	UnknownSetting
	RemoteInsecure
	NoLedger
	NoVolumeState
	LogErrors
	numCodes
)

// Description is what the table of docs/operations.md says of a code.
type Description struct {
	Name     string // in the API: it never changes
	Severity string // which severities it has
	Means    string
	Mend     string
}

var descriptions = [numCodes]Description{
	Panicked:          {"panicked", "error", "a bug: a panic was contained, and who it was for was ended", "`rdsd bugreport`, and report it"},
	NotServing:        {"not-serving", "warning", "the daemon starts, drains or has stopped", "wait; `systemctl start rdsd` afterwards"},
	StateLost:         {"state-lost", "error", "what is persistent of volumes could not be read, is gone or older than what was written last, or cannot be written", "what is said of it: see to `volumes.state_dir`"},
	PeerDown:          {"peer-down", "warning; error while datagrams wait for it", "no lane to a peer could be made for a second or longer; of one that never answered, as long as something is to be sent there", "what the last error says: start rdsd there, open the port, allow this node there"},
	PeerNotAllowed:    {"peer-not-allowed", "error", "a peer that has a link or for which datagrams wait is not allowed by the configuration", "a `[[peers]]` rule; or `rdsd cancel`, to give up what waits"},
	PeerRefused:       {"peer-refused", "warning", "a connection of a node was refused in the last ten minutes", "a `[[peers]]` rule, if the node is to be a peer"},
	KernelNotAllowed:  {"kernel-not-allowed", "error", "a peer is a kernel, and its rule does not allow kernels", "`kernel = true` in its `[[peers]]` rule"},
	PeerPartlyUp:      {"peer-partly-up", "warning", "some lanes to a peer are up and others could not be made for a second or longer", "as for `peer-down`"},
	LinkPaused:        {"link-paused", "warning", "a full receiver stops the link of a kernel, and with it all its other ports", "have the congested port read"},
	PortCongested:     {"port-congested", "warning; error from a minute on", "a port of this node has been congested for a second or longer: its program does not read fast enough", "have the program read, or close its socket"},
	RemoteCongested:   {"remote-port-congested", "warning", "a port of another node has been congested for a second or longer, and senders here wait for it", "have the program there read"},
	LimitReached:      {"limit-reached", "error; warning of the memory while not all of it is used", "a limit is used up: what comes is refused; or memory was refused in the last ten minutes, because one kind has its part or one user or peer its share", "raise it, or find who uses it"},
	LimitNear:         {"limit-near", "warning", "nine tenths of a limit are used", "raise it, or find who uses it"},
	DescriptorsShort:  {"descriptors-short", "note", "the limits allow more than there are file descriptors for", "`LimitNOFILE=` in the unit file"},
	MappingDown:       {"mapping-down", "error", "a mapped volume is not open: it has no path, the other node does not have it or refuses it, it is not what was mapped any more, or this node cannot take it up; requests wait or fail", "what is said of it; `rdsd volume paths`, and `rdsd volume remap` once the data was looked at"},
	VolumeStalled:     {"volume-stalled", "warning; error from the I/O timeout on, of an export from 30 s", "a request to a mapped volume that has a path, or to the store of an export, is not answered for 10 s or longer, or for the I/O timeout of the mapping if that is less", "see to the store: its disk, and the kernel's log there"},
	VolumePathDown:    {"volume-path-down", "warning", "a path of a session is not connected", "see to the network between its ends"},
	ExportFailed:      {"export-failed", "error", "the store of an export could not be opened, or a persistent export could not be taken up at the start", "what is said of it: see to the file or device, or to the limit"},
	VolumeErrors:      {"volume-errors", "warning", "requests to a mapped volume, or to the store of an export, have failed in the last ten minutes; or completed writes of a mapping may be lost, and no flush succeeds", "`rdsd volume events --kept`, and the kernel's log"},
	UnfencedFailovers: {"unfenced-failovers", "note", "requests in flight on a lost path to a kernel's server went to another path without a fence", "compare what matters, if the server's store stood still then; `rdsd volume sessions set`"},
	OnePath:           {"one-path", "note", "a mapping has one path only: if it fails, requests wait", "`rdsd volume paths add`"},
	NoPeers:           {"no-peers-allowed", "warning", "there are addresses beyond loopback, and no peer beyond loopback is allowed", "a `[[peers]]` rule"},
	LoopbackOnly:      {"loopback-only", "note", "the daemon serves loopback addresses alone: other nodes cannot reach it", "`rds.addresses`"},
	UnknownSetting:    {"unknown-setting", "note", "something set for the daemon names no key of the configuration", "correct the name"},
	RemoteInsecure:    {"remote-insecure", "note", "remote clients are neither encrypted nor identified", "`api.remote_listen = \"\"`"},
	NoLedger:          {"no-ledger", "note", "there is no ledger: after a restart no port is held for its owner, and kernels are not connected to again", "`api.ledger`"},
	NoVolumeState:     {"no-volume-state", "note", "volumes are exported or mapped, and nothing of them persists", "`volumes.state_dir`"},
	LogErrors:         {"log-errors", "note", "warnings or errors were logged in the last ten minutes", "`rdsd errors`"},
}

// Describe returns what a code is.
func (c Code) Describe() Description { return descriptions[c] }

func (c Code) String() string { return descriptions[c].Name }

// Codes are all of them.
func Codes() []Code {
	list := make([]Code, numCodes)
	for i := range list {
		list[i] = Code(i)
	}
	return list
}

// Problem is something that is not as it should be.
type Problem struct {
	Code     Code
	Severity Severity
	Subject  string        // what it is about; "": the node
	Text     string        // what is so
	Remedy   string        // what mends it
	Since    time.Duration // for so long; 0: not known
}
