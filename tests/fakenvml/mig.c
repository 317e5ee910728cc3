/* SPDX-License-Identifier: Apache-2.0 */
/* MIG: mode, profiles, placements, GPU instances and compute instances. */
#include "lib.h"

#include <stdio.h>
#include <string.h>

#define GI_PROFILES 18 /* values that callers loop over; beyond them: invalid argument */
#define CI_PROFILES 9

static const uint32_t ci_slices[CI_PROFILES] = {1, 2, 3, 4, 7, 8, 6, 0, 0};

EXPORT uint32_t nvmlDeviceGetMigMode(handle device, uint32_t *current, uint32_t *pending)
{
    ENTER(gpu, device);
    if (!gpu->mig_capable)
        return leave(NOT_SUPPORTED);
    *current = gpu->mig_current;
    *pending = gpu->mig_pending;
    return leave(OK);
}

static int has_instances(const struct gpu *gpu)
{
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gpu->instances[i].used)
            return 1;
    return 0;
}

static int has_processes(const struct gpu *gpu)
{
    for (int i = 0; i < MAX_PROCESSES; i++)
        if (gpu->processes[i].used)
            return 1;
    return 0;
}

EXPORT uint32_t nvmlDeviceSetMigMode(handle device, uint32_t mode, uint32_t *activation)
{
    ENTER(gpu, device);
    if (!gpu->mig_capable)
        return leave(NOT_SUPPORTED);
    if (mode > 1)
        return leave(INVALID_ARGUMENT);
    *activation = OK;
    if (!mode && has_instances(gpu))
        return leave(IN_USE);
    if (mode == gpu->mig_current) {
        gpu->mig_pending = mode;
        return leave(OK);
    }
    if (gpu->in_use && !gpu->mig_needs_reset)
        return leave(IN_USE);
    gpu->mig_pending = mode;
    /* The driver resets an idle card by itself; one that is in use keeps its mode until a reset. */
    if (gpu->mig_needs_reset && (gpu->in_use || has_processes(gpu)))
        *activation = IN_USE;
    else
        gpu->mig_current = mode;
    return leave(OK);
}

EXPORT uint32_t nvmlDeviceGetMaxMigDeviceCount(handle device, uint32_t *count)
{
    ENTER(gpu, device);
    *count = gpu->mig_capable ? gpu->max_instances : 0;
    return leave(OK);
}

/* --- profiles ------------------------------------------------------------------------------ */

static uint32_t pick_profile(struct gpu *gpu, uint32_t query, struct profile **profile)
{
    if (query >= GI_PROFILES)
        return INVALID_ARGUMENT;
    *profile = gpu->mig_capable ? find_profile_by_query(gpu, query) : NULL;
    return *profile ? OK : NOT_SUPPORTED;
}

#define FILL_PROFILE(info, p)             \
    do {                                  \
        (info)->id = (p)->id;             \
        (info)->slices = (p)->slices;     \
        (info)->instances = (p)->instances; \
        (info)->sm = (p)->sm;             \
        (info)->ce = (p)->engines[ENG_CE]; \
        (info)->dec = (p)->engines[ENG_DEC]; \
        (info)->enc = (p)->engines[ENG_ENC]; \
        (info)->jpeg = (p)->engines[ENG_JPEG]; \
        (info)->ofa = (p)->engines[ENG_OFA]; \
        (info)->memory_mb = (p)->memory_mb; \
    } while (0)

EXPORT uint32_t nvmlDeviceGetGpuInstanceProfileInfo(handle device, uint32_t query, struct gi_profile *info)
{
    struct profile *profile;
    ENTER(gpu, device);
    uint32_t answer = pick_profile(gpu, query, &profile);
    if (answer != OK)
        return leave(answer);
    info->p2p = 0;
    FILL_PROFILE(info, profile);
    return leave(OK);
}

EXPORT uint32_t nvmlDeviceGetGpuInstanceProfileInfoV(handle device, uint32_t query, void *versioned)
{
    struct profile *profile;
    ENTER(gpu, device);
    uint32_t answer = pick_profile(gpu, query, &profile);
    uint32_t version = *(uint32_t *)versioned;
    if (answer != OK)
        return leave(answer);
    if (version == VERSIONED(struct gi_profile_v2, 2)) {
        struct gi_profile_v2 *info = versioned;
        info->p2p = 0;
        FILL_PROFILE(info, profile);
        return leave(copy_text(info->name, sizeof(info->name), profile->name));
    }
    if (version == VERSIONED(struct gi_profile_v3, 3)) {
        struct gi_profile_v3 *info = versioned;
        FILL_PROFILE(info, profile);
        info->capabilities = 0;
        return leave(copy_text(info->name, sizeof(info->name), profile->name));
    }
    return leave(VERSION_MISMATCH);
}

