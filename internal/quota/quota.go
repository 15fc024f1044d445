package quota

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rdsd/rdsd/rdserr"
)

// Kind is the purpose that memory is held for.
type Kind uint8

// Kinds. docs/operations.md has the same table for administrators.
const (
	Control    Kind = iota // messages of control connections, while they come in pieces
	Calls                  // gRPC messages that are not whole, or not read
	Waiting                // sends that wait to be accepted
	Clients                // connections and streams of clients
	Sockets                // sockets, with the memory kept ready for their rings
	Regions                // pages of memory shared with clients that the daemon has used
	Partial                // payloads of peers that are not whole
	Handshakes             // connections that have not identified themselves
	Peers                  // peers and their links
	Chunks                 // memory that sessions of volumes write into
	Requests               // requests of programs that use mapped volumes
	Page                   // the content of the daemon's page, and its viewers
	Traces                 // events of traces that nobody has taken
	Stores                 // pages of volumes in memory
	NumKinds
)

// kinds is the table: the name of a kind, the part of the limit that it may take, and the
// part of the limit that it leaves free, whichever kinds hold the rest, both in 64ths. By
// the first, a kind that strangers can fill leaves room for the others. By the second, work
// under way goes on when many small holders have together taken all they may: data of
// strangers leaves most, peers less, new connections and sockets still less, and datagrams
// and the pages they come in have the last of the memory.
var kinds = [NumKinds]struct {
	name         string
	part, leaves int64
}{
	Control:    {"control", 16, 6},
	Calls:      {"calls", 24, 6},
	Waiting:    {"waiting", 16, 6},
	Clients:    {"clients", 32, 2},
	Sockets:    {"sockets", 48, 2},
	Regions:    {"regions", 64, 0},
	Partial:    {"partial", 16, 6},
	Handshakes: {"handshakes", 4, 2},
	Peers:      {"peers", 32, 3},
	Chunks:     {"chunks", 32, 6},
	Requests:   {"requests", 24, 6},
	Page:       {"page", 8, 6},
	Traces:     {"traces", 4, 6},
	Stores:     {"stores", 32, 6},
}

// partOf returns how much of the limit a kind may take.
func (n *Node) partOf(k Kind) int64 { return n.limit / 64 * kinds[k].part }

// leavesOf returns how much of the limit a, with whole bytes, leaves free when it takes some of
// kind k. A user that holds little leaves nothing: users are few, and one with calls or sends
// under way must not stand still because others have much. One that holds more leaves no more than
// it holds beyond that: what peers leave is all that is free where they have taken the rest, and
// as much again from all users would have the next send of each wait for a peer to end. Pages of
// regions are not looked at, as in over: with its rings full a user has more than little of them.
// There are as many peers as addresses, so each leaves the same.
func (a *Account) leavesOf(k Kind, whole int64) int64 {
	leaves := a.node.limit / 64 * kinds[k].leaves
	if a.holder.User {
		leaves = min(leaves, max(a.beyondLittle(whole), 0))
	}
	return leaves
}

// Little reports whether the account is that of a user who holds little: a 32nd of the limit at
// most, pages of regions aside. Who lacks memory gains nothing from such a one, unless it is a
// kind that has its part: a few of them may hold all of that.
func (a *Account) Little() bool { return a != nil && a.little(a.used.Load()) }

func (a *Account) little(whole int64) bool { return a.holder.User && a.beyondLittle(whole) <= 0 }

// beyondLittle is how much more than little whole bytes of the account are.
func (a *Account) beyondLittle(whole int64) int64 {
	return whole - a.kinds[Regions].Load() - a.node.limit/32
}

func (k Kind) String() string { return kinds[k].name }

// Holder identifies the user with clients here, or the peer, that memory is held for. The
// zero Holder is the node itself.
type Holder struct {
	Peer netip.Addr
	UID  uint32
	User bool // UID means something
}

// User and Peer name holders.
func User(uid uint32) Holder      { return Holder{UID: uid, User: true} }
func Peer(addr netip.Addr) Holder { return Holder{Peer: addr} }

