/*
 * Clients, the opening and closing of sockets, and fork.
 *
 * Every socket is in a list, so that a forked child can let go of them. The
 * child never takes a socket's locks nor touches its memory: a lock may have
 * been held by a thread that the child does not have, and the regions are not
 * mapped there. The fork itself holds the list, every ctl.mu and the list of
 * regions, which outlive sockets, so that the descriptors the child closes are
 * the right ones, and all: the daemon takes the copy of a doorbell for somebody
 * who still reads the region.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"

#define DEFAULT_TARGET "/run/rdsd/rdsd.sock"
#define SUFFIX ".rings"

unsigned rdsdi_process;

static pthread_mutex_t list_mu = PTHREAD_MUTEX_INITIALIZER;
static rdsd_socket *all; /* guarded by list_mu, as the lists of clients */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
	pthread_mutex_lock(&list_mu);
	for (rdsd_socket *s = all; s; s = s->all_next)
		pthread_mutex_lock(&s->ctl.mu);
	rdsdi_regions_hold();
}

static void unlock_all(bool leave)
{
	rdsdi_regions_go_on(leave);
	for (rdsd_socket *s = all; s; s = s->all_next)
		pthread_mutex_unlock(&s->ctl.mu);
	pthread_mutex_unlock(&list_mu);
}

static void after_fork(void)
{
	unlock_all(false);
}

static void close_in_child(int *fd)
{
	if (*fd >= 0)
		rdsdi_close(*fd);
	*fd = -1;
}

