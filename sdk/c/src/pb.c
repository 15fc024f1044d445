#define _GNU_SOURCE
#include "pb.h"

#include <errno.h>
#include <string.h>

#include "layout.h"

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

/* Writing. Room was checked by PB_CLIENT_MAX: every field has a bound. */

static uint8_t *put_varint(uint8_t *p, uint64_t v)
{
	while (v >= 0x80) {
		*p++ = (uint8_t)(v | 0x80);
		v >>= 7;
	}
	*p++ = (uint8_t)v;
	return p;
}

/* put_uint leaves zeroes out, as the schema's implicit presence has it. */
static uint8_t *put_uint(uint8_t *p, unsigned field, uint64_t v)
{
	if (!v)
		return p;
	p = put_varint(p, field << 3 | WIRE_VARINT);
	return put_varint(p, v);
}

static uint8_t *put_bytes(uint8_t *p, unsigned field, const void *data, size_t n)
{
	p = put_varint(p, field << 3 | WIRE_BYTES);
	p = put_varint(p, n);
	if (n)
		memcpy(p, data, n);
	return p + n;
}

static uint8_t *put_endpoint(uint8_t *p, unsigned field, const rdsd_addr *a)
{
	uint8_t sub[32], *q = sub;

	q = put_bytes(q, 1, a->ip, a->family == 4 ? 4 : 16);
	q = put_uint(q, 2, a->port);
	return put_bytes(p, field, sub, (size_t)(q - sub));
}

static size_t wrap(uint8_t *out, unsigned field, const uint8_t *body, const uint8_t *end)
{
	return (size_t)(put_bytes(out, field, body, (size_t)(end - body)) - out);
}

size_t rdsdi_pb_bind(uint8_t *out, const struct rdsdi_bind *b)
{
	static const uint8_t ring[] = {1 << 3 | WIRE_VARINT, SHM_VERSION, 2 << 3 | WIRE_VARINT, 1,
				       3 << 3 | WIRE_VARINT, 1}; /* RingWish{version, pairs, one_doorbell} */
	uint8_t body[PB_CLIENT_MAX], *p = body;

	p = put_endpoint(p, 1, &b->local);
	p = put_uint(p, 2, b->send_buffer);
	p = put_uint(p, 3, b->recv_buffer);
	if (b->label && *b->label)
		p = put_bytes(p, 4, b->label, strnlen(b->label, RDSD_MAX_LABEL));
	p = put_bytes(p, 7, ring, sizeof ring);
	return wrap(out, 1, body, p);
}

size_t rdsdi_pb_mapped(uint8_t *out)
{
	return (size_t)(put_bytes(out, 9, "", 0) - out);
}

size_t rdsdi_pb_cancel(uint8_t *out, uint64_t id, const rdsd_addr *to)
{
	uint8_t body[PB_CLIENT_MAX], *p = put_uint(body, 1, id);

	return wrap(out, 4, body, put_endpoint(p, 2, to));
}

size_t rdsdi_pb_flush(uint8_t *out, uint64_t id, int64_t timeout_ns)
{
	uint8_t body[PB_CLIENT_MAX], *p = put_uint(body, 1, id);

	return wrap(out, 5, body, put_uint(p, 2, (uint64_t)timeout_ns));
}

size_t rdsdi_pb_monitor(uint8_t *out, uint64_t mask, bool on)
{
	uint8_t body[PB_CLIENT_MAX], *p = body;

	if (on) {
		p = put_uint(p, 1, mask);
		p = put_uint(p, 2, 1);
		p = put_uint(p, 3, 1);
	}
	return wrap(out, 6, body, p);
}

size_t rdsdi_pb_congested(uint8_t *out, uint64_t id, const rdsd_addr *to)
{
	uint8_t body[PB_CLIENT_MAX], *p = put_uint(body, 1, id);

	return wrap(out, 7, body, put_endpoint(p, 2, to));
}

size_t rdsdi_pb_pair(uint8_t *out, uint64_t id, unsigned state)
{
	uint8_t body[PB_CLIENT_MAX], *p = put_uint(body, 1, id);

	return wrap(out, 10, body, put_uint(p, 2, state));
}

/* Reading. */

struct reader {
	const uint8_t *p, *end;
	unsigned field, wire;
	uint64_t value;        /* of a number */
	const uint8_t *bytes;  /* of a WIRE_BYTES field */
	size_t n;
};

static bool get_varint(struct reader *r, uint64_t *v)
{
	*v = 0;
	for (unsigned shift = 0; shift < 64; shift += 7) {
		if (r->p == r->end)
			return false;
		*v |= (uint64_t)(*r->p & 0x7f) << shift;
		if (!(*r->p++ & 0x80))
			return true;
	}
	return false;
}

static bool get_fixed(struct reader *r, unsigned n)
{
	if ((size_t)(r->end - r->p) < n)
		return false;
	r->value = 0;
	for (unsigned i = 0; i < n; i++)
		r->value |= (uint64_t)r->p[i] << 8 * i;
	r->p += n;
	return true;
}

/* next reads one field: 1, 0 at the end, -EPROTO. */
static int next(struct reader *r)
{
	uint64_t key, n;

	if (r->p == r->end)
		return 0;
	if (!get_varint(r, &key) || key >> 3 == 0 || key >> 3 > 0x1fffffff)
		return -EPROTO;
	r->field = (unsigned)(key >> 3);
	r->wire = (unsigned)(key & 7);
	switch (r->wire) {
	case WIRE_VARINT:
		return get_varint(r, &r->value) ? 1 : -EPROTO;
	case WIRE_64:
		return get_fixed(r, 8) ? 1 : -EPROTO;
	case WIRE_32:
		return get_fixed(r, 4) ? 1 : -EPROTO;
	case WIRE_BYTES:
		if (!get_varint(r, &n) || n > (uint64_t)(r->end - r->p))
			return -EPROTO;
		r->bytes = r->p;
		r->n = (size_t)n;
		r->p += n;
		return 1;
	}
	return -EPROTO;
}

