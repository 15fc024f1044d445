package rnbd

import (
	"errors"
	"slices"
	"time"

	"github.com/rdsd/rdsd/blk"
	"github.com/rdsd/rdsd/rdserr"
	"github.com/rdsd/rdsd/rtrs"
	rnbdwire "github.com/rdsd/rdsd/wire/rnbd"
)

// Never is the time of something that is not due at all.
const Never = rtrs.Never

// Carrier is the session a Client works over: an *rtrs.Client.
type Carrier interface {
	Submit(now time.Duration, r *rtrs.Req) error
	Resume(now time.Duration)
	Each(f func(r *rtrs.Req))
	Recall(now time.Duration, r *rtrs.Req, err error) bool
	MaxIO() int
}

// ClientEnv takes the news of a Client. It is called from within the Client's methods, with
// the lock held; it does not block and does not call back.
type ClientEnv interface {
	// Mapped tells that v is open and that Info describes it; or, with an error, that it
	// could not be opened and is not mapped.
	Mapped(v *Volume, err error)
	// Unmapped is the last call about v: nothing of it is in flight any more.
	Unmapped(v *Volume)
	// Changed tells that Info of v is another one now, because the volume was resized or is
	// served by another server.
	Changed(v *Volume, info *blk.Info)
	// Keep tells that Volume.Kept is another one now, to be written down soon.
	Keep(v *Volume)
	// Note asks to have Volume.Kept written down now; Volume.Noted follows (ClientConfig.Notes).
	Note(v *Volume)
	// Event tells what happened, for logs and watchers.
	Event(e ClientEvent)
}

// ClientEventKind says what happened.
type ClientEventKind uint8

// Kinds of event.
const (
	VolumeState    ClientEventKind = iota // it changed its state, From To; Err is why it is closed
	VolumeResized                         // its size changed to Size bytes
	VolumeIOError                         // a request failed: Op, Err. The first, then the first after a success
	VolumeSyncLost                        // completed writes may be lost: no flush succeeds any more. Err
	numClientEvents
)

var clientEventNames = [numClientEvents]string{"state", "resized", "io-error", "sync-lost"}

func (k ClientEventKind) String() string {
	if k < numClientEvents {
		return clientEventNames[k]
	}
	return "unknown"
}

// ClientEvent is something that happened, as far as it has a meaning for its kind.
type ClientEvent struct {
	Kind     ClientEventKind
	Volume   *Volume
	From, To State
	Size     uint64
	Op       blk.Op
	Err      error
}

// ClientConfig is a client's configuration; zero means the default.
type ClientConfig struct {
	// OnLoss and LossTimeout are those of the session (rtrs.ClientConfig): how requests end
	// while there is a path but the server does not have the volume yet.
	OnLoss      rtrs.OnLoss
	LossTimeout time.Duration // 30 s
	// IOTimeout is the session's, too: with OnLoss Error no request takes longer
	// than both, however often it is held and sent again.
	IOTimeout time.Duration // 30 s
	// RetryEvery is the pause before a server that came back without the volume
	// is asked again; 500 ms.
	RetryEvery time.Duration
	// AskEvery is how often an rdsd is asked whether the volume was resized; 5 s.
	// Negative: never. (A kernel tells when it is opened again.)
	AskEvery time.Duration
	// Notes says that what the environment is told to keep outlives the process.
	Notes bool
}

// Client maps volumes of one server over one session.
//
// Each generation of the session goes through the same steps, and requests wait for the
// last: up (there is a path), introduced (SESS_INFO is answered), resumed (every volume
// that was open has been asked for, and requests run).
type Client struct {
	cfg ClientConfig
	env ClientEnv
	rt  Carrier

	volumes []*Volume // in the order they were mapped
	ticked  []*Volume // room of Tick's

	// The present generation of the session.
	//
	// Invariant: resumed implies introduced, and introduced implies up.

	up         bool
	introduced bool
	resumed    bool
	resumeAt   time.Duration     // it is resumed then without those that are not answered
	generation uint              // counts Up
	features   rnbdwire.Features // additions that the server has shown, 0 before it is introduced
	hello      admin             // SESS_INFO
	sessInfoAt time.Duration     // when it is sent again; 0: not
	flow       uint32            // of the last request

	done  blk.List // for Finished
	again *piece   // pieces that came back unsent, to be started again
	last  *piece   // the last of again

	calls  *call  // unused ones, so that in steady state nothing is allocated
	pieces *piece // likewise
}

// admin is a message about a volume, or about the session; one at a time.
type admin struct {
	req        rtrs.Req
	kind       rnbdwire.Type
	generation uint // of the session when it was submitted
	busy       bool
	v          *Volume // nil: SESS_INFO
	usr        [rnbdwire.OpenLen]byte
	rsp        [rnbdwire.OpenRspLen]byte
}

// errAgain cancels requests that are to be started again.
var errAgain = errors.New("rnbd: to be started anew")

