package config

import (
	"io"
	"os"
	"path/filepath"
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

// TestOriginsOfAReload: what waits for the next start does not come from the line that has it
// now, and what did not change comes from where it stands now.
func TestOriginsOfAReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rdsd.toml")
	load := func(text string) *Config {
		if err := os.WriteFile(file, []byte("version = 1\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(LoadOptions{File: file})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	now := load("[rds]\nlanes = 4\n[api]\ncalls_burst = 7\n")
	now = now.With(load("[rds]\nlanes = 6\nport = 5000\n[api]\ncalls_burst = 8\n"))
	if now.RDS.Lanes != 4 || now.API.CallsBurst != 8 {
		t.Fatalf("%d lanes, %d calls", now.RDS.Lanes, now.API.CallsBurst)
	}
	now = now.With(load("\n[rds]\nlanes = 5\nport = 5000\n[api]\ncalls_burst = 8\n"))
	for key, want := range map[string]string{"rds.lanes": file + ":3 at the start", "rds.port": "default", "api.calls_burst": file + ":7"} {
		if got := now.Origin(key).String(); got != want {
			t.Errorf("%s comes from %q, want %q", key, got, want)
		}
	}
	if got, want := now.Failed("rds.lanes", io.EOF).Error(), "EOF (rds.lanes was set in "+file+":3 at the start)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	now = now.With(load("\n[rds]\nlanes = 4\n"))
	if got := now.Origin("rds.lanes").String(); got != file+":4" {
		t.Errorf("as it is now again, rds.lanes comes from %q", got)
	}
}
