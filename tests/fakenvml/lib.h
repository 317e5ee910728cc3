/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the library share: entering a call, handles, planted faults.
 *
 * A handle is a number dressed as a pointer: kind, card, GPU instance, compute instance. Nothing is
 * allocated, so a stale handle is noticed and never followed.
 */
#ifndef FAKENVML_LIB_H
#define FAKENVML_LIB_H

#include "nvml_types.h"
#include "state.h"

#define EXPORT __attribute__((visibility("default")))

enum handle_kind { DEVICE = 1, MIG_DEVICE, GPU_INSTANCE, COMPUTE_INSTANCE };

extern struct state *machine;

handle make_handle(enum handle_kind kind, uint32_t gpu, uint32_t gi, uint32_t ci);
int split_handle(handle from, enum handle_kind kind, uint32_t *gpu, uint32_t *gi, uint32_t *ci);

/* Locks, plays planted faults, and finds the card. Returns OK or the error to answer. On OK the
 * caller must end with leave(). A NULL device means a call that is about no card. */
uint32_t enter(const char *call, handle device, struct gpu **gpu);
uint32_t leave(uint32_t answer);
/* The same for calls on GPU instances. */
uint32_t enter_instance(const char *call, handle from, struct gpu **gpu, struct gpu_instance **gi);
uint32_t gpu_slot(const struct gpu *gpu);
uint32_t copy_text(char *to, uint32_t room, const char *text);
struct gpu *gpu_at_index(uint32_t index);

/* ENTER(gpu, device): declares gpu, or answers the error. */
#define ENTER(card, device)                                  \
    struct gpu *card = NULL;                                 \
    do {                                                     \
        uint32_t entered = enter(__func__, (device), &card); \
        if (entered != OK)                                   \
            return entered;                                  \
    } while (0)

/* For calls that are about no card. */
#define ENTER_MACHINE()                                      \
    do {                                                     \
        struct gpu *nobody = NULL;                           \
        uint32_t entered = enter(__func__, NULL, &nobody);   \
        if (entered != OK)                                   \
            return entered;                                  \
    } while (0)

#define ENTER_GI(card, part, from)                                         \
    struct gpu *card = NULL;                                               \
    struct gpu_instance *part = NULL;                                      \
    do {                                                                   \
        uint32_t entered = enter_instance(__func__, (from), &card, &part); \
        if (entered != OK)                                                 \
            return entered;                                                \
    } while (0)

#endif
