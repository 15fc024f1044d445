/*
 * A small daemon inside a test: it serves rings as docs/shm.md has it, between
 * the sockets that are bound to it, in one thread. A test may hold its hand at
 * any place, or reach into its regions.
 */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"
#include "rdsd.h"

#define FAKE_SOCKETS 48
#define FAKE_POSTS 32768

struct fake_sizes { /* 0: defaults */
	uint32_t flows, sends, events, recvs, releases;
	uint64_t send_arena, recv_arena;
};

/* A descriptor the fake has taken and not finished. */
struct fake_post {
	struct fake_post *next;
	uint64_t tag, slot;
	uint32_t cookie, count, bytes, kind, flow;
	rdsd_addr to;
	bool placed;         /* or nobody is there: only the outcome is missing */
	uint8_t kind_of_end; /* of outcome */
	uint32_t told;       /* datagrams, with split */
	uint8_t *body; /* as it was when it was claimed */
};

struct fake_socket {
	bool used, bound;
	int control, bell_daemon, bell_client, memfd, memfd_daemon;
	int alarm; /* the other end of bell_client */
	struct rdsdi_region r; /* the daemon's own mapping and offsets; no leases */
	rdsd_addr local;
	uint64_t send_head, event_tail, recv_tail, release_head;
	struct rdsdi_arena arena;
	uint32_t *sizes; /* of each unit of the receive arena: bytes of the slot that begins there */
	uint64_t held;   /* bytes unreleased */
	uint64_t wanted; /* the word that says so */
	bool starved;    /* something found no room since the last release */
	bool congested, watch;
	uint64_t flush_id, flush_until;    /* until: 0 for ever */
	bool flushing;
	struct fake_post *posts, **posts_end;
	uint64_t taken, datagrams;         /* descriptors and datagrams taken */
	uint64_t opens;                    /* destinations looked at */
	uint64_t mixed;                    /* of the descriptors */
	uint64_t out_now, datagrams_now;   /* of these, unfinished */
};

struct fake {
	pthread_mutex_t mu; /* guards all of it, recursive; the thread holds it while it works */
	pthread_t thread;
	char path[64];
	int listener, stop;
	uint64_t instance;
	struct fake_sizes sizes;
	uint16_t next_port;

	_Atomic bool hold_sends;    /* takes no descriptors (flows are looked at only by them) */
	_Atomic bool hold_outcomes; /* takes them, and nothing more happens */
	_Atomic bool split;         /* outcomes one by one, the last datagram first */
	_Atomic bool unwatched;     /* tells of no congestion: the Monitor is still on its way */
	_Atomic bool mute;          /* accepts connections and says nothing */
	_Atomic int refuse;         /* errno that Bind is answered with */
	_Atomic int taken;          /* a port that somebody else has */
	_Atomic bool grants;        /* a region, before that */
	_Atomic bool no_rings;      /* Bound without rings */
	_Atomic bool no_mixed;      /* knows no mixed trains, as older daemons */
	void (*_Atomic spoil)(struct fake_socket *s); /* changes a region before it is handed out */
	_Atomic unsigned gone;      /* pairs that clients have no use for */
	_Atomic unsigned missed;    /* work that nobody rang for */
	_Atomic unsigned binds;     /* messages Bind so far */
	struct fake_socket sockets[FAKE_SOCKETS];
};

struct fake *fake_start(const char *path, const struct fake_sizes *sizes);
void fake_stop(struct fake *f);
/* As a daemon that is killed: all connections end at once. The listener goes on. */
void fake_kill(struct fake *f);
/* Closes one socket with Closing. */
void fake_dismiss(struct fake *f, uint16_t port, int error, const char *text);
/* With f->mu held: */
struct fake_socket *fake_at(struct fake *f, uint16_t port);
void fake_offer(struct fake *f, uint16_t port); /* a pair, of files that are none */
void fake_event(struct fake_socket *s, const uint8_t *event); /* 64 bytes; publishes and rings */
/* Without it: a socket is bound there; somebody watches congestion there. */
bool fake_bound(struct fake *f, uint16_t port);
bool fake_watched(struct fake *f, uint16_t port);
void fake_wake(struct fake *f); /* without mu too */
void fake_lock(struct fake *f);
void fake_unlock(struct fake *f); /* and has it look at everything */

/* Tests */

#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fprintf(stderr, "%s:%d: not true: %s (last error: %s)\n", __FILE__, __LINE__, #what, rdsd_errmsg()); \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define CHECK_IS(got, want)                                                                                            \
	do {                                                                                                           \
		long long got_ = (long long)(got), want_ = (long long)(want);                                          \
		if (got_ != want_) {                                                                                   \
			fprintf(stderr, "%s:%d: %s is %lld, not %lld (last error: %s)\n", __FILE__, __LINE__, #got,    \
				got_, want_, rdsd_errmsg());                                                           \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

struct test {
	const char *name;
	void (*run)(void);
};

/* What stands in /proc/self/fd: the same for as many descriptors. */
int open_fds(void);

/* Runs those whose name contains the argument, prints "ok name" for each. */
int run_tests(int argc, char **argv, const struct test *tests, size_t n);

#endif