EXPORT uint32_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle device, uint32_t id,
                                                              struct placement *places, uint32_t *count)
{
    ENTER(gpu, device);
    struct profile *profile = gpu->mig_capable ? find_profile(gpu, id) : NULL;
    if (!profile)
        return leave(gpu->mig_capable ? INVALID_ARGUMENT : NOT_SUPPORTED);
    uint32_t room = *count;
    *count = profile->placement_count;
    if (places && room >= profile->placement_count)
        memcpy(places, profile->placements, profile->placement_count * sizeof(*places));
    return leave(places && room < profile->placement_count ? INSUFFICIENT_SIZE : OK);
}

EXPORT uint32_t nvmlDeviceGetGpuInstanceRemainingCapacity(handle device, uint32_t id, uint32_t *count)
{
    ENTER(gpu, device);
    struct profile *profile = gpu->mig_current ? find_profile(gpu, id) : NULL;
    if (!profile)
        return leave(gpu->mig_current ? INVALID_ARGUMENT : NOT_SUPPORTED);
    *count = remaining_capacity(gpu, profile);
    return leave(OK);
}

/* --- GPU instances ------------------------------------------------------------------------- */

static int id_taken(const struct gpu *gpu, uint32_t id)
{
    for (int i = 0; i < MAX_INSTANCES; i++)
        if (gpu->instances[i].used && gpu->instances[i].id == id)
            return 1;
    return 0;
}

static uint32_t create_at(struct gpu *gpu, struct profile *profile, struct placement at, handle *made)
{
    if (!placement_fits(gpu, profile, at))
        return INSUFFICIENT_RESOURCES;
    for (uint32_t slot = 0; slot < MAX_INSTANCES; slot++) {
        struct gpu_instance *gi = &gpu->instances[slot];
        if (gi->used)
            continue;
        uint32_t id = at.size == gpu->memory_slices ? 0 : 1;
        memset(gi, 0, sizeof(*gi));
        while (id_taken(gpu, id))
            id++;
        *gi = (struct gpu_instance){.used = 1, .id = id, .profile_id = profile->id, .placement = at};
        *made = make_handle(GPU_INSTANCE, gpu_slot(gpu), slot, 0);
        return OK;
    }
    return INSUFFICIENT_RESOURCES;
}

EXPORT uint32_t nvmlDeviceCreateGpuInstanceWithPlacement(handle device, uint32_t id,
                                                         const struct placement *at, handle *made)
{
    ENTER(gpu, device);
    if (!gpu->mig_current)
        return leave(NOT_SUPPORTED);
    struct profile *profile = find_profile(gpu, id);
    return leave(profile ? create_at(gpu, profile, *at, made) : INVALID_ARGUMENT);
}

EXPORT uint32_t nvmlDeviceCreateGpuInstance(handle device, uint32_t id, handle *made)
{
    ENTER(gpu, device);
    if (!gpu->mig_current)
        return leave(NOT_SUPPORTED);
    struct profile *profile = find_profile(gpu, id);
    if (!profile)
        return leave(INVALID_ARGUMENT);
    for (uint32_t p = 0; p < profile->placement_count; p++)
        if (placement_fits(gpu, profile, profile->placements[p]))
            return leave(create_at(gpu, profile, profile->placements[p], made));
    return leave(INSUFFICIENT_RESOURCES);
}

EXPORT uint32_t nvmlDeviceGetGpuInstances(handle device, uint32_t id, handle *found, uint32_t *count)
{
    ENTER(gpu, device);
    if (!gpu->mig_current)
        return leave(NOT_SUPPORTED);
    *count = 0; /* as documented, the caller brings room for the profile's whole instance count */
    for (uint32_t slot = 0; slot < MAX_INSTANCES; slot++)
        if (gpu->instances[slot].used && gpu->instances[slot].profile_id == id)
            found[(*count)++] = make_handle(GPU_INSTANCE, gpu_slot(gpu), slot, 0);
    return leave(OK);
}

