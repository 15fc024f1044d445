package mutant

// The rules of package rtrs, and what breaking each does. Their numbers begin
// behind those of the datagrams; rtrs/mutants.sh breaks them.
const (
	RTRSNoFence         = 101 + iota // requests of a dead path go on elsewhere without a fence
	RTRSEarlyAway                    // requests of a path go on before its links are closed
	RTRSFenceAtOnce                  // a fence is answered while requests are at the store
	RTRSFenceNoHang                  // a fence does not close the path's links
	RTRSReconnectAtOnce              // a path is connected again while requests of its older life are at the store
	RTRSReplaceAtOnce                // a session takes the place of another whose requests are at the store
	RTRSOrphansRun                   // requests are sent though a failed write may still happen
	RTRSPermitEarly                  // a failed request's permit is free before it is fenced
	RTRSNoResume                     // requests are sent before the user resumes
	RTRSKeepGeneration               // a path to a new session at the server joins those of the old one
	RTRSKeepKey                      // a chunk's key stays valid while its content is used
	RTRSReadKey                      // the key of a read's memory stays valid after the answer
	RTRSTrimAwake                    // chunks are trimmed without asking the client
	RTRSRestSend                     // requests are sent while chunks are trimmed
	RTRSNoDeadline                   // deadlines pass unnoticed
	RTRSNoHeartbeat                  // silence is not noticed
	RTRSForgetQueue                  // what waits is not sent when a path is back
	RTRSShortRead                    // what the store did not fill of a read is sent as it was
	RTRSOtherCon                     // answers leave on connection 0
	rtrsEnd
)

// RTRSNames are the names of the rules, from RTRSNoFence on.
var RTRSNames = [...]string{"NoFence", "EarlyAway", "FenceAtOnce", "FenceNoHang", "ReconnectAtOnce", "ReplaceAtOnce", "OrphansRun",
	"PermitEarly", "NoResume", "KeepGeneration", "KeepKey", "ReadKey", "TrimAwake", "RestSend", "NoDeadline", "NoHeartbeat",
	"ForgetQueue", "ShortRead", "OtherCon"}

// One name for each rule, or this does not compile.
var _ = [1]struct{}{}[len(RTRSNames)-(rtrsEnd-RTRSNoFence)]
