#define _GNU_SOURCE
#include "fake.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void put32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }
static void put64(uint8_t *p, uint64_t v) { memcpy(p, &v, 8); }

static uint32_t crc32c(const uint8_t *p, size_t n)
{
	uint32_t crc = ~0u;

	while (n--) {
		crc ^= *p++;
		for (int i = 0; i < 8; i++)
			crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1)));
	}
	return ~crc;
}

/* Protobuf, as little as the messages of clients need. */

static uint64_t varint(const uint8_t **p)
{
	uint64_t v = 0;

	for (unsigned shift = 0;; shift += 7) {
		v |= (uint64_t)(**p & 0x7f) << shift;
		if (!(*(*p)++ & 0x80))
			return v;
	}
}

/* field finds a field of a message: its bytes and length, or its number. */
static bool field(const uint8_t *p, size_t n, unsigned want, const uint8_t **bytes, uint64_t *value)
{
	const uint8_t *end = p + n;

	while (p < end) {
		uint64_t key = varint(&p), v = varint(&p);

		if (key >> 3 == want) {
			if (bytes)
				*bytes = p;
			*value = v;
			return true;
		}
		if ((key & 7) == 2)
			p += v;
	}
	return false;
}

static bool endpoint(const uint8_t *p, size_t n, rdsd_addr *a)
{
	const uint8_t *ip;
	uint64_t len, port = 0;

	memset(a, 0, sizeof *a);
	if (!field(p, n, 1, &ip, &len) || (len != 4 && len != 16))
		return false;
	field(p, n, 2, NULL, &port);
	memcpy(a->ip, ip, len);
	a->family = len == 4 ? 4 : 6;
	a->port = (uint16_t)port;
	return true;
}

static uint8_t *put_varint(uint8_t *p, uint64_t v)
{
	for (; v >= 0x80; v >>= 7)
		*p++ = (uint8_t)(v | 0x80);
	*p++ = (uint8_t)v;
	return p;
}

static uint8_t *put_number(uint8_t *p, unsigned f, uint64_t v) { return put_varint(put_varint(p, f << 3), v); }

static uint8_t *put_bytes(uint8_t *p, unsigned f, const void *data, size_t n)
{
	p = put_varint(put_varint(p, f << 3 | 2), n);
	memcpy(p, data, n);
	return p + n;
}

/* pass sends a message, and n descriptors with it. */
static void pass(struct fake_socket *s, unsigned f, const uint8_t *body, const uint8_t *end, const int *fds, unsigned fds_n)
{
	uint8_t packet[1024] = {1}, *p = put_bytes(packet + 4, f, body, (size_t)(end - body));
	struct iovec iov = {packet, (size_t)(p - packet)};
	union {
		struct cmsghdr align;
		uint8_t room[CMSG_SPACE(4 * sizeof(int))];
	} rights = {0};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

	if (fds) {
		m.msg_control = rights.room;
		m.msg_controllen = CMSG_SPACE(fds_n * sizeof(int));
		struct cmsghdr *h = CMSG_FIRSTHDR(&m);

		h->cmsg_level = SOL_SOCKET;
		h->cmsg_type = SCM_RIGHTS;
		h->cmsg_len = CMSG_LEN(fds_n * sizeof(int));
		memcpy(CMSG_DATA(h), fds, fds_n * sizeof(int));
	}
	sendmsg(s->control, &m, MSG_NOSIGNAL);
}

static void reply(struct fake_socket *s, unsigned f, const uint8_t *body, const uint8_t *end, const int *fds)
{
	pass(s, f, body, end, fds, 4);
}

static void closing(struct fake_socket *s, int error, const char *text)
{
	uint8_t body[300], *p = put_number(body, 1, (uint64_t)error);

	reply(s, 10, body, put_bytes(p, 2, text, strlen(text)), NULL);
}

/* Regions */

static uint64_t or_default(uint64_t v, uint64_t d) { return v ? v : d; }

static uint64_t power_of(uint64_t n)
{
	uint64_t p = 64;

	while (p < n)
		p *= 2;
	return p;
}

static int memory_file(uint64_t bytes)
{
	int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(fd >= 0 && !ftruncate(fd, (off_t)bytes));
	CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
	return fd;
}

