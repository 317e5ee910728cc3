/* SPDX-License-Identifier: Apache-2.0 */
/* Event sets: who listens to which cards, and waiting for what happened since. */
#include "lib.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLL_MS 2

struct event_set {
    uint64_t seen;           /* the last event that this set has looked at */
    uint64_t mask[MAX_GPUS]; /* kinds of events wanted of each card */
};

EXPORT uint32_t nvmlEventSetCreate(struct event_set **set)
{
    ENTER_MACHINE();
    *set = calloc(1, sizeof(**set));
    if (!*set)
        return leave(20); /* memory */
    (*set)->seen = machine->next_sequence;
    return leave(OK);
}

EXPORT uint32_t nvmlEventSetFree(struct event_set *set)
{
    free(set);
    return OK;
}

EXPORT uint32_t nvmlDeviceGetSupportedEventTypes(handle device, uint64_t *types)
{
    ENTER(gpu, device);
    *types = EVENT_SINGLE_BIT | EVENT_DOUBLE_BIT | EVENT_XID;
    if (gpu->architecture >= 7)
        *types |= EVENT_RECOVERY;
    return leave(OK);
}

EXPORT uint32_t nvmlDeviceRegisterEvents(handle device, uint64_t types, struct event_set *set)
{
    ENTER(gpu, device);
    set->mask[gpu_slot(gpu)] |= types;
    return leave(OK);
}

static int next_event(struct event_set *set, struct event_data *data)
{
    while (set->seen < machine->next_sequence) {
        const struct event *event = &machine->events[++set->seen % MAX_EVENTS];
        if (event->sequence != set->seen || !(set->mask[event->gpu] & event->type))
            continue; /* overwritten before we looked, or not asked for */
        *data = (struct event_data){make_handle(DEVICE, event->gpu, 0, 0), event->type, event->data,
                                    event->gi, event->ci};
        return 1;
    }
    return 0;
}

EXPORT uint32_t nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, uint32_t timeout_ms)
{
    struct timespec pause = {0, POLL_MS * 1000000L};
    for (uint32_t waited = 0;; waited += POLL_MS) {
        ENTER_MACHINE();
        int found = next_event(set, data);
        leave(OK);
        if (found)
            return OK;
        if (waited >= timeout_ms)
            return TIMEOUT;
        nanosleep(&pause, NULL);
    }
}
