package cli

import (
	"net/netip"
	"strings"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// The view structs are what --json prints and what the tables are made of.
// Names ending in _ns are nanoseconds, _bytes bytes.

type statusView struct {
	Version     string       `json:"version"`
	Instance    uint64       `json:"instance"`
	State       string       `json:"state"`
	Uptime      duration     `json:"uptime_ns"`
	Addresses   []netip.Addr `json:"local_addresses"`
	Port        uint32       `json:"rds_port"`
	Peers       uint32       `json:"peers"`
	PeersUp     uint32       `json:"peers_up"`
	Sockets     uint32       `json:"sockets"`
	MemoryUsed  bytesCount   `json:"memory_used_bytes"`
	MemoryLimit bytesCount   `json:"memory_budget_bytes"`
	Config      string       `json:"config_file"`
	Budgets     []budgetView `json:"budgets"`
}

type budgetView struct {
	Name    string `json:"name"`
	Used    uint64 `json:"used"`
	Limit   uint64 `json:"limit"`
	Refused uint64 `json:"refused"`
}

func viewStatus(s *rdsdv1.Status) statusView {
	v := statusView{
		Version: s.GetVersion(), Instance: s.GetInstance(), State: s.GetState(), Uptime: duration(s.GetUptimeNs()),
		Addresses: []netip.Addr{}, Port: s.GetRdsPort(), Peers: s.GetPeers(), PeersUp: s.GetPeersUp(), Sockets: s.GetSockets(),
		MemoryUsed: bytesCount(s.GetMemoryUsedBytes()), MemoryLimit: bytesCount(s.GetMemoryBudgetBytes()),
		Config: s.GetConfigFile(), Budgets: []budgetView{},
	}
	for _, b := range s.GetLocalAddress() {
		v.Addresses = append(v.Addresses, addrOf(b))
	}
	for _, b := range s.GetBudget() {
		v.Budgets = append(v.Budgets, budgetView{b.GetName(), b.GetUsed(), b.GetLimit(), b.GetRefused()})
	}
	return v
}

type peerView struct {
	Local         netip.Addr `json:"local"`
	Remote        netip.Addr `json:"remote"`
	Kind          string     `json:"kind"`
	Authenticated bool       `json:"authenticated"`
	State         string     `json:"state"` // best state of its paths
	Incarnation   uint64     `json:"incarnation"`
	Lanes         uint32     `json:"lanes"`
	RTT           duration   `json:"rtt_ns"`
	Queued        uint64     `json:"queued"`
	QueuedBytes   bytesCount `json:"queued_bytes"`
	Unacked       uint64     `json:"unacked"`
	UnackedBytes  bytesCount `json:"unacked_bytes"`
	Held          uint64     `json:"held"`
	Congested     uint32     `json:"congested_ports"`
	LastError     string     `json:"last_error"`
	Paths         []pathView `json:"paths"`
}

type pathView struct {
	Index      uint32     `json:"index"`
	State      string     `json:"state"`
	NextTx     uint64     `json:"next_tx_seq"`
	NextRx     uint64     `json:"next_rx_seq"`
	Local      string     `json:"local_endpoint"`
	Remote     string     `json:"remote_endpoint"`
	Up         duration   `json:"up_since_ns"`
	Reconnects uint64     `json:"reconnects"`
	LastError  string     `json:"last_error"`
	Sent       bytesCount `json:"sent_bytes"`
	Received   bytesCount `json:"received_bytes"`
	Credits    uint32     `json:"send_credits"`
	Paused     bool       `json:"read_paused"`
}

// enumText turns PEER_KIND_KERNEL_LEGACY into "kernel-legacy"; unspecified
// values show as "unknown".
func enumText(s, prefix string) string {
	s = strings.TrimPrefix(s, prefix)
	if s == "UNSPECIFIED" {
		return "unknown"
	}
	return strings.ToLower(strings.ReplaceAll(s, "_", "-"))
}

func kindText(k rdsdv1.PeerKind) string   { return enumText(k.String(), "PEER_KIND_") }
func stateText(s rdsdv1.PathState) string { return enumText(s.String(), "PATH_STATE_") }
func queueText(q rdsdv1.QueueKind) string { return enumText(q.String(), "QUEUE_KIND_") }

// stateRank orders path states: the state of a peer is the best of its paths'.
var stateRank = map[rdsdv1.PathState]int{
	rdsdv1.PathState_PATH_STATE_UP:            5,
	rdsdv1.PathState_PATH_STATE_CONNECTING:    4,
	rdsdv1.PathState_PATH_STATE_DISCONNECTING: 3,
	rdsdv1.PathState_PATH_STATE_ERROR:         2,
	rdsdv1.PathState_PATH_STATE_DOWN:          1,
}

func viewPeer(p *rdsdv1.Peer) peerView {
	v := peerView{
		Local: addrOf(p.GetLocal()), Remote: addrOf(p.GetRemote()), Kind: kindText(p.GetKind()), Authenticated: p.GetAuthenticated(),
		State: stateText(0), Incarnation: p.GetIncarnation(), Lanes: p.GetLanes(), RTT: duration(p.GetRttNs()),
		Queued: p.GetQueued(), QueuedBytes: bytesCount(p.GetQueuedBytes()), Unacked: p.GetUnacked(), UnackedBytes: bytesCount(p.GetUnackedBytes()),
		Held: p.GetHeld(), Congested: p.GetCongestedPorts(), Paths: []pathView{},
	}
	best := 0
	for _, q := range p.GetPath() {
		if r := stateRank[q.GetState()]; r > best {
			best, v.State = r, stateText(q.GetState())
		}
		if v.LastError == "" {
			v.LastError = q.GetLastError()
		}
		v.Paths = append(v.Paths, pathView{
			Index: q.GetIndex(), State: stateText(q.GetState()), NextTx: q.GetNextTxSeq(), NextRx: q.GetNextRxSeq(),
			Local: q.GetLocalEndpoint(), Remote: q.GetRemoteEndpoint(), Up: duration(q.GetUpSinceNs()), Reconnects: q.GetReconnects(),
			LastError: q.GetLastError(), Sent: bytesCount(q.GetSentBytes()), Received: bytesCount(q.GetReceivedBytes()),
			Credits: q.GetSendCredits(), Paused: q.GetReadPaused(),
		})
	}
	return v
}

type socketView struct {
	Local     netip.AddrPort `json:"local"`
	UID       uint32         `json:"uid"`
	PID       uint32         `json:"pid"`
	Label     string         `json:"label"`
	SndBuf    bytesCount     `json:"send_buffer_bytes"`
	SndQueued bytesCount     `json:"send_queued_bytes"`
	RcvBuf    bytesCount     `json:"recv_buffer_bytes"`
	RcvQueued bytesCount     `json:"recv_queued_bytes"`
	RcvLimit  bytesCount     `json:"recv_hard_limit_bytes"`
	Unread    uint64         `json:"recv_queued"`
	Congested bool           `json:"congested"`
	Accepted  uint64         `json:"accepted"`
	Delivered uint64         `json:"delivered"`
	Cancelled uint64         `json:"cancelled"`
	Failed    uint64         `json:"failed"`
	Unknown   uint64         `json:"unknown"`
	InFlight  uint64         `json:"in_flight"`
	Received  uint64         `json:"received"`
	Waiting   uint32         `json:"waiting_sends"`
	Inode     uint64         `json:"inode"`
	Ring      bytesCount     `json:"ring_bytes"`
	RingMax   bytesCount     `json:"ring_max_bytes"`
}

func viewSocket(s *rdsdv1.SocketInfo) socketView {
	return socketView{
		Local: endpointOf(s.GetLocal()), UID: s.GetUid(), PID: s.GetPid(), Label: s.GetLabel(),
		SndBuf: bytesCount(s.GetSendBufferBytes()), SndQueued: bytesCount(s.GetSendQueuedBytes()),
		RcvBuf: bytesCount(s.GetRecvBufferBytes()), RcvQueued: bytesCount(s.GetRecvQueuedBytes()), RcvLimit: bytesCount(s.GetRecvHardLimitBytes()),
		Unread: s.GetRecvQueued(), Congested: s.GetCongested(), Accepted: s.GetAccepted(), Delivered: s.GetDelivered(),
		Cancelled: s.GetCancelled(), Failed: s.GetFailed(), Unknown: s.GetUnknown(), InFlight: s.GetInFlight(),
		Received: s.GetReceived(), Waiting: s.GetWaitingSends(), Inode: s.GetInode(),
		Ring: bytesCount(s.GetRingBytes()), RingMax: bytesCount(s.GetRingMaxBytes()),
	}
}

type queueView struct {
	Queue  string         `json:"queue"`
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	Seq    uint64         `json:"seq"`
	Bytes  bytesCount     `json:"bytes"`
	Lane   uint32         `json:"lane"`
}

func viewQueued(d *rdsdv1.QueuedDatagram) queueView {
	return queueView{queueText(d.GetKind()), endpointOf(d.GetLocal()), endpointOf(d.GetRemote()), d.GetSeq(), bytesCount(d.GetBytes()), d.GetLane()}
}

type counterView struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
	Help  string `json:"help,omitempty"`
}

