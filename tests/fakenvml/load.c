/* SPDX-License-Identifier: Apache-2.0 */
/* Fills the state from a JSON description of a machine (made by convert.py from a Hardware file). */
#include "load.h"

#include "json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *engine_keys[ENGINES] = {"ce", "dec", "enc", "jpeg", "ofa"};

static void text_into(char *to, size_t room, const struct json *from, const char *key)
{
    snprintf(to, room, "%s", json_text(from, key, ""));
}

#define U32(from, key, otherwise) ((uint32_t)json_number(from, key, otherwise))

static int parse_bus_id(const char *text, unsigned *domain, unsigned *bus, unsigned *device)
{
    return sscanf(text, "%x:%x:%x", domain, bus, device) == 3;
}

static int load_profile(struct profile *to, const struct json *from)
{
    to->query = U32(from, "query", 0);
    to->id = U32(from, "id", 0);
    to->slices = U32(from, "slices", 0);
    to->instances = U32(from, "instances", 0);
    to->sm = U32(from, "sm", 0);
    to->memory_mb = (uint64_t)json_number(from, "memoryMb", 0);
    for (int e = 0; e < ENGINES; e++)
        to->engines[e] = U32(from, engine_keys[e], 0);
    text_into(to->name, sizeof(to->name), from, "name");
    const struct json *places = json_get(from, "placements");
    for (const struct json *at = places ? places->first : NULL; at; at = at->next) {
        if (to->placement_count == MAX_PLACEMENTS)
            return 0;
        to->placements[to->placement_count++] =
            (struct placement){U32(at, "start", 0), U32(at, "size", 0)};
    }
    return to->slices && to->placement_count;
}

static int load_mig(struct gpu *gpu, const struct json *from)
{
    if (!from)
        return 1;
    gpu->mig_capable = 1;
    gpu->mig_current = gpu->mig_pending = U32(from, "enabled", 0);
    gpu->mig_needs_reset = U32(from, "needsReset", 0);
    gpu->compute_slices = U32(from, "computeSlices", 7);
    gpu->memory_slices = U32(from, "memorySlices", 8);
    gpu->max_instances = U32(from, "maxInstances", gpu->compute_slices);
    gpu->sm_total = U32(from, "sm", 0);
    for (int e = 0; e < ENGINES; e++)
        gpu->engine_total[e] = U32(from, engine_keys[e], 0);
    const struct json *profiles = json_get(from, "profiles");
    for (const struct json *one = profiles ? profiles->first : NULL; one; one = one->next)
        if (gpu->profile_count == MAX_PROFILES || !load_profile(&gpu->profiles[gpu->profile_count++], one))
            return 0;
    return 1;
}

static int load_links(struct gpu *gpu, const struct json *from)
{
    for (const struct json *one = from ? from->first : NULL; one; one = one->next) {
        if (gpu->link_count == MAX_LINKS)
            return 0;
        struct link *link = &gpu->links[gpu->link_count++];
        link->active = U32(one, "active", 1);
        link->version = U32(one, "version", 0);
        link->remote_type = U32(one, "remoteType", 255);
        snprintf(link->remote_bus_id, sizeof(link->remote_bus_id), "%s", json_text(one, "remoteBusId", ""));
    }
    return 1;
}

static void load_fabric(struct fabric *to, const struct json *from)
{
    const char *hex = json_text(from, "clusterUuid", "");
    for (int i = 0; i < 16 && strlen(hex) >= (size_t)(2 * i + 2); i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], 0};
        to->cluster[i] = (uint8_t)strtol(pair, NULL, 16);
    }
    to->state = U32(from, "state", 0);
    to->status = U32(from, "status", 0);
    to->clique = U32(from, "clique", 0);
    to->health_mask = U32(from, "healthMask", 0);
    to->health_summary = (uint8_t)json_number(from, "healthSummary", 0);
}

static int load_gpu(struct gpu *gpu, const struct json *from, uint32_t order)
{
    unsigned domain = 0, bus = 0, device = 0;
    gpu->present = 1;
    gpu->order = order;
    text_into(gpu->uuid, sizeof(gpu->uuid), from, "uuid");
    text_into(gpu->name, sizeof(gpu->name), from, "name");
    text_into(gpu->serial, sizeof(gpu->serial), from, "serial");
    gpu->minor = U32(from, "minor", order);
    gpu->brand = U32(from, "brand", 0);
    gpu->architecture = U32(from, "architecture", 0);
    gpu->cc_major = U32(from, "ccMajor", 0);
    gpu->cc_minor = U32(from, "ccMinor", 0);
    gpu->module_id = U32(from, "moduleId", order + 1);
    gpu->addressing_mode = U32(from, "addressingMode", 255);
    gpu->has_memory_info = json_get(from, "memoryBytes") != NULL;
    gpu->memory_bytes = (uint64_t)json_number(from, "memoryBytes", 0);
    gpu->reserved_bytes = (uint64_t)json_number(from, "reservedBytes", 0);
    gpu->numa_node = (int32_t)json_number(from, "numaNode", -1);
    if (!parse_bus_id(json_text(from, "busId", ""), &domain, &bus, &device))
        return 0;
    gpu->pci_domain = domain;
    gpu->pci_bus = bus;
    gpu->pci_device = device;
    gpu->pci_device_id = U32(from, "pciDeviceId", 0);
    gpu->pci_subsystem_id = U32(from, "pciSubsystemId", 0);
    load_fabric(&gpu->fabric, json_get(from, "fabric"));
    return gpu->uuid[0] && load_links(gpu, json_get(from, "links")) && load_mig(gpu, json_get(from, "mig"));
}

int load_machine(struct state *state, const struct json *from)
{
    text_into(state->driver_version, sizeof(state->driver_version), from, "driverVersion");
    state->cuda_version = U32(from, "cudaVersion", 0);
    const struct json *gpus = json_get(from, "gpus");
    for (const struct json *one = gpus ? gpus->first : NULL; one; one = one->next) {
        if (state->gpu_count == MAX_GPUS || !load_gpu(&state->gpus[state->gpu_count], one, state->gpu_count))
            return (int)state->gpu_count;
        state->gpu_count++;
    }
    return -1;
}