static void after_fork_in_child(void)
{
	rdsdi_process++;
	for (rdsd_socket *s = all; s; s = s->all_next) {
		if (s->ctl.link)
			close_in_child(&s->ctl.link->control);
		rdsdi_control_reset(&s->ctl);
		close_in_child(&s->sleep.kick);
		close_in_child(&s->sleep.poll_fd);
		close_in_child(&s->sleep.timer_fd);
	}
	unlock_all(true);
	all = NULL; /* the child's own sockets from here on */
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

/* find_path makes the address of the ring socket from a target. */
static int find_path(rdsd_client *c, const char *target)
{
	const char *path;
	bool abstract = false;
	size_t n;

	if (!target || !*target)
		target = getenv("RDSD_SOCKET");
	if (!target || !*target)
		target = DEFAULT_TARGET;
	path = target;
	if (!strncmp(path, "unix://", 7)) {
		path += 7;
	} else if (!strncmp(path, "unix:", 5)) {
		path += 5;
	} else if (!strncmp(path, "unix-abstract:", 14)) {
		path += 14;
		abstract = true;
	} else if (*path == '@') {
		path++;
		abstract = true;
	} else if (*path != '/' && *path != '.' && strchr(path, ':')) {
		return rdsdi_fail(-EINVAL, "target \"%.100s\": rings are for the daemon of this node; name the path of its Unix socket",
				  target);
	}
	n = strlen(path) + sizeof SUFFIX - 1;
	if (!*path)
		return rdsdi_fail(-EINVAL, "target \"%.100s\": a path is missing", target);
	if (n + 1 > SUN_PATH)
		return rdsdi_fail(-ENAMETOOLONG, "target \"%.100s...\": a path has at most %zu bytes", target,
				  SUN_PATH - sizeof SUFFIX);
	if (abstract)
		snprintf(c->path + 1, sizeof c->path - 1, "%s" SUFFIX, path);
	else
		snprintf(c->path, sizeof c->path, "%s" SUFFIX, path);
	c->path_len = n + 1; /* with the 0 at one end or the other; an abstract name has none behind */
	return 0;
}

int rdsd_client_open(const char *target, rdsd_client **client)
{
	rdsd_client *c = calloc(1, sizeof *c);
	int err;

	if (!c)
		return rdsdi_errno(-ENOMEM);
	pthread_once(&once, watch_forks);
	err = find_path(c, target);
	if (err) {
		free(c);
		return err;
	}
	*client = c;
	return 0;
}

void rdsd_client_close(rdsd_client *c)
{
	if (!c)
		return;
	for (;;) {
		rdsd_socket *s;

		pthread_mutex_lock(&list_mu);
		for (s = c->sockets; s && s->owned; s = s->next)
			; /* reply ports are closed by the socket that has them */
		pthread_mutex_unlock(&list_mu);
		if (!s)
			break;
		rdsd_close(s);
	}
	free(c);
}

static void enlist(rdsd_client *c, rdsd_socket *s)
{
	pthread_mutex_lock(&list_mu);
	s->next = c->sockets;
	if (s->next)
		s->next->prev = s;
	c->sockets = s;
	s->all_next = all;
	if (all)
		all->all_prev = s;
	all = s;
	pthread_mutex_unlock(&list_mu);
}

static void delist(rdsd_client *c, rdsd_socket *s)
{
	pthread_mutex_lock(&list_mu);
	if (s->prev)
		s->prev->next = s->next;
	else
		c->sockets = s->next;
	if (s->next)
		s->next->prev = s->prev;
	if (s->process == rdsdi_process) { /* a child has given up the list of its parent's */
		if (s->all_prev)
			s->all_prev->all_next = s->all_next;
		else
			all = s->all_next;
		if (s->all_next)
			s->all_next->all_prev = s->all_prev;
	}
	pthread_mutex_unlock(&list_mu);
}

static void destroy(rdsd_socket *s)
{
	struct rdsdi_ctl *c = &s->ctl;

	if (s->process != rdsdi_process && c->link)
		rdsdi_link_put(c->link);
	rdsdi_requests_destroy(&s->requests, s->process != rdsdi_process);
	rdsdi_control_reset(c);
	rdsdi_tx_destroy(&s->tx);
	rdsdi_rx_destroy(s);
	rdsdi_sleep_destroy(&s->sleep);
	free(c->packet);
	if (s->process == rdsdi_process) { /* a child may have inherited them locked */
		pthread_mutex_destroy(&c->mu);
		pthread_mutex_destroy(&s->tx.mu);
		pthread_mutex_destroy(&s->rx.mu);
		pthread_mutex_destroy(&s->why_mu);
	}
	free(s);
}

/* options checks what the caller gave and fills in what he left out. */
static int options(const rdsd_bind_options *opt, rdsd_bind_options *o)
{
	*o = (rdsd_bind_options)RDSD_BIND_OPTIONS_INIT;
	if (opt) {
		/* Later versions add fields at the end: a caller of this one has none of them. */
		if (opt->size != sizeof *o)
			return rdsdi_fail(-EINVAL, "options of %zu bytes: set size to sizeof(rdsd_bind_options), %zu", opt->size,
					  sizeof *o);
		*o = *opt;
	}
	if (o->flags & ~(RDSD_OUTCOMES | RDSD_NO_RECONNECT | RDSD_INTERRUPTIBLE) || o->zero)
		return rdsdi_fail(-EINVAL, "flags 0x%x: some of them do not exist", o->flags);
	if (o->label && strnlen(o->label, RDSD_MAX_LABEL + 1) > RDSD_MAX_LABEL)
		return rdsdi_fail(-EINVAL, "a label has at most %d bytes", RDSD_MAX_LABEL);
	if (!o->timeout)
		o->timeout = BIND_TIMEOUT;
	if (!o->spin)
		o->spin = SPIN_DEFAULT;
	return 0;
}

/* Where the daemon can do nothing while a wait looks, a yield and a sleep both give it the processor, and after a yield each
 * that looks has its turn first. */
static bool one_processor(void)
{
	cpu_set_t set;

	return !sched_getaffinity(0, sizeof set, &set) && CPU_COUNT(&set) == 1;
}

int rdsd_bind(rdsd_client *client, const rdsd_addr *local, const rdsd_bind_options *opt, rdsd_socket **sock)
{
	rdsd_bind_options o;
	int err = options(opt, &o);

	return err ? err : rdsdi_bind(client, local, &o, NULL, sock);
}

int rdsdi_bind(rdsd_client *client, const rdsd_addr *local, const rdsd_bind_options *o, struct rdsdi_requests *of,
	       rdsd_socket **sock)
{
	rdsd_socket *s;
	int err;

	if (local->family != 4 && local->family != 6)
		return rdsdi_fail(-EINVAL, "a local address is needed, one of the daemon's");
	s = calloc(1, sizeof *s);
	if (!s)
		return rdsdi_errno(-ENOMEM);
	s->client = client;
	s->process = rdsdi_process;
	s->flags = o->flags;
	s->replies = s->owned = of != NULL;
	s->spin = one_processor() ? -1 : o->spin;
	s->local = *local;
	s->want_send = o->send_buffer;
	s->want_recv = o->recv_buffer;
	if (o->label)
		memcpy(s->label, o->label, strnlen(o->label, RDSD_MAX_LABEL));
	rdsdi_requests_init(&s->requests);
	pthread_mutex_init(&s->ctl.mu, NULL);
	pthread_mutex_init(&s->tx.mu, NULL);
	pthread_mutex_init(&s->rx.mu, NULL);
	pthread_mutex_init(&s->why_mu, NULL);
	s->tx.bell = -1;
	s->tx.next_tag = 1;
	s->ctl.first = true;
	s->ctl.packet = malloc(PACKET_HEAD + PACKET_PIECE);
	err = rdsdi_sleep_init(&s->sleep);
	if (err || !s->ctl.packet) {
		destroy(s);
		return err ? rdsdi_fail(err, "an eventfd: %s", strerror(-err)) : rdsdi_errno(-ENOMEM);
	}
	enlist(client, s);
	if (of)
		rdsdi_requests_begin(of, s);
	err = rdsdi_session_first(s, o->timeout);
	if (of)
		rdsdi_requests_begin(of, NULL);
	if (err) {
		pthread_mutex_lock(&s->ctl.mu);
		if (s->ctl.link) {
			struct rdsdi_link *l = s->ctl.link;

			s->ctl.link = NULL;
			rdsdi_link_put(l);
		}
		pthread_mutex_unlock(&s->ctl.mu);
		delist(client, s);
		destroy(s);
		return err;
	}
	*sock = s;
	return 0;
}

/* end waits for the daemon a moment: who makes requests does not. */
static void end(rdsd_socket *s)
{
	rdsdi_requests_shutdown(&s->requests);
	rdsdi_session_close(s);
}

int rdsd_shutdown(rdsd_socket *s)
{
	int err = rdsdi_usable(s);

	if (err)
		return err;
	end(s);
	return 0;
}

void rdsd_close(rdsd_socket *s)
{
	if (!s)
		return;
	if (s->process == rdsdi_process)
		end(s);
	delist(s->client, s);
	destroy(s);
}

void rdsd_local_addr(const rdsd_socket *s, rdsd_addr *addr)
{
	*addr = s->local;
}

void rdsd_get_info(rdsd_socket *s, rdsd_info *info)
{
	memset(info, 0, sizeof *info);
	info->local = s->local;
	if (s->process != rdsdi_process)
		return;
	pthread_mutex_lock(&s->ctl.mu);
	if (s->ctl.link && s->ctl.link->reg) {
		const struct rdsdi_region *r = s->ctl.link->reg;

		info->send_buffer = r->sndbuf;
		info->recv_buffer = r->rcvbuf;
		info->daemon_instance = r->instance;
		info->max_datagram = r->sndbuf < r->max_datagram ? (uint32_t)r->sndbuf : r->max_datagram;
		info->connected = atomic_load(&s->state) == SESSION_UP;
	}
	pthread_mutex_unlock(&s->ctl.mu);
}
