/* Waits, reaps whatever is left to it, and ends when it is told to: the first process of each pod, and of
 * the whole cluster. The official image of this program cannot be had without a registry. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) {
    (void)signal;
    _exit(0);
}

static void reap(int signal) {
    (void)signal;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(void) {
    struct sigaction ended = {.sa_handler = end};
    struct sigaction child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
    sigaction(SIGINT, &ended, NULL);
    sigaction(SIGTERM, &ended, NULL);
    sigaction(SIGCHLD, &child, NULL);
    /* What ended before the handler was there. */
    reap(SIGCHLD);
    for (;;) {
        pause();
    }
}
