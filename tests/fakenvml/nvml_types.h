/* SPDX-License-Identifier: Apache-2.0 */
/* The wire of the library: error codes and structures exactly as callers lay them out. */
#ifndef FAKENVML_TYPES_H
#define FAKENVML_TYPES_H

#include <stdint.h>

typedef void *handle;

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23,
    VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

enum {
    EVENT_SINGLE_BIT = 0x1,
    EVENT_DOUBLE_BIT = 0x2,
    EVENT_XID = 0x8,
    EVENT_RECOVERY = 0x8000,
};

#define VERSIONED(type, n) ((uint32_t)(sizeof(type) | ((n) << 24)))
#define FIELD_RECOVERY_ACTION 230
#define NO_INSTANCE 0xFFFFFFFFu
#define NO_VALUE 0xFFFFFFFFFFFFFFFFull

struct pci_info {
    char bus_id_legacy[16];
    uint32_t domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct pci_info_ext {
    uint32_t version, domain, bus, device, pci_device_id, pci_subsystem_id, base_class, sub_class;
    char bus_id[32];
};

struct memory {
    uint64_t total, free, used;
};

struct memory_v2 {
    uint32_t version;
    uint64_t total, reserved, free, used;
};

struct addressing_mode {
    uint32_t version, value;
};

struct gi_profile {
    uint32_t id, p2p, slices, instances, sm, ce, dec, enc, jpeg, ofa;
    uint64_t memory_mb;
};

struct gi_profile_v2 {
    uint32_t version, id, p2p, slices, instances, sm, ce, dec, enc, jpeg, ofa;
    uint64_t memory_mb;
    char name[96];
};

struct gi_profile_v3 {
    uint32_t version, id, slices, instances, sm, ce, dec, enc, jpeg, ofa;
    uint64_t memory_mb;
    char name[96];
    uint32_t capabilities;
};

struct gi_info {
    handle device;
    uint32_t id, profile_id, start, size;
};

struct ci_profile {
    uint32_t id, slices, instances, sm, ce, dec, enc, jpeg, ofa;
};

struct ci_profile_v2 {
    uint32_t version, id, slices, instances, sm, ce, dec, enc, jpeg, ofa;
    char name[96];
};

struct ci_profile_v3 {
    uint32_t version, id, slices, instances, sm, ce, dec, enc, jpeg, ofa;
    char name[96];
    uint32_t capabilities;
};

struct ci_info {
    handle device, gpu_instance;
    uint32_t id, profile_id, start, size;
};

struct attributes {
    uint32_t sm, ce, dec, enc, jpeg, ofa, gi_slices, ci_slices;
    uint64_t memory_mb;
};

struct event_data {
    handle device;
    uint64_t type, data;
    uint32_t gi, ci;
};

struct field_value {
    uint32_t field, scope;
    int64_t timestamp, latency;
    uint32_t value_type, ret;
    union {
        double d;
        uint32_t ui;
        uint64_t ull;
    } value;
};

struct fabric_info {
    uint8_t cluster[16];
    uint32_t status, clique;
    uint8_t state;
};

struct fabric_info_v2 {
    uint32_t version;
    uint8_t cluster[16];
    uint32_t status, clique;
    uint8_t state;
    uint32_t health_mask;
};

struct fabric_info_v3 {
    uint32_t version;
    uint8_t cluster[16];
    uint32_t status, clique;
    uint8_t state;
    uint32_t health_mask;
    uint8_t health_summary;
};

struct utilization {
    uint32_t gpu, memory;
};

struct process_sample {
    uint32_t pid;
    uint64_t microseconds;
    uint32_t sm, memory, encoder, decoder;
};

struct process_info {
    uint32_t pid;
    uint64_t bytes;
    uint32_t gi, ci;
};

#endif
