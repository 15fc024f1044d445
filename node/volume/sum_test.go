package volume

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"
)

// TestDamagedState: whatever bit of the state turns over, and wherever it ends, nothing other than what was written is
// believed. What somebody changed by hand, who has removed the sum, is.
func TestDamagedState(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, stateFile)
	s, _, err := openStore(thisMachine(nil), nil, dir, "")
	if err != nil {
		t.Fatal(err)
	}
	want := state{Running: true, NextID: 8, Exports: []exportState{{Name: "disk", Path: "/srv/disk", ReadOnly: true, Sessions: []string{"a"}}},
		Mappings: []mappingState{{ID: "v1", Node: "store", Name: "disk", Persist: true, SyncLost: true}}, Past: []pastState{{Dev: 1, Ino: 2, Syncs: 3, Behind: []string{"x"}}}, Forgot: 1}
	if err := s.write(func() state { return want }); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	want, err = readState(s.disk)
	if err != nil {
		t.Fatal(err)
	}
	reads := func(b []byte) (state, error) {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return readState(s.disk)
	}
	for i := range 8 * len(good) {
		b := bytes.Clone(good)
		b[i/8] ^= 1 << (i % 8)
		if st, err := reads(b); err != nil && !errors.Is(err, syscall.EINVAL) || err == nil && !reflect.DeepEqual(st, want) {
			t.Errorf("bit %d of byte %d, %q: %+v, %v", i%8, i/8, b[max(i/8-20, 0):min(i/8+20, len(b))], st, err)
		}
	}
	for n := range good {
		if st, err := reads(good[:n]); err != nil && !errors.Is(err, syscall.EINVAL) || err == nil && !reflect.DeepEqual(st, want) {
			t.Errorf("its first %d bytes: %+v, %v", n, st, err)
		}
	}
	_, rest, has := summed(good)
	if !has {
		t.Fatalf("there is no sum in %q", good)
	}
	changed := bytes.Replace(rest, []byte("/srv/disk"), []byte("/srv/other"), 1)
	if st, err := reads(append([]byte(stateOpens), changed...)); err != nil || st.Exports[0].Path != "/srv/other" {
		t.Errorf("changed by hand: %+v, %v", st, err)
	}
}
