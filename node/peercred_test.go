package node

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/rdsd/rdsd/node/config"
	"google.golang.org/grpc/credentials"
)

// Who is at the other end is what the kernel says of a Unix socket; of anything else nobody knows, so that it is nobody, from afar.
func TestIdentify(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	nobody := config.Identity{UID: config.NobodyID, GID: config.NobodyID, Remote: true}
	if id, level, err := identify(a); id != nobody || level != credentials.NoSecurity || err != nil {
		t.Errorf("a pipe: %+v, %v, %v", id, level, err)
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
	if id, level, err := identify(s); id != me || level != credentials.PrivacyAndIntegrity || err != nil {
		t.Errorf("a socket: %+v, %v, %v; want %+v", id, level, err, me)
	}
	s.Close()
	if id, level, err := identify(s); err == nil || level == credentials.PrivacyAndIntegrity {
		t.Errorf("a closed socket: %+v, %v", id, level)
	}
}
