/*
 * What this client says of itself: sends that it refused or let wait without the
 * daemon, which reads these words when somebody asks who waits for which port.
 * Nothing else depends on them (docs/shm.md, "What a client says of itself").
 */
#define _GNU_SOURCE
#include <errno.h>

#include "internal.h"

_Thread_local struct rdsdi_jam *rdsdi_jam_whole;

static void count(struct rdsdi_region *reg, uint64_t off, uint64_t n)
{
	atomic_fetch_add_explicit(at64(reg, off), n, memory_order_relaxed);
}

static uint64_t entry_of(const struct rdsdi_tx *tx, const struct rdsdi_flow *f)
{
	return tx->reg->flow_table + (uint64_t)(f - tx->flows) * FLOW_SIZE;
}

static void refused(struct rdsdi_tx *tx, const struct rdsdi_flow *f)
{
	count(tx->reg, entry_of(tx, f) + FLOW_REFUSED, 1);
	count(tx->reg, W_SENDS_REFUSED, 1);
}

void rdsdi_jam_tried(struct rdsdi_tx *tx, const struct rdsdi_flow *f, int why)
{
	if (rdsdi_jam_whole)
		return; /* it goes on to wait, and then counts as a send that waited */
	if (why == -ENOBUFS && f)
		refused(tx, f);
	else if (why == -EAGAIN)
		count(tx->reg, W_SENDS_FULL, 1);
}

void rdsdi_jam_failed(struct rdsdi_op *op)
{
	struct rdsdi_tx *tx = &op->s->tx;

	if (!op->sends)
		return;
	pthread_mutex_lock(&tx->mu);
	if (tx->reg)
		rdsdi_jam_tried(tx, tx->life == op->jam_life ? op->jam : NULL, op->why);
	pthread_mutex_unlock(&tx->mu);
}

/* The entry may be another flow's by now, and the region another daemon's: these begin at 0. */
static void end(struct rdsdi_jam *j, struct rdsdi_tx *tx)
{
	if (j->flow && tx->reg && tx->life == j->life && j->flow->generation == j->generation)
		count(tx->reg, entry_of(tx, j->flow) + FLOW_WAITING, UINT64_MAX);
	j->flow = NULL;
}

void rdsdi_jam_begin(struct rdsdi_jam *j, struct rdsdi_op *op)
{
	struct rdsdi_tx *tx = &op->s->tx;
	struct rdsdi_flow *f = op->jam;

	if (!op->sends || op->patient)
		return;
	pthread_mutex_lock(&tx->mu);
	if (tx->reg && op->why == -EAGAIN && !j->full) {
		j->full = true;
		count(tx->reg, W_SENDS_FULL, 1);
	}
	if (tx->reg && op->why == -ENOBUFS && op->jam_life == tx->life &&
	    (j->flow != f || j->life != tx->life || j->generation != f->generation)) {
		end(j, tx);
		j->flow = f;
		j->generation = f->generation;
		j->life = tx->life;
		count(tx->reg, entry_of(tx, f) + FLOW_WAITED, 1);
		count(tx->reg, entry_of(tx, f) + FLOW_WAITING, 1);
		count(tx->reg, W_SENDS_WAITED, 1);
	}
	pthread_mutex_unlock(&tx->mu);
}

void rdsdi_jam_end(struct rdsdi_jam *j, struct rdsdi_tx *tx)
{
	if (!j->flow || j == rdsdi_jam_whole)
		return;
	pthread_mutex_lock(&tx->mu);
	end(j, tx);
	pthread_mutex_unlock(&tx->mu);
}
