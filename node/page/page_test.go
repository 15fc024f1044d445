package page

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

func TestMain(m *testing.M) {
	viewKept = 600 * time.Millisecond // tests wait until nothing is kept
	goleak.VerifyTestMain(m)
}

// fake is a node that counts how often it is asked.
type fake struct {
	rdsdv1.UnimplementedAdminServer
	rdsdv1.UnimplementedVolumeServiceServer
	asked  atomic.Int64
	label  string
	big    int // sockets in the list
	fail   error
	caller func(context.Context)
}

func (f *fake) GetStatus(ctx context.Context, _ *rdsdv1.GetStatusRequest) (*rdsdv1.Status, error) {
	n := f.asked.Add(1)
	if f.caller != nil {
		f.caller(ctx)
	}
	s := &rdsdv1.Status{}
	s.SetUptimeNs(uint64(n))
	s.SetState("serving")
	return s, f.fail
}

func (f *fake) ListSockets(context.Context, *rdsdv1.ListSocketsRequest) (*rdsdv1.ListSocketsResponse, error) {
	n := f.asked.Add(1)
	var list []*rdsdv1.SocketInfo
	for i := range f.big + 1 {
		s := &rdsdv1.SocketInfo{}
		s.SetLabel(f.label)
		s.SetInode(uint64(n)*1e6 + uint64(i))
		list = append(list, s)
	}
	m := &rdsdv1.ListSocketsResponse{}
	m.SetSocket(list)
	return m, nil
}

func (f *fake) ListQueue(_ context.Context, r *rdsdv1.ListQueueRequest) (*rdsdv1.ListQueueResponse, error) {
	if r.GetLimit() > 20000 {
		return nil, rdserr.With(rdserr.ErrInvalid, "limit is %d; want at most 20000", r.GetLimit())
	}
	return &rdsdv1.ListQueueResponse{}, nil
}

func (f *fake) GetCounters(_ context.Context, r *rdsdv1.GetCountersRequest) (*rdsdv1.GetCountersResponse, error) {
	if len(r.GetRemote()) > 0 {
		return nil, rdserr.With(rdserr.ErrNotFound, "no such peer")
	}
	return &rdsdv1.GetCountersResponse{}, nil
}

// served is a page behind a real listener.
type served struct {
	*Page
	fake *fake
	at   string
	conf *config.Config
	stop chan struct{}
}

type asKey struct{}

func serve(t *testing.T, network string, change ...func(*Page)) *served {
	t.Helper()
	conf := config.Default()
	s := &served{fake: &fake{}, conf: conf, stop: make(chan struct{})}
	g := &guard.Guard{Log: slog.New(slog.DiscardHandler), Exit: func(int) { t.Error("the process would have ended") }}
	s.Page = New(Deps{
		Admin: s.fake, Volumes: s.fake,
		As: func(ctx context.Context, id config.Identity) context.Context {
			return context.WithValue(ctx, asKey{}, id)
		},
		Allow: func(uint32) error { return nil },
		Conf:  func() *config.Config { return conf }, Memory: quota.New(256<<20, nil), Guard: g, Log: g.Log, Stopping: s.stop,
	})
	for _, f := range change {
		f(s.Page)
	}
	at := "127.0.0.1:0"
	if network == "unix" {
		at = t.TempDir() + "/http.sock"
	}
	l, err := net.Listen(network, at)
	if err != nil {
		t.Fatal(err)
	}
	s.at = l.Addr().String()
	srv := &http.Server{Handler: s.Page, ConnContext: s.Page.ConnContext, ReadTimeout: time.Second}
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(l) }()
	t.Cleanup(func() {
		close(s.stop)
		srv.Close()
		<-done
		// What was held for those who looked is given back when they have gone.
		for end := time.Now().Add(viewKept + 5*time.Second); s.Memory.Used() != 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("%d bytes are still charged", s.Memory.Used())
				return
			}
		}
	})
	return s
}

// ask makes one request with some headers and returns the answer.
func (s *served) ask(t *testing.T, method, target string, header ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, "http://"+s.at+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		} else {
			r.Header.Set(header[i], header[i+1])
		}
	}
	c := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	a, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a, string(b)
}

