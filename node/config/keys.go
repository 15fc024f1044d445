package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/rdsd/rdsd/rtrs"
)

// Key is one setting: where it can come from and what it means.
type Key struct {
	Name   string // "rds.port", as in the file
	Env    string // "RDSD_PORT"; "" when it has none
	Flag   string // "port"; "" when it has none
	Usage  string
	Want   string // what a right value looks like
	List   bool   // several values: a list in the file, commas in the environment, a repeated flag
	Reload bool   // a change takes effect while the node runs
	isBool bool
	index  []int
}

var keys = buildKeys()
var keyByName = func() map[string]*Key {
	m := map[string]*Key{}
	for i := range keys {
		m[keys[i].Name] = &keys[i]
	}
	return m
}()

// Keys lists every scalar or list setting in the order of the documentation.
// Lists of tables, such as [[ports]], exist in the file only.
func Keys() []Key { return append([]Key(nil), keys...) }

func buildKeys() []Key {
	var out []Key
	var walk func(t reflect.Type, prefix string, index []int)
	walk = func(t reflect.Type, prefix string, index []int) {
		for i := range t.NumField() {
			f := t.Field(i)
			name := f.Tag.Get("toml")
			at := append(append([]int(nil), index...), i)
			if name == "" {
				continue
			}
			usage := f.Tag.Get("usage")
			if usage == "" { // a section, or a list of tables
				if f.Type.Kind() == reflect.Struct {
					walk(f.Type, prefix+name+".", at)
				}
				continue
			}
			k := Key{Name: prefix + name, Env: f.Tag.Get("env"), Flag: f.Tag.Get("flag"), Usage: named.Replace(usage),
				Want: named.Replace(f.Tag.Get("want")), List: f.Type.Kind() == reflect.Slice, Reload: f.Tag.Get("reload") != "", isBool: f.Type.Kind() == reflect.Bool, index: at}
			switch k.Env {
			case "":
				k.Env = "RDSD_" + strings.ToUpper(strings.ReplaceAll(k.Name, ".", "_"))
			case "-":
				k.Env = ""
			}
			out = append(out, k)
		}
	}
	walk(reflect.TypeFor[Config](), "", nil)
	return out
}

// tables are the lists of tables of a file.
var tables = map[string]reflect.Type{
	"ports":           reflect.TypeFor[PortGrant](),
	"peers":           reflect.TypeFor[PeerRule](),
	"volumes.exports": reflect.TypeFor[VolumeExport](),
	"volumes.roots":   reflect.TypeFor[VolumeRoot](),
}

// tableWant finds what a field of a list of tables wants.
func tableWant(table, field string) string {
	t := tables[table]
	if t == nil {
		return ""
	}
	for i := range t.NumField() {
		if tomlName(t.Field(i)) == field {
			return t.Field(i).Tag.Get("want")
		}
	}
	return ""
}

// tableKeys lists the keys of all tables.
func tableKeys() []string {
	var out []string
	for name, t := range tables {
		for i := range t.NumField() {
			out = append(out, name+"."+tomlName(t.Field(i)))
		}
	}
	slices.Sort(out)
	return out
}

// texts are the keys, those of tables too, whose values or items of a list of them read their own text.
var texts = func() map[string]bool {
	reads := func(t reflect.Type) bool {
		if t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		return reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
	}
	m := map[string]bool{}
	for i := range keys {
		m[keys[i].Name] = reads(reflect.TypeFor[Config]().FieldByIndex(keys[i].index).Type)
	}
	for name, t := range tables {
		for f := range t.Fields() {
			m[name+"."+tomlName(f)] = reads(f.Type)
		}
	}
	return m
}()

// isKnown reports whether a name without indexes is one of a key, a section or a list of tables.
func isKnown(name string) bool {
	for _, k := range append(keyNames(), tableKeys()...) {
		if k == name || strings.HasPrefix(k, name+".") {
			return true
		}
	}
	return false
}

func tomlName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
	return name
}

// Value returns the text of a key in c, as Set would read it.
func (k *Key) Value(c *Config) string {
	v := reflect.ValueOf(c).Elem().FieldByIndex(k.index)
	if k.List {
		parts := make([]string, v.Len())
		for i := range parts {
			parts[i] = fmt.Sprint(v.Index(i).Interface())
		}
		return strings.Join(parts, ",")
	}
	return fmt.Sprint(v.Interface())
}

// raw returns the field itself.
func (k *Key) raw(c *Config) any {
	v := reflect.ValueOf(c).Elem().FieldByIndex(k.index)
	if v.Kind() == reflect.Slice && v.IsNil() {
		return []string{}
	}
	return v.Interface()
}

// set stores the text values in c; a list takes them all, a scalar the last one.
func (k *Key) set(c *Config, values []string) error {
	v := reflect.ValueOf(c).Elem().FieldByIndex(k.index)
	if !k.List {
		if len(values) == 0 {
			return nil
		}
		return setText(v, values[len(values)-1])
	}
	list := reflect.MakeSlice(v.Type(), 0, len(values))
	for _, s := range values {
		e := reflect.New(v.Type().Elem()).Elem()
		if err := setText(e, strings.TrimSpace(s)); err != nil {
			return err
		}
		list = reflect.Append(list, e)
	}
	v.Set(list)
	return nil
}

func setText(v reflect.Value, s string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(s))
	}
	// What is not right changes nothing: other mistakes are looked for afterwards.
	var err error
	switch v.Kind() {
	case reflect.String:
		v.SetString(s)
	case reflect.Bool:
		var b bool
		if b, err = strconv.ParseBool(s); err == nil {
			v.SetBool(b)
		}
	case reflect.Float64:
		var f float64
		if f, err = strconv.ParseFloat(s, 64); err == nil {
			v.SetFloat(f)
		}
	case reflect.Int:
		var n int64
		if n, err = strconv.ParseInt(s, 10, v.Type().Bits()); err == nil {
			v.SetInt(n)
		}
	case reflect.Uint16, reflect.Uint32:
		var n uint64
		if n, err = strconv.ParseUint(s, 10, v.Type().Bits()); err == nil {
			v.SetUint(n)
		}
	default:
		panic(fmt.Sprintf("node: configuration field of type %v", v.Type()))
	}
	if err != nil {
		return fmt.Errorf("%q is not right", s)
	}
	return nil
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
