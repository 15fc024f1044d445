package adversary

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"
)

// httpActs are hostile to the page of metrics and health.
var httpActs = []Act{
	{"http/silent", 2, httpSilent},
	{"http/half-requests", 2, httpHalf},
	{"http/unread", 2, httpUnread},
	{"http/scrapes", 1, httpScrapes},
	{"http/noise", 1, httpNoise},
	{"http/unread-events", 1, httpEvents},
	{"http/unread-views", 1, httpViews},
}

func (s *Stage) http() (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(s.Ctx, "tcp", s.HTTP)
	if err != nil {
		s.Pause(5 * time.Millisecond)
		return nil, err
	}
	if end, ok := s.Ctx.Deadline(); ok {
		c.SetDeadline(end.Add(50 * time.Millisecond))
	}
	return keep(s, c), nil
}

func httpSilent(s *Stage) error {
	for !s.Over() {
		s.http()
	}
	return nil
}

// httpHalf sends requests that do not end, a line now and then.
func httpHalf(s *Stage) error {
	var open []net.Conn
	for !s.Over() {
		if c, err := s.http(); err == nil && len(open) < 500 {
			io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n")
			open = append(open, c)
		}
		if len(open) > 0 {
			fmt.Fprintf(oneOf(s, open...), "X-%d: %s\r\n", s.IntN(100), strings.Repeat("a", s.IntN(200)))
		}
	}
	return nil
}

// httpUnread asks and asks on the same connections and takes no answer.
func httpUnread(s *Stage) error {
	for !s.Over() {
		c, err := s.http()
		if err != nil {
			continue
		}
		c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		for range 500 {
			if _, err := io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				break
			}
		}
	}
	return nil
}

// httpScrapes reads everything there is, many at a time.
func httpScrapes(s *Stage) error {
	for i := range 16 {
		rng := rand.New(rand.NewPCG(s.Uint64(), uint64(i)))
		s.Go(func() {
			for !s.Over() {
				c, err := s.http()
				if err != nil {
					return
				}
				path := []string{"/metrics", "/healthz", "/readyz", "/"}[rng.IntN(4)]
				fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path)
				io.Copy(io.Discard, c)
				c.Close()
			}
		})
	}
	<-s.Ctx.Done()
	return nil
}

func httpNoise(s *Stage) error {
	for !s.Over() {
		c, err := s.http()
		if err != nil {
			continue
		}
		if s.IntN(2) == 0 {
			fmt.Fprintf(c, "GET /%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n", strings.Repeat("../", s.IntN(3000)), s.Uint64())
		}
		c.Write(s.noise(make([]byte, s.IntN(20_000))))
		c.Close()
	}
	return nil
}

// httpTopics are what the page can be asked for.
var httpTopics = []string{"status", "peers", "sockets", "counters", "congestion", "history", "maps", "volumes", "sessions", "paths"}

// httpEvents has the page bring everything as it changes, on as many streams as it can have,
// and takes nothing.
func httpEvents(s *Stage) error {
	for !s.Over() {
		c, err := s.http()
		if err != nil {
			continue
		}
		smallBuffer(c)
		fmt.Fprintf(c, "GET /api/v1/events?topics=%s HTTP/1.1\r\nHost: localhost\r\n\r\n", strings.Join(httpTopics, ","))
		s.Pause(time.Millisecond)
	}
	return nil
}

// httpViews asks for views, those that all share and those that are made for one who asks, and
// takes no answer.
func httpViews(s *Stage) error {
	paths := []string{"peers?remote=127.0.0.1", "counters?remote=127.0.0.1", "queue?limit=4294967295", "congestion/history", "congestion/maps", "volumes/paths?session=x"}
	paths = append(paths, httpTopics[:5]...)
	for !s.Over() {
		c, err := s.http()
		if err != nil {
			continue
		}
		smallBuffer(c)
		c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		for range 1 + s.IntN(50) {
			if _, err := fmt.Fprintf(c, "GET /api/v1/%s HTTP/1.1\r\nHost: localhost\r\n\r\n", oneOf(s, paths...)); err != nil {
				break
			}
		}
	}
	return nil
}

// smallBuffer has the other end of c keep what is not read.
func smallBuffer(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetReadBuffer(4 << 10)
	}
}
