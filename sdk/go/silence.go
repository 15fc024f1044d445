package rdsd

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
)

// A daemon that is gone with its machine, or behind a network that is cut, is noticed by TCP, after
// silentTime. A daemon on this machine is noticed by its socket.
//
// gRPC's own keepalive is not used: it compares times of day (grpc-go, internal/transport, lastRead).
// When somebody sets the clock back by more than it waits, no ping counts as answered any more, and
// each connection is closed in the midst of its traffic, with the sockets on it.
const (
	silentIdle  = 30 * time.Second // then the daemon's machine is asked
	silentEvery = 5 * time.Second
	silentTime  = 50 * time.Second // also for what it does not acknowledge
)

// listening is the credentials of a Client, whose connections over TCP notice silence. Credentials
// see every connection, whoever has dialled it and through which proxy.
type listening struct {
	credentials.TransportCredentials
}

// ClientHandshake implements credentials.TransportCredentials.
func (l listening) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if t, ok := conn.(*net.TCPConn); ok {
		// Either fails on a connection alone that has ended, which the handshake tells.
		_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: silentIdle, Interval: silentEvery, Count: int((silentTime - silentIdle) / silentEvery)})
		_ = setUserTimeout(t, silentTime)
	}
	return l.TransportCredentials.ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (l listening) Clone() credentials.TransportCredentials {
	return listening{l.TransportCredentials.Clone()}
}
