package service

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/conn"
	"github.com/rdsd/rdsd/node/datagram"
	"github.com/rdsd/rdsd/node/health"
	"github.com/rdsd/rdsd/node/volume"
	"github.com/rdsd/rdsd/rds"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	"github.com/rdsd/rdsd/wire"
)

// distinct gives every field of x a value that no other has, so that one that is told in
// another's place, or not at all, is seen.
func distinct(x any) {
	n := 0
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		n++
		switch v.Interface().(type) {
		case time.Time:
			v.Set(reflect.ValueOf(time.Unix(1000, 0).Add(-time.Duration(n) * time.Second)))
			return
		case netip.Addr:
			v.Set(reflect.ValueOf(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})))
			return
		case netip.AddrPort:
			v.Set(reflect.ValueOf(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), uint16(n))))
			return
		case netip.Prefix:
			v.Set(reflect.ValueOf(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(n), 0}), 24)))
			return
		}
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				if v.Field(i).CanSet() {
					fill(v.Field(i))
				}
			}
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
			fill(v.Index(0))
			fill(v.Index(1))
		case reflect.String:
			v.SetString(fmt.Sprintf("s%d", n))
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
			v.SetInt(int64(n))
		case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			v.SetUint(uint64(n))
		}
	}
	fill(reflect.ValueOf(x).Elem())
}

// tell writes a message, a field a line, in the order of their numbers; those that are
// empty too, for an answer has to have them.
func tell(b *strings.Builder, indent string, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		v := m.Get(f)
		switch {
		case f.IsList():
			for k := range v.List().Len() {
				x := v.List().Get(k)
				if f.Message() == nil {
					fmt.Fprintf(b, "%s%s: %v\n", indent, f.Name(), x)
					continue
				}
				fmt.Fprintf(b, "%s%s:\n", indent, f.Name())
				tell(b, indent+"\t", x.Message())
			}
			if v.List().Len() == 0 {
				fmt.Fprintf(b, "%s%s: none\n", indent, f.Name())
			}
		case f.Message() != nil && !m.Has(f):
			fmt.Fprintf(b, "%s%s: none\n", indent, f.Name())
		case f.Message() != nil:
			fmt.Fprintf(b, "%s%s:\n", indent, f.Name())
			tell(b, indent+"\t", v.Message())
		case f.Enum() != nil:
			if e := f.Enum().Values().ByNumber(v.Enum()); e != nil {
				fmt.Fprintf(b, "%s%s: %s\n", indent, f.Name(), e.Name())
				continue
			}
			fmt.Fprintf(b, "%s%s: %d\n", indent, f.Name(), v.Enum())
		default:
			fmt.Fprintf(b, "%s%s: %v\n", indent, f.Name(), v)
		}
	}
}

