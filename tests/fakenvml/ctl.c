/* SPDX-License-Identifier: Apache-2.0 */
/* fakenvml-ctl: makes the state of the pretended machine, and lets things happen to it.
 *
 *   fakenvml-ctl STATE init MACHINE.json
 *   fakenvml-ctl STATE dump                               what exists now, as JSON
 *   fakenvml-ctl STATE xid GPU CODE [GI CI]               an XID event
 *   fakenvml-ctl STATE ecc GPU single|double              an ECC error and its event
 *   fakenvml-ctl STATE recovery GPU ACTION                what the driver wants done (0 to 7)
 *   fakenvml-ctl STATE lost|found GPU                     falls off the bus, and comes back
 *   fakenvml-ctl STATE remove GPU | plug GPU INDEX        hot-plug; comes back at another index
 *   fakenvml-ctl STATE reset GPU                          a pending MIG mode becomes the mode
 *   fakenvml-ctl STATE busy GPU 0|1                       every destroy and mode switch: in use
 *   fakenvml-ctl STATE mig GPU 0|1                        the mode, as if set before we came
 *   fakenvml-ctl STATE fabric GPU STATE STATUS
 *   fakenvml-ctl STATE process GPU PID BYTES [GI CI]      0 bytes: the process ends
 *   fakenvml-ctl STATE runs GPU PID PERCENT               how busy a process keeps the card
 *   fakenvml-ctl STATE fail CALL ERROR [GPU|* [TIMES]]    CALL may be *
 *   fakenvml-ctl STATE slow CALL MILLISECONDS [GPU|* [TIMES]]
 *   fakenvml-ctl STATE heal                               forget all planted faults
 *
 * GPU is a uuid. Exit code 0, or 1 with a line that says why.
 */
#include "load.h"
#include "nvml_types.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct state *state;

static int complain(const char *what, const char *about)
{
    fprintf(stderr, "fakenvml-ctl: %s: %s\n", what, about);
    return 1;
}

static int slot_of(const char *uuid)
{
    for (int slot = 0; slot < MAX_GPUS; slot++)
        if (!strcmp(state->gpus[slot].uuid, uuid))
            return slot;
    return -1;
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *text = calloc(1, (size_t)size + 1);
    if (text && fread(text, 1, (size_t)size, file) != (size_t)size) {
        free(text);
        text = NULL;
    }
    fclose(file);
    return text;
}

static int init(const char *path, const char *json_path)
{
    int fd;
    long at;
    char *text = read_file(json_path);
    if (!text)
        return complain("cannot read", json_path);
    struct json *root = json_parse(text, &at);
    if (!root)
        return fprintf(stderr, "fakenvml-ctl: %s: no JSON at byte %ld\n", json_path, at), 1;
    if (!(state = state_create(path, &fd)))
        return complain("cannot make", path);
    int bad = load_machine(state, root);
    state_close(state, fd);
    free(text);
    return bad < 0 ? 0 : (fprintf(stderr, "fakenvml-ctl: gpus[%d] cannot be taken\n", bad), 1);
}

static void dump_instances(const struct gpu *gpu)
{
    const char *comma = "";
    for (int g = 0; g < MAX_INSTANCES; g++) {
        const struct gpu_instance *gi = &gpu->instances[g];
        if (!gi->used)
            continue;
        printf("%s{\"id\":%u,\"profile\":%u,\"start\":%u,\"size\":%u,\"compute\":[", comma, gi->id,
               gi->profile_id, gi->placement.start, gi->placement.size);
        const char *inner = "";
        for (int c = 0; c < MAX_COMPUTE; c++)
            if (gi->compute[c].used) {
                printf("%s{\"id\":%u,\"uuid\":\"%s\"}", inner, gi->compute[c].id, gi->compute[c].uuid);
                inner = ",";
            }
        printf("]}");
        comma = ",";
    }
}

static int dump(void)
{
    const char *comma = "";
    printf("{\"gpus\":[");
    for (int slot = 0; slot < MAX_GPUS; slot++) {
        const struct gpu *gpu = &state->gpus[slot];
        if (!gpu->uuid[0])
            continue;
        printf("%s{\"uuid\":\"%s\",\"present\":%u,\"lost\":%u,\"order\":%u,\"computeMode\":%u,\"mig\":%u,"
               "\"migPending\":%u,\"recoveryAction\":%u,\"instances\":[",
               comma, gpu->uuid, gpu->present, gpu->lost, gpu->order, gpu->compute_mode, gpu->mig_current,
               gpu->mig_pending, gpu->recovery_action);
        dump_instances(gpu);
        printf("]}");
        comma = ",";
    }
    printf("]}\n");
    return 0;
}

static int plant(int argc, char **argv, uint32_t error, uint32_t delay_ms)
{
    int gpu = -1;
    if (argc > 2 && strcmp(argv[2], "*") && (gpu = slot_of(argv[2])) < 0)
        return complain("no such GPU", argv[2]);
    for (int i = 0; i < MAX_FAULTS; i++) {
        struct fault *fault = &state->faults[i];
        if (fault->used)
            continue;
        *fault = (struct fault){.used = 1, .error = error, .delay_ms = delay_ms, .gpu = gpu,
                                .times = argc > 3 ? atoi(argv[3]) : -1};
        snprintf(fault->call, sizeof(fault->call), "%s", argv[0]);
        return 0;
    }
    return complain("no room for another fault", argv[0]);
}

