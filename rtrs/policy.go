package rtrs

import "fmt"

// Policy says which of the connected paths a request takes.
type Policy uint8

// The policies, by their numbers and words in the kernel's sysfs but for the
// order: ours begins with the default.
const (
	MinInflight Policy = iota // the one with the fewest requests in flight
	RoundRobin                // each in its turn
	MinLatency                // the one whose last heartbeat was answered soonest; one not measured yet counts as fastest
	numPolicies
)

var policyNames = [numPolicies]string{"min-inflight", "round-robin", "min-latency"}

func (p Policy) String() string {
	if p < numPolicies {
		return policyNames[p]
	}
	return fmt.Sprintf("policy %d", uint8(p))
}

// ParsePolicy reads a policy in the kernel's long or short form; "" is MinInflight.
func ParsePolicy(s string) (Policy, error) {
	switch s {
	case "", "min-inflight", "mi":
		return MinInflight, nil
	case "round-robin", "rr":
		return RoundRobin, nil
	case "min-latency", "ml":
		return MinLatency, nil
	}
	return 0, fmt.Errorf("policy %q is none of round-robin (rr), min-inflight (mi) and min-latency (ml)", s)
}
