package simtest

import (
	"net/netip"

	"github.com/rdsd/rdsd/transport/sim"
)

type kernel struct {
	w       *World
	addr    netip.Addr
	host    *sim.Host
	epoch   int
	running bool
}

func (w *World) addKernel(a netip.Addr, newer bool) {}
func (k *kernel) start()                            {}
func (k *kernel) crash()                            {}
func (k *kernel) settled() (bool, string)           { return true, "" }
func (k *kernel) judge()                            {}
func (w *World) kernelTraffic(k *kernel)            {}
func (w *World) mayForget(a netip.Addr) bool        { return false }
