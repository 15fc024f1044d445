package node

import (
	"cmp"
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Remote clients that are gone with their machine, or behind a network that is cut, are noticed after
// remoteTime, so that their ports come free.
const (
	remoteIdle  = time.Minute // then their machine is asked
	remoteEvery = 5 * time.Second
	remoteTime  = 80 * time.Second // also for what they do not acknowledge
)

// listenRemote listens for clients of other machines. TCP notices who is gone, by a clock that nobody
// sets; gRPC would by the time of day.
func listenRemote(address string) (net.Listener, error) {
	c := net.ListenConfig{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: remoteIdle, Interval: remoteEvery, Count: int((remoteTime - remoteIdle) / remoteEvery)},
		Control: func(_, _ string, raw syscall.RawConn) error { // connections have it from their listener
			var set error
			err := raw.Control(func(fd uintptr) {
				set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(remoteTime/time.Millisecond))
			})
			return cmp.Or(err, set)
		},
	}
	return c.Listen(context.Background(), "tcp", address)
}
