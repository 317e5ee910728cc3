/* SPDX-License-Identifier: Apache-2.0 */
/* Readings of cards: identity, memory, address, links, fabric, usage. */
#include "lib.h"

#include <stdio.h>
#include <string.h>

EXPORT uint32_t nvmlSystemGetDriverVersion(char *version, uint32_t length)
{
    ENTER_MACHINE();
    return leave(copy_text(version, length, machine->driver_version));
}

EXPORT uint32_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER_MACHINE();
    *version = (int)machine->cuda_version;
    return leave(OK);
}

EXPORT uint32_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

EXPORT uint32_t nvmlDeviceGetCount_v2(uint32_t *count)
{
    ENTER_MACHINE();
    *count = 0;
    for (int slot = 0; slot < MAX_GPUS; slot++)
        *count += machine->gpus[slot].present;
    return leave(OK);
}

EXPORT uint32_t nvmlDeviceGetHandleByIndex_v2(uint32_t index, handle *device)
{
    ENTER_MACHINE();
    struct gpu *gpu = gpu_at_index(index);
    if (!gpu)
        return leave(INVALID_ARGUMENT);
    if (gpu->lost)
        return leave(GPU_IS_LOST);
    *device = make_handle(DEVICE, gpu_slot(gpu), 0, 0);
    return leave(OK);
}

static uint32_t find_mig_uuid(const char *uuid, handle *device)
{
    for (uint32_t slot = 0; slot < MAX_GPUS; slot++)
        for (uint32_t g = 0; g < MAX_INSTANCES; g++)
            for (uint32_t c = 0; c < MAX_COMPUTE; c++) {
                struct gpu_instance *gi = &machine->gpus[slot].instances[g];
                if (gi->used && gi->compute[c].used && !strcmp(gi->compute[c].uuid, uuid)) {
                    *device = make_handle(MIG_DEVICE, slot, g, c);
                    return OK;
                }
            }
    return NOT_FOUND;
}

EXPORT uint32_t nvmlDeviceGetHandleByUUID(const char *uuid, handle *device)
{
    ENTER_MACHINE();
    for (uint32_t slot = 0; slot < MAX_GPUS; slot++) {
        struct gpu *gpu = &machine->gpus[slot];
        if (!gpu->present || strcmp(gpu->uuid, uuid))
            continue;
        *device = make_handle(DEVICE, slot, 0, 0);
        return leave(gpu->lost ? GPU_IS_LOST : OK);
    }
    return leave(find_mig_uuid(uuid, device));
}

static void bus_id(const struct gpu *gpu, char *text, size_t room)
{
    snprintf(text, room, "%08X:%02X:%02X.0", gpu->pci_domain, gpu->pci_bus, gpu->pci_device);
}

EXPORT uint32_t nvmlDeviceGetHandleByPciBusId_v2(const char *wanted, handle *device)
{
    unsigned domain, bus, number, function;
    ENTER_MACHINE();
    if (sscanf(wanted, "%x:%x:%x.%x", &domain, &bus, &number, &function) != 4)
        return leave(INVALID_ARGUMENT);
    for (uint32_t slot = 0; slot < MAX_GPUS; slot++) {
        struct gpu *gpu = &machine->gpus[slot];
        if (!gpu->present || gpu->pci_domain != domain || gpu->pci_bus != bus || gpu->pci_device != number)
            continue;
        *device = make_handle(DEVICE, slot, 0, 0);
        return leave(gpu->lost ? GPU_IS_LOST : OK);
    }
    return leave(NOT_FOUND);
}

EXPORT uint32_t nvmlDeviceGetName(handle device, char *name, uint32_t length)
{
    ENTER(gpu, device);
    return leave(copy_text(name, length, gpu->name));
}

EXPORT uint32_t nvmlDeviceGetUUID(handle device, char *uuid, uint32_t length)
{
    uint32_t slot, gi, ci;
    ENTER(gpu, device);
    if (split_handle(device, MIG_DEVICE, &slot, &gi, &ci)) {
        if (!gpu->instances[gi].used || !gpu->instances[gi].compute[ci].used)
            return leave(NOT_FOUND);
        return leave(copy_text(uuid, length, gpu->instances[gi].compute[ci].uuid));
    }
    return leave(copy_text(uuid, length, gpu->uuid));
}

