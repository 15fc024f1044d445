package node

import (
	"github.com/rdsd/rdsd/node/base"
	"github.com/rdsd/rdsd/rtrs"
)

// PathPolicies lists the policies by which requests choose a path, for programs
// that show them to people.
func PathPolicies() []rtrs.PolicyInfo { return rtrs.Policies() }

// ParsePathPolicy returns the name of the policy that s means, which may be a
// short form of it.
func ParsePathPolicy(s string) (name string, err error) {
	p, err := rtrs.ParsePolicy(s)
	if err != nil {
		return "", err
	}
	return p.String(), nil
}

// Version is the version of this program.
func Version() string { return base.Version() }
