/* SPDX-License-Identifier: Apache-2.0 */
/* Life of the library, planted faults, and handles. The state file is named by FAKENVML_STATE. */
#include "lib.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct state *machine;
static int machine_fd = -1;
static int users;
static pthread_mutex_t process_mutex = PTHREAD_MUTEX_INITIALIZER;

EXPORT uint32_t nvmlInitWithFlags(uint32_t flags)
{
    const char *path = getenv("FAKENVML_STATE");
    (void)flags;
    pthread_mutex_lock(&process_mutex);
    if (!machine && path)
        machine = state_open(path, &machine_fd);
    if (machine)
        users++;
    pthread_mutex_unlock(&process_mutex);
    if (!machine)
        return DRIVER_NOT_LOADED;
    struct gpu *none = NULL;
    uint32_t answer = enter("nvmlInit_v2", NULL, &none);
    return answer == OK ? leave(OK) : answer;
}

EXPORT uint32_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT uint32_t nvmlShutdown(void)
{
    pthread_mutex_lock(&process_mutex);
    uint32_t answer = machine ? OK : UNINITIALIZED;
    if (machine && --users <= 0) {
        state_close(machine, machine_fd);
        machine = NULL;
        users = 0;
    }
    pthread_mutex_unlock(&process_mutex);
    return answer;
}

EXPORT const char *nvmlErrorString(uint32_t error)
{
    switch (error) {
    case OK: return "The operation was successful";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case GPU_IS_LOST: return "GPU is lost";
    case IN_USE: return "In use by another client";
    case INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

/* --- handles ------------------------------------------------------------------------------ */

handle make_handle(enum handle_kind kind, uint32_t gpu, uint32_t gi, uint32_t ci)
{
    uintptr_t number = ((uintptr_t)0xFA << 32) | ((uintptr_t)kind << 24) | (gpu << 16) | (gi << 8) | ci;
    return (handle)number;
}

int split_handle(handle from, enum handle_kind kind, uint32_t *gpu, uint32_t *gi, uint32_t *ci)
{
    uintptr_t number = (uintptr_t)from;
    if (number >> 32 != 0xFA || ((number >> 24) & 0xFF) != (uintptr_t)kind)
        return 0;
    *gpu = (number >> 16) & 0xFF;
    *gi = (number >> 8) & 0xFF;
    *ci = number & 0xFF;
    return *gpu < MAX_GPUS;
}

uint32_t gpu_slot(const struct gpu *gpu)
{
    return (uint32_t)(gpu - machine->gpus);
}

struct gpu *gpu_at_index(uint32_t index)
{
    for (uint32_t slot = 0; slot < MAX_GPUS; slot++) {
        struct gpu *gpu = &machine->gpus[slot];
        uint32_t before = 0;
        if (!gpu->present)
            continue;
        for (uint32_t other = 0; other < MAX_GPUS; other++)
            before += machine->gpus[other].present && machine->gpus[other].order < gpu->order;
        if (before == index)
            return gpu;
    }
    return NULL;
}

/* --- entering a call ---------------------------------------------------------------------- */

static uint32_t planted(const char *call, int slot, uint32_t *delay_ms)
{
    for (int i = 0; i < MAX_FAULTS; i++) {
        struct fault *fault = &machine->faults[i];
        if (!fault->used || (strcmp(fault->call, "*") && strcmp(fault->call, call)))
            continue;
        if (fault->gpu >= 0 && fault->gpu != slot)
            continue;
        if (fault->times > 0 && --fault->times == 0)
            fault->used = 0;
        *delay_ms += fault->delay_ms;
        if (fault->error)
            return fault->error;
    }
    return OK;
}

static uint32_t enter_slot(const char *call, int slot)
{
    uint32_t delay_ms = 0;
    if (!machine)
        return UNINITIALIZED;
    pthread_mutex_lock(&process_mutex);
    state_lock(machine_fd);
    uint32_t answer = planted(call, slot, &delay_ms);
    if (delay_ms) {
        /* Slow calls must not hold the lock: that is how callers notice that they do. */
        struct timespec pause = {delay_ms / 1000, (long)(delay_ms % 1000) * 1000000L};
        state_unlock(machine_fd);
        pthread_mutex_unlock(&process_mutex);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&process_mutex);
        state_lock(machine_fd);
    }
    return answer == OK ? OK : leave(answer);
}

uint32_t leave(uint32_t answer)
{
    state_unlock(machine_fd);
    pthread_mutex_unlock(&process_mutex);
    return answer;
}

uint32_t enter(const char *call, handle device, struct gpu **gpu)
{
    uint32_t slot = 0, gi, ci;
    int named = device != NULL;
    if (named && !split_handle(device, DEVICE, &slot, &gi, &ci) &&
        !split_handle(device, MIG_DEVICE, &slot, &gi, &ci))
        return machine ? INVALID_ARGUMENT : UNINITIALIZED;
    uint32_t answer = enter_slot(call, named ? (int)slot : -1);
    if (answer != OK || !named)
        return answer;
    *gpu = &machine->gpus[slot];
    if (!(*gpu)->present)
        return leave(INVALID_ARGUMENT);
    return (*gpu)->lost ? leave(GPU_IS_LOST) : OK;
}

uint32_t enter_instance(const char *call, handle from, struct gpu **gpu, struct gpu_instance **gi)
{
    uint32_t slot, instance, ci;
    if (!split_handle(from, GPU_INSTANCE, &slot, &instance, &ci) || instance >= MAX_INSTANCES)
        return machine ? INVALID_ARGUMENT : UNINITIALIZED;
    uint32_t answer = enter(call, make_handle(DEVICE, slot, 0, 0), gpu);
    if (answer != OK)
        return answer;
    *gi = &(*gpu)->instances[instance];
    return (*gi)->used ? OK : leave(NOT_FOUND);
}

uint32_t copy_text(char *to, uint32_t room, const char *text)
{
    size_t length = strlen(text) + 1;
    if (length > room)
        return INSUFFICIENT_SIZE;
    memcpy(to, text, length);
    return OK;
}
