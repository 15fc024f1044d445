package config

import (
	"maps"
	"reflect"
)

// With is c with what can be reloaded taken from next.
func (c *Config) With(next *Config) *Config {
	out := *c
	for i := range keys {
		if k := &keys[i]; k.Reload {
			reflect.ValueOf(&out).Elem().FieldByIndex(k.index).Set(reflect.ValueOf(next).Elem().FieldByIndex(k.index))
		}
	}
	out.Ports, out.Peers = next.Ports, next.Peers
	out.origins, out.notes, out.numbers = c.originsWith(next), next.notes, next.numbers
	return &out
}

// originsWith is where the values of c with next come from. A value that waits for the next start
// is not in the line that has it now, and the line it was in may say anything.
func (c *Config) originsWith(next *Config) map[string]Origin {
	origins := maps.Clone(next.origins)
	for i := range keys {
		k := &keys[i]
		if k.Reload || k.Value(c) == k.Value(next) {
			continue
		}
		delete(origins, k.Name)
		if o, ok := c.origins[k.Name]; ok {
			if o.Kind == "file" {
				o.Kind = "start"
			}
			origins[k.Name] = o
		}
	}
	return origins
}

// Changes names the keys in which c differs from old. It is never nil.
func (c *Config) Changes(old *Config) []string {
	list := []string{}
	for i := range keys {
		if k := &keys[i]; k.Value(c) != k.Value(old) {
			list = append(list, k.Name)
		}
	}
	for _, t := range []struct {
		name     string
		now, was any
	}{{"ports", c.Ports, old.Ports}, {"peers", c.Peers, old.Peers},
		{"volumes.exports", c.Volumes.Exports, old.Volumes.Exports}, {"volumes.roots", c.Volumes.Roots, old.Volumes.Roots}} {
		if now, was := reflect.ValueOf(t.now), reflect.ValueOf(t.was); now.Len()+was.Len() > 0 && !reflect.DeepEqual(t.now, t.was) {
			list = append(list, t.name)
		}
	}
	return list
}
