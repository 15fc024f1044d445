package config

import (
	"reflect"
	"testing"
)

// TestReloadTakesEveryMarkedKey: with copies each key that is marked, and no other.
func TestReloadTakesEveryMarkedKey(t *testing.T) {
	old, next := Default(), Default()
	for i := range keys {
		f := reflect.ValueOf(next).Elem().FieldByIndex(keys[i].index)
		switch v := f.Addr().Interface().(type) {
		case *LogLevel:
			v.Level = 8
		case *[]uint32:
			*v = []uint32{5}
		default:
			switch f.Kind() {
			case reflect.Int:
				f.SetInt(f.Int() + 1)
			case reflect.Uint16, reflect.Uint64:
				f.SetUint(f.Uint() + 1)
			case reflect.Float64:
				f.SetFloat(f.Float() + 1)
			case reflect.Bool:
				f.SetBool(!f.Bool())
			case reflect.String:
				f.SetString(f.String() + "x")
			case reflect.Struct:
				if d, ok := f.Addr().Interface().(*Duration); ok {
					d.Duration++
				}
			}
		}
	}
	got := old.With(next)
	for i := range keys {
		k := &keys[i]
		if differs := k.Value(next) != k.Value(old); !differs {
			continue
		}
		if took := k.Value(got) == k.Value(next); took != k.Reload {
			t.Errorf("%s: reloaded is %v, want %v", k.Name, took, k.Reload)
		}
	}
}
