/*
 * The layout of shared memory, version 3: docs/shm.md in numbers. Nothing here
 * is chosen by this library.
 */
#ifndef RDSDI_LAYOUT_H
#define RDSDI_LAYOUT_H

#define SHM_MAGIC "RDSDSHM1"
#define SHM_VERSION 3u
#define SHM_HEADER 4096u /* bytes of the header page */
#define SHM_WORDS 4096u  /* where the words begin */
#define SHM_FIXED 8192u  /* header and words */
#define SHM_PART 65536u  /* both parts are multiples of it */
#define SHM_TOUCH 4096u  /* how far apart accesses may be that are to touch every page */

/* Header fields, offsets in bytes. */
enum {
	HDR_MAGIC = 0,
	HDR_VERSION = 8,
	HDR_HEADER_BYTES = 12,
	HDR_REGION_BYTES = 16,
	HDR_REGION_ID = 24,
	HDR_INSTANCE = 40,
	HDR_LOCAL_IP = 48,
	HDR_LOCAL_PORT = 64,
	HDR_FAMILY = 66,
	HDR_UID = 68,
	HDR_PID = 72,
	HDR_MAX_DATAGRAM = 76,
	HDR_SNDBUF = 80,
	HDR_RCVBUF = 88,
	HDR_FLOWS = 96,
	HDR_SEND_ENTRIES = 100,
	HDR_EVENT_ENTRIES = 104,
	HDR_RECV_ENTRIES = 108,
	HDR_RELEASE_ENTRIES = 112,
	HDR_TAKES = 116,
	HDR_FLOW_TABLE = 120,
	HDR_FLOW_STATES = 128,
	HDR_SEND_RING = 136,
	HDR_EVENT_RING = 144,
	HDR_RECV_RING = 152,
	HDR_RELEASE_RING = 160,
	HDR_SEND_ARENA = 168,
	HDR_SEND_ARENA_BYTES = 176,
	HDR_RECV_ARENA = 184,
	HDR_RECV_ARENA_BYTES = 192,
	HDR_DAEMON_PART = 200,
	HDR_CRC = 4092
};

/* Words. */
enum {
	W_SEND_TAIL = 4096,
	W_SEND_HEAD = 4224,
	W_EVENT_TAIL = 4352,
	W_EVENT_HEAD = 4480,
	W_RECV_TAIL = 4608,
	W_RECV_HEAD = 4736,
	W_RELEASE_TAIL = 4864,
	W_RELEASE_HEAD = 4992,
	W_DAEMON_SLEEPS = 5120,
	W_CLIENT_SLEEPS = 5248,
	W_CLOSED = 5376,
	W_ONE_BY_ONE = 5504,
	W_SENDS_REFUSED = 5632,
	W_SENDS_WAITED = 5760,
	W_SENDS_FULL = 5888,
	W_ROOM_WANTED = 6016,
	W_NUDGES = 6144
};

/* Bits of the sleep words: what the sleeper waits for. */
#define DAEMON_WAITS_SEND 1u /* send descriptors */
#define DAEMON_WAITS_ROOM 2u /* released slots, events read */
#define WAITS_RECV 1u        /* receive descriptors */
#define WAITS_EVENT 2u       /* events */
#define WAITS_SEND_ROOM 4u   /* the send head */
#define WAITS_FLOW 8u        /* flow states */

/* The descriptor word. */
#define WORD_CLAIMED (UINT64_C(1) << 63)
#define WORD_MAKE(bytes, n, kind) ((uint64_t)(bytes) | (uint64_t)(n) << 24 | (uint64_t)(kind) << 40)
#define WORD_BYTES(w) ((uint32_t)((w) & 0xffffff))
#define WORD_COUNT(w) ((uint32_t)((w) >> 24 & 0xffff))
#define WORD_KIND(w) ((uint32_t)((w) >> 40 & 0xf))

enum { KIND_SAME = 1, KIND_TABLE = 2, KIND_OPEN = 3, KIND_MIXED = 4 };
#define TAKES_MIXED 1u /* in HDR_TAKES: descriptors of KIND_MIXED */
#define TABLE_ENTRY 4u /* bytes of one length */

#define TRAIN_DATAGRAMS 4096u
#define TRAIN_BYTES 65536u

/* Flow table entry. */
enum {
	FLOW_SIZE = 64,
	FLOW_IP = 0,
	FLOW_PORT = 16,
	FLOW_FAMILY = 18,
	FLOW_GENERATION = 20,
	FLOW_REFUSED = 24,
	FLOW_WAITED = 32,
	FLOW_WAITING = 40
};

/* Flow state word. */
#define STATE_ERRNO(w) ((uint32_t)((w) & 0xffff))
#define STATE_STATE(w) ((uint32_t)((w) >> 16 & 0xffff))
#define STATE_GENERATION(w) ((uint32_t)((w) >> 32))
enum { STATE_NEW = 0, STATE_CLEAR = 1, STATE_CONGESTED = 2, STATE_REFUSED = 3 };

/* Send descriptor. */
enum {
	SEND_SIZE = 64,
	SEND_WORD = 0,
	SEND_TAG = 8,
	SEND_SLOT = 16,
	SEND_FLOW = 24,
	SEND_GENERATION = 28,
	SEND_COOKIE = 32,
	SEND_FLAGS = 36
};
#define SEND_SOON 1u /* the outcome is waited for */
#define NO_COOKIE 0xffffffffu

/* Event. */
enum {
	EVENT_SIZE = 64,
	EVENT_KIND = 0,
	EVENT_OUTCOME = 1,
	EVENT_REASON = 2,
	EVENT_FLAGS = 3,
	EVENT_COUNT = 4,
	EVENT_TAG = 8,
	EVENT_COOKIE = 16,
	EVENT_ERRNO = 20,
	EVENT_IP = 24,
	EVENT_PORT = 40,
	EVENT_FAMILY = 42
};
enum { EV_OUTCOME = 1, EV_REFUSED = 2, EV_CONGESTION = 3, EV_FREED = 4 };
#define EV_LAST 1u
#define EV_CONGESTED 1u

/* Receive descriptor. */
enum { RECV_SIZE = 64, RECV_WORD = 0, RECV_SLOT = 8, RECV_IP = 16, RECV_PORT = 32, RECV_FAMILY = 34 };

/* Pairs (docs/pairs.md): words, one in 128 bytes, behind the header. */
#define PAIR_MAGIC "RDSDPAIR"
#define PAIR_VERSION 1u
#define PAIR_WORDS 65536 /* bytes of their memfd */
#define PAIR_MIN 65536u  /* of data */
#define PAIR_MAX (1u << 20)
#define PAIR_WORD_APART 128u
enum {
	PAIR_TAIL = 128,
	PAIR_HEAD = 256,
	PAIR_SLEEPS = 384,
	PAIR_MARK = 512,
	PAIR_NUDGE = 640,
	PAIR_SENT = 768, /* and bytes behind it */
	PAIR_READ = 1024
};
#define PAIR_CLOSED (UINT64_C(1) << 63) /* of the tail */
#define PAIR_MARK_BYTES 16u             /* of the record of a mark */
enum { PAIR_PAD = 0, PAIR_DATAGRAMS = 1, PAIR_MARK_KIND = 3 };

/* The control socket: head of a packet. */
enum { PACKET_HEAD = 4, PACKET_KIND = 1, PACKET_MORE = 1, PACKET_PIECE = 65536 };
#define MESSAGE_MAX (16u << 20)

#endif
