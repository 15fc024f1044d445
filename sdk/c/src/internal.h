/*
 * What the files of the library share.
 *
 * A socket has a sending side (tx: send ring, event ring, arena, flows,
 * outcomes), a receiving side (rx: receive ring) and a session with the daemon
 * (ctl). Each has a lock; the release ring has its own in the region, because
 * messages outlive sockets.
 *
 * Lock order: list (client.c), ctl, tx, rx, region.mu. sleep.mu and that of the
 * list of regions (region.c) are taken last, requests.mu alone.
 * None is held while a thread sleeps.
 *
 * Read first: wait.c (how every call waits), session.c (bind, loss, binding
 * again), send.c.
 */
#ifndef RDSDI_INTERNAL_H
#define RDSDI_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "arena.h"
#include "layout.h"
#include "pb.h"
#include "rdsd.h"

#if !defined(__LP64__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rings need a 64-bit little-endian machine (docs/shm.md)"
#endif

#define SPIN_DEFAULT 50000            /* ns; above two wake-ups across cores */
#define BIND_TIMEOUT RDSD_SEC(10)
#define PATIENCE RDSD_SEC(5)          /* of calls that do not wait but need the daemon's answer */
#define EXPLAIN_TIME RDSD_SEC(1)       /* for the daemon to say why it refuses a destination */
#define EXPLAIN_NOWAIT RDSD_MS(20)     /* the same, of a call that does not wait, or less than that */
#define CLOSE_GRACE RDSD_SEC(2)
#define CANCEL_GRACE RDSD_MS(100)     /* of a request that timed out */
#define CHECK_EVERY RDSD_MS(4)        /* how old news of the control socket may be while calls succeed */
#define BACKOFF_MIN RDSD_MS(20)
#define BACKOFF_MAX RDSD_SEC(2)
#define MAX_OUTCOMES 65536u           /* runs unread before sends stop */
#define MAX_CHANGES 1024u             /* congestion events unread before they are merged */
#define MAX_DESCS 16384u              /* send descriptors without their last event: the layout's limit */
#define MAX_UNDECIDED 262144u         /* datagrams in them, likewise */
#define MAX_STASH 4096u               /* datagrams that waiting requests have put aside */
#define MAX_PORTS 32u                 /* reply ports of a socket */
#define MAX_ASKED 32u                 /* requests on one of them, each to another destination */
#define KEEP_PORTS 4u                 /* of them kept without a request */
#define MAX_REGIONS 8u                /* regions of dead daemons with something unread */
#define MAX_PAIRS 16u                 /* in each direction, and offered: a daemon offers 8 */
#define MAX_SAYS 64u                  /* of pairs, not sent yet */
#define MAX_KEPT (8u << 20)           /* bytes of copies of what came by pairs, beyond which nothing more is lent */
#define WHY_BYTES (PB_TEXT + 160)     /* of the words for the end of a socket or its daemon */
#define PAIR_RUN 16u                  /* records in a row out of pairs while the ring may have something */

/* Of conn.Why: reasons the library itself gives. */
enum { WHY_CLOSED = 3, WHY_DAEMON_RESTARTED = 8 };

/* Regions (region.c) */

/*
 * A pair (pair.c). Its end is guarded by tx.mu where this socket sends, by rx.mu
 * where it reads; until it is open, by ctl.mu.
 * Sender: head <= the reader's head <= tail <= head + bytes, head as last seen.
 * Reader: head <= tail <= head + bytes, tail as last seen.
 */
struct rdsdi_pair {
	_Atomic uint32_t refs;
	unsigned process; /* rdsdi_process when it was mapped */
	uint64_t id, bytes;
	uint8_t *words, *data;
	rdsd_addr peer;
	bool reads;
	bool closed; /* reader: the daemon has said so */
	bool over;   /* nothing more gets in, or is read */
	bool full;   /* sender: left alone until there is some room again */
	uint64_t tail, head;
	uint64_t raw;               /* reader: the word of the tail */
	uint64_t mark;              /* sender: of the record under way, +1; reader: of what follows */
	uint64_t next_tail, marked; /* sender: with the record under way; the mark that was put last, +1 */
	uint64_t count, sum;        /* datagrams and their bytes */
	struct rdsdi_pair *next;
};

/* A descriptor that was received. Its datagrams hold it; the last one gives the slot back. */
struct rdsdi_lease {
	struct rdsdi_region *reg;
	_Atomic uint32_t refs; /* datagrams not released */
	uint32_t bytes;        /* of one that came by a pair, which lies behind this */
	bool own;              /* it does */
	uint64_t slot;
	struct rdsdi_lease *next; /* free ones; guarded by reg->mu */
};

