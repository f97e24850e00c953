/* A process forks while its device runs: the child can destroy what it inherits, use the context
 * that it inherits and open a device of its own, and the parent goes on. */
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

int main(void)
{
    CHECK(!ibv_fork_init());
    struct ibv_context *context = open_nth(0);
    struct end *end = calloc(1, sizeof *end), *mine = calloc(2, sizeof *mine);
    make(end, context);
    connect_self(end);
    say(end, "before");
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            destroy(end);
            if (i > 0) {
                struct ibv_context *other = open_nth(1);
                make(&mine[0], other);
                connect_self(&mine[0]);
                say(&mine[0], "in the child, on a device of its own");
                destroy(&mine[0]);
                CHECK(!ibv_close_device(other));
            }
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
