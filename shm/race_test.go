package shm

import (
	"encoding/binary"
	"math/rand"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRace: both ends at once in memory that the race detector watches, asleep
// now and then, woken by doorbells alone. The daemon sends back what it gets.
func TestRace(t *testing.T) {
	total := uint64(500_000)
	if testing.Short() {
		total = 10_000
	}
	s := smallSpec()
	s.Sends, s.Events, s.Receives, s.Releases = 8, 8, 8, 16
	s.SendArena, s.RecvArena = 1<<16, 1<<16
	r := heapRegion(t, s)
	bell, err := NewBell()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(bell)
	alarm, ear, err := NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ear)
	defer alarm.Close()
	quit := make(chan struct{})
	done := make(chan uint64)
	go func() { done <- echo(t, r, watchEdges(t, bell), alarm, quit) }()
	c := raceClient{t: t, m: &mate{t: t, r: r}, bell: bell, ear: ear, rnd: rand.New(rand.NewSource(1)), total: total}
	for i := range 32 {
		c.slots = append(c.slots, uint64(i)*1024)
	}
	c.run()
	close(quit)
	Ring(bell)
	if slept := <-done; slept == 0 || c.slept == 0 {
		t.Errorf("the daemon slept %d times, the client %d: nothing was tested", slept, c.slept)
	}
}

// watchEdges makes an epoll set that tells each ring of a bell once, as the daemon's does.
func watchEdges(t testing.TB, bell int) int {
	t.Helper()
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		t.Cleanup(func() { unix.Close(set) })
		err = unix.EpollCtl(set, unix.EPOLL_CTL_ADD, bell, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET})
	}
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// awaitEdge waits for a ring of the bell in set.
func awaitEdge(t testing.TB, set int) bool {
	for {
		var ev [1]unix.EpollEvent
		n, err := unix.EpollWait(set, ev[:], 5000)
		if err == unix.EINTR {
			continue
		}
		if n == 0 {
			t.Error("the daemon was never woken")
		}
		return n > 0
	}
}

// pollBell waits for a client's doorbell; when it does not ring for long, a wake-up is lost.
func pollBell(t *testing.T, fd int, who string) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 5000)
		if err == unix.EINTR {
			continue
		}
		if n == 0 {
			t.Errorf("the %s was never woken", who)
			return false
		}
		Drain(fd)
		return true
	}
}

// echo is the daemon. It returns how often it slept.
func echo(t *testing.T, r *Region, set int, alarm *Alarm, quit chan struct{}) (slept uint64) {
	h := NewHost(r, nil)
	for idle := 0; ; {
		select {
		case <-quit:
			return slept
		default:
		}
		worked := false
		if _, _, n, err := h.Releases(); err != nil {
			t.Error(err)
			return
		} else if n > 0 {
			worked = true
		}
		for range 5 {
			var p Post
			ok, err := h.Next(&p)
			if err != nil {
				t.Error(err)
				return slept
			}
			if !ok {
				break
			}
			if _, ok := h.PlaceCopy(testDst, p.Train, NoLane, 0); !ok {
				if _, _, n, _ := h.Releases(); n > 0 {
					continue
				}
				break
			}
			id, _ := h.Taken(&p, MakeTarget(testDst), true)
			h.Outcome(id, p.Tag, p.Count, Delivered, 0, true)
			worked = true
		}
		if h.Publish() {
			alarm.Ring()
		}
		if worked {
			idle = 0
			continue
		}
		if idle++; idle < 3 {
			continue
		}
		idle = 0
		if h.Sleep() {
			slept++
			if !awaitEdge(t, set) {
				return slept
			}
			h.Wake()
		}
	}
}

type raceClient struct {
	t      *testing.T
	m      *mate
	bell   int // the daemon's
	ear    int // ours
	rnd    *rand.Rand
	total  uint64
	posted uint64
	got    uint64
	ended  uint64
	slots  []uint64
	owner  [32]crashTx // by cookie: the slot's index
	last   *crashTx
	slept  int
}

