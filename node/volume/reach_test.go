package volume

import (
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
)

// TestMapBehindAClosingServer: a server that closes the first links of a session, as a kernel's does while it
// takes down the one of that name before, is asked again; one that goes on with it is given up.
func TestMapBehindAClosingServer(t *testing.T) {
	port := freePort(t)
	server, client := newServerNode(t, port), newClientNode(t, port)
	server.start()
	client.start()
	mustExport(t, server.h, memory("mem", 1<<20))
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.4", strconv.Itoa(int(port))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var closes, came atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			came.Add(1)
			go between(c, net.JoinHostPort(server.node(), strconv.Itoa(int(port))), closes.Add(-1) >= 0)
		}
	}()
	spec := MapSpec{Node: "127.0.0.4", Name: "mem", Paths: []PathSpec{{Src: "127.0.0.1", Dst: "127.0.0.4"}}}
	closes.Store(closedTries - 1)
	m := mustMap(t, client.h, spec)
	if m.State != StateOpen {
		t.Fatalf("mapped as %+v", m)
	}
	if err := client.h.Unmap(testCtx(t), m.ID, false); err != nil {
		t.Fatal(err)
	}
	came.Store(0)
	closes.Store(1 << 20)
	if _, err := client.h.Map(testCtx(t), spec); err == nil {
		t.Error("mapped by a server that closes every link")
	}
	if n := came.Load(); n < closedTries {
		t.Errorf("given up after %d links", n)
	}
}

// between joins c to the server at addr; with closes, the client finds it closed.
func between(c net.Conn, addr string, closes bool) {
	defer c.Close()
	if closes {
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c) // closed with something unread it would be reset
		return
	}
	s, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer s.Close()
	go func() {
		_, _ = io.Copy(s, c)
		s.Close()
	}()
	_, _ = io.Copy(c, s)
}
