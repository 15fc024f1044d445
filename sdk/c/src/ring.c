/* The client's end of the send ring. */
#include <errno.h>

#include "internal.h"

bool rdsdi_ring_room(rdsd_socket *s)
{
	struct rdsdi_tx *tx = &s->tx;

	if (tx->tail + tx->held - tx->head < tx->reg->send_n)
		return true;
	tx->head = load_acquire(at64(tx->reg, W_SEND_HEAD));
	if (tx->tail - tx->head > tx->reg->send_n) {
		atomic_store(&s->fault, -EPROTO);
		tx->head = tx->tail - tx->reg->send_n;
	}
	return tx->tail + tx->held - tx->head < tx->reg->send_n;
}

void rdsdi_ring_put(struct rdsdi_tx *tx, uint64_t word, uint64_t tag, uint64_t slot, const struct rdsdi_flow *f,
		    uint32_t cookie, uint32_t flags)
{
	_Atomic uint64_t *entry = rdsdi_ring_word(tx, tx->tail);
	uint32_t words[4] = {(uint32_t)(f - tx->flows), f->generation, cookie, flags};

	store_relaxed(&entry[SEND_TAG / 8], tag);
	store_relaxed(&entry[SEND_SLOT / 8], slot);
	for (unsigned i = 0; i < 2; i++)
		store_relaxed(&entry[SEND_FLOW / 8 + i], (uint64_t)words[2 * i + 1] << 32 | words[2 * i]);
	/* Release: a growing descriptor is read by its word alone. */
	store_release(entry, word);
	tx->tail++;
}

void rdsdi_publish(struct rdsdi_tx *tx)
{
	if (tx->published == tx->tail)
		return;
	tx->published = tx->tail;
	atomic_store(at64(tx->reg, W_SEND_TAIL), tx->tail);
	rdsdi_ring(tx->reg, tx->bell, DAEMON_WAITS_SEND);
}