static int process(struct gpu *gpu, int argc, char **argv)
{
    struct process *free_one = NULL, *found = NULL;
    uint32_t pid = (uint32_t)atoi(argv[0]);
    for (int i = 0; i < MAX_PROCESSES; i++) {
        if (gpu->processes[i].used && gpu->processes[i].pid == pid)
            found = &gpu->processes[i];
        else if (!gpu->processes[i].used && !free_one)
            free_one = &gpu->processes[i];
    }
    struct process *one = found ? found : free_one;
    if (!one)
        return complain("no room for another process", argv[0]);
    uint64_t bytes = strtoull(argv[1], NULL, 10);
    *one = (struct process){.used = bytes > 0, .pid = pid, .bytes = bytes,
                            .gi = argc > 3 ? (uint32_t)atoi(argv[2]) : NO_INSTANCE,
                            .ci = argc > 3 ? (uint32_t)atoi(argv[3]) : NO_INSTANCE};
    return 0;
}

static int runs(struct gpu *gpu, const char *pid, const char *percent)
{
    for (int i = 0; i < MAX_PROCESSES; i++)
        if (gpu->processes[i].used && gpu->processes[i].pid == (uint32_t)atoi(pid)) {
            gpu->processes[i].percent = (uint32_t)atoi(percent);
            return 0;
        }
    return complain("no such process", pid);
}

static void move_to_index(struct gpu *gpu, uint32_t index)
{
    for (int other = 0; other < MAX_GPUS; other++)
        if (&state->gpus[other] != gpu && state->gpus[other].order >= index)
            state->gpus[other].order++;
    gpu->order = index;
}

/* Commands about one card: argv[0] is the command, argv[1] the uuid. */
static int happen(int argc, char **argv)
{
    int slot = slot_of(argv[1]);
    if (slot < 0)
        return complain("no such GPU", argv[1]);
    struct gpu *gpu = &state->gpus[slot];
    const char *what = argv[0];
    uint32_t number = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;

    if (!strcmp(what, "xid") && argc > 2)
        push_event(state, (uint32_t)slot, EVENT_XID, number, argc > 4 ? (uint32_t)atoi(argv[3]) : NO_INSTANCE,
                   argc > 4 ? (uint32_t)atoi(argv[4]) : NO_INSTANCE);
    else if (!strcmp(what, "ecc") && argc > 2) {
        int twice = !strcmp(argv[2], "double");
        *(twice ? &gpu->ecc_double : &gpu->ecc_single) += 1;
        push_event(state, (uint32_t)slot, twice ? EVENT_DOUBLE_BIT : EVENT_SINGLE_BIT, 0, NO_INSTANCE, NO_INSTANCE);
    } else if (!strcmp(what, "recovery") && argc > 2) {
        gpu->recovery_action = number;
        push_event(state, (uint32_t)slot, EVENT_RECOVERY, number, NO_INSTANCE, NO_INSTANCE);
    } else if (!strcmp(what, "lost"))
        gpu->lost = 1;
    else if (!strcmp(what, "found"))
        gpu->lost = 0;
    else if (!strcmp(what, "remove"))
        gpu->present = 0;
    else if (!strcmp(what, "plug") && argc > 2) {
        gpu->present = 1;
        move_to_index(gpu, number);
    } else if (!strcmp(what, "reset"))
        gpu->mig_current = gpu->mig_pending;
    else if (!strcmp(what, "busy") && argc > 2)
        gpu->in_use = number;
    else if (!strcmp(what, "mig") && argc > 2)
        gpu->mig_current = gpu->mig_pending = number;
    else if (!strcmp(what, "fabric") && argc > 3) {
        gpu->fabric.state = number;
        gpu->fabric.status = (uint32_t)atoi(argv[3]);
    } else if (!strcmp(what, "process") && argc > 3)
        return process(gpu, argc - 2, argv + 2);
    else if (!strcmp(what, "runs") && argc > 3)
        return runs(gpu, argv[2], argv[3]);
    else
        return complain("unknown command, or too few words for it", what);
    return 0;
}

static int command(int argc, char **argv)
{
    if (!strcmp(argv[0], "dump"))
        return dump();
    if (!strcmp(argv[0], "heal"))
        return memset(state->faults, 0, sizeof(state->faults)), 0;
    if (argc > 2 && !strcmp(argv[0], "fail"))
        return plant(argc - 1, argv + 1, (uint32_t)atoi(argv[2]), 0);
    if (argc > 2 && !strcmp(argv[0], "slow"))
        return plant(argc - 1, argv + 1, 0, (uint32_t)atoi(argv[2]));
    return argc > 1 ? happen(argc, argv) : complain("unknown command", argv[0]);
}

int main(int argc, char **argv)
{
    int fd;
    if (argc < 3)
        return complain("usage", "fakenvml-ctl STATE COMMAND [WORD ...]");
    if (!strcmp(argv[2], "init"))
        return argc == 4 ? init(argv[1], argv[3]) : complain("usage", "fakenvml-ctl STATE init MACHINE.json");
    if (!(state = state_open(argv[1], &fd)))
        return complain("cannot open", argv[1]);
    state_lock(fd);
    int answer = command(argc - 2, argv + 2);
    state_unlock(fd);
    state_close(state, fd);
    return answer;
}
