/* A signal ends the wait for an event or does not, as its handler says, like any other read. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include "common.h"

static volatile sig_atomic_t rang;

static void ring(int signal)
{
    (void)signal;
    rang++;
}

static void handle(int flags)
{
    struct sigaction action = { .sa_handler = ring, .sa_flags = flags };
    CHECK(!sigaction(SIGALRM, &action, NULL));
    rang = 0;
}

static void *speak_after_signals(void *end)
{
    while (rang < 3)
        usleep(1000);
    say(end, "at last");
    return NULL;
}

int main(void)
{
    struct ibv_context *context = open_nth(0);
    struct end *end = calloc(1, sizeof *end);
    struct itimerval often = { { 0, 1000 }, { 0, 1000 } }, never = { { 0 } };
    struct ibv_async_event event;
    struct ibv_cq *cq;
    void *cq_context;
    pthread_t thread;
    sigset_t set;
    make(end, context);
    connect_self(end);

    handle(0);
    CHECK(!setitimer(ITIMER_REAL, &often, NULL));
    CHECK(ibv_get_cq_event(end->channel, &cq, &cq_context) && errno == EINTR);
    CHECK(ibv_get_async_event(context, &event) && errno == EINTR);
    CHECK(!setitimer(ITIMER_REAL, &never, NULL));

    handle(SA_RESTART);
    CHECK(!ibv_req_notify_cq(end->cq, 0));
    CHECK(!sigemptyset(&set) && !sigaddset(&set, SIGALRM));
    CHECK(!pthread_sigmask(SIG_BLOCK, &set, NULL));
    CHECK(!pthread_create(&thread, NULL, speak_after_signals, end));
    CHECK(!pthread_sigmask(SIG_UNBLOCK, &set, NULL));
    CHECK(!setitimer(ITIMER_REAL, &often, NULL));
    CHECK(!ibv_get_cq_event(end->channel, &cq, &cq_context));
    CHECK(cq == end->cq && rang >= 3);
    CHECK(!setitimer(ITIMER_REAL, &never, NULL));
    CHECK(!pthread_join(thread, NULL));
    ibv_ack_cq_events(cq, 1);
    destroy(end);
    CHECK(!ibv_close_device(context));
    return 0;
}
