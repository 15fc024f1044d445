package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMarkedAt(t *testing.T) {
	const text = "a /*<3*/ b /*<12*/ c /*>12*/ /* d */ e /*>3*/ f"
	for in, want := range map[string]int{"a": -1, "b": 3, "c": 12, "e": 3, "f": -1} {
		if got := markedAt(text, strings.Index(text, " "+in)+1); got != want {
			t.Errorf("%s is within the marks of %d, not of %d", in, got, want)
		}
	}
	if markedAfter(text, 0) != 3 || markedAfter(text, 3) != 12 || markedAfter(text, 15) != -1 {
		t.Error("the next marks are not found")
	}
}

func TestQuickest(t *testing.T) {
	ms := func(l ...int) (tests []test) {
		for _, n := range l {
			tests = append(tests, test{took: time.Duration(n) * time.Millisecond})
		}
		return tests
	}
	for _, c := range []struct {
		l    []test
		want int
	}{
		{ms(1, 2, 3), 3}, {ms(900, 1000, 1100), 2}, {ms(9000), 1}, {ms(10, 5000, 5000), 1}, {ms(3000, 3000, 3000), 2},
	} {
		if got := len(quickest(c.l)); got != c.want {
			t.Errorf("the first %d of %v, want %d", got, c.l, c.want)
		}
	}
}

// All edits of a room are in one binary. Without a number its tests pass; with a number
// they do what they do with that edit alone, whatever the edit stands in.
func TestNumbered(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	c, err := newChecker(root, []string{"./cong", "os", "strconv", "syscall"})
	if err != nil {
		t.Fatal(err)
	}
	all, err := sites(root, "cong")
	if err != nil {
		t.Fatal(err)
	}
	n, err := numberAll(c, "cong", all)
	if err != nil {
		t.Fatal(err)
	}
	if len(n.in)+len(n.out) != len(all) || len(n.out)*10 > len(all) {
		t.Errorf("of %d edits %d stand behind a number, %d do not", len(all), len(n.in), len(n.out))
	}
	bins, err := buildTests(root, t.TempDir(), n, []string{"./cong", "-run", "TestAgainstModel|TestReplaceSays|TestBitOrder"})
	if err != nil {
		t.Fatal(err)
	}
	if len(bins) != 1 {
		t.Fatalf("%d binaries", len(bins))
	}
	b := bins[0]
	if err := b.look(); err != nil {
		t.Fatal(err)
	}
	if len(b.tests) != 3 {
		t.Fatalf("%d tests pass without an edit", len(b.tests))
	}
	for _, id := range []string{
		"cong/map.go:Map.ReplaceBy:sign:1",   // a value
		"cong/map.go:Map.ReplaceBy:edge:1",   // a truth
		"cong/map.go:Map.ReplaceBy:assign:5", // an action
		"cong/map.go:Map.Congested:equal:1",  // within another edit
		"cong/map.go:Map.Next:flag:1",        // which none of the three tests comes by
	} {
		i := slices.IndexFunc(n.in, func(s site) bool { return s.id == id })
		if i < 0 {
			t.Errorf("%s has no number", id)
			continue
		}
		want := survived
		if !strings.Contains(id, "Next") {
			want = noticed
		}
		a := &asked{result: result{site: n.in[i], verdict: survived}}
		if err := a.ask(bins, i+1); err != nil || a.verdict != want || (a.near > 0) != (want == noticed) {
			t.Errorf("%s: %s, %d tests come by it, %v", id, a.verdict, a.near, err)
		}
	}
}
