/* Moonpool's C API: moves bytes between this process's registered memory and other processes'.
 *
 * Every call ends by its deadline. When a batch is done, ok or not, nothing of it touches memory any
 * more on either side. A call that fails returns a code other than MOONPOOL_OK; moonpool_last_error
 * then says more: the peer, the transport, how far it came and why.
 *
 * Threads: every function may be called from any thread at any time, except that
 * moonpool_engine_destroy must be the last call for its engine. After a fork, the child must not use
 * the parent's engines.
 * Ownership: what a call is given is copied before it returns; the memory that descriptors name
 * belongs to the batch until it is done.
 * Timeouts are in seconds. 0 means the engine's own timeout where a call says "limit", and "do not
 * wait" where it says "wait".
 * Stability: functions and fields are only added, fields at the end. A struct that begins with
 * struct_size must have it set to its sizeof, so that a newer library knows an older program.
 *
 *   moonpool_engine* engine = NULL;
 *   if (moonpool_engine_create(NULL, &engine) != MOONPOOL_OK)
 *     puts(moonpool_last_error()->message);
 */
#ifndef MOONPOOL_MOONPOOL_H_
#define MOONPOOL_MOONPOOL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Named by what the caller does next. */
typedef enum moonpool_code {
  MOONPOOL_OK = 0,
  MOONPOOL_INVALID_ARGUMENT = 1, /* fix the call */
  MOONPOOL_NOT_FOUND = 2,        /* the named thing does not exist */
  MOONPOOL_ALREADY_EXISTS = 3,   /* the named thing exists, or overlaps */
  MOONPOOL_AGAIN = 4,            /* retry after progress */
  MOONPOOL_UNAVAILABLE = 5,      /* try another path or replica */
  MOONPOOL_TIMED_OUT = 6,        /* the deadline passed */
  MOONPOOL_CANCELLED = 7,        /* somebody asked for it */
  MOONPOOL_EXHAUSTED = 8,        /* free something first */
  MOONPOOL_STALE = 9,            /* refresh what you know, then retry */
  MOONPOOL_CORRUPT = 10,         /* the bytes are wrong */
  MOONPOOL_UNSUPPORTED = 11,     /* this build, kernel or peer cannot */
  MOONPOOL_INTERNAL = 12         /* a defect of moonpool */
} moonpool_code;

/* What peers may do with memory. */
enum { MOONPOOL_READ = 1, MOONPOOL_WRITE = 2 };

typedef struct moonpool_engine moonpool_engine;

/* The calling thread's last failure. Strings are never null, empty where they do not apply, and
 * valid until the thread's next call. */
typedef struct moonpool_error {
  moonpool_code code;
  const char* message;
  const char* peer;
  const char* transport;
  const char* phase; /* resolve, connect, handshake, data, commit */
} moonpool_error;

/* Null strings and zero numbers stand for the environment variable named here, or else for the
 * default. */
typedef struct moonpool_engine_options {
  size_t struct_size;
  const char* listen;     /* host:port; port 0: the kernel picks. MOONPOOL_LISTEN, "127.0.0.1:0" */
  const char* name;       /* in the registry. MOONPOOL_NAME, the address */
  const char* registry;   /* http://host:port. MOONPOOL_REGISTRY, none */
  const char* transports; /* "tcp,local", binding. MOONPOOL_TRANSPORTS, all that work */
  const char* advertise_host; /* MOONPOOL_ADVERTISE_HOST, the host listened on */
  const char* log_level;      /* debug, info, warning, error, off. MOONPOOL_LOG_LEVEL, warning */
  double timeout;             /* seconds. MOONPOOL_TIMEOUT, 30 */
  int workers;                /* 1 .. 16. MOONPOOL_WORKERS, 2 */
  int no_checksum;            /* 1: no CRC32C on slices. MOONPOOL_CHECKSUM=0 */
} moonpool_engine_options;

/* `options` may be null. On success *engine is to be destroyed. */
moonpool_code moonpool_engine_create(const moonpool_engine_options* options,
                                     moonpool_engine** engine);
/* Ends everything within 2 s; waiting calls return with MOONPOOL_CANCELLED. Idempotent. */
void moonpool_engine_close(moonpool_engine* engine);
/* Closes, and frees the engine and the memory it allocated. Null is allowed. */
void moonpool_engine_destroy(moonpool_engine* engine);
/* host:port that peers use, and the segment's name; valid while the engine lives. */
const char* moonpool_engine_address(const moonpool_engine* engine);
const char* moonpool_engine_name(const moonpool_engine* engine);
/* Readable while moonpool_completed or moonpool_take_notification may have something. */
int moonpool_event_fd(const moonpool_engine* engine);

/* Memory takes part in transfers from register to deregister. `rights` is a sum of MOONPOOL_READ and
 * MOONPOOL_WRITE. Deregister and free wait for batches that use the memory, for `limit` seconds. */
