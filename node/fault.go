package node

// steps are the functions of which one is on the stack while the state of an engine
// changes, or while what that ordered is carried out: all of the cores, and the ends
// of the shells' steps. After a panic there nothing can be relied on.
var steps = []string{
	"github.com/rdsd/rdsd/rds.",
	"github.com/rdsd/rdsd/conn.",
	"github.com/rdsd/rdsd/cong.",
	"github.com/rdsd/rdsd/rtrs.",
	"github.com/rdsd/rdsd/rnbd.",
	"github.com/rdsd/rdsd/roce.",
	"github.com/rdsd/rdsd/roce/cm.",
	"github.com/rdsd/rdsd/node/datagram.(*Local).Unlock",
	"github.com/rdsd/rdsd/node/datagram.(*Local).carryOut",
	"github.com/rdsd/rdsd/node/datagram.(*Local).transmit",
	"github.com/rdsd/rdsd/node/volume.(*server).finish",
	"github.com/rdsd/rdsd/node/volume.(*client).finish",
	"github.com/rdsd/rdsd/node/volume.(*flushes).run",
}

// takeLocks takes each lock that a step is made under and gives it back.
func (n *Node) takeLocks() {
	if n.hosts != nil {
		n.hosts.TakeLocks()
	}
	if h := n.volumes.Load(); h != nil {
		h.TakeLocks()
	}
}
