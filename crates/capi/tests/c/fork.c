/* A process forks while its device runs: the child can destroy what it inherits, use the context
 * that it inherits and open a device of its own, and the parent goes on. */
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

static void talk(struct end *end, struct ibv_context *context, const char *text)
{
    make(end, context);
    connect_self(end);
    say(end, text);
    destroy(end);
}

/* Sockets of the adapter that this process has. */
static int count_sockets(void)
{
    int count = 0;
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_storage name;
        socklen_t len = sizeof name;
        if (!getsockname(fd, (struct sockaddr *)&name, &len))
            count += name.ss_family == AF_INET;
    }
    return count;
}

/* The parent dies; the child, which does nothing, does not keep the address in use. */
static void outlive(void)
{
    int ready[2], done[2];
    char byte;
    CHECK(!pipe(ready) && !pipe(done));
    pid_t parent = fork();
    CHECK(parent >= 0);
    if (parent == 0) {
        struct end *end = calloc(1, sizeof *end);
        talk(end, open_nth(0), "a parent");
        CHECK(count_sockets() > 0);
        if (fork() == 0) {
            CHECK(count_sockets() == 0);
            CHECK(write(ready[1], "", 1) == 1);
            CHECK(read(done[0], &byte, 1) == 1);
            _exit(0);
        }
        pause();
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    CHECK(!kill(parent, SIGKILL));
    CHECK(waitpid(parent, NULL, 0) == parent);
    struct ibv_context *context = open_nth(0);
    struct end *end = calloc(1, sizeof *end);
    talk(end, context, "on the address of the dead");
    CHECK(!ibv_close_device(context));
    CHECK(write(done[1], "", 1) == 1);
}

/* A child closes every descriptor, as daemons do, opens files of its own and forks again: their
 * numbers were those of the adapter, and the second child must not close them. */
static void detach(void)
{
    enum { LAST = 256 };
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int fd = 3; fd < LAST; fd++)
            close(fd);
        while (dup(1) < LAST - 1)
            ;
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (int fd = 3; fd < LAST; fd++)
                CHECK(fcntl(fd, F_GETFD) >= 0);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child);
        _exit(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    outlive();
    CHECK(!ibv_fork_init());
    struct ibv_context *context = open_nth(0);
    struct end *end = calloc(1, sizeof *end), *mine = calloc(2, sizeof *mine);
    make(end, context);
    connect_self(end);
    say(end, "before");
    detach();
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            destroy(end);
            if (i > 0) {
                struct ibv_context *other = open_nth(1);
                talk(&mine[0], other, "in the child, on a device of its own");
                CHECK(!ibv_close_device(other));
            }
            if (i > 1)
                talk(&mine[1], context, "in the child, on the device of its parent");
            CHECK(!ibv_close_device(context));
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        say(end, "after");
    }
    destroy(end);
    CHECK(!ibv_close_device(context));
    return 0;
}
