package health

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// PerCode is how many problems of one code are kept. Of 65,536 congested ports or a
// thousand dead peers the worst few tell what there is to know.
const PerCode = 8

// Grace is how long something may last before it is a problem: links reconnect and
// ports congest for moments in any network.
const Grace = time.Second

// Exam collects problems. The zero Exam is ready.
type Exam struct {
	found  [numCodes]found
	log    logged
	holder string // who holds most of the memory; "": not known
}

// found are the problems of one code.
type found struct {
	worst []Problem // sorted, at most PerCode
	more  int       // that are not in worst
	least Severity  // the worst of those
}

// worse orders problems of one code.
func worse(a, b Problem) int {
	return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(b.Since, a.Since), cmp.Compare(a.Subject, b.Subject))
}

// add notes a problem.
func (x *Exam) add(p Problem) {
	f := &x.found[p.Code]
	i, _ := slices.BinarySearchFunc(f.worst, p, worse)
	if i < PerCode {
		f.worst = slices.Insert(f.worst, i, p)
	}
	switch {
	case i == PerCode: // p is the least of all
		f.more++
		f.least = max(f.least, p.Severity)
	case len(f.worst) > PerCode:
		f.more++
		f.least = max(f.least, f.worst[PerCode].Severity)
		f.worst = f.worst[:PerCode]
	}
}

// Problems returns what was found, the worst first.
func (x *Exam) Problems() []Problem {
	x.logProblem()
	var list []Problem
	for c := range x.found {
		f := &x.found[c]
		list = append(list, f.worst...)
		if f.more > 0 {
			of := descriptions[c]
			list = append(list, Problem{Code: Code(c), Severity: f.least, Text: fmt.Sprintf("%d more like these: %s", f.more, of.Means), Remedy: f.worst[0].Remedy})
		}
	}
	slices.SortStableFunc(list, func(a, b Problem) int { return cmp.Compare(b.Severity, a.Severity) })
	return list
}

// Worst is the severity of the worst of them, OK without any.
func Worst(list []Problem) Severity {
	worst := OK
	for i := range list {
		worst = max(worst, list[i].Severity)
	}
	return worst
}

// Healthy reports whether none of them is a warning or an error.
func Healthy(list []Problem) bool { return Worst(list) < Warning }

// lasted is a time as people say it.
func lasted(d time.Duration) string {
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func count(n uint64, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return strconv.FormatUint(n, 10) + " " + word + "s"
}
