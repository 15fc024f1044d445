/*
 * The two ends of a pair, without a daemon: order, marks, closing, and a partner
 * that writes what it likes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"
#include "send.h"

static uint64_t seed = 1;

static uint64_t random64(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static uint64_t below(uint64_t n)
{
	return random64() % n;
}

/* A pair with both ends in this process, and what they stand in. */
static struct {
	rdsd_socket s; /* sends */
	struct rdsdi_flow flow;
	struct rdsdi_region out, in; /* of the sender, and of the reader */
	struct rdsdi_rx rx;
	uint8_t *words, *data; /* anybody's mapping */
	struct rdsdi_server offer;
	int fds[2];
} e;

static _Atomic uint64_t *word(unsigned off)
{
	return (_Atomic uint64_t *)(void *)(e.words + off);
}

static int memfd(uint64_t bytes, bool keeps)
{
	int fd = memfd_create("pair", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(fd >= 0 && !ftruncate(fd, (off_t)bytes));
	CHECK(!keeps || !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
	return fd;
}

/* again makes an end one that begins with a pair. */
static void again(struct rdsdi_pair *p)
{
	p->closed = p->over = p->full = false;
	p->tail = p->head = p->raw = p->mark = p->next_tail = p->marked = p->count = p->sum = 0;
}

/* begin starts both ends anew, over the same memory. */
static void begin(void)
{
	for (unsigned off = PAIR_TAIL; off < 12 * PAIR_WORD_APART; off += PAIR_WORD_APART)
		atomic_store(word(off), 0);
	again(e.s.tx.pairs);
	again(e.in.pairs[0]);
}

static void map_ends(void)
{
	e.s.tx.pairs = rdsdi_pair_map(&e.offer, e.fds, &e.offer.source);
	e.in.pairs[0] = rdsdi_pair_map(&e.offer, e.fds, &e.offer.destination);
	CHECK(e.s.tx.pairs && !e.s.tx.pairs->reads && e.in.pairs[0] && e.in.pairs[0]->reads);
	e.in.pairs_n = 1;
	/* The reader's mapping with nothing behind it: a step too far ends the test. */
	munmap(e.in.pairs[0]->data, PAIR_MIN);
	e.in.pairs[0]->data = mmap(NULL, 2 * PAIR_MIN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mmap(e.in.pairs[0]->data, PAIR_MIN, PROT_READ, MAP_SHARED | MAP_FIXED, e.fds[1], 0) == e.in.pairs[0]->data);
}

static void start(void)
{
	static uint8_t base[SHM_FIXED];

	if (e.words) {
		begin();
		return;
	}
	e.offer = (struct rdsdi_server){.id = 7, .pair_bytes = PAIR_MIN, .source = {{127, 0, 0, 2}, 1, 4, 0}, .destination = {{127, 0, 0, 2}, 2, 4, 0}};
	e.fds[0] = memfd(PAIR_WORDS, true);
	e.fds[1] = memfd(PAIR_MIN, true);
	e.words = mmap(NULL, PAIR_WORDS, PROT_READ | PROT_WRITE, MAP_SHARED, e.fds[0], 0);
	e.data = mmap(NULL, PAIR_MIN, PROT_READ | PROT_WRITE, MAP_SHARED, e.fds[1], 0);
	CHECK(e.words != MAP_FAILED && e.data != MAP_FAILED);
	pthread_mutex_init(&e.s.tx.mu, NULL);
	pthread_mutex_init(&e.s.sleep.mu, NULL);
	e.out.base = base;
	e.s.tx.reg = &e.out;
	e.s.tx.bell = -1;
	e.s.tx.next_tag = 1;
	e.flow.to = e.offer.destination;
	atomic_init(&e.in.refs, 1);
	e.rx.reg = &e.in;
	map_ends();
}

/* put sends n datagrams of len bytes, all of them b: how many got in. */
static uint32_t put(uint32_t n, uint32_t len, uint8_t b)
{
	static uint8_t data[PAIR_MIN];
	struct rdsdi_op op = {.s = &e.s};
	uint64_t tag;
	bool again;

	memset(data, b, (size_t)n * len);
	return rdsdi_pair_put(&op, &e.flow, &(struct rdsdi_source){.data = data, .len = len}, 0, n, &tag, false, &again);
}

static int next(uint64_t taken)
{
	return rdsdi_pair_next(&e.rx, taken, false);
}

/* Both ends and a list of what is between them. */
static void model(void)
{
	static struct {
		uint64_t mark;
		uint32_t n, len;
		uint8_t b;
	} list[PAIR_MIN];
	uint64_t first = 0, last = 0, mark = 0, taken = 0, wraps = 0;
	uint8_t b = 0;
	bool over = false;

	start();
	for (unsigned step = 0; step < 40000; step++) {
		uint64_t what = below(100);

		if (what < 3) {
			mark += below(3);
			atomic_store(word(PAIR_MARK), mark);
		} else if (what < 6) {
			taken = taken + below(3) < mark ? taken + below(3) : mark;
			if (taken > mark)
				taken = mark;
		} else if (what < 50) {
			uint32_t n = 1 + (uint32_t)below(4), len = (uint32_t)below(200), got;

			e.s.tx.pairs->full = false;
			got = put(n, len, b);
			CHECK(!over || !got);
			if (!got)
				continue;
			CHECK_IS(got, n);
			list[last % PAIR_MIN].mark = mark;
			list[last % PAIR_MIN].n = n;
			list[last % PAIR_MIN].len = len;
			list[last++ % PAIR_MIN].b = b++;
		} else if (what == 50 && step > 39000) {
			atomic_fetch_or(word(PAIR_TAIL), PAIR_CLOSED);
			over = true;
		} else {
			int got = next(taken);

			CHECK_IS(got, first < last && list[first % PAIR_MIN].mark <= taken);
			if (!got)
				continue;
			CHECK_IS(e.rx.left, list[first % PAIR_MIN].n);
			CHECK_IS(e.rx.len, list[first % PAIR_MIN].len);
			for (uint32_t i = 0; i < e.rx.bytes; i++)
				CHECK_IS(e.rx.data[i], list[first % PAIR_MIN].b);
			wraps += e.rx.bytes;
			first++;
			rdsdi_lease_drop(e.rx.lease, e.rx.left);
		}
	}
	for (; next(mark); first++)
		rdsdi_lease_drop(e.rx.lease, e.rx.left);
	CHECK_IS(first, last);
	CHECK(over && wraps > 10 * PAIR_MIN && rdsdi_pair_read_out(e.in.pairs[0], mark));
	CHECK_IS(atomic_load(&e.in.kept), 0);
	CHECK_IS(atomic_load(word(PAIR_SENT)), atomic_load(word(PAIR_READ)));
	CHECK_IS(atomic_load(word(PAIR_SENT + PAIR_WORD_APART)), atomic_load(word(PAIR_READ + PAIR_WORD_APART)));
}

/* What is received does not change when the sender writes there later. */
static void copied(void)
{
	start();
	CHECK_IS(put(2, 100, 'a'), 2);
	CHECK_IS(next(0), 1);
	memset(e.data, 'b', PAIR_MIN);
	for (uint32_t i = 0; i < e.rx.bytes; i++)
		CHECK_IS(e.rx.data[i], 'a');
	CHECK_IS(atomic_load(&e.in.kept), 200);
	rdsdi_lease_drop(e.rx.lease, 1);
	CHECK_IS(atomic_load(&e.in.kept), 200);
	rdsdi_lease_drop(e.rx.lease, 1);
	CHECK_IS(atomic_load(&e.in.kept), 0);
}

/* Nothing more is lent beyond what may be kept; who copies goes on. */
static void kept(void)
{
	start();
	atomic_store(&e.in.kept, MAX_KEPT);
	CHECK_IS(put(1, 8, 1), 1);
	CHECK_IS(rdsdi_pair_next(&e.rx, 0, true), -ENOBUFS);
	CHECK_IS(rdsdi_pair_next(&e.rx, 0, false), 1);
	rdsdi_lease_drop(e.rx.lease, 1);
	atomic_store(&e.in.kept, 0);
}

/* A flow with something at the daemon goes by the daemon, and a reader that sleeps is rung. */
static void rules(void)
{
	uint64_t tags = e.s.tx.next_tag;

	start();
	e.flow.refs = 1;
	e.out.event_n = 1; /* the event ring is empty */
	CHECK_IS(put(1, 8, 1), 0);
	e.flow.refs = 0;
	CHECK_IS(put(1, PAIR_MIN / 2, 1), 0);
	CHECK_IS(e.s.tx.next_tag, tags);
	CHECK_IS(put(1, 8, 1), 1);
	CHECK_IS(e.s.tx.next_tag, tags + 1);
	CHECK_IS(atomic_load(at64(&e.out, W_NUDGES)), 0);
	rdsdi_pairs_sleep(&e.in, true);
	CHECK_IS(put(1, 8, 1), 1);
	CHECK_IS(put(1, 8, 1), 1);
	CHECK_IS(atomic_load(at64(&e.out, W_NUDGES)), 1);
	CHECK_IS(atomic_load(word(PAIR_NUDGE)), 1);
	CHECK_IS(atomic_load(word(PAIR_SLEEPS)), 0);
	while (put(1, 1000, 1))
		;
	CHECK(e.s.tx.pairs->full); /* one look without room, and it is left alone */
	atomic_store(word(PAIR_HEAD), e.s.tx.pairs->tail + 4096); /* a reader that lies is one that has not read */
	CHECK_IS(put(1, 1000, 1), 0);
	atomic_store(word(PAIR_HEAD), UINT64_MAX);
	CHECK_IS(put(1, 1000, 1), 0);
	for (int i = 0; i < 5; i++) {
		CHECK_IS(next(0), 1);
		rdsdi_lease_drop(e.rx.lease, e.rx.left);
	}
	CHECK_IS(put(1, 1000, 1), 0); /* until a quarter is free */
	for (int i = 0; i < 15; i++) {
		CHECK_IS(next(0), 1);
		rdsdi_lease_drop(e.rx.lease, e.rx.left);
	}
	CHECK_IS(put(1, 1000, 1), 1);
}

static void refused(void)
{
	struct rdsdi_server m;
	int loose = memfd(PAIR_MIN, false), other = memfd(2 * PAIR_MIN, true), fds[2];

	start();
	m = e.offer;
	m.pair_bytes = 2 * PAIR_MIN;
	CHECK(!rdsdi_pair_map(&m, e.fds, &m.source)); /* another size than was said */
	m.pair_bytes = PAIR_MIN + 8;
	CHECK(!rdsdi_pair_map(&m, e.fds, &m.source));
	m.pair_bytes = UINT64_C(1) << 40;
	CHECK(!rdsdi_pair_map(&m, e.fds, &m.source));
	m = e.offer;
	fds[0] = e.fds[0];
	fds[1] = loose; /* can be cut off under the mapping */
	CHECK(!rdsdi_pair_map(&m, fds, &m.source));
	fds[1] = other;
	CHECK(!rdsdi_pair_map(&m, fds, &m.source));
	close(loose);
	close(other);
}

/* Each thing that no sender writes: the reader gives the pair up, and touches nothing else. */
static void nonsense(void)
{
	static const struct {
		uint64_t tail, word;
		unsigned at; /* the record begins here */
	} cases[] = {
		{64, WORD_MAKE(64, 1, PAIR_DATAGRAMS), 0},                        /* more than is shown */
		{PAIR_MIN + 64, WORD_MAKE(64, 1, PAIR_DATAGRAMS), PAIR_MIN - 64}, /* passes the end of the ring */
		{64, WORD_MAKE(8, 0, PAIR_DATAGRAMS), 0},                         /* no datagrams */
		{64, WORD_MAKE(9, 2, PAIR_DATAGRAMS), 0},                         /* of two lengths */
		{PAIR_MIN, WORD_MAKE(0, TRAIN_DATAGRAMS + 1, PAIR_DATAGRAMS), 0}, /* too many */
		{64, WORD_MAKE(8, 1, 7), 0},                                      /* of another kind */
		{64, WORD_MAKE(16, 1, PAIR_MARK_KIND), 0},                        /* a mark of 16 bytes */
		{63, WORD_MAKE(8, 1, PAIR_DATAGRAMS), 0},
		{PAIR_MIN + 8, WORD_MAKE(8, 1, PAIR_DATAGRAMS), 0}, /* more than fits */
		{PAIR_MIN, WORD_MAKE(0, 0, PAIR_PAD), 0},           /* nothing but padding */
	};

	start();
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		begin();
		memset(e.data, 0, PAIR_MIN);
		memcpy(e.data + cases[i].at, &cases[i].word, 8);
		e.in.pairs[0]->head = e.in.pairs[0]->tail = cases[i].at;
		atomic_store(word(PAIR_TAIL), cases[i].tail);
		CHECK_IS(next(UINT64_MAX), 0);
		CHECK(e.in.pairs[0]->over && atomic_load(word(PAIR_TAIL)) & PAIR_CLOSED);
		CHECK_IS(next(UINT64_MAX), 0);
	}
}

/* What stands behind a mark that the daemon will not come to keeps no closed pair. */
static void false_mark(void)
{
	struct rdsdi_pair *in;

	start();
	in = e.in.pairs[0];
	atomic_store(word(PAIR_MARK), 2);
	CHECK_IS(put(1, 8, 1), 1);
	CHECK_IS(next(1), 0);
	atomic_fetch_or(word(PAIR_TAIL), PAIR_CLOSED);
	CHECK(!rdsdi_pair_read_out(in, 2) && !in->over);
	CHECK(rdsdi_pair_read_out(in, 1) && in->over);
	CHECK_IS(next(2), 0);
}

/* A partner writes what it likes, everywhere: the other end stays within its memory and does not loop. */
static void scribbled(void)
{
	unsigned n = getenv("RDSD_TEST_QUICK") ? 100000 : 1700000, records = 0, still = 0;
	uint64_t words = 0;

	start();
	for (unsigned step = 0; step < n; step++) {
		struct rdsdi_pair *in = e.in.pairs[0];

		still++;
		for (uint64_t k = below(16) ? 0 : 1 + below(200); k; k--, words++) {
			_Atomic uint64_t *at = below(2) ? word((unsigned)below(12) * PAIR_WORD_APART) : (_Atomic uint64_t *)(void *)(e.data + 8 * below(PAIR_MIN / 8));
			uint64_t v = random64();

			switch (below(5)) {
			case 1:
				v = below(2 * PAIR_MIN);
				break;
			case 2:
				v = in->head + 8 * below(PAIR_MIN / 8);
				break;
			case 3:
				v = WORD_MAKE(below(300), below(4), below(5));
				break;
			case 4:
				v = atomic_load(word(PAIR_TAIL)) ^ UINT64_C(1) << below(64);
				break;
			}
			atomic_store(at, v);
		}
		e.s.tx.pairs->full = false;
		put(1, (uint32_t)below(1000), 1);
		if (next(below(3)) == 1) {
			records++;
			still = 0;
			CHECK(e.rx.left > 0 && e.rx.left <= TRAIN_DATAGRAMS && e.rx.bytes == e.rx.left * e.rx.len && e.rx.bytes < PAIR_MIN);
			rdsdi_lease_drop(e.rx.lease, e.rx.left);
		}
		rdsdi_pairs_ready(&e.in, below(3));
		/* Spoilt, closed, or behind a mark for good. */
		if (in->over || e.s.tx.pairs->over || still > 100) {
			still = 0;
			begin();
		}
	}
	CHECK(records > n / 100 && (n < 1000000 || words > 10000000));
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{"pair model", model}, {"pair copied", copied},   {"pair kept", kept},
		{"pair rules", rules}, {"pair refused", refused}, {"pair nonsense", nonsense},
		{"pair false mark", false_mark}, {"pair scribbled", scribbled},
	};

	return run_tests(argc, argv, tests, sizeof tests / sizeof *tests);
}