static void make_region(struct fake *f, struct fake_socket *s, uint64_t sndbuf, uint64_t rcvbuf)
{
	struct rdsdi_region *r = &s->r;
	uint64_t at = SHM_FIXED;
	uint8_t *h;
	int alarm[2];

	memset(r, 0, sizeof *r);
	r->sndbuf = or_default(sndbuf, 1 << 20);
	r->rcvbuf = or_default(rcvbuf, 1 << 20);
	r->flows = (uint32_t)or_default(f->sizes.flows, 64);
	r->send_n = (uint32_t)or_default(f->sizes.sends, 256);
	r->event_n = (uint32_t)or_default(f->sizes.events, 512);
	r->recv_n = (uint32_t)or_default(f->sizes.recvs, 256);
	r->release_n = (uint32_t)or_default(f->sizes.releases, 512);
	r->send_arena_bytes = or_default(f->sizes.send_arena, power_of(2 * r->sndbuf + (2 << 20)));
	r->recv_arena_bytes = or_default(f->sizes.recv_arena, power_of(4 * r->rcvbuf + (2 << 20)));
#define PLACE(member, n)                                                                                               \
	r->member = at;                                                                                                \
	at += ((n) + 4095) & ~UINT64_C(4095)
	PLACE(flow_table, (uint64_t)r->flows * FLOW_SIZE);
	PLACE(send_ring, (uint64_t)r->send_n * SEND_SIZE);
	PLACE(release_ring, (uint64_t)r->release_n * 8);
	PLACE(send_arena, r->send_arena_bytes);
	r->daemon_part = at = (at + SHM_PART - 1) & ~(uint64_t)(SHM_PART - 1);
	PLACE(flow_states, (uint64_t)r->flows * 8);
	PLACE(event_ring, (uint64_t)r->event_n * EVENT_SIZE);
	PLACE(recv_ring, (uint64_t)r->recv_n * RECV_SIZE);
	PLACE(recv_arena, r->recv_arena_bytes);
	r->bytes = at = (at + SHM_PART - 1) & ~(uint64_t)(SHM_PART - 1);
	s->memfd = memory_file(r->daemon_part);
	s->memfd_daemon = memory_file(at - r->daemon_part);
	r->base = mmap(NULL, at, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(r->base != MAP_FAILED);
	CHECK(mmap(r->base, r->daemon_part, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, s->memfd, 0) != MAP_FAILED);
	CHECK(mmap(r->base + r->daemon_part, at - r->daemon_part, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		   s->memfd_daemon, 0) != MAP_FAILED);
	h = r->base;
	memcpy(h, SHM_MAGIC, 8);
	put32(h + HDR_VERSION, SHM_VERSION);
	put32(h + HDR_HEADER_BYTES, SHM_HEADER);
	put64(h + HDR_REGION_BYTES, at);
	put64(h + HDR_INSTANCE, f->instance);
	memcpy(h + HDR_LOCAL_IP, s->local.ip, 16);
	memcpy(h + HDR_LOCAL_PORT, &s->local.port, 2);
	h[HDR_FAMILY] = s->local.family;
	put32(h + HDR_MAX_DATAGRAM, RDSD_MAX_DATAGRAM);
	put64(h + HDR_SNDBUF, r->sndbuf);
	put64(h + HDR_RCVBUF, r->rcvbuf);
	put32(h + HDR_FLOWS, r->flows);
	put32(h + HDR_SEND_ENTRIES, r->send_n);
	put32(h + HDR_EVENT_ENTRIES, r->event_n);
	put32(h + HDR_RECV_ENTRIES, r->recv_n);
	put32(h + HDR_RELEASE_ENTRIES, r->release_n);
	put32(h + HDR_TAKES, f->no_mixed ? 0 : TAKES_MIXED);
	put64(h + HDR_FLOW_TABLE, r->flow_table);
	put64(h + HDR_FLOW_STATES, r->flow_states);
	put64(h + HDR_SEND_RING, r->send_ring);
	put64(h + HDR_EVENT_RING, r->event_ring);
	put64(h + HDR_RECV_RING, r->recv_ring);
	put64(h + HDR_RELEASE_RING, r->release_ring);
	put64(h + HDR_SEND_ARENA, r->send_arena);
	put64(h + HDR_SEND_ARENA_BYTES, r->send_arena_bytes);
	put64(h + HDR_RECV_ARENA, r->recv_arena);
	put64(h + HDR_RECV_ARENA_BYTES, r->recv_arena_bytes);
	put64(h + HDR_DAEMON_PART, r->daemon_part);
	put32(h + HDR_CRC, crc32c(h, HDR_CRC));
	CHECK(!rdsdi_arena_init(&s->arena, r->recv_arena_bytes));
	s->sizes = calloc(r->recv_arena_bytes / 64, sizeof *s->sizes);
	s->bell_daemon = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, alarm));
	s->alarm = alarm[0];
	s->bell_client = alarm[1];
}