EXPORT uint32_t nvmlDeviceGetGpuInstanceById(handle device, uint32_t id, handle *found)
{
    ENTER(gpu, device);
    if (!gpu->mig_current)
        return leave(NOT_SUPPORTED);
    for (uint32_t slot = 0; slot < MAX_INSTANCES; slot++)
        if (gpu->instances[slot].used && gpu->instances[slot].id == id) {
            *found = make_handle(GPU_INSTANCE, gpu_slot(gpu), slot, 0);
            return leave(OK);
        }
    return leave(NOT_FOUND);
}

EXPORT uint32_t nvmlGpuInstanceGetInfo(handle instance, struct gi_info *info)
{
    ENTER_GI(gpu, gi, instance);
    *info = (struct gi_info){make_handle(DEVICE, gpu_slot(gpu), 0, 0), gi->id, gi->profile_id,
                             gi->placement.start, gi->placement.size};
    return leave(OK);
}

static int in_use(const struct gpu *gpu, const struct gpu_instance *gi, int ci)
{
    if (gpu->in_use)
        return 1;
    for (int i = 0; i < MAX_PROCESSES; i++) {
        const struct process *process = &gpu->processes[i];
        if (process->used && process->gi == gi->id && (ci < 0 || process->ci == (uint32_t)ci))
            return 1;
    }
    return 0;
}

EXPORT uint32_t nvmlGpuInstanceDestroy(handle instance)
{
    ENTER_GI(gpu, gi, instance);
    for (int c = 0; c < MAX_COMPUTE; c++)
        if (gi->compute[c].used)
            return leave(IN_USE);
    if (in_use(gpu, gi, -1))
        return leave(IN_USE);
    memset(gi, 0, sizeof(*gi));
    return leave(OK);
}

/* --- compute instances --------------------------------------------------------------------- */

struct ci_numbers {
    uint32_t slices, instances, sm, engines[ENGINES];
};

static uint32_t ci_numbers(struct gpu *gpu, const struct gpu_instance *gi, uint32_t query, uint32_t engine_kind,
                           struct ci_numbers *numbers)
{
    const struct profile *profile = find_profile(gpu, gi->profile_id);
    if (query >= CI_PROFILES || engine_kind != 0)
        return INVALID_ARGUMENT;
    if (!profile || !ci_slices[query] || ci_slices[query] > profile->slices)
        return NOT_SUPPORTED;
    numbers->slices = ci_slices[query];
    numbers->instances = profile->slices / numbers->slices;
    numbers->sm = profile->sm * numbers->slices / profile->slices;
    memcpy(numbers->engines, profile->engines, sizeof(numbers->engines));
    return OK;
}

#define FILL_COMPUTE(info, query, n)          \
    do {                                      \
        (info)->id = (query);                 \
        (info)->slices = (n).slices;          \
        (info)->instances = (n).instances;    \
        (info)->sm = (n).sm;                  \
        (info)->ce = (n).engines[ENG_CE];     \
        (info)->dec = (n).engines[ENG_DEC];   \
        (info)->enc = (n).engines[ENG_ENC];   \
        (info)->jpeg = (n).engines[ENG_JPEG]; \
        (info)->ofa = (n).engines[ENG_OFA];   \
    } while (0)

EXPORT uint32_t nvmlGpuInstanceGetComputeInstanceProfileInfo(handle instance, uint32_t query, uint32_t engine,
                                                             struct ci_profile *info)
{
    struct ci_numbers numbers;
    ENTER_GI(gpu, gi, instance);
    uint32_t answer = ci_numbers(gpu, gi, query, engine, &numbers);
    if (answer == OK)
        FILL_COMPUTE(info, query, numbers);
    return leave(answer);
}

EXPORT uint32_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(handle instance, uint32_t query, uint32_t engine,
                                                              void *versioned)
{
    struct ci_numbers numbers;
    char name[NAME_LEN];
    ENTER_GI(gpu, gi, instance);
    uint32_t answer = ci_numbers(gpu, gi, query, engine, &numbers);
    if (answer != OK)
        return leave(answer);
    snprintf(name, sizeof(name), "MIG %uc", numbers.slices);
    if (*(uint32_t *)versioned == VERSIONED(struct ci_profile_v2, 2)) {
        struct ci_profile_v2 *info = versioned;
        FILL_COMPUTE(info, query, numbers);
        return leave(copy_text(info->name, sizeof(info->name), name));
    }
    if (*(uint32_t *)versioned == VERSIONED(struct ci_profile_v3, 3)) {
        struct ci_profile_v3 *info = versioned;
        FILL_COMPUTE(info, query, numbers);
        info->capabilities = 0;
        return leave(copy_text(info->name, sizeof(info->name), name));
    }
    return leave(VERSION_MISMATCH);
}

