/* SPDX-License-Identifier: Apache-2.0 */
/* Pretends to be libcuda.so.1: devices, contexts and memory of the CUDA driver API, no kernels.
 *
 * Memory is counted in the process table of the pretended NVML's state file (FAKENVML_STATE), so
 * both libraries tell one story, also to other processes. Nothing is allocated really. Devices
 * come in NVML's order, which is CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID.
 *
 * STUBCUDA_CONTEXT_BYTES is what a primary context takes (0 if unset).
 */
#include "../fakenvml/state.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_CHUNKS 65536
#define CUDA_VERSION 12090

/* CUresult, cuda.h */
enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
};

/* CUdevice_attribute, cuda.h */
enum {
    MAX_THREADS_PER_BLOCK = 1,
    WARP_SIZE = 10,
    MULTIPROCESSOR_COUNT = 16,
    PCI_BUS_ID = 33,
    PCI_DEVICE_ID = 34,
    MAX_THREADS_PER_MULTIPROCESSOR = 39,
    PCI_DOMAIN_ID = 50,
    CC_MAJOR = 75,
    CC_MINOR = 76,
};

typedef int result;
typedef struct context {
    int device, users;
} *context;

struct chunk {
    uint64_t address, bytes;
    int device;
};

static struct state *machine;
static int machine_fd = -1;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct context primaries[MAX_GPUS];
static __thread context current;
static struct chunk chunks[MAX_CHUNKS];
static uint64_t next_address = 0x7f0000000000ULL;

static void lock(void)
{
    pthread_mutex_lock(&mutex);
    state_lock(machine_fd);
}

static result unlock(result answer)
{
    state_unlock(machine_fd);
    pthread_mutex_unlock(&mutex);
    return answer;
}

static struct gpu *gpu_of(int device)
{
    int index = 0;
    for (uint32_t order = 0; order < MAX_GPUS; order++)
        for (uint32_t slot = 0; slot < machine->gpu_count; slot++) {
            struct gpu *gpu = &machine->gpus[slot];
            if (gpu->present && !gpu->lost && gpu->order == order && index++ == device)
                return gpu;
        }
    return NULL;
}

static int device_count(void)
{
    int count = 0;
    while (gpu_of(count))
        count++;
    return count;
}

/* The line of this process in the card's table; made if wanted. */
static struct process *line_of(struct gpu *gpu, int make)
{
    struct process *free_one = NULL;
    for (int i = 0; i < MAX_PROCESSES; i++) {
        struct process *one = &gpu->processes[i];
        if (one->used && one->pid == (uint32_t)getpid())
            return one;
        if (!one->used && !free_one)
            free_one = one;
    }
    if (make && free_one)
        *free_one = (struct process){.used = 1, .pid = (uint32_t)getpid(), .gi = 0xFFFFFFFF, .ci = 0xFFFFFFFF};
    return make ? free_one : NULL;
}

static uint64_t free_bytes(const struct gpu *gpu)
{
    uint64_t used = gpu->reserved_bytes;
    for (int i = 0; i < MAX_PROCESSES; i++)
        used += gpu->processes[i].used ? gpu->processes[i].bytes : 0;
    return used < gpu->memory_bytes ? gpu->memory_bytes - used : 0;
}

/* As the driver does when a process has died: its memory comes back. */
static void sweep(struct gpu *gpu)
{
    for (int i = 0; i < MAX_PROCESSES; i++)
        if (gpu->processes[i].used && kill((pid_t)gpu->processes[i].pid, 0) != 0 && errno == ESRCH)
            gpu->processes[i].used = 0;
}

static result take(struct gpu *gpu, uint64_t bytes)
{
    if (bytes > free_bytes(gpu))
        sweep(gpu);
    if (bytes > free_bytes(gpu))
        return OUT_OF_MEMORY;
    struct process *line = line_of(gpu, 1);
    if (!line)
        return OUT_OF_MEMORY;
    line->bytes += bytes;
    return SUCCESS;
}

static void give(struct gpu *gpu, uint64_t bytes)
{
    struct process *line = line_of(gpu, 0);
    if (line)
        line->bytes -= bytes < line->bytes ? bytes : line->bytes;
}

static uint64_t context_bytes(void)
{
    const char *text = getenv("STUBCUDA_CONTEXT_BYTES");
    return text ? strtoull(text, NULL, 10) : 0;
}

__attribute__((destructor)) static void leave(void)
{
    if (!machine)
        return;
    lock();
    for (uint32_t slot = 0; slot < machine->gpu_count; slot++) {
        struct process *line = line_of(&machine->gpus[slot], 0);
        if (line)
            line->used = 0;
    }
    unlock(SUCCESS);
}

/* --- life and devices ------------------------------------------------------------------------ */