// TestJSON: what comes is the message of gRPC, whatever a client has written into it.
func TestJSON(t *testing.T) {
	s := serve(t, "tcp")
	s.fake.label = `</script><script>alert("x")</script>` + "\u2028\x7f"
	for target, m := range map[string]proto.Message{
		"/api/v1/status": &rdsdv1.Status{}, "/api/v1/sockets": &rdsdv1.ListSocketsResponse{}, "/api/v1/queue?kind=recv&limit=3": &rdsdv1.ListQueueResponse{},
		"/api/v1/counters": &rdsdv1.GetCountersResponse{},
	} {
		a, body := s.ask(t, "GET", target)
		if a.StatusCode != 200 || a.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %d %s %s", target, a.StatusCode, a.Header.Get("Content-Type"), body)
		}
		if err := protojson.Unmarshal([]byte(body), m); err != nil {
			t.Errorf("%s: %v\n%s", target, err, body)
		}
		if l, ok := m.(*rdsdv1.ListSocketsResponse); ok && l.GetSocket()[0].GetLabel() != s.fake.label {
			t.Errorf("the label is %q", l.GetSocket()[0].GetLabel())
		}
		if a, b := s.ask(t, "HEAD", target); a.StatusCode != 200 || b != "" {
			t.Errorf("HEAD %s: %d %q", target, a.StatusCode, b)
		}
	}
}

// TestOneViewForAll: however many ask, a view is made so often and no more.
func TestOneViewForAll(t *testing.T) {
	s := serve(t, "tcp")
	for range 50 {
		s.ask(t, "GET", "/api/v1/status")
	}
	if n := s.fake.asked.Load(); n > 20 {
		t.Errorf("a status was made %d times for 50 requests", n)
	}
}

// TestErrors: a refusal of the API has its status, its errno and its text.
func TestErrors(t *testing.T) {
	s := serve(t, "tcp")
	for target, want := range map[string]int{
		"/api/v1/nothing":                          404,
		"/api/v1/":                                 404,
		"/api/v2/status":                           404,
		"/api/v1/queue?limit=30000":                400,
		"/api/v1/queue?limit=-1":                   400,
		"/api/v1/queue?kind=what":                  400,
		"/api/v1/queue?kind=recv&kind=send":        400,
		"/api/v1/queue?other=1":                    400,
		"/api/v1/status?a=b":                       400,
		"/api/v1/status?%zz":                       400,
		"/api/v1/counters?remote=10.0.0.1":         404,
		"/api/v1/counters?remote=somewhere":        400,
		"/api/v1/congestion/history?endpoint=host": 400,
		"/api/v1/volumes/get":                      400,
		"/api/v1/volumes/get?mapping=a&export=b":   400,
		"/api/v1/volumes":                          501,
		"/api/v1/events?topics=nothing":            400,
		"/api/v1/events?topics=" + strings.Repeat("status,", 30) + "status": 400,
		"/nothing":                     404,
		"/assets/":                     404,
		"/assets/../doc.go":            404,
		"/assets/%2e%2e/%2e%2e/doc.go": 404,
		"/..%2f..%2fetc/passwd":        404,
		"//etc/passwd":                 404,
		"/%00":                         404,
		"/api/v1/status?" + strings.Repeat("x", 2000): 414,
	} {
		a, body := s.ask(t, "GET", target)
		if a.Request.URL.Path != target && a.StatusCode == 200 {
			t.Errorf("%s leads to %s", target, a.Request.URL)
		}
		var e struct{ Error struct{ Message string } }
		if a.StatusCode != want || json.Unmarshal([]byte(body), &e) != nil || e.Error.Message == "" {
			t.Errorf("%s: %d %s, want %d with a reason", target, a.StatusCode, body, want)
		}
		if strings.Contains(body, "<") {
			t.Errorf("%s: %q has markup", target, body)
		}
	}
	s.Allow = func(uint32) error { return rdserr.With(rdserr.ErrRateLimited, "slowly") }
	if a, body := s.ask(t, "GET", "/api/v1/status"); a.StatusCode != 429 || !strings.Contains(body, "slowly") {
		t.Errorf("too many calls: %d %s", a.StatusCode, body)
	}
}