// NewClient returns a client without volumes.
func NewClient(cfg ClientConfig, env ClientEnv, rt Carrier) *Client {
	if cfg.LossTimeout == 0 {
		cfg.LossTimeout = 30 * time.Second
	}
	if cfg.IOTimeout == 0 {
		cfg.IOTimeout = 30 * time.Second
	}
	if cfg.RetryEvery == 0 {
		cfg.RetryEvery = 500 * time.Millisecond
	}
	if cfg.AskEvery == 0 {
		cfg.AskEvery = 5 * time.Second
	}
	return &Client{cfg: cfg, env: env, rt: rt}
}

// Map maps a volume of the server. ClientEnv.Mapped follows, as soon as there is a path and
// the server has answered; a caller that has waited enough calls Unmap.
func (c *Client) Map(now time.Duration, name string, access rnbdwire.Access) (*Volume, error) {
	return c.newVolume(now, name, access, nil)
}

func (c *Client) newVolume(now time.Duration, name string, access rnbdwire.Access, former *Kept) (*Volume, error) {
	o := rnbdwire.Open{Access: access, Name: name}
	if _, err := o.Append(nil); err != nil {
		return nil, rdserr.With(rdserr.ErrInvalid, "volume %.40q, access %v: %v", name, access, err)
	}
	for _, v := range c.volumes {
		switch {
		case v.name != name:
		case v.state == Unmapped:
			return nil, rdserr.With(ErrBusy, "volume %q is still being unmapped", name)
		default:
			return nil, rdserr.With(ErrExists, "volume %q is mapped already over this session", name)
		}
	}
	v := &Volume{c: c, name: name, access: access, former: former, since: now, askAt: Never}
	v.admin.v = v
	c.volumes = append(c.volumes, v)
	v.pump(now)
	return v, nil
}

// Volumes lists the volumes in the order they were mapped. The slice is new.
func (c *Client) Volumes() []*Volume { return slices.Clone(c.volumes) }

// Up reports that the session has a path (rtrs.ClientEnv.Up). The Client introduces itself
// to the server and opens every volume again; then requests run.
func (c *Client) Up(now time.Duration) {
	c.up, c.introduced, c.resumed, c.features, c.sessInfoAt = true, false, false, 0, 0
	c.generation++
	c.sendSessInfo(now)
}

// Down reports that the session lost its last path (rtrs.ClientEnv.Down). Messages about
// volumes that are under way fail, now or when their path is gone.
func (c *Client) Down(now time.Duration) {
	c.up, c.introduced, c.resumed, c.sessInfoAt = false, false, false, 0
	// A copy: a volume that is unmapped ends with the path, and leaves the list.
	for _, v := range slices.Clone(c.volumes) {
		v.lost(now)
	}
}

// Done takes r, which has its outcome (rtrs.ClientEnv.Done).
func (c *Client) Done(now time.Duration, r *rtrs.Req) {
	switch x := r.Ctx.(type) {
	case *piece:
		c.donePiece(now, x)
	case *admin:
		x.busy = false
		switch {
		case x.generation != c.generation: // the answer is about an earlier generation
			c.stale(now, x)
		case x.v == nil:
			c.sessInfoAnswered(now, r.Err)
		default:
			x.v.answered(now, x)
		}
	}
	c.restart(now)
}

// stale deals with the outcome of a message that was sent before the session's last Up.
func (c *Client) stale(now time.Duration, a *admin) {
	if a.v == nil {
		if c.up && !c.introduced {
			c.sendSessInfo(now)
		}
		return
	}
	// The server may have opened it for a volume that was unmapped meanwhile: then it is
	// closed.
	if a.kind == rnbdwire.OpenType && a.req.Err == nil && a.v.state == Unmapped {
		if rsp, err := rnbdwire.ParseOpenRsp(a.rsp[:]); err == nil {
			a.v.id, a.v.openAtServer = rsp.DeviceID, !a.v.leaving
		}
	}
	a.v.pump(now)
}

// Finished hands out requests of volumes that are complete: as many as fit into
// buf, which is empty and has capacity. The caller lets the lock go, calls
// blk.Complete, and calls Finished again, until there are none.
func (c *Client) Finished(buf []*blk.Request) []*blk.Request {
	for c.done.Len() > 0 && len(buf) < cap(buf) {
		buf = append(buf, c.done.Pop())
	}
	return buf
}

// Tick carries out everything that is due. It returns when to call it next, unless another
// call makes something due earlier: Next tells that time.
func (c *Client) Tick(now time.Duration) (next time.Duration) {
	if c.sessInfoAt != 0 && now >= c.sessInfoAt {
		c.sessInfoAt = 0
		c.sendSessInfo(now)
	}
	c.ticked = append(c.ticked[:0], c.volumes...) // a volume may go meanwhile
	for _, v := range c.ticked {
		v.tick(now)
	}
	clear(c.ticked)
	c.tryResume(now)
	c.restart(now)
	return c.Next()
}

// Next is when Tick is to be called.
func (c *Client) Next() time.Duration {
	next := Never
	if c.sessInfoAt != 0 {
		next = c.sessInfoAt
	}
	if c.introduced && !c.resumed {
		next = min(next, c.resumeAt)
	}
	for _, v := range c.volumes {
		next = min(next, v.next())
	}
	return next
}

