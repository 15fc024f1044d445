package shm

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/eintr"
)

// Report accounts for every datagram that a dead daemon had in its hands.
type Report struct {
	Instance uint64
	SameBoot bool // the machine has not been started again since; false where the system does not tell
	Redone   int  // commit records that were found valid and carried out again
	Lanes    map[uint32]*LaneRecord
	Regions  []*RegionReport
}

// RegionReport accounts for one socket. In datagrams: those it posted are Done + those left
// in Open + those in Posted.
type RegionReport struct {
	RegionRecord
	Index  uint32
	Done   uint64   // had their outcome, or refusal, published
	Open   []Sent   // descriptors taken and not finished, in the order they were taken
	Posted []Post   // descriptors that stand in the ring
	Unread []Unread // published to the client, which had not taken them yet
	Region *Region  // nil: was not found
	Err    error    // the ledger or the client's own words contradict themselves; the fields have what could be read
}

// Sent is a descriptor that was taken and has datagrams without a published outcome.
type Sent struct {
	SendRecord
	Left     int    // datagrams without a published outcome
	IsSent   bool   // it had been sent, over Lane with Seq
	Split    bool   // its datagrams had been sent one by one: their sequences are not known
	Lane     uint8  // number
	Seq      uint64 //
	Refusing bool   // it was not accepted; the refusal was not published
	Arrived  bool   // it stayed at this address and was placed: delivered
}

// Unread is a descriptor of the receive ring that the client has not taken.
type Unread struct {
	RecvDesc
	N uint64 // its number in the ring
}

// RecoverFile reads the ledger at path. It does not change the file.
func RecoverFile(path string, find func(*RegionRecord) *Region) (*Report, error) {
	b, err := readSparse(path)
	if err != nil {
		return nil, fmt.Errorf("shm: ledger %s: %w", path, err)
	}
	defer unix.Munmap(b)
	return Recover(b, find)
}

// readSparse reads a file into private memory, its holes into none: looking at
// the holes of a mapped tmpfs file would fill them.
func readSparse(path string) ([]byte, error) {
	// The path may be anybody's: no symbolic link is followed, and a pipe does not block.
	fd, err := eintr.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, badMsg("it is no regular file")
	// The ledger is believed, so nobody else may have been able to write it.
	case st.Uid != uint32(os.Geteuid()) || st.Mode&0o077 != 0:
		return nil, &Error{unix.EACCES, fmt.Sprintf("it belongs to user %d with mode %#o, and could be another's work; it must be ours with mode 0600", st.Uid, st.Mode&0o777)}
	case st.Size < HeaderBytes || st.Size > 1<<40:
		return nil, badMsg("it has %d bytes", st.Size)
	}
	// Sparse as the file is: pages that are never read in cost nothing.
	b, err := unix.Mmap(-1, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	for at := int64(0); at < st.Size; {
		from, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			break // only a hole is left
		}
		to := st.Size
		if err == nil {
			to, err = unix.Seek(fd, from, unix.SEEK_HOLE)
		} else {
			// The whole file counts as data then.
			from, err = at, nil // a file system that does not know holes
		}
		for err == nil && from < to {
			var n int
			if n, err = unix.Pread(fd, b[from:to], from); n == 0 && err == nil {
				err = badMsg("it ends at %d of %d bytes", from, st.Size)
			}
			from += int64(n)
		}
		if err != nil {
			unix.Munmap(b)
			return nil, err
		}
		at = to
	}
	return b, nil
}

// Recover accounts for every datagram of a dead daemon: from its ledger, which it changes,
// and the regions, which find returns by their record, or nil (a region is checked against
// the record). Commit records found valid are carried out again, and the words of the
// regions are brought to where the ledger says the daemon was. It may be done again: the
// second time changes nothing.
//
// The ledger is the daemon's own and is believed after its checks. A region
// is believed as far as the ledger bears it out.
func Recover(ledger []byte, find func(*RegionRecord) *Region) (*Report, error) {
	var h LedgerHeader
	if len(ledger) < HeaderBytes {
		return nil, badMsg("a ledger of %d bytes", len(ledger))
	}
	if err := h.Parse(ledger[:HeaderBytes], uint64(len(ledger))); err != nil {
		return nil, err
	}
	boot := bootID()
	rep := &Report{Instance: h.Instance, SameBoot: h.Boot == boot && boot != [16]byte{}, Lanes: map[uint32]*LaneRecord{}}
	// Records first: what is read below is then a ledger between two steps.
	if err := rep.redo(&h, ledger); err != nil {
		return nil, err
	}
	for i := range h.Lanes {
		l := new(LaneRecord)
		if l.get(ledger[h.LaneOff+uint64(i)*laneBytes:][:laneBytes]) {
			rep.Lanes[i] = l
		}
	}
	for i := range h.Regions {
		g := &RegionReport{Index: i}
		if !g.get(ledger[h.RegionOff+uint64(i)*recordBytes:][:recordBytes]) {
			continue
		}
		rep.Regions = append(rep.Regions, g)
		n := uint64(h.Sends) * entryBytes
		// The ledger's account of a socket goes before its region, whose words are the
		// client's as well and are judged by it.
		g.readTaken(ledger[h.SendOff+uint64(i)*n:][:n], rep.localReceived(g))
		if find != nil {
			g.readRegion(find(&g.RegionRecord))
		}
	}
	return rep, nil
}

