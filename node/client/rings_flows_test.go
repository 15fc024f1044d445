package client

import (
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/shm"
)

// describe puts a port of nobody's into entry i of r's flow table, and a descriptor that opens it into
// the send ring.
func describe(r *clienttest.RingClient, i, gen uint32) {
	r.Region.PutFlow(i, &shm.FlowEntry{Dst: netip.AddrPortFrom(clienttest.Nobody.Addr(), uint16(1000+i)), Gen: gen})
	tail := r.Region.SendTail().Load()
	r.Region.PutSend(tail, shm.MakeWord(shm.KindOpen, 0, 0), &shm.SendDesc{Flow: i, Gen: gen, Cookie: uint32(tail)})
	r.Region.SendTail().Store(tail + 1)
	shm.Ring(r.Bell)
}

// stateOf is what the daemon has said of entry i.
func stateOf(r *clienttest.RingClient, i uint32) shm.FlowState {
	return shm.FlowState(r.Region.FlowState(i).Load())
}

// TestRingFlowsAreCharged: a client with rings pays for each destination that it describes, beyond the
// first ones, in the engine and in the daemon's own table, until its socket is gone.
func TestRingFlowsAreCharged(t *testing.T) {
	n, cfg := startClients(t)
	r := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer r.Close()
	used := func() uint64 { return uint64(n.deps.Budget.Datagrams()) }
	if used() != 0 {
		t.Fatalf("%d bytes of datagrams before there is any", used())
	}
	opened := func(i uint32) {
		describe(r, i, 1)
		await.Until(t, 5*time.Second, "the flow is looked at", func() bool { return stateOf(r, i).State() == shm.FlowClear })
	}
	for i := range uint32(freeRingFlows) {
		opened(i)
	}
	if used() != 0 {
		t.Errorf("%d bytes for %d destinations, want none", used(), freeRingFlows)
	}
	opened(freeRingFlows)
	if want := uint64(rds.FlowBytes + freeRingFlows*ringFlowBytes); used() != want {
		t.Errorf("%d bytes for one more, with a table of twice as many entries; want %d", used(), want)
	}
	opened(r.Region.Flows - 1)
	if want := uint64(2*rds.FlowBytes + (r.Region.Flows-freeRingFlows)*ringFlowBytes); used() != want {
		t.Errorf("%d bytes for the last, with the whole table; want %d", used(), want)
	}
	for i := uint32(freeRingFlows + 1); i < r.Region.Flows-1; i++ {
		opened(i)
	}
	if want := uint64(r.Region.Flows-freeRingFlows) * (rds.FlowBytes + ringFlowBytes); used() != want {
		t.Errorf("%d bytes for %d destinations, want %d", used(), r.Region.Flows, want)
	}
	r.C.Close()
	await.Until(t, 5*time.Second, "everything is given back", func() bool { return used() == 0 })
	if n := int(unsafe.Sizeof(ringFlow{}) + unsafe.Sizeof(rds.Dest{}) + 16); n > ringFlowBytes {
		t.Errorf("an entry takes %d bytes, and %d are charged", n, ringFlowBytes)
	}
}

// TestRingFlowsWaitForMemory: a flow that there is no memory for is opened when there is some, with
// what is posted behind it; a Cancel does not wait for that, and refuses it nothing.
func TestRingFlowsWaitForMemory(t *testing.T) {
	n, cfg := startClients(t)
	r := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer r.Close()
	last := r.Region.Flows - 1
	hog := n.deps.Memory.Account(quota.User(4711))
	all := n.deps.Memory.Limit()
	hog.Grow(quota.Waiting, all)
	refused := n.deps.Budget.RefusedSending
	before := refused()
	describe(r, last, 1)
	await.Until(t, 5*time.Second, "somebody asks for memory", func() bool { return refused() > before })
	if s := stateOf(r, last); s != 0 {
		t.Errorf("without memory the flow is in state %#x", s)
	}
	hog.Give(quota.Waiting, all)
	await.Until(t, 5*time.Second, "there is memory, and the flow is opened", func() bool { return stateOf(r, last) == shm.MakeFlowState(1, shm.FlowClear, 0) })

	for i := range uint32(freeRingFlows) {
		describe(r, i, 1)
		await.Until(t, 5*time.Second, "the flow is looked at", func() bool { return stateOf(r, i).State() == shm.FlowClear })
	}
	hog.Grow(quota.Waiting, all)
	describe(r, freeRingFlows, 1)
	r.Ask(t, clienttest.CancelOf(1, clienttest.Nobody))
	if res := r.Answer(t).GetCancelResult(); res.GetId() != 1 || res.GetErrno() != 0 {
		t.Errorf("cancel: %v", res)
	}
	if s := stateOf(r, freeRingFlows); s != 0 {
		t.Errorf("behind a Cancel the flow is in state %#x", s)
	}
	hog.Give(quota.Waiting, all)
	await.Until(t, 5*time.Second, "there is memory again", func() bool {
		return stateOf(r, freeRingFlows) == shm.MakeFlowState(1, shm.FlowClear, 0)
	})
}
