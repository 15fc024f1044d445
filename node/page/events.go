package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/rdsd/rdsd/internal/guard"
	"github.com/rdsd/rdsd/internal/quota"
	"github.com/rdsd/rdsd/node/config"
	"github.com/rdsd/rdsd/rdserr"
)

// Bounds of the streams of events.
const (
	// MaxStreams is how many there may be at once, and MaxStreamsPerUser of one user.
	MaxStreams        = 32
	MaxStreamsPerUser = 24
	// streamBytes is what one takes: its goroutine, the buffers of its connection.
	streamBytes = 32 << 10
	// makeShare bounds what making views costs: so many times as long passes without, but no longer than makeMost:
	// on a busy machine one may have waited for a processor.
	makeShare = 20
	makeMost  = 20 * time.Second
	// bytesPerSecond bounds what a stream brings, on average.
	bytesPerSecond = 4 << 20
)

// hub brings the newest views to all streams. While there are streams one goroutine makes
// the views that are wanted, each once for all, and wakes those that want it.
type hub struct {
	page *Page

	mu      sync.Mutex
	streams map[*stream]struct{} // guarded by mu
	byUser  map[uint32]int       // guarded by mu
	running bool                 // guarded by mu; a goroutine makes views
	joined  chan struct{}        // capacity 1: a stream has come
	left    chan struct{}        // guarded by mu; closed when the last has gone
	refused uint64               // guarded by mu
}

// A stream is one who looks.
type stream struct {
	uid     uint32
	account *quota.Account
	wants   []int         // topics
	wake    chan struct{} // capacity 1: something is newer
	quit    chan struct{} // closed when views are made no more: its reader comes again
	next    [16]*snapshot // guarded by hub.mu; held; what is to be sent, by topic
	failed  [16]string    // guarded by hub.mu; or why there is nothing
	known   [16]bool      // guarded by hub.mu; the newest has been given to the stream
}

// join counts a stream, or says why there is no place.
func (h *hub) join(id config.Identity, wants []int) (*stream, error) {
	account := h.page.Memory.Account(quota.User(id.UID))
	if err := account.Take(quota.Page, streamBytes); err != nil {
		account.Close()
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var err error
	switch {
	case len(h.streams) >= MaxStreams:
		err = rdserr.With(rdserr.ErrTooMany, "%d streams of events are open, and there may be no more; close a page", MaxStreams)
	case h.byUser[id.UID] >= MaxStreamsPerUser:
		err = rdserr.With(rdserr.ErrTooMany, "uid %d has %d streams of events open, and may have no more; close a page", id.UID, MaxStreamsPerUser)
	}
	if err != nil {
		h.refused++
		giveBack(account)
		return nil, err
	}
	if h.streams == nil {
		h.streams, h.byUser, h.joined = map[*stream]struct{}{}, map[uint32]int{}, make(chan struct{}, 1)
	}
	s := &stream{uid: id.UID, account: account, wants: wants, wake: make(chan struct{}, 1), quit: make(chan struct{})}
	h.streams[s] = struct{}{}
	h.byUser[id.UID]++
	if !h.running {
		h.running, h.left = true, make(chan struct{})
		go h.run(h.left)
	}
	select {
	case h.joined <- struct{}{}:
	default:
	}
	return s, nil
}

func giveBack(account *quota.Account) {
	account.Give(quota.Page, streamBytes)
	account.Close()
}

// leave ends a stream. The goroutine that makes views ends with the last one.
func (h *hub) leave(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams, s)
	if h.byUser[s.uid]--; h.byUser[s.uid] == 0 {
		delete(h.byUser, s.uid)
	}
	for i := range s.next {
		s.next[i].drop()
		s.next[i] = nil
	}
	giveBack(s.account)
	if len(h.streams) == 0 && h.running {
		h.running = false
		close(h.left)
	}
}

// round is the state of the goroutine that makes views.
type round struct {
	due  []time.Time // by topic; when the next is to be made
	last []*snapshot // by topic; held
}

// run makes views until left is closed.
func (h *hub) run(left <-chan struct{}) {
	defer h.page.Guard.Recover(guard.Page, h.broken)
	r := round{due: make([]time.Time, len(topics)), last: make([]*snapshot, len(topics))}
	defer func() {
		for _, s := range r.last {
			s.drop()
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-left:
			return
		case <-h.page.Stopping:
			return
		case <-h.joined:
		case <-timer.C:
		}
		timer.Reset(h.makeAll(&r))
	}
}

// broken ends all streams after a panic: who comes again starts anew.
func (h *hub) broken(error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = false
	for s := range h.streams {
		// A stream that an earlier panic has ended, and whose reader has not let it go
		// yet, is still among them.
		select {
		case <-s.quit:
		default:
			close(s.quit)
		}
	}
}

// makeAll makes what is wanted and due, and returns how long there is nothing to do.
func (h *hub) makeAll(r *round) time.Duration {
	wait := time.Second
	for i := range topics {
		wanted, fresh := h.wanted(i)
		if !wanted {
			r.last[i].drop()
			r.last[i] = nil
			continue
		}
		now := time.Now()
		if fresh && r.last[i] != nil { // somebody has come, who gets what the others have
			h.give(i, r.last[i], true)
		}
		if now.Before(r.due[i]) {
			wait = min(wait, r.due[i].Sub(now))
			continue
		}
		pause := h.makeOne(i, r)
		r.due[i] = now.Add(pause)
		wait = min(wait, pause)
	}
	return max(wait, 10*time.Millisecond)
}

