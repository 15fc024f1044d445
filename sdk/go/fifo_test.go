package rdsd

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestFifo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q fifo[int]
		var model []int
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(*rapid.T) {
				next++
				q.push(next)
				model = append(model, next)
			},
			"pop": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip()
				}
				if *q.front() != model[0] || *q.back() != model[len(model)-1] || q.pop() != model[0] {
					t.Fatal("wrong end")
				}
				model = model[1:]
			},
			"delete": func(t *rapid.T) {
				v := rapid.IntRange(1, next+1).Draw(t, "v")
				q.delete(func(x int) bool { return x == v })
				model = slices.DeleteFunc(slices.Clone(model), func(x int) bool { return x == v })
			},
			"": func(t *rapid.T) {
				if q.len() != len(model) || !slices.Equal(q.all(), model) {
					t.Fatalf("%v, want %v", q.all(), model)
				}
			},
		})
	})
}

// A queue in use does not grow without end.
func TestFifoReuses(t *testing.T) {
	var q fifo[int]
	q.push(0)
	for i := range 1000 {
		q.push(i)
		q.pop()
	}
	if cap(q.items) > 16 {
		t.Errorf("room for %d items, used for 2", cap(q.items))
	}
}
