/*
 * The C ABI between provostd and an engine that was built apart: version 1.
 *
 * A library exports one constant, `provost_engine`, of the type provost_engine_description. What each field and
 * function is for is said here briefly and in docs/engine-sdk.md; the layout is compared with the service's own by a
 * test (crates/core/engine/tests/header.rs).
 *
 * Text is UTF-8 with a length, not terminated. What one side lends the other in a call is valid until the call returns,
 * unless it says otherwise. A *policy* is used by several threads at once, a *filter* by one at a time. No function may
 * let an exception out.
 */
#ifndef PROVOST_ENGINE_H
#define PROVOST_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PROVOST_ENGINE_ABI 1u

/* What functions return. */
#define PROVOST_OK 0
#define PROVOST_REFUSED 1 /* not done, for a reason that is told */
#define PROVOST_FAILED 2  /* failed in its midst: what it worked on is only destroyed from now on */

/* provost_engine_description.flags: nothing in the library ends the process (a Rust panic is caught, C has none). */
#define PROVOST_CONTAINS_PANICS 1u

/* provost_verdict.kind */
#define PROVOST_PASS 0u
#define PROVOST_DENY 1u
#define PROVOST_HOLD 2u

#define PROVOST_SIDE_CLIENT 0u /* the app makes calls */
#define PROVOST_SIDE_SERVER 1u /* the app serves calls */
#define PROVOST_REQUEST 0u     /* from the client to the server */
#define PROVOST_RESPONSE 1u    /* from the server to the client */

/* Parts of a step. A unary request is BEGIN | MESSAGE | END, its response MESSAGE | STATUS. */
#define PROVOST_BEGIN 1u
#define PROVOST_HEADERS 2u
#define PROVOST_MESSAGE 4u
#define PROVOST_END 8u
#define PROVOST_STATUS 16u
#define PROVOST_CANCEL 32u
#define PROVOST_WINDOW 64u

/* Status codes are gRPC's: 0 OK, 3 INVALID_ARGUMENT, 7 PERMISSION_DENIED, 8 RESOURCE_EXHAUSTED, 16 UNAUTHENTICATED. */

/* provost_field_value.kind */
#define PROVOST_VALUE_ABSENT 0u
#define PROVOST_VALUE_BOOL 1u
#define PROVOST_VALUE_INT 2u
#define PROVOST_VALUE_UINT 3u
#define PROVOST_VALUE_DOUBLE 4u
#define PROVOST_VALUE_STRING 5u
#define PROVOST_VALUE_BYTES 6u
#define PROVOST_VALUE_MESSAGE 7u
#define PROVOST_VALUE_LIST 8u

/* provost_metric.kind */
#define PROVOST_COUNTER 0u
#define PROVOST_GAUGE 1u
#define PROVOST_HISTOGRAM 2u

/* Borrowed bytes or text. */
typedef struct provost_bytes {
    const uint8_t *at;
    size_t length;
} provost_bytes;

/* Where output of any length goes; may be called several times. A null `write` wants nothing. */
typedef struct provost_sink {
    void *to;
    void (*write)(void *to, const uint8_t *at, size_t length);
} provost_sink;

typedef struct provost_state {
    uint32_t version;
    uint32_t reserved;
    provost_bytes bytes;
} provost_state;

/* Something that must be accounted for, for the audit log. */
typedef struct provost_audit {
    provost_bytes action; /* such as "deny" */
    provost_bytes app;
    provost_bytes method;
    provost_bytes peer;
    provost_bytes reason;
    uint64_t call;
    uint32_t code;
    uint32_t reserved;
} provost_audit;

/* What is in a step, as far as it is in private memory. */
typedef struct provost_contents {
    provost_bytes metadata; /* entries: key length (2 bytes), value length (4 bytes), key, value */
    provost_bytes message;  /* in the native layout, docs/layout.md */
    uint32_t window_at;     /* what its references count from */
    uint8_t has_message;
    uint8_t reserved[3];
} provost_contents;

