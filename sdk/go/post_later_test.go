package rdsd

import (
	"testing"

	rdsdv1 "github.com/rdsd/rdsd/api/rdsd/v1"
)

// TestResultLater: who answers what came need not have the result before something comes again;
// who sends on its own, or has more under way, goes on with the results.
func TestResultLater(t *testing.T) {
	_, s, st := bindClear(t)
	answer := func() *rdsdv1.SendBatch {
		t.Helper()
		st.push(Datagram{Addr: peerAddr, Payload: []byte("asks")})
		if _, err := s.Recv(testContext(t)); err != nil {
			t.Fatal(err)
		}
		send(t, s, peerAddr, "answers")
		return st.nextSend()
	}
	send(t, s, peerAddr, "alone")
	b := st.nextSend()
	if b.GetResultMayWait() {
		t.Errorf("nothing came before: %v", b)
	}
	if second := answer(); second.GetResultMayWait() {
		t.Errorf("another has no result: %v", second)
	} else {
		st.sendResult(b)
		st.sendResult(second)
	}
	untilNothingPosted(t, s)
	for range 3 {
		if b = answer(); !b.GetResultMayWait() {
			t.Fatalf("an answer: %v", b)
		}
		st.sendResult(b)
		untilNothingPosted(t, s)
	}
	send(t, s, peerAddr, "on its own")
	if b = st.nextSend(); b.GetResultMayWait() {
		t.Errorf("nothing came since the one before: %v", b)
	}
	st.sendResult(b)
	untilNothingPosted(t, s)

	// Who flushes does not wait for what may wait.
	b = answer()
	flushed := goErr(func() error { return s.Flush(testContext(t)) })
	if m := st.next(); m.WhichBody() != rdsdv1.ClientMessage_Monitor_case || !m.GetMonitor().GetSetEvents() || !m.GetMonitor().GetClearEvents() {
		t.Errorf("got %v, want what has the daemon send the result", m)
	}
	st.sendResult(b)
	st.answerFlush()
	if err := waitErr(t, flushed); err != nil {
		t.Error(err)
	}
}
