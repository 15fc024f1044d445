package rtrs

import (
	"fmt"
	"github.com/rdsd/rdsd/transport"
	"slices"
	"strings"
	"testing"
	"time"

	rtrswire "github.com/rdsd/rdsd/wire/rtrs"
)

// TestParsePolicy: every policy is known by its name, its short form and its
// number in the kernel, and by nothing else.
func TestParsePolicy(t *testing.T) {
	for s, want := range map[string]Policy{"mi": MinInflight, "min-inflight": MinInflight, "1": MinInflight, "rr": RoundRobin, "round-robin": RoundRobin,
		"0": RoundRobin, "ml": MinLatency, "min-latency": MinLatency, "2": MinLatency} {
		if p, err := ParsePolicy(s); p != want || err != nil {
			t.Errorf("%q: %v, %v", s, p, err)
		}
	}
	// A further policy comes behind these.
	if names := strings.NewReplacer(" or ", ", ").Replace(PolicyNames()); !strings.HasPrefix(names, "round-robin, min-inflight, min-latency") {
		t.Errorf("the policies are %s", PolicyNames())
	}
	for _, s := range []string{"", "fastest", "3", "RR", "min_latency"} {
		if _, err := ParsePolicy(s); err == nil || err.Error() != fmt.Sprintf("policy %q; want %s", s, PolicyNames()) {
			t.Error(err)
		}
	}
	f := newFakeClient(t, ClientConfig{})
	if err := f.c.SetPolicy(Policy(len(policies))); err == nil {
		t.Error("a policy that there is not")
	}
}

// lastAdded takes the path that was added last.
type lastAdded struct{}

func (lastAdded) choose(paths []*ClientPath) *ClientPath {
	for _, p := range slices.Backward(paths) {
		if p.state == Connected {
			return p
		}
	}
	return nil
}

// TestAFurtherPolicy: a chooser and a line of the table are all that a policy
// needs.
func TestAFurtherPolicy(t *testing.T) {
	were := policies
	t.Cleanup(func() { policies = were })
	policies = append(slices.Clip(policies), policies[0])
	last := &policies[len(policies)-1]
	last.PolicyInfo, last.make = PolicyInfo{Name: "last-added", Short: "la"}, func() chooser { return lastAdded{} }
	if all := Policies(); all[len(all)-1].Name != "last-added" || !strings.HasSuffix(PolicyNames(), " or last-added") {
		t.Errorf("%+v, %s", all, PolicyNames())
	}
	p, err := ParsePolicy("la")
	if err != nil || p.String() != "last-added" {
		t.Fatal(p, err)
	}
	f := newFakeClient(t, ClientConfig{Policy: p})
	for i := range 3 {
		f.connect(f.add(byte(i+1)), fourChunks, ours, 7)
	}
	f.take()
	f.submit(Write, nil)
	f.submit(Write, nil)
	for _, o := range f.take() {
		if o.path != f.c.paths[2] {
			t.Errorf("a request went to %v", o.path.(*ClientPath).Remote)
		}
	}
}

func TestPolicies(t *testing.T) {
	f := newFakeClient(t, ClientConfig{})
	var ps []*ClientPath
	for i := range 3 {
		p := f.add(byte(i + 1))
		f.connect(p, fourChunks, ours, 7)
		ps = append(ps, p)
	}
	f.take()
	order := func(policy Policy) (s string) {
		if err := f.c.SetPolicy(policy); err != nil || f.c.Policy() != policy {
			t.Fatal(err)
		}
		for range 4 {
			f.submit(Write, nil)
		}
		sent := f.take()
		for _, o := range sent {
			s += fmt.Sprint(o.path.(*ClientPath).Remote.Addr().As4()[3])
		}
		for _, o := range sent {
			if err := f.answer(o, 0, 5); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	if s := order(RoundRobin); s != "1231" {
		t.Error("round-robin", s)
	}
	if s := order(MinInflight); s != "1231" {
		t.Error("min-inflight", s)
	}
	f.tick(200 * ms) // heartbeats leave
	for i, p := range ps {
		f.now += time.Duration(10-i) * ms
		p.Written(f.now, 0, transport.Placed{Known: true, Imm: uint32(rtrswire.ImmHeartbeatAck)})
	}
	f.take()
	if s := order(MinLatency); s != "1111" || ps[0].Info().Stats.Latency != 10*ms || ps[2].Info().Stats.Latency != 27*ms {
		t.Error("min-latency", s, ps[0].Info(), ps[2].Info())
	}
	f.c.SetPolicy(MinInflight)
	f.submit(Write, nil) // stays on the first
	f.submit(Write, nil)
	f.submit(Write, nil)
	if n := one(t, f.take()[1:2]); n.path != ps[1] {
		t.Error("the second is not on the second path")
	}
}

// TestPoliciesRemember: a session that returns to a policy finds it as it was.
func TestPoliciesRemember(t *testing.T) {
	f := newFakeClient(t, ClientConfig{Policy: RoundRobin})
	for i := range 3 {
		f.connect(f.add(byte(i+1)), fourChunks, ours, 7)
	}
	f.take()
	var got []any
	for _, p := range []Policy{RoundRobin, MinInflight, RoundRobin} {
		if err := f.c.SetPolicy(p); err != nil {
			t.Fatal(err)
		}
		f.submit(Write, nil)
		o := one(t, f.take())
		got = append(got, o.path)
		if err := f.answer(o, 0, 5); err != nil {
			t.Fatal(err)
		}
	}
	if want := []any{f.c.paths[0], f.c.paths[0], f.c.paths[1]}; !slices.Equal(got, want) {
		t.Errorf("the requests took %v, want %v", got, want)
	}
}
