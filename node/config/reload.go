package config

import "reflect"

// With is c with what can be reloaded taken from next.
func (c *Config) With(next *Config) *Config {
	out := *c
	for i := range keys {
		if k := &keys[i]; k.Reload {
			reflect.ValueOf(&out).Elem().FieldByIndex(k.index).Set(reflect.ValueOf(next).Elem().FieldByIndex(k.index))
		}
	}
	out.Ports, out.Peers = next.Ports, next.Peers
	out.origins, out.notes, out.numbers = next.origins, next.notes, next.numbers
	return &out
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
