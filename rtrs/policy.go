package rtrs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rdsd/rdsd/rdserr"
)

// Policy says which of the connected paths a request takes. It is the position
// of the policy in the table below.
type Policy uint8

// The policies that the program itself names; the first is the default.
const (
	MinInflight Policy = iota
	RoundRobin
	MinLatency
)

// PolicyInfo describes a policy to users.
type PolicyInfo struct {
	Name   string // its name everywhere
	Short  string // likewise
	Kernel string // its number in the kernel's sysfs; "" when the kernel does not have it
	About  string // which path it chooses, in a few words
}

// chooser chooses a path for each request of one session. A session has a chooser of its
// own for each policy, so that a policy still has its state when the session returns to it.
type chooser interface {
	// choose returns one of paths that is Connected; there is one. It is called for every
	// request, so it must not allocate.
	choose(paths []*ClientPath) *ClientPath
}

// policies is the table of all policies. A new one is a file of its own with its chooser,
// and a line here: configuration, API, SDKs and commands take policies from this table.
var policies = []struct {
	PolicyInfo
	make func() chooser
}{
	MinInflight: {PolicyInfo{"min-inflight", "mi", "1", "the path with the fewest requests"}, newMinInflight},
	RoundRobin:  {PolicyInfo{"round-robin", "rr", "0", ""}, newRoundRobin},
	MinLatency:  {PolicyInfo{"min-latency", "ml", "2", "the one with the shortest heartbeat"}, newMinLatency},
}

// choosers returns the choosers of a session, by policy.
func choosers() []chooser {
	all := make([]chooser, len(policies))
	for i := range policies {
		all[i] = policies[i].make()
	}
	return all
}

// Policies lists the policies as people are shown them: those of the kernel by
// their numbers there, then the others.
func Policies() []PolicyInfo {
	var all []PolicyInfo
	for _, p := range policies {
		all = append(all, p.PolicyInfo)
	}
	slices.SortStableFunc(all, func(a, b PolicyInfo) int {
		if (a.Kernel == "") != (b.Kernel == "") {
			return cmp.Compare(b.Kernel, a.Kernel)
		}
		return cmp.Compare(a.Kernel, b.Kernel)
	})
	return all
}

// PolicyNames lists their names in a sentence: "a, b or c".
func PolicyNames() string {
	var names []string
	for _, p := range Policies() {
		names = append(names, p.Name)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// ParsePolicy reads the name of a policy, its short form or its number in the
// kernel. Nothing else in the project does.
func ParsePolicy(s string) (Policy, error) {
	for i, p := range policies {
		if s != "" && (s == p.Name || s == p.Short || s == p.Kernel) {
			return Policy(i), nil
		}
	}
	return 0, rdserr.With(rdserr.ErrInvalid, "policy %q; want %s", s, PolicyNames())
}

// check reports a number that is no policy's.
func (p Policy) check() error {
	if int(p) >= len(policies) {
		return fmt.Errorf("policy %d is none of %d", p, len(policies))
	}
	return nil
}

func (p Policy) String() string {
	if p.check() != nil {
		return fmt.Sprintf("policy %d", uint8(p))
	}
	return policies[p].Name
}
