/*
 * An engine in C: denies calls with requests over a number of bytes.
 *
 *     cc -shared -fPIC -I crates/core/engine/include -o libsize_limit.so sdk/examples/c/size_limit.c
 */
#include <provost_engine.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define TEXT(literal) {(const uint8_t *)(literal), sizeof(literal) - 1}

struct policy {
    uint64_t message_bytes_max;
    atomic_uint_fast64_t denied;
};

struct filter {
    struct policy *policy;
};

static int32_t refuse(provost_sink problem, const char *text) {
    if (problem.write) problem.write(problem.to, (const uint8_t *)text, strlen(text));
    return PROVOST_REFUSED;
}

/* The configuration has one key, so there is one line: message-bytes-max = 1024 */
static int32_t configure(const provost_setup *setup, void **place, provost_sink problem) {
    static const char key[] = "message-bytes-max = ";
    char line[64] = {0};
    if (setup->config.length >= sizeof line) return refuse(problem, "too many keys");
    if (setup->config.length) memcpy(line, setup->config.at, setup->config.length);
    if (strncmp(line, key, sizeof key - 1) != 0) return refuse(problem, "message-bytes-max: is missing");
    char *end = NULL;
    unsigned long long bytes = strtoull(line + sizeof key - 1, &end, 10);
    if (end == line + sizeof key - 1 || (*end != '\n' && *end != 0) || line[sizeof key - 1] == '-')
        return refuse(problem, "message-bytes-max: give a number of bytes");
    struct policy *policy = calloc(1, sizeof *policy);
    if (!policy) return refuse(problem, "no memory");
    policy->message_bytes_max = bytes;
    *place = policy;
    return PROVOST_OK;
}

static int32_t policy_save(void *policy, uint32_t *version, provost_sink bytes) {
    (void)policy, (void)bytes;
    *version = 0;
    return PROVOST_OK;
}

static int32_t policy_metrics(void *policy, provost_measure_sink sink) {
    static const provost_metric denied = {.name = TEXT("example_size_limit_denied_total"),
                                          .help = TEXT("Calls with requests over the limit."),
                                          .unit = TEXT("{call}"),
                                          .kind = PROVOST_COUNTER};
    provost_measure measure = {.metric = &denied, .value = (double)((struct policy *)policy)->denied};
    sink.measure(sink.to, &measure);
    return PROVOST_OK;
}

static void policy_destroy(void *policy) { free(policy); }

static int32_t prepare(void *policy, const provost_site *site, void *site_handle, void **place, provost_watch *watch,
                       provost_sink problem) {
    (void)site, (void)site_handle;
    struct filter *filter = calloc(1, sizeof *filter);
    if (!filter) return refuse(problem, "no memory");
    filter->policy = policy;
    watch->requests = PROVOST_MESSAGE;
    *place = filter;
    return PROVOST_OK;
}

static int32_t filter_restore(void *filter, const provost_state *state, provost_sink problem) {
    (void)filter;
    return state->bytes.length == 0 ? PROVOST_OK : refuse(problem, "it has no state");
}

static int32_t judge(void *filter, const provost_step *step, void *step_handle, uint64_t *call,
                     provost_verdict *verdict) {
    (void)step_handle, (void)call;
    struct policy *policy = ((struct filter *)filter)->policy;
    if (step->message_bytes <= policy->message_bytes_max) return PROVOST_OK; /* the verdict is PASS already */
    atomic_fetch_add(&policy->denied, 1);
    verdict->kind = PROVOST_DENY;
    verdict->code = 8; /* RESOURCE_EXHAUSTED */
    verdict->reason = (provost_bytes)TEXT("the request is too large");
    return PROVOST_OK;
}

static int32_t ended(void *filter, uint64_t call, const provost_ended *end) {
    (void)filter, (void)call, (void)end;
    return PROVOST_OK;
}

static int32_t call_save(void *filter, uint64_t call, provost_sink bytes) {
    (void)filter, (void)call, (void)bytes;
    return PROVOST_OK;
}

static int32_t call_load(void *filter, provost_bytes bytes, uint64_t *call) {
    (void)filter, (void)call;
    return bytes.length == 0 ? PROVOST_OK : PROVOST_REFUSED;
}

static int32_t filter_save(void *filter, uint32_t *version, provost_sink bytes) {
    (void)filter, (void)bytes;
    *version = 0;
    return PROVOST_OK;
}

static void filter_destroy(void *filter) { free(filter); }

const provost_engine_description provost_engine = {
    .abi = PROVOST_ENGINE_ABI,
    .struct_bytes = sizeof(provost_engine_description),
    .kind = TEXT("size-limit"),
    .summary = TEXT("denies calls with requests over a number of bytes"),
    .example = TEXT("message-bytes-max = 1024  # the largest request that passes"),
    .version = 1,
    .flags = PROVOST_CONTAINS_PANICS,
    .configure = configure,
    .policy_save = policy_save,
    .policy_metrics = policy_metrics,
    .policy_destroy = policy_destroy,
    .prepare = prepare,
    .filter_restore = filter_restore,
    .judge = judge,
    .ended = ended,
    .call_save = call_save,
    .call_load = call_load,
    .filter_save = filter_save,
    .filter_destroy = filter_destroy,
};