// TestTold: everything that is known of a volume, a session, a path, an event, a port and a
// problem is told, each in its own field, word by word as testdata/told.txt has it.
func TestTold(t *testing.T) {
	now := time.Unix(1000, 0)
	var b strings.Builder
	say := func(what string, m proto.Message) {
		fmt.Fprintf(&b, "# %s\n", what)
		tell(&b, "", m.ProtoReflect())
	}
	var e volume.ExportInfo
	distinct(&e)
	e.Kind, e.Origin, e.State, e.Users[0].Access, e.Users[1].Access = volumeKinds[1], volume.OriginCall, "open", volumeAccesses[1], volumeAccesses[2]
	say("an export", exportPB(&e, now))
	say("an export of nothing", exportPB(&volume.ExportInfo{}, now))
	var m volume.MappingInfo
	distinct(&m)
	m.As, m.State, m.Access, m.OnLoss, m.Policy = volumeAttaches[1], volume.StateOpen, volumeAccesses[2], volume.OnLossError, rtrs.MinLatency.String()
	say("a mapping", mappingPB(&m, now))
	say("a mapping of nothing", mappingPB(&volume.MappingInfo{}, now))
	var s volume.SessionInfo
	distinct(&s)
	s.Role, s.OnLoss, s.Policy = volume.RoleServer, volume.OnLossWait, "a policy of a later day"
	say("a session", volumeSessionPB(&s, now))
	var p volume.PathInfo
	distinct(&p)
	p.Role, p.State, p.RetryAt = volume.RoleClient, "fencing", now.Add(77*time.Second)
	say("a path", volumePathPB(&p, now))
	p.LastError, p.RetryAt = "", time.Time{}
	say("a path without an error", volumePathPB(&p, now))
	p.LastError, p.ErrorAt, p.RetryAt = "an error of this moment", now, now.Add(-time.Second)
	say("a path whose retry is due", volumePathPB(&p, now))
	var v volume.Event
	distinct(&v)
	v.Kind, v.Role, v.Err = volume.EventFailover, volume.RoleClient, syscall.EIO
	say("an event", volumeEventPB(&v))
	v.Err, v.Took, v.Path = nil, -1, volume.PathSpec{}
	say("an event without an error", volumeEventPB(&v))

	here, there := netip.MustParseAddrPort("10.0.0.1:4000"), netip.MustParseAddrPort("10.0.0.2:5000")
	say("a port there", congestedPB(10*time.Second, &rds.CongestedPort{Endpoint: there, Since: 3 * time.Second, Waiting: 4, Blocked: 5,
		Reader: &wire.Reader{UID: 6, PID: 7, Queued: 8, Fillers: []wire.Filler{{Source: here, Datagrams: 9, Bytes: 10}}}}))
	say("a port there of which nothing is known", congestedPB(time.Second, &rds.CongestedPort{Endpoint: there, Local: true, Since: 3 * time.Second}))
	n := notice(rds.Notice{Endpoint: here, Local: true, Congested: true})
	if at := time.Unix(0, n.GetUnixNs()); time.Since(at) < 0 || time.Since(at) > time.Minute {
		t.Errorf("a notice of now is of %v", at)
	}
	n.SetUnixNs(0)
	say("a notice", n)
	say("a problem", problemPB(&health.Problem{Code: health.PeerDown, Severity: health.Error, Subject: "s", Text: "t", Remedy: "r", Since: 5}))
	say("a problem of no time", problemPB(&health.Problem{Code: health.PeerDown, Severity: health.Note, Since: -1}))

	var x datagram.TraceEvent
	distinct(&x)
	x.Stage, x.Outcome, x.Why = rds.StageDone, conn.Failed, conn.WhyNoPort
	say("a stage of a datagram", traceEventPB(&x))
	x.Stage, x.Lane, x.Err = rds.StageNotAccepted, rds.LaneHere, errors.New("why it was not accepted")
	say("a stage of a datagram that stays here", traceEventPB(&x))
	say("stages", tracePB([]datagram.TraceEvent{{Stage: rds.StageLeft, Seq: 1}, {Stage: rds.StageRead, Seq: 2}}, 3))

	const name = "testdata/told.txt"
	if *rewrite {
		if err := os.WriteFile(name, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	got, old := strings.Split(b.String(), "\n"), strings.Split(string(want), "\n")
	what := ""
	for i := range max(len(got), len(old)) {
		g, o := "nothing", "nothing"
		if i < len(got) {
			g = got[i]
		}
		if i < len(old) {
			o = old[i]
		}
		if strings.HasPrefix(g, "#") {
			what = g
		}
		if g != o {
			t.Fatalf("%s:%d, %s: %q, want %q; look at what go test ./node/service -run TestTold -update changes", name, i+1, what, g, o)
		}
	}
}

// TestWords: every word of the API has a number and every number its word, and what is
// beyond them is refused.
func TestWords(t *testing.T) {
	for name, words := range map[string][]string{
		"kind": volumeKinds, "access": volumeAccesses, "attach": volumeAttaches, "policy": volumePolicies, "on loss": volumeOnLosses,
		"role": volumeRoles, "origin": volumeOrigins, "export's state": exportStates, "mapping's state": mappingStates,
		"path's state": volumePathStates, "severity": volumeSeverities, "event": volumeEvents,
	} {
		for i, w := range words {
			if got := volumeEnum[rdsdv1.VolumeKind](words, w); int(got) != i {
				t.Errorf("%s: %q is %d, want %d", name, w, got, i)
			}
			if got, err := volumeWord(name, words, rdsdv1.VolumeKind(i)); got != w || err != nil {
				t.Errorf("%s: %d is %q, %v", name, i, got, err)
			}
		}
		if got := volumeEnum[rdsdv1.VolumeKind](words, "no word"); got != 0 {
			t.Errorf("%s: a word that is none is %d", name, got)
		}
		for _, n := range []int{-1, len(words)} {
			if got, err := volumeWord(name, words, rdsdv1.VolumeKind(n)); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("to %d", len(words)-1)) {
				t.Errorf("%s: %d is %q, %v", name, n, got, err)
			}
		}
	}
	r := &rdsdv1.VolumeSetPolicyRequest{}
	r.SetPolicy(rdsdv1.VolumePolicy(2))
	if p, err := volumePolicy(r); p != rtrs.MinInflight.String() || err != nil {
		t.Errorf("policy 2 is %q, %v", p, err)
	}
	r.SetPolicyName("by name")
	if p, err := volumePolicy(r); p != "by name" || err != nil {
		t.Errorf("a policy with a name is %q, %v", p, err)
	}
}

// TestMapSpec: everything that a request to map says is what the host is asked for; what
// is out of bounds is refused, and what is at them is not.
func TestMapSpec(t *testing.T) {
	full := func() *rdsdv1.VolumeMapRequest {
		r := &rdsdv1.VolumeMapRequest{}
		r.SetNode("n")
		r.SetName("v")
		r.SetId("i")
		r.SetSocketPath("/s")
		r.SetDevice("/dev/nbd7")
		r.SetSession("ses")
		p := &rdsdv1.VolumePathSpec{}
		p.SetSource("10.0.0.1")
		p.SetDestination("10.0.0.2")
		r.SetPath([]*rdsdv1.VolumePathSpec{p})
		r.SetIoTimeoutNs(5)
		r.SetLossTimeoutNs(6)
		r.SetPersist(true)
		r.SetQueueDepth(1 << 16)
		r.SetAttach(1)
		r.SetAccess(2)
		r.SetOnLoss(2)
		r.SetPolicy(3)
		return r
	}
	got, err := mapSpec(full())
	want := volume.MapSpec{Node: "n", Name: "v", ID: "i", Socket: "/s", Device: "/dev/nbd7", Session: "ses",
		Paths: []volume.PathSpec{{Src: "10.0.0.1", Dst: "10.0.0.2"}}, IOTimeout: 5, LossTimeout: 6, Persist: true, QueueDepth: 1 << 16,
		As: volumeAttaches[1], Access: volumeAccesses[2], OnLoss: volume.OnLossError, Policy: volumePolicies[3]}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for name, change := range map[string]func(*rdsdv1.VolumeMapRequest){
		"queue_depth": func(r *rdsdv1.VolumeMapRequest) { r.SetQueueDepth(1<<16 + 1) },
		"attach":      func(r *rdsdv1.VolumeMapRequest) { r.SetAttach(99) },
		"access":      func(r *rdsdv1.VolumeMapRequest) { r.SetAccess(99) },
		"on_loss":     func(r *rdsdv1.VolumeMapRequest) { r.SetOnLoss(-1) },
		"policy":      func(r *rdsdv1.VolumeMapRequest) { r.SetPolicy(99) },
	} {
		r := full()
		change(r)
		if _, err := mapSpec(r); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s out of bounds: %v", name, err)
		}
	}
}