static void drop_posts(struct fake_socket *s)
{
	while (s->posts) {
		struct fake_post *p = s->posts;

		s->posts = p->next;
		free(p->body);
		free(p);
	}
	s->posts_end = &s->posts;
}

static void end_socket(struct fake_socket *s)
{
	close(s->control);
	drop_posts(s);
	if (s->r.base) {
		close(s->bell_daemon);
		close(s->bell_client);
		close(s->alarm);
		close(s->memfd);
		close(s->memfd_daemon);
		munmap(s->r.base, s->r.bytes);
		rdsdi_arena_destroy(&s->arena);
		free(s->sizes);
	}
	memset(s, 0, sizeof *s);
}

struct fake_socket *fake_at(struct fake *f, uint16_t port)
{
	for (int i = 0; i < FAKE_SOCKETS; i++)
		if (f->sockets[i].used && f->sockets[i].bound && f->sockets[i].local.port == port)
			return &f->sockets[i];
	return NULL;
}

static bool has_port(struct fake *f, uint16_t port)
{
	for (int i = 0; i < FAKE_SOCKETS; i++)
		if (f->sockets[i].used && f->sockets[i].r.base && f->sockets[i].local.port == port)
			return true;
	return false;
}

static void ring(struct fake_socket *s, uint32_t news)
{
	static const uint64_t one = 1;
	_Atomic uint32_t *w = at32(&s->r, W_CLIENT_SLEEPS);

	if (atomic_load(w) & news && atomic_exchange(w, 0))
		CHECK(send(s->alarm, &one, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 || errno == EAGAIN);
}

void fake_event(struct fake_socket *s, const uint8_t *event)
{
	struct rdsdi_region *r = &s->r;

	memcpy(r->base + r->event_ring + (s->event_tail & (r->event_n - 1)) * EVENT_SIZE, event, EVENT_SIZE);
	atomic_store(at64(r, W_EVENT_TAIL), ++s->event_tail);
	ring(s, WAITS_EVENT);
}

void fake_offer(struct fake *f, uint16_t port)
{
	struct fake_socket *s = fake_at(f, port);
	int fds[2] = {s->memfd, s->memfd_daemon};
	uint8_t body[32], *p = put_number(body, 1, 1);

	pass(s, 12, body, put_number(p, 2, PAIR_STATE_OFFERED), fds, 2);
}

static bool event_room(struct fake_socket *s)
{
	return s->event_tail - atomic_load(at64(&s->r, W_EVENT_HEAD)) < s->r.event_n;
}

static void outcome(struct fake_socket *s, const struct fake_post *p, uint64_t tag, uint32_t n, uint8_t kind, uint8_t why,
		    bool last)
{
	uint8_t e[EVENT_SIZE] = {EV_OUTCOME, kind, why, last ? EV_LAST : 0};

	put32(e + EVENT_COUNT, n);
	put64(e + EVENT_TAG, tag);
	put32(e + EVENT_COOKIE, p->cookie);
	fake_event(s, e);
}

static void set_state(struct fake_socket *s, uint32_t flow, uint32_t generation, uint64_t state, uint64_t error)
{
	atomic_store(at64(&s->r, s->r.flow_states + (uint64_t)flow * 8), (uint64_t)generation << 32 | state << 16 | error);
	ring(s, WAITS_FLOW);
}

static void flow_entry(struct fake_socket *s, uint32_t flow, rdsd_addr *a, uint32_t *generation)
{
	const uint8_t *e = s->r.base + s->r.flow_table + (uint64_t)flow * FLOW_SIZE;

	memset(a, 0, sizeof *a);
	memcpy(a->ip, e + FLOW_IP, 16);
	memcpy(&a->port, e + FLOW_PORT, 2);
	a->family = e[FLOW_FAMILY];
	*generation = atomic_load((_Atomic uint32_t *)(void *)(uintptr_t)(e + FLOW_GENERATION));
}

static void look_at_flow(struct fake *f, struct fake_socket *s, uint32_t flow, uint32_t generation)
{
	uint64_t now = atomic_load(at64(&s->r, s->r.flow_states + (uint64_t)flow * 8));
	struct fake_socket *to;
	rdsd_addr a;
	uint32_t g;

	if (now >> 32 == generation)
		return;
	flow_entry(s, flow, &a, &g);
	CHECK_IS(g, generation);
	CHECK(generation & 1);
	to = fake_at(f, a.port);
	if (a.family != s->local.family)
		set_state(s, flow, g, STATE_REFUSED, EOPNOTSUPP);
	else
		set_state(s, flow, g, to && to->congested ? STATE_CONGESTED : STATE_CLEAR, 0);
}

/* take_one claims a descriptor; false when there is none. */
static bool take_one(struct fake *f, struct fake_socket *s)
{
	struct rdsdi_region *r = &s->r;
	uint64_t tail = atomic_load(at64(r, W_SEND_TAIL)), word;
	_Atomic uint64_t *entry;
	struct fake_post *p;
	uint32_t generation;
	uint8_t *e;

	if (tail == s->send_head)
		return false;
	CHECK(tail - s->send_head <= r->send_n);
	entry = at64(r, r->send_ring + (s->send_head & (r->send_n - 1)) * SEND_SIZE);
	e = (uint8_t *)(uintptr_t)entry;
	word = atomic_load(entry);
	while (!atomic_compare_exchange_weak(entry, &word, word | WORD_CLAIMED))
		;
	p = calloc(1, sizeof *p);
	p->kind = WORD_KIND(word);
	p->count = WORD_COUNT(word);
	p->bytes = WORD_BYTES(word);
	memcpy(&p->tag, e + SEND_TAG, 8);
	memcpy(&p->slot, e + SEND_SLOT, 8);
	memcpy(&p->flow, e + SEND_FLOW, 4);
	memcpy(&generation, e + SEND_GENERATION, 4);
	memcpy(&p->cookie, e + SEND_COOKIE, 4);
	CHECK(p->flow < r->flows && !(word & WORD_CLAIMED));
	look_at_flow(f, s, p->flow, generation);
	flow_entry(s, p->flow, &p->to, &generation);
	atomic_store(at64(r, W_SEND_HEAD), ++s->send_head);
	ring(s, WAITS_SEND_ROOM);
	if (p->kind == KIND_OPEN) {
		s->opens++;
		free(p);
		return true;
	}
	CHECK(p->count >= 1 && p->count <= TRAIN_DATAGRAMS);
	CHECK(p->count == 1 || p->bytes <= TRAIN_BYTES);
	CHECK(p->slot % 64 == 0 && p->slot + p->bytes <= r->send_arena_bytes);
	CHECK(p->kind != KIND_MIXED || !f->no_mixed);
	CHECK(p->kind == KIND_TABLE ? p->bytes >= 4 * p->count :
				      p->kind == KIND_MIXED || (p->kind == KIND_SAME && p->bytes % p->count == 0));
	if (p->kind == KIND_MIXED) { /* from here on as one with a table, which stands in order */
		uint32_t table = TABLE_ENTRY * p->count;
		const uint8_t *payloads = r->base + r->send_arena + p->slot;

		CHECK(table <= p->slot && table + p->bytes <= TRAIN_BYTES);
		s->mixed++;
		p->body = malloc(table + p->bytes + 1);
		for (uint32_t i = 0; i < p->count; i++)
			memcpy(p->body + TABLE_ENTRY * i, payloads - TABLE_ENTRY * (i + 1), TABLE_ENTRY);
		memcpy(p->body + table, payloads, p->bytes);
		p->kind = KIND_TABLE;
		p->bytes += table;
	} else {
		p->body = malloc(p->bytes + 1);
		memcpy(p->body, r->base + r->send_arena + p->slot, p->bytes);
	}
	s->taken++;
	s->out_now++;
	s->datagrams_now += p->count;
	CHECK(s->out_now <= 16384 && s->datagrams_now <= 262144); /* the client counts, docs/shm.md */
	s->datagrams += p->count;
	*s->posts_end = p;
	s->posts_end = &p->next;
	return true;
}

static bool place(struct fake_socket *to, const struct fake_post *p, const rdsd_addr *from)
{
	struct rdsdi_region *r = &to->r;
	uint64_t slot, size;
	uint8_t *e;

	if (to->recv_tail - atomic_load(at64(r, W_RECV_HEAD)) >= r->recv_n)
		return false;
	slot = rdsdi_arena_alloc(&to->arena, p->bytes ? p->bytes : 1);
	if (slot == ARENA_NONE) {
		to->starved = true;
		return false;
	}
	size = rdsdi_arena_size(p->bytes ? p->bytes : 1);
	to->sizes[slot / 64] = (uint32_t)size;
	to->held += size;
	memcpy(r->base + r->recv_arena + slot, p->body, p->bytes);
	e = r->base + r->recv_ring + (to->recv_tail & (r->recv_n - 1)) * RECV_SIZE;
	memset(e, 0, RECV_SIZE);
	put64(e, WORD_MAKE(p->bytes, p->count, p->kind));
	put64(e + RECV_SLOT, slot);
	memcpy(e + RECV_IP, from->ip, 16);
	memcpy(e + RECV_PORT, &from->port, 2);
	e[RECV_FAMILY] = from->family;
	atomic_store(at64(r, W_RECV_TAIL), ++to->recv_tail);
	ring(to, WAITS_RECV);
	return true;
}

/* finish places what can be placed, in order, and reports it as far as there is room for events. */
static bool finish(struct fake *f, struct fake_socket *s)
{
	bool any = false;

	for (struct fake_post *p = s->posts; p; p = p->next) {
		struct fake_socket *to;

		if (p->placed)
			continue;
		to = fake_at(f, p->to.port);
		p->kind_of_end = to ? RDSD_DELIVERED : RDSD_FAILED;
		if (to && !place(to, p, &s->local))
			break;
		p->placed = any = true;
	}
	while (s->posts && s->posts->placed && event_room(s)) {
		struct fake_post *p = s->posts;
		uint8_t why = p->kind_of_end == RDSD_FAILED;

		any = true;
		if (f->split && p->told + 1 < p->count) {
			outcome(s, p, p->tag + p->count - ++p->told, 1, p->kind_of_end, why, false);
			continue;
		}
		outcome(s, p, p->tag, p->count - p->told, p->kind_of_end, why, true);
		s->out_now--;
		s->datagrams_now -= p->count;
		s->posts = p->next;
		if (!s->posts)
			s->posts_end = &s->posts;
		free(p->body);
		free(p);
	}
	return any;
}

static bool take_releases(struct fake_socket *s)
{
	struct rdsdi_region *r = &s->r;
	uint64_t tail = atomic_load(at64(r, W_RELEASE_TAIL));
	bool any = tail != s->release_head;

	CHECK(tail - s->release_head <= r->release_n);
	for (; s->release_head != tail; s->release_head++) {
		uint64_t slot = atomic_load(at64(r, r->release_ring + (s->release_head & (r->release_n - 1)) * 8));

		CHECK(slot % 64 == 0 && slot < r->recv_arena_bytes);
		CHECK(s->sizes[slot / 64]);
		rdsdi_arena_free(&s->arena, slot, s->sizes[slot / 64]);
		s->held -= s->sizes[slot / 64];
		s->sizes[slot / 64] = 0;
	}
	atomic_store(at64(r, W_RELEASE_HEAD), s->release_head);
	if (any)
		s->starved = false;
	return any;
}

/* tell_want says that something found no room although all releases were taken. */
static void tell_want(struct fake_socket *s)
{
	uint64_t want = s->starved ? 1 + s->release_head : 0;

	if (want == s->wanted)
		return;
	s->wanted = want;
	atomic_store(at64(&s->r, W_ROOM_WANTED), want);
	if (want)
		ring(s, WAITS_RECV);
}

static void congestion(struct fake *f, struct fake_socket *s)
{
	bool now = s->congested ? s->held > s->r.rcvbuf / 2 : s->held > s->r.rcvbuf;

	if (now == s->congested)
		return;
	s->congested = now;
	for (int i = 0; i < FAKE_SOCKETS; i++) {
		struct fake_socket *o = &f->sockets[i];

		if (!o->used || !o->r.base)
			continue;
		for (uint32_t k = 0; k < o->r.flows; k++) {
			uint8_t e[EVENT_SIZE] = {EV_CONGESTION, 0, 0, now};
			uint32_t g;
			rdsd_addr a;

			flow_entry(o, k, &a, &g);
			if (!g || !addr_equal(&a, &s->local) || atomic_load(at64(&o->r, o->r.flow_states + k * 8)) >> 32 != g)
				continue;
			set_state(o, k, g, now ? STATE_CONGESTED : STATE_CLEAR, 0);
			memcpy(e + EVENT_IP, a.ip, 16);
			memcpy(e + EVENT_PORT, &a.port, 2);
			e[EVENT_FAMILY] = a.family;
			if (o->watch && !f->unwatched && event_room(o))
				fake_event(o, e);
		}
	}
}

/* work does one round and says whether anything moved. */
static bool work(struct fake *f)
{
	bool any = false;

	for (int i = 0; i < FAKE_SOCKETS; i++) {
		struct fake_socket *s = &f->sockets[i];

		if (!s->used || !s->r.base)
			continue;
		any |= take_releases(s);
		if (!f->hold_sends)
			for (int n = 0; n < 64 && take_one(f, s); n++)
				any = true;
		if (!f->hold_outcomes)
			any |= finish(f, s);
		congestion(f, s);
		tell_want(s);
		if (s->flushing) {
			uint64_t left = atomic_load(at64(&s->r, W_SEND_TAIL)) - s->send_head;
			uint8_t body[32], *b = put_number(body, 1, s->flush_id);
			bool late = s->flush_until && (uint64_t)rdsdi_now() >= s->flush_until;

			if (s->posts || left) {
				b = put_number(b, 2, ETIMEDOUT);
				b = put_number(b, 3, s->datagrams_now + left);
			} else {
				late = true;
			}
			if (late) {
				s->flushing = false;
				reply(s, 6, body, b, NULL);
			}
		}
	}
	return any;
}

/* Control messages */

/* bound_socket answers when the client has mapped its region, which is sealed then. */
static void bound_socket(struct fake *f, struct fake_socket *s)
{
	uint8_t body[256], sub[64], *q, *b = body;

	if (f->spoil)
		f->spoil(s);
	q = put_bytes(sub, 1, s->local.ip, s->local.family == 4 ? 4 : 16);
	b = put_bytes(b, 1, sub, (size_t)(put_number(q, 2, s->local.port) - sub));
	b = put_number(b, 7, f->instance);
	if (!f->no_rings) {
		CHECK(!fcntl(s->memfd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL));
		b = put_bytes(b, 9, sub, (size_t)(put_number(put_number(sub, 1, SHM_VERSION), 2, s->r.bytes) - sub));
	}
	s->bound = true; /* and not before: what came before Bound is said nobody would read, if the daemon ended now */
	reply(s, 1, body, b, NULL);
}

static void bind_socket(struct fake *f, struct fake_socket *s, const uint8_t *p, size_t n)
{
	uint64_t len, sndbuf = 0, rcvbuf = 0;
	uint8_t body[64];
	const uint8_t *local;
	int fds[4];

	f->binds++;
	CHECK(field(p, n, 1, &local, &len) && endpoint(local, len, &s->local));
	field(p, n, 2, NULL, &sndbuf);
	field(p, n, 3, NULL, &rcvbuf);
	if (f->refuse && !f->grants) {
		closing(s, f->refuse, "refused by the fake");
		end_socket(s);
		return;
	}
	if (s->local.port == 0)
		s->local.port = f->next_port++;
	if (has_port(f, s->local.port) || s->local.port == f->taken) {
		closing(s, EADDRINUSE, "another socket owns this address and port");
		end_socket(s);
		return;
	}
	make_region(f, s, sndbuf, rcvbuf);
	if (f->no_rings) {
		bound_socket(f, s);
		return;
	}
	fds[0] = s->memfd;
	fds[1] = s->memfd_daemon;
	fds[2] = s->bell_daemon;
	fds[3] = s->bell_client;
	reply(s, 11, body, put_number(put_number(body, 1, SHM_VERSION), 2, s->r.bytes), fds);
	if (f->refuse) {
		closing(s, f->refuse, "refused by the fake");
		end_socket(s);
	}
}

static void cancel(struct fake *f, struct fake_socket *s, const uint8_t *p, size_t n)
{
	uint64_t id = 0, len, cancelled = 0;
	uint8_t body[64], *b;
	const uint8_t *to;
	struct fake_post **q, *post;
	rdsd_addr a;

	field(p, n, 1, NULL, &id);
	CHECK(field(p, n, 2, &to, &len) && endpoint(to, len, &a));
	while (take_one(f, s))
		;
	for (q = &s->posts; (post = *q);) {
		if (memcmp(post->to.ip, a.ip, 16) || (a.port && a.port != post->to.port)) {
			q = &post->next;
			continue;
		}
		outcome(s, post, post->tag, post->count, RDSD_CANCELLED, 2, true);
		cancelled += post->count;
		s->out_now--;
		s->datagrams_now -= post->count;
		*q = post->next;
		free(post->body);
		free(post);
	}
	s->posts_end = q;
	b = put_number(body, 1, id);
	reply(s, 5, body, put_number(b, 2, cancelled), NULL);
}

static void control(struct fake *f, struct fake_socket *s)
{
	uint8_t packet[1024], body[64], *b;
	const uint8_t *p;
	struct fake_socket *to;
	uint64_t len, id = 0, n64;
	ssize_t n = recv(s->control, packet, sizeof packet, MSG_DONTWAIT);
	rdsd_addr a;

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 4) {
		end_socket(s);
		return;
	}
	CHECK(packet[0] == 1 && !packet[1] && !packet[2] && !packet[3]);
	n -= 4;
	if (f->mute)
		return;
	if (field(packet + 4, (size_t)n, 1, &p, &len)) {
		bind_socket(f, s, p, len);
	} else if (field(packet + 4, (size_t)n, 9, &p, &len)) {
		bound_socket(f, s);
	} else if (field(packet + 4, (size_t)n, 4, &p, &len)) {
		cancel(f, s, p, len);
	} else if (field(packet + 4, (size_t)n, 5, &p, &len)) {
		field(p, len, 1, NULL, &s->flush_id);
		s->flush_until = field(p, len, 2, NULL, &n64) && n64 ? (uint64_t)rdsdi_now() + n64 : 0;
		s->flushing = true;
	} else if (field(packet + 4, (size_t)n, 6, &p, &len)) {
		s->watch = field(p, len, 3, NULL, &n64);
	} else if (field(packet + 4, (size_t)n, 10, &p, &len)) {
		CHECK(field(p, len, 2, NULL, &n64));
		f->gone += n64 == PAIR_STATE_GONE;
	} else if (field(packet + 4, (size_t)n, 7, &p, &len)) {
		field(p, len, 1, NULL, &id);
		CHECK(field(p, len, 2, &p, &len) && endpoint(p, len, &a));
		to = fake_at(f, a.port);
		b = put_number(body, 1, id);
		if (a.family == s->local.family)
			b = put_number(b, 2, to && to->congested);
		else
			b = put_bytes(put_number(b, 3, EOPNOTSUPP), 4, "not of a family", 15);
		reply(s, 8, body, b, NULL);
	}
}