static bool is(const struct reader *r, unsigned field, unsigned wire)
{
	return r->field == field && r->wire == wire;
}

static struct reader sub(const struct reader *r)
{
	return (struct reader){.p = r->bytes, .end = r->bytes + r->n};
}

static void get_text(const struct reader *r, char *text)
{
	size_t n = r->n < PB_TEXT - 1 ? r->n : PB_TEXT - 1;

	if (n)
		memcpy(text, r->bytes, n);
	text[n] = 0;
}

static int get_endpoint(struct reader r, rdsd_addr *a)
{
	int more;

	memset(a, 0, sizeof *a);
	while ((more = next(&r)) > 0) {
		if (is(&r, 1, WIRE_BYTES) && (r.n == 4 || r.n == 16)) {
			memset(a->ip, 0, sizeof a->ip);
			memcpy(a->ip, r.bytes, r.n);
			a->family = r.n == 4 ? 4 : 6;
		} else if (is(&r, 2, WIRE_VARINT)) {
			a->port = (uint16_t)r.value;
		}
	}
	return more;
}

static int get_ring(struct reader r, struct rdsdi_server *m)
{
	int more;

	while ((more = next(&r)) > 0) {
		if (is(&r, 1, WIRE_VARINT))
			m->ring_version = (uint32_t)r.value;
		else if (is(&r, 2, WIRE_VARINT))
			m->region_bytes = r.value;
	}
	return more;
}

static int get_bound(struct reader r, struct rdsdi_server *m)
{
	int more, err = 0;

	while ((more = next(&r)) > 0) {
		if (is(&r, 1, WIRE_BYTES))
			err = get_endpoint(sub(&r), &m->local);
		else if (is(&r, 7, WIRE_VARINT))
			m->instance = r.value;
		else if (is(&r, 9, WIRE_BYTES))
			err = get_ring(sub(&r), m);
		if (err < 0)
			return err;
	}
	return more;
}

static int get_result(struct reader r, struct rdsdi_server *m)
{
	int more;

	while ((more = next(&r)) > 0) {
		if (is(&r, 1, WIRE_VARINT)) {
			m->id = r.value;
			continue;
		}
		switch (m->body) {
		case SERVER_CANCEL_RESULT:
			if (is(&r, 2, WIRE_VARINT))
				m->cancelled = r.value;
			else if (is(&r, 3, WIRE_VARINT))
				m->in_flight = r.value;
			else if (is(&r, 4, WIRE_VARINT))
				m->error = (int32_t)r.value;
			else if (is(&r, 5, WIRE_BYTES))
				get_text(&r, m->text);
			break;
		case SERVER_FLUSH_RESULT:
			if (is(&r, 2, WIRE_VARINT))
				m->error = (int32_t)r.value;
			else if (is(&r, 3, WIRE_VARINT))
				m->in_flight = r.value;
			break;
		default: /* SERVER_CONGESTED_RESULT */
			if (is(&r, 2, WIRE_VARINT))
				m->congested = r.value != 0;
			else if (is(&r, 3, WIRE_VARINT))
				m->error = (int32_t)r.value;
			else if (is(&r, 4, WIRE_BYTES))
				get_text(&r, m->text);
		}
	}
	return more;
}

static int get_pair(struct reader r, struct rdsdi_server *m)
{
	int more, err = 0;

	while ((more = next(&r)) > 0) {
		if (is(&r, 1, WIRE_VARINT))
			m->id = r.value;
		else if (is(&r, 2, WIRE_VARINT))
			m->pair_state = (unsigned)r.value;
		else if (is(&r, 3, WIRE_BYTES))
			err = get_endpoint(sub(&r), &m->source);
		else if (is(&r, 4, WIRE_BYTES))
			err = get_endpoint(sub(&r), &m->destination);
		else if (is(&r, 5, WIRE_VARINT))
			m->pair_bytes = r.value;
		if (err < 0)
			return err;
	}
	return more;
}

static int get_closing(struct reader r, struct rdsdi_server *m)
{
	int more;

	while ((more = next(&r)) > 0) {
		if (is(&r, 1, WIRE_VARINT))
			m->error = (int32_t)r.value;
		else if (is(&r, 2, WIRE_BYTES))
			get_text(&r, m->text);
	}
	return more;
}

int rdsdi_pb_server(const uint8_t *in, size_t n, struct rdsdi_server *m)
{
	struct reader r = {.p = in, .end = in + n};
	int more, err;

	memset(m, 0, sizeof *m);
	while ((more = next(&r)) > 0) {
		if (r.wire != WIRE_BYTES)
			continue;
		err = 0;
		switch (r.field) {
		case SERVER_BOUND:
			m->body = SERVER_BOUND;
			err = get_bound(sub(&r), m);
			break;
		case SERVER_REGION:
			m->body = SERVER_REGION;
			err = get_ring(sub(&r), m);
			break;
		case SERVER_CANCEL_RESULT:
		case SERVER_FLUSH_RESULT:
		case SERVER_CONGESTED_RESULT:
			m->body = (int)r.field;
			err = get_result(sub(&r), m);
			break;
		case SERVER_PAIR:
			m->body = SERVER_PAIR;
			err = get_pair(sub(&r), m);
			break;
		case SERVER_CLOSING:
			m->body = SERVER_CLOSING;
			err = get_closing(sub(&r), m);
			break;
		}
		if (err < 0)
			return err;
	}
	return more;
}
