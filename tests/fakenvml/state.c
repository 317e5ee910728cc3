/* SPDX-License-Identifier: Apache-2.0 */
/* Opens, makes and locks the state file. */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct state *map(int fd)
{
    void *at = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

struct state *state_open(const char *path, int *fd)
{
    struct stat info;
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0)
        return NULL;
    if (fstat(*fd, &info) == 0 && (size_t)info.st_size == sizeof(struct state)) {
        struct state *state = map(*fd);
        if (state && state->magic == STATE_MAGIC)
            return state;
        if (state)
            munmap(state, sizeof(*state));
    }
    close(*fd);
    errno = EINVAL;
    return NULL;
}

struct state *state_create(const char *path, int *fd)
{
    *fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (*fd < 0)
        return NULL;
    if (ftruncate(*fd, sizeof(struct state)) == 0) {
        struct state *state = map(*fd);
        if (state) {
            state->size = sizeof(*state);
            state->magic = STATE_MAGIC;
            return state;
        }
    }
    close(*fd);
    return NULL;
}

void state_close(struct state *state, int fd)
{
    munmap(state, sizeof(*state));
    close(fd);
}

/* A file lock, not a mutex in the file: the kernel frees it when its holder is killed. */
void state_lock(int fd)
{
    while (flock(fd, LOCK_EX) != 0 && errno == EINTR)
        ;
}

void state_unlock(int fd)
{
    flock(fd, LOCK_UN);
}
