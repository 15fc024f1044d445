package shm

// reasons are the texts of the reasons in events: the numbers and texts of
// conn.Why, which the SDKs cannot import (reason_test.go compares).
var reasons = [...]string{"", "no such port", "cancelled by the application", "the socket was closed",
	"peer restarted", "peer changed between kernel and rdsd", "cancelled after it had begun to leave, then the link was lost",
	"the daemon is shutting down", "daemon restarted", "the memory budget is spent", "the address was taken from this node"}

// Reason is the text of a reason in an event; of one that this version does not
// know, none.
func Reason(why uint8) string {
	if int(why) < len(reasons) {
		return reasons[why]
	}
	return ""
}
