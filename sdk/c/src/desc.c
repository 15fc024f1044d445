/*
 * Posted send descriptors, by cookie: the lower half of a cookie is the index,
 * from 1 on, the upper half changes with each use, so that an event for one that
 * is gone is noticed.
 */
#include <stdlib.h>

#include "internal.h"

struct rdsdi_desc *rdsdi_desc_new(struct rdsdi_tx *tx, uint32_t *cookie)
{
	struct rdsdi_desc *d;
	uint32_t i;
	uint16_t turn;

	if (tx->desc_free) {
		i = tx->desc_free - 1;
		tx->desc_free = tx->descs[i].next;
	} else {
		if (tx->descs_n == tx->descs_cap) {
			uint32_t cap = tx->descs_cap ? 2 * tx->descs_cap : 64;
			struct rdsdi_desc *more;

			if (cap > MAX_DESCS)
				cap = MAX_DESCS;
			if (cap == tx->descs_cap)
				return NULL;
			more = realloc(tx->descs, cap * sizeof *more);
			if (!more)
				return NULL;
			tx->descs = more;
			tx->descs_cap = cap;
		}
		i = tx->descs_n++;
		tx->descs[i].turn = 0;
	}
	d = &tx->descs[i];
	turn = (uint16_t)(d->turn + 1);
	*d = (struct rdsdi_desc){.turn = turn, .used = true};
	*cookie = (uint32_t)turn << 16 | (i + 1);
	return d;
}

struct rdsdi_desc *rdsdi_desc_of(const struct rdsdi_tx *tx, uint32_t cookie)
{
	uint32_t i = (cookie & 0xffff) - 1;

	if (i >= tx->descs_n || !tx->descs[i].used || tx->descs[i].turn != cookie >> 16)
		return NULL;
	return &tx->descs[i];
}

void rdsdi_desc_free(struct rdsdi_tx *tx, struct rdsdi_desc *d)
{
	free(d->map);
	d->map = NULL;
	d->used = false;
	d->next = tx->desc_free;
	tx->desc_free = (uint32_t)(d - tx->descs) + 1;
}

bool rdsdi_desc_decided(const struct rdsdi_desc *d, uint32_t at)
{
	return at < d->front || (d->map && d->map[at / 64] >> at % 64 & 1);
}

bool rdsdi_desc_decide(struct rdsdi_desc *d, uint32_t at, uint32_t count)
{
	if (at == d->front && !d->map) {
		d->front += count;
		return true;
	}
	if (at < d->front)
		return false;
	if (!d->map) {
		d->map = calloc(TRAIN_DATAGRAMS / 64, sizeof *d->map);
		if (!d->map)
			return false;
	}
	for (uint32_t i = at; i < at + count; i++) {
		if (rdsdi_desc_decided(d, i))
			return false;
		d->map[i / 64] |= UINT64_C(1) << i % 64;
	}
	return true;
}