/* A mapped region. Whoever has a pointer to it has one of its refs. */
struct rdsdi_region {
	uint8_t *base;
	uint64_t bytes;
	_Atomic uint32_t refs;
	unsigned process; /* rdsdi_process when it was mapped */
	int doorbells[2]; /* the daemon's and the client's, which links borrow: see rdsdi_regions_quiet */
	_Atomic bool left; /* no link borrows them any more */
	struct rdsdi_region *all_next, *all_prev; /* of the process; guarded by the lock of that list */

	/* The header, read once and checked. */
	rdsd_addr local;
	uint64_t instance, sndbuf, rcvbuf;
	uint32_t max_datagram;
	uint32_t flows, send_n, event_n, recv_n, release_n;
	uint64_t flow_table, flow_states, send_ring, event_ring, recv_ring, release_ring;
	uint64_t send_arena, send_arena_bytes, recv_arena, recv_arena_bytes;
	uint32_t takes; /* TAKES_... */
	uint64_t daemon_part; /* from here on it can only be read */

	_Atomic int ended;    /* nothing is sent from it any more: -ESHUTDOWN, or why the socket is over */
	char why[WHY_BYTES];  /* the words of that; fixed once ended is set */
	struct rdsdi_region *next; /* what rx reads afterwards; guarded by rx.mu */
	/* Read as well. Guarded by rx.mu; changed with sleep.mu, which is enough to look at their words. */
	struct rdsdi_pair *pairs[MAX_PAIRS];
	unsigned pairs_n;
	_Atomic uint64_t kept; /* bytes of leases that came by pairs */

	pthread_mutex_t mu;
	int bell;                   /* the daemon's doorbell, -1 when it is gone; guarded by mu, as all below */
	struct rdsdi_lease *leases; /* release_n of them */
	struct rdsdi_lease *free;
	uint32_t leases_n;          /* of these, ever used */
	uint32_t live;              /* leases out */
	uint64_t release_tail, release_head;
};

/*
 * Maps what a daemon passed, our part and its, and touches header and words. 0, or a
 * negative errno with the text set. The descriptors stay the caller's.
 */
int rdsdi_region_map(int ours, int daemons, uint64_t bytes, struct rdsdi_region **reg);
/* Reads and checks the header, which is written when the socket is bound. Errors as above. */
int rdsdi_region_begin(struct rdsdi_region *reg);
void rdsdi_region_unref(struct rdsdi_region *reg);
/*
 * Closes the doorbells of regions that are still mapped for what is unread, lent or reserved, once their daemon has
 * ended: of each life it would be two. One that lives concludes from a closed one that nobody reads the region.
 */
void rdsdi_regions_quiet(void);
/* Around a fork: no region comes or goes. leave: in the child, lets go of the doorbells of its parent. */
void rdsdi_regions_hold(void);
void rdsdi_regions_go_on(bool leave);
/* The size of a sealed memfd, -1 when it is none. */
int64_t rdsdi_part_size(int fd);
/* Touches the pages from from, the beginning of one, up to to. */
void rdsdi_region_touch(const struct rdsdi_region *reg, uint64_t from, uint64_t to);
static inline void rdsdi_region_ref(struct rdsdi_region *reg)
{
	atomic_fetch_add_explicit(&reg->refs, 1, memory_order_relaxed);
}

static inline _Atomic uint64_t *at64(const struct rdsdi_region *r, uint64_t off)
{
	return (_Atomic uint64_t *)(void *)(r->base + off);
}

static inline _Atomic uint32_t *at32(const struct rdsdi_region *r, uint64_t off)
{
	return (_Atomic uint32_t *)(void *)(r->base + off);
}

#define load_acquire(p) atomic_load_explicit(p, memory_order_acquire)
#define load_relaxed(p) atomic_load_explicit(p, memory_order_relaxed)
#define store_release(p, v) atomic_store_explicit(p, v, memory_order_release)
#define store_relaxed(p, v) atomic_store_explicit(p, v, memory_order_relaxed)

/*
 * After news were stored for the daemon (sequentially consistent): wakes it if
 * it sleeps and waits for them, a DAEMON_WAITS bit.
 */
void rdsdi_ring(const struct rdsdi_region *reg, int bell, uint32_t news);

/* Takes so many datagrams off a lease; the last ones give its slot back. */
void rdsdi_lease_drop(struct rdsdi_lease *l, uint32_t refs);

/* Links (session.c) */

