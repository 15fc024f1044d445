package blk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestSelfName: what a block device says that it is, as sysfs has it.
func TestSelfName(t *testing.T) {
	made := func(files map[string]string) string {
		dir := t.TempDir()
		for name, text := range files {
			path := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	if n := selfName(made(nil)) | selfName(made(map[string]string{"dm/uuid": "\n", "serial": ""})); n != 0 {
		t.Errorf("of those that say nothing: %x", n)
	}
	seen := map[int64]string{}
	for _, files := range []map[string]string{
		{"dm/uuid": "LVM-abc\n"}, {"dm/uuid": "LVM-abd\n"}, {"wwid": "eui.01\n"}, {"device/wwid": "naa.01\n"}, {"dm/uuid": "\n", "serial": "s1"},
	} {
		n := selfName(made(files))
		if was, twice := seen[n]; n == 0 || twice || n != selfName(made(files)) {
			t.Errorf("%v: %x, which %s has", files, n, was)
		}
		seen[n] = fmt.Sprint(files)
	}
	disk := made(map[string]string{"wwid": "eui.01\n", "p1/partition": "1\n", "p2/partition": "2\n"})
	one, two := selfName(disk+"/p1"), selfName(disk+"/p2")
	if seen[one] != "" || seen[two] != "" || one == 0 || one == two {
		t.Errorf("of partitions: %x, %x", one, two)
	}
}
