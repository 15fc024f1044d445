/*
 * rdsd.h - ordered, reliable datagrams to any port of any node, through the
 * rdsd daemon of this node and its shared-memory rings.
 *
 *	rdsd_client_open(NULL, &client);                  // $RDSD_SOCKET, else /run/rdsd/rdsd.sock
 *	rdsd_addr_parse("10.0.0.1:0", &local);
 *	rdsd_bind(client, &local, NULL, &sock);           // a socket: local address and port
 *	rdsd_send(sock, &to, "hello", 5, NULL, RDSD_FOREVER);
 *	rdsd_recv(sock, buf, sizeof buf, &from, RDSD_FOREVER);
 *
 * What a call promises. A send that returns 0 has been accepted: the datagram
 * arrives once and in order, or its outcome says why not. What is refused was
 * not accepted. There is nothing in between.
 *
 * Errors. Calls return 0 or a count, or a negative errno. rdsd_errmsg() tells
 * in words what the last failed call of this thread met. To be expected in
 * running:
 *
 *	-EAGAIN      the send buffer is full; nothing is there to receive
 *	-ENOBUFS     the destination port is congested
 *	-EMSGSIZE    the datagram is larger than the send buffer or 1 MiB
 *	-ETIMEDOUT   the time of the call is over
 *	-ESHUTDOWN   there is no daemon now (the socket binds itself again)
 *	-EBADF       the socket was shut down, or belongs to the process that forked
 *	-EINTR       a signal handler ran (sockets bound with RDSD_INTERRUPTIBLE)
 *
 * Time. Timeouts are nanoseconds: RDSD_NOWAIT (0) does not wait, a negative
 * one (RDSD_FOREVER) waits for ever. A call that does not wait answers -EAGAIN
 * (or -ENOBUFS, -ESHUTDOWN) where one that waited answers -ETIMEDOUT. The
 * first send to a destination, and calls that ask the daemon something, wait
 * for its answer even then, at most 5 s.
 *
 * Threads. Every call but rdsd_close and rdsd_client_close may be made by any
 * number of threads on one socket at the same time. The library starts none.
 * A thread that is cancelled (pthread_cancel) in a call ends behind it: no call
 * is a cancellation point, and rdsd_shutdown ends those that wait.
 *
 * fork. A socket belongs to the process that bound it. In a child its memory
 * is not mapped and its descriptors are closed; every call returns -EBADF and
 * the parent's socket is not touched. rdsd_close frees what the child
 * inherited. Descriptors are close-on-exec.
 *
 * The daemon restarts. The socket binds itself again to the same port, inside
 * the calls that are made on it, with pauses of 20 ms rising to 2 s. What was
 * received before is still handed out. What was accepted and undecided has the
 * outcome RDSD_UNKNOWN, "daemon restarted". Calls that wait go on waiting; those
 * that do not return -ESHUTDOWN. With RDSD_NO_RECONNECT the socket ends instead.
 *
 * rdsd(3) and docs/c.md are the manual. Linux, 64-bit little-endian machines.
 */
#ifndef RDSD_H
#define RDSD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; rdsd_version() is that of the library. */
#define RDSD_VERSION_MAJOR 1
#define RDSD_VERSION_MINOR 0

#if defined(__GNUC__)
#define RDSD_API __attribute__((visibility("default")))
#else
#define RDSD_API
#endif

#define RDSD_NOWAIT INT64_C(0)
#define RDSD_FOREVER INT64_C(-1)
/* Timeouts from milliseconds and seconds. */
#define RDSD_MS(n) ((int64_t)(n) * INT64_C(1000000))
#define RDSD_SEC(n) ((int64_t)(n) * INT64_C(1000000000))

#define RDSD_MAX_DATAGRAM 1048576 /* bytes */
#define RDSD_MAX_LABEL 64         /* bytes */

typedef struct rdsd_client rdsd_client;
typedef struct rdsd_socket rdsd_socket;

/* Addresses */

/* An RDS address and port. Two are equal when all their bytes are. */
typedef struct rdsd_addr {
	uint8_t ip[16];  /* network order; IPv4: the first 4, the others 0 */
	uint16_t port;   /* host order */
	uint8_t family;  /* 4 or 6 */
	uint8_t zero;    /* 0 */
} rdsd_addr;

