package roce

import (
	"math/rand"
	"time"
)

// Times of the requester.
//
// A peer says by its ACK timeout when it expects packets again: kernels 2.1 s, in which a
// volume stands still. Duplicates do no harm, so packets are sent again by a time of their
// own, which follows the round trip (RFC 6298), and doubles each time. How long the peer is
// given is what it said.
const (
	firstTimeout = 16 * time.Millisecond // while no round trip was measured
	minTimeout   = 4 * time.Millisecond  // of a peer's thread that is not scheduled at once
	maxTimeout   = 2 * time.Second
	nearTimeout  = 16 * time.Millisecond // at most, of peers whose round trip is below nearTrip
	nearTrip     = time.Millisecond
	jitterShare  = 4 // a timeout is longer by up to this part of it, so that many do not end at once
)

// Windows in packets. A receiver is a socket whose buffer is far smaller than what all of its
// peers may send at once, so after a loss half as much is sent at a time, and after a timeout the
// least. TCP then grows by a packet a round trip (RFC 5681), by which
// a single lost packet would be felt for 64 of them: the largest window is small, so this one
// grows by a packet for every few that arrive.
//
// A receiver that is not ready drops all behind the packet that it refuses: it has that one alone
// again, and when it takes it the window doubles to what it was.
const (
	firstWindow = 32
	minWindow   = 8
	growAfter   = 8 // packets that arrive
)

// retrier is what a requester knows of the way to its peer: how long it takes, how much it
// bears, and since when nothing came back.
//
// window is from 1 to the constant window.
type retrier struct {
	window int // packets that may be under way
	slow   int // window up to which it doubles each round trip
	grown  int // packets that arrived since it grew, above that

	trip, vary time.Duration // smoothed, and by how much it varies; 0: not measured
	timing     bool          // of the packet timed, which was sent at timedAt
	timed      PSN
	timedAt    time.Duration
	backoff    int // timeouts since the last round trip was measured, by which the next is doubled

	alive    time.Duration // when the peer last said something new, or began to owe it
	timeouts int           // since then
	notReady int           // refusals for want of a receive since a packet was received last
	waiting  bool          // for the end of such a refusal
	backs    int           // times that sending went back since the peer last said something new
	gone     bool          // back to unacked, since it is what it is
}

func (r *retrier) begin() { *r = retrier{window: firstWindow, slow: window} }

// timeout is how long to wait for an acknowledgement.
func (r *retrier) timeout(q *QP) time.Duration {
	t := firstTimeout
	if r.trip > 0 {
		t = max(r.trip+4*r.vary, minTimeout)
		if r.trip < nearTrip {
			t = min(t, nearTimeout)
		}
	}
	t <<= min(r.backoff, 16)
	return jitter(q.dev.rnd, min(t, maxTimeout))
}

func jitter(rnd *rand.Rand, t time.Duration) time.Duration {
	return t + time.Duration(rnd.Int63n(int64(t/jitterShare)+1))
}

// patience is how long the peer may say nothing new.
func (q *QP) patience() time.Duration {
	t := AckTimeout(q.peer.Timeout)
	if t == 0 || t > q.dev.cfg.Patience {
		return q.dev.cfg.Patience
	}
	return min(t*time.Duration(q.peer.Retry+1), q.dev.cfg.Patience)
}

// ask notes that packet psn asks for an acknowledgement, to measure the round trip by it. Of a
// packet that was sent before the answer would say nothing (Karn's rule).
func (r *retrier) ask(now time.Duration, psn PSN) {
	if !r.timing {
		r.timing, r.timed, r.timedAt = true, psn, now
	}
}

// forget gives up the round trip that is being measured.
func (r *retrier) forget() { r.timing = false }

// arrived lets the window grow by n packets that the peer has received.
func (r *retrier) arrived(n int) {
	r.grown += n
	for r.window < window && (r.window < r.slow && r.grown > 0 || r.grown >= growAfter) {
		if r.window < r.slow {
			r.grown--
		} else {
			r.grown -= growAfter
		}
		r.window++
	}
	if r.window == window {
		r.grown = 0
	}
}