typedef struct provost_field_value {
    uint32_t kind;
    uint32_t reserved;
    uint64_t number; /* integers (of signed ones their bits), truth values, lengths of lists */
    double real;
    provost_bytes bytes; /* valid until the step is changed or the judgement ends */
} provost_field_value;

/*
 * What the service offers. Functions of steps take the handle that `judge` got, during that judgement; `field_path` takes
 * the handle that `prepare` got; `audit` the environment of the policy's setup, from any thread.
 */
typedef struct provost_host {
    uint32_t abi;
    uint32_t struct_bytes;
    int32_t (*contents)(void *step, provost_contents *contents);
    /* Copies what is still in the app's memory, so that the message is whole. */
    int32_t (*make_whole)(void *step);
    /* The first value of a key; REFUSED: none. */
    int32_t (*metadata)(void *step, provost_bytes key, provost_bytes *value);
    /* Adds an entry to a step on its way to the wire; REFUSED: not to this one, or it is full. */
    int32_t (*append_metadata)(void *step, provost_bytes key, provost_bytes value);
    /* Writes a value of the same length over the first one; REFUSED: there is none of that length. */
    int32_t (*overwrite_metadata)(void *step, provost_bytes key, provost_bytes value);
    /* A field by its number; REFUSED: it is of another method's or direction's message. */
    int32_t (*field)(void *step, uint32_t path, provost_field_value *value);
    /* Finds a field such as `user.name` and gives it a number. */
    int32_t (*field_path)(void *site, uint32_t method, uint32_t direction, provost_bytes path, uint32_t *number,
                          provost_sink problem);
    void (*audit)(void *environment, const provost_audit *event);
} provost_host;

typedef struct provost_setup {
    const provost_host *host; /* valid for ever */
    void *environment;        /* for audit; valid until the policy is destroyed */
    provost_bytes node;
    provost_bytes policy; /* the name under which it was attached */
    provost_bytes config; /* TOML, one `key = value` a line */
    const provost_state *shared; /* what the policy in whose place it comes has left, or null */
} provost_setup;

typedef struct provost_app {
    provost_bytes name;
    uint64_t id;
    int32_t pid;
    uint32_t uid;
    uint32_t gid;
    uint32_t reserved;
} provost_app;

/* Who an app is, by the names that its own node gives. */
typedef struct provost_identity {
    provost_bytes node;
    provost_bytes name;     /* with which it attached there */
    provost_bytes user;     /* empty where the number has none */
    provost_bytes workload; /* such as a SPIFFE id; empty without one */
    uint32_t uid;
    uint32_t reserved;
} provost_identity;

typedef struct provost_method {
    provost_bytes name;   /* Get */
    provost_bytes path;   /* /kv.Kv/Get */
    provost_bytes input;  /* full names of messages */
    provost_bytes output;
    uint8_t in_scope; /* the policy was attached to it */
    uint8_t client_streaming;
    uint8_t server_streaming;
    uint8_t reserved[5];
} provost_method;

/* A datapath. */
typedef struct provost_site {
    uint32_t struct_bytes;
    uint8_t side;
    uint8_t reserved[3];
    uint64_t connection;
    uint64_t runtime;
    provost_bytes node;
    provost_bytes service;
    provost_bytes peer_identity;
    provost_bytes peer_address;
    provost_bytes transport;
    provost_bytes descriptor_set; /* a serialized google.protobuf.FileDescriptorSet */
    const provost_app *app;
    const provost_app *peer_app; /* or null */
    const provost_method *methods;
    size_t method_count;
    /* A service from before these two were told ends its struct here: see struct_bytes. */
    const provost_identity *app_identity;
    /* The app at the other end, on this node or on another one whose word is taken (tls.attesting_peers); else null. On the
     * side of a server this is who calls; nothing in it is the caller's own word. */
    const provost_identity *peer_app_identity;
} provost_site;

/* Which steps a filter judges: those with any of these parts. */
typedef struct provost_watch {
    uint8_t requests;
    uint8_t responses;
    uint8_t calls; /* 1: calls are kept in mind, and their ends told */
    uint8_t reserved;
} provost_watch;

