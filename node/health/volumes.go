package health

import (
	"cmp"
	"fmt"
	"time"
)

// Mapping is a volume of another node that is a device here.
type Mapping struct {
	ID, Node, Name string
	Open           bool
	Why, Mend      string        // where it is not: why, and what mends that
	SyncLost       bool          // no flush succeeds
	For            time.Duration // in this state
	RequestError   string        // why the last of Failed has failed; "": not known
	Paths          int           // of its session
	Failed, Done   uint64        // requests since it was mapped
	FailedAgo      time.Duration // the last of these; 0: not known
	Stalled        time.Duration // its oldest request waits for so long, if that is too long; else 0
	Limit          time.Duration // from which that is an error
}

// Mapping tells of one.
func (x *Exam) Mapping(m *Mapping) {
	subject := "mapping " + m.ID
	if !m.Open && m.For >= Grace {
		x.add(Problem{Code: MappingDown, Severity: Error, Subject: subject, Since: m.For, Text: m.Why, Remedy: m.Mend})
	}
	x.stalled(subject, m.Stalled, m.Limit, fmt.Sprintf("a request to %s:%s has not been answered for %s, though a path is connected", m.Node, m.Name, lasted(m.Stalled)),
		fmt.Sprintf("on %s: rdsd check, and the kernel's log: the store there stands still or is slow, and requests go on with it", m.Node))
	if m.Paths == 1 {
		x.add(Problem{Code: OnePath, Severity: Note, Subject: subject, Text: "there is one path only: if it fails, requests wait", Remedy: "rdsd volume paths add, over another network"})
	}
	if m.SyncLost {
		x.add(Problem{Code: VolumeErrors, Severity: Warning, Subject: subject, Text: "completed writes may be lost, and no flush succeeds any more",
			Remedy: fmt.Sprintf("check what is on it (the file system); then unmap %s and map it anew", m.ID)})
		return
	}
	x.failed(subject, "it was mapped", m.Failed, m.Done, m.FailedAgo, m.RequestError)
}

// stalled tells of a request that takes too long.
func (x *Exam) stalled(subject string, d, limit time.Duration, text, remedy string) {
	if d == 0 {
		return
	}
	p := Problem{Code: VolumeStalled, Severity: Warning, Subject: subject, Since: d, Text: text, Remedy: remedy}
	if d >= limit {
		p.Severity = Error
	}
	x.add(p)
}

// failed tells of requests that failed, the last of them so long ago; 0: that is not known.
func (x *Exam) failed(subject, since string, failed, done uint64, ago time.Duration, why string) {
	if failed == 0 || ago > Recent {
		return
	}
	text := fmt.Sprintf("%d of %s failed since %s", failed, count(done, "request"), since)
	if ago > 0 {
		text += ", the last " + lasted(ago) + " ago"
	}
	if why != "" {
		text += "; the last error: " + why
	}
	x.add(Problem{Code: VolumeErrors, Severity: Warning, Subject: subject, Text: text,
		Remedy: "rdsd volume events --kept, here and on the node of the store, and the kernel's log there; it is told for ten minutes after the last"})
}

// VolumePath is a path of a session.
type VolumePath struct {
	Session, Src, Dst, State, LastError string
	Connected                           bool
	Mend                                string        // where it is not: what mends that
	For                                 time.Duration // that it is not connected, through all attempts: each is another state
}

// VolumePath tells of one of a session to another node's volumes.
func (x *Exam) VolumePath(p *VolumePath) {
	if p.Connected || p.For < Grace {
		return
	}
	from := ""
	if p.Src != "" { // else it was asked for without one, and is not there yet
		from = "from " + p.Src + " "
	}
	text := fmt.Sprintf("the path %sto %s is %s for %s", from, p.Dst, p.State, lasted(p.For))
	if p.LastError != "" {
		text += ": " + p.LastError
	}
	x.add(Problem{Code: VolumePathDown, Severity: Warning, Subject: "session " + p.Session, Since: p.For, Text: text, Remedy: p.Mend})
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
	Failed       bool   // its store could not be opened, or
	Why, Mend    string // why it is not there for another reason, and what mends that
	Error        string // why; else of the store, the last
	For          time.Duration
	Errors, Done uint64        // requests since its store was opened
	FailedAgo    time.Duration // the last of these; 0: not known
	Stalled      time.Duration // as of a Mapping
	Limit        time.Duration
}

// Export tells of one.
func (x *Exam) Export(e *Export) {
	subject := "export " + e.Name
	if e.Failed {
		p := Problem{Code: ExportFailed, Severity: Error, Subject: subject, Since: e.For, Text: e.Why, Remedy: e.Mend}
		if e.Why == "" {
			p.Text = "the store cannot be opened: " + e.Error
			p.Remedy = fmt.Sprintf("see to %s (is it there, and may the daemon open it?), then rdsd volume check %s", e.Path, e.Name)
		}
		x.add(p)
	}
	x.stalled(subject, e.Stalled, e.Limit, fmt.Sprintf("a request to the store has not completed for %s", lasted(e.Stalled)),
		fmt.Sprintf("see to what is behind %s (a disk, a network), and the kernel's log: dmesg", cmp.Or(e.Path, "the store")))
	why := e.Error
	if e.Failed {
		why = "" // said above
	}
	x.failed(subject, "its store was opened", e.Errors, e.Done, e.FailedAgo, why)
}