/* One connection to the daemon. control is closed with the last ref, the doorbells are with the region. */
struct rdsdi_link {
	_Atomic uint32_t refs;
	int control;
	int bell_daemon, bell_client; /* -1 until bound */
	struct rdsdi_region *offered; /* mapped, and not bound yet */
	struct rdsdi_region *reg;     /* NULL until bound */
};

/* A question to the daemon that waits for its answer. On the asker's stack. */
struct rdsdi_ask {
	uint64_t id;
	_Atomic int state; /* ASK_... */
	struct rdsdi_server answer;
	struct rdsdi_ask *next;
};
enum { ASK_WAITING = 0, ASK_ANSWERED = 1, ASK_LOST = 2 };

enum { SESSION_DOWN = 0, SESSION_CONNECTING = 1, SESSION_UP = 2, SESSION_OVER = 3 };

struct rdsdi_ctl {
	pthread_mutex_t mu; /* guards all of this */
	struct rdsdi_link *link;
	_Atomic int64_t due; /* when to try again, or to give an attempt up; read without mu */
	unsigned attempt;   /* failed ones in a row */
	bool first;         /* the bind of rdsd_bind: a failure is its answer */
	int closing;        /* errno of a Closing that was read, 0 for a daemon that goes away */
	bool closed;        /* a Closing was read */
	char closing_text[PB_TEXT];
	uint64_t next_id;
	struct rdsdi_ask *asks;
	bool watch, monitor_due;
	uint64_t watch_mask;
	uint8_t *packet;    /* PACKET_HEAD + PACKET_PIECE bytes */
	uint8_t *message;   /* pieces of a message in several packets */
	size_t message_n;
	int fds[4];         /* that came with the message so far */
	unsigned fds_n;
	bool fds_lost;      /* of these, some: this process may open no more */
	/* Pairs: mapped and not open yet; what is to be said of them; the daemon has closed one that is read. */
	struct rdsdi_pair *offers;
	unsigned offers_n, says_n;
	struct {
		uint64_t id;
		unsigned state;
	} says[MAX_SAYS];
	bool ending;
};

/* Sending (flow.c, send.c, event.c) */

struct rdsdi_flow {
	rdsd_addr to;
	uint32_t generation; /* odd; 0: never used */
	bool used;
	bool known;          /* the daemon has looked at it */
	uint32_t refs;       /* descriptors and slots that are not finished */
	uint32_t next;       /* in its hash bucket, index+1 */
	uint64_t skip;       /* the pass of a batch in which it had no room */

	bool refused;        /* in the list of rdsdi_tx: a call met the congestion and no watcher has heard of its end */
	bool told;           /* the watchers have heard of it from the state; the daemon's event is still to come */
	uint32_t refused_next; /* index+1 */

	/* The descriptor that may still grow, the flow's last. */
	uint32_t open;       /* cookie, 0: none */
	uint32_t open_len;   /* bytes of each datagram */
	uint32_t open_max;   /* datagrams, for which there are tags */
	uint64_t open_entry; /* count in the send ring */
	uint64_t open_word;
	uint32_t hint;       /* bytes a new one is planned for */
	uint32_t tables;     /* new ones that still get room for a table (mixed.c) */
	uint32_t usual_bytes, usual_n; /* of descriptors lately, the last one most */
};

/* A posted send descriptor until its last event. */
struct rdsdi_desc {
	uint64_t tag, slot;
	uint64_t size;      /* of the slot; 0: none */
	uint64_t undecided; /* payload bytes */
	uint32_t room;      /* bytes of the slot before the payloads, for the lengths of mixed ones */
	uint32_t body;      /* bytes, of a table and its payloads; without those in room */
	uint32_t len;       /* of each datagram; with a table 0 */
	uint32_t n, left;   /* datagrams, and those without outcome */
	uint32_t front;     /* so many are decided from the first on */
	uint64_t *map;      /* a bit for each that was decided out of order; NULL: none was */
	uint32_t flow;
	uint16_t turn;      /* changes with each use: the upper half of the cookie */
	bool used, table, mixed;
	uint32_t next;      /* free ones, index+1 */
};

struct rdsdi_change {
	rdsd_addr addr;
	bool congested;
};