EXPORT result cuInit(unsigned flags)
{
    const char *path = getenv("FAKENVML_STATE");
    if (flags)
        return INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    if (!machine && path)
        machine = state_open(path, &machine_fd);
    pthread_mutex_unlock(&mutex);
    return machine && device_count() ? SUCCESS : NO_DEVICE;
}

EXPORT result cuDriverGetVersion(int *version)
{
    *version = CUDA_VERSION;
    return SUCCESS;
}

EXPORT result cuDeviceGetCount(int *count)
{
    if (!machine)
        return NOT_INITIALIZED;
    *count = device_count();
    return SUCCESS;
}

EXPORT result cuDeviceGet(int *device, int ordinal)
{
    if (!machine)
        return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= device_count())
        return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

EXPORT result cuDeviceGetName(char *name, int room, int device)
{
    struct gpu *gpu = machine ? gpu_of(device) : NULL;
    if (!gpu)
        return machine ? INVALID_DEVICE : NOT_INITIALIZED;
    snprintf(name, (size_t)room, "%s", gpu->name);
    return SUCCESS;
}

EXPORT result cuDeviceGetPCIBusId(char *text, int room, int device)
{
    struct gpu *gpu = machine ? gpu_of(device) : NULL;
    if (!gpu)
        return machine ? INVALID_DEVICE : NOT_INITIALIZED;
    snprintf(text, (size_t)room, "%04X:%02X:%02X.0", gpu->pci_domain, gpu->pci_bus, gpu->pci_device);
    return SUCCESS;
}

EXPORT result cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    struct gpu *gpu = machine ? gpu_of(device) : NULL;
    if (!gpu)
        return machine ? INVALID_DEVICE : NOT_INITIALIZED;
    const char *text = gpu->uuid + (strncmp(gpu->uuid, "GPU-", 4) == 0 ? 4 : 0);
    for (int i = 0; i < 16; i++) {
        unsigned value = 0;
        while (*text == '-')
            text++;
        sscanf(text, "%2x", &value);
        uuid[i] = (unsigned char)value;
        text += 2;
    }
    return SUCCESS;
}

EXPORT result cuDeviceGetUuid(unsigned char *uuid, int device)
{
    return cuDeviceGetUuid_v2(uuid, device);
}

EXPORT result cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    struct gpu *gpu = machine ? gpu_of(device) : NULL;
    if (!gpu)
        return machine ? INVALID_DEVICE : NOT_INITIALIZED;
    *bytes = gpu->memory_bytes;
    return SUCCESS;
}

EXPORT result cuDeviceGetAttribute(int *value, int attribute, int device)
{
    struct gpu *gpu = machine ? gpu_of(device) : NULL;
    if (!gpu)
        return machine ? INVALID_DEVICE : NOT_INITIALIZED;
    switch (attribute) {
    case MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case WARP_SIZE: *value = 32; break;
    case MULTIPROCESSOR_COUNT: *value = gpu->sm_total ? (int)gpu->sm_total : 1; break;
    case PCI_BUS_ID: *value = (int)gpu->pci_bus; break;
    case PCI_DEVICE_ID: *value = (int)gpu->pci_device; break;
    case PCI_DOMAIN_ID: *value = (int)gpu->pci_domain; break;
    case MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    case CC_MAJOR: *value = (int)gpu->cc_major; break;
    case CC_MINOR: *value = (int)gpu->cc_minor; break;
    default: *value = 0;
    }
    return SUCCESS;
}

/* --- contexts -------------------------------------------------------------------------------- */

EXPORT result cuDevicePrimaryCtxRetain(context *found, int device)
{
    if (!machine)
        return NOT_INITIALIZED;
    lock();
    struct gpu *gpu = gpu_of(device);
    if (!gpu)
        return unlock(INVALID_DEVICE);
    if (primaries[device].users == 0 && take(gpu, context_bytes()) != SUCCESS)
        return unlock(OUT_OF_MEMORY);
    primaries[device].device = device;
    primaries[device].users++;
    *found = &primaries[device];
    return unlock(SUCCESS);
}

EXPORT result cuDevicePrimaryCtxRelease_v2(int device)
{
    if (!machine)
        return NOT_INITIALIZED;
    lock();
    struct gpu *gpu = gpu_of(device);
    if (!gpu || primaries[device].users == 0)
        return unlock(gpu ? INVALID_CONTEXT : INVALID_DEVICE);
    if (--primaries[device].users == 0) {
        struct process *line = line_of(gpu, 0);
        give(gpu, context_bytes());
        if (line && line->bytes == 0)
            line->used = 0;
    }
    return unlock(SUCCESS);
}

EXPORT result cuCtxSetCurrent(context which)
{
    current = which;
    return machine ? SUCCESS : NOT_INITIALIZED;
}

EXPORT result cuCtxGetCurrent(context *found)
{
    *found = current;
    return machine ? SUCCESS : NOT_INITIALIZED;
}

