/* Engines that are wrong in one way each, made of the one that is right. */
#define provost_engine right_engine
#include "size_limit.c"
#undef provost_engine

#ifndef ABI
#define ABI PROVOST_ENGINE_ABI
#endif
#ifndef STRUCT_BYTES
#define STRUCT_BYTES sizeof(provost_engine_description)
#endif
#ifndef KIND
#define KIND TEXT("odd")
#endif
#ifndef FLAGS
#define FLAGS PROVOST_CONTAINS_PANICS
#endif
#ifndef CONFIGURE
#define CONFIGURE configure
#endif
#ifndef JUDGE
#define JUDGE judge
#endif

static void flood(provost_sink sink) {
    static uint8_t block[1 << 20];
    memset(block, 'x', sizeof block);
    for (int i = 0; i < 100; i++) sink.write(sink.to, block, sizeof block);
}

/* Refuses with 100 MiB of reasons. */
int32_t long_refusal(const provost_setup *setup, void **place, provost_sink problem) {
    (void)setup, (void)place;
    flood(problem);
    return PROVOST_REFUSED;
}

/* Says that it has made a policy, and has not. */
int32_t makes_nothing(const provost_setup *setup, void **place, provost_sink problem) {
    (void)setup, (void)place, (void)problem;
    return PROVOST_OK;
}

/* A verdict that is none. */
int32_t unknown_verdict(void *filter, const provost_step *step, void *handle, uint64_t *call, provost_verdict *verdict) {
    (void)filter, (void)step, (void)handle, (void)call;
    verdict->kind = 77;
    return PROVOST_OK;
}

/* A denial with a code that is none. */
int32_t unknown_code(void *filter, const provost_step *step, void *handle, uint64_t *call, provost_verdict *verdict) {
    (void)filter, (void)step, (void)handle, (void)call;
    verdict->kind = PROVOST_DENY;
    verdict->code = 4711;
    return PROVOST_OK;
}

static int32_t save_too_much(void *it, uint32_t *version, provost_sink bytes) {
    (void)it;
    *version = 1;
    flood(bytes);
    return PROVOST_OK;
}

/* Metrics without end, with labels without end. */
static int32_t measure_too_much(void *policy, provost_measure_sink sink) {
    (void)policy;
    static char name[] = "odd_00000000_total";
    provost_metric metric = {.name = {(const uint8_t *)name, sizeof name - 1}, .kind = PROVOST_GAUGE};
    provost_measure measure = {.metric = &metric, .value = 1};
    for (int i = 0; i < 100000; i++) {
        for (int digit = 11, rest = i; digit > 3; digit--, rest /= 10) name[digit] = (char)('0' + rest % 10);
        sink.measure(sink.to, &measure);
    }
    measure.label_count = (size_t)1 << 40;
    sink.measure(sink.to, &measure);
    measure.metric = NULL;
    sink.measure(sink.to, &measure);
    return PROVOST_OK;
}

const provost_engine_description provost_engine = {
    .abi = ABI,
    .struct_bytes = STRUCT_BYTES,
    .kind = KIND,
    .summary = TEXT("odd"),
    .example = TEXT(""),
    .version = 1,
    .flags = FLAGS,
    .configure = CONFIGURE,
    .policy_save = save_too_much,
    .policy_metrics = measure_too_much,
    .policy_destroy = policy_destroy,
    .prepare = prepare,
    .filter_restore = filter_restore,
    .judge = JUDGE,
    .ended = ended,
    .call_save = call_save,
    .call_load = call_load,
    .filter_save = save_too_much,
    .filter_destroy = filter_destroy,
};