static void accept_one(struct fake *f)
{
	int fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	for (int i = 0; i < FAKE_SOCKETS; i++)
		if (!f->sockets[i].used) {
			f->sockets[i] = (struct fake_socket){.used = true, .control = fd};
			f->sockets[i].posts_end = &f->sockets[i].posts;
			return;
		}
	close(fd);
}

static void sleeps(struct fake *f, uint32_t bits)
{
	for (int i = 0; i < FAKE_SOCKETS; i++)
		if (f->sockets[i].used && f->sockets[i].r.base)
			atomic_store(at32(&f->sockets[i].r, W_DAEMON_SLEEPS), bits);
}

static void *serve(void *arg)
{
	struct fake *f = arg;

	for (;;) {
		struct pollfd fds[2 + 2 * FAKE_SOCKETS] = {{f->stop, POLLIN, 0}, {f->listener, POLLIN, 0}};
		int ready;
		uint64_t n;

		pthread_mutex_lock(&f->mu);
		while (work(f))
			;
		sleeps(f, DAEMON_WAITS_SEND | DAEMON_WAITS_ROOM);
		if (work(f)) {
			sleeps(f, 0);
			pthread_mutex_unlock(&f->mu);
			continue;
		}
		for (int i = 0; i < FAKE_SOCKETS; i++) {
			struct fake_socket *s = &f->sockets[i];

			fds[2 + 2 * i] = (struct pollfd){s->used ? s->control : -1, POLLIN, 0};
			fds[3 + 2 * i] = (struct pollfd){s->used && s->r.base ? s->bell_daemon : -1, POLLIN, 0};
		}
		pthread_mutex_unlock(&f->mu);
		ready = poll(fds, 2 + 2 * FAKE_SOCKETS, 500);
		pthread_mutex_lock(&f->mu);
		/* Who has put something while the fake is said to sleep has rung, or is about to. */
		if (ready == 0 && work(f) && poll(fds, 2 + 2 * FAKE_SOCKETS, 5000) == 0)
			f->missed++;
		sleeps(f, 0);
		if (fds[0].revents) {
			if (read(f->stop, &n, 8) == 8 && n >= 1 << 20) {
				pthread_mutex_unlock(&f->mu);
				return NULL;
			}
		}
		if (fds[1].revents)
			accept_one(f);
		for (int i = 0; i < FAKE_SOCKETS; i++) {
			struct fake_socket *s = &f->sockets[i];

			if (fds[3 + 2 * i].revents && s->used && s->r.base && read(s->bell_daemon, &n, 8) != 8)
				continue;
			if (fds[2 + 2 * i].revents && s->used && s->control == fds[2 + 2 * i].fd)
				control(f, s);
		}
		pthread_mutex_unlock(&f->mu);
	}
}

