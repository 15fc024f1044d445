package clienttest

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/shm"
)

// RingClient is a client that does with its region what it likes.
type RingClient struct {
	C      *shm.Conn
	Mem    []byte
	Bell   int // the daemon's
	Ear    int // ours
	Region *shm.Region
	Send   *shm.Sender
	Bound  *rdsdv1.Bound
}

// AttachRing connects to a daemon and binds with rings.
func AttachRing(t testing.TB, cfg *config.Config, b *rdsdv1.Bind) *RingClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := shm.Dial(ctx, cfg.API.Socket+shm.SocketSuffix)
	if err != nil {
		t.Fatal(err)
	}
	return AttachOver(t, c, b)
}

// AttachOver binds with rings over a connection, those that b wishes for if it does.
func AttachOver(t testing.TB, c *shm.Conn, b *rdsdv1.Bind) *RingClient {
	t.Helper()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if !b.HasRing() {
		w := &rdsdv1.RingWish{}
		w.SetVersion(shm.Version)
		b.SetRing(w)
	}
	m := &rdsdv1.ClientMessage{}
	m.SetBind(b)
	raw, err := proto.Marshal(m)
	if err == nil {
		err = c.WriteMessage(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	raw, fds, err := c.ReadMessage()
	if err != nil {
		t.Fatal(err)
	}
	s := &rdsdv1.ServerMessage{}
	if err := proto.Unmarshal(raw, s); err != nil || !s.HasRegion() || len(fds) != 4 {
		t.Fatalf("bind was answered by %v, %d Descriptors, %v", s, len(fds), err)
	}
	region, err := shm.Open(fds[0], fds[1], s.GetRegion().GetRegionBytes())
	if err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fds[0], 0, int(region.DaemonOff), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	CloseFDs(fds[:2])
	m.SetMapped(&rdsdv1.RingMapped{})
	if raw, err = proto.Marshal(m); err == nil {
		err = c.WriteMessage(raw)
	}
	if err == nil {
		raw, _, err = c.ReadMessage()
	}
	if err == nil {
		err = proto.Unmarshal(raw, s)
	}
	if err != nil || !s.HasBound() {
		t.Fatalf("a mapped region was answered by %v, %v", s, err)
	}
	if err := region.ReadHeader(); err != nil {
		t.Fatal(err)
	}
	return &RingClient{c, mem, fds[2], fds[3], region, shm.NewSender(region, fds[2]), s.GetBound()}
}

// Close lets go of everything.
func (r *RingClient) Close() {
	r.C.Close()
	unix.Close(r.Bell)
	unix.Close(r.Ear)
	unix.Munmap(r.Mem)
	r.Region.Close()
}

// Word is a word of the region.
func (r *RingClient) Word(off int) *uint64 { return (*uint64)(unsafe.Pointer(&r.Mem[off])) }

// Signed is the payload number n of a flow.
func Signed(flow string, n uint64) []byte {
	p := binary.BigEndian.AppendUint64([]byte(flow), n)
	return binary.BigEndian.AppendUint32(p, crc32.ChecksumIEEE(p))
}

// RegionsMapped counts this process's mappings of regions; it is daemon and
// client at once.
func RegionsMapped(t testing.TB) (n int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+9 <= len(b); i++ {
		if string(b[i:i+9]) == "rdsd-ring" {
			n++
		}
	}
	return n
}

// Descriptors counts those of this process.
func Descriptors(t testing.TB) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(l)
}

// Nobody is where no node is: what is sent there stays queued.
var Nobody = netip.MustParseAddrPort("127.0.99.99:7")

// Ask sends a message.
func (r *RingClient) Ask(t *testing.T, m *rdsdv1.ClientMessage) {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err == nil {
		err = r.C.WriteMessage(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Answer receives a message.
func (r *RingClient) Answer(t *testing.T) *rdsdv1.ServerMessage {
	t.Helper()
	raw, _, err := r.C.ReadMessage()
	m := &rdsdv1.ServerMessage{}
	if err == nil {
		err = proto.Unmarshal(raw, m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Post posts trains of one-byte datagrams, without waiting for anything.
func (r *RingClient) Post(t *testing.T, dst netip.AddrPort, trains, each int, tag *uint64) {
	t.Helper()
	f, err := r.Send.Flow(dst)
	if err != nil {
		t.Fatal(err)
	}
	for range trains {
		sl, err := r.Send.Grab(f, each)
		for tries := 0; errors.Is(err, shm.ErrRing) && tries < 5000; tries++ {
			time.Sleep(time.Millisecond)
			sl, err = r.Send.Grab(f, each)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.Send.Post(&sl, shm.KindEach, each, each, each, *tag+1, false)
		*tag += uint64(each)
	}
}

// Outcomes counts what became of what was posted, by kind.
func (r *RingClient) Outcomes(t *testing.T) map[uint8]int {
	t.Helper()
	n := map[uint8]int{}
	var v shm.Event
	for {
		ok, err := r.Send.NextEvent(&v)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			r.Send.EventsTaken()
			return n
		}
		if v.Kind == shm.EventOutcome {
			n[v.Outcome] += int(v.Count)
		}
	}
}

// CancelOf is a Cancel of everything sent to dst.
func CancelOf(id uint64, dst netip.AddrPort) *rdsdv1.ClientMessage {
	c := &rdsdv1.Cancel{}
	c.SetId(id)
	c.SetDestination(EndpointMsg(dst))
	m := &rdsdv1.ClientMessage{}
	m.SetCancel(c)
	return m
}

// FlushOf is a Flush.
func FlushOf(id uint64, timeout time.Duration) *rdsdv1.ClientMessage {
	f := &rdsdv1.Flush{}
	f.SetId(id)
	f.SetTimeoutNs(int64(timeout))
	m := &rdsdv1.ClientMessage{}
	m.SetFlush(f)
	return m
}

// RingBind makes a Bind with rings.
func RingBind(addr netip.Addr, port uint16) *rdsdv1.Bind {
	b := BindTo(addr, port)
	w := &rdsdv1.RingWish{}
	w.SetVersion(shm.Version)
	b.SetRing(w)
	return b
}

// OneDoorbell makes a Bind with rings and one doorbell for both directions.
func OneDoorbell(addr netip.Addr, port uint16) *rdsdv1.Bind {
	b := RingBind(addr, port)
	b.GetRing().SetOneDoorbell(true)
	return b
}
