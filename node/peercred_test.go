package node

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdsd/rdsd/node/config"
	"google.golang.org/grpc/credentials"
)

// Who is at the other end is what the kernel says of a Unix socket, through whatever
// counts the connection; of anything else nobody knows, so that it is nobody, from afar.
func TestIdentify(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	nobody := config.Identity{UID: config.NobodyID, GID: config.NobodyID, Remote: true}
	for what, conn := range map[string]net.Conn{"a pipe": a, "a counted pipe": &countedConn{Conn: a}} {
		if id, level, err := identify(conn); id != nobody || level != credentials.NoSecurity || err != nil {
			t.Errorf("%s: %+v, %v, %v", what, id, level, err)
		}
	}

	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	me := config.Identity{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), PID: int32(os.Getpid())}
	for what, conn := range map[string]net.Conn{"a socket": s, "one counted twice": &countedConn{Conn: &countedConn{Conn: s}}} {
		if id, level, err := identify(conn); id != me || level != credentials.PrivacyAndIntegrity || err != nil {
			t.Errorf("%s: %+v, %v, %v; want %+v", what, id, level, err, me)
		}
	}
	s.Close()
	if id, level, err := identify(s); err == nil || level == credentials.PrivacyAndIntegrity {
		t.Errorf("a closed socket: %+v, %v", id, level)
	}
}
