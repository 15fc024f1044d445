package page

import (
	"net/netip"
	"sync"
	"time"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/access"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/node/page/hour"
	"github.com/rdsd/rdsd/rds"
)

const (
	// followEvery bounds how often the keeper wakes up: what changes meanwhile comes
	// together, and is noted as if at one time.
	followEvery = 5 * time.Millisecond
	// settleEvery is how often the keeper looks at all that is congested, of which it may
	// have missed something, and has other nodes asked who reads their ports; settleSoon is how
	// soon after something became congested, to learn who should read it.
	settleEvery = 5 * time.Second
	settleSoon  = time.Second
	// settleShare bounds what looking costs: so many times as long passes without. It passes on a machine that
	// is busy with other things, too, where a look of milliseconds takes seconds: settleMost is the most.
	settleShare = 100
	settleMost  = time.Minute
	// knownPorts is for how many ports the keeper learns at a time who should read them.
	knownPorts = 32
)

// A Keeper keeps the hour of a node's congestion.
type Keeper struct {
	host  *datagram.Host
	begun time.Time

	mu   sync.Mutex
	hour *hour.Hour // guarded by mu
}

// NewKeeper makes the keeper of a host's congestion.
func NewKeeper(host *datagram.Host) *Keeper {
	return &Keeper{host: host, begun: time.Now(), hour: hour.New()}
}

// Run follows congestion until stop is closed.
func (k *Keeper) Run(stop <-chan struct{}) {
	w, end := k.host.WatchCongestion()
	defer end()
	looks := newLookTimes()
	defer looks.timer.Stop()
	pace := time.NewTimer(0)
	defer pace.Stop()
	for {
		select {
		case <-stop:
			return
		case <-looks.timer.C:
			begun := time.Now()
			k.settle()
			looks.done(time.Since(begun))
			continue
		case list := <-w.C:
			if k.follow(list) {
				looks.hurry()
			}
		}
		if w.Lost.Swap(false) {
			looks.hurry()
		}
		pace.Reset(followEvery)
		select {
		case <-stop:
			return
		case <-pace.C:
		}
	}
}

// lookTimes is when the keeper looks at all that is congested: settleEvery after it has done so, or
// settleSoon after the first that asks for it since, and never within settleShare times as long
// as the last look took, or settleMost. What asks again does not put it off.
type lookTimes struct {
	timer  *time.Timer
	soon   bool      // somebody has asked since the last look
	rested time.Time // no look before
}

func newLookTimes() *lookTimes { return &lookTimes{timer: time.NewTimer(settleEvery)} }

// hurry asks for a look soon.
func (l *lookTimes) hurry() {
	if !l.soon {
		l.soon = true
		l.timer.Reset(max(settleSoon, time.Until(l.rested)))
	}
}

// done says that a look is over, and how long it took.
func (l *lookTimes) done(took time.Duration) {
	l.soon = false
	rest := min(settleShare*took, settleMost)
	l.rested = time.Now().Add(rest)
	l.timer.Reset(max(settleEvery, rest))
}

// follow notes changes, and reports whether a port became congested.
func (k *Keeper) follow(list []rds.Notice) (on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Since(k.begun)
	for _, n := range list {
		k.hour.Change(now, hour.Port{Endpoint: n.Endpoint, Local: n.Local}, n.Congested)
		on = on || n.Congested
	}
	return on
}