static void new_mig_uuid(char *uuid, size_t room)
{
    /* Spread over the text so that it looks and compares like a real one; never the same twice. */
    uint64_t a = ++machine->mig_serial * 0x9E3779B97F4A7C15ull, b = a ^ (a >> 29);
    snprintf(uuid, room, "MIG-%08x-%04x-5%03x-9%03x-%012llx", (uint32_t)(a >> 32), (uint32_t)(a >> 16) & 0xFFFF,
             (uint32_t)a & 0xFFF, (uint32_t)(b >> 8) & 0xFFF, (unsigned long long)(b & 0xFFFFFFFFFFFFull));
}

EXPORT uint32_t nvmlGpuInstanceCreateComputeInstance(handle instance, uint32_t id, handle *made)
{
    struct ci_numbers numbers;
    uint32_t taken = 0;
    int free_slot = -1;
    ENTER_GI(gpu, gi, instance);
    uint32_t answer = ci_numbers(gpu, gi, id, 0, &numbers);
    if (answer != OK)
        return leave(answer);
    for (int c = MAX_COMPUTE - 1; c >= 0; c--) {
        taken += gi->compute[c].used ? gi->compute[c].slices : 0;
        if (!gi->compute[c].used)
            free_slot = c;
    }
    const struct profile *profile = find_profile(gpu, gi->profile_id);
    if (free_slot < 0 || taken + numbers.slices > profile->slices)
        return leave(INSUFFICIENT_RESOURCES);
    struct compute_instance *ci = &gi->compute[free_slot];
    *ci = (struct compute_instance){.used = 1, .id = (uint32_t)free_slot, .profile = id,
                                    .slices = numbers.slices, .start = taken};
    new_mig_uuid(ci->uuid, sizeof(ci->uuid));
    *made = make_handle(COMPUTE_INSTANCE, gpu_slot(gpu), (uint32_t)(gi - gpu->instances), ci->id);
    return leave(OK);
}

EXPORT uint32_t nvmlGpuInstanceGetComputeInstances(handle instance, uint32_t id, handle *found, uint32_t *count)
{
    ENTER_GI(gpu, gi, instance);
    *count = 0;
    for (uint32_t c = 0; c < MAX_COMPUTE; c++)
        if (gi->compute[c].used && gi->compute[c].profile == id)
            found[(*count)++] = make_handle(COMPUTE_INSTANCE, gpu_slot(gpu), (uint32_t)(gi - gpu->instances), c);
    return leave(OK);
}

EXPORT uint32_t nvmlGpuInstanceGetComputeInstanceById(handle instance, uint32_t id, handle *found)
{
    ENTER_GI(gpu, gi, instance);
    if (id >= MAX_COMPUTE || !gi->compute[id].used)
        return leave(NOT_FOUND);
    *found = make_handle(COMPUTE_INSTANCE, gpu_slot(gpu), (uint32_t)(gi - gpu->instances), id);
    return leave(OK);
}

static uint32_t enter_compute(const char *call, handle from, struct gpu **gpu, struct gpu_instance **gi,
                              struct compute_instance **ci)
{
    uint32_t slot, instance, number;
    if (!split_handle(from, COMPUTE_INSTANCE, &slot, &instance, &number) || number >= MAX_COMPUTE)
        return machine ? INVALID_ARGUMENT : UNINITIALIZED;
    uint32_t answer = enter_instance(call, make_handle(GPU_INSTANCE, slot, instance, 0), gpu, gi);
    if (answer != OK)
        return answer;
    *ci = &(*gi)->compute[number];
    return (*ci)->used ? OK : leave(NOT_FOUND);
}

EXPORT uint32_t nvmlComputeInstanceGetInfo_v2(handle instance, struct ci_info *info)
{
    struct gpu *gpu;
    struct gpu_instance *gi;
    struct compute_instance *ci;
    uint32_t answer = enter_compute(__func__, instance, &gpu, &gi, &ci);
    if (answer != OK)
        return answer;
    *info = (struct ci_info){make_handle(DEVICE, gpu_slot(gpu), 0, 0),
                             make_handle(GPU_INSTANCE, gpu_slot(gpu), (uint32_t)(gi - gpu->instances), 0),
                             ci->id, ci->profile, ci->start, ci->slices};
    return leave(OK);
}

