package base

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/accept"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// What things cost in descriptors.
const (
	ClientFDs = 1 // a connection of a client
	// RingFDs is what a socket with rings has beside it: its doorbell. One of a client that
	// wishes for two doorbells has three.
	RingFDs = 1
	// RingMakingFDs is what there has to be room for while one is made: the two parts of its
	// region, both ends of its doorbell, and one more for the moment in which the reactor
	// takes the connection over.
	RingMakingFDs = 5
	// PairFDs is what a pair has: its two files, open for the daemon itself, and until both clients
	// have theirs what is lent to them. While it is made it is one more.
	PairFDs = 5
	// LinkFDs is what a link costs: its connection is two descriptors while it goes over to
	// a reactor.
	LinkFDs  = 2
	StoreFDs = 1 // a store of a volume
	// BaseFDs are those of the process itself: logs, listeners, the ledger, the state
	// of volumes, reactors, the runtime.
	BaseFDs = 64
)

// Bounds of the pairs of a node, and of those of one user: what clients keep of them when they are over
// counts as well. Whose are spent sends by the daemon.
const (
	MaxPairs       = 1024
	MaxPairsPerUID = 256
)

// What is kept for others when somebody takes some: stores that peers open leave room for
// clients, clients for links and for administrators, links for the page and for what is
// under way.
const (
	KeepOfStores  = 32
	KeepOfClients = 16
	KeepOfAdmins  = 10
	KeepOfLinks   = 6
)

// MaxDescriptors compares limits.max_descriptors with what the system allows. A
// number the system does not allow is an error.
func MaxDescriptors(c *config.Config) (uint64, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, fmt.Errorf("RLIMIT_NOFILE: %w", err)
	}
	n := uint64(c.Limits.MaxDescriptors)
	if n > r.Cur {
		return 0, &config.Error{Where: c.Origin("limits.max_descriptors").String(), Key: "limits.max_descriptors",
			Problem: fmt.Sprintf("the system allows %d", r.Cur), Want: "at most that, or a higher LimitNOFILE= in the unit file"}
	}
	if n == 0 {
		n = r.Cur
	}
	return n, nil
}

// Descriptors watches over the limit of the process. It counts nothing: the kernel
// knows how many are in use, whoever has them.
type Descriptors struct {
	Reserve *accept.Reserve // set by Open
	most    uint64          // 0: before the start, no limit
	named   string          // the limit, as its administrator knows it
	count   *Counters
}

// Open finds out the limit and takes the reserve. It returns the limit.
func (d *Descriptors) Open(c *config.Config, count *Counters) (most uint64, err error) {
	if d.most, err = MaxDescriptors(c); err != nil {
		return 0, err
	}
	d.named = fmt.Sprintf("RLIMIT_NOFILE (%d; LimitNOFILE= in the unit file)", d.most)
	if c.Limits.MaxDescriptors > 0 {
		d.named = fmt.Sprintf("limits.max_descriptors (%d)", d.most)
	}
	d.count = count
	d.Reserve, err = accept.NewReserve()
	return d.most, err
}

// Most is the limit; 0: it is not known yet.
func (d *Descriptors) Most() uint64 { return d.most }

// Close gives the reserve back.
func (d *Descriptors) Close() {
	if d.Reserve != nil {
		d.Reserve.Close()
	}
}

// Budget is what is used of what clients may have: the last few are kept for others.
func (d *Descriptors) Budget() Budget {
	b := Budget{Name: "descriptors"}
	if d.most > 0 {
		used, _, _ := accept.Room(d.most, 1, KeepOfClients)
		b.Used, b.Limit, b.Refused = uint64(used), d.most-min(d.most, KeepOfClients), d.count.DescriptorsRefused.Load()
	}
	return b
}

// Spent reports whether so few are left that new clients are refused.
func (d *Descriptors) Spent() bool {
	if d.most == 0 {
		return false
	}
	_, ok, _ := accept.Room(d.most, 1, KeepOfClients)
	return !ok
}

// Room tells why so many cannot be had while others keep theirs.
func (d *Descriptors) Room(need, keep int) error {
	if d.most == 0 {
		return nil
	}
	used, ok, err := accept.Room(d.most, need, keep)
	if ok {
		return nil
	}
	if err != nil { // it would mislead to speak of descriptors
		return rdserr.With(rdserr.ErrNoMemory, "the kernel gives the daemon nothing for another connection: %v", err)
	}
	d.count.DescriptorsRefused.Add(1)
	return rdserr.With(rdserr.ErrTooMany, "the daemon has %d file descriptors open, which is too near to %s for %d more", used, d.named, need)
}

// NoDescriptors is err with an errno a client can use.
func NoDescriptors(err error) error {
	if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) || errors.Is(err, rdserr.ErrTooMany) {
		return err
	}
	return rdserr.With(rdserr.ErrTooMany, "the daemon has no file descriptor left (limits.max_descriptors, RLIMIT_NOFILE): %v", err)
}
