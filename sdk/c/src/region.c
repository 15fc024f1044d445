#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* Without them a daemon could make the region shorter than what was checked. */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

static pthread_mutex_t all_mu = PTHREAD_MUTEX_INITIALIZER;
static struct rdsdi_region *all; /* that this process has mapped; guarded by all_mu */

static uint32_t crc32c(const uint8_t *p, size_t n)
{
	uint32_t crc = ~UINT32_C(0);

	while (n--) {
		crc ^= *p++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (UINT32_C(0x82f63b78) & (UINT32_C(0) - (crc & 1)));
	}
	return ~crc;
}

static uint32_t get32(const uint8_t *h, unsigned off)
{
	uint32_t v;

	memcpy(&v, h + off, sizeof v);
	return v;
}

static uint64_t get64(const uint8_t *h, unsigned off)
{
	uint64_t v;

	memcpy(&v, h + off, sizeof v);
	return v;
}

static bool power(uint64_t v)
{
	return v && !(v & (v - 1));
}

/* inside says whether n entries of size bytes from off on lie between from and to. */
static bool inside(uint64_t from, uint64_t to, uint64_t off, uint64_t n, uint64_t size)
{
	return off % 64 == 0 && off >= from && off <= to && n <= (to - off) / size;
}

/* ours and daemons say whether they lie, behind the words, in our part, or in the daemon's. */
static bool ours(const struct rdsdi_region *r, uint64_t off, uint64_t n, uint64_t size)
{
	return inside(SHM_FIXED, r->daemon_part, off, n, size);
}

static bool daemons(const struct rdsdi_region *r, uint64_t off, uint64_t n, uint64_t size)
{
	return inside(r->daemon_part, r->bytes, off, n, size);
}

/* check reads the header once, into r, and says what is wrong with it. */
static const char *check(struct rdsdi_region *r)
{
	uint8_t h[SHM_HEADER];

	memcpy(h, r->base, sizeof h);
	if (memcmp(h + HDR_MAGIC, SHM_MAGIC, 8))
		return "no magic";
	if (get32(h, HDR_VERSION) != SHM_VERSION)
		return "another version";
	if (get32(h, HDR_HEADER_BYTES) != SHM_HEADER)
		return "a header of another size";
	if (get32(h, HDR_CRC) != crc32c(h, HDR_CRC))
		return "a wrong checksum";
	if (get64(h, HDR_REGION_BYTES) != r->bytes)
		return "another size than was said";
	if (get64(h, HDR_DAEMON_PART) != r->daemon_part)
		return "its parts divided otherwise than it was passed";
	r->instance = get64(h, HDR_INSTANCE);
	r->local.family = h[HDR_FAMILY];
	memcpy(&r->local.port, h + HDR_LOCAL_PORT, 2);
	memcpy(r->local.ip, h + HDR_LOCAL_IP, r->local.family == 4 ? 4 : 16);
	r->max_datagram = get32(h, HDR_MAX_DATAGRAM);
	r->sndbuf = get64(h, HDR_SNDBUF);
	r->rcvbuf = get64(h, HDR_RCVBUF);
	r->flows = get32(h, HDR_FLOWS);
	r->send_n = get32(h, HDR_SEND_ENTRIES);
	r->event_n = get32(h, HDR_EVENT_ENTRIES);
	r->recv_n = get32(h, HDR_RECV_ENTRIES);
	r->release_n = get32(h, HDR_RELEASE_ENTRIES);
	r->takes = get32(h, HDR_TAKES);
	r->flow_table = get64(h, HDR_FLOW_TABLE);
	r->flow_states = get64(h, HDR_FLOW_STATES);
	r->send_ring = get64(h, HDR_SEND_RING);
	r->event_ring = get64(h, HDR_EVENT_RING);
	r->recv_ring = get64(h, HDR_RECV_RING);
	r->release_ring = get64(h, HDR_RELEASE_RING);
	r->send_arena = get64(h, HDR_SEND_ARENA);
	r->send_arena_bytes = get64(h, HDR_SEND_ARENA_BYTES);
	r->recv_arena = get64(h, HDR_RECV_ARENA);
	r->recv_arena_bytes = get64(h, HDR_RECV_ARENA_BYTES);
	if (r->local.family != 4 && r->local.family != 6)
		return "an address of no family";
	if (r->max_datagram > RDSD_MAX_DATAGRAM)
		return "datagrams over 1 MiB";
	if (!power(r->flows) || r->flows > 1u << 24)
		return "a flow table of no sensible size";
	if (!power(r->send_n) || !power(r->event_n) || !power(r->recv_n) || !power(r->release_n))
		return "a ring whose size is no power of two";
	if (r->release_n < r->recv_n)
		return "a release ring smaller than the receive ring";
	if (!power(r->send_arena_bytes) || !power(r->recv_arena_bytes))
		return "an arena whose size is no power of two";
	if (!ours(r, r->flow_table, r->flows, FLOW_SIZE) || !daemons(r, r->flow_states, r->flows, 8) ||
	    !ours(r, r->send_ring, r->send_n, SEND_SIZE) || !daemons(r, r->event_ring, r->event_n, EVENT_SIZE) ||
	    !daemons(r, r->recv_ring, r->recv_n, RECV_SIZE) || !ours(r, r->release_ring, r->release_n, 8) ||
	    !ours(r, r->send_arena, r->send_arena_bytes, 1) || !daemons(r, r->recv_arena, r->recv_arena_bytes, 1))
		return "a part that lies outside";
	return NULL;
}

