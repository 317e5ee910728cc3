/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of NVML in their first generation, which HAMi-core still calls; together with the
 * pretended NVML they make the library that a container under HAMi-core sees. */
#include "../fakenvml/lib.h"

#include <stddef.h>

uint32_t nvmlInit_v2(void);
uint32_t nvmlDeviceGetCount_v2(uint32_t *count);
uint32_t nvmlDeviceGetHandleByIndex_v2(uint32_t index, handle *found);

struct process_info_v1 {
    uint32_t pid;
    uint64_t bytes;
};

EXPORT uint32_t nvmlInit(void)
{
    return nvmlInit_v2();
}

EXPORT uint32_t nvmlDeviceGetCount(uint32_t *count)
{
    return nvmlDeviceGetCount_v2(count);
}

EXPORT uint32_t nvmlDeviceGetHandleByIndex(uint32_t index, handle *found)
{
    return nvmlDeviceGetHandleByIndex_v2(index, found);
}

EXPORT uint32_t nvmlDeviceGetComputeRunningProcesses(handle device, uint32_t *count, struct process_info_v1 *infos)
{
    uint32_t found = 0, room = *count;
    ENTER(gpu, device);
    for (int i = 0; i < MAX_PROCESSES; i++) {
        const struct process *process = &gpu->processes[i];
        if (!process->used)
            continue;
        if (found < room && infos)
            infos[found] = (struct process_info_v1){process->pid, process->bytes};
        found++;
    }
    *count = found;
    return leave(found > room ? INSUFFICIENT_SIZE : OK);
}
