package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/freeport"
	"github.com/rdsd/rdsd/internal/kernelpeer"
)

// tellsAdmin is a daemon that has this to tell of every trace.
type tellsAdmin struct {
	fakeAdmin
	reports []*rdsdv1.TraceReport
}

func (a *tellsAdmin) Trace(_ *rdsdv1.TraceRequest, s grpc.ServerStreamingServer[rdsdv1.TraceReport]) error {
	for _, r := range a.reports {
		if err := s.Send(r); err != nil {
			return err
		}
	}
	<-s.Context().Done()
	return nil
}

// serveAdmin serves it at the path that it returns.
func serveAdmin(t *testing.T, a rdsdv1.AdminServer) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(rdsdv1.UnaryErrno), grpc.StreamInterceptor(rdsdv1.StreamErrno))
	rdsdv1.RegisterAdminServer(s, a)
	go s.Serve(l) // ended by Stop
	t.Cleanup(s.Stop)
	return path
}

// serveTwo serves the daemons of 10.0.0.1 and 10.0.0.2 and of n datagrams, one every gap, from
// the first to the second, which take 20 µs each way. The clock of the second is ahead, and
// goes faster by drift.
func serveTwo(t *testing.T, n int, gap, ahead time.Duration, drift float64) (near, far string) {
	t.Helper()
	report := func(clock, addr string, events ...*rdsdv1.TraceEvent) []*rdsdv1.TraceReport {
		start := rdsdv1.TraceStart_builder{Clock: clock, LocalAddress: [][]byte{ip(addr)}}.Build()
		return []*rdsdv1.TraceReport{rdsdv1.TraceReport_builder{Start: start}.Build(), rdsdv1.TraceReport_builder{Event: events}.Build()}
	}
	here := func(d time.Duration) int64 { return 1e18 + int64(d) }
	there := func(d time.Duration) int64 { return here(d + ahead + time.Duration(drift*float64(d))) }
	var out, in []*rdsdv1.TraceEvent
	for i := range n {
		begun := time.Duration(i) * gap
		at := func(stage rdsdv1.TraceStage, ns int64) *rdsdv1.TraceEvent {
			return rdsdv1.TraceEvent_builder{Stage: stage, UnixNs: ns, Source: ep("10.0.0.1:4000"), Destination: ep("10.0.0.2:4000"), Sequence: uint64(i) + 1, Incarnation: 9, Datagrams: 1, Bytes: 60}.Build()
		}
		left := at(rdsdv1.TraceStage_TRACE_STAGE_LEFT, here(begun+2000))
		left.SetPostedUnixNs(here(begun))
		left.SetAcceptedUnixNs(here(begun + 1000))
		done := at(rdsdv1.TraceStage_TRACE_STAGE_DONE, here(begun+45*time.Microsecond))
		done.SetOutcome(rdsdv1.OutcomeKind_OUTCOME_KIND_DELIVERED)
		placed := at(rdsdv1.TraceStage_TRACE_STAGE_PLACED, there(begun+23*time.Microsecond))
		placed.SetReceivedUnixNs(there(begun + 22*time.Microsecond))
		out = append(out, left, done)
		in = append(in, placed, at(rdsdv1.TraceStage_TRACE_STAGE_READ, there(begun+60*time.Microsecond)))
	}
	return serveAdmin(t, &tellsAdmin{reports: report("x", "10.0.0.1", out...)}), serveAdmin(t, &tellsAdmin{reports: report("y", "10.0.0.2", in...)})
}