int64_t rdsdi_part_size(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	return seals >= 0 && (seals & SEALS) == SEALS && !fstat(fd, &st) ? (int64_t)st.st_size : -1;
}

/* map_parts maps one behind the other: ours to write, the daemon's to read. MAP_FAILED with errno. */
static void *map_parts(int ours_fd, uint64_t split, int daemons_fd, uint64_t bytes)
{
	uint8_t *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int err;

	if (base == MAP_FAILED)
		return base;
	if (mmap(base, split, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ours_fd, 0) != MAP_FAILED &&
	    mmap(base + split, bytes - split, PROT_READ, MAP_SHARED | MAP_FIXED, daemons_fd, 0) != MAP_FAILED)
		return base;
	err = errno;
	munmap(base, bytes);
	errno = err;
	return MAP_FAILED;
}

int rdsdi_region_map(int ours_fd, int daemons_fd, uint64_t bytes, struct rdsdi_region **reg)
{
	int64_t split = rdsdi_part_size(ours_fd), rest = rdsdi_part_size(daemons_fd);
	struct rdsdi_region *r;
	void *base;

	if (split < 0 || rest < 0)
		return rdsdi_fail(-EPROTO, "the region of the daemon is no sealed memfd");
	if (split < (int64_t)SHM_FIXED || split % SHM_PART || !rest || rest % SHM_PART || (uint64_t)split + (uint64_t)rest != bytes)
		return rdsdi_fail(-EPROTO, "the daemon announced a region of %llu bytes and passed parts of %lld and %lld",
				  (unsigned long long)bytes, (long long)split, (long long)rest);
	r = calloc(1, sizeof *r);
	if (!r)
		return rdsdi_errno(-ENOMEM);
	base = map_parts(ours_fd, (uint64_t)split, daemons_fd, bytes);
	if (base == MAP_FAILED) {
		int err = -errno;

		free(r);
		return rdsdi_fail(err, "mapping a region of %llu bytes: %s", (unsigned long long)bytes, strerror(-err));
	}
	madvise(base, bytes, MADV_DONTFORK); /* a child must not write into its parent's rings */
	r->base = base;
	r->bytes = bytes;
	r->daemon_part = (uint64_t)split;
	rdsdi_region_touch(r, 0, SHM_FIXED);
	r->bell = r->doorbells[0] = r->doorbells[1] = -1;
	r->process = rdsdi_process;
	atomic_init(&r->refs, 1);
	pthread_mutex_init(&r->mu, NULL);
	pthread_mutex_lock(&all_mu);
	r->all_next = all;
	if (all)
		all->all_prev = r;
	all = r;
	pthread_mutex_unlock(&all_mu);
	*reg = r;
	return 0;
}

/*
 * The daemon takes nothing that its client has not touched: it would pay for the
 * pages. What has been once stays.
 */