/* Room for the longest text of an address, with its end. */
#define RDSD_ADDRSTRLEN 56

/*
 * "1.2.3.4:5", "[::1]:5". Numbers only: no names are looked up. An IPv4 address
 * in IPv6 clothes ("[::ffff:1.2.3.4]:5") becomes IPv4. Returns 0 or -EINVAL.
 */
RDSD_API int rdsd_addr_parse(const char *text, rdsd_addr *addr);

/* Writes the text of addr, at most size bytes with the ending 0, and returns text. */
RDSD_API char *rdsd_addr_format(const rdsd_addr *addr, char *text, size_t size);

/* From sockaddr_in and sockaddr_in6. -EAFNOSUPPORT for others, -EINVAL when len is too short. */
RDSD_API int rdsd_addr_from_sockaddr(const struct sockaddr *from, socklen_t len, rdsd_addr *addr);

/* To sockaddr_in or sockaddr_in6; returns the length of what it is, or -EINVAL. */
RDSD_API int rdsd_addr_to_sockaddr(const rdsd_addr *addr, struct sockaddr_storage *to);

/* 1 when both are the same address and port. */
RDSD_API int rdsd_addr_equal(const rdsd_addr *a, const rdsd_addr *b);

/* Clients and sockets */

/*
 * Names the daemon to talk to: the path of its Unix socket, also as
 * "unix:///path"; "@name" is an abstract one. NULL or "": $RDSD_SOCKET, else
 * /run/rdsd/rdsd.sock. The rings are behind the same path with ".rings" added.
 * Nothing is opened: that the daemon is absent shows at the first rdsd_bind.
 * Returns 0, -EINVAL (a target the library cannot reach), -ENAMETOOLONG, -ENOMEM.
 */
RDSD_API int rdsd_client_open(const char *target, rdsd_client **client);

/* Closes what sockets are left, then the client. NULL is nothing. */
RDSD_API void rdsd_client_close(rdsd_client *client);

/* Bits of rdsd_bind_options.flags. */
#define RDSD_OUTCOMES 1u      /* one outcome for each accepted datagram, to be read with rdsd_outcomes */
#define RDSD_NO_RECONNECT 2u  /* when the daemon goes away the socket ends: every call returns -ESHUTDOWN */
#define RDSD_INTERRUPTIBLE 4u /* a signal handler ends a wait with -EINTR */

/*
 * Set size to sizeof(rdsd_bind_options) and what is not wanted to 0;
 * RDSD_BIND_OPTIONS_INIT does both.
 */
typedef struct rdsd_bind_options {
	size_t size;
	uint64_t send_buffer; /* SndBuf: bytes accepted and undecided before EAGAIN; 0: the daemon's default */
	uint64_t recv_buffer; /* RcvBuf: bytes unread before the port is congested; 0: the daemon's default */
	const char *label;    /* shown to administrators, at most RDSD_MAX_LABEL bytes; NULL: none */
	uint32_t flags;
	uint32_t zero;
	int64_t timeout;      /* ns rdsd_bind waits for the daemon's answer; 0: 10 s */
	int64_t spin;         /* ns a wait yields before it sleeps; 0: 50,000; below 0, or with one processor: sleep at once */
} rdsd_bind_options;

#define RDSD_BIND_OPTIONS_INIT {sizeof(rdsd_bind_options), 0, 0, NULL, 0, 0, 0, 0}

/*
 * Opens a socket at a local address of the daemon; port 0: any free one.
 * opt NULL: all defaults. Returns 0, or: -EADDRINUSE, -EADDRNOTAVAIL, -EACCES,
 * -EMFILE, -ENOMEM, -ESHUTDOWN (no daemon there), -EPROTONOSUPPORT (a daemon
 * without rings of this layout), -ETIMEDOUT, -EINVAL.
 */
RDSD_API int rdsd_bind(rdsd_client *client, const rdsd_addr *local, const rdsd_bind_options *opt, rdsd_socket **sock);

/*
 * Ends the socket for all threads: calls that wait, and all later ones, return
 * -EBADF. The daemon has let go of the port when this returns, unless it did not
 * answer within 2 s. What was accepted and not yet sent may be dropped:
 * rdsd_flush first where that matters. Twice is no error.
 */
RDSD_API int rdsd_shutdown(rdsd_socket *sock);