EXPORT uint32_t nvmlDeviceGetSerial(handle device, char *serial, uint32_t length)
{
    ENTER(gpu, device);
    return leave(gpu->serial[0] ? copy_text(serial, length, gpu->serial) : NOT_SUPPORTED);
}

EXPORT uint32_t nvmlDeviceGetIndex(handle device, uint32_t *index)
{
    ENTER(gpu, device);
    *index = 0;
    while (gpu_at_index(*index) != gpu)
        (*index)++;
    return leave(OK);
}

/* Readings that are one number of the card. */
#define NUMBER(call, type, expression)              \
    EXPORT uint32_t call(handle device, type *value) \
    {                                               \
        ENTER(gpu, device);                         \
        *value = (type)(expression);                \
        return leave(OK);                           \
    }

NUMBER(nvmlDeviceGetMinorNumber, uint32_t, gpu->minor)
NUMBER(nvmlDeviceGetBrand, uint32_t, gpu->brand)
NUMBER(nvmlDeviceGetArchitecture, uint32_t, gpu->architecture)
NUMBER(nvmlDeviceGetModuleId, uint32_t, gpu->module_id)
NUMBER(nvmlDeviceGetVirtualizationMode, uint32_t, gpu->virtualization)
NUMBER(nvmlDeviceGetPersistenceMode, uint32_t, gpu->persistence)
NUMBER(nvmlDeviceGetComputeMode, uint32_t, gpu->compute_mode)

EXPORT uint32_t nvmlDeviceSetPersistenceMode(handle device, uint32_t mode)
{
    ENTER(gpu, device);
    gpu->persistence = mode;
    return leave(OK);
}

EXPORT uint32_t nvmlDeviceSetComputeMode(handle device, uint32_t mode)
{
    ENTER(gpu, device);
    if (mode > 3)
        return leave(INVALID_ARGUMENT);
    gpu->compute_mode = mode;
    return leave(OK);
}

EXPORT uint32_t nvmlDeviceGetCudaComputeCapability(handle device, int *major, int *minor)
{
    ENTER(gpu, device);
    *major = (int)gpu->cc_major;
    *minor = (int)gpu->cc_minor;
    return leave(OK);
}

EXPORT uint32_t nvmlDeviceGetAddressingMode(handle device, struct addressing_mode *mode)
{
    ENTER(gpu, device);
    if (mode->version != VERSIONED(struct addressing_mode, 1))
        return leave(VERSION_MISMATCH);
    if (gpu->addressing_mode == 255)
        return leave(NOT_SUPPORTED);
    mode->value = gpu->addressing_mode;
    return leave(OK);
}

static uint64_t used_bytes(const struct gpu *gpu)
{
    uint64_t used = 0;
    for (int i = 0; i < MAX_PROCESSES; i++)
        used += gpu->processes[i].used ? gpu->processes[i].bytes : 0;
    return used;
}

EXPORT uint32_t nvmlDeviceGetMemoryInfo(handle device, struct memory *memory)
{
    ENTER(gpu, device);
    if (!gpu->has_memory_info)
        return leave(NOT_SUPPORTED);
    memory->total = gpu->memory_bytes;
    memory->used = gpu->reserved_bytes + used_bytes(gpu);
    memory->free = memory->total - memory->used;
    return leave(OK);
}

EXPORT uint32_t nvmlDeviceGetMemoryInfo_v2(handle device, struct memory_v2 *memory)
{
    ENTER(gpu, device);
    if (memory->version != VERSIONED(struct memory_v2, 2))
        return leave(VERSION_MISMATCH);
    if (!gpu->has_memory_info)
        return leave(NOT_SUPPORTED);
    memory->total = gpu->memory_bytes;
    memory->reserved = gpu->reserved_bytes;
    memory->used = used_bytes(gpu);
    memory->free = memory->total - memory->reserved - memory->used;
    return leave(OK);
}