// TestLasted: how long something has been so is never negative, and nothing for what never was.
func TestLasted(t *testing.T) {
	now := time.Unix(1000, 0)
	for at, want := range map[time.Time]uint64{{}: 0, now: 0, now.Add(time.Second): 0, now.Add(-time.Second): 1e9} {
		if got := lasted(now, at); got != want {
			t.Errorf("%v: %d, want %d", at, got, want)
		}
	}
}

// TestRequests: what failed and what was done, of all operations together.
func TestRequests(t *testing.T) {
	failed, done := requests([]volume.OpCounters{{Errors: 1, Completed: 10}, {Errors: 2, Completed: 20}})
	if failed != 3 || done != 30 {
		t.Errorf("%d of %d", failed, done)
	}
	if volumeInfoPB(&blk.Info{Size: 1}) != nil {
		t.Error("a volume that was never open is described")
	}
}

// TestAddresses: of 4 and 16 bytes, those of IPv4 within IPv6 as IPv4; of no bytes only
// where it may be left out.
func TestAddresses(t *testing.T) {
	for text, want := range map[string]string{"10.0.0.1": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "fe80::1": "fe80::1"} {
		raw := netip.MustParseAddr(text).AsSlice()
		for _, f := range []func(string, []byte) (netip.Addr, error){address, optionalAddr} {
			if a, err := f("local", raw); err != nil || a.String() != want {
				t.Errorf("%s: %v, %v", text, a, err)
			}
		}
	}
	if a, err := optionalAddr("local", nil); a.IsValid() || err != nil {
		t.Errorf("none: %v, %v", a, err)
	}
	for _, n := range []int{0, 3, 5, 15, 17} {
		if _, err := address("remote", make([]byte, n)); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), fmt.Sprintf("remote has %d bytes", n)) {
			t.Errorf("%d bytes: %v", n, err)
		}
		if _, err := optionalAddr("remote", make([]byte, n)); (err == nil) != (n == 0) {
			t.Errorf("%d bytes, which may be left out: %v", n, err)
		}
	}
	if got := fromLocal(netip.Addr{}); got != "" {
		t.Error(got)
	}
	if got := fromLocal(netip.MustParseAddr("10.0.0.1")); got != " of local address 10.0.0.1" {
		t.Error(got)
	}
}