void rdsdi_region_touch(const struct rdsdi_region *r, uint64_t from, uint64_t to)
{
	for (uint64_t at = from; at < to; at += SHM_TOUCH)
		(void)*(const volatile uint8_t *)(r->base + at);
}

int rdsdi_region_begin(struct rdsdi_region *r)
{
	const char *wrong = check(r);

	if (wrong)
		return rdsdi_fail(-EPROTO, "the region of the daemon has %s", wrong);
	r->leases = calloc(r->release_n, sizeof *r->leases);
	return r->leases ? 0 : rdsdi_errno(-ENOMEM);
}

static void close_doorbells(struct rdsdi_region *r)
{
	for (int i = 0; i < 2; i++) {
		if (r->doorbells[i] >= 0)
			rdsdi_close(r->doorbells[i]);
		r->doorbells[i] = -1;
	}
}

void rdsdi_regions_quiet(void)
{
	pthread_mutex_lock(&all_mu);
	for (struct rdsdi_region *r = all; r; r = r->all_next) {
		struct pollfd fd = {.fd = -1};

		if (load_acquire(&r->left) && r->doorbells[1] >= 0)
			fd.fd = r->doorbells[1];
		if (fd.fd >= 0 && rdsdi_ppoll(&fd, 1, &(struct timespec){0}) > 0 && fd.revents & POLLHUP)
			close_doorbells(r);
	}
	pthread_mutex_unlock(&all_mu);
}

void rdsdi_region_unref(struct rdsdi_region *r)
{
	if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1)
		return;
	rdsdi_pairs_free(r);
	if (r->process == rdsdi_process) { /* a forked child has nothing mapped there, and closed them */
		munmap(r->base, r->bytes);
		pthread_mutex_lock(&all_mu);
		if (r->all_prev)
			r->all_prev->all_next = r->all_next;
		else
			all = r->all_next;
		if (r->all_next)
			r->all_next->all_prev = r->all_prev;
		close_doorbells(r); /* last: the daemon concludes that nobody reads the region */
		pthread_mutex_unlock(&all_mu);
	}
	pthread_mutex_destroy(&r->mu);
	free(r->leases);
	free(r);
}

void rdsdi_regions_hold(void)
{
	pthread_mutex_lock(&all_mu);
}

void rdsdi_regions_go_on(bool leave)
{
	for (; leave && all; all = all->all_next)
		close_doorbells(all);
	pthread_mutex_unlock(&all_mu);
}

void rdsdi_ring(const struct rdsdi_region *reg, int bell, uint32_t news)
{
	static const uint64_t one = 1; /* of which a socket takes a byte */
	_Atomic uint32_t *sleeps = at32(reg, W_DAEMON_SLEEPS);
	ssize_t n;

	if (bell < 0 || !(atomic_load(sleeps) & news) || !atomic_exchange(sleeps, 0))
		return;
	n = rdsdi_send(bell, &one, 1, MSG_DONTWAIT | MSG_NOSIGNAL); /* EAGAIN: it has rung often enough */
	if (n < 0 && errno == ENOTSOCK) /* an older daemon's eventfd */
		n = rdsdi_write(bell, &one, sizeof one);
	(void)n;
}

/*
 * The release ring has room: no descriptor is taken while the daemon has not
 * taken back enough of those before it (next_desc in recv.c).
 */
void rdsdi_lease_drop(struct rdsdi_lease *l, uint32_t refs)
{
	struct rdsdi_region *r = l->reg;

	if (r->process != rdsdi_process || atomic_fetch_sub_explicit(&l->refs, refs, memory_order_acq_rel) != refs)
		return;
	if (l->own) {
		rdsdi_lease_own_drop(l);
		return;
	}
	pthread_mutex_lock(&r->mu);
	r->live--;
	if (r->bell >= 0) {
		store_relaxed(at64(r, r->release_ring + (r->release_tail & (r->release_n - 1)) * 8), l->slot);
		atomic_store(at64(r, W_RELEASE_TAIL), ++r->release_tail);
		rdsdi_ring(r, r->bell, DAEMON_WAITS_ROOM);
	}
	l->next = r->free;
	r->free = l;
	pthread_mutex_unlock(&r->mu);
	rdsdi_region_unref(r);
}
