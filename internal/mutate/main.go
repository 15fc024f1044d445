package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"
)

var (
	count  = flag.Int("n", 100, "how many mutations to try")
	seed   = flag.Int64("seed", 1, "what is drawn")
	inRoom = flag.String("room", "", "of this room alone, or of these, separated by commas")
	only   = flag.String("only", "", "try this mutation again, by its id, and show what the tests said; or these, separated by commas")
	list   = flag.Bool("list", false, "list the mutations there could be")
	atOnce = flag.Int("j", 2, "how many at once")
	stages = flag.Int("stages", 0, "run at most so many of a room's test commands, the nearest first; 0 runs all")
	with   = flag.String("with", "", "ask this test command alone, as \"./conn -run TestCancel\"")
	limit  = flag.Duration("limit", 240*time.Second, "a test command that takes longer hangs")
	least  = flag.Int("least", 0, "fail below this many percent noticed")
)

// life ends when the program is told to end: so do the commands that it runs then.
var life, _ = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)

func main() {
	flag.Parse()
	if *with != "" {
		for i := range rooms {
			rooms[i].tests = [][]string{strings.Fields(*with)}
		}
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run() error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	if *breakRules || *oneRule != "" {
		return runRules(root)
	}
	known, err := readEquivalent(filepath.Join(root, "internal/mutate/equivalent.txt"))
	if err != nil {
		return err
	}
	in, err := chosen()
	if err != nil {
		return err
	}
	d, err := newDraw(root, in)
	if err != nil {
		return err
	}
	switch {
	case *list:
		for _, r := range d.rooms {
			for _, s := range d.sites[r.dir] {
				fmt.Printf("%s  line %d: %s -> %s\n", s.id, s.line, oneLine(s.was), oneLine(s.text))
			}
		}
		return nil
	case *only != "" && !*sweep:
		return again(root, d)
	}
	how := tryAll
	if *sweep {
		how = sweepAll
	}
	results, err := how(root, d, known)
	if err != nil {
		return err
	}
	return report(results)
}

func chosen() ([]room, error) {
	if *inRoom == "" {
		return rooms, nil
	}
	var l []room
	for _, name := range strings.Split(*inRoom, ",") {
		i := slices.IndexFunc(rooms, func(r room) bool { return r.dir == name })
		if i < 0 {
			return nil, fmt.Errorf("no room is named %q", name)
		}
		l = append(l, rooms[i])
	}
	return l, nil
}

// draw chooses mutations: a room, then a class of edit, then a place, each once.
type draw struct {
	rooms []room
	sites map[string][]site // by room
	rng   *rand.Rand
	used  map[string]bool
}

func newDraw(root string, rooms []room) (*draw, error) {
	d := &draw{rooms: rooms, sites: map[string][]site{}, rng: rand.New(rand.NewSource(*seed)), used: map[string]bool{}}
	for _, r := range rooms {
		l, err := sites(root, r.dir)
		if err != nil {
			return nil, err
		}
		d.sites[r.dir] = l
	}
	return d, nil
}

func (d *draw) next() (room, site, bool) {
	for range 10000 {
		r := d.room()
		class := d.class()
		var l []site
		for _, s := range d.sites[r.dir] {
			if s.class == class && !d.used[s.id] {
				l = append(l, s)
			}
		}
		if len(l) == 0 {
			continue
		}
		s := l[d.rng.Intn(len(l))]
		d.used[s.id] = true
		return r, s, true
	}
	return room{}, site{}, false
}

func (d *draw) room() room {
	sum := 0
	for _, r := range d.rooms {
		sum += r.weight
	}
	n := d.rng.Intn(sum)
	for _, r := range d.rooms {
		if n -= r.weight; n < 0 {
			return r
		}
	}
	return d.rooms[0]
}

func (d *draw) class() string {
	names := make([]string, 0, len(weights))
	sum := 0
	for n, w := range weights {
		names = append(names, n)
		sum += w
	}
	sort.Strings(names)
	k := d.rng.Intn(sum)
	for _, n := range names {
		if k -= weights[n]; k < 0 {
			return n
		}
	}
	return names[0]
}

// named finds a mutation by its id.
func (d *draw) named(id string) (room, site, bool) {
	for _, r := range d.rooms {
		for _, s := range d.sites[r.dir] {
			if s.id == id {
				return r, s, true
			}
		}
	}
	return room{}, site{}, false
}

// tryAll tries count mutations that compile and are not known to change nothing.
func tryAll(root string, d *draw, known map[string]string) ([]result, error) {
	var (
		mu      sync.Mutex
		wg      sync.WaitGroup
		results []result
		counted int
		failed  error
	)
	for range *atOnce {
		wg.Go(func() {
			for {
				mu.Lock()
				if counted >= *count || failed != nil {
					mu.Unlock()
					return
				}
				r, s, ok := d.next()
				if !ok {
					mu.Unlock()
					return
				}
				counted++
				mu.Unlock()
				res, err := result{site: s, room: r.dir, verdict: equivalent}, error(nil)
				if known[s.id] == "" {
					res, err = try(root, r, s)
				}
				mu.Lock()
				if err != nil {
					failed = err
				}
				if res.verdict == noCompile || res.verdict == equivalent {
					counted--
				}
				results = append(results, res)
				fmt.Println(res)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return results, failed
}

// again tries the mutations that -only names.
func again(root string, d *draw) error {
	ids := strings.Split(*only, ",")
	for _, id := range ids {
		r, s, ok := d.named(id)
		if !ok {
			return fmt.Errorf("no mutation has the id %q; -list shows them", id)
		}
		res, err := try(root, r, s)
		if err != nil {
			return err
		}
		fmt.Println(res)
		if len(ids) == 1 {
			fmt.Println(res.said)
		}
	}
	return nil
}

// report prints a table by room and fails when too few were noticed.
func report(results []result) error {
	type tally struct{ tried, noticed int }
	by := map[string]*tally{}
	var all tally
	for _, r := range results {
		if r.verdict == noCompile || r.verdict == equivalent {
			continue
		}
		t := by[r.room]
		if t == nil {
			t = &tally{}
			by[r.room] = t
		}
		t.tried++
		all.tried++
		if r.verdict != survived {
			t.noticed++
			all.noticed++
		}
	}
	fmt.Printf("\n| room | tried | noticed |\n|---|---|---|\n")
	for _, r := range rooms {
		if t := by[r.dir]; t != nil {
			fmt.Printf("| `%s` | %d | %d |\n", r.dir, t.tried, t.noticed)
		}
	}
	fmt.Printf("| all | %d | %d |\n", all.tried, all.noticed)
	for _, r := range results {
		if r.verdict == survived {
			fmt.Println(r)
		}
	}
	if all.tried == 0 || all.noticed*100 < *least*all.tried {
		return fmt.Errorf("%d of %d were noticed, less than %d in a hundred", all.noticed, all.tried, *least)
	}
	return nil
}

// readEquivalent reads lines of an id and, behind a tab or spaces, the reason why the
// mutation changes nothing that anybody could see.
func readEquivalent(name string) (map[string]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m := map[string]string{}
	s := bufio.NewScanner(f)
	for s.Scan() {
		line := strings.TrimSpace(s.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, why, _ := strings.Cut(line, " ")
		if why = strings.TrimSpace(why); why == "" {
			return nil, fmt.Errorf("%s: %s has no reason", name, id)
		}
		m[id] = why
	}
	return m, s.Err()
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("no go.mod above the current directory")
		}
		dir = up
	}
}
