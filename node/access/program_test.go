package access

import (
	"bytes"
	"os"
	"testing"
)

// TestProgram: the name is what the kernel has, made text whatever its bytes are; of a
// process that is not there, or in another namespace, there is none.
func TestProgram(t *testing.T) {
	own := uint32(os.Getpid())
	before := Program(own)
	if before == "" {
		t.Fatal("this process has no name")
	}
	if err := os.WriteFile("/proc/self/comm", []byte("a\xff<b>"), 0); err != nil {
		t.Skipf("elsewhere: the name cannot be changed here: %v", err)
	}
	defer os.WriteFile("/proc/self/comm", []byte(before), 0)
	if got := Program(own); got != "a\uFFFD<b>" {
		t.Errorf("the name is %q", got)
	}
	if want, err := os.ReadFile("/proc/1/comm"); err == nil && Program(1) != string(bytes.TrimSuffix(want, []byte("\n"))) {
		t.Errorf("the first process, %q, is called %q", want, Program(1))
	}
	for _, pid := range []uint32{0, 1 << 30} {
		if got := Program(pid); got != "" {
			t.Errorf("process %d is called %q", pid, got)
		}
	}
}