EXPORT uint32_t nvmlDeviceGetPciInfo_v3(handle device, struct pci_info *pci)
{
    ENTER(gpu, device);
    memset(pci, 0, sizeof(*pci));
    pci->domain = gpu->pci_domain;
    pci->bus = gpu->pci_bus;
    pci->device = gpu->pci_device;
    pci->pci_device_id = gpu->pci_device_id;
    pci->pci_subsystem_id = gpu->pci_subsystem_id;
    bus_id(gpu, pci->bus_id, sizeof(pci->bus_id));
    snprintf(pci->bus_id_legacy, sizeof(pci->bus_id_legacy), "%04X:%02X:%02X.0",
             gpu->pci_domain & 0xFFFF, gpu->pci_bus & 0xFF, gpu->pci_device & 0xFF);
    return leave(OK);
}

EXPORT uint32_t nvmlDeviceGetPciInfoExt(handle device, struct pci_info_ext *pci)
{
    ENTER(gpu, device);
    if (pci->version != VERSIONED(struct pci_info_ext, 1))
        return leave(VERSION_MISMATCH);
    pci->domain = gpu->pci_domain;
    pci->bus = gpu->pci_bus;
    pci->device = gpu->pci_device;
    pci->pci_device_id = gpu->pci_device_id;
    pci->pci_subsystem_id = gpu->pci_subsystem_id;
    pci->base_class = 3; /* display controller */
    pci->sub_class = 2;  /* 3D */
    bus_id(gpu, pci->bus_id, sizeof(pci->bus_id));
    return leave(OK);
}

/* --- topology ------------------------------------------------------------------------------ */

EXPORT uint32_t nvmlDeviceGetNumaNodeId(handle device, uint32_t *node)
{
    ENTER(gpu, device);
    if (gpu->numa_node < 0)
        return leave(NOT_SUPPORTED);
    *node = (uint32_t)gpu->numa_node;
    return leave(OK);
}

EXPORT uint32_t nvmlDeviceGetMemoryAffinity(handle device, uint32_t size, uint64_t *nodes, uint32_t scope)
{
    ENTER(gpu, device);
    (void)scope;
    if (!size)
        return leave(INVALID_ARGUMENT);
    memset(nodes, 0, size * sizeof(*nodes));
    if (gpu->numa_node >= 0 && (uint32_t)gpu->numa_node < size * 64)
        nodes[gpu->numa_node / 64] = 1ull << (gpu->numa_node % 64);
    return leave(OK);
}

static const struct link *link_of(const struct gpu *gpu, uint32_t number, uint32_t *answer)
{
    if (number >= MAX_LINKS)
        *answer = INVALID_ARGUMENT;
    else if (number >= gpu->link_count)
        *answer = NOT_SUPPORTED;
    else
        return &gpu->links[number];
    return NULL;
}

EXPORT uint32_t nvmlDeviceGetNvLinkState(handle device, uint32_t number, uint32_t *active)
{
    uint32_t answer = OK;
    ENTER(gpu, device);
    const struct link *link = link_of(gpu, number, &answer);
    if (link)
        *active = link->active;
    return leave(answer);
}

EXPORT uint32_t nvmlDeviceGetNvLinkVersion(handle device, uint32_t number, uint32_t *version)
{
    uint32_t answer = OK;
    ENTER(gpu, device);
    const struct link *link = link_of(gpu, number, &answer);
    if (link)
        *version = link->version;
    return leave(answer);
}

EXPORT uint32_t nvmlDeviceGetNvLinkRemoteDeviceType(handle device, uint32_t number, uint32_t *type)
{
    uint32_t answer = OK;
    ENTER(gpu, device);
    const struct link *link = link_of(gpu, number, &answer);
    if (link && !link->active)
        return leave(NOT_SUPPORTED);
    if (link)
        *type = link->remote_type;
    return leave(answer);
}

EXPORT uint32_t nvmlDeviceGetNvLinkRemotePciInfo_v2(handle device, uint32_t number, struct pci_info *pci)
{
    uint32_t answer = OK;
    ENTER(gpu, device);
    const struct link *link = link_of(gpu, number, &answer);
    if (!link)
        return leave(answer);
    if (!link->active || !link->remote_bus_id[0])
        return leave(NOT_SUPPORTED);
    memset(pci, 0, sizeof(*pci));
    unsigned domain = 0, bus = 0, number_on_bus = 0;
    sscanf(link->remote_bus_id, "%x:%x:%x", &domain, &bus, &number_on_bus);
    pci->domain = domain;
    pci->bus = bus;
    pci->device = number_on_bus;
    snprintf(pci->bus_id, sizeof(pci->bus_id), "%08X:%02X:%02X.0", domain, bus, number_on_bus);
    return leave(OK);
}

