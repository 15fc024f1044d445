package cli

import (
	"strings"

	"github.com/rdsd/rdsd/node"
	rdsd "github.com/rdsd/rdsd/sdk/go"
)

// policyWords are the policies by which requests choose a path. The daemon is
// this same program, so the commands know those it has.
var policyWords = func() (words []rdsd.VolumePolicy) {
	for _, p := range node.PathPolicies() {
		words = append(words, rdsd.VolumePolicy(p.Name))
	}
	return words
}()

// policyOf reads a policy, by its name or short form; "" is none.
func policyOf(flag, s string) (rdsd.VolumePolicy, error) {
	if name, err := node.ParsePathPolicy(s); err == nil {
		s = name
	}
	return oneOf(flag, s, policyWords)
}

// policyList is the policies in a sentence.
func policyList() string {
	words := make([]string, len(policyWords))
	for i, w := range policyWords {
		words[i] = string(w)
	}
	return orList(words)
}

// policyHelp says of each policy what it is called in short and what it does.
func policyHelp() string {
	var all []string
	for _, p := range node.PathPolicies() {
		what := p.Short
		if p.About != "" {
			what += ": " + p.About
		}
		all = append(all, p.Name+" ("+what+")")
	}
	return strings.Join(all, ", ")
}

// fold breaks text into lines of at most 79 characters.
func fold(text string) string {
	var out strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case column+1+len(word) > 79:
			out.WriteByte('\n')
			column = 0
		default:
			out.WriteByte(' ')
			column++
		}
		out.WriteString(word)
		column += len(word)
	}
	return out.String()
}
