package volume

import (
	"bytes"
	"fmt"
	"hash/crc32"
)

// The first line of the state is a sum of all that follows. A bit that has turned over in the name of a key makes another
// key of it, which is no error to whoever reads JSON: an export that was read-only, or of a few sessions, would not be so
// any more, and a sync that failed would not be known. A file without that line, of an earlier version or of somebody who
// has changed it by hand and removed the line, is believed.
const (
	stateOpens = "{\n"
	sumBegins  = "\t\"sum\": \""
	sumBytes   = len(sumBegins) + 8 + len("\",\n")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumLine is the line for a state that goes on with rest.
func sumLine(rest []byte) []byte {
	return fmt.Appendf(nil, "%s%08x\",\n", sumBegins, crc32.Checksum(rest, castagnoli))
}

// summed splits a state in its line and what follows; false: it has none.
func summed(b []byte) (line, rest []byte, has bool) {
	if !bytes.HasPrefix(b, []byte(stateOpens+sumBegins)) || len(b) < len(stateOpens)+sumBytes {
		return nil, nil, false
	}
	b = b[len(stateOpens):]
	return b[:sumBytes], b[sumBytes:], true
}
