package node

import (
	"context"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
	"github.com/rdsd/rdsd/internal/counters"
)

type idleCore struct{}

func (idleCore) start() error           { return nil }
func (idleCore) drain(context.Context)  {}
func (idleCore) close()                 {}
func (idleCore) alive()                 {}
func (idleCore) read(s *stats)          { s.kernel = counters.KernelTable.Read(nil, &counters.Kernel{}) }
func (idleCore) extra() []counters.Desc { return nil }
func newCore(*Node) (core, error)       { return idleCore{}, nil }
func (n *Node) closeSockets()           {}

type datagramsServer struct {
	rdsdv1.UnimplementedDatagramsServer
	node *Node
}
type adminServer struct {
	rdsdv1.UnimplementedAdminServer
	node *Node
}
