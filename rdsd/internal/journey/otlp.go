package journey

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Spans are written as OTLP's JSON, by hand: docs/adr/0022-otlp-by-hand.md says why. Each
// journey is a trace: a span of the whole at the sender, whose id is made of the
// datagram's name, so that two who trace the same one agree, and a span for each stage,
// those of the receiver among the receiver's. Times are those of the first daemon's clock.

type (
	otlpDoc struct {
		ResourceSpans []otlpResource `json:"resourceSpans"`
	}
	otlpResource struct {
		Resource   otlpAttrs   `json:"resource"`
		ScopeSpans []otlpScope `json:"scopeSpans"`
	}
	otlpScope struct {
		Scope otlpName   `json:"scope"`
		Spans []otlpSpan `json:"spans"`
	}
	otlpName struct {
		Name string `json:"name"`
	}
	otlpAttrs struct {
		Attributes []otlpAttr `json:"attributes"`
	}
	otlpAttr struct {
		Key   string    `json:"key"`
		Value otlpValue `json:"value"`
	}
	otlpValue struct {
		String *string `json:"stringValue,omitempty"`
		Int    *string `json:"intValue,omitempty"` // 64 bits are text in the JSON of protocol buffers
	}
	otlpSpan struct {
		TraceID string     `json:"traceId"`
		SpanID  string     `json:"spanId"`
		Parent  string     `json:"parentSpanId,omitempty"`
		Name    string     `json:"name"`
		Kind    int        `json:"kind"`
		Start   string     `json:"startTimeUnixNano"`
		End     string     `json:"endTimeUnixNano"`
		Attrs   []otlpAttr `json:"attributes,omitempty"`
		Status  otlpStatus `json:"status"`
	}
	otlpStatus struct {
		Code    int    `json:"code,omitempty"`
		Message string `json:"message,omitempty"`
	}
)

// Numbers of OTLP.
const (
	spanInternal = 1
	spanProducer = 4
	spanConsumer = 5
	statusOK     = 1
	statusError  = 2
)

// OTLP returns the journeys as a request of OTLP/HTTP with JSON.
func (l *Log) OTLP(o Offset) ([]byte, error) {
	spans := make([][]otlpSpan, len(l.Nodes))
	for _, j := range l.begun {
		j.spans(o, spans)
	}
	doc := otlpDoc{ResourceSpans: []otlpResource{}}
	for i, n := range l.Nodes {
		if len(spans[i]) == 0 {
			continue
		}
		node := n.Name
		if len(n.Addresses) > 0 {
			node = n.Addresses[0].String()
		}
		doc.ResourceSpans = append(doc.ResourceSpans, otlpResource{
			Resource:   otlpAttrs{[]otlpAttr{text("service.name", "rdsd"), text("service.instance.id", node)}},
			ScopeSpans: []otlpScope{{otlpName{"rdsd trace"}, spans[i]}},
		})
	}
	return json.Marshal(doc)
}

func text(k, v string) otlpAttr { return otlpAttr{k, otlpValue{String: &v}} }

func number(k string, v uint64) otlpAttr {
	s := strconv.FormatUint(v, 10)
	return otlpAttr{k, otlpValue{Int: &s}}
}

// stretch is a span of a stage, by the first daemon's clock.
type stretch struct {
	name     string
	from, to time.Time
	node     int
	kind     int
	cut      time.Duration // by which it would end before it begins
}

// stretches are the stages of which both ends are known.
func (j *Journey) stretches(o Offset) (list []stretch) {
	s, r := j.sender, j.receiver
	posted, accepted, left, acked := o.first(j.Posted, s), o.first(j.Accepted, s), o.first(j.Left, s), o.first(j.Acknowledged, s)
	received, placed, read := o.first(j.Received, r), o.first(j.Placed, r), o.first(j.Read, r)
	for _, x := range []stretch{
		{name: "accept", from: posted, to: accepted, node: s, kind: spanInternal},
		{name: "queue", from: accepted, to: left, node: s, kind: spanInternal},
		{name: "network", from: left, to: received, node: r, kind: spanInternal},
		{name: "place", from: received, to: placed, node: r, kind: spanInternal},
		{name: "read", from: placed, to: read, node: r, kind: spanConsumer},
		{name: "acknowledge", from: left, to: acked, node: s, kind: spanInternal},
	} {
		if x.from.IsZero() || x.to.IsZero() {
			continue
		}
		// An estimate of the clocks may be off by more than a stage takes, and no span ends
		// before it begins.
		if x.to.Before(x.from) {
			x.cut = x.from.Sub(x.to)
			x.to = x.from
		}
		list = append(list, x)
	}
	return list
}