// settle looks at everything that is congested.
func (k *Keeper) settle() {
	// The next look has the answers, and in the meantime all who show ports of other nodes.
	for _, h := range k.host.Locals() {
		h.AskReaders()
	}
	var ports []hour.Port
	more := 0
	readers := map[hour.Port]hour.Reader{}
	for _, h := range k.host.Locals() {
		var here []uint16
		more += h.EachCongested(func(_ *rds.Engine, c *rds.CongestedPort) {
			p := hour.Port{Endpoint: c.Endpoint, Local: c.Local}
			ports = append(ports, p)
			switch {
			case len(readers)+len(here) >= knownPorts:
			case c.Socket != nil:
				here = append(here, c.Endpoint.Port())
			case c.Reader != nil:
				readers[p] = readerOf(datagram.ReaderThere(c.Reader, hour.MaxCulprits))
			}
		}, nil)
		for _, port := range here {
			p := hour.Port{Endpoint: netip.AddrPortFrom(h.Addr(), port), Local: true}
			if r, ok := h.Reader(port, hour.MaxCulprits); ok {
				x := readerOf(r)
				x.Program = access.Program(x.PID)
				readers[p] = x
			}
		}
	}
	if more > 0 {
		cut := k.cut(ports)
		ports, more = append(ports, cut...), max(more-len(cut), 0)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hour.Settle(time.Since(k.begun), ports, more)
	for p, r := range readers {
		k.hour.Know(p, r)
	}
}

// cut is what a list that was cut lacks of the ports that the hour tells apart: those that are congested
// still. Who is not listed would be taken for clear, and peers decide how long the list is.
func (k *Keeper) cut(listed []hour.Port) (l []hour.Port) {
	k.mu.Lock()
	apart := k.hour.Congested()
	k.mu.Unlock()
	lacks := make(map[hour.Port]bool, len(apart))
	for _, p := range apart {
		lacks[p] = true
	}
	for _, p := range listed {
		delete(lacks, p)
	}
	for _, h := range k.host.Locals() {
		e := h.Look()
		for p := range lacks {
			pe := e.Known(p.Endpoint.Addr())
			if p.Local {
				pe = nil
				if p.Endpoint.Addr() == h.Addr() {
					pe = e.Self()
				}
			}
			if pe != nil && pe.Congested(p.Endpoint.Port()) {
				l = append(l, p)
				delete(lacks, p)
			}
		}
		h.Unlook()
	}
	return l
}

// readerOf is who should read a port and who fills it, in the words of a room that knows no
// socket.
func readerOf(x datagram.PortReader) (r hour.Reader) {
	r.UID, r.PID = x.UID, x.PID
	for _, k := range x.Fillers {
		r.Culprits = append(r.Culprits, hour.Culprit{Source: k.Source, Datagrams: uint64(k.N), Bytes: uint64(k.Bytes)})
	}
	return r
}

// History is the last hour, of one port or, if that is not valid, of all.
func (k *Keeper) History(one netip.AddrPort) *rdsdv1.CongestionHistory {
	var only func(hour.Port) bool
	if one.IsValid() {
		only = func(p hour.Port) bool { return p.Endpoint == one }
	}
	k.mu.Lock()
	now := time.Since(k.begun)
	v := k.hour.Look(now, only)
	k.mu.Unlock()
	m := &rdsdv1.CongestionHistory{}
	m.SetEndUnixNs(time.Now().Add(v.SlotEnd - now).UnixNano())
	m.SetSlotNs(uint64(hour.SlotLength))
	m.SetSlots(hour.Slots)
	m.SetKeptNs(uint64(v.Kept))
	var list []*rdsdv1.PortHistory
	for i := range v.Ports {
		list = append(list, portPB(&v.Ports[i]))
	}
	m.SetPort(list)
	others := portPB(&v.Others)
	others.SetCongestedPorts(uint32(v.OthersNow))
	others.SetCongested(v.OthersNow > 0)
	m.SetOthers(others)
	return m
}

func portPB(v *hour.PortView) *rdsdv1.PortHistory {
	p := &rdsdv1.PortHistory{}
	if v.Endpoint.IsValid() {
		p.SetEndpoint(endpointPB(v.Endpoint))
	}
	p.SetLocal(v.Local)
	p.SetCongested(v.Congested)
	p.SetCongestedNs(uint64(v.Total))
	p.SetTimes(v.Times)
	p.SetSlot(v.Slot)
	p.SetSlotMs(v.Ms)
	p.SetReaderUid(v.Reader.UID)
	p.SetReaderPid(v.Reader.PID)
	p.SetReaderProgram(v.Reader.Program)
	var list []*rdsdv1.Culprit
	for _, c := range v.Reader.Culprits {
		x := &rdsdv1.Culprit{}
		x.SetSource(endpointPB(c.Source))
		x.SetQueuedDatagrams(c.Datagrams)
		x.SetQueuedBytes(c.Bytes)
		list = append(list, x)
	}
	p.SetCulprit(list)
	return p
}

func endpointPB(a netip.AddrPort) *rdsdv1.Endpoint {
	e := &rdsdv1.Endpoint{}
	e.SetAddress(a.Addr().AsSlice())
	e.SetPort(uint32(a.Port()))
	return e
}
