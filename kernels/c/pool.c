/* A pool in which nobody waits for a thread that the system has not scheduled.
 *
 * The caller works as well. It opens a job, takes chunks like the others, and when none are left closes the door: who has
 * not come in by then finds it closed, and is not waited for. Only a helper in the middle of a chunk holds the caller up,
 * so chunks should be small. Between jobs helpers look for the next one for a moment, as the products of one step follow
 * each other within microseconds, and then sleep.
 */
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ __volatile__("yield")
#else
#define RELAX() ((void)0)
#endif

enum {
    LOOKS = 2000,         /* of a helper for the next job before it sleeps: about 50 us */
    PATIENCE = 2000,      /* looks of the caller before it lets others have its core */
    JOB = 1 << 16,        /* the door's number of the job; below it, who came in */
    CLOSED = 1 << 15,
    MOST_THREADS = 256,
};

struct pk_pool {
    int threads;
    pthread_t *helpers;
    int started;

    pk_work work;
    void *job;
    int64_t chunks;
    _Alignas(64) atomic_int_fast64_t next; /* chunk to be taken */
    _Alignas(64) atomic_uint door;         /* job number * JOB | CLOSED | helpers that came in */
    _Alignas(64) atomic_uint left;         /* helpers that are done with this job */

    _Alignas(64) atomic_int sleepers;
    atomic_bool stopping;
    pthread_mutex_t lock;
    pthread_cond_t opened;
};

typedef struct helper_start {
    pk_pool *pool;
    int thread;
} helper_start;

static void take_chunks(pk_pool *pool, int thread)
{
    for (;;) {
        int64_t chunk = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (chunk >= pool->chunks)
            return;
        pool->work(pool->job, chunk, thread);
    }
}

static bool come_in(pk_pool *pool)
{
    unsigned door = atomic_load_explicit(&pool->door, memory_order_acquire);
    while (!(door & CLOSED))
        if (atomic_compare_exchange_weak_explicit(&pool->door, &door, door + 1, memory_order_acq_rel,
                                                  memory_order_acquire))
            return true;
    return false;
}

/* The number of a job that is not `seen`, or `seen` when the pool stops. */
static unsigned await_job(pk_pool *pool, unsigned seen)
{
    for (int look = 0; look < LOOKS; look++) {
        unsigned job = atomic_load_explicit(&pool->door, memory_order_acquire) / JOB;
        if (job != seen)
            return job;
        RELAX();
    }
    unsigned job = seen;
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while ((job = atomic_load(&pool->door) / JOB) == seen && !atomic_load(&pool->stopping))
        pthread_cond_wait(&pool->opened, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
    return job;
}

static void *help(void *argument)
{
    helper_start start = *(helper_start *)argument;
    free(argument);
    pk_pool *pool = start.pool;
    unsigned seen = 0;
    while (!atomic_load_explicit(&pool->stopping, memory_order_acquire)) {
        unsigned job = await_job(pool, seen);
        if (job == seen)
            continue;
        seen = job;
        if (come_in(pool)) {
            take_chunks(pool, start.thread);
            atomic_fetch_add_explicit(&pool->left, 1, memory_order_release);
        }
    }
    return NULL;
}

pk_pool *pk_pool_open(int threads)
{
    if (threads < 1)
        threads = 1;
    if (threads > MOST_THREADS)
        threads = MOST_THREADS;
    pk_pool *pool = aligned_alloc(64, (sizeof(pk_pool) + 63) / 64 * 64);
    if (pool == NULL)
        return NULL;
    *pool = (pk_pool){.threads = 1};
    atomic_init(&pool->door, CLOSED);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->opened, NULL);
    pool->helpers = calloc((size_t)threads, sizeof(pthread_t));
    for (int thread = 1; thread < threads && pool->helpers != NULL; thread++) {
        helper_start *start = malloc(sizeof *start);
        if (start == NULL)
            break;
        *start = (helper_start){pool, thread};
        if (pthread_create(&pool->helpers[pool->started], NULL, help, start) != 0) {
            free(start); /* fewer threads do the same work */
            break;
        }
        pool->started++;
    }
    pool->threads = pool->started + 1;
    return pool;
}

void pk_pool_close(pk_pool *pool)
{
    if (pool == NULL)
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->stopping, true);
    pthread_cond_broadcast(&pool->opened);
    pthread_mutex_unlock(&pool->lock);
    for (int helper = 0; helper < pool->started; helper++)
        pthread_join(pool->helpers[helper], NULL);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->opened);
    free(pool->helpers);
    free(pool);
}

int pk_pool_threads(const pk_pool *pool)
{
    return pool->threads;
}

static void open_job(pk_pool *pool, pk_work work, void *job, int64_t chunks)
{
    pool->work = work;
    pool->job = job;
    pool->chunks = chunks;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->left, 0, memory_order_relaxed);
    unsigned number = atomic_load_explicit(&pool->door, memory_order_relaxed) / JOB + 1;
    atomic_store(&pool->door, number * JOB);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->opened);
        pthread_mutex_unlock(&pool->lock);
    }
}

static void close_job(pk_pool *pool)
{
    unsigned came = atomic_fetch_or_explicit(&pool->door, CLOSED, memory_order_acq_rel) % CLOSED;
    for (int look = 0; atomic_load_explicit(&pool->left, memory_order_acquire) != came; look++) {
        if (look < PATIENCE)
            RELAX();
        else
            sched_yield();
    }
}

void pk_pool_run(pk_pool *pool, pk_work work, void *job, int64_t chunks)
{
    if (pool->threads == 1 || chunks <= 1) {
        for (int64_t chunk = 0; chunk < chunks; chunk++)
            work(job, chunk, 0);
        return;
    }
    open_job(pool, work, job, chunks);
    take_chunks(pool, 0);
    close_job(pool);
}