struct fake *fake_start(const char *path, const struct fake_sizes *sizes)
{
	struct fake *f = calloc(1, sizeof *f);
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	pthread_mutexattr_t attr;

	pthread_mutexattr_init(&attr);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&f->mu, &attr);
	pthread_mutexattr_destroy(&attr);
	snprintf(f->path, sizeof f->path, "%s", path);
	f->next_port = 1000;
	f->instance = 7;
	if (sizes)
		f->sizes = *sizes;
	f->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	snprintf(un.sun_path, sizeof un.sun_path, "%s.rings", path);
	unlink(un.sun_path);
	CHECK(!bind(f->listener, (struct sockaddr *)&un, sizeof un));
	CHECK(!listen(f->listener, 64));
	CHECK(!pthread_create(&f->thread, NULL, serve, f));
	return f;
}

static void nudge(struct fake *f, uint64_t n) { CHECK(write(f->stop, &n, 8) == 8); }

void fake_wake(struct fake *f) { nudge(f, 1); }

void fake_lock(struct fake *f) { pthread_mutex_lock(&f->mu); }

void fake_unlock(struct fake *f)
{
	pthread_mutex_unlock(&f->mu);
	fake_wake(f);
}

bool fake_bound(struct fake *f, uint16_t port)
{
	bool yes;

	pthread_mutex_lock(&f->mu);
	yes = fake_at(f, port) != NULL;
	pthread_mutex_unlock(&f->mu);
	return yes;
}