// localReceived is up to where datagrams that stay at a region's address were placed.
func (rep *Report) localReceived(g *RegionReport) uint64 {
	for _, l := range rep.Lanes {
		if l.Lane == LocalLane && l.Local == g.Local.Addr() && l.Remote == l.Local {
			return l.Received
		}
	}
	return 0
}

type commitRecord struct {
	lanes   [2]commitLane
	regions []commitRegion
}

type commitLane struct {
	index    uint32 // NoLane: none
	received uint64
}

type commitRegion struct {
	index uint32
	tail  uint64
}

// parseCommit reads a record; nil when it is not valid.
func parseCommit(b []byte, regions, lanes uint32) (*commitRecord, error) {
	switch le.Uint32(b) {
	case 0:
		return nil, nil
	// Any other word was never stored by a daemon, which writes 1 and 0 alone.
	case 1:
	default:
		return nil, badMsg("a commit record begins with %d", le.Uint32(b))
	}
	c := &commitRecord{}
	n := le.Uint32(b[4:])
	// Counts and indexes are bounded here, so that redo may use them without another look.
	if n > regions {
		return nil, badMsg("a commit record for %d of %d regions", n, regions)
	}
	for i := range c.lanes {
		l := &c.lanes[i]
		l.index, l.received = le.Uint32(b[8+4*i:]), le.Uint64(b[16+8*i:])
		if l.index != NoLane && l.index >= lanes {
			return nil, badMsg("a commit record for lane %d of %d", l.index, lanes)
		}
	}
	for i := range n {
		e := b[commitHead+commitEach*i:]
		if le.Uint64(e) >= uint64(regions) {
			return nil, badMsg("a commit record for region %d of %d", le.Uint64(e), regions)
		}
		c.regions = append(c.regions, commitRegion{uint32(le.Uint64(e)), le.Uint64(e[8:])})
	}
	return c, nil
}

// redo carries valid commit records out again.
func (rep *Report) redo(h *LedgerHeader, ledger []byte) error {
	size := commitBytes(h.Regions)
	for i := range h.Commits {
		b := ledger[h.CommitOff+uint64(i)*size:][:size]
		c, err := parseCommit(b, h.Regions, h.Lanes)
		if err != nil {
			return err
		}
		if c == nil {
			continue
		}
		for _, r := range c.regions {
			g := ledger[h.RegionOff+uint64(r.index)*recordBytes:]
			if le.Uint32(g) != 1 {
				return badMsg("a commit record for region %d, which is not in use", r.index)
			}
			// Redoing is allowed any number of times: the value that is there may be the new
			// one already, but never a later one.
			if was := le.Uint64(g[88:]); r.tail < was || r.tail-was > 1<<32 {
				return badMsg("a commit record takes region %d from %d to %d", r.index, was, r.tail)
			}
			le.PutUint64(g[88:], r.tail)
		}
		for _, c := range c.lanes {
			if c.index == NoLane {
				continue
			}
			l := ledger[h.LaneOff+uint64(c.index)*laneBytes:]
			if was := le.Uint64(l[72:]); le.Uint32(l) != 1 || c.received < was {
				return badMsg("a commit record takes lane %d from %d to %d", c.index, was, c.received)
			}
			le.PutUint64(l[72:], c.received)
		}
		// Invalid only when all of it is done, as in PublishBoth.
		le.PutUint32(b, 0)
		rep.Redone++
	}
	return nil
}

