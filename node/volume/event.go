package volume

import "time"

// Kinds of event.
const (
	EventSession  = "session"  // came up, went down, was refused
	EventPath     = "path"     // changed its state
	EventMapping  = "mapping"  // changed its state
	EventExport   = "export"   // added, removed, opened, closed
	EventFailover = "failover" // requests moved to another path; Count is how many
	EventResize   = "resize"   // Count is the new size in bytes
	EventError    = "error"    // an I/O or the store failed
	EventGap      = "gap"      // Count events are missing here
)

// Event is something that happened.
type Event struct {
	Seq     uint64 // from 1; consecutive, but for gaps
	Time    time.Time
	Kind    string
	State   string // new state, of EventSession, EventPath, EventMapping, EventExport
	Session string // ID, "" where it does not apply; the same for the others
	Path    string // ID
	Mapping string // ID
	Export  string // name
	Count   uint64 // see Kind
	Took    time.Duration
	Err     string
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
