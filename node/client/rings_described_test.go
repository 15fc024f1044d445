package client

import (
	"syscall"
	"testing"
	"time"

	"github.com/rdsd/rdsd/internal/await"
	"github.com/rdsd/rdsd/node/client/clienttest"
	"github.com/rdsd/rdsd/shm"
)

// TestFlowOfNoGeneration: generation 0 is that of a flow that was never described. What is posted to it
// is refused.
func TestFlowOfNoGeneration(t *testing.T) {
	_, cfg := startClients(t)
	r := clienttest.AttachRing(t, cfg, clienttest.BindTo(cfg.RDS.Addresses[0], 0))
	defer r.Close()
	tail := r.Region.SendTail().Load()
	clear(r.Region.SendArena()[:64])
	r.Region.PutFlow(5, &shm.FlowEntry{Dst: clienttest.Nobody})
	r.Region.PutSend(tail, shm.MakeWord(shm.KindEach, 1, 1), &shm.SendDesc{Tag: 7, Flow: 5, Cookie: uint32(tail)})
	r.Region.SendTail().Store(tail + 1)
	shm.Ring(r.Bell)
	var v shm.Event
	await.Until(t, 5*time.Second, "it is answered", func() bool { return r.Region.EventTail().Load() > 0 })
	if r.Region.GetEvent(0, &v); v.Kind != shm.EventRefused || syscall.Errno(v.Errno) != syscall.EDESTADDRREQ || v.Tag != 7 {
		t.Errorf("%+v", v)
	}
	r.Region.PutFlow(5, &shm.FlowEntry{Dst: clienttest.Nobody, Gen: 1})
	r.Region.PutSend(tail+1, shm.MakeWord(shm.KindOpen, 0, 0), &shm.SendDesc{Flow: 5, Gen: 1})
	r.Region.SendTail().Store(tail + 2)
	shm.Ring(r.Bell)
	await.Until(t, 5*time.Second, "it is served", func() bool { return shm.FlowState(r.Region.FlowState(5).Load()).State() == shm.FlowClear })
}
