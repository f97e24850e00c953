/* The library is a guest in the process: its thread takes no signals, and goes on if the program
 * unloads the library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "common.h"

int main(void)
{
    struct ibv_context *context = open_nth(0);
    struct end *end = calloc(1, sizeof *end);
    sigset_t set;
    struct timespec minute = { 60, 0 };
    make(end, context);
    connect_self(end);
    say(end, "the thread runs");

    /* Blocked after the thread was made: it would get the signal, and end the process. */
    CHECK(!sigemptyset(&set) && !sigaddset(&set, SIGUSR1));
    CHECK(!pthread_sigmask(SIG_BLOCK, &set, NULL));
    for (int i = 0; i < 100; i++) {
        CHECK(!kill(getpid(), SIGUSR1));
        CHECK(sigtimedwait(&set, NULL, &minute) == SIGUSR1);
    }
    say(end, "and so do we");

    /* A program that loads it itself may unload it, but it stays. */
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
    struct link_map *map;
    unsigned long flags = 0;
    CHECK(library && !dlinfo(library, RTLD_DI_LINKMAP, &map));
    for (ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_FLAGS_1)
            flags = entry->d_un.d_val;
    CHECK(flags & DF_1_NODELETE);
    destroy(end);
    CHECK(!ibv_close_device(context));
    return 0;
}