EXPORT result cuCtxGetDevice(int *device)
{
    if (!current)
        return machine ? INVALID_CONTEXT : NOT_INITIALIZED;
    *device = current->device;
    return SUCCESS;
}

EXPORT result cuCtxSynchronize(void)
{
    return current ? SUCCESS : INVALID_CONTEXT;
}

/* --- memory ---------------------------------------------------------------------------------- */

static result allocate(uint64_t *address, uint64_t bytes, int device)
{
    if (bytes == 0)
        return INVALID_VALUE;
    lock();
    struct gpu *gpu = gpu_of(device);
    struct chunk *chunk = NULL;
    for (int i = 0; i < MAX_CHUNKS && !chunk; i++)
        if (chunks[i].bytes == 0)
            chunk = &chunks[i];
    if (!gpu || !chunk)
        return unlock(gpu ? OUT_OF_MEMORY : INVALID_DEVICE);
    result answer = take(gpu, bytes);
    if (answer == SUCCESS) {
        *chunk = (struct chunk){next_address, bytes, device};
        *address = next_address;
        next_address += (bytes + 0xFFFFF) & ~0xFFFFFULL;
    }
    return unlock(answer);
}

static result release(uint64_t address)
{
    lock();
    for (int i = 0; i < MAX_CHUNKS; i++)
        if (chunks[i].bytes && chunks[i].address == address) {
            struct gpu *gpu = gpu_of(chunks[i].device);
            if (gpu)
                give(gpu, chunks[i].bytes);
            chunks[i].bytes = 0;
            return unlock(SUCCESS);
        }
    return unlock(INVALID_VALUE);
}

EXPORT result cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    return current ? allocate(address, bytes, current->device) : INVALID_CONTEXT;
}

EXPORT result cuMemAllocManaged(uint64_t *address, size_t bytes, unsigned flags)
{
    (void)flags;
    return cuMemAlloc_v2(address, bytes);
}

EXPORT result cuMemAllocPitch_v2(uint64_t *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
    (void)element;
    *pitch = (width + 511) & ~(size_t)511;
    return cuMemAlloc_v2(address, *pitch * height);
}

EXPORT result cuMemFree_v2(uint64_t address)
{
    return current ? release(address) : INVALID_CONTEXT;
}

/* CUmemAllocationProp, cuda.h: type, handle types, location {type, id}, … */
struct allocation {
    int type, handle_types, location_type, location_id;
};

EXPORT result cuMemCreate(uint64_t *handle, size_t bytes, const struct allocation *how, unsigned long long flags)
{
    (void)flags;
    return machine ? allocate(handle, bytes, how->location_id) : NOT_INITIALIZED;
}

EXPORT result cuMemRelease(uint64_t handle)
{
    return machine ? release(handle) : NOT_INITIALIZED;
}

EXPORT result cuMemGetInfo_v2(size_t *free_now, size_t *total)
{
    if (!current)
        return INVALID_CONTEXT;
    lock();
    struct gpu *gpu = gpu_of(current->device);
    *free_now = gpu ? free_bytes(gpu) : 0;
    *total = gpu ? gpu->memory_bytes : 0;
    return unlock(gpu ? SUCCESS : INVALID_DEVICE);
}

/* --- looking functions up -------------------------------------------------------------------- */

#define ENTRY(name) {#name, (void *)name}
static const struct {
    const char *name;
    void *function;
} entries[] = {
    {"cuMemAlloc", (void *)cuMemAlloc_v2},
    {"cuMemFree", (void *)cuMemFree_v2},
    {"cuMemGetInfo", (void *)cuMemGetInfo_v2},
    {"cuDeviceTotalMem", (void *)cuDeviceTotalMem_v2},
    {"cuMemAllocPitch", (void *)cuMemAllocPitch_v2},
    {"cuDevicePrimaryCtxRelease", (void *)cuDevicePrimaryCtxRelease_v2},
    ENTRY(cuInit),
    ENTRY(cuMemAllocManaged),
    ENTRY(cuMemCreate),
    ENTRY(cuMemRelease),
    ENTRY(cuCtxGetDevice),
    ENTRY(cuCtxSetCurrent),
    ENTRY(cuCtxGetCurrent),
    ENTRY(cuDeviceGet),
    ENTRY(cuDeviceGetCount),
    ENTRY(cuDeviceGetAttribute),
    ENTRY(cuDevicePrimaryCtxRetain),
};

EXPORT result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    (void)version;
    (void)flags;
    for (size_t i = 0; i < sizeof(entries) / sizeof(*entries); i++)
        if (strcmp(entries[i].name, name) == 0) {
            *function = entries[i].function;
            if (status)
                *status = 0;
            return SUCCESS;
        }
    *function = NULL;
    if (status)
        *status = 1;
    return NOT_FOUND;
}

EXPORT result cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
