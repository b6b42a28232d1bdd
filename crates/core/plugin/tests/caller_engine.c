/* Denies every request, and says who calls: `name user uid workload @ node identity`, as the service knows it. */
#define provost_engine right_engine
#include "size_limit.c"
#undef provost_engine

#include <stddef.h>
#include <stdio.h>

struct caller {
    char reason[512];
};

static int32_t any_configuration(const provost_setup *setup, void **place, provost_sink problem) {
    (void)setup, (void)problem;
    *place = calloc(1, 1);
    return PROVOST_OK;
}

static int32_t no_metrics(void *policy, provost_measure_sink sink) {
    (void)policy, (void)sink;
    return PROVOST_OK;
}

static int32_t keep_caller(void *policy, const provost_site *site, void *handle, void **place, provost_watch *watch,
                           provost_sink problem) {
    (void)policy, (void)handle, (void)problem;
    struct caller *caller = calloc(1, sizeof *caller);
    const provost_identity *who = NULL;
    if (site->struct_bytes >= offsetof(provost_site, peer_app_identity) + sizeof who) who = site->peer_app_identity;
#define SHOWN(bytes) (int)(bytes).length, (const char *)(bytes).at
    if (who)
        snprintf(caller->reason, sizeof caller->reason, "%.*s %.*s %u %.*s @ %.*s %.*s", SHOWN(who->name), SHOWN(who->user),
                 who->uid, SHOWN(who->workload), SHOWN(who->node), SHOWN(site->peer_identity));
    else snprintf(caller->reason, sizeof caller->reason, "unknown app @ %.*s", SHOWN(site->peer_identity));
    watch->requests = PROVOST_BEGIN;
    *place = caller;
    return PROVOST_OK;
}

static int32_t tell_caller(void *filter, const provost_step *step, void *handle, uint64_t *call, provost_verdict *verdict) {
    (void)step, (void)handle, (void)call;
    struct caller *caller = filter;
    verdict->kind = PROVOST_DENY;
    verdict->code = 7; /* PERMISSION_DENIED */
    verdict->reason = (provost_bytes){(const uint8_t *)caller->reason, strlen(caller->reason)};
    return PROVOST_OK;
}

const provost_engine_description provost_engine = {
    .abi = PROVOST_ENGINE_ABI,
    .struct_bytes = sizeof(provost_engine_description),
    .kind = TEXT("caller"),
    .summary = TEXT("says who calls"),
    .example = TEXT(""),
    .version = 1,
    .flags = PROVOST_CONTAINS_PANICS,
    .configure = any_configuration,
    .policy_save = policy_save,
    .policy_metrics = no_metrics,
    .policy_destroy = policy_destroy,
    .prepare = keep_caller,
    .filter_restore = filter_restore,
    .judge = tell_caller,
    .ended = ended,
    .call_save = call_save,
    .call_load = call_load,
    .filter_save = filter_save,
    .filter_destroy = filter_destroy,
};