type congestedView struct {
	Endpoint  netip.AddrPort `json:"endpoint"`
	Local     bool           `json:"local"`
	Since     duration       `json:"since_ns"`
	Queued    bytesCount     `json:"queued_bytes"`
	ReaderUID uint32         `json:"reader_uid"`
	ReaderPID uint32         `json:"reader_pid"`
	Waiting   uint32         `json:"waiting_senders"`
	Blocked   uint64         `json:"blocked"`
	Culprits  []culpritView  `json:"culprits"`
}

type culpritView struct {
	Source    netip.AddrPort `json:"source"`
	Datagrams uint64         `json:"queued_datagrams"`
	Bytes     bytesCount     `json:"queued_bytes"`
}

func viewCongested(p *rdsdv1.CongestedPort) congestedView {
	v := congestedView{
		Endpoint: endpointOf(p.GetEndpoint()), Local: p.GetLocal(), Since: duration(p.GetSinceNs()), Queued: bytesCount(p.GetQueuedBytes()),
		ReaderUID: p.GetReaderUid(), ReaderPID: p.GetReaderPid(), Waiting: p.GetWaitingSenders(), Blocked: p.GetBlocked(), Culprits: []culpritView{},
	}
	for _, c := range p.GetCulprit() {
		v.Culprits = append(v.Culprits, culpritView{endpointOf(c.GetSource()), c.GetQueuedDatagrams(), bytesCount(c.GetQueuedBytes())})
	}
	return v
}
