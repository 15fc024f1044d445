#include "arena.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static unsigned order_of(uint64_t units)
{
	unsigned k = 0;

	while (UINT64_C(1) << k < units)
		k++;
	return k;
}

int rdsdi_arena_init(struct rdsdi_arena *a, uint64_t bytes)
{
	memset(a, 0, sizeof *a);
	if (bytes < ARENA_UNIT || bytes & (bytes - 1) || bytes / ARENA_UNIT >= UINT64_C(1) << ARENA_ORDERS)
		return -EINVAL;
	a->units = (uint32_t)(bytes / ARENA_UNIT);
	a->top = order_of(a->units);
	a->state = calloc(a->units, sizeof *a->state);
	a->next = calloc(a->units, sizeof *a->next);
	a->prev = calloc(a->units, sizeof *a->prev);
	if (!a->state || !a->next || !a->prev) {
		rdsdi_arena_destroy(a);
		return -ENOMEM;
	}
	a->state[0] = (uint8_t)(a->top + 1);
	a->head[a->top] = 1;
	return 0;
}

void rdsdi_arena_destroy(struct rdsdi_arena *a)
{
	free(a->state);
	free(a->next);
	free(a->prev);
	memset(a, 0, sizeof *a);
}

static void push(struct rdsdi_arena *a, uint32_t unit, unsigned k)
{
	a->state[unit] = (uint8_t)(k + 1);
	a->prev[unit] = 0;
	a->next[unit] = a->head[k];
	if (a->head[k])
		a->prev[a->head[k] - 1] = unit + 1;
	a->head[k] = unit + 1;
}

static void unlink_block(struct rdsdi_arena *a, uint32_t unit, unsigned k)
{
	if (a->prev[unit])
		a->next[a->prev[unit] - 1] = a->next[unit];
	else
		a->head[k] = a->next[unit];
	if (a->next[unit])
		a->prev[a->next[unit] - 1] = a->prev[unit];
	a->state[unit] = 0;
}

/* merge frees a block and joins it with its buddies. */
static void merge(struct rdsdi_arena *a, uint32_t unit, unsigned k)
{
	while (k < a->top) {
		uint32_t buddy = unit ^ (UINT32_C(1) << k);

		if (a->state[buddy] != k + 1)
			break;
		unlink_block(a, buddy, k);
		unit &= ~(UINT32_C(1) << k);
		k++;
	}
	push(a, unit, k);
}

static void free_block(struct rdsdi_arena *a, uint32_t unit, unsigned k)
{
	if (k < ARENA_QUICK_ORDERS && a->quicks[k] < ARENA_QUICK)
		a->quick[k][a->quicks[k]++] = unit;
	else
		merge(a, unit, k);
}

static void flush_quick(struct rdsdi_arena *a)
{
	for (unsigned k = 0; k < ARENA_QUICK_ORDERS; k++)
		while (a->quicks[k])
			merge(a, a->quick[k][--a->quicks[k]], k);
}

/* free_units takes any stretch of units apart into aligned blocks. */
static void free_units(struct rdsdi_arena *a, uint32_t unit, uint32_t n)
{
	while (n) {
		unsigned k = 0;

		while (k < a->top && !(unit & (UINT32_C(1) << k)) && UINT32_C(2) << k <= n)
			k++;
		free_block(a, unit, k);
		unit += UINT32_C(1) << k;
		n -= UINT32_C(1) << k;
	}
}

uint64_t rdsdi_arena_size(uint64_t len)
{
	uint64_t units = (len + ARENA_UNIT - 1) / ARENA_UNIT;
	uint64_t block = UINT64_C(1) << order_of(units);

	if (block > 64) { /* more than 4 KiB: cut to an eighth */
		uint64_t eighth = block / 8;

		return (units + eighth - 1) / eighth * eighth * ARENA_UNIT;
	}
	return block * ARENA_UNIT;
}

static uint32_t take_block(struct rdsdi_arena *a, unsigned k)
{
	unsigned from = k;
	uint32_t unit;

	if (k < ARENA_QUICK_ORDERS && a->quicks[k])
		return a->quick[k][--a->quicks[k]] + 1;
	while (from <= a->top && !a->head[from])
		from++;
	if (from > a->top)
		return 0;
	unit = a->head[from] - 1;
	unlink_block(a, unit, from);
	while (from > k) {
		from--;
		push(a, unit + (UINT32_C(1) << from), from);
	}
	return unit + 1;
}

uint64_t rdsdi_arena_alloc(struct rdsdi_arena *a, uint64_t len)
{
	uint64_t size = rdsdi_arena_size(len);
	unsigned k = order_of(size / ARENA_UNIT);
	uint32_t unit;

	if (k > a->top)
		return ARENA_NONE;
	unit = take_block(a, k);
	if (!unit) {
		flush_quick(a);
		unit = take_block(a, k);
		if (!unit)
			return ARENA_NONE;
	}
	unit--;
	if (size / ARENA_UNIT < UINT64_C(1) << k)
		free_units(a, unit + (uint32_t)(size / ARENA_UNIT), (UINT32_C(1) << k) - (uint32_t)(size / ARENA_UNIT));
	a->used += size;
	return (uint64_t)unit * ARENA_UNIT;
}

void rdsdi_arena_free(struct rdsdi_arena *a, uint64_t off, uint64_t size)
{
	a->used -= size;
	free_units(a, (uint32_t)(off / ARENA_UNIT), (uint32_t)(size / ARENA_UNIT));
}

uint64_t rdsdi_arena_shrink(struct rdsdi_arena *a, uint64_t off, uint64_t size, uint64_t len)
{
	uint64_t keep = (len + ARENA_UNIT - 1) / ARENA_UNIT * ARENA_UNIT;

	if (keep < size)
		rdsdi_arena_free(a, off + keep, size - keep);
	return keep < size ? keep : size;
}
