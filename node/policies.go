package node

import (
	"strconv"
	"strings"

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

// named are lists that settings speak of and others make.
var named = func() *strings.Replacer {
	var names []string
	choice := rtrs.PolicyNames()
	for _, p := range rtrs.Policies() {
		names = append(names, p.Name)
		choice = strings.Replace(choice, p.Name, strconv.Quote(p.Name), 1)
	}
	return strings.NewReplacer("{policies}", strings.Join(names, ", "), "{a policy}", choice)
}()
