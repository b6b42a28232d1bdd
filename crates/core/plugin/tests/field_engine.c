/* Denies requests by what is in their fields, and says what it has read: finds fields when it is prepared, reads them when it
 * judges. */
#define provost_engine right_engine
#include "size_limit.c"
#undef provost_engine

#include <stdio.h>

static const provost_host *host;

struct fields {
    uint32_t name, data, count, inner, list, answer;
    char reason[256];
};

/* The host is the policy's for as long as it lives; the configuration does not matter. */
static int32_t keep_host(const provost_setup *setup, void **place, provost_sink problem) {
    (void)problem;
    host = setup->host;
    *place = calloc(1, 1);
    return PROVOST_OK;
}

static int32_t no_metrics(void *policy, provost_measure_sink sink) {
    (void)policy, (void)sink;
    return PROVOST_OK;
}

static int32_t find(void *site, uint32_t direction, const char *path, uint32_t *number, provost_sink problem) {
    return host->field_path(site, 0, direction, (provost_bytes){(const uint8_t *)path, strlen(path)}, number, problem);
}

static int32_t find_fields(void *policy, const provost_site *site, void *handle, void **place, provost_watch *watch,
                           provost_sink problem) {
    (void)policy, (void)site;
    struct fields *fields = calloc(1, sizeof *fields);
    int32_t found = find(handle, PROVOST_REQUEST, "name", &fields->name, problem);
    if (found == PROVOST_OK) found = find(handle, PROVOST_REQUEST, "data", &fields->data, problem);
    if (found == PROVOST_OK) found = find(handle, PROVOST_REQUEST, "count", &fields->count, problem);
    if (found == PROVOST_OK) found = find(handle, PROVOST_REQUEST, "inner.name", &fields->inner, problem);
    if (found == PROVOST_OK) found = find(handle, PROVOST_REQUEST, "list", &fields->list, problem);
    if (found == PROVOST_OK) found = find(handle, PROVOST_RESPONSE, "name", &fields->answer, problem);
#ifdef WRONG_FIELD
    if (found == PROVOST_OK) found = find(handle, PROVOST_REQUEST, WRONG_FIELD, &fields->name, problem);
#endif
    if (found != PROVOST_OK) {
        free(fields);
        return found;
    }
    watch->requests = PROVOST_MESSAGE;
    *place = fields;
    return PROVOST_OK;
}

/* What a field has, as text. */
static void show(struct fields *fields, void *step, const char *name, uint32_t path) {
    provost_field_value value = {0};
    char text[80];
    int32_t read = host->field(step, path, &value);
    if (read != PROVOST_OK) snprintf(text, sizeof text, "%s=(%d) ", name, read);
    else if (value.kind == PROVOST_VALUE_STRING || value.kind == PROVOST_VALUE_BYTES)
        snprintf(text, sizeof text, "%s=%u:%.*s ", name, value.kind, (int)value.bytes.length, (const char *)value.bytes.at);
    else snprintf(text, sizeof text, "%s=%u:%lld ", name, value.kind, (long long)value.number);
    strncat(fields->reason, text, sizeof fields->reason - strlen(fields->reason) - 1);
}

static int32_t judge_fields(void *filter, const provost_step *step, void *handle, uint64_t *call,
                            provost_verdict *verdict) {
    (void)step, (void)call;
    struct fields *fields = filter;
    fields->reason[0] = 0;
    show(fields, handle, "name", fields->name);
    show(fields, handle, "data", fields->data);
    show(fields, handle, "count", fields->count);
    show(fields, handle, "inner", fields->inner);
    show(fields, handle, "list", fields->list);
    show(fields, handle, "answer", fields->answer);
    show(fields, handle, "none", 4711);
    verdict->kind = PROVOST_DENY;
    verdict->code = 7;
    verdict->reason = (provost_bytes){(const uint8_t *)fields->reason, strlen(fields->reason)};
    return PROVOST_OK;
}

const provost_engine_description provost_engine = {
    .abi = PROVOST_ENGINE_ABI,
    .struct_bytes = sizeof(provost_engine_description),
    .kind = TEXT("fields"),
    .summary = TEXT("says what is in requests"),
    .example = TEXT(""),
    .version = 1,
    .flags = PROVOST_CONTAINS_PANICS,
    .configure = keep_host,
    .policy_save = policy_save,
    .policy_metrics = no_metrics,
    .policy_destroy = policy_destroy,
    .prepare = find_fields,
    .filter_restore = filter_restore,
    .judge = judge_fields,
    .ended = ended,
    .call_save = call_save,
    .call_load = call_load,
    .filter_save = filter_save,
    .filter_destroy = filter_destroy,
};