moonpool_code moonpool_register(moonpool_engine* engine, void* address, uint64_t size, int rights);
moonpool_code moonpool_deregister(moonpool_engine* engine, void* address, double limit);
/* Zeroed, page-aligned, registered memory that processes of this host can map. */
moonpool_code moonpool_allocate(moonpool_engine* engine, uint64_t size, int rights, void** address);
moonpool_code moonpool_free(moonpool_engine* engine, void* address, double limit);

/* Finds a peer by host:port or by name. Opening one twice gives the same handle. */
moonpool_code moonpool_open(moonpool_engine* engine, const char* name, double limit,
                            uint64_t* segment);
moonpool_code moonpool_close_segment(moonpool_engine* engine, uint64_t segment);

typedef struct moonpool_region {
  uint64_t address; /* in the peer's process */
  uint64_t size;    /* bytes */
  int rights;
} moonpool_region;

/* Asks the peer what it offers. *count is the room in `regions` and becomes the number that there
 * are, which may be larger: what fits was stored. */
moonpool_code moonpool_segment_regions(moonpool_engine* engine, uint64_t segment,
                                       moonpool_region* regions, size_t* count);

/* Descriptor i moves lengths[i] bytes between address local[i] here and remote[i] at the peer. */
typedef struct moonpool_group {
  uint64_t segment;
  int write; /* 1: from here to the peer; 0: from the peer to here */
  size_t count;
  const uint64_t* local;
  const uint64_t* remote;
  const uint64_t* lengths; /* bytes, at least 1 */
} moonpool_group;

typedef struct moonpool_batch_request {
  size_t struct_size;
  const moonpool_group* groups;
  size_t group_count;
  double limit;        /* seconds for the whole batch; 0: the engine's */
  int latency;         /* 1: before batches that have 0 */
  int to_queue;        /* 1: report completion through moonpool_completed */
  int notify;          /* 1: deliver the payload to every segment once all data is there */
  const void* payload; /* up to MOONPOOL_NOTIFICATION_BYTES_MAX */
  size_t payload_size;
} moonpool_batch_request;

typedef struct moonpool_batch_status {
  int done;
  moonpool_code code; /* when done */
  uint64_t bytes_total;
  uint64_t bytes_done;
  uint32_t retries;   /* slices sent again */
  char transport[64]; /* the transports used, joined by "+" */
} moonpool_batch_status;

/* Starts a batch; never waits for a peer. *batch is to be released. */
moonpool_code moonpool_submit(moonpool_engine* engine, const moonpool_batch_request* request,
                              uint64_t* batch);
/* The batch's outcome. MOONPOOL_AGAIN: it still runs after `wait` seconds (negative: no limit of
 * its own; the batch ends by its deadline). */
moonpool_code moonpool_wait(moonpool_engine* engine, uint64_t batch, double wait);
/* Never waits. */
moonpool_code moonpool_poll(moonpool_engine* engine, uint64_t batch, moonpool_batch_status* status);
/* Asks; the batch is done soon, by its deadline at the latest. */
moonpool_code moonpool_cancel(moonpool_engine* engine, uint64_t batch);
/* Forgets a batch; one that still runs is cancelled first. */
moonpool_code moonpool_release(moonpool_engine* engine, uint64_t batch);
/* Batches submitted with to_queue that are done, each once. *count is the room in `batches` and
 * becomes the number stored; 0 after `wait` seconds without any. */
moonpool_code moonpool_completed(moonpool_engine* engine, uint64_t* batches, size_t* count,
                                 double wait);

#define MOONPOOL_NOTIFICATION_BYTES_MAX 65536

/* The caller gives `payload` with room for MOONPOOL_NOTIFICATION_BYTES_MAX bytes. */
typedef struct moonpool_notification {
  void* payload;
  size_t capacity;   /* of payload; MOONPOOL_NOTIFICATION_BYTES_MAX at least */
  size_t size;       /* out */
  char sender[1032]; /* out: the sender's segment name */
} moonpool_notification;

/* Delivers `size` bytes of notification->payload to the peer; the engine's timeout applies. */
moonpool_code moonpool_notify(moonpool_engine* engine, uint64_t segment,
                              const moonpool_notification* notification);
/* The oldest one received. MOONPOOL_AGAIN: none came within `wait` seconds. */
moonpool_code moonpool_take_notification(moonpool_engine* engine, double wait,
                                         moonpool_notification* notification);

/* Never null. */
const moonpool_error* moonpool_last_error(void);
/* "ok", "invalid_argument", … */
const char* moonpool_code_name(moonpool_code code);
/* "0.1.0" */
const char* moonpool_version(void);

#ifdef __cplusplus
}
#endif

#endif /* MOONPOOL_MOONPOOL_H_ */