struct rdsdi_tx {
	pthread_mutex_t mu; /* guards all of this */
	struct rdsdi_region *reg; /* NULL while there is no daemon */
	uint64_t life;            /* one more with each: another may lie where a former one did */
	uint64_t touched;         /* of its send arena: everything below it has been */
	int bell;
	uint64_t tail;      /* descriptors written */
	uint64_t published; /* of these, shown to the daemon */
	uint64_t head;      /* taken by the daemon, as last seen */
	uint32_t held;      /* slots reserved: each has its place in the ring */
	uint64_t event_head;
	uint64_t used;      /* bytes accepted and undecided, and reserved */
	uint32_t undecided; /* datagrams of descriptors without their last event */
	uint64_t sndbuf;
	uint32_t max_datagram;
	uint64_t next_tag;
	uint64_t passes;    /* of batches so far */
	uint32_t lazy;      /* sends since events were looked at */
	struct rdsdi_arena arena;
	struct rdsdi_pair *pairs;
	uint32_t opens;     /* flows whose last descriptor may still grow */

	struct rdsdi_flow *flows;
	uint32_t *buckets;  /* index+1 */
	uint32_t bucket_mask;
	uint32_t flow_hand; /* where the search for an unused one goes on */
	uint32_t refused;   /* the first flow that refused a call, index+1 */
	struct rdsdi_flow *last;
	bool keeps, kept;   /* a pass of a batch: refused flows are not forgotten; there is one */
	uint64_t pinned;    /* the pass of a batch that does not wait: nothing may overtake what it has refused */

	struct rdsdi_desc *descs;
	uint32_t descs_n, descs_cap, desc_free;

	rdsd_outcome *outcomes; /* a ring */
	uint32_t outcome_cap, outcome_head, outcome_n;

	struct rdsdi_change *changes; /* MAX_CHANGES of them once there is a watch */
	uint32_t changes_n;
	uint64_t freed;
	bool any_change;
};

/* Receiving (recv.c) */

struct rdsdi_waiter {
	rdsd_addr from;
	_Atomic bool done;
	rdsd_msg msg;
	struct rdsdi_waiter *next;
};

struct rdsdi_rx {
	pthread_mutex_t mu; /* guards all of this */
	struct rdsdi_region *reg; /* what is read now; NULL before the first bind */
	bool dead;          /* the last one's daemon is gone */
	int bell;           /* the daemon's doorbell, unless dead */
	uint64_t head, shown; /* descriptors claimed, and told to the daemon */
	bool lack; /* there is another one, and no lease for it */
	bool one_by_one;
	/* The descriptor being handed out. */
	struct rdsdi_lease *lease;
	const uint8_t *data, *table;
	uint32_t left, len, bytes; /* datagrams; of each; of the payloads that are left */
	rdsd_addr from;
	struct rdsdi_waiter *waiters;
	rdsd_msg *stash; /* a ring of MAX_STASH */
	uint32_t stash_head, stash_n;
	unsigned regions; /* in the chain from reg on */
	unsigned run, pair_turn; /* records in a row out of pairs, and where the next look begins */
};

/* Waiting (wait.c) */

struct rdsdi_sleep {
	_Atomic uint32_t turn;    /* a futex: changes when waiting threads are to look again */
	_Atomic uint32_t followers;
	_Atomic bool leader;      /* a thread sleeps, or is about to, for all */
	int kick;                 /* eventfd: wakes the leader */
	pthread_mutex_t mu;       /* guards the client's word of sleep, and: */
	bool leading, armed;
	struct rdsdi_link *link;  /* the leader's, while leading */
	uint32_t lead_bits, arm_bits, follow[4]; /* what they wait for; threads for each bit */
	int poll_fd, timer_fd;    /* for rdsd_fd; -1 until asked for */
};

/* Requests (request.c) */

struct rdsdi_requests {
	pthread_mutex_t mu; /* guards all of this */
	_Atomic uint32_t changed; /* a futex: a request may find a port now */
	struct rdsdi_port *ports;
	unsigned n, waiting; /* ports; requests that wait for changed */
	bool binding;       /* a thread has the turn to bind one more */
	rdsd_socket *begun; /* what it binds, as long as it waits for the daemon */
	bool over;
};

#define SUN_PATH 108 /* bytes of sun_path */

struct rdsd_client {
	char path[SUN_PATH + 1]; /* as in sun_path, and a 0 behind the longest abstract one */
	size_t path_len;         /* abstract ones begin with a 0 byte */
	rdsd_socket *sockets;
};

struct rdsd_socket {
	rdsd_client *client;
	rdsd_socket *next, *prev; /* of the client; guarded by the list lock */
	rdsd_socket *all_next, *all_prev;
	unsigned process;
	uint32_t flags;
	bool replies;             /* a reply port: receives answers to requests and nothing else */
	bool owned;               /* closed by the socket whose reply port it is */
	int64_t spin;
	rdsd_addr local;          /* fixed after rdsd_bind */
	uint64_t want_send, want_recv;
	char label[RDSD_MAX_LABEL + 1];