func (h Holder) String() string {
	switch {
	case h.User:
		return fmt.Sprintf("uid %d", h.UID)
	case h.Peer.IsValid():
		return "peer " + h.Peer.String()
	}
	return "node"
}

// compare orders holders: the node, peers by address, users.
func (h Holder) compare(o Holder) int {
	switch {
	case h.User != o.User:
		if o.User {
			return -1
		}
		return 1
	case h.User:
		return cmp.Compare(h.UID, o.UID)
	}
	return h.Peer.Compare(o.Peer) // that of the node is none, which comes first
}

// Node is the account of a whole node. Make it with New.
type Node struct {
	limit     int64
	elsewhere func() int64
	used      atomic.Int64 // of all kinds
	kinds     [NumKinds]gauge

	wanted chan struct{} // see Wanted

	mu       sync.Mutex
	accounts map[Holder]*Account // guarded by mu
}

type gauge struct {
	used    atomic.Int64
	refused atomic.Uint64

	// The ration: see Node.Ration. 0: there is none.
	low, upTo atomic.Int64
	asked     atomic.Bool
}

// Account is one holder's part of a node's account.
type Account struct {
	node   *Node
	holder Holder
	refs   int // guarded by node.mu
	used   atomic.Int64
	kinds  [NumKinds]atomic.Int64
}

// New makes the account of a node that may hold limit bytes. elsewhere, which may be nil,
// returns the bytes held within the same limit and counted by others.
func New(limit int64, elsewhere func() int64) *Node {
	return &Node{limit: limit, elsewhere: elsewhere, accounts: map[Holder]*Account{}, wanted: make(chan struct{}, 1)}
}

// Limit is how many bytes the node may hold.
func (n *Node) Limit() int64 { return n.limit }

// Rest counts the bytes held of all kinds, for others that count within the same limit.
func (n *Node) Rest() *atomic.Int64 { return &n.used }

// Used returns the bytes held, those counted elsewhere included.
func (n *Node) Used() int64 {
	u := n.used.Load()
	if n.elsewhere != nil {
		u += n.elsewhere()
	}
	return u
}

// Account finds or makes the account of a holder. Close must follow.
func (n *Node) Account(h Holder) *Account {
	n.mu.Lock()
	defer n.mu.Unlock()
	a := n.accounts[h]
	if a == nil {
		a = &Account{node: n, holder: h}
		n.accounts[h] = a
	}
	a.refs++
	return a
}

// Close gives the account up. Memory still taken in its name stays so until it is given
// back; a closed account may be used for that.
func (a *Account) Close() {
	n := a.node
	n.mu.Lock()
	defer n.mu.Unlock()
	if a.refs--; a.refs == 0 && n.accounts[a.holder] == a {
		delete(n.accounts, a.holder)
	}
}

// Holder returns the holder of the account.
func (a *Account) Holder() Holder { return a.holder }

// Used returns the bytes that the account holds.
func (a *Account) Used() int64 { return a.used.Load() }

// alpha is the multiple of the free memory that one holder may hold: each that takes all it
// can leaves a quarter of the memory it found to those that follow.
const alpha = 3

// alphaElsewhere is the same for memory counted elsewhere, that of datagrams: a holder that
// has filled its share with them can still connect, look and cancel.
const alphaElsewhere = 2

// alphaWhole is the same for all the memory of a holder, pages of regions included: pages in
// use are not given back, so a holder of many may not have the last of the memory besides.
const alphaWhole = 7

// Take takes size bytes of kind k, or says why they cannot be had. A nil account
// has no limits.
func (a *Account) Take(k Kind, size int64) error {
	if a == nil || size == 0 {
		return nil
	}
	n := a.node
	total := n.used.Add(size)
	if n.elsewhere != nil {
		total += n.elsewhere()
	}
	kind := n.kinds[k].used.Add(size)
	whole := a.used.Add(size)
	free := n.limit - total
	if low := n.kinds[k].low.Load(); low > 0 && kind > low {
		n.ask(k)
	}
	rationed := false
	switch upTo := n.kinds[k].upTo.Load(); {
	case free < a.leavesOf(k, whole), kind > n.partOf(k):
	case a.over(k, whole, free, alpha):
	case upTo > 0 && kind > upTo:
		rationed = true
	default:
		a.kinds[k].Add(size)
		return nil
	}
	n.used.Add(-size)
	n.kinds[k].used.Add(-size)
	a.used.Add(-size)
	if rationed {
		return ErrRationed
	}
	n.kinds[k].refused.Add(1)
	return a.refusal(k, size, total-size, kind-size, whole-size)
}

