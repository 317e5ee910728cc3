/* SPDX-License-Identifier: Apache-2.0 */
/* What the hardware allows: intervals of memory slices, compute slices and engines.
 *
 * Nothing here knows the counters that gpudra publishes; a test proves that both allow the same.
 */
#include "state.h"

#include <string.h>

struct profile *find_profile(struct gpu *gpu, uint32_t id)
{
    for (uint32_t i = 0; i < gpu->profile_count; i++)
        if (gpu->profiles[i].id == id)
            return &gpu->profiles[i];
    return NULL;
}

struct profile *find_profile_by_query(struct gpu *gpu, uint32_t query)
{
    for (uint32_t i = 0; i < gpu->profile_count; i++)
        if (gpu->profiles[i].query == query)
            return &gpu->profiles[i];
    return NULL;
}

static int overlaps(struct placement a, struct placement b)
{
    return a.start < b.start + b.size && b.start < a.start + a.size;
}

static int is_possible(const struct profile *profile, struct placement at)
{
    for (uint32_t i = 0; i < profile->placement_count; i++)
        if (profile->placements[i].start == at.start && profile->placements[i].size == at.size)
            return 1;
    return 0;
}

int placement_fits(struct gpu *gpu, const struct profile *profile, struct placement at)
{
    uint32_t same = 0, slices = profile->slices, sm = profile->sm, engines[ENGINES];

    if (!is_possible(profile, at))
        return 0;
    memcpy(engines, profile->engines, sizeof(engines));
    for (int i = 0; i < MAX_INSTANCES; i++) {
        struct gpu_instance *other = &gpu->instances[i];
        struct profile *theirs = other->used ? find_profile(gpu, other->profile_id) : NULL;
        if (!theirs)
            continue;
        if (overlaps(at, other->placement))
            return 0;
        same += theirs->id == profile->id;
        slices += theirs->slices;
        sm += theirs->sm;
        for (int e = 0; e < ENGINES; e++)
            engines[e] += theirs->engines[e];
    }
    if (same >= profile->instances || slices > gpu->compute_slices || sm > gpu->sm_total)
        return 0;
    for (int e = 0; e < ENGINES; e++)
        if (engines[e] > gpu->engine_total[e])
            return 0;
    return 1;
}

/* How many more instances of one profile fit, each put at the first place that is free. */
uint32_t remaining_capacity(struct gpu *gpu, const struct profile *profile)
{
    struct gpu trial = *gpu;
    uint32_t count = 0;
    for (uint32_t p = 0; p < profile->placement_count; p++) {
        if (!placement_fits(&trial, profile, profile->placements[p]))
            continue;
        for (int i = 0; i < MAX_INSTANCES; i++) {
            if (trial.instances[i].used)
                continue;
            trial.instances[i].used = 1;
            trial.instances[i].profile_id = profile->id;
            trial.instances[i].placement = profile->placements[p];
            count++;
            break;
        }
    }
    return count;
}

void push_event(struct state *state, uint32_t gpu, uint64_t type, uint64_t data, uint32_t gi,
                uint32_t ci)
{
    uint64_t sequence = ++state->next_sequence;
    struct event *event = &state->events[sequence % MAX_EVENTS];
    *event = (struct event){.sequence = sequence, .type = type, .data = data, .gpu = gpu,
                            .gi = gi, .ci = ci};
}
