/* What one instruction set offers: the same functions, compiled from `kernels.inl` for registers of its width. */
#ifndef PK_ISA_H
#define PK_ISA_H

#include "pippin_kernels.h"

#include <stddef.h>

enum {
    PK_DEPTH = 512,                         /* columns that are unpacked at a time */
    PK_KEYS = 64,                           /* keys that attention looks at at a time */
    PK_MOST_DIM = 512,                      /* of a head */
    PK_QUERIES = 256,                       /* that one call of `attend` may be given, heads times tokens */
    PK_SCRATCH = 3 * PK_KEYS * PK_MOST_DIM + 4 * PK_KEYS + 4 * PK_QUERIES, /* floats that a thread has to itself */
};

/* A product of some rows of a matrix with some vectors.
 *
 * The vectors lie in panels of `width`: [ceil(tokens / width), columns, width], so that one column of all of them is one
 * piece of memory. Missing vectors are zero. `sums` are those of each group, [groups], for a single vector. */
typedef struct pk_tile {
    const pk_matrix *matrix;
    const float *panels, *sums;
    int64_t tokens;
    int width;
    int accumulate; /* add to what `out` holds, instead of beginning with the addend */
    float *out;
    int64_t out_stride;
} pk_tile;

/* Attention of tokens [first, last) of a sequence, all of whose heads share one head of keys and values. */
typedef struct pk_attend {
    const float *queries; /* the group's heads of token 0 */
    float *out;
    int64_t token_stride; /* of both */
    const pk_kv *kv; /* of the sequence */
    int64_t head;    /* of keys and values */
    int64_t start;   /* position of token 0 */
    int64_t first, last;
    int64_t window;
    int64_t seen; /* not 0: queries see the positions before this one, those behind their own too, `window` on each side */
    int group, dim;
    float scale, softcap;
    const float *sinks; /* of the group's heads, or NULL */
} pk_attend;

typedef struct pk_isa {
    const char *name;
    int widest;      /* panel that is multiplied straight from packed words */
    int wide;        /* panel for many vectors, whose rows are unpacked first */
    int many;        /* vectors from which on that pays */
    int unpacked;    /* rows that are unpacked together: chunks of rows are multiples of it */
    /* The width of panels for so many vectors. */
    int (*width)(int64_t tokens);
    void (*pack)(const float *x, int64_t stride, int64_t tokens, int64_t columns, int width, float *panel);
    void (*sum)(const float *x, int64_t columns, int group, float *sums);
    /* Rows [first, last), where `first` is a multiple of 16. */
    void (*multiply)(const pk_tile *tile, int64_t first, int64_t last, float *scratch);
    void (*rms_norm)(const float *x, const float *weight, float eps, int64_t size, float *out);
    void (*layer_norm)(const float *x, const float *weight, const float *bias, float eps, int64_t size, float *out);
    /* `up` NULL stands for ones. */
    void (*gated)(int activation, const float *gate, const float *up, int64_t count, float *out);
    /* Of several rows together, if these share positions; with at most PK_QUERIES queries. */
    void (*attend)(const pk_attend *rows, int count, float *scratch);
} pk_isa;

/* Products with vectors of whole numbers, each group of PK_QUANTISED columns with a factor of its own. Its panels lie as
 * `int8.inl` says. */
enum { PK_QUANTISED = 32 };

typedef struct pk_int8 {
    const char *name;
    const struct pk_int8 *exact; /* the same with vectors of 23 bits, or NULL */
    const struct pk_int8 *words; /* what the exact one has for weights of 8 bits alone, or NULL */
    int (*pays)(int bits, int64_t tokens); /* for so many vectors, with weights of so many bits */
    int (*width)(int64_t tokens);
    int64_t (*size)(int64_t columns, int64_t tokens); /* of the panels of so many vectors, in floats */
    /* Columns [from, to), whole groups of PK_QUANTISED but for the last, of vector `token` of them, NULL for none, as they end
     * with a whole panel; for matrices that are stored as `matrix` is. */
    void (*pack)(const pk_matrix *matrix, const float *x, int64_t from, int64_t to, int64_t tokens, int64_t token,
                 float *panels);
    void (*multiply)(const pk_tile *tile, int64_t first, int64_t last); /* as `pk_isa`'s */
} pk_int8;

/* NULL where this machine, or the compiler, lacks it. */
const pk_isa *pk_isa_avx512(void);
const pk_isa *pk_isa_avx2(void);
const pk_isa *pk_isa_baseline(void);
const pk_int8 *pk_int8_avx512_vnni(void);
const pk_int8 *pk_int8_avx2_vnni(void);
const pk_int8 *pk_int8_avx2(void);
const pk_int8 *pk_int8_neon_i8mm(void);
const pk_int8 *pk_int8_neon_dotprod(void);
const pk_int8 *pk_int8_baseline(void);

#endif