// Sure is Take for the little that a holder has whatever others, or it itself, hold. What is there already
// and cannot be refused (Grow) may have brought the node over its limit: so these may go beyond it, by
// overdraft at most.
func (a *Account) Sure(k Kind, size int64) error {
	return a.within(k, size, a.node.limit+min(a.node.limit/32, overdraft))
}

// overdraft is how far what is sure may go beyond the limit, of which it is a 32nd at most.
const overdraft = 8 << 20

// Replace is Take for memory that another has just given back so that this holder may have
// it: as much is held as before, so nothing need be left to others.
func (a *Account) Replace(k Kind, size int64) error {
	if a == nil {
		return nil
	}
	return a.within(k, size, a.node.limit)
}

// within takes size bytes if the node then holds no more than most, and the kind no more than its part.
func (a *Account) within(k Kind, size, most int64) error {
	a.Grow(k, size)
	n := a.node
	if total, kind := n.Used(), n.kinds[k].used.Load(); total > most || kind > n.partOf(k) {
		a.Give(k, size)
		n.kinds[k].refused.Add(1)
		return a.refusal(k, size, total-size, kind-size, a.used.Load())
	}
	return nil
}

// over reports whether a holder that has whole bytes in all is beyond its share, which is
// times the memory free for it. Unused pages of regions are given back before they are
// missed, and their own kind bounds how many a holder has: so they count as free when
// memory of another kind is wanted.
func (a *Account) over(k Kind, whole, free, times int64) bool {
	if k == Regions {
		return whole > times*free
	}
	pages, all := a.kinds[Regions].Load(), a.node.kinds[Regions].used.Load()
	return whole-pages > times*(free+all) || whole > alphaWhole*free
}

// ErrRationed says that the limits have room, but that the process has to give other memory
// back first. A caller that can wait tries again in a moment.
var ErrRationed = rdserr.With(rdserr.ErrNoMemory, "memory of this kind grows faster than other memory is given back")

// Ration bounds how far a kind grows until Ration is called again: up to upTo bytes. Beyond
// low Asked and Wanted report that more is wanted. Memory that is not Go's has to be
// rationed: it is taken at once, and the collector gives back the Go memory whose place it
// takes some time later.
func (n *Node) Ration(k Kind, low, upTo int64) {
	g := &n.kinds[k]
	g.low.Store(max(low, 1))
	g.upTo.Store(max(upTo, 1))
	g.asked.Store(false)
}

func (n *Node) ask(k Kind) {
	if g := &n.kinds[k]; g.asked.Load() || g.asked.Swap(true) {
		return
	}
	n.Want()
}

// Want has Wanted bring something.
func (n *Node) Want() {
	select {
	case n.wanted <- struct{}{}:
	default:
	}
}

// Asked reports whether more of a rationed kind is wanted and Ration has not answered yet.
func (n *Node) Asked(k Kind) bool { return n.kinds[k].asked.Load() }

// Wanted brings something when more of a rationed kind is wanted, or after Want.
func (n *Node) Wanted() <-chan struct{} { return n.wanted }

// refusal says which of the limits it was.
func (a *Account) refusal(k Kind, size, total, kind, mine int64) error {
	n := a.node
	leaves := a.leavesOf(k, mine+size)
	switch {
	case total+size > n.limit-leaves && total+size <= n.limit:
		return rdserr.With(rdserr.ErrNoMemory, "limits.memory_bytes (%d) is spent but for %d that %v leave to others: %d bytes are held, %d more were wanted for %v", n.limit, leaves, k, total, size, a.holder)
	case total+size > n.limit:
		return rdserr.With(rdserr.ErrNoMemory, "limits.memory_bytes (%d) is spent: %d bytes are held, %d more were wanted for %v of %v", n.limit, total, size, k, a.holder)
	case kind+size > n.partOf(k):
		return rdserr.With(rdserr.ErrNoMemory, "%v hold %d bytes of the %d that limits.memory_bytes (%d) has for them; %d more were wanted for %v", k, kind, n.partOf(k), n.limit, size, a.holder)
	}
	return rdserr.With(rdserr.ErrNoMemory, "%v holds its share of limits.memory_bytes (%d): %d bytes, with %d free for all; %d more were wanted for %v", a.holder, n.limit, mine, n.limit-total, size, k)
}