/*
 * rdsd_shutdown, and frees the socket. No other thread may be in a call on it.
 * Messages that are still out stay valid until they are released, and the memory
 * of slots until they are committed, which returns -EBADF then, or given back.
 * NULL is nothing.
 */
RDSD_API void rdsd_close(rdsd_socket *sock);

typedef struct rdsd_info {
	rdsd_addr local;
	uint64_t send_buffer;     /* bytes, as the daemon granted it */
	uint64_t recv_buffer;
	uint64_t daemon_instance; /* changes with every start of the daemon */
	uint32_t max_datagram;    /* bytes: the smaller of send_buffer and 1 MiB */
	uint32_t connected;       /* 1 while there is a daemon */
} rdsd_info;

/* The bound address; it stays the same over restarts of the daemon. */
RDSD_API void rdsd_local_addr(const rdsd_socket *sock, rdsd_addr *addr);
RDSD_API void rdsd_get_info(rdsd_socket *sock, rdsd_info *info);

/* Sending */

/*
 * Sends one datagram of len bytes, which are copied. Waits for room in the send
 * buffer, for a congested destination and for a daemon that is being restarted.
 * *tag, unless tag is NULL, is the name of the datagram in outcomes.
 */
RDSD_API int rdsd_send(rdsd_socket *sock, const rdsd_addr *to, const void *data, size_t len, uint64_t *tag,
		       int64_t timeout);

/* rdsd_send with RDSD_NOWAIT: -EAGAIN, -ENOBUFS or -ESHUTDOWN instead of waiting. */
RDSD_API int rdsd_try_send(rdsd_socket *sock, const rdsd_addr *to, const void *data, size_t len, uint64_t *tag);

/* One datagram of a batch. */
typedef struct rdsd_dgram {
	const void *data;
	size_t len;
	rdsd_addr to;
	int32_t error; /* set by the call: 0 accepted, or the negative errno */
	uint64_t tag;  /* set by the call for an accepted one */
} rdsd_dgram;

/*
 * Sends n datagrams, in order for each destination. Runs to one destination
 * become trains, which cost far less than single datagrams. One that is refused
 * does not stop the others, except that once a destination had no room (EAGAIN,
 * ENOBUFS) it has none for what stands behind it in this batch. Waits until all
 * are decided, or for the timeout; a congested destination holds up its own
 * datagrams alone.
 *
 * Returns how many were accepted; when that is less than n, *error (unless
 * NULL) is the error of the first refused one, otherwise 0. When none was
 * accepted returns that error itself.
 */
RDSD_API ssize_t rdsd_send_batch(rdsd_socket *sock, rdsd_dgram *dgrams, size_t n, int *error, int64_t timeout);

/*
 * Sends count datagrams of len bytes each, which stand one behind the other at
 * data, to one destination: the fastest way for many small ones. Returns how
 * many were accepted, always the first ones, or the error when none was. Their
 * tags count up from *tag (unless NULL).
 */
RDSD_API ssize_t rdsd_send_run(rdsd_socket *sock, const rdsd_addr *to, const void *data, size_t len, size_t count,
			       uint64_t *tag, int64_t timeout);

/* Room for one datagram in memory that the daemon sends from. */
typedef struct rdsd_slot {
	void *data;   /* write the payload here */
	size_t size;  /* as asked for */
	void *priv[5];
} rdsd_slot;

/*
 * Sending without a copy: reserves size bytes, which count against the send
 * buffer from now on. Waits as rdsd_send does. Ends with rdsd_commit or
 * rdsd_abort, exactly one of them.
 */
RDSD_API int rdsd_reserve(rdsd_socket *sock, const rdsd_addr *to, size_t size, rdsd_slot *slot, int64_t timeout);

/*
 * Sends the first len bytes of a slot and gives it up, whatever it returns. The
 * datagram takes its place in the order now, not when it was reserved. Returns
 * 0, -EMSGSIZE (len is more than was reserved), -ESHUTDOWN (the daemon has gone
 * since), or why the socket is over, as every call. Never waits.
 */
RDSD_API int rdsd_commit(rdsd_socket *sock, rdsd_slot *slot, size_t len, uint64_t *tag);

/* Gives a slot back unsent. */
RDSD_API void rdsd_abort(rdsd_socket *sock, rdsd_slot *slot);

