package shm

import (
	"path/filepath"
	"testing"
)

func newLedger(t testing.TB, s LedgerSpec) *Ledger {
	t.Helper()
	l, err := OpenLedger(filepath.Join(t.TempDir(), "ledger"), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}