	_Atomic int state;        /* SESSION_... */
	_Atomic int over;         /* why nothing will work any more: a negative errno */
	_Atomic int fault;        /* the daemon broke the layout: a negative errno */
	_Atomic int64_t checked;  /* when the control socket was last looked at */
	pthread_mutex_t why_mu;
	char why[WHY_BYTES];      /* guarded by why_mu; why there is no daemon */

	struct rdsdi_ctl ctl;
	struct rdsdi_tx tx;
	struct rdsdi_rx rx;
	struct rdsdi_sleep sleep;
	struct rdsdi_requests requests;
};

/* System calls that end no thread (sys.c) */

struct msghdr;
struct pollfd;
struct timespec;

ssize_t rdsdi_read(int fd, void *to, size_t n);
ssize_t rdsdi_write(int fd, const void *from, size_t n);
ssize_t rdsdi_recv(int fd, void *to, size_t n, int flags);
ssize_t rdsdi_send(int fd, const void *from, size_t n, int flags);
ssize_t rdsdi_recvmsg(int fd, struct msghdr *m, int flags);
ssize_t rdsdi_sendmsg(int fd, const struct msghdr *m, int flags);
int rdsdi_ppoll(struct pollfd *fds, unsigned n, const struct timespec *t);
int rdsdi_connect(int fd, const struct sockaddr *to, socklen_t n);
int rdsdi_close(int fd);

/* Texts (text.c) */