EXPORT uint32_t nvmlDeviceGetGpuFabricInfo(handle device, struct fabric_info *info)
{
    ENTER(gpu, device);
    memset(info, 0, sizeof(*info));
    memcpy(info->cluster, gpu->fabric.cluster, sizeof(info->cluster));
    info->status = gpu->fabric.status;
    info->clique = gpu->fabric.clique;
    info->state = (uint8_t)gpu->fabric.state;
    return leave(OK);
}

EXPORT uint32_t nvmlDeviceGetGpuFabricInfoV(handle device, struct fabric_info_v3 *info)
{
    ENTER(gpu, device);
    int third = info->version == VERSIONED(struct fabric_info_v3, 3);
    if (!third && info->version != VERSIONED(struct fabric_info_v2, 2))
        return leave(VERSION_MISMATCH);
    memcpy(info->cluster, gpu->fabric.cluster, sizeof(info->cluster));
    info->status = gpu->fabric.status;
    info->clique = gpu->fabric.clique;
    info->state = (uint8_t)gpu->fabric.state;
    info->health_mask = gpu->fabric.health_mask;
    if (third)
        info->health_summary = gpu->fabric.health_summary;
    return leave(OK);
}

/* --- health and use ------------------------------------------------------------------------ */

EXPORT uint32_t nvmlDeviceGetFieldValues(handle device, int count, struct field_value *values)
{
    ENTER(gpu, device);
    for (int i = 0; i < count; i++) {
        values[i].value_type = 1; /* unsigned int */
        values[i].ret = values[i].field == FIELD_RECOVERY_ACTION ? OK : NOT_SUPPORTED;
        values[i].value.ull = 0;
        if (values[i].ret == OK)
            values[i].value.ui = gpu->recovery_action;
    }
    return leave(OK);
}

EXPORT uint32_t nvmlDeviceGetTotalEccErrors(handle device, uint32_t kind, uint32_t counter, uint64_t *count)
{
    ENTER(gpu, device);
    (void)counter;
    *count = kind == 1 ? gpu->ecc_double : gpu->ecc_single;
    return leave(OK);
}

EXPORT uint32_t nvmlDeviceGetComputeRunningProcesses_v3(handle device, uint32_t *count, struct process_info *infos)
{
    uint32_t found = 0, room = *count;
    ENTER(gpu, device);
    for (int i = 0; i < MAX_PROCESSES; i++) {
        const struct process *process = &gpu->processes[i];
        if (!process->used)
            continue;
        if (found < room && infos)
            infos[found] = (struct process_info){process->pid, process->bytes, process->gi, process->ci};
        found++;
    }
    *count = found;
    return leave(found > room ? INSUFFICIENT_SIZE : OK);
}

EXPORT uint32_t nvmlDeviceGetUtilizationRates(handle device, struct utilization *rates)
{
    ENTER(gpu, device);
    if (gpu->mig_current)
        return leave(NOT_SUPPORTED);
    *rates = (struct utilization){0, 0};
    for (int i = 0; i < MAX_PROCESSES; i++)
        rates->gpu += gpu->processes[i].used ? gpu->processes[i].percent : 0;
    if (rates->gpu > 100)
        rates->gpu = 100;
    return leave(OK);
}

/* One sample for each process that runs, newer than what the caller has seen. */
EXPORT uint32_t nvmlDeviceGetProcessUtilization(handle device, struct process_sample *samples, uint32_t *count,
                                                uint64_t since)
{
    uint32_t found = 0, room = *count;
    ENTER(gpu, device);
    if (gpu->mig_current)
        return leave(NOT_SUPPORTED);
    for (int i = 0; i < MAX_PROCESSES; i++) {
        const struct process *process = &gpu->processes[i];
        if (!process->used || !process->percent)
            continue;
        if (found < room && samples)
            samples[found] = (struct process_sample){process->pid, since + 1, process->percent, 0, 0, 0};
        found++;
    }
    *count = found;
    if (!found)
        return leave(NOT_FOUND);
    return leave(found > room ? INSUFFICIENT_SIZE : OK);
}