/*
 * Sends one datagram and copies the answer of its destination to buf, as
 * rdsd_recv does. Returns the size of the answer.
 *
 * A request leaves from a reply port, a port of its own beside the socket's, and
 * its answer is what the destination sends to that port: no request is ever given
 * the answer to another one, whether that has given up or is still waiting, and
 * rdsd_recv sees none of them. A responder answers to where the datagram came
 * from. It sees the socket's address with a port that is not the socket's. A
 * request is not ordered with what the socket has sent before (rdsd_flush first
 * where it must come after it), and rdsd_outcomes, rdsd_flush and
 * rdsd_cancel_sent_to of the socket do not concern it. To one destination 32 are
 * under way at a time, others wait for their turn. Reply ports have the socket's
 * options, count against the user's limit of sockets and are closed with it.
 *
 * When the time is over, what is still queued of the request is cancelled.
 */
RDSD_API ssize_t rdsd_request(rdsd_socket *sock, const rdsd_addr *to, const void *data, size_t len, void *buf,
			      size_t size, int64_t timeout);

/*
 * Answers a datagram that came from there, from this socket's own port: what a
 * responder does for rdsd_request. It is rdsd_send.
 */
RDSD_API int rdsd_reply(rdsd_socket *sock, const rdsd_addr *from, const void *data, size_t len, int64_t timeout);

/* Receiving */

/*
 * Copies the next datagram to buf, at most size bytes, and returns its whole
 * length: when that is more than size, the rest is lost (as recvmsg(2) with
 * MSG_TRUNC). from may be NULL.
 */
RDSD_API ssize_t rdsd_recv(rdsd_socket *sock, void *buf, size_t size, rdsd_addr *from, int64_t timeout);

/* A received datagram, where the daemon has put it. */
typedef struct rdsd_msg {
	const void *data;
	size_t len;
	rdsd_addr from;
	uint32_t zero;
	void *lease; /* what rdsd_release gives back */
} rdsd_msg;

/*
 * Waits for at least one datagram and returns those that are there, at most n,
 * in place. They stay valid until they are given to rdsd_release, also after
 * rdsd_close; until then they count against the receive buffer, and neighbours
 * may be held with them: copy what is to be kept for long. -ENOBUFS: so many are
 * unreleased, or they lie in the arena in such a way, that nothing can be received
 * before some are; rdsd_recv, which keeps nothing, waits then for whoever has them.
 */
RDSD_API ssize_t rdsd_recv_batch(rdsd_socket *sock, rdsd_msg *msgs, size_t n, int64_t timeout);

/*
 * Gives received datagrams back, in any order, each once, from any thread, also
 * after rdsd_close. Not in a process that forked.
 */
RDSD_API void rdsd_release(rdsd_msg *msgs, size_t n);

/*
 * 1 and *size, the length of the next datagram, without taking it; 0 when none is there.
 * -ENOBUFS as rdsd_recv_batch, when so much is unreleased.
 */
RDSD_API int rdsd_peek(rdsd_socket *sock, size_t *size);

/* Outcomes */

/* What became of an accepted datagram. */
enum {
	RDSD_DELIVERED = 1, /* placed where the receiver reads it, or acknowledged by a kernel peer's TCP */
	RDSD_CANCELLED = 2, /* never left this node */
	RDSD_FAILED = 3,    /* refused: it was not delivered */
	RDSD_UNKNOWN = 4    /* left this node; nobody can say whether it was delivered */
};

/* The same outcome of the datagrams with the tags tag ... tag+count-1. */
typedef struct rdsd_outcome {
	uint64_t tag;
	uint32_t count;
	uint8_t kind;   /* RDSD_DELIVERED ... */
	uint8_t reason; /* for all but delivered; rdsd_reason_text */
	uint16_t error; /* errno of one the daemon could not send at all; else 0 */
} rdsd_outcome;

/*
 * Waits for at least one outcome and returns those that are there, at most n,
 * in the order in which they were decided, each datagram exactly once. Needs
 * RDSD_OUTCOMES (else -EINVAL). While 65,536 are unread no send is accepted
 * (-EAGAIN). After rdsd_shutdown those known by then are handed out, then -EBADF.
 */
RDSD_API ssize_t rdsd_outcomes(rdsd_socket *sock, rdsd_outcome *out, size_t n, int64_t timeout);