// runTrace is `rdsd trace` with these arguments.
func runTrace(args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(context.Background(), append([]string{"trace"}, args...), strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

// TestTraceOfClocksThatDiffer: by seconds, RECEIVED is the way itself all the same; when one
// drifts it is shown with a minus where it is one, and it is said why.
func TestTraceOfClocksThatDiffer(t *testing.T) {
	for _, c := range []struct {
		name       string
		ahead      time.Duration
		drift      float64
		row, note  string
		belowZero  string
		knownClock string
	}{
		{"seconds ahead", 3 * time.Second, 0, `^0/1 .* 21µs +1µs +37µs +43µs +delivered$`, `clock of .* is 3s ahead, within 21µs: estimated`, "", "bounded"},
		{"an hour behind", -time.Hour, 0, `^0/1 .* 21µs +1µs +37µs +43µs +delivered$`, `clock of .* is -1h0m0s ahead, within 21µs: estimated`, "", "bounded"},
		{"gains", 3 * time.Second, 1e-4, `^0/1 .* -\d+µs +1µs +37µs +43µs +delivered$`, `clock of .* is about 3s ahead, and drifted by \d+µs or more while this was traced: RECEIVED may be off by \d+µs`,
			`^5 stages end before they begin, and are shown with a minus: the clocks drift`, "drifting"},
	} {
		near, far := serveTwo(t, 10, time.Second, c.ahead, c.drift)
		code, out, errs := runTrace("-n", "10", "--for", "20s", "--socket", near, "--and", far)
		for what, text := range map[string]string{c.row: out, c.note: errs, c.belowZero: errs} {
			if code != 0 || !regexp.MustCompile(`(?m)`+what).MatchString(text) {
				t.Errorf("%s: exit %d, want %q in\n%s", c.name, code, what, text)
			}
		}
		if minus := regexp.MustCompile(` -\d`).MatchString(out); minus != (c.belowZero != "") || strings.Contains(errs, "minus") != minus {
			t.Errorf("%s: something is below nothing: %v, and it is said:\n%s%s", c.name, minus, out, errs)
		}
		_, out, _ = runTrace("-n", "10", "--for", "20s", "--socket", near, "--and", far, "--json")
		var doc struct {
			Clock struct{ Known string }
		}
		if err := json.Unmarshal([]byte(out), &doc); err != nil || doc.Clock.Known != c.knownClock {
			t.Errorf("%s: %+v, %v", c.name, doc, err)
		}
	}
}

// TestTraceSaysWhoIsMissing: why there is half of the stages, in the table and in JSON.
func TestTraceSaysWhoIsMissing(t *testing.T) {
	near, far := serveTwo(t, 2, time.Second, 0, 0)
	want := "the daemon of 10.0.0.2 was not asked (--and SOCKET): RECEIVED, PLACED and READ of 2 datagrams to it are missing\n"
	if code, _, errs := runTrace("-n", "2", "--socket", near); code != 0 || errs != want {
		t.Errorf("exit %d, %q, want %q", code, errs, want)
	}
	want = "nobody was asked at 10.0.0.1, of which it is not known whether it has a daemon: of 2 datagrams from it only PLACED and READ are known\n"
	if code, _, errs := runTrace("-n", "2", "--socket", far); code != 0 || errs != want {
		t.Errorf("exit %d, %q, want %q", code, errs, want)
	}
	_, out, errs := runTrace("-n", "2", "--socket", near, "--json")
	if !strings.Contains(strings.Join(strings.Fields(out), ""), `"untold":[{"address":"10.0.0.2","side":"receiver","kind":"rdsd","datagrams":2}]`) || errs != "" {
		t.Errorf("%s%s", out, errs)
	}
	if _, out, errs := runTrace("-n", "2", "--socket", near, "--and", far, "--json"); !strings.Contains(out, `"untold": []`) || errs != "" {
		t.Errorf("%s%s", out, errs)
	}
}

// TestTraceTowardsAKernel: of datagrams to a kernel the stages of their sender are shown, up
// to the acknowledgement of its TCP, and of those from it the ones of their reader; and it is
// said why the others are not.
func TestTraceTowardsAKernel(t *testing.T) {
	here, there := netip.MustParseAddr("127.0.44.1"), netip.MustParseAddr("127.0.44.2")
	var ports [2]uint16
	for i := range ports {
		var err error
		if ports[i], err = freeport.On(here, there); err != nil {
			t.Fatal(err)
		}
	}
	kernel, err := kernelpeer.Listen(netip.AddrPortFrom(there, ports[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	socket, c := serveLive(t, here, ports[0], ports[1])
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	var apps sync.WaitGroup
	defer apps.Wait()
	defer cancel()
	sock, err := c.Bind(ctx, netip.AddrPortFrom(here, 7001))
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(there, 7002)
	apps.Go(func() { // until the test ends: when the trace has begun is nobody's business
		for ctx.Err() == nil {
			if sock.Send(ctx, to, []byte("to the kernel")) != nil || sock.Flush(ctx) != nil {
				return
			}
			select {
			case <-kernel.Got():
				kernel.Send(kernelpeer.Frame{Source: 7002, Destination: 7001, Payload: []byte("from the kernel")})
			case <-ctx.Done():
			}
			if _, err := sock.Recv(ctx); err != nil {
				return
			}
		}
	})
	code, out, errs := runTrace("--to", to.String(), "-n", "3", "--for", "30s", "--socket", socket)
	rows := regexp.MustCompile(`(?m)^0/\d+ +127.0.44.1:7001 +127.0.44.2:7002 +13 +[0-9:.]+ +\S+ +\S+ +- +- +- +[0-9.]+[µmn]?s +delivered$`).FindAllString(out, -1)
	want := "127.0.44.2 is a Linux kernel, which has no daemon that could tell: RECEIVED, PLACED and READ of 3 datagrams to it are missing; ACKED is when its TCP had them\n"
	if code != 0 || len(rows) != 3 || errs != want {
		t.Errorf("exit %d, %d rows, want %q:\n%s%s", code, len(rows), want, out, errs)
	}
	code, out, errs = runTrace("--from", there.String(), "-n", "3", "--for", "30s", "--socket", socket)
	rows = regexp.MustCompile(`(?m)^0/\d+ +127.0.44.2:7002 +127.0.44.1:7001 +15 +- +- +- +- +[0-9.]+[µmn]?s +[0-9.]+[µmn]?s +- +-$`).FindAllString(out, -1)
	want = "127.0.44.2 is a Linux kernel, which has no daemon that could tell: of 3 datagrams from it only PLACED and READ are known\n"
	if code != 0 || len(rows) != 3 || errs != want {
		t.Errorf("exit %d, %d rows, want %q:\n%s%s", code, len(rows), want, out, errs)
	}
	_, out, _ = runTrace("--peer", there.String(), "-n", "2", "--for", "30s", "--socket", socket, "--json")
	if !strings.Contains(out, `"kind": "kernel-legacy"`) {
		t.Errorf("%s", out)
	}
}

// collector is what an OTLP collector has been sent, and how it answers.
type collector struct {
	*httptest.Server
	got    chan []byte
	answer func(http.ResponseWriter, *http.Request)
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{got: make(chan []byte, 100)}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" || err != nil {
			t.Errorf("%s of %q: %v", r.Method, r.Header.Get("Content-Type"), err)
		}
		c.got <- b
		w.Header().Set("Content-Type", "application/json")
		if c.answer != nil {
			c.answer(w, r)
			return
		}
		io.WriteString(w, `{"partialSuccess":{}}`)
	}))
	t.Cleanup(c.Close)
	return c
}

// decodeOTLP decodes a request by the protocol's own definitions, after it has looked at
// what those of protocol buffers are laxer about than OTLP's JSON is: ids are hex, numbers
// of 64 bits are text, enums are numbers.
func decodeOTLP(t *testing.T, b []byte) *tracepb.TracesData {
	t.Helper()
	var doc any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		t.Fatal(err)
	}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				walk(x)
			}
		case map[string]any:
			for k, x := range v {
				s, isText := x.(string)
				_, isNumber := x.(json.Number)
				switch k {
				case "traceId", "spanId", "parentSpanId":
					id, err := hex.DecodeString(s)
					if !isText || err != nil || strings.ToLower(s) != s {
						t.Errorf("%s is %v, not hex: %v", k, x, err)
					}
					v[k] = base64.StdEncoding.EncodeToString(id) // as protocol buffers have bytes
				case "startTimeUnixNano", "endTimeUnixNano", "intValue":
					if !isText {
						t.Errorf("%s is %v, and 64 bits are text", k, x)
					}
				case "kind", "code":
					if !isNumber {
						t.Errorf("%s is %v, and enums are numbers", k, x)
					}
				default:
					walk(x)
				}
			}
		}
	}
	walk(doc)
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	var m tracepb.TracesData
	if err := protojson.Unmarshal(b, &m); err != nil { // refuses fields that there are not
		t.Fatalf("%v: %s", err, b)
	}
	return &m
}

