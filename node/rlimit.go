package node

import (
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdsd/rdsd/internal/accept"
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/node/service"
)

// CheckSystem tells whether this system can give what a configuration asks of it, as
// far as that can be told without doing it.
func CheckSystem(c *config.Config) error {
	_, err := base.MaxDescriptors(c)
	return err
}

// openDescriptors finds out the limit and takes the reserve.
func (n *Node) openDescriptors() error {
	most, err := n.deps.FDs.Open(n.deps.Config, n.deps.Count)
	if err != nil {
		return err
	}
	if need := service.DescriptorsNeeded(n.deps.Config); need > most {
		n.deps.Log.Warn("the limits could need more file descriptors than there are", "need", need, "have", most)
	}
	return nil
}

// clientRoom is room for a connection of a client: administrators have some of what
// is kept, so that they can look at a daemon that is full.
func (n *Node) clientRoom(id config.Identity) error {
	keep := base.KeepOfClients
	if n.deps.Conf().IsAdmin(id, uint32(unix.Getuid())) {
		keep = base.KeepOfAdmins
	}
	return n.deps.FDs.Room(base.ClientFDs, keep)
}

// acceptor is l with a loop that no error ends.
func (n *Node) acceptor(l net.Listener, what string, refuse func(net.Conn, error)) *accept.Listener {
	a := accept.New(l, what, n.deps.Log)
	a.Reserve, a.Refuse, a.Failed, a.Guard = n.deps.FDs.Reserve, refuse, &n.deps.Count.AcceptErrors, n.deps.Guard
	return a
}

// clientAcceptor is acceptor for clients of front. Connections that front has refused keep their descriptors until
// they are closed, and a client may have that take as long as it likes: with no more left for clients, the
// next are accepted when some have been closed. What links need is left.
func (n *Node) clientAcceptor(l net.Listener, what string, refuse func(net.Conn, error), front interface{ Closing() int }) *accept.Listener {
	a := n.acceptor(l, what, refuse)
	a.Hold = func() bool { return front.Closing() > 0 && n.deps.FDs.Spent() }
	return a
}

// refusePatience is how long a client that is refused may take to say its first words.
const refusePatience = 50 * time.Millisecond

// refuseHTTP2 tells a client of gRPC, in the words of HTTP/2: SETTINGS, as a server
// begins, and GOAWAY with the reason as its debug data (RFC 9113, 6.5 and 6.8).
func refuseHTTP2(c net.Conn, err error) {
	why := base.NoDescriptors(err).Error()
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
	fmt.Fprintf(c, "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n%v\n", base.NoDescriptors(err))
}
