package interop

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

func TestMain(m *testing.M) {
	HelperMain()
	os.Exit(m.Run())
}

func TestBoot(t *testing.T) {
	ns, err := NewNetns(netip.MustParsePrefix("10.9.0.1/24"))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	guest, _ := filepath.Abs("guest")
	vm, err := Boot(t.Context(), ns, guest, t.TempDir(), netip.MustParsePrefix("10.9.0.100/24"), netip.MustParsePrefix("fd09::100/64"))
	if err != nil {
		t.Fatal(err)
	}
	defer vm.Kill()
	c, err := vm.Counters(t.Context())
	t.Log(c, err)
	t.Log(vm.Run(t.Context(), "ip", "addr"))
	t.Log(ns.Run("ping", "-c1", "10.9.0.100"))
	t.Log(vm.Console())
	t.Log(vm.ReloadRDS(t.Context()))
	t.Log(vm.ResetAll(t.Context()))
	t.Log(vm.Netem(t.Context(), "loss", "1%"))
	t.Log(vm.Netem(t.Context()))
}
