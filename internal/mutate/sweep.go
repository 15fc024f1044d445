package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

var (
	sweep   = flag.Bool("sweep", false, "compile the edits of a room into one binary for each test command, and run for each edit the tests that come by it")
	longest = flag.Duration("longest", 0, "with -sweep: leave out tests that take longer than this by themselves; 0 leaves out none")
)

// sweepAll draws -n mutations, or takes those that -only names, and tries them a room at a
// time: what try does, with one build for the edits of a room in the place of one for each.
func sweepAll(root string, d *draw, known map[string]string) ([]result, error) {
	var dirs []string
	for _, r := range d.rooms {
		dirs = append(dirs, "./"+r.dir)
	}
	c, err := newChecker(root, append(dirs, "os", "strconv", "syscall"))
	if err != nil {
		return nil, err
	}
	drawn, results, err := drawAll(c, d, known)
	if err != nil {
		return nil, err
	}
	for _, r := range d.rooms {
		if len(drawn[r.dir]) == 0 {
			continue
		}
		l, err := askRoom(c, r, drawn[r.dir])
		results = append(results, l...)
		if err != nil {
			return results, err
		}
	}
	return results, nil
}

// drawAll draws mutations that compile and are not known to change nothing, by room.
func drawAll(c *checker, d *draw, known map[string]string) (map[string][]site, []result, error) {
	drawn := map[string][]site{}
	if *only != "" {
		for id := range strings.SplitSeq(*only, ",") {
			r, s, ok := d.named(id)
			if !ok {
				return nil, nil, fmt.Errorf("no mutation has the id %q; -list shows them", id)
			}
			drawn[r.dir] = append(drawn[r.dir], s)
		}
		return drawn, nil, nil
	}
	var others []result
	for counted := 0; counted < *count; {
		r, s, ok := d.next()
		if !ok {
			break
		}
		edited, err := s.edited(c.root)
		if err != nil {
			return nil, nil, err
		}
		switch {
		case known[s.id] != "":
			others = append(others, result{site: s, room: r.dir, verdict: equivalent})
			fmt.Println(others[len(others)-1])
		case c.check(r.dir, edited) != nil:
			others = append(others, result{site: s, room: r.dir, verdict: noCompile})
		default:
			drawn[r.dir] = append(drawn[r.dir], s)
			counted++
		}
	}
	return drawn, others, nil
}

// asked is an edit, and what the test commands so far have said.
type asked struct {
	result
	near    int // tests that came by it
	decided bool
}

// askRoom asks the room's test commands, the nearest first, about those edits that none
// before has noticed. Edits that no number can stand before are tried by themselves.
func askRoom(c *checker, r room, l []site) ([]result, error) {
	var all []*asked
	for _, s := range l {
		all = append(all, &asked{result: result{site: s, room: r.dir, verdict: survived}})
	}
	for i, t := range r.tests {
		if *stages > 0 && i == *stages {
			break
		}
		if err := askCommand(c, r, t, undecided(all)); err != nil {
			return nil, err
		}
	}
	var results []result
	for _, a := range all {
		if !a.decided {
			if a.by = "no test comes by it"; a.near > 0 {
				a.by = fmt.Sprintf("%d tests come by it", a.near)
			}
			fmt.Println(a.result)
		}
		results = append(results, a.result)
	}
	return results, nil
}

func undecided(all []*asked) []*asked {
	return slices.DeleteFunc(slices.Clone(all), func(a *asked) bool { return a.decided })
}

// askCommand asks one test command about edits of a room.
func askCommand(c *checker, r room, command []string, l []*asked) error {
	if len(l) == 0 {
		return nil
	}
	var list []site
	for _, a := range l {
		list = append(list, a.site)
	}
	n, err := numberAll(c, r.dir, list)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	bins, err := buildTests(c.root, tmp, n, command)
	if err != nil {
		return err
	}
	for _, b := range bins {
		if err := b.look(); err != nil {
			return err
		}
	}
	return each(l, func(a *asked) error {
		if i := slices.IndexFunc(n.in, func(s site) bool { return s.id == a.id }); i >= 0 {
			return a.ask(bins, i+1)
		}
		alone := r
		alone.tests = [][]string{command}
		res, err := try(c.root, alone, a.site)
		a.decide(res.verdict, res.by, res.took)
		return err
	})
}

// each does f for -j edits at once.
func each(l []*asked, f func(*asked) error) error {
	var wg sync.WaitGroup
	next := make(chan *asked)
	errs := make(chan error, len(l))
	for range *atOnce {
		wg.Go(func() {
			for a := range next {
				errs <- f(a)
			}
		})
	}
	for _, a := range l {
		next <- a
	}
	close(next)
	wg.Wait()
	close(errs)
	var all error
	for err := range errs {
		all = errors.Join(all, err)
	}
	return errors.Join(all, life.Err())
}

// ask runs the tests that come by edit number n, the quickest first, until one fails.
func (a *asked) ask(bins []*binary, n int) error {
	begun := time.Now()
	for _, b := range bins {
		var near []test
		for _, t := range b.tests {
			if t.seen[n] != 0 {
				near = append(near, t)
			}
		}
		a.near += len(near)
		for len(near) > 0 {
			some := quickest(near)
			near = near[len(some):]
			out, err := b.run(some, n)
			if life.Err() != nil {
				return life.Err()
			}
			if err != nil {
				v := noticed
				if strings.Contains(out, "panic: test timed out") || errors.Is(err, context.DeadlineExceeded) {
					v = hung
				}
				a.decide(v, filepath.Base(b.dir)+firstFailed(out), time.Since(begun))
				a.said = tail(out, 12)
				return nil
			}
		}
	}
	a.took += time.Since(begun)
	return nil
}

// decide notes a verdict, and prints it where it is the last.
func (a *asked) decide(v verdict, by string, took time.Duration) {
	a.took += took
	if a.verdict, a.by = v, by; v != survived {
		a.decided = true
		fmt.Println(a.result)
	}
}

// quickest are the first of tests, ordered by their time, that together take no longer
// than the next one or two seconds.
func quickest(l []test) []test {
	sum := time.Duration(0)
	for i, t := range l {
		if sum += t.took; i > 0 && sum > max(2*time.Second, 2*l[i-1].took) {
			return l[:i]
		}
	}
	return l
}
