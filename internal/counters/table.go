package counters

import (
	"fmt"
	"reflect"
	"sync/atomic"
)

// Desc names one counter and describes it.
type Desc struct {
	Name string
	Help string
}

// Table reads the counters of a struct T in the order of its fields.
// It is immutable and may be shared.
type Table[T any] struct {
	descs  []Desc
	fields []field
}

type field struct {
	index  int
	atomic bool
}

var atomicType = reflect.TypeFor[atomic.Uint64]()

// NewTable builds the table of T from its field tags. It panics when a field
// is neither uint64 nor atomic.Uint64, or lacks a tag, or repeats a name:
// each is a mistake in the source that the first test finds.
func NewTable[T any]() *Table[T] {
	typ := reflect.TypeFor[T]()
	t := &Table[T]{}
	seen := map[string]bool{}
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, help := f.Tag.Get("counter"), f.Tag.Get("help")
		isAtomic := f.Type == atomicType
		switch {
		case !isAtomic && f.Type.Kind() != reflect.Uint64:
			panic(fmt.Sprintf("counters: %v.%s is %v, want uint64 or atomic.Uint64", typ, f.Name, f.Type))
		case name == "" || help == "":
			panic(fmt.Sprintf("counters: %v.%s lacks a counter or help tag", typ, f.Name))
		case seen[name]:
			panic(fmt.Sprintf("counters: %v has two counters named %q", typ, name))
		}
		seen[name] = true
		t.descs = append(t.descs, Desc{name, help})
		t.fields = append(t.fields, field{i, isAtomic})
	}
	return t
}

// Descs lists the counters in order. The caller must not change the slice.
func (t *Table[T]) Descs() []Desc { return t.descs }

// Len is the number of counters.
func (t *Table[T]) Len() int { return len(t.descs) }

// Read appends the values of p to dst, in the order of Descs. Atomic fields are loaded; for
// plain fields the caller holds the lock that guards p.
func (t *Table[T]) Read(dst []uint64, p *T) []uint64 {
	v := reflect.ValueOf(p).Elem()
	for _, f := range t.fields {
		dst = append(dst, load(v.Field(f.index), f.atomic))
	}
	return dst
}

// Add adds the values of p to sum, which has at least Len elements.
func (t *Table[T]) Add(sum []uint64, p *T) {
	v := reflect.ValueOf(p).Elem()
	for i, f := range t.fields {
		sum[i] += load(v.Field(f.index), f.atomic)
	}
}

func load(v reflect.Value, isAtomic bool) uint64 {
	if isAtomic {
		return v.Addr().Interface().(*atomic.Uint64).Load()
	}
	return v.Uint()
}