typedef struct provost_step {
    uint32_t struct_bytes;
    uint32_t message_bytes;
    uint64_t call;
    uint64_t now; /* nanoseconds of the monotonic clock, as all times here */
    uint64_t begun_at;
    uint64_t held_since; /* if is_held */
    uint64_t deadline;   /* 0: none */
    uint16_t method;
    uint8_t parts;
    uint8_t direction;
    uint8_t status;
    uint8_t is_held;
    uint8_t is_split; /* large leaves of the message are still in the app's memory: make_whole */
    uint8_t reserved;
} provost_step;

typedef struct provost_verdict {
    uint32_t kind;
    uint32_t code;             /* of a denial */
    uint64_t until;            /* of a hold */
    int64_t retry_pushback_ms; /* of a denial, if has_retry_pushback; negative: do not try again */
    uint32_t has_retry_pushback;
    uint32_t reserved;
    provost_bytes reason; /* of a denial or a failure; valid until the filter is called again */
} provost_verdict;

typedef struct provost_ended {
    uint64_t at;
    uint32_t code;
    uint8_t cancelled;
    uint8_t direction;
    uint8_t reserved[2];
} provost_ended;

/* A metric; a name always has the same help, unit and kind. */
typedef struct provost_metric {
    provost_bytes name;
    provost_bytes help;
    provost_bytes unit;
    uint32_t kind;
    uint32_t reserved;
} provost_metric;

typedef struct provost_label {
    provost_bytes name;
    provost_bytes value;
} provost_label;

typedef struct provost_bucket {
    double bound;
    uint64_t count;
} provost_bucket;

typedef struct provost_measure {
    const provost_metric *metric;
    const provost_label *labels;
    size_t label_count;
    const provost_bucket *buckets; /* of a histogram: cumulative, ascending, the last one infinite */
    size_t bucket_count;
    double value; /* of a histogram: the sum */
    uint64_t count;
} provost_measure;

typedef struct provost_measure_sink {
    void *to;
    void (*measure)(void *to, const provost_measure *measure);
} provost_measure_sink;

typedef struct provost_engine_description {
    uint32_t abi; /* PROVOST_ENGINE_ABI */
    uint32_t struct_bytes;
    provost_bytes kind; /* lower-case letters, digits and '-' */
    provost_bytes summary;
    provost_bytes example; /* a commented configuration in TOML */
    uint32_t version;      /* of the code: what an operator upgrades from and to */
    uint32_t flags;
    uint32_t state_oldest; /* versions of a filter's saved state that filter_restore reads */
    uint32_t state_newest;
    int32_t (*configure)(const provost_setup *setup, void **policy, provost_sink problem);
    int32_t (*policy_save)(void *policy, uint32_t *version, provost_sink bytes);
    int32_t (*policy_metrics)(void *policy, provost_measure_sink sink);
    void (*policy_destroy)(void *policy);
    int32_t (*prepare)(void *policy, const provost_site *site, void *site_handle, void **filter, provost_watch *watch,
                       provost_sink problem);
    int32_t (*filter_restore)(void *filter, const provost_state *state, provost_sink problem);
    /* `call` is a word of the filter's own for each call: 0 at first, then what it left there. */
    int32_t (*judge)(void *filter, const provost_step *step, void *step_handle, uint64_t *call,
                     provost_verdict *verdict);
    /* A call is over; `end` is null where nobody needs to know but whoever keeps something under its word. */
    int32_t (*ended)(void *filter, uint64_t call, const provost_ended *end);
    int32_t (*call_save)(void *filter, uint64_t call, provost_sink bytes);
    int32_t (*call_load)(void *filter, provost_bytes bytes, uint64_t *call);
    int32_t (*filter_save)(void *filter, uint32_t *version, provost_sink bytes);
    void (*filter_destroy)(void *filter);
} provost_engine_description;

/* What a library exports. */
extern const provost_engine_description provost_engine;

#ifdef __cplusplus
}
#endif

#endif
