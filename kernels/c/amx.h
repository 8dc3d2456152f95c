/* The instructions of AMX that the kernels use. The numbers of tiles are literals, which the compiler writes into the
 * instruction. With PK_AMX_MODEL they are loops in C, written from Intel's manual (Software Developer's Manual, volume 2, LDTILECFG, TILELOADD, TILESTORED, TDPBSUD), which end the
 * program where a processor would raise a fault: so the kernels can be tried on machines without AMX. */
#ifndef PK_AMX_H
#define PK_AMX_H

#include <stdint.h>
#include <string.h>

/* What LDTILECFG reads. */
typedef struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t column_bytes[16];
    uint8_t rows[16];
} amx_config;

_Static_assert(sizeof(amx_config) == 64, "the processor reads 64 bytes");

#if defined(PK_AMX_MODEL)
#include <stdlib.h>

enum { AMX_TILES = 8, AMX_ROWS = 16, AMX_BYTES = 64 };

typedef struct amx_tile {
    int rows, column_bytes;
    union {
        uint8_t bytes[AMX_ROWS][AMX_BYTES];
        int32_t dwords[AMX_ROWS][AMX_BYTES / 4];
    };
} amx_tile;

/* The tiles of a thread; one without rows is not configured. */
static _Thread_local amx_tile amx_tiles[AMX_TILES];

static inline void amx_must(int holds)
{
    if (!holds)
        abort();
}

static inline void amx_configure(const amx_config *config)
{
    amx_must(config->palette == 1 && config->start_row == 0);
    for (int index = 0; index < 14; index++)
        amx_must(config->reserved[index] == 0);
    memset(amx_tiles, 0, sizeof amx_tiles);
    for (int index = 0; index < 16; index++) {
        const int rows = config->rows[index], bytes = config->column_bytes[index];
        amx_must(rows <= AMX_ROWS && bytes <= AMX_BYTES && (rows == 0) == (bytes == 0) && (index < AMX_TILES || rows == 0));
        if (index < AMX_TILES) {
            amx_tiles[index].rows = rows;
            amx_tiles[index].column_bytes = bytes;
        }
    }
}

static inline void amx_release(void) { memset(amx_tiles, 0, sizeof amx_tiles); }

static inline void amx_zero(int tile)
{
    amx_must(amx_tiles[tile].rows > 0);
    memset(amx_tiles[tile].bytes, 0, sizeof amx_tiles[tile].bytes);
}

static inline void amx_load(int tile, const void *memory, int64_t stride)
{
    amx_zero(tile);
    for (int row = 0; row < amx_tiles[tile].rows; row++)
        memcpy(amx_tiles[tile].bytes[row], (const uint8_t *)memory + row * stride, (size_t)amx_tiles[tile].column_bytes);
}

static inline void amx_store(int tile, void *memory, int64_t stride)
{
    amx_must(amx_tiles[tile].rows > 0);
    for (int row = 0; row < amx_tiles[tile].rows; row++)
        memcpy((uint8_t *)memory + row * stride, amx_tiles[tile].bytes[row], (size_t)amx_tiles[tile].column_bytes);
}

/* sums [m, n] += bytes with a sign [m, 4 k] times bytes without [k, 4 n]. */
static inline void amx_dot(int sums, int with_sign, int without)
{
    amx_tile *c = &amx_tiles[sums];
    const amx_tile *a = &amx_tiles[with_sign], *b = &amx_tiles[without];
    amx_must(sums != with_sign && sums != without && with_sign != without);
    amx_must(a->rows > 0 && b->rows > 0 && c->rows > 0 && a->column_bytes % 4 == 0 && b->column_bytes % 4 == 0);
    amx_must(c->rows == a->rows && a->column_bytes / 4 == b->rows && c->column_bytes == b->column_bytes);
    for (int m = 0; m < a->rows; m++)
        for (int k = 0; k < a->column_bytes / 4; k++)
            for (int n = 0; n < b->column_bytes / 4; n++)
                for (int byte = 0; byte < 4; byte++)
                    c->dwords[m][n] += (int8_t)a->bytes[m][4 * k + byte] * b->bytes[k][4 * n + byte];
}

#elif defined(__AMX_INT8__)
#include <immintrin.h>

/* Compilers take what they are told of the memory of these instructions at its word, and are not told all of it. */
#define AMX_ORDERED(operation)                                                                                         \
    do {                                                                                                               \
        __asm__ volatile("" ::: "memory");                                                                             \
        operation;                                                                                                     \
        __asm__ volatile("" ::: "memory");                                                                             \
    } while (0)
#define amx_configure(config) AMX_ORDERED(_tile_loadconfig(config))
#define amx_release() AMX_ORDERED(_tile_release())
#define amx_zero(tile) AMX_ORDERED(_tile_zero(tile))
#define amx_load(tile, memory, stride) AMX_ORDERED(_tile_loadd(tile, memory, stride))
#define amx_store(tile, memory, stride) AMX_ORDERED(_tile_stored(tile, memory, stride))
#define amx_dot(sums, with_sign, without) AMX_ORDERED(_tile_dpbsud(sums, with_sign, without))
#endif

#endif