// makeOne makes one view, gives it to those who want it, and returns how long the next
// has to wait.
func (h *hub) makeOne(i int, r *round) time.Duration {
	v := &h.page.views[i]
	begun := time.Now()
	s, err := v.get(h.page.As(h.page.background, nobody), viewAge)
	if err != nil {
		r.last[i].drop() // the next is sent also if it is the same: it says that the error has passed
		r.last[i] = nil
		h.giveError(i, err)
		return v.topic.every
	}
	changed := r.last[i] == nil || !bytes.Equal(r.last[i].body, s.body)
	pause := max(v.topic.every, min(makeShare*s.cost, makeMost), time.Duration(len(s.body))*time.Second/bytesPerSecond) - time.Since(begun)
	if !changed {
		s.drop()
		return pause
	}
	r.last[i].drop()
	r.last[i] = s
	h.give(i, s, false)
	return pause
}

// wanted reports whether a stream wants topic i, and whether one has not got any yet.
func (h *hub) wanted(i int) (wanted, fresh bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.streams {
		for _, w := range s.wants {
			if w == i {
				wanted = true
				fresh = fresh || !s.known[i]
			}
		}
	}
	return wanted, fresh
}

// give makes s what is sent of topic i next, to all who want it or to newcomers alone.
// What a stream had not sent yet is never sent: it gets the newest.
func (h *hub) give(i int, s *snapshot, newcomers bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for st := range h.streams {
		if !st.wantsTopic(i) || newcomers && st.known[i] {
			continue
		}
		st.next[i].drop()
		st.next[i], st.failed[i], st.known[i] = s.hold(), "", true
		st.stir()
	}
}

// giveError tells those who want topic i why there is nothing.
func (h *hub) giveError(i int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for st := range h.streams {
		if st.wantsTopic(i) {
			st.failed[i] = err.Error()
			st.stir()
		}
	}
}

func (s *stream) wantsTopic(i int) bool {
	for _, w := range s.wants {
		if w == i {
			return true
		}
	}
	return false
}

func (s *stream) stir() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// takeNext takes what is to be sent of a topic. A snapshot is its caller's to drop.
func (h *hub) takeNext(s *stream, i int) (next *snapshot, failed string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	next, failed = s.next[i], s.failed[i]
	s.next[i], s.failed[i] = nil, ""
	return next, failed
}

// serveEvents sends the newest views of the topics asked for as they change, until the
// reader leaves, does not read, or the node stops.
func (p *Page) serveEvents(w http.ResponseWriter, r *http.Request) {
	q, ok := only(w, r, "topics")
	if !ok {
		return
	}
	wants, err := topicList(q.Get("topics"))
	if err != nil {
		fail(w, err)
		return
	}
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", "text/event-stream")
		return
	}
	s, err := p.hub.join(callerOf(r), wants)
	if err != nil {
		w.Header().Set("Retry-After", "5")
		fail(w, err)
		return
	}
	defer p.hub.leave(s)
	p.stream(w, r, s)
}

func topicList(text string) (list []int, err error) {
	if text == "" {
		text = "status"
	}
	for name := range strings.SplitSeq(text, ",") {
		i := topicNumber(name)
		if i < 0 {
			return nil, rdserr.With(rdserr.ErrInvalid, "topics has a name that is not known; docs/api.md lists them")
		}
		list = append(list, i)
	}
	if len(list) > len(topics) {
		return nil, rdserr.With(rdserr.ErrInvalid, "topics names one twice")
	}
	return list, nil
}

// quoted is the failure of a topic in JSON.
func quoted(topic, why string) []byte {
	b, _ := json.Marshal(map[string]string{"topic": topic, "message": why}) // strings
	return b
}

// aliveEvery is how often a stream says something when there is nothing to say, so that
// a reader can tell silence from a dead connection.
const aliveEvery = 5 * time.Second

// aliveAt is the event that says so, with the time of day here: that of whoever looks may be another.
func aliveAt(now time.Time) []byte {
	return fmt.Appendf(nil, "event: alive\ndata: {\"unix_ns\": \"%d\"}\n\n", now.UnixNano())
}

func (p *Page) stream(w http.ResponseWriter, r *http.Request, s *stream) {
	c := http.NewResponseController(w)
	// The server's time to read a request is over some time; a stream lasts longer.
	_ = c.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	send := func(parts ...[]byte) bool {
		_ = c.SetWriteDeadline(time.Now().Add(p.patience))
		for _, b := range parts {
			if _, err := w.Write(b); err != nil {
				return false
			}
		}
		return c.Flush() == nil
	}
	if !send([]byte("retry: 1000\n\n")) || !send(aliveAt(time.Now())) {
		return
	}
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-p.Stopping:
			return
		case <-s.quit:
			return
		case <-alive.C:
			if !send(aliveAt(time.Now())) {
				return
			}
		case <-s.wake:
			if !p.sendNews(s, send) {
				return
			}
		}
	}
}

// sendNews sends what is new, and reports whether the reader takes it.
func (p *Page) sendNews(s *stream, send func(...[]byte) bool) bool {
	for _, i := range s.wants {
		next, failed := p.hub.takeNext(s, i)
		switch {
		case next != nil:
			ok := send([]byte("event: "+topics[i].name+"\ndata: "), next.body, []byte("\n\n"))
			next.drop()
			if !ok {
				return false
			}
		case failed != "":
			if !send(fmt.Appendf(nil, "event: failed\ndata: %s\n\n", quoted(topics[i].name, failed))) {
				return false
			}
		}
	}
	return true
}