// TestStrangersPages: what pages of other origins, and names that lead here by somebody
// else's DNS, send is refused.
func TestStrangersPages(t *testing.T) {
	s := serve(t, "tcp")
	s.conf.HTTP.Names = []string{"node7.example.net"}
	for _, c := range []struct {
		method, target string
		header         []string
		want           int
	}{
		{"GET", "/api/v1/status", nil, 200},
		{"GET", "/", nil, 200},
		{"GET", "/api/v1/status", []string{"Host", "evil.example"}, 421},
		{"GET", "/", []string{"Host", "evil.example:16386"}, 421},
		{"GET", "/", []string{"Host", "127.0.0.1.evil.example"}, 421},
		{"GET", "/", []string{"Host", "localhost.evil.example"}, 421},
		{"GET", "/", []string{"Host", "localhost:16386"}, 200},
		{"GET", "/", []string{"Host", "rdsd.localhost"}, 200},
		{"GET", "/", []string{"Host", "[::1]:16386"}, 200},
		{"GET", "/", []string{"Host", "NODE7.example.net.:16386"}, 200},
		{"GET", "/api/v1/status", []string{"Origin", "http://evil.example"}, 403},
		{"GET", "/api/v1/status", []string{"Origin", "null"}, 403},
		{"GET", "/api/v1/status", []string{"Origin", "http://" + s.at}, 200},
		{"GET", "/api/v1/events", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"}, 403},
		{"GET", "/api/v1/status", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"GET", "/api/v1/status", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 403},
		{"GET", "/", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 200},
		{"GET", "/", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, 403},
		{"GET", "/assets/app.js", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "script"}, 403},
		{"GET", "/api/v1/status", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"POST", "/api/v1/status", nil, 405},
		{"DELETE", "/", nil, 405},
		{"OPTIONS", "/api/v1/status", []string{"Origin", "http://evil.example", "Access-Control-Request-Method", "GET"}, 405},
		{"TRACE", "/", nil, 405},
	} {
		a, body := s.ask(t, c.method, c.target, c.header...)
		if a.StatusCode != c.want {
			t.Errorf("%s %s %v: %d %s, want %d", c.method, c.target, c.header, a.StatusCode, body, c.want)
		}
		h := a.Header
		csp := h.Get("Content-Security-Policy")
		if !strings.HasPrefix(csp, "default-src 'none';") || strings.Contains(csp, "unsafe") || !strings.Contains(csp, "frame-ancestors 'none'") ||
			h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "no-referrer" || h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s: the headers are %v", c.method, c.target, h)
		}
	}
}

// TestAssets: the page and its files are there, name nobody else's host, and are not sent
// again to who has them.
func TestAssets(t *testing.T) {
	s := serve(t, "tcp")
	_, index := s.ask(t, "GET", "/")
	if strings.Contains(index, "<style") || strings.Contains(index, "style=") || strings.Contains(index, "onclick") || strings.Contains(index, "<script>") {
		t.Error("the page has script or style within, which its policy forbids")
	}
	for place, f := range assets {
		a, body := s.ask(t, "GET", place)
		if a.StatusCode != 200 || body != string(f.body) || f.kind == "" {
			t.Errorf("%s: %d, %d bytes as %q", place, a.StatusCode, len(body), f.kind)
		}
		if a, body := s.ask(t, "GET", place, "If-None-Match", a.Header.Get("ETag")); a.StatusCode != 304 || body != "" {
			t.Errorf("%s again: %d", place, a.StatusCode)
		}
		if strings.Contains(place, "uplot") {
			continue // text of a licence
		}
		for _, scheme := range []string{"http://", "https://", "innerHTML", "eval("} {
			for rest := body; ; {
				i := strings.Index(rest, scheme)
				if i < 0 {
					break
				}
				rest = rest[i:]
				if !strings.HasPrefix(rest, "http://www.w3.org/2000/svg") {
					t.Errorf("%s has %.40q", place, rest)
				}
				rest = rest[1:]
			}
		}
	}
}