/* Sets the text of this thread and returns err. */
int rdsdi_fail(int err, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same with a text that stays; does not format. */
int rdsdi_because(int err, const char *text);
/* The same with the words of the errno alone; does not format. */
int rdsdi_errno(int err);

/* Time and waiting (wait.c) */

int64_t rdsdi_now(void); /* ns, monotonic */
int64_t rdsdi_deadline(int64_t timeout);

#define BLOCKED INT64_MIN

/*
 * What a call does, in steps: step tries and returns its result, or BLOCKED with
 * why set to what a call that does not wait answers.
 */
struct rdsdi_op {
	int64_t (*step)(struct rdsdi_op *op);
	rdsd_socket *s;
	int why;
	uint32_t bits; /* WAITS_...: what step found missing */
	bool patient; /* waits for an answer of the daemon that is due soon, even with RDSD_NOWAIT */
	bool soon;    /* nothing tells when that is over: looks again in a moment */
	bool reads;   /* events or outcomes: WAITS_EVENT is not for room */
	bool asks;    /* the answer comes by the control socket: looping is of no use */
	bool sends;   /* it is a send */
	bool waits;   /* a send that may wait for room in a pair, for a moment */
	bool looked;  /* it has */
	struct rdsdi_flow *jam; /* the congested flow that step found last */
	uint64_t jam_life;      /* of rdsdi_tx, in which it is one */
};

/* What a send says of itself to the daemon (jam.c). */
struct rdsdi_jam {
	struct rdsdi_flow *flow; /* waited for; NULL: none */
	uint32_t generation;
	uint64_t life; /* of rdsdi_tx, in which it is one */
	bool full;     /* no room was counted */
};
/* A datagram was refused at once, with tx.mu held: -ENOBUFS, f is congested; -EAGAIN, there is no room. */
void rdsdi_jam_tried(struct rdsdi_tx *tx, const struct rdsdi_flow *f, int why);
/* A call that does not wait failed for op->why. */
void rdsdi_jam_failed(struct rdsdi_op *op);
/* A call begins, or goes on, to wait for what its last step found. rdsdi_jam_end must follow. */
void rdsdi_jam_begin(struct rdsdi_jam *j, struct rdsdi_op *op);
void rdsdi_jam_end(struct rdsdi_jam *j, struct rdsdi_tx *tx);
/*
 * Where one send waits in several calls of this thread: what it says of itself as a
 * whole, so that it is counted once. Who sets it sets it for each call, takes it
 * away after it, and calls rdsdi_jam_end after the last. NULL: each call is a send.
 */
extern _Thread_local struct rdsdi_jam *rdsdi_jam_whole;

/* Runs op until it is done or the time is over. */
int64_t rdsdi_run(struct rdsdi_op *op, int64_t timeout);
/*
 * What a call of this thread that cannot be made twice asks after each of its sleeps, which are
 * short then: a signal may have come before the sleep, or to another thread. err: EINTR, where
 * one interrupted it. False: a handler ends the call with -EINTR. NULL: each signal that
 * interrupts a sleep does. Only with RDSD_INTERRUPTIBLE.
 */
extern _Thread_local bool (*rdsdi_interrupted)(int err);
/* What a call waits for, in words that stay: -EAGAIN has several. */
const char *rdsdi_cause(const struct rdsdi_op *op);
/* How long a call sleeps that would until then. */
int64_t rdsdi_slice(int64_t until);
/* Whether a signal ends a call after a sleep that ended with this errno, or 0. */
bool rdsdi_ends(const rdsd_socket *s, int err);

/* Sleeps while a word is what it was, until it is woken, or so long: 0, or an errno, EINTR after any signal handler. */
int rdsdi_futex_wait(_Atomic uint32_t *word, uint32_t was, int64_t until);
void rdsdi_futex_wake(_Atomic uint32_t *word);

/* Something other threads may wait for has changed, and not by the daemon's doorbell. */
void rdsdi_notify(rdsd_socket *s);
/* Ends a sleep in rdsdi_session_first. */
void rdsdi_kick(rdsd_socket *s);

int rdsdi_sleep_init(struct rdsdi_sleep *w);
void rdsdi_sleep_destroy(struct rdsdi_sleep *w);
/* The event loop's descriptor watches this link now, or does not any more. */
void rdsdi_sleep_watch(rdsd_socket *s, struct rdsdi_link *l, bool on);

/* Sessions (session.c) */

extern unsigned rdsdi_process; /* changes in a forked child */

/* Looks at the control socket and does what is due; true when something happened. */
bool rdsdi_pump(rdsd_socket *s);
/* rdsdi_pump when it was not called for a while: calls that succeed notice a dead daemon by it. */
void rdsdi_check(rdsd_socket *s);
struct rdsdi_link *rdsdi_link_get(rdsd_socket *s);
void rdsdi_link_put(struct rdsdi_link *l);
int64_t rdsdi_session_due(rdsd_socket *s);
int rdsdi_session_first(rdsd_socket *s, int64_t timeout);
void rdsdi_session_close(rdsd_socket *s);
/* control.c, all with ctl.mu held. Sends a message: 0, -EAGAIN, or why it cannot be sent. */
int rdsdi_control_send(struct rdsdi_link *l, const uint8_t *message, size_t n);
/* Reads the next message: 1, 0 when there is none, -ESHUTDOWN at the end, -EPROTO, -ENOMEM. */
int rdsdi_control_next(rdsd_socket *s, struct rdsdi_server *m);
/* Forgets pieces and descriptors of the connection before. */
void rdsdi_control_reset(struct rdsdi_ctl *c);
/* Closes the descriptors that the last message has brought. */
void rdsdi_control_close_fds(struct rdsdi_ctl *c);
/* ask.c: sends Monitor when it is due. */
void rdsdi_monitor(rdsd_socket *s);
/* err, what a send to a destination ended with, with the daemon's words where it does not send there. */
int64_t rdsdi_explain_time(int64_t timeout);
int64_t rdsdi_explain(rdsd_socket *s, const rdsd_addr *to, int64_t err, int64_t timeout);
/* How long an attempt to bind may take, but for the first of rdsd_bind, which has its caller's time. Tests shorten it. */
extern _Atomic int64_t rdsdi_attempt_timeout;
/* An attempt to bind that failed so may succeed later. */
bool rdsdi_worth_retry(int err);
/* Why a call cannot be made now: 0, or what rdsdi_errno or rdsdi_fail returned. */
int rdsdi_usable(const rdsd_socket *s);
int rdsdi_over(rdsd_socket *s);
int rdsdi_away(rdsd_socket *s);

/* Sides */

int rdsdi_tx_start(rdsd_socket *s, struct rdsdi_link *l);
void rdsdi_tx_stop(rdsd_socket *s, uint8_t why);
void rdsdi_tx_destroy(struct rdsdi_tx *tx);
/* Takes in events, with tx.mu held; true when there were any. */
bool rdsdi_events(rdsd_socket *s);
/* Whether one more can be added: made ahead. */
bool rdsdi_outcome_room(struct rdsdi_tx *tx);
void rdsdi_outcome_add(struct rdsdi_tx *tx, uint64_t tag, uint32_t n, uint8_t kind, uint8_t reason, uint16_t error);
static inline bool rdsdi_outcomes_full(const struct rdsdi_tx *tx)
{
	return tx->outcome_n >= MAX_OUTCOMES;
}
void rdsdi_changes_lost(struct rdsdi_tx *tx);
void rdsdi_change_note(struct rdsdi_tx *tx, const rdsd_addr *addr, bool congested);

/* flow.c, all with tx.mu held but the first. */

/* An address in its one form: IPv4 not in IPv6 clothes, unused bytes 0. -EDESTADDRREQ when none can be sent to. */
int rdsdi_addr_plain(const rdsd_addr *to, rdsd_addr *out);

/*
 * The flow to a destination: 0; -EINPROGRESS, the daemon was asked and has not
 * looked yet; -EAGAIN, all flows or the ring are in use; -EDESTADDRREQ, or why
 * the daemon refuses it.
 */
int rdsdi_flow_get(rdsd_socket *s, const rdsd_addr *to, struct rdsdi_flow **flow);
/* One that is known, or NULL; in whatever form the address is. */
struct rdsdi_flow *rdsdi_flow_find(struct rdsdi_tx *tx, const rdsd_addr *to);
/* STATE_NEW, STATE_CLEAR ...; of a refused one also the errno. */
uint32_t rdsdi_flow_state(const struct rdsdi_tx *tx, const struct rdsdi_flow *f, int *error);
/* Around a pass of a batch: the daemon is asked once about a destination that it refuses. */
void rdsdi_flow_keep_refused(struct rdsdi_tx *tx, bool on);
/* Nothing is added to the flow's last descriptor any more; what it does not fill of its slot is free. */
void rdsdi_flow_close(struct rdsdi_tx *tx, struct rdsdi_flow *f);
void rdsdi_flow_close_all(struct rdsdi_tx *tx);

/* The flow's last descriptor does not grow any more: what was seen of its lengths (mixed.c). */
void rdsdi_mixed_learn(struct rdsdi_flow *f, const struct rdsdi_desc *d);

/* A call was refused because the flow is congested: watchers are to hear when it is clear. */
void rdsdi_flow_refused(struct rdsdi_tx *tx, struct rdsdi_flow *f);
/* Tells the watchers of the refused flows that are clear by now; true when others are left. */
bool rdsdi_flow_cleared(struct rdsdi_tx *tx);
/* The daemon has told of a change; false when the watchers know of it already. */
bool rdsdi_flow_changed(struct rdsdi_tx *tx, const rdsd_addr *to, bool congested);

/* desc.c, all with tx.mu held. */

/* A new one and its cookie; NULL when there are MAX_DESCS. */
struct rdsdi_desc *rdsdi_desc_new(struct rdsdi_tx *tx, uint32_t *cookie);
/* That of a cookie, NULL when there is none. */
struct rdsdi_desc *rdsdi_desc_of(const struct rdsdi_tx *tx, uint32_t cookie);
void rdsdi_desc_free(struct rdsdi_tx *tx, struct rdsdi_desc *d);
/* Marks count datagrams from the at-th on as decided; false when one of them was already, or memory is out. */
bool rdsdi_desc_decide(struct rdsdi_desc *d, uint32_t at, uint32_t count);
bool rdsdi_desc_decided(const struct rdsdi_desc *d, uint32_t at);

/* ring.c, all with tx.mu held. */

bool rdsdi_ring_room(rdsd_socket *s);
/* Writes the next descriptor; the caller has looked for room. publish shows it. */
void rdsdi_ring_put(struct rdsdi_tx *tx, uint64_t word, uint64_t tag, uint64_t slot, const struct rdsdi_flow *f,
		    uint32_t cookie, uint32_t flags);
void rdsdi_publish(struct rdsdi_tx *tx);
static inline _Atomic uint64_t *rdsdi_ring_word(const struct rdsdi_tx *tx, uint64_t entry)
{
	return at64(tx->reg, tx->reg->send_ring + (entry & (tx->reg->send_n - 1)) * SEND_SIZE);
}

/* pair.c */

/* Maps what was offered and touches nothing of it: it is not sealed yet. NULL: it is none, or there is no memory. */
struct rdsdi_pair *rdsdi_pair_map(const struct rdsdi_server *m, const int *fds, const rdsd_addr *local);
void rdsdi_pair_unref(struct rdsdi_pair *p);

/* With ctl.mu held, while there is a link: */


/* What the daemon says of a pair. */
void rdsdi_pair_step(rdsd_socket *s, const struct rdsdi_server *m);
/* There is room for what a step has said. */
bool rdsdi_pairs_room(const struct rdsdi_ctl *c);
/* Lets go of those that are closed and read. */
void rdsdi_pairs_sweep(rdsd_socket *s);
/* Tells the daemon how far they are. */
void rdsdi_pairs_say(struct rdsdi_ctl *c);
/* The link is gone. */
void rdsdi_pairs_forget(struct rdsdi_ctl *c);

/* pair_ends.c. With tx.mu held: nothing is put any more. */
void rdsdi_pairs_stop(struct rdsdi_tx *tx);

/*
 * With rx.mu held. Makes the next record that may be taken when so many
 * descriptors were, the current descriptor: 1, 0 when there is none, -ENOBUFS when
 * too much is lent (lends: this is to be), -ENOMEM.
 */
int rdsdi_pair_next(struct rdsdi_rx *rx, uint64_t taken, bool lends);
/* The same of what one source has put there before it sent what is next in the ring. */
int rdsdi_pair_before(struct rdsdi_rx *rx, const rdsd_addr *from, bool lends);
bool rdsdi_pairs_ready(struct rdsdi_region *r, uint64_t taken);
/* Whether one that the daemon has closed is empty. */
bool rdsdi_pair_read_out(struct rdsdi_pair *p, uint64_t placed);
/* Nothing more gets in. */
void rdsdi_pairs_shut(struct rdsdi_region *r);

/* With sleep.mu held: the senders are to have this reader rung, or not. */
void rdsdi_pairs_sleep(struct rdsdi_region *r, bool on);

void rdsdi_pairs_free(struct rdsdi_region *r);
/* rdsdi_lease_drop for the last datagram of one that came by a pair. */
void rdsdi_lease_own_drop(struct rdsdi_lease *l);

/* Whether rdsdi_rx_start would find room now: 0, or why not. While there is no daemon. */
int rdsdi_rx_room(rdsd_socket *s);
int rdsdi_rx_start(rdsd_socket *s, struct rdsdi_link *l);
void rdsdi_rx_stop(rdsd_socket *s);
void rdsdi_rx_destroy(rdsd_socket *s);
/*
 * The parts of a request, for bindings that wait in pieces: begin before the
 * send, wait any number of times after it, end exactly once. End returns 0 and
 * the reply, which is to be released, or cancels what was sent and returns
 * result, why there is none.
 */
struct rdsdi_request {
	struct rdsdi_op op;
	struct rdsdi_waiter w;
	bool sent;
	bool late; /* set by end: the reply has not come and may still come */
};
void rdsdi_request_begin(struct rdsdi_request *q, rdsd_socket *s, const rdsd_addr *to);
int64_t rdsdi_request_wait(struct rdsdi_request *q, int64_t timeout);
int64_t rdsdi_request_end(struct rdsdi_request *q, int64_t result, rdsd_msg *reply);

size_t rdsdi_copy_out(const rdsd_msg *m, void *buf, size_t size, rdsd_addr *from);

/* Reply ports (request.c) */

void rdsdi_requests_init(struct rdsdi_requests *r);
/* Wakes and ends the requests of a socket that was shut down. */
void rdsdi_requests_shutdown(struct rdsdi_requests *r);
/* Closes the ports; no request is under way. forked: in a child, where locks may be held for ever. */
void rdsdi_requests_destroy(struct rdsdi_requests *r, bool forked);

/* What a socket binds is here before it waits for the daemon, and is not any more (NULL): where it is over, that ends the wait. */
void rdsdi_requests_begin(struct rdsdi_requests *r, rdsd_socket *s);

/* client.c: rdsd_bind with options that were checked. of: it is a reply port of these. */
int rdsdi_bind(rdsd_client *client, const rdsd_addr *local, const rdsd_bind_options *o, struct rdsdi_requests *of,
	       rdsd_socket **sock);

/* Something can be received, with rx.mu held. */
bool rdsdi_rx_ready(rdsd_socket *s);
bool rdsdi_rx_starved(struct rdsdi_rx *rx);
/* rdsd_recv_batch for who copies and releases at once: it waits where the other answers that what was lent is in the way. */
ssize_t rdsdi_recv_copied(rdsd_socket *s, rdsd_msg *msgs, size_t n, int64_t timeout);
/* The same for one datagram of at most size bytes: 1. A larger one is left where it is: -EMSGSIZE. */
ssize_t rdsdi_recv_fitting(rdsd_socket *s, rdsd_msg *msg, size_t size, int64_t timeout);

static inline bool addr_equal(const rdsd_addr *a, const rdsd_addr *b)
{
	uint64_t x[2], y[2];
	uint32_t p, q;

	memcpy(x, a, 16);
	memcpy(y, b, 16);
	memcpy(&p, (const uint8_t *)a + 16, 4);
	memcpy(&q, (const uint8_t *)b + 16, 4);
	return ((x[0] ^ y[0]) | (x[1] ^ y[1]) | (p ^ q)) == 0;
}

#endif
