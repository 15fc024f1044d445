package rdsd

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// The words of each enum, by its value.
var (
	peerKindWords  = []PeerKind{PeerUnknown, PeerRDSD, PeerKernelLegacy, PeerKernel}
	peerStateWords = []PeerState{StateUnknown, StateDown, StateConnecting, StateUp, StateDisconnecting, StateError}
	queueWords     = []QueueKind{QueueAll, QueueSend, QueueRetrans, QueueRecv}
	problemWords   = []Severity{"", SeverityOK, SeverityNote, SeverityWarning, SeverityError}
)

// peerStates are the states of paths, the worst one first: a peer has the best of
// its paths'. A state that only a newer daemon knows is worse than all.
var peerStates = []PeerState{StateUnknown, StateDown, StateError, StateDisconnecting, StateConnecting, StateUp}

func addrFromProto(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap()
}

func statusFromProto(m *rdsdv1.Status) *Status {
	return &Status{
		Version: m.GetVersion(), Instance: m.GetInstance(), State: m.GetState(), Uptime: time.Duration(m.GetUptimeNs()),
		LocalAddresses: all(m.GetLocalAddress(), addrFromProto), RDSPort: uint16(m.GetRdsPort()),
		Peers: m.GetPeers(), PeersUp: m.GetPeersUp(), Sockets: m.GetSockets(),
		MemoryUsedBytes: m.GetMemoryUsedBytes(), MemoryBudgetBytes: m.GetMemoryBudgetBytes(),
		ConfigFile: m.GetConfigFile(), Budgets: all(m.GetBudget(), budgetFromProto),
		HTTPAddress: m.GetHttpAddress(), Healthy: m.GetHealthy(), Severity: wordOf(problemWords, m.GetSeverity()), Problems: all(m.GetProblem(), problemFromProto),
	}
}

func problemFromProto(m *rdsdv1.Problem) Problem {
	return Problem{
		Code: m.GetCode(), Severity: wordOf(problemWords, m.GetSeverity()), Subject: m.GetSubject(), Text: m.GetText(), Remedy: m.GetRemedy(),
		Since: time.Duration(m.GetSinceNs()),
	}
}

func loggedFromProto(m *rdsdv1.LoggedError) LoggedError {
	severity := SeverityError
	if m.GetWarning() {
		severity = SeverityWarning
	}
	return LoggedError{
		Severity: severity, Message: m.GetMessage(), Subject: m.GetSubject(), Error: m.GetError(),
		First: time.Unix(0, m.GetFirstUnixNs()).UTC(), Last: time.Unix(0, m.GetLastUnixNs()).UTC(), Count: m.GetCount(),
	}
}

func budgetFromProto(m *rdsdv1.Budget) Budget {
	return Budget{Name: m.GetName(), Used: m.GetUsed(), Limit: m.GetLimit(), Refused: m.GetRefused()}
}

func peerFromProto(m *rdsdv1.Peer) Peer {
	p := Peer{
		Local: addrFromProto(m.GetLocal()), Remote: addrFromProto(m.GetRemote()), Kind: wordOf(peerKindWords, m.GetKind()),
		Authenticated: m.GetAuthenticated(), State: StateUnknown, Incarnation: m.GetIncarnation(), Lanes: m.GetLanes(), RTT: time.Duration(m.GetRttNs()),
		Queued: m.GetQueued(), QueuedBytes: m.GetQueuedBytes(), Unacked: m.GetUnacked(), UnackedBytes: m.GetUnackedBytes(),
		Held: m.GetHeld(), CongestedPorts: m.GetCongestedPorts(), Paths: all(m.GetPath(), peerPathFromProto),
		VolumePaths: all(m.GetVolumePath(), pathFromProto),
	}
	// A peer is in the best state of its paths, and has the first error of any.
	for _, q := range p.Paths {
		if slices.Index(peerStates, q.State) > slices.Index(peerStates, p.State) {
			p.State = q.State
		}
		p.LastError = cmp.Or(p.LastError, q.LastError)
	}
	if len(p.Paths) > 0 {
		return p
	}
	for _, q := range p.VolumePaths { // a peer for volumes alone
		s := StateDown
		switch q.State {
		case PathConnected:
			s = StateUp
		case PathConnecting, PathReconnecting:
			s = StateConnecting
		}
		if slices.Index(peerStates, s) > slices.Index(peerStates, p.State) {
			p.State = s
		}
		p.LastError = cmp.Or(p.LastError, q.LastError)
	}
	return p
}

func peerPathFromProto(m *rdsdv1.Path) PeerPath {
	return PeerPath{
		Index: m.GetIndex(), State: wordOf(peerStateWords, m.GetState()), NextTxSeq: m.GetNextTxSeq(), NextRxSeq: m.GetNextRxSeq(),
		LocalEndpoint: m.GetLocalEndpoint(), RemoteEndpoint: m.GetRemoteEndpoint(), UpFor: time.Duration(m.GetUpSinceNs()),
		Reconnects: m.GetReconnects(), LastError: m.GetLastError(), SentBytes: m.GetSentBytes(), ReceivedBytes: m.GetReceivedBytes(),
		SendCredits: m.GetSendCredits(), ReadPaused: m.GetReadPaused(),
		ErrorAge: time.Duration(m.GetErrorAgeNs()), Attempts: m.GetAttempts(), RetryIn: time.Duration(m.GetRetryInNs()),
	}
}