// spans adds those of j to those of its nodes.
func (j *Journey) spans(o Offset, to [][]otlpSpan) {
	name := fmt.Appendf(nil, "%v %v %d %v %d %d", j.Source, j.Destination, j.Lane, j.Here, j.Seq, j.Incarnation)
	if j.Seq == 0 { // one that never left has no name but its time
		name = fmt.Appendf(name, " %d", j.Ended.UnixNano())
	}
	sum := sha256.Sum256(name)
	trace := hex.EncodeToString(sum[:16])
	id := func(n int) string { return hex.EncodeToString(append([]byte{byte(n) + 1}, sum[17:24]...)) }
	root := otlpSpan{TraceID: trace, SpanID: id(0), Name: "datagram", Kind: spanProducer, Attrs: j.attrs()}
	first, last := o.first(j.Posted, j.sender), o.first(j.Ended, j.sender)
	for i, s := range j.stretches(o) {
		if first.IsZero() || s.from.Before(first) {
			first = s.from
		}
		if s.to.After(last) {
			last = s.to
		}
		span := otlpSpan{TraceID: trace, SpanID: id(i + 1), Parent: root.SpanID, Name: s.name, Kind: s.kind, Start: nanos(s.from), End: nanos(s.to)}
		if s.cut > 0 {
			span.Attrs = []otlpAttr{text("rds.clock", o.Known), number("rds.clock.cut_ns", uint64(s.cut))}
		}
		to[s.node] = append(to[s.node], span)
	}
	if first.IsZero() {
		first = last
	}
	root.Start, root.End = nanos(first), nanos(last)
	switch j.Outcome {
	case "":
	case "delivered":
		root.Status.Code = statusOK
	default:
		root.Status = otlpStatus{statusError, j.Outcome + ": " + j.Reason}
	}
	to[j.sender] = append(to[j.sender], root)
}

func nanos(t time.Time) string {
	if t.IsZero() {
		return "0"
	}
	return strconv.FormatInt(t.UnixNano(), 10)
}

func (j *Journey) attrs() []otlpAttr {
	return []otlpAttr{
		text("messaging.system", "rds"), text("messaging.destination.name", j.Destination.String()), text("rds.source", j.Source.String()),
		number("rds.lane", uint64(j.Lane)), number("rds.sequence", j.Seq), number("rds.datagrams", uint64(j.Datagrams)), number("rds.member", uint64(j.Member)),
		number("messaging.message.body.size", j.Bytes), text("rds.outcome", j.Outcome),
	}
}

// Post sends the spans to an OTLP collector over HTTP, and says what became of them: a
// collector may answer 200 and have refused some.
func Post(ctx context.Context, url string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	client := http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
		// A redirect that makes a GET of the POST would lose the spans, and the page it leads
		// to answer 200.
		CheckRedirect: func(next *http.Request, _ []*http.Request) error {
			if next.Method != http.MethodPost {
				return fmt.Errorf("it redirects to %s, where the spans would not go along", next.URL)
			}
			return nil
		},
	}
	resp, err := client.Do(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the collector did not answer in time: %w", err)
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the collector answers %s: %s", resp.Status, said[:min(len(said), 512)])
	}
	if err != nil {
		return fmt.Errorf("the collector broke off its answer, and may have the spans or not: %w", err)
	}
	return taken(resp.Header.Get("Content-Type"), said)
}

// taken reads the answer of a collector that took the request (ExportTraceServiceResponse).
func taken(kind string, said []byte) error {
	if len(said) == 0 || strings.HasPrefix(kind, "application/x-protobuf") {
		return nil
	}
	var r struct {
		PartialSuccess struct {
			RejectedSpans json.RawMessage `json:"rejectedSpans"` // a number, or text with one
			ErrorMessage  string          `json:"errorMessage"`
		} `json:"partialSuccess"`
	}
	if err := json.Unmarshal(said, &r); err != nil {
		return fmt.Errorf("what answers there is no collector: it says 200 and %q (%s)", said[:min(len(said), 64)], kind)
	}
	n, _ := strconv.ParseUint(strings.Trim(string(r.PartialSuccess.RejectedSpans), `"`), 10, 64)
	switch why := r.PartialSuccess.ErrorMessage; {
	case n > 0:
		return fmt.Errorf("the collector refused %d spans: %s", n, why)
	case why != "":
		return fmt.Errorf("the collector took the spans, and warns: %s", why)
	}
	return nil
}