// checkSpans holds what a collector gets to what OTLP demands of spans, and returns how many
// there are of each name, and how many nodes they are of.
func checkSpans(t *testing.T, m *tracepb.TracesData) (names map[string]int, nodes int) {
	t.Helper()
	names = map[string]int{}
	kinds := map[string]tracepb.Span_SpanKind{"datagram": tracepb.Span_SPAN_KIND_PRODUCER, "read": tracepb.Span_SPAN_KIND_CONSUMER}
	all, parents := map[string]bool{}, map[string]string{}
	for _, r := range m.GetResourceSpans() {
		nodes++
		attrs := map[string]string{}
		for _, a := range r.GetResource().GetAttributes() {
			attrs[a.GetKey()] = a.GetValue().GetStringValue()
		}
		if attrs["service.name"] != "rdsd" || netip.MustParseAddr(attrs["service.instance.id"]).IsUnspecified() || len(r.GetScopeSpans()) != 1 || r.GetScopeSpans()[0].GetScope().GetName() == "" {
			t.Errorf("%v", r)
		}
		for _, s := range r.GetScopeSpans()[0].GetSpans() {
			names[s.GetName()]++
			id := string(s.GetTraceId()) + string(s.GetSpanId())
			zero := bytes.Count(s.GetTraceId(), []byte{0}) == 16 || bytes.Count(s.GetSpanId(), []byte{0}) == 8
			kind := kinds[s.GetName()]
			if kind == 0 {
				kind = tracepb.Span_SPAN_KIND_INTERNAL
			}
			if len(s.GetTraceId()) != 16 || len(s.GetSpanId()) != 8 || zero || all[id] || s.GetKind() != kind || s.GetStartTimeUnixNano() == 0 ||
				s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() || s.GetEndTimeUnixNano() > math.MaxInt64 || len(s.GetLinks()) != 0 {
				t.Errorf("%v", s)
			}
			all[id] = true
			if p := s.GetParentSpanId(); len(p) > 0 {
				parents[id] = string(s.GetTraceId()) + string(p)
			} else if s.GetName() != "datagram" {
				t.Errorf("%s has no parent", s.GetName())
			}
			seen := map[string]bool{}
			for _, a := range s.GetAttributes() {
				if a.GetKey() == "" || seen[a.GetKey()] || a.GetValue().GetValue() == nil {
					t.Errorf("%v", a)
				}
				seen[a.GetKey()] = true
			}
		}
	}
	for id, p := range parents {
		if !all[p] {
			t.Errorf("the parent of %x is in nobody's spans", id)
		}
	}
	return names, nodes
}

