package volume

import "time"

// Kinds of event.
const (
	EventSession  = "session"  // came up, went down, was refused
	EventPath     = "path"     // changed its state
	EventMapping  = "mapping"  // changed its state
	EventExport   = "export"   // added, removed, opened, closed
	EventFailover = "failover" // requests moved to another path; Count is how many
	EventResize   = "resize"
	EventError    = "error" // an I/O or the store failed
	EventGap      = "gap"   // Count events are missing here
)

// Event is something that happened.
type Event struct {
	Seq     uint64 // from 1, consecutive; starts anew with the Host
	Time    time.Time
	Kind    string
	Role    string // of the session, "" where it does not apply; the same for the others
	Session string // name
	Path    PathSpec
	Mapping string // ID
	Export  string // name
	State   string // afterwards
	Count   uint64 // see Kind
	Size    uint64 // bytes, of EventResize
	Took    time.Duration
	Err     error
	Text    string // the whole in words
}

// Severities of a finding.
const (
	SeverityOK      = "ok"
	SeverityWarning = "warning"
	SeverityError   = "error"
)

// Finding is one answer of Check.
type Finding struct {
	Severity string
	What     string // a mapping's ID, an export's name, "kernel", "state" ...
	Text     string // what is so
	Fix      string // what would be right; "" when nothing needs to be done
}
