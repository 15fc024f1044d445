/*
 * Datagrams of any length behind each other in one descriptor. Their lengths
 * stand before the payloads, the first next to them, so that both can grow
 * while the daemon has not come. A descriptor whose datagrams have one length so
 * far becomes such a one by the exchange that appends the first of another length,
 * which changes the kind as well. So a flow whose datagrams all have one length
 * never pays for a table but with memory, and with that only where lengths have
 * differed lately. The Go SDK does the same (shm/client_mixed.go).
 */
#define _GNU_SOURCE
#include "send.h"

#define TABLES 16u /* descriptors that get room for a table after the last use of one */

uint32_t rdsdi_table_for(const struct rdsdi_tx *tx, const struct rdsdi_flow *f, uint64_t bytes)
{
	uint64_t most;

	if (!f->tables || bytes > TRAIN_BYTES || !(tx->reg->takes & TAKES_MIXED))
		return 0;
	/* A quarter more than there would be of the usual length: a slot that is full for want of a length is memory lost. */
	most = f->usual_bytes / (f->usual_n ? f->usual_n : 1);
	most = bytes / (most ? most : 1) + 1;
	most = TABLE_ENTRY * (most + most / 4 + 16);
	if (most > TRAIN_BYTES / 4)
		most = TRAIN_BYTES / 4;
	return (uint32_t)(most + 63) / 64 * 64;
}

void rdsdi_mixed_learn(struct rdsdi_flow *f, const struct rdsdi_desc *d)
{
	f->usual_bytes = f->usual_bytes / 2 + d->body;
	f->usual_n = f->usual_n / 2 + d->n;
	if (d->mixed)
		f->tables = TABLES;
	else if (d->room && f->tables)
		f->tables--;
}

void rdsdi_put_length(uint8_t *end, uint32_t i, uint32_t len)
{
	uint8_t *e = end - TABLE_ENTRY * (i + 1);

	e[0] = (uint8_t)(len >> 24);
	e[1] = (uint8_t)(len >> 16);
	e[2] = (uint8_t)(len >> 8);
	e[3] = (uint8_t)len;
}

/* fits says whether one more of len bytes can stand behind n datagrams of body bytes. */
static bool fits(const struct rdsdi_flow *f, const struct rdsdi_desc *d, uint32_t n, uint32_t body, size_t len)
{
	uint32_t table = TABLE_ENTRY * (n + 1);

	return n < f->open_max && table <= d->room && d->room + body + len <= d->size && table + body + len <= TRAIN_BYTES;
}

uint32_t rdsdi_grow_mixed(rdsd_socket *s, struct rdsdi_flow *f, const struct rdsdi_source *src, size_t from, uint32_t n, uint64_t *tag)
{
	struct rdsdi_tx *tx = &s->tx;
	uint32_t done = 0, body;
	struct rdsdi_desc *d;
	uint8_t *payloads;
	uint64_t word;

	if (!f->open || tx->tail - f->open_entry > tx->reg->send_n || !(tx->reg->takes & TAKES_MIXED))
		return 0;
	if (load_relaxed(rdsdi_ring_word(tx, f->open_entry)) & WORD_CLAIMED) {
		rdsdi_send_claimed(tx, f);
		return 0;
	}
	d = rdsdi_desc_of(tx, f->open);
	payloads = rdsdi_slot_at(tx, d->slot) + d->room;
	for (body = d->body; done < n; done++) {
		const rdsd_dgram *g = src->dgrams ? &src->dgrams[from + done] : NULL;
		size_t len = src->mixed ? g->len : src->len;

		if (!fits(f, d, d->n + done, body, len)) {
			if (!done && len <= TRAIN_BYTES / 2) {
				f->tables = TABLES;
				rdsdi_send_wider(f, d);
			}
			break;
		}
		for (uint32_t i = 0; !done && !d->mixed && i < d->n; i++)
			rdsdi_put_length(payloads, i, d->len);
		rdsdi_put_length(payloads, d->n + done, (uint32_t)len);
		rdsdi_send_copy(payloads + body, g ? g->data : (const void *)(src->data + (from + done) * len), len);
		body += (uint32_t)len;
	}
	if (!done)
		return 0;
	/* With the same exchange a descriptor of one length gets its table. */
	word = WORD_MAKE(body, d->n + done, KIND_MIXED);
	if (!atomic_compare_exchange_strong(rdsdi_ring_word(tx, f->open_entry), &f->open_word, word)) {
		rdsdi_send_claimed(tx, f);
		return 0;
	}
	*tag = d->tag + d->n;
	f->open_word = word;
	d->mixed = true;
	d->n += done;
	d->left += done;
	tx->undecided += done;
	d->undecided += body - d->body;
	tx->used += body - d->body;
	d->body = body;
	rdsdi_ring(tx->reg, tx->bell, DAEMON_WAITS_SEND);
	return done;
}
