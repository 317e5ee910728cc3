/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the pretended machine: one memory-mapped file that every process shares.
 *
 * Whoever loads the library, and the control program, map the same file and take a file lock
 * around each call, so several processes agree and the state outlives them all.
 */
#ifndef FAKENVML_STATE_H
#define FAKENVML_STATE_H

#include <stdint.h>

#define STATE_MAGIC 0x31304c4d564e4b46ULL /* "FKNVML01" */
#define MAX_GPUS 16
#define MAX_LINKS 36
#define MAX_PROFILES 20
#define MAX_PLACEMENTS 16
#define MAX_INSTANCES 16
#define MAX_COMPUTE 8
#define MAX_PROCESSES 64
#define MAX_EVENTS 256
#define MAX_FAULTS 64
#define NAME_LEN 96

enum engine { ENG_CE, ENG_DEC, ENG_ENC, ENG_JPEG, ENG_OFA, ENGINES };

struct placement {
    uint32_t start, size; /* in memory slices */
};

/* One GPU instance profile, as the tables of the vendor give it. */
struct profile {
    uint32_t query; /* the enum value that callers ask with */
    uint32_t id;    /* the id that nvidia-smi prints */
    uint32_t slices, instances, sm;
    uint32_t engines[ENGINES];
    uint64_t memory_mb;
    uint32_t placement_count;
    struct placement placements[MAX_PLACEMENTS];
    char name[NAME_LEN];
};

struct compute_instance {
    uint32_t used, id, profile, slices, start;
    char uuid[NAME_LEN];
};

struct gpu_instance {
    uint32_t used, id, profile_id;
    struct placement placement;
    struct compute_instance compute[MAX_COMPUTE];
};

struct link {
    uint32_t active, version, remote_type; /* 0 GPU, 1 IBM NPU, 2 switch, 255 unknown */
    char remote_bus_id[32];
};

struct fabric {
    uint8_t cluster[16];
    uint32_t status, clique, state, health_mask;
    uint8_t health_summary;
};

struct process {
    uint32_t used, pid, gi, ci;
    uint64_t bytes;
    uint32_t percent; /* of the card's multiprocessors */
};

struct gpu {
    uint32_t present, order; /* absent cards answer nothing; order decides the index */
    uint32_t lost, in_use;
    char uuid[NAME_LEN], name[NAME_LEN], serial[NAME_LEN];
    uint32_t minor, brand, architecture, cc_major, cc_minor, module_id;
    uint32_t has_memory_info, addressing_mode; /* 0 none, 1 HMM, 2 ATS, 255 not supported */
    uint64_t memory_bytes, reserved_bytes;
    uint32_t pci_domain, pci_bus, pci_device, pci_device_id, pci_subsystem_id;
    int32_t numa_node;
    uint32_t compute_mode, persistence, virtualization, recovery_action;
    uint64_t ecc_single, ecc_double;
    uint32_t link_count;
    struct link links[MAX_LINKS];
    struct fabric fabric;
    uint32_t mig_capable, mig_current, mig_pending, mig_needs_reset;
    uint32_t compute_slices, memory_slices, max_instances, sm_total;
    uint32_t engine_total[ENGINES];
    uint32_t profile_count;
    struct profile profiles[MAX_PROFILES];
    struct gpu_instance instances[MAX_INSTANCES];
    struct process processes[MAX_PROCESSES];
};

struct event {
    uint64_t sequence, type, data;
    uint32_t gpu, gi, ci;
};

/* A planted fault: the named call (or any, "*") answers an error, or answers late. */
struct fault {
    uint32_t used, error, delay_ms;
    int32_t gpu, times; /* -1: every GPU; -1: for ever */
    char call[NAME_LEN];
};

struct state {
    uint64_t magic, size, next_sequence, mig_serial;
    char driver_version[NAME_LEN];
    uint32_t cuda_version, gpu_count;
    struct gpu gpus[MAX_GPUS];
    struct event events[MAX_EVENTS];
    struct fault faults[MAX_FAULTS];
};

/* Maps the file; NULL with errno set when it is missing or no state file. */
struct state *state_open(const char *path, int *fd);
/* Makes the file anew with room for one state, all zero but the magic. */
struct state *state_create(const char *path, int *fd);
void state_close(struct state *state, int fd);
void state_lock(int fd);
void state_unlock(int fd);

/* Rules of the hardware (rules.c); 1 = yes. */
struct profile *find_profile(struct gpu *gpu, uint32_t id);
struct profile *find_profile_by_query(struct gpu *gpu, uint32_t query);
int placement_fits(struct gpu *gpu, const struct profile *profile, struct placement at);
uint32_t remaining_capacity(struct gpu *gpu, const struct profile *profile);
void push_event(struct state *state, uint32_t gpu, uint64_t type, uint64_t data, uint32_t gi,
                uint32_t ci);

#endif