bool fake_watched(struct fake *f, uint16_t port)
{
	struct fake_socket *s;
	bool yes;

	pthread_mutex_lock(&f->mu);
	s = fake_at(f, port);
	yes = s && s->watch;
	pthread_mutex_unlock(&f->mu);
	return yes;
}

void fake_kill(struct fake *f)
{
	fake_lock(f);
	for (int i = 0; i < FAKE_SOCKETS; i++)
		if (f->sockets[i].used)
			end_socket(&f->sockets[i]);
	f->instance++;
	fake_unlock(f);
}

void fake_dismiss(struct fake *f, uint16_t port, int error, const char *text)
{
	struct fake_socket *s;

	fake_lock(f);
	s = fake_at(f, port);
	CHECK(s);
	atomic_store(at32(&s->r, W_CLOSED), (uint32_t)error);
	closing(s, error, text);
	end_socket(s);
	fake_unlock(f);
}

void fake_stop(struct fake *f)
{
	char path[80];

	nudge(f, 1 << 20);
	pthread_join(f->thread, NULL);
	for (int i = 0; i < FAKE_SOCKETS; i++)
		if (f->sockets[i].used)
			end_socket(&f->sockets[i]);
	close(f->listener);
	close(f->stop);
	snprintf(path, sizeof path, "%s.rings", f->path);
	unlink(path);
	pthread_mutex_destroy(&f->mu);
	free(f);
}

int run_tests(int argc, char **argv, const struct test *tests, size_t n)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < n; i++) {
		if (argc > 1 && !strstr(tests[i].name, argv[1]))
			continue;
		printf("# %s\n", tests[i].name); /* of one that does not end well this is all there is */
		alarm(60); /* a test that hangs ends with SIGALRM */
		tests[i].run();
		alarm(0);
		printf("ok %s\n", tests[i].name);
	}
	return 0;
}

int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}