// Grow takes memory that is there already and cannot be refused.
func (a *Account) Grow(k Kind, size int64) {
	if a == nil {
		return
	}
	a.node.used.Add(size)
	a.node.kinds[k].used.Add(size)
	a.used.Add(size)
	a.kinds[k].Add(size)
}

// Spare reports whether the node has size bytes more of kind k, whosever they would be, and
// some beyond. It takes nothing and counts nothing.
func (n *Node) Spare(k Kind, size int64) bool {
	return n.Used()+size <= n.limit/64*63 && n.kinds[k].used.Load()+size <= n.partOf(k)
}

// Give gives back memory taken by Take or Grow.
func (a *Account) Give(k Kind, size int64) { a.Grow(k, -size) }

// Hold notes n bytes more, or with a negative n less, that are counted elsewhere
// and held for the account's holder.
func (a *Account) Hold(n int64) {
	if a != nil {
		a.used.Add(n)
	}
}

// Fits reports whether n bytes more, to be counted elsewhere, are within the holder's share
// of the memory, of which free bytes are free. mine are the bytes that the caller has taken in
// the holder's name, and has not reported yet. What the caller has taken of the node is not
// free, whether it has reported that or not.
func (a *Account) Fits(n, mine, free int64) bool {
	return a == nil || !a.over(NumKinds, a.used.Load()+mine+n, free-n, alphaElsewhere)
}

// Tight reports whether the account would be refused size bytes of kind k. It
// takes nothing and counts nothing.
func (a *Account) Tight(k Kind, size int64) bool {
	if a == nil {
		return false
	}
	n := a.node
	free := n.limit - n.Used() - size
	return free < a.leavesOf(k, a.used.Load()+size) || n.kinds[k].used.Load()+size > n.partOf(k) || a.over(k, a.used.Load()+size, free, alpha)
}

// OverShare reports whether size bytes more of kind k would be beyond the holder's share of
// the free memory: then it holds the memory it lacks itself, and not others.
func (a *Account) OverShare(k Kind, size int64) bool {
	if a == nil {
		return false
	}
	return a.over(k, a.used.Load()+size, a.node.limit-a.node.Used()-size, alpha)
}

// Full reports whether size bytes more would be more than the part of the limit that kind k may
// take, whoever holds it.
func (a *Account) Full(k Kind, size int64) bool {
	return a != nil && a.node.kinds[k].used.Load()+size > a.node.partOf(k)
}

// Usage describes the memory held of one kind.
type Usage struct {
	Kind    Kind
	Used    int64
	Limit   int64
	Refused uint64
}

// Kinds returns the usage of each kind.
func (n *Node) Kinds() (l [NumKinds]Usage) {
	for k := range l {
		g := &n.kinds[k]
		l[k] = Usage{Kind(k), g.used.Load(), n.partOf(Kind(k)), g.refused.Load()}
	}
	return l
}

// Holding describes the memory of one holder.
type Holding struct {
	Holder Holder
	Used   int64
	Kinds  [NumKinds]int64
}

// Holders lists the holders, those with the most first.
func (n *Node) Holders() []Holding {
	n.mu.Lock()
	l := make([]Holding, 0, len(n.accounts))
	for h, a := range n.accounts {
		x := Holding{Holder: h, Used: a.used.Load()}
		for k := range x.Kinds {
			x.Kinds[k] = a.kinds[k].Load()
		}
		l = append(l, x)
	}
	n.mu.Unlock()
	slices.SortFunc(l, func(a, b Holding) int {
		if a.Used != b.Used {
			return cmp.Compare(b.Used, a.Used)
		}
		return a.Holder.compare(b.Holder) // thousands of peers hold as much as each other
	})
	return l
}
