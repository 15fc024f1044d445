package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/crash"
	"github.com/rdsd/rdsd/wire"
)

// A daemon that dies at any instruction: the child process is a small daemon
// with three regions and a ledger, the parent is its clients. The parent kills it at a
// named point or at random, and then accounts for every datagram from ledger
// and regions, and from what the clients have seen (D1, D2, D3).
//
// Region 0 sends: datagram number n bears tag n and contains it. Regions 1 and 2
// receive what a peer sends on one lane: sequence s goes to region 1 + s%2, except that
// every 17th is refused. Descriptors whose tag is a multiple of 7 stay at the address and go to
// region 1. So the oracle knows what must be where.

const (
	crashLane  = 3
	hereEach   = 7
	refuseEach = 17
	childEnv   = "SHM_TEST_LEDGER"
)

func crashSpec(i int) Spec {
	return Spec{Local: netip.AddrPortFrom(testLocal.Addr(), uint16(4000+i)), UID: 1000, PID: uint32(i), SndBuf: 1 << 16, RcvBuf: 1 << 16,
		Flows: 8, Sends: 16, Events: 8, Receives: 16, Releases: 32}
}

// crashChild is the daemon, in a process of its own. It does not end by itself.
func crashChild(ledger string) error {
	seed, _ := strconv.ParseInt(os.Getenv("SHM_TEST_SEED"), 10, 64)
	rnd := rand.New(rand.NewSource(seed))
	led, err := OpenLedger(ledger, LedgerSpec{Instance: 5, Lanes: 16, Regions: 4, Commits: 2})
	if err != nil {
		return err
	}
	if err := led.Commit(1); err != nil {
		return err
	}
	lane, err := led.Lane(testLocal.Addr(), testDst.Addr(), crashLane)
	if err != nil {
		return err
	}
	here, err := led.Lane(testLocal.Addr(), testLocal.Addr(), LocalLane)
	if err != nil {
		return err
	}
	var hosts []*Host
	for i := range 3 {
		r, err := open(3+2*i, 4+2*i, 0, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err == nil {
			err = r.ReadHeader()
		}
		if err != nil {
			return err
		}
		g, err := led.Region(r)
		if err != nil {
			return err
		}
		hosts = append(hosts, NewHost(r, g))
	}
	d := &crashDaemon{rnd: rnd, led: led, lane: lane, here: here, hosts: hosts}
	for parent := os.Getppid(); os.Getppid() == parent; {
		if err := d.step(); err != nil {
			return err
		}
		yield()
	}
	return errors.New("nobody killed it")
}

// yield lets the other process go on: where there are fewer processors than such
// pairs, each would else wait for the end of the other one's time.
func yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

type crashDaemon struct {
	rnd     *rand.Rand
	led     *Ledger
	lane    *LedgerLane
	here    *LedgerLane
	stayed  uint64 // sequence of the last one that stayed here
	hosts   []*Host
	flight  []crashMsg
	seq     uint64 // of the next one sent
	recv    uint64 // received
	refused []uint64
}

type crashMsg struct {
	id   uint32
	tag  uint64
	left int
	cell *uint64
}

func (d *crashDaemon) step() error {
	a := d.hosts[0]
	for range d.rnd.Intn(20) {
		var p Post
		grow(a)
		ok, err := a.Next(&p)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if p.Tag%41 == 0 {
			a.Taken(&p, Target{}, false)
			a.Refused(&p, uint16(unix.EHOSTUNREACH))
			continue
		}
		if p.Tag%hereEach == 0 {
			b := d.hosts[1]
			if _, ok := b.PlaceCopy(testLocal, p.Train, d.here.Index(), d.stayed+1); !ok {
				break
			}
			d.stayed++
			id, cell := a.Taken(&p, MakeTarget(testLocal), true)
			*cell = LocalLane<<CellLane | d.stayed
			a.Outcome(id, p.Tag, p.Count, Delivered, 0, true)
			continue
		}
		id, cell := a.Taken(&p, MakeTarget(testDst), true)
		d.flight = append(d.flight, crashMsg{id, p.Tag, p.Count, cell})
	}
	for i := range d.flight {
		if m := &d.flight[i]; *m.cell == 0 && d.rnd.Intn(2) == 0 {
			d.seq++
			*d.lane.NextSeq = d.seq + 1
			*m.cell = crashLane<<56 | d.seq
			if d.rnd.Intn(8) == 0 {
				*m.cell = 1 << 63 // sent one by one
			}
		}
	}
	for range d.rnd.Intn(20) {
		if len(d.flight) == 0 {
			break
		}
		i := d.rnd.Intn(len(d.flight))
		m := &d.flight[i]
		n := 1 + d.rnd.Intn(m.left)
		a.Outcome(m.id, m.tag, n, uint8(1+d.rnd.Intn(4)), uint8(d.rnd.Intn(3)), n == m.left)
		m.tag += uint64(n)
		if m.left -= n; m.left == 0 {
			d.flight = slices.Delete(d.flight, i, i+1)
		}
	}
	for _, h := range d.hosts[1:] {
		if _, _, _, err := h.Releases(); err != nil {
			return err
		}
	}
	var body [16]byte
	for range d.rnd.Intn(10) {
		s := d.recv + 1
		if s%refuseEach == 0 {
			d.refused = append(d.refused, s)
			if len(d.refused) > 10 {
				d.refused = d.refused[5:] // the others were answered
			}
			d.recv = s
			continue
		}
		binary.LittleEndian.PutUint64(body[:], s)
		h := d.hosts[1+s%2]
		n := 8 + int(s/8%2)*8
		if s%5 == 0 {
			off, b, ok := h.Reserve(1000)
			if !ok {
				break
			}
			if copy(b, body[:n]); d.rnd.Intn(4) == 0 {
				h.Unreserve(off)
				break
			}
			if _, ok := h.Place(testDst, off, wire.One(make([]byte, n)), d.lane.Index(), s); !ok {
				h.Unreserve(off)
				break
			}
		} else if _, ok := h.PlaceCopy(testDst, wire.One(body[:n]), d.lane.Index(), s); !ok {
			break
		}
		d.recv = s
	}
	d.led.PublishBoth(1, d.lane, d.recv, d.refused, d.here, d.stayed, d.hosts)
	for _, h := range d.hosts {
		h.Publish()
		if h.Err() != nil {
			return h.Err()
		}
	}
	return nil
}

// crashClients are the clients, which outlive the daemon.
type crashClients struct {
	t      *testing.T
	r      [3]*Region
	a      *mate
	rnd    *rand.Rand
	posted uint64             // datagrams; tags 1 to posted
	begins []uint64           // first tags of descriptors
	ended  map[uint64]bool    // tags with an event
	slots  []uint64           // free slots of the send arena
	owner  map[uint32]crashTx // by cookie
	cookie uint32
	last   crashTx
	reader [2]*mate
	got    [2][]uint64 // sequences read
	stayed []uint64    // tags read of those that stayed here
}

type crashTx struct {
	slot  uint64
	tag   uint64
	count int
	left  int
	n     uint64 // number of the descriptor
}

func (c *crashClients) step() {
	if d := c.rnd.Intn(3); d == 0 && c.last.count > 0 && c.last.count < 8 { // append
		w := Word(c.a.r.SendWord(c.last.n).Load())
		le.PutUint64(c.a.r.SendArena()[c.last.slot+8*uint64(c.last.count):], c.posted+1)
		if !w.Claimed() && c.a.r.SendWord(c.last.n).CompareAndSwap(uint64(w), uint64(w.Grow(1, 8))) {
			c.posted++
			c.last.count++
			tx := c.owner[c.cookie]
			tx.count, tx.left = tx.count+1, tx.left+1
			c.owner[c.cookie] = tx
		}
	}
	for len(c.slots) > 0 && c.a.sendTail-c.a.r.SendHead().Load() < uint64(c.a.r.Sends) {
		slot := c.slots[len(c.slots)-1]
		c.slots = c.slots[:len(c.slots)-1]
		c.cookie++
		n := 1 + c.rnd.Intn(4)
		c.last = crashTx{slot: slot, tag: c.posted + 1, count: n, left: n, n: c.a.sendTail}
		c.owner[c.cookie] = c.last
		c.begins = append(c.begins, c.last.tag)
		c.posted += uint64(n)
		var body []byte
		for i := range uint64(n) {
			body = le.AppendUint64(body, c.last.tag+i)
		}
		c.a.post(MakeWord(KindEach, 8*n, n), SendDesc{Tag: c.last.tag, Slot: slot, Gen: 1, Cookie: c.cookie}, body)
	}
	c.events()
	for i, m := range c.reader {
		c.read(i, m, c.rnd.Intn(20))
	}
}

func (c *crashClients) events() {
	for _, v := range c.a.events() {
		tx, ok := c.owner[v.Cookie]
		if !ok || int(v.Count) > tx.left || v.Tag < tx.tag || v.Tag+uint64(v.Count) > tx.tag+uint64(tx.count) {
			c.t.Errorf("event %+v for %+v", v, tx)
			return
		}
		for i := range uint64(v.Count) {
			if c.ended[v.Tag+i] {
				c.t.Errorf("two outcomes of %d", v.Tag+i)
			}
			c.ended[v.Tag+i] = true
		}
		tx.left -= int(v.Count)
		c.owner[v.Cookie] = tx
		if last := v.Flags&EventLast != 0; last != (tx.left == 0) {
			c.t.Errorf("event %+v with %d left", v, tx.left)
		} else if last {
			c.slots = append(c.slots, tx.slot)
			delete(c.owner, v.Cookie)
		}
	}
}

func (c *crashClients) read(i int, m *mate, most int) {
	for tail := m.r.RecvTail().Load(); m.head != tail && most > 0; m.head, most = m.head+1, most-1 {
		var d RecvDesc
		m.r.GetRecv(m.head, &d)
		c.take(i, &d)
		m.release(d.Slot)
	}
	m.r.RecvHead().Store(m.head)
}

func (c *crashClients) take(i int, d *RecvDesc) {
	n := d.Word.Count()
	each := d.Word.Bytes() / n
	into := &c.got[i]
	if d.Src == testLocal {
		into = &c.stayed
	}
	for k := range n {
		*into = append(*into, le.Uint64(c.reader[i].r.RecvArena()[d.Slot+uint64(k*each):]))
	}
	if d.Src == testLocal {
		return
	}
	if last := c.got[i][len(c.got[i])-1]; d.Seq != last || d.Lane != 0 {
		c.t.Errorf("descriptor of lane %d, sequence %d; the last datagram is %d", d.Lane, d.Seq, last)
	}
}

const (
	// crashPosts is how many datagrams the daemon has to die in; 2,000 are enough for
	// every point to be passed a hundred times.
	crashPosts = 50_000
	// crashIdle is for how long nothing may happen.
	crashIdle = 10 * time.Second
)

// crashRound runs a daemon until it dies, at point or after a while, and
// accounts for everything. It reports whether it died.
func crashRound(t *testing.T, point string, seed int64, kill time.Duration) bool {
	ledger := filepath.Join(t.TempDir(), "ledger")
	c := &crashClients{t: t, rnd: rand.New(rand.NewSource(seed)), ended: map[uint64]bool{}, owner: map[uint32]crashTx{}}
	cmd := exec.Command(os.Args[0])
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	for i := range c.r {
		c.r[i] = newRegion(t, crashSpec(i))
		f, err := unix.FcntlInt(uintptr(c.r[i].FD), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		file := os.NewFile(uintptr(f), "region")
		defer file.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, file, daemonFile(t, c.r[i]))
	}
	c.a = &mate{t: t, r: c.r[0]}
	c.reader = [2]*mate{{t: t, r: c.r[1]}, {t: t, r: c.r[2]}}
	for i := range 64 {
		c.slots = append(c.slots, uint64(i)*64)
	}
	cmd.Env = append(os.Environ(), childEnv+"="+ledger, fmt.Sprint("SHM_TEST_SEED=", seed), "RDSD_CRASH_POINT="+point)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var dead atomic.Bool
	done := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		dead.Store(true)
		done <- err
	}()
	var first time.Time
	posted, moved := c.posted, time.Now()
	gaveUp := false
	for !dead.Load() {
		c.step()
		yield()
		if first.IsZero() && c.a.r.SendHead().Load() > 0 {
			first = time.Now()
		}
		if c.posted != posted {
			posted, moved = c.posted, time.Now()
		}
		idle := time.Since(moved) > crashIdle
		if gaveUp = idle || c.posted > crashPosts; gaveUp || kill > 0 && !first.IsZero() && time.Since(first) > kill {
			cmd.Process.Kill()
			if idle {
				t.Errorf("nothing has happened for %v after %d datagrams", crashIdle, c.posted)
			}
			break
		}
	}
	err := <-done
	killed := false
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
		killed = ws.Signaled() && ws.Signal() == syscall.SIGKILL
	}
	if !killed {
		t.Fatalf("the daemon ended by itself: %v\n%s", err, out.String())
	}
	if gaveUp {
		return false
	}
	c.account(ledger)
	return true
}