/* Waits until every datagram accepted before has its outcome; with RDSD_NOWAIT -EAGAIN where one has none. */
RDSD_API int rdsd_flush(rdsd_socket *sock, int64_t timeout);

typedef struct rdsd_cancelled {
	uint64_t cancelled; /* will never leave this node */
	uint64_t in_flight; /* had begun to leave; their true outcome follows */
} rdsd_cancelled;

/*
 * Drops what this socket has queued to a destination; port 0: every port of
 * that address. When it returns, nothing of it that had not begun to leave will
 * leave. result may be NULL.
 */
RDSD_API int rdsd_cancel_sent_to(rdsd_socket *sock, const rdsd_addr *to, rdsd_cancelled *result, int64_t timeout);

/* Congestion */

/* 1 when a destination refuses datagrams now, as far as this node knows, else 0. */
RDSD_API int rdsd_congested(rdsd_socket *sock, const rdsd_addr *to, int64_t timeout);

typedef struct rdsd_congestion {
	rdsd_addr addr;     /* which destination changed; family 0: none, see freed */
	uint32_t congested; /* 1: it is congested now, 0: it is clear */
	/*
	 * Bit (port mod 64) is set for groups of ports in which one was freed. All
	 * are set when events may have been missed: try every destination again.
	 */
	uint64_t freed;
} rdsd_congestion;

/*
 * on 1: congestion events from now on, of the destinations this socket has
 * sent to or was refused by, and of every update that frees a port p with bit
 * (p mod 64) of mask set. A destination that refused a call (-ENOBUFS), also the
 * first one and also before the watch, has an event when it is clear. on 0: none
 * any more.
 */
RDSD_API int rdsd_watch(rdsd_socket *sock, int on, uint64_t mask);

/* Waits for the next congestion event. -EINVAL without rdsd_watch. */
RDSD_API int rdsd_next_congestion(rdsd_socket *sock, rdsd_congestion *event, int64_t timeout);

/* Event loops */

#define RDSD_READABLE 1u   /* rdsd_recv and rdsd_recv_batch have something */
#define RDSD_WRITABLE 2u   /* the send buffer is at most half full */
#define RDSD_OUTCOME 4u    /* rdsd_outcomes has something */
#define RDSD_CONGESTION 8u /* rdsd_next_congestion has something */
#define RDSD_BORROWED 16u  /* rdsd_recv_batch answers -ENOBUFS: for a loop that keeps what it gave */

/*
 * A descriptor for poll(2), select(2) and epoll(7): readable when something may
 * have happened. Only while the socket is armed: the daemon makes a system call
 * to wake somebody only if he said that he sleeps. One round of a loop is
 *
 *	ready = rdsd_arm(sock, RDSD_READABLE | RDSD_OUTCOME);
 *	if (ready == 0)
 *		poll(rdsd_fd(sock), POLLIN), with everything else the loop waits for
 *	rdsd_disarm(sock);
 *	calls with RDSD_NOWAIT until they return -EAGAIN
 *
 * The descriptor stays the same over restarts of the daemon, and waking up may
 * mean that there is one again. Not to be read or closed. One loop for each socket.
 */
RDSD_API int rdsd_fd(rdsd_socket *sock);

/*
 * Says that a loop is about to sleep until something of what happens. Returns
 * what is there already (the socket is not armed then), 0 when the loop may
 * sleep, or the error that the calls would return.
 */
RDSD_API int rdsd_arm(rdsd_socket *sock, unsigned what);

/* Ends the sleep. Not armed is no error. */
RDSD_API void rdsd_disarm(rdsd_socket *sock);

/* Words */

/* What the last call of this thread that failed met: what, why and what would be right. Never NULL. */
RDSD_API const char *rdsd_errmsg(void);

/* The meaning of an errno here; error may be negative. */
RDSD_API const char *rdsd_strerror(int error);

/* "delivered", "cancelled", "failed", "unknown". */
RDSD_API const char *rdsd_outcome_name(int kind);

/* "no such port", "daemon restarted", ...; "" for 0. */
RDSD_API const char *rdsd_reason_text(int reason);

/* The version of the library, as "1.0". */
RDSD_API const char *rdsd_version(void);

#ifdef __cplusplus
}
#endif

#endif
