/* Threads that share out the chunks of one job at a time. */
#ifndef PK_POOL_H
#define PK_POOL_H

#include <stdint.h>

typedef struct pk_pool pk_pool;

/* Does one chunk. `thread` is 0 for the caller and less than the pool's threads. */
typedef void (*pk_work)(void *job, int64_t chunk, int thread);

pk_pool *pk_pool_open(int threads);
void pk_pool_close(pk_pool *pool);
int pk_pool_threads(const pk_pool *pool);

/* Does chunks 0 to chunks - 1 and returns when all are done. Not to be called by two threads at once. */
void pk_pool_run(pk_pool *pool, pk_work work, void *job, int64_t chunks);

#endif