// account checks that every datagram is in one place.
func (c *crashClients) account(ledger string) {
	t := c.t
	find := func(g *RegionRecord) *Region {
		for _, r := range c.r {
			if r.ID == g.ID {
				return r
			}
		}
		return nil
	}
	rep, err := RecoverFile(ledger, find)
	if err != nil {
		t.Errorf("recover: %v", err)
		return
	}
	if again, err := RecoverFile(ledger, find); err != nil || fmt.Sprintf("%+v", again.Lanes[0]) != fmt.Sprintf("%+v", rep.Lanes[0]) {
		t.Errorf("recovering again: %v", err)
	}
	if len(rep.Regions) != 3 || rep.Lanes[0] == nil || !rep.SameBoot || rep.Instance != 5 {
		if c.a.r.SendHead().Load() > 0 {
			t.Errorf("report %+v", rep)
		}
		return // it died before it had begun
	}
	for _, g := range rep.Regions {
		if g.Err != nil || g.Region == nil {
			t.Errorf("region %d: %v", g.PID, g.Err)
			return
		}
	}

	// What was sent.
	c.events() // Recover has shown those that were published
	g := rep.Regions[0]
	place := map[uint64]string{}
	put := func(tag uint64, where string) {
		if was := place[tag]; was != "" {
			t.Errorf("datagram %d is %s and %s", tag, was, where)
		}
		place[tag] = where
	}
	for tag := range c.ended {
		put(tag, "finished")
	}
	seqs := map[uint64]bool{}
	arrived := map[uint64]bool{}
	for i := range g.Open {
		s := &g.Open[i]
		left := 0
		for k := range uint64(s.Word.Count()) {
			if !c.ended[s.Tag+k] {
				put(s.Tag+k, "on its way")
				left++
			}
		}
		tx := c.owner[s.Cookie]
		dst := testDst
		if s.Tag%hereEach == 0 {
			dst = testLocal
		}
		if left != s.Left || s.Slot != tx.slot || s.Dst.AddrPort() != dst && !s.Refusing {
			t.Errorf("%+v: %d are left, at %d", s, left, tx.slot)
		}
		if s.Lane == LocalLane {
			arrived[s.Tag] = s.Arrived
		} else if s.IsSent && !s.Split {
			if s.Lane != crashLane || s.Seq == 0 || s.Seq >= rep.Lanes[0].NextSeq || seqs[s.Seq] {
				t.Errorf("sent as %+v, next is %d", s, rep.Lanes[0].NextSeq)
			}
			seqs[s.Seq] = true
		}
	}
	for i := range g.Posted {
		p := &g.Posted[i]
		for k := range uint64(p.Count) {
			put(p.Tag+k, "in the ring")
		}
	}
	for tag := uint64(1); tag <= c.posted; tag++ {
		if place[tag] == "" {
			t.Errorf("datagram %d of %d is nowhere", tag, c.posted)
		}
	}
	if len(place) != int(c.posted) || int(g.Done) != len(c.ended) || g.Done+uint64(g.OpenDatagrams()+g.PostedDatagrams()) != c.posted {
		t.Errorf("%d posted, %d accounted for; %d done (%d seen), %d on their way, %d in the ring", c.posted, len(place), g.Done, len(c.ended), g.OpenDatagrams(), g.PostedDatagrams())
	}

	// What was received.
	lane := rep.Lanes[0]
	for i := range c.reader {
		for _, u := range rep.Regions[1+i].Unread {
			c.take(i, &u.RecvDesc)
		}
		var want []uint64
		for s := uint64(1); s <= lane.Received; s++ {
			if int(s%2) == i && s%refuseEach != 0 {
				want = append(want, s)
			}
		}
		if !slices.Equal(c.got[i], want) {
			t.Errorf("region %d has %d datagrams up to %v, the lane says %d up to %d", 1+i, len(c.got[i]), tailOf(c.got[i]), len(want), lane.Received)
		}
	}
	// What stayed here is with its receiver exactly if it has its outcome or
	// Recover says so. Descriptors begin with a multiple of 7 in order.
	has := map[uint64]bool{}
	for i, tag := range c.stayed {
		if has[tag] = true; i > 0 && tag <= c.stayed[i-1] {
			t.Errorf("datagram %d behind %d", tag, c.stayed[i-1])
		}
	}
	for tag, ok := range arrived {
		if has[tag] != ok {
			t.Errorf("datagram %d stayed here, arrived: %v, recovered as %v", tag, has[tag], ok)
		}
	}
	for _, tag := range c.begins {
		if tag%hereEach == 0 && tag%41 != 0 && c.ended[tag] != has[tag] && !arrived[tag] {
			t.Errorf("datagram %d stayed here, arrived: %v, finished: %v", tag, has[tag], c.ended[tag])
		}
	}

	newest := lane.Received - lane.Received%refuseEach
	if newest > 0 && !slices.Contains(lane.Refusals, newest) || len(lane.Refusals) > 0 && slices.Max(lane.Refusals) > lane.Received {
		t.Errorf("received up to %d, refused %v", lane.Received, lane.Refusals)
	}
}

func tailOf(s []uint64) []uint64 { return s[max(0, len(s)-5):] }

// TestCrashPoints kills the daemon at every point, early and late.
func TestCrashPoints(t *testing.T) {
	passages := []int{1, 100}
	if testing.Short() {
		passages = []int{30}
	}
	for i, point := range crash.Names {
		if !strings.HasPrefix(point, "ring.") {
			continue
		}
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			for k, n := range passages {
				if !crashRound(t, fmt.Sprintf("%s:%d", point, n), int64(i*10+k), 0) {
					t.Errorf("%s was passed less than %d times with %d datagrams", point, n, crashPosts)
				}
			}
		})
	}
}

// TestCrashAnywhere kills it at random moments.
func TestCrashAnywhere(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 3
	}
	rnd := rand.New(rand.NewSource(time.Now().UnixNano()))
	for range rounds {
		seed := rnd.Int63()
		if crashRound(t, "", seed, time.Duration(rnd.Intn(20000)+1)*time.Microsecond); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