// progress notes that all before unacked was received.
func (r *retrier) progress(now time.Duration, unacked PSN) {
	if r.timing && r.timed.Sub(unacked) < 0 {
		r.timing = false
		r.measured(now - r.timedAt)
	}
	r.alive, r.timeouts, r.notReady, r.waiting, r.gone = now, 0, 0, false, false
}

// measured takes a round trip (RFC 6298, section 2).
func (r *retrier) measured(t time.Duration) {
	// Not before: whoever is further away than a timeout would be asked twice each time, and
	// never be measured.
	r.backoff = 0
	t = max(t, time.Microsecond)
	if r.trip == 0 {
		r.trip, r.vary = t, t/2
		return
	}
	r.vary += ((r.trip - t).Abs() - r.vary) / 4
	r.trip += (t - r.trip) / 8
}

// lost makes the window smaller.
func (r *retrier) lost(to int) {
	r.slow = max(r.window/2, minWindow)
	r.window = min(r.window, max(to, minWindow))
	r.grown = 0
}

// narrow lets one packet be under way until more arrive. It is no sign of what the way bears.
func (r *retrier) narrow() {
	r.slow = max(r.slow, r.window)
	r.window, r.grown = 1, 0
}

// back sends again from the first packet without an acknowledgement on, once until it has
// one: each packet of a window may be answered with the same news. If what is sent again is
// lost as well, time will tell.
func (q *QP) back(now time.Duration) {
	if r := &q.req.retry; q.state != RTS || r.gone || r.waiting {
		return
	}
	q.wentBack()
	q.req.retry.lost(q.req.retry.window / 2)
	q.again()
	q.deadline = now + q.req.retry.timeout(q)
	q.dev.timers.arm(q)
}

// wentBack counts that packets are sent again.
func (q *QP) wentBack() {
	q.stats.CompleterRetryErr++
	q.req.retry.backs++
}

// again makes the first packet without an acknowledgement the next one.
func (q *QP) again() {
	r := &q.req
	r.next, r.current, r.reading, r.since = r.unacked, 0, 0, 0
	r.retry.gone = true
	r.retry.forget()
}

// How long a receiver that is not ready is left alone at least: nearPause twice as long after each refusal in
// a row, up to farPause.
const (
	nearPause = 10 * time.Microsecond
	farPause  = time.Millisecond
)

// notReady waits because the peer had no receive posted for the first packet without an
// acknowledgement. It is no loss, and no sign of a peer that is gone.
func (q *QP) notReady(now time.Duration, s Syndrome) {
	r := &q.req.retry
	if r.waiting {
		return // it is the same news once more
	}
	r.notReady++
	if q.peer.RNRRetry != retryForEver && r.notReady > int(q.peer.RNRRetry) {
		q.stats.RetryRNRExceededErr++
		q.gaveUp(RNRExceeded)
		return
	}
	q.again()
	r.narrow()
	r.alive, r.timeouts, r.waiting, r.gone = now, 0, true, false
	// Who says again and again that it is ready soon, and is not, is asked less and less often.
	q.deadline = now + max(s.RNRDelay(), min(nearPause<<min(r.notReady, 16), farPause))
	q.dev.timers.arm(q)
}

// expired is called when the deadline has passed.
func (q *QP) expired(now time.Duration) {
	r := &q.req.retry
	switch {
	case q.state != RTS || q.req.unacked == q.req.end:
		return
	case r.waiting:
		r.waiting = false
		r.alive = now
		q.deadline = now + r.timeout(q)
		return
	case now-r.alive >= q.patience() && r.timeouts >= int(q.peer.Retry):
		q.stats.RetryExceededErr++
		q.gaveUp(RetryExceeded)
		return
	}
	q.stats.AckTimeouts++
	q.wentBack()
	r.timeouts++
	r.backoff++
	r.lost(minWindow)
	q.again()
	q.deadline = now + r.timeout(q)
	// The last of them ends when the peer's time does.
	if end := r.alive + q.patience(); end > now && r.timeouts >= int(q.peer.Retry) {
		q.deadline = min(q.deadline, end)
	}
	r.gone = false // a peer that misses it now says so for the first time
}