// TestWhoMayLook: those whom the socket of the API lets in, and nobody else.
func TestWhoMayLook(t *testing.T) {
	tcp := serve(t, "tcp")
	var seen config.Identity
	tcp.fake.caller = func(ctx context.Context) { seen, _ = ctx.Value(asKey{}).(config.Identity) }
	if a, body := tcp.ask(t, "GET", "/api/v1/status"); a.StatusCode != 200 || seen.UID != uint32(os.Getuid()) || seen.Remote {
		t.Errorf("over loopback: %d %s, as %+v", a.StatusCode, body, seen)
	}
	ux := serve(t, "unix")
	ux.fake.caller = tcp.fake.caller
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", ux.at) }}}
	a, err := c.Get("http://localhost/api/v1/status")
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	if a.StatusCode != 200 || seen.PID != int32(os.Getpid()) {
		t.Errorf("over a Unix socket: %d, as %+v", a.StatusCode, seen)
	}
	stranger := config.Identity{UID: 54321, GID: config.NobodyID}
	far := config.Identity{UID: config.NobodyID, GID: config.NobodyID, Remote: true}
	server, client := net.Pipe()
	defer server.Close()
	defer client.Close()
	for _, k := range []struct {
		what string
		id   config.Identity
		set  func(*config.Config)
		ok   bool
	}{
		{"a user without rights", stranger, func(*config.Config) {}, false},
		{"root", config.Identity{}, func(*config.Config) {}, true},
		{"an administrator", stranger, func(c *config.Config) { c.API.AdminUIDs = []uint32{54321} }, true},
		{"everybody, as the socket is theirs", stranger, func(c *config.Config) { c.API.SocketMode.Perm = 0o666 }, true},
		{"a user of another machine", far, func(*config.Config) {}, false},
		{"the same where that is said to be known", far, func(c *config.Config) { c.API.Insecure = true }, true},
	} {
		conf := config.Default()
		k.set(conf)
		p := &Page{Deps: Deps{Conf: func() *config.Config { return conf }}}
		if err := p.mayLook(k.id, server); (err == nil) != k.ok {
			t.Errorf("%s: %v", k.what, err)
		}
	}
	// Nobody is a member of root's group but who is listed there.
	if isMember(54321, 0) || !isMember(0, 0) {
		t.Error("membership of group 0 is not what the files say")
	}
}

// open opens a stream of events and returns its reader.
func (s *served) open(t *testing.T, topics string) (net.Conn, *bufio.Reader, *http.Response) {
	t.Helper()
	c, err := net.Dial("tcp", s.at)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "GET /api/v1/events?topics=%s HTTP/1.1\r\nHost: localhost\r\n\r\n", topics)
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	r := bufio.NewReader(c)
	a, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, r, a
}

// event reads the next event of a name.
func event(t *testing.T, body *bufio.Reader, name string) string {
	t.Helper()
	for {
		line, err := body.ReadString('\n')
		if err != nil {
			t.Fatalf("no event %s: %v", name, err)
		}
		if line == "event: "+name+"\n" {
			data, err := body.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimPrefix(strings.TrimSpace(data), "data: ")
		}
	}
}

// TestEvents: a stream brings the newest as it changes, longer than a request may take to
// be read, and ends with the node.
func TestEvents(t *testing.T) {
	s := serve(t, "tcp")
	c, _, a := s.open(t, "status,sockets,volumes")
	defer c.Close()
	body := bufio.NewReader(a.Body)
	if a.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%v", a.Header)
	}
	last := uint64(0)
	for range 3 { // ReadTimeout is a second
		m := &rdsdv1.Status{}
		if err := protojson.Unmarshal([]byte(event(t, body, "status")), m); err != nil || m.GetUptimeNs() <= last {
			t.Fatalf("%v after %d: %v", m, last, err)
		}
		last = m.GetUptimeNs()
	}
	if why := event(t, body, "failed"); !strings.Contains(why, "volumes") {
		t.Errorf("a topic that cannot be had: %s", why)
	}
}

// TestNobodyLooks: nothing is made for nobody, and a view that is the same is not sent.
func TestNobodyLooks(t *testing.T) {
	s := serve(t, "tcp")
	c, _, a := s.open(t, "counters,status")
	body := bufio.NewReader(a.Body)
	event(t, body, "counters")
	for looked := 0; looked < 3; { // that of status is another each time
		line, err := body.ReadString('\n')
		if looked += strings.Count(line, "event: status\n"); err != nil || line == "event: counters\n" {
			t.Fatalf("what has not changed was sent again (%v)", err)
		}
	}
	c.Close()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		s.hub.mu.Lock()
		gone := len(s.hub.streams) == 0 && !s.hub.running && len(s.hub.byUser) == 0
		s.hub.mu.Unlock()
		if gone {
			break
		}
		if time.Now().After(end) {
			t.Fatal("views are made although nobody looks")
		}
	}
}