func (c *raceClient) run() {
	deadline := time.Now().Add(30 * time.Second)
	for c.got < c.total || c.ended < c.total {
		worked := c.post()
		worked = c.events() || worked
		worked = c.read() || worked
		if worked || c.t.Failed() {
			if c.t.Failed() || time.Now().After(deadline) {
				c.t.Errorf("%d of %d came back", c.got, c.total)
				return
			}
			continue
		}
		c.sleep()
	}
}

func (c *raceClient) wake(bit uint32) {
	w := c.m.r.DaemonSleeps()
	if w.Load()&bit != 0 && w.Swap(0) != 0 {
		Ring(c.bell)
	}
}

func (c *raceClient) post() (worked bool) {
	m := c.m
	if tx := c.last; tx != nil && tx.count < 100 && c.posted < c.total && c.rnd.Intn(2) == 0 {
		word := m.r.SendWord(tx.n)
		if w := Word(word.Load()); !w.Claimed() {
			binary.LittleEndian.PutUint64(m.r.SendArena()[tx.slot+8*uint64(tx.count):], c.posted+1)
			if word.CompareAndSwap(uint64(w), uint64(w.Grow(1, 8))) {
				c.posted++
				tx.count++
				return true
			}
		}
		c.last = nil
	}
	for range 1 + c.rnd.Intn(4) {
		if c.posted == c.total || len(c.slots) == 0 || m.sendTail-m.r.SendHead().Load() == uint64(m.r.Sends) {
			break
		}
		slot := c.slots[len(c.slots)-1]
		c.slots = c.slots[:len(c.slots)-1]
		n := int(min(uint64(1+c.rnd.Intn(20)), c.total-c.posted))
		cookie := uint32(slot / 1024)
		tx := &c.owner[cookie]
		*tx = crashTx{slot: slot, tag: c.posted, count: n, n: m.sendTail}
		var body []byte
		for range n {
			c.posted++
			body = le.AppendUint64(body, c.posted)
		}
		m.post(MakeWord(KindEach, 8*n, n), SendDesc{Tag: tx.tag, Slot: slot, Gen: 1, Cookie: cookie}, body)
		c.last, worked = tx, true
		c.wake(DaemonWaitsSend)
	}
	return worked
}

func (c *raceClient) events() bool {
	all := c.m.events()
	for _, v := range all {
		tx := &c.owner[v.Cookie]
		if v.Tag != tx.tag || int(v.Count) != tx.count || v.Flags != EventLast {
			c.t.Errorf("%+v for %+v", v, tx)
		}
		c.ended += uint64(v.Count)
		if c.last == tx {
			c.last = nil
		}
		c.slots = append(c.slots, tx.slot)
	}
	if len(all) > 0 {
		c.wake(DaemonWaitsRoom)
	}
	return len(all) > 0
}

func (c *raceClient) read() bool {
	m := c.m
	from := m.head
	for tail := m.r.RecvTail().Load(); m.head != tail; m.head++ {
		var d RecvDesc
		m.r.GetRecv(m.head, &d)
		b := m.r.RecvArena()[d.Slot:][:d.Word.Bytes()]
		for range d.Word.Count() {
			c.got++
			if n := le.Uint64(b); n != c.got {
				c.t.Errorf("datagram %d where %d was due", n, c.got)
				return false
			}
			b = b[8:]
		}
		m.release(d.Slot)
	}
	m.r.RecvHead().Store(m.head)
	if m.head != from {
		c.wake(DaemonWaitsRoom)
	}
	return m.head != from
}

func (c *raceClient) sleep() {
	m := c.m
	bits := uint32(ClientWaitsRecv | ClientWaitsEvent)
	full := m.sendTail-m.r.SendHead().Load() == uint64(m.r.Sends)
	if full && c.posted < c.total && len(c.slots) > 0 {
		bits |= ClientWaitsSendRoom
	}
	w := m.r.ClientSleeps()
	w.Store(bits)
	if m.r.RecvTail().Load() == m.head && m.r.EventTail().Load() == m.eventHead &&
		(bits&ClientWaitsSendRoom == 0 || m.sendTail-m.r.SendHead().Load() == uint64(m.r.Sends)) &&
		(full || len(c.slots) == 0 || c.posted == c.total) {
		c.slept++
		pollBell(c.t, c.ear, "client")
	}
	w.Store(0)
}
