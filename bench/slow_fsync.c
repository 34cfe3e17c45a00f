/* A disk that needs longer: every fsync first sleeps SLOW_FSYNC_US microseconds. Loaded before libc, for one process. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static void wait_for_the_disk(void) {
    const char *microseconds = getenv("SLOW_FSYNC_US");
    usleep(microseconds ? (useconds_t)atoi(microseconds) : 0);
}

int fsync(int file) {
    wait_for_the_disk();
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    wait_for_the_disk();
    return (int)syscall(SYS_fdatasync, file);
}