// TestTraceStages: each stage has its word, and each that is no good one says why.
func TestTraceStages(t *testing.T) {
	for _, c := range []struct {
		stage   rds.Stage
		verdict conn.Verdict
		why     conn.Why
		word    rdsdv1.TraceStage
		reason  string
	}{
		{rds.StageLeft, conn.Placed, conn.WhyNone, rdsdv1.TraceStage_TRACE_STAGE_LEFT, ""},
		{rds.StageRefused, conn.NoRoom, conn.WhyNone, rdsdv1.TraceStage_TRACE_STAGE_REFUSED, "the receiver has no room"},
		{rds.StageDone, conn.Placed, conn.WhyPeerRestarted, rdsdv1.TraceStage_TRACE_STAGE_DONE, conn.WhyPeerRestarted.String()},
		{rds.StageDone, conn.Placed, conn.WhyNone, rdsdv1.TraceStage_TRACE_STAGE_DONE, ""},
		{rds.StagePlaced, conn.Placed, conn.WhyNone, rdsdv1.TraceStage_TRACE_STAGE_PLACED, ""},
		{rds.StageNotPlaced, conn.NoRoom, conn.WhyNone, rdsdv1.TraceStage_TRACE_STAGE_NOT_PLACED, "the receiver has no room"},
		{rds.StageNotPlaced, conn.NoPort, conn.WhyNone, rdsdv1.TraceStage_TRACE_STAGE_NOT_PLACED, conn.WhyNoPort.String()},
		{rds.StageRead, conn.Placed, conn.WhyNone, rdsdv1.TraceStage_TRACE_STAGE_READ, ""},
		{rds.StageDropped, conn.Placed, conn.WhyNone, rdsdv1.TraceStage_TRACE_STAGE_DROPPED, "its socket was closed before it was read"},
	} {
		m := traceEventPB(&datagram.TraceEvent{Stage: c.stage, Verdict: c.verdict, Why: c.why})
		if m.GetStage() != c.word || m.GetReason() != c.reason {
			t.Errorf("stage %v, verdict %v, %v: %v, %q; want %v, %q", c.stage, c.verdict, c.why, m.GetStage(), m.GetReason(), c.word, c.reason)
		}
	}
}

// TestTraceRules: what a trace may be asked for; parts of endpoints may be missing.
func TestTraceRules(t *testing.T) {
	end := func(s string, port uint32) *rdsdv1.Endpoint {
		e := &rdsdv1.Endpoint{}
		if s != "" {
			e.SetAddress(netip.MustParseAddr(s).AsSlice())
		}
		e.SetPort(port)
		return e
	}
	r := &rdsdv1.TraceRequest{}
	if rule, err := traceRule(r); err != nil || !reflect.DeepEqual(rule, datagram.TraceRule{}) {
		t.Errorf("of everything: %+v, %v", rule, err)
	}
	r.SetSource(end("10.0.0.1", 0))
	r.SetDestination(end("", 65535))
	r.SetEither([]*rdsdv1.Endpoint{end("10.0.0.2", 1), end("", 2), end("10.0.0.3", 0), end("10.0.0.4", 4)})
	r.SetEvery(5)
	want := datagram.TraceRule{Src: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), 0), Dst: netip.AddrPortFrom(netip.Addr{}, 65535), Every: 5,
		Either: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:1"), netip.AddrPortFrom(netip.Addr{}, 2), netip.MustParseAddrPort("10.0.0.3:0"), netip.MustParseAddrPort("10.0.0.4:4")}}
	if rule, err := traceRule(r); err != nil || !reflect.DeepEqual(rule, want) {
		t.Errorf("%+v, %v; want %+v", rule, err, want)
	}
	bad := &rdsdv1.Endpoint{}
	bad.SetAddress([]byte{1, 2, 3})
	for what, change := range map[string]func(r *rdsdv1.TraceRequest){
		"source":      func(r *rdsdv1.TraceRequest) { r.SetSource(end("", 65536)) },
		"destination": func(r *rdsdv1.TraceRequest) { r.SetDestination(bad) },
		"either":      func(r *rdsdv1.TraceRequest) { r.SetEither([]*rdsdv1.Endpoint{bad}) },
		"at most 4":   func(r *rdsdv1.TraceRequest) { r.SetEither(make([]*rdsdv1.Endpoint, maxEither+1)) },
	} {
		r := &rdsdv1.TraceRequest{}
		change(r)
		if _, err := traceRule(r); !errors.Is(err, rdserr.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
