package monitoring

import (
	"os"
	"testing"

	"github.com/rdsd/rdsd/sdk/go/rdsdtest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	rdsdtest.Remove()
	os.Exit(code)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
