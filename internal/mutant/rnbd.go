package mutant

// The rules of volumes above RTRS, and what breaking each does. internal/simtest
// breaks them, and those of package rtrs; the first ones are of its own shell.
const (
	VolumeGoneEarly  = 201 + iota // a path is said to be gone before its links are closed
	VolumeAckEarly                // a write is acknowledged before the store is done
	RNBDSecondWriter              // a second session may write
	RNBDWriterEarly               // another may write while the last requests of a writer are at the store
	RNBDDropFUA                   // FUA does not reach the store
	RNBDFlushAtOnce               // a flush is answered before the store is done
	RNBDForgiveSync               // a flush succeeds after a sync had failed
	RNBDNoVerifier                // nobody notices that a server has lost what was not flushed
	RNBDGreetOnce                 // a session that could not be greeted in time never is
	rnbdEnd
)

// RNBDNames are the names of the rules, from VolumeGoneEarly on.
var RNBDNames = [...]string{"VolumeGoneEarly", "VolumeAckEarly", "SecondWriter", "WriterEarly", "DropFUA", "FlushAtOnce",
	"ForgiveSync", "NoVerifier", "GreetOnce"}

// One name for each rule, or this does not compile.
var _ = [1]struct{}{}[len(RNBDNames)-(rnbdEnd-VolumeGoneEarly)]

// Name is the name of a rule by its number, "" if there is none.
func Name(n int) string {
	switch {
	case n > 0 && n <= Count:
		return Names[n]
	case n >= RTRSNoFence && n < rtrsEnd:
		return RTRSNames[n-RTRSNoFence]
	case n >= VolumeGoneEarly && n < rnbdEnd:
		return RNBDNames[n-VolumeGoneEarly]
	}
	return ""
}