// TestSpansAreAccepted: what the command sends to a collector is what the definitions of
// OTLP say, of one node and of two, of datagrams that were delivered and that were not.
func TestSpansAreAccepted(t *testing.T) {
	c := newCollector(t)
	socket := filepath.Join(t.TempDir(), "s")
	stop, err := serveFake(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	code, out, errs := runTrace("-n", "3", "--socket", socket, "--otlp", c.URL+"/v1/traces")
	if code != 0 || !strings.Contains(out, "LANE/SEQ") {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	m := decodeOTLP(t, <-c.got)
	names, nodes := checkSpans(t, m)
	if want := map[string]int{"datagram": 3, "accept": 3, "queue": 3, "acknowledge": 2}; nodes != 1 || fmt.Sprint(names) != fmt.Sprint(want) {
		t.Errorf("of %d nodes: %v, want %v", nodes, names, want)
	}
	status := map[string]int{}
	for _, s := range m.GetResourceSpans()[0].GetScopeSpans()[0].GetSpans() {
		status[s.GetStatus().GetCode().String()+" "+s.GetStatus().GetMessage()]++
	}
	if status["STATUS_CODE_OK "] != 2 || status["STATUS_CODE_ERROR failed: no such port"] != 1 {
		t.Errorf("%v", status)
	}

	// Two nodes, the clocks of which drift: spans are cut, and say so.
	near, far := serveTwo(t, 10, time.Second, 3*time.Second, 1e-4)
	if code, _, errs := runTrace("-n", "10", "--socket", near, "--and", far, "--otlp", c.URL+"/v1/traces"); code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	m = decodeOTLP(t, <-c.got)
	names, nodes = checkSpans(t, m)
	if nodes != 2 || len(names) != 7 || names["network"] != 10 || names["read"] != 10 {
		t.Errorf("of %d nodes: %v", nodes, names)
	}
	cut := 0
	for _, r := range m.GetResourceSpans() {
		for _, s := range r.GetScopeSpans()[0].GetSpans() {
			for _, a := range s.GetAttributes() {
				if a.GetKey() == "rds.clock.cut_ns" && a.GetValue().GetIntValue() > 0 && s.GetName() == "network" && s.GetStartTimeUnixNano() == s.GetEndTimeUnixNano() {
					cut++
				}
			}
		}
	}
	if cut != 5 {
		t.Errorf("%d spans were cut", cut)
	}
}

// TestCollectorsThatDoNotTakeThem: the table is shown whatever becomes of the spans, and what
// became of them is told, with the collector's own words.
func TestCollectorsThatDoNotTakeThem(t *testing.T) {
	c := newCollector(t)
	near, _ := serveTwo(t, 1, time.Second, 0, 0)
	held := make(chan struct{})
	defer close(held)
	says := func(code int, text string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			io.WriteString(w, text)
		}
	}
	for _, x := range []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request)
		code   int
		want   string
	}{
		{"empty", says(200, ""), 0, ""},
		{"an object", says(200, "{}"), 0, ""},
		{"protobuf", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-protobuf")
		}, 0, ""},
		{"400", says(400, `{"code":3,"message":"bad \u001b[31m"}`), exitFailed, `the collector answers 400 Bad Request: {"code":3,"message":"bad \u001b[31m"}`},
		{"404", says(404, "no such page\x1b[31m"), exitFailed, `the collector answers 404 Not Found: no such page\x1b[31m`},
		{"503", says(503, "later"), exitFailed, "the collector answers 503 Service Unavailable: later"},
		{"some are refused", says(200, `{"partialSuccess":{"rejectedSpans":"2","errorMessage":"too old"}}`), exitFailed, "the collector refused 2 spans: too old"},
		{"some are refused, as a number", says(200, `{"partialSuccess":{"rejectedSpans":2,"errorMessage":"too old"}}`), exitFailed, "the collector refused 2 spans: too old"},
		{"a warning", says(200, `{"partialSuccess":{"errorMessage":"use gRPC"}}`), exitFailed, "the collector took the spans, and warns: use gRPC"},
		{"another server", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, "<html>Welcome")
		}, exitFailed, `what answers there is no collector: it says 200 and "<html>Welcome" (text/html)`},
		{"elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) }, exitFailed, "/login, where the spans would not go along"},
		{"broken off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "{")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, exitFailed, "the collector broke off its answer, and may have the spans or not"},
		{"slow", func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-held:
			case <-r.Context().Done():
			}
		}, exitTimeout, "the collector did not answer in time: "},
	} {
		c.answer = x.answer
		args := []string{"-n", "1", "--socket", near, "--otlp", c.URL + "/v1/traces"}
		if x.name == "slow" {
			args = append(args, "--timeout", "300ms")
		}
		code, out, errs := runTrace(args...)
		said := false
		for line := range strings.Lines(errs) {
			said = said || strings.HasPrefix(line, "rdsd: --otlp "+c.URL) && strings.Contains(line, x.want)
		}
		if code != x.code || said != (x.code != 0) || !strings.Contains(out, "0/1 ") {
			t.Errorf("%s: exit %d\n%s%s", x.name, code, out, errs)
		}
	}
	gone := c.URL
	c.Close()
	if code, out, errs := runTrace("-n", "1", "--socket", near, "--otlp", gone+"/v1/traces"); code != exitFailed || !strings.Contains(errs, "connection refused") || !strings.Contains(out, "0/1 ") {
		t.Errorf("nobody: exit %d\n%s%s", code, out, errs)
	}
}
