package service

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	webpage "github.com/rdsd/rdsd/node/page"
)

// TestStreamsTakeNoSlots: as many streams of events as a user may have, which is more than
// there may be requests at work, and silent connections beside them, more than there may
// be: whoever else asks is answered, and the streams go on.
func TestStreamsTakeNoSlots(t *testing.T) {
	at := startPage(t)
	var streams []*bufio.Reader
	var conns []net.Conn
	for range webpage.MaxStreamsPerUser {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		io.WriteString(c, "GET "+webpage.EventsPath+"?topics=status HTTP/1.1\r\nHost: localhost\r\n\r\n")
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("stream %d: %v %v", len(streams), r, err)
		}
		streams, conns = append(streams, bufio.NewReader(r.Body)), append(conns, c)
	}
	for range maxHTTPConns + 50 {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, path := range []string{"/metrics", "/healthz", "/api/v1/status", "/", "/assets/app.js"} {
		r, err := client.Get("http://" + at + path)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != http.StatusOK {
			t.Errorf("%s beside the streams: %s", path, r.Status)
		}
	}
	for i, r := range streams {
		conns[i].SetDeadline(time.Now().Add(20 * time.Second))
		for seen := 0; seen < 3; { // what came before, and what comes
			line, err := r.ReadString('\n')
			if err != nil {
				t.Fatalf("stream %d has ended: %v", i, err)
			}
			if strings.HasPrefix(line, "event: ") {
				seen++
			}
		}
	}
}