func socketFromProto(m *rdsdv1.SocketInfo) SocketInfo {
	return SocketInfo{
		Local: endpointFromProto(m.GetLocal()), UID: m.GetUid(), PID: m.GetPid(), Label: m.GetLabel(),
		SendBufferBytes: m.GetSendBufferBytes(), SendQueuedBytes: m.GetSendQueuedBytes(),
		RecvBufferBytes: m.GetRecvBufferBytes(), RecvQueuedBytes: m.GetRecvQueuedBytes(), RecvHardLimitBytes: m.GetRecvHardLimitBytes(),
		RecvQueued: m.GetRecvQueued(), Congested: m.GetCongested(),
		Accepted: m.GetAccepted(), Delivered: m.GetDelivered(), Cancelled: m.GetCancelled(), Failed: m.GetFailed(), Unknown: m.GetUnknown(),
		InFlight: m.GetInFlight(), Received: m.GetReceived(), WaitingSends: m.GetWaitingSends(), Inode: m.GetInode(),
		RingBytes: m.GetRingBytes(), RingMaxBytes: m.GetRingMaxBytes(), Program: m.GetProgram(),
	}
}

func queuedFromProto(m *rdsdv1.QueuedDatagram) QueuedDatagram {
	return QueuedDatagram{
		Queue: wordOf(queueWords, m.GetKind()), Local: endpointFromProto(m.GetLocal()), Remote: endpointFromProto(m.GetRemote()),
		Seq: m.GetSeq(), Bytes: m.GetBytes(), Lane: m.GetLane(),
	}
}

func counterFromProto(m *rdsdv1.Counter) Counter {
	return Counter{Name: m.GetName(), Value: m.GetValue(), Help: m.GetHelp()}
}

func congestedFromProto(m *rdsdv1.CongestedPort) CongestedPort {
	return CongestedPort{
		Endpoint: endpointFromProto(m.GetEndpoint()), Local: m.GetLocal(), CongestedFor: time.Duration(m.GetSinceNs()), QueuedBytes: m.GetQueuedBytes(),
		ReaderUID: m.GetReaderUid(), ReaderPID: m.GetReaderPid(), WaitingSenders: m.GetWaitingSenders(), Blocked: m.GetBlocked(),
		Culprits: all(m.GetCulprit(), culpritFromProto),
	}
}

func culpritFromProto(m *rdsdv1.Culprit) Culprit {
	return Culprit{Source: endpointFromProto(m.GetSource()), QueuedDatagrams: m.GetQueuedDatagrams(), QueuedBytes: m.GetQueuedBytes()}
}

func historyFromProto(m *rdsdv1.CongestionHistory) *CongestionHistory {
	return &CongestionHistory{
		End: time.Unix(0, m.GetEndUnixNs()).UTC(), Slot: time.Duration(m.GetSlotNs()), Slots: int(m.GetSlots()), Kept: time.Duration(m.GetKeptNs()),
		Ports: all(m.GetPort(), portHistoryFromProto), Others: portHistoryFromProto(m.GetOthers()),
	}
}

func portHistoryFromProto(m *rdsdv1.PortHistory) PortHistory {
	p := PortHistory{
		Endpoint: endpointFromProto(m.GetEndpoint()), Local: m.GetLocal(), Congested: m.GetCongested(), CongestedFor: time.Duration(m.GetCongestedNs()),
		Times: m.GetTimes(), Slots: []PortSlot{}, ReaderUID: m.GetReaderUid(), ReaderPID: m.GetReaderPid(), ReaderProgram: m.GetReaderProgram(),
		Culprits: all(m.GetCulprit(), culpritFromProto), CongestedPorts: m.GetCongestedPorts(),
	}
	ms := m.GetSlotMs()
	for i, slot := range m.GetSlot() {
		if i < len(ms) {
			p.Slots = append(p.Slots, PortSlot{int(slot), time.Duration(ms[i]) * time.Millisecond})
		}
	}
	return p
}

func mapFromProto(m *rdsdv1.CongestionMap) CongestionMap {
	c := CongestionMap{Node: addrFromProto(m.GetAddress()), Local: m.GetLocal(), SeenFrom: addrFromProto(m.GetSeenFrom()), Ports: []uint16{}}
	for i, b := range m.GetBitmap() {
		for ; b != 0; b &= b - 1 {
			if port := int(m.GetFirstPort()) + i*8 + bits.TrailingZeros8(b); port <= 0xffff {
				c.Ports = append(c.Ports, uint16(port))
			}
		}
	}
	return c
}

func noticeFromProto(m *rdsdv1.CongestionNotice) CongestionNotice {
	return CongestionNotice{
		Time: time.Unix(0, m.GetUnixNs()), Endpoint: endpointFromProto(m.GetEndpoint()), Local: m.GetLocal(), Congested: m.GetCongested(),
	}
}

func pongFromProto(m *rdsdv1.PingResponse) *Pong {
	return &Pong{Local: addrFromProto(m.GetLocal()), RTT: time.Duration(m.GetRttNs())}
}