// readTaken reads the send table.
func (g *RegionReport) readTaken(table []byte, local uint64) {
	g.Done = g.Finished[g.Account]
	left := uint64(0)
	var e entry
	for ; len(table) > 0; table = table[entryBytes:] {
		if le.Uint64(table[8:]) == 0 {
			continue
		}
		for i := range e {
			e[i] = le.Uint64(table[8*i:])
		}
		var s Sent
		s.get(&e)
		// An entry may be marked with a publication that was under way: the account in the
		// event tail says whether it took place.
		done := s.SendRecord.Finished(g.Account)
		if n := s.Word.Count(); n < 1 || n > MaxTrain || done > n {
			g.fail("an entry of the send table has %d datagrams, %d finished", n, done)
			continue
		}
		if s.Order > g.SendHead {
			// Its descriptor was not taken yet: it stands in the ring.
			if s.Order > g.SendHead+1 {
				g.fail("an entry of the send table is of descriptor %d; %d were taken", s.Order-1, g.SendHead)
			}
			continue
		}
		// All its outcomes were published; only the entry was not freed any more.
		if s.Left = s.Word.Count() - done; s.Left == 0 {
			continue
		}
		s.Split = s.Cell>>63 != 0
		if s.IsSent = s.Cell != 0; s.IsSent && !s.Split {
			s.Lane, s.Seq = uint8(s.Cell>>56), s.Cell&(1<<56-1)
			// At its own address a datagram is placed in the step that sends it, so the
			// received number decides.
			s.Arrived = s.Lane == LocalLane && s.Seq <= local
		}
		s.Refusing = s.Flags&FlagRefusing != 0
		left += uint64(s.Left)
		g.Open = append(g.Open, s)
	}
	slices.SortFunc(g.Open, func(a, b Sent) int { return int(int64(a.Order - b.Order)) })
	for i := 1; i < len(g.Open); i++ {
		if g.Open[i].Order == g.Open[i-1].Order {
			g.fail("descriptor %d stands twice in the send table", g.Open[i].Order-1)
		}
	}
	// The two sums are written by different steps; that they agree shows that no entry was
	// lost.
	if taken := g.Taken[g.SendHead&1]; taken != g.Done+left {
		g.fail("%d datagrams were taken, %d are finished, %d are not", taken, g.Done, left)
	}
}

func (g *RegionReport) fail(format string, args ...any) {
	if g.Err == nil {
		g.Err = badMsg(format, args...)
	}
}

// readRegion reads the region's rings and sets its words to the daemon's position in the
// ledger.
func (g *RegionReport) readRegion(r *Region) {
	if r == nil {
		return
	}
	// An inode number alone may have been given again.
	if r.ID != g.ID || r.Inode != g.Inode || r.RegionBytes != g.Bytes {
		g.fail("the region found is another one")
		return
	}
	g.Region = r
	tail := r.SendTail().Load()
	if tail-g.SendHead > uint64(r.Sends) {
		g.fail("send tail %d with %d taken of a ring of %d", tail, g.SendHead, r.Sends)
		tail = g.SendHead
	}
	// Posted and not taken: the client counts them as accepted, and the next daemon finds
	// them here.
	for n := g.SendHead; n != tail; n++ {
		var p Post
		if err := r.readPost(n, r.sendEntry(n), Word(r.SendWord(n).Load()), &p); err != nil {
			g.fail("%v", err)
			break
		}
		g.Posted = append(g.Posted, p)
	}
	head := r.RecvHead().Load()
	if g.RecvTail-head > uint64(r.Receives) {
		g.fail("receive head %d with %d published in a ring of %d", head, g.RecvTail, r.Receives)
		head = g.RecvTail
	}
	for n := head; n != g.RecvTail; n++ {
		u := Unread{N: n}
		r.GetRecv(n, &u.RecvDesc)
		if u.Slot > r.RecvArenaBytes || uint64(u.Word.Bytes()) > r.RecvArenaBytes-u.Slot {
			g.fail("receive descriptor %d has %d bytes at %d", n, u.Word.Bytes(), u.Slot)
			break
		}
		g.Unread = append(g.Unread, u)
	}
	// A daemon that died between the ledger and the region left these behind.
	r.SendHead().Store(g.SendHead)
	r.EventTail().Store(g.Events)
	r.RecvTail().Store(g.RecvTail)
}

// PostedDatagrams, OpenDatagrams and UnreadDatagrams count.
func (g *RegionReport) PostedDatagrams() (n int) {
	for i := range g.Posted {
		n += g.Posted[i].Count
	}
	return n
}

func (g *RegionReport) OpenDatagrams() (n int) {
	for i := range g.Open {
		n += g.Open[i].Left
	}
	return n
}

func (g *RegionReport) UnreadDatagrams() (n int) {
	for i := range g.Unread {
		n += g.Unread[i].Word.Count()
	}
	return n
}
