package health

import (
	"fmt"
	"net/netip"
	"time"
)

// Mapping is a volume of another node that is a device here.
type Mapping struct {
	ID, Node, Name string
	Open           bool
	For            time.Duration // in this state
	LastError      string
	Paths, Up      int // of its session
	Waiting        uint64
	Failed, Done   uint64 // requests since it was mapped
}

// Mapping tells of one.
func (x *Exam) Mapping(m *Mapping) {
	subject := "mapping " + m.ID
	if !m.Open && m.For >= Grace {
		p := Problem{Code: MappingDown, Severity: Error, Subject: subject, Since: m.For}
		if m.Up == 0 {
			p.Text = fmt.Sprintf("no path to %s, so %s:%s cannot be used; %s", m.Node, m.Node, m.Name, was(int(m.Waiting), "request", "requests")+" waiting")
			p.Remedy = "rdsd volume paths shows what each path fails of; rdsd ping " + m.Node
		} else {
			p.Text = fmt.Sprintf("%s does not have the volume %s", m.Node, m.Name)
			p.Remedy = fmt.Sprintf("on %s: rdsd volume ls, and export it; then here: rdsd volume remap %s", m.Node, m.ID)
		}
		if m.LastError != "" {
			p.Text += ": " + m.LastError
		}
		x.add(p)
	}
	if m.Paths == 1 {
		x.add(Problem{Code: OnePath, Severity: Note, Subject: subject, Text: "there is one path only: if it fails, requests wait", Remedy: "rdsd volume paths add, over another network"})
	}
	x.failed(subject, m.Failed, m.Done, m.LastError)
}

func (x *Exam) failed(subject string, failed, done uint64, why string) {
	if failed == 0 {
		return
	}
	text := fmt.Sprintf("%d of %s failed since it was opened", failed, count(done, "request"))
	if why != "" {
		text += "; the last error: " + why
	}
	x.add(Problem{Code: VolumeErrors, Severity: Warning, Subject: subject, Text: text,
		Remedy: "rdsd volume events --kept, here and on the node of the store, and the kernel's log there; the count begins anew when it is mapped or exported anew"})
}

// VolumePath is a path of a session.
type VolumePath struct {
	Session, Src, Dst, State, LastError string
	Connected, RDMA                     bool
	For                                 time.Duration // in this state
	Attempts                            int           // that failed in a row
	GivenUp                             bool          // it is disconnected because these were too many
	Replaced                            bool          // another session took the place of its session
}

// VolumePath tells of one of a session to another node's volumes.
func (x *Exam) VolumePath(p *VolumePath) {
	if p.Connected || p.For < Grace {
		return
	}
	text := fmt.Sprintf("the path from %s to %s is %s for %s", p.Src, p.Dst, p.State, lasted(p.For))
	if p.LastError != "" {
		text += ": " + p.LastError
	}
	mend := "see to the network between these addresses, and that " + p.port() + " is open; "
	again := fmt.Sprintf("rdsd volume paths reconnect %s %s,%s", p.Session, p.Src, p.Dst)
	switch {
	case p.Replaced:
		mend = "another session of this name from this node took its place (a second daemon?): unmap its volumes, and map them again with a --session of their own"
	case p.GivenUp:
		mend = fmt.Sprintf("it was given up after %s (max_reconnect_attempts): %sthen %s", count(uint64(p.Attempts), "attempt"), mend, again)
	case p.State == "disconnected":
		mend = "an administrator has disconnected it: " + again
	default:
		mend += "rdsd volume paths"
	}
	x.add(Problem{Code: VolumePathDown, Severity: Warning, Subject: "session " + p.Session, Since: p.For, Text: text, Remedy: mend})
}

// port is what has to be open for it.
func (p *VolumePath) port() string {
	if p.RDMA {
		return "UDP port 4791"
	}
	port := uint16(16388)
	if at, err := netip.ParseAddrPort(p.Dst); err == nil {
		port = at.Port()
	}
	return fmt.Sprintf("TCP port %d", port)
}

// Session is a session to another node's volumes.
type Session struct {
	Name     string
	Unfenced uint64 // failovers without a fence
	At       string // when that happens: "after 40s", "at once"
}

// Session tells of one.
func (x *Exam) Session(s *Session) {
	if s.Unfenced == 0 {
		return
	}
	x.add(Problem{Code: UnfencedFailovers, Severity: Note, Subject: "session " + s.Name,
		Text:   fmt.Sprintf("the server is a kernel, which cannot be asked to end what a lost path had in flight: %d times it went to another path, %s", s.Unfenced, s.At),
		Remedy: fmt.Sprintf("nothing, unless the server's store may have held writes for longer: then compare the volume with what was written; rdsd volume sessions set %s --unfenced wait takes no risk", s.Name)})
}

// Export is a volume of this node.
type Export struct {
	Name, Path   string
	Failed       bool   // its store could not be opened
	Error        string // why; else of the store, the last
	For          time.Duration
	Errors, Done uint64 // requests since it was opened
}

// Export tells of one.
func (x *Exam) Export(e *Export) {
	subject := "export " + e.Name
	if e.Failed {
		x.add(Problem{Code: ExportFailed, Severity: Error, Subject: subject, Since: e.For, Text: "the store cannot be opened: " + e.Error,
			Remedy: fmt.Sprintf("see to %s (is it there, and may the daemon open it?), then rdsd volume check %s", e.Path, e.Name)})
	}
	why := e.Error
	if e.Failed {
		why = "" // said above
	}
	x.failed(subject, e.Errors, e.Done, why)
}