// sendSessInfo introduces the client to the server with SESS_INFO.
func (c *Client) sendSessInfo(now time.Duration) {
	a := &c.hello
	if a.busy {
		return // one of an earlier generation, whose path is not gone yet; Done sends it again
	}
	a.kind = rnbdwire.SessInfo
	usr := rnbdwire.AppendSessInfoExt(a.usr[:0], rnbdwire.SessInfo, rnbdwire.Version, features)
	c.send(now, a, rtrs.Read, usr, a.rsp[:rnbdwire.SessInfoLen])
}

// send submits a message of this generation of the session.
func (c *Client) send(now time.Duration, a *admin, op rtrs.Op, usr, data []byte) {
	a.busy, a.generation = true, c.generation
	clear(data)
	a.req.Op, a.req.Admin, a.req.Usr, a.req.Data, a.req.Err, a.req.Ctx = op, true, usr, data, nil, a
	if err := c.rt.Submit(now, &a.req); err != nil {
		a.req.Err = err
		c.Done(now, &a.req)
	}
}

// sessInfoAnswered takes the server's answer to SESS_INFO.
func (c *Client) sessInfoAnswered(now time.Duration, err error) {
	switch {
	case !c.up:
		// The next Up sends SESS_INFO again.
		return
	case err != nil: // its limit passed, perhaps while a fence was waited for, or the server has no memory for it, say
		// Until it is answered an rdsd and a kernel are not told apart, and what an rdsd would say of a volume, that another
		// has written or that it was started again, would be missed.
		c.sessInfoAt = now + c.cfg.RetryEvery
		if answeredBy(err) {
			for _, v := range slices.Clone(c.volumes) {
				v.refused(now, err)
			}
		}
		return
	}
	rsp := c.hello.rsp[:rnbdwire.SessInfoLen]
	ver, err := rnbdwire.ParseSessInfo(rsp, rnbdwire.SessInfoRsp)
	if err == nil && ver == 0 {
		err = rdserr.With(rdserr.ErrProtocol, "the server speaks RNBD of version 0")
	}
	c.introduced, c.resumeAt = true, now+c.cfg.RetryEvery
	if err == nil {
		c.features = rnbdwire.ParseFeatures(rsp)
	}
	for _, v := range slices.Clone(c.volumes) {
		if err != nil {
			v.refused(now, err)
		} else {
			v.pump(now)
		}
	}
	c.tryResume(now)
}

// answeredBy tells whether an error was answered by the server, and is none of
// this side.
func answeredBy(err error) bool {
	_, ours := errors.AsType[*rdserr.Error](err)
	return err != nil && !ours && err != errAgain
}

// tryResume lets requests run once every volume that was open has been asked for in this
// generation of the session, or has had RetryEvery to be: a store whose file system stands
// still keeps nobody from the others. The numbers of devices may have changed: requests that
// wait get the new one, or are taken back where there is none.
func (c *Client) tryResume(now time.Duration) {
	if !c.introduced || c.resumed {
		return
	}
	for _, v := range c.volumes {
		// Requests of this volume name a device number of the former generation, which may be
		// another volume's now.
		if now < c.resumeAt && v.state == Closed && v.failed == nil && v.openAnsweredIn != c.generation {
			return
		}
	}
	c.rt.Each(func(r *rtrs.Req) {
		p, ok := r.Ctx.(*piece)
		if !ok {
			return
		}
		// The new number is written into it. A piece that is larger than the server takes now, or
		// has no volume, comes back and is cut again or held.
		if v := p.call.v; v.state == Open && p.n <= v.most(p.call.op()) {
			p.message(v.id)
		} else {
			c.rt.Recall(now, r, errAgain)
		}
	})
	c.resumed = true
	c.rt.Resume(now)
	for _, v := range slices.Clone(c.volumes) { // held in an earlier generation of the session, and open before this one resumed
		if v.state == Open {
			v.release(now)
		}
	}
}

// Oldest tells since when the oldest request of each volume is under way that has any, wherever it waits.
func (c *Client) Oldest() map[*Volume]time.Duration {
	oldest := map[*Volume]time.Duration{}
	look := func(p *piece) {
		if since, ok := oldest[p.call.v]; !ok || p.call.since < since {
			oldest[p.call.v] = p.call.since
		}
	}
	c.rt.Each(func(r *rtrs.Req) {
		if p, ok := r.Ctx.(*piece); ok {
			look(p)
		}
	})
	for p := c.again; p != nil; p = p.next {
		look(p)
	}
	for _, v := range c.volumes {
		for p := v.held; p != nil; p = p.next {
			look(p)
		}
	}
	return oldest
}

// restart starts pieces again that came back unsent. It is called when no function on the
// stack walks a list of the session.
func (c *Client) restart(now time.Duration) {
	// They wait until tryResume has seen how each volume stands.
	if !c.resumed && c.up {
		return
	}
	for c.again != nil {
		// Pieces that come back again meanwhile go into a new list, for the next round.
		list := c.again
		c.again = nil
		for list != nil {
			p := list
			list = p.next
			p.next = nil
			p.call.v.start(now, p)
		}
	}
}
