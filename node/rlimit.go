package node

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/accept"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/shm"
)

// What things cost in descriptors.
const (
	clientFDs = 1 // a connection of a client
	// ringFDs is what a socket with rings has beside it: the two parts of the region and
	// the two doorbells, and one more for the moment in which the reactor takes the
	// connection over.
	ringFDs = 5
	// linkFDs: a connection is two descriptors while it goes over to a reactor.
	linkFDs = 2
	// baseFDs are those of the process itself: logs, listeners, the ledger, the state
	// of volumes, reactors, the runtime.
	baseFDs = 64
)

// What is kept for others when somebody takes some: clients leave room for links and
// for administrators, links for the page and for what is under way.
const (
	keepOfClients = 16
	keepOfAdmins  = 10
	keepOfLinks   = 6
)

// descriptorsNeeded is the sum of what the limits allow.
func descriptorsNeeded(c *config.Config) uint64 {
	l, v := &c.Limits, &c.Volumes
	links := uint64(l.MaxPeers)*uint64(c.RDS.Lanes) + uint64(l.MaxHandshakes)
	clients := uint64(l.MaxClients) * (clientFDs + ringFDs)
	volumes := uint64(v.MaxExports) + 2*uint64(v.MaxMappings) + 2*uint64(v.MaxSessions)
	return links + clients + volumes + maxHTTPConns + baseFDs
}

// CheckSystem tells whether this system can give what a configuration asks of it, as
// far as that can be told without doing it.
func CheckSystem(c *config.Config) error {
	_, err := maxDescriptors(c)
	return err
}

// maxDescriptors compares limits.max_descriptors with what the system allows. A
// number the system does not allow is an error.
func maxDescriptors(c *config.Config) (uint64, error) {
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

// fdLimit watches over the limit of the process. It counts nothing: the kernel
// gives the lowest number that is free, so the next one tells how many are in use,
// whoever has them.
type fdLimit struct {
	most    uint64 // 0: before the start, no limit
	named   string // the limit, as its administrator knows it
	reserve *accept.Reserve
	refused *nodeCounters
}

// openDescriptors finds out the limit and takes the reserve.
func (n *Node) openDescriptors() (err error) {
	d := &n.fds
	if d.most, err = maxDescriptors(n.cfg); err != nil {
		return err
	}
	d.named = fmt.Sprintf("RLIMIT_NOFILE (%d; LimitNOFILE= in the unit file)", d.most)
	if n.cfg.Limits.MaxDescriptors > 0 {
		d.named = fmt.Sprintf("limits.max_descriptors (%d)", d.most)
	}
	if need := descriptorsNeeded(n.cfg); need > d.most {
		n.log.Warn("the limits could need more file descriptors than there are", "need", need, "have", d.most)
	}
	d.refused = n.count
	d.reserve, err = accept.NewReserve()
	return err
}

func (d *fdLimit) close() {
	if d.reserve != nil {
		d.reserve.Close()
	}
}

// room tells why so many cannot be had while others keep theirs.
func (d *fdLimit) room(need, keep int) error {
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
	d.refused.DescriptorsRefused.Add(1)
	return rdserr.With(rdserr.ErrTooMany, "the daemon has %d file descriptors open, which is too near to %s for %d more", used, d.named, need)
}

// clientRoom is room for a connection of a client: administrators have some of what
// is kept, so that they can look at a daemon that is full.
func (n *Node) clientRoom(id config.Identity) error {
	keep := keepOfClients
	if n.conf().IsAdmin(id, uint32(unix.Getuid())) {
		keep = keepOfAdmins
	}
	return n.fds.room(clientFDs, keep)
}

// acceptor is l with a loop that no error ends.
func (n *Node) acceptor(l net.Listener, what string, refuse func(net.Conn, error)) *accept.Listener {
	a := accept.New(l, what, n.log)
	a.Reserve, a.Refuse, a.Failed = n.fds.reserve, refuse, &n.count.AcceptErrors
	return a
}

// refusePatience is how long a client that is refused may take to say its first words.
const refusePatience = 50 * time.Millisecond

// refusePacket tells a client of the control socket why its connection ends. What the
// client has said is read before: closing over it would take our word with it.
func refusePacket(c net.Conn, err error) {
	if u, ok := c.(*net.UnixConn); ok {
		conn := shm.NewConn(u, 0)
		conn.SetReadDeadline(time.Now().Add(refusePatience))
		conn.ReadMessage()
		(&packetStream{conn: conn}).sayClosing(noDescriptors(err))
	}
}

// refuseHTTP2 tells a client of gRPC, in the words of HTTP/2: SETTINGS, as a server
// begins, and GOAWAY with the reason as its debug data (RFC 9113, 6.5 and 6.8).
func refuseHTTP2(c net.Conn, err error) {
	why := noDescriptors(err).Error()
	why = why[:min(len(why), 1000)]
	const settings, goAway, calmDown = 4, 7, 11
	n := 8 + len(why)
	b := []byte{0, 0, 0, settings, 0, 0, 0, 0, 0}
	b = append(b, byte(n>>16), byte(n>>8), byte(n), goAway, 0, 0, 0, 0, 0)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, calmDown)
	// The client speaks first, and one that cannot does not listen any more.
	c.SetDeadline(time.Now().Add(refusePatience))
	c.Read(make([]byte, 4096))
	c.Write(append(b, why...)) // it is the last word either way
}

// refusePage tells a client of the page for monitoring.
func refusePage(c net.Conn, err error) {
	c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	fmt.Fprintf(c, "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n%v\n", noDescriptors(err))
}

// noDescriptors is err with an errno a client can use.
func noDescriptors(err error) error {
	if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) || errors.Is(err, rdserr.ErrTooMany) {
		return err
	}
	return rdserr.With(rdserr.ErrTooMany, "the daemon has no file descriptor left (limits.max_descriptors, RLIMIT_NOFILE): %v", err)
}