// TestStreamsAreBounded: 10,000 that want one, of which so many have one, and each other
// is told why not; none of those that have one notices.
func TestStreamsAreBounded(t *testing.T) {
	s := serve(t, "tcp")
	var first []*bufio.Reader
	var conns []net.Conn
	for range MaxStreamsPerUser {
		c, _, a := s.open(t, "status")
		defer c.Close()
		conns = append(conns, c)
		if a.StatusCode != 200 {
			t.Fatalf("%d streams: %d", len(first), a.StatusCode)
		}
		first = append(first, bufio.NewReader(a.Body))
	}
	refused := 0
	for range 100 {
		var batch []net.Conn
		for range 100 {
			c, err := net.Dial("tcp", s.at)
			if err != nil {
				t.Fatal(err)
			}
			batch = append(batch, c)
			fmt.Fprint(c, "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		}
		for _, c := range batch {
			c.SetReadDeadline(time.Now().Add(20 * time.Second))
			a, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(a.Body)
			if a.StatusCode == 503 && strings.Contains(string(b), "streams of events open") && a.Header.Get("Retry-After") != "" {
				refused++
			}
			c.Close()
		}
	}
	if refused != 10000 {
		t.Errorf("%d of 10,000 were refused with a reason", refused)
	}
	for i, r := range first {
		conns[i].SetReadDeadline(time.Now().Add(20 * time.Second)) // what came meanwhile, and what comes
		for range 3 {
			event(t, r, "status")
		}
	}
	// Of all users together there may be few more.
	s.hub.mu.Lock()
	s.hub.byUser = map[uint32]int{}
	s.hub.mu.Unlock()
	for n := MaxStreamsPerUser; ; n++ {
		c, _, a := s.open(t, "status")
		defer c.Close()
		if a.StatusCode == 503 {
			if n != MaxStreams {
				t.Errorf("%d streams at once, want %d", n, MaxStreams)
			}
			break
		}
	}
}

// TestSlowReader: who does not read is ended, and what was held for it is given back;
// others get theirs meanwhile.
func TestSlowReader(t *testing.T) {
	s := serve(t, "tcp", func(p *Page) { p.patience = 300 * time.Millisecond })
	s.fake.big = 20000 // more than TCP takes by itself
	slow, _, a := s.open(t, "sockets,status")
	defer slow.Close()
	if a.StatusCode != 200 {
		t.Fatal(a.Status)
	}
	if raw, err := slow.(*net.TCPConn).SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
	}
	quick, _, b := s.open(t, "status")
	defer quick.Close()
	body := bufio.NewReader(b.Body)
	for end := time.Now().Add(60 * time.Second); ; {
		quick.SetReadDeadline(time.Now().Add(30 * time.Second)) // the views of so many take long on a busy machine
		event(t, body, "status")
		s.hub.mu.Lock()
		n := len(s.hub.streams)
		s.hub.mu.Unlock()
		if n == 1 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("who does not read still has a stream")
		}
	}
}

// TestNoMemory: where memory is spent a view is refused with the reason.
func TestNoMemory(t *testing.T) {
	s := serve(t, "tcp")
	all := s.Memory.Account(quota.Peer(netip.MustParseAddr("10.0.0.1")))
	defer all.Close()
	all.Grow(quota.Chunks, 256<<20)
	defer all.Give(quota.Chunks, 256<<20)
	if a, body := s.ask(t, "GET", "/api/v1/sockets"); a.StatusCode != 503 || !strings.Contains(body, "memory") {
		t.Errorf("a view: %d %s", a.StatusCode, body)
	}
	if a, body := s.ask(t, "GET", "/api/v1/status"); a.StatusCode != 200 {
		t.Errorf("the status, which says what is wrong: %d %s", a.StatusCode, body)
	}
	if a, body := s.ask(t, "GET", "/api/v1/events"); a.StatusCode != 503 || !strings.Contains(body, "memory") {
		t.Errorf("a stream: %d %s", a.StatusCode, body)
	}
}

// TestDocumented: docs/api.md has every topic with its place, and the bounds.
func TestDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	for i := range topics {
		row := regexp.MustCompile("(?m)^\\| `" + topics[i].path + "` \\|.*\\| `" + topics[i].name + "` \\|$")
		if !row.Match(b) {
			t.Errorf("docs/api.md has no row for %s with the topic %s", topics[i].path, topics[i].name)
		}
	}
	for _, bound := range []string{fmt.Sprintf("%d streams, or %d of the user", MaxStreams, MaxStreamsPerUser), fmt.Sprintf("more than %d bytes", maxTarget), fmt.Sprintf("than %d questions", asksPerSecond)} {
		if !strings.Contains(string(b), bound) {
			t.Errorf("docs/api.md does not say %q", bound)
		}
	}
}
