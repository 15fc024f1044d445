/*
 * A buddy allocator over offsets, for the send arena. It never touches the
 * memory it divides: its accounts are its own, so that nothing which others
 * write can confuse it.
 *
 * Design notes. Blocks are powers of two of units of 64 bytes. What was
 * allocated is not recorded: the caller knows the length, and every aligned
 * stretch can be taken apart into blocks again. So a slot can be cut short
 * (rdsdi_arena_shrink) when a train turns out smaller than planned, and large
 * slots are cut to an eighth of their block. Small freed blocks go to a short
 * stack of their size first, so that a lonely datagram sent again and again
 * does not split and merge the whole arena each time.
 */
#ifndef RDSDI_ARENA_H
#define RDSDI_ARENA_H

#include <stdint.h>

#define ARENA_UNIT 64u
#define ARENA_NONE UINT64_MAX
#define ARENA_ORDERS 26 /* up to 2 GiB */
#define ARENA_QUICK 16  /* blocks in the stack of a size */
#define ARENA_QUICK_ORDERS 11

struct rdsdi_arena {
	uint32_t units;
	unsigned top;        /* order of the whole */
	uint8_t *state;      /* of each unit: order+1 where a free block begins, else 0 */
	uint32_t *next;      /* of free blocks, unit+1; 0 ends */
	uint32_t *prev;
	uint32_t head[ARENA_ORDERS];
	uint32_t quick[ARENA_QUICK_ORDERS][ARENA_QUICK];
	unsigned quicks[ARENA_QUICK_ORDERS];
	uint64_t used;       /* bytes allocated */
};

/* bytes: a power of two, 64 to 2 GiB. 0, -EINVAL or -ENOMEM. */
int rdsdi_arena_init(struct rdsdi_arena *a, uint64_t bytes);
void rdsdi_arena_destroy(struct rdsdi_arena *a);

/* What an allocation of len bytes really takes; len > 0. */
uint64_t rdsdi_arena_size(uint64_t len);

/* The offset of rdsdi_arena_size(len) bytes, ARENA_NONE when there is no room. */
uint64_t rdsdi_arena_alloc(struct rdsdi_arena *a, uint64_t len);

/* Gives size bytes (as rdsdi_arena_size or rdsdi_arena_shrink said) back. */
void rdsdi_arena_free(struct rdsdi_arena *a, uint64_t off, uint64_t size);

/* Cuts a slot of size bytes to what len bytes need and returns its new size. */
uint64_t rdsdi_arena_shrink(struct rdsdi_arena *a, uint64_t off, uint64_t size, uint64_t len);

#endif