EXPORT uint32_t nvmlComputeInstanceDestroy(handle instance)
{
    struct gpu *gpu;
    struct gpu_instance *gi;
    struct compute_instance *ci;
    uint32_t answer = enter_compute(__func__, instance, &gpu, &gi, &ci);
    if (answer != OK)
        return answer;
    if (in_use(gpu, gi, (int)ci->id))
        return leave(IN_USE);
    memset(ci, 0, sizeof(*ci));
    return leave(OK);
}

/* --- MIG devices: a compute instance seen as a device -------------------------------------- */

EXPORT uint32_t nvmlDeviceGetMigDeviceHandleByIndex(handle device, uint32_t index, handle *found)
{
    uint32_t seen = 0;
    ENTER(gpu, device);
    if (!gpu->mig_current)
        return leave(NOT_SUPPORTED);
    if (index >= gpu->max_instances)
        return leave(INVALID_ARGUMENT);
    for (uint32_t g = 0; g < MAX_INSTANCES; g++)
        for (uint32_t c = 0; c < MAX_COMPUTE; c++) {
            if (!gpu->instances[g].used || !gpu->instances[g].compute[c].used)
                continue;
            if (seen++ == index) {
                *found = make_handle(MIG_DEVICE, gpu_slot(gpu), g, c);
                return leave(OK);
            }
        }
    return leave(NOT_FOUND);
}

EXPORT uint32_t nvmlDeviceIsMigDeviceHandle(handle device, uint32_t *is_mig)
{
    uint32_t slot, gi, ci;
    ENTER(gpu, device);
    (void)gpu;
    *is_mig = (uint32_t)split_handle(device, MIG_DEVICE, &slot, &gi, &ci);
    return leave(OK);
}

/* Finds the instances behind a MIG device's handle; the caller has entered. */
static uint32_t mig_parts(struct gpu *gpu, handle device, struct gpu_instance **gi, struct compute_instance **ci)
{
    uint32_t slot, g, c;
    if (!split_handle(device, MIG_DEVICE, &slot, &g, &c) || g >= MAX_INSTANCES || c >= MAX_COMPUTE)
        return INVALID_ARGUMENT;
    *gi = &gpu->instances[g];
    *ci = &(*gi)->compute[c];
    return (*gi)->used && (*ci)->used ? OK : NOT_FOUND;
}

EXPORT uint32_t nvmlDeviceGetGpuInstanceId(handle device, uint32_t *id)
{
    struct gpu_instance *gi;
    struct compute_instance *ci;
    ENTER(gpu, device);
    uint32_t answer = mig_parts(gpu, device, &gi, &ci);
    if (answer == OK)
        *id = gi->id;
    return leave(answer);
}

EXPORT uint32_t nvmlDeviceGetComputeInstanceId(handle device, uint32_t *id)
{
    struct gpu_instance *gi;
    struct compute_instance *ci;
    ENTER(gpu, device);
    uint32_t answer = mig_parts(gpu, device, &gi, &ci);
    if (answer == OK)
        *id = ci->id;
    return leave(answer);
}

EXPORT uint32_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle device, handle *parent)
{
    struct gpu_instance *gi;
    struct compute_instance *ci;
    ENTER(gpu, device);
    uint32_t answer = mig_parts(gpu, device, &gi, &ci);
    if (answer == OK)
        *parent = make_handle(DEVICE, gpu_slot(gpu), 0, 0);
    return leave(answer);
}

EXPORT uint32_t nvmlDeviceGetAttributes_v2(handle device, struct attributes *info)
{
    struct gpu_instance *gi;
    struct compute_instance *ci;
    ENTER(gpu, device);
    uint32_t answer = mig_parts(gpu, device, &gi, &ci);
    if (answer != OK)
        return leave(answer);
    const struct profile *p = find_profile(gpu, gi->profile_id);
    *info = (struct attributes){p->sm * ci->slices / p->slices, p->engines[ENG_CE], p->engines[ENG_DEC],
                                p->engines[ENG_ENC], p->engines[ENG_JPEG], p->engines[ENG_OFA],
                                p->slices, ci->slices, p->memory_mb};
    return leave(OK);
}
