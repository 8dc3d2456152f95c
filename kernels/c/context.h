/* What all functions of the library share: threads, an instruction set, and each thread's memory. */
#ifndef PK_CONTEXT_H
#define PK_CONTEXT_H

#include "isa.h"
#include "pool.h"

struct pk_context {
    pk_pool *pool;
    const pk_isa *isa;
    const pk_int8 *int8;  /* or NULL, where vectors are not rounded */
    const pk_int8 *exact; /* products of few vectors, as exact as those in float32; or NULL */
    float *scratch;   /* PK_SCRATCH floats for each thread */
    float *panels;    /* vectors of the product under way, and sums of their groups */
    int64_t panels_size;
};

/* Keep a sentence for `pk_refusal`; gives PK_REFUSED. */
int pk_refuse(const char *sentence);

/* Memory of at least `count` floats in place of *memory, which may move; PK_OK or PK_REFUSED. */
int pk_enlarge(float **memory, int64_t *size, int64_t count);

static inline float *pk_scratch_of(const pk_context *context, int thread)
{
    return context->scratch + (int64_t)thread * PK_SCRATCH;
}

/* Several matrices with the same vectors, in one job. With a second `gate` matrix of the same shape the pair of one row is
 * joined by the activation. */
typedef struct pk_products {
    const pk_matrix *matrices[3];
    float *outs[3];
    int64_t out_strides[3];
    int count;
    int accumulate;
    int gate;       /* matrices[0] is gate, matrices[1] up, and outs[0] is activation(gate) * up */
    int activation;
} pk_products;

/* All matrices have as many columns as x. */
int pk_multiply(pk_context *context, const pk_products *products, const float *x, int64_t x_stride, int64_t tokens);

/* Whether two matrices take the same panels: other formats would need other sums of groups, and other bytes. */
int pk_share_panels(const pk_context *context, const pk_matrix *one, const pk_matrix *other);

/* The whole numbers that vectors become for products of so many with this matrix; NULL where they stay float32. */
const pk_int8 *pk_int8_for(const pk_context *context, const pk_matrix *matrix, int64_t tokens);

/* Rotate a head by the cosines and sines [dims / 2] of its position. */
void pk_turn(const pk_rope *rope, const float *cosines, const float *sines, float *head);

/* Several tokens of one sequence, or all of several sequences that share positions, whose attention is one piece of work
 * for each head of keys. */
typedef struct pk_piece {
    int64_t sequence, first, last; /* tokens of the sequence */
    int64_t token;                 /* its token 0 among those of the step */
    int64_t sequences;             /* from that one on */
} pk_piece;

/* How many pieces a step has at most; and these, and how many they are, for heads of which `group` share keys. */
int64_t pk_count_pieces(const pk_step *step, int64_t group);
int64_t pk_cut_pieces(const pk_step *step, int64_t group, pk_piece *pieces);

/* What does not change from one call of attention to the next. */
typedef struct pk_heads {
    int64_t heads, kv_heads, head_dim;
    float scale, softcap;
} pk_heads;

/* Attention over `kv` [sequences], of `count` pieces. */
void pk_attend_all(pk_context *context, const pk_heads *heads, const pk_step *step, const pk_kv *kv,
                   const pk_piece *pieces, int64_t count, int64_t window, const float *sinks, const float *queries,
                   float *out);

/* Refuses a step whose sequences do not fit their keys and values, with `windows` [layers]. */
int pk_check_step(const pk_step *step, int layers, const int32_t *windows, int64_t head_dim);

/* Memory of mixtures of experts, from one step to the next. */
typedef struct pk_mixing {
    float *numbers;
    int64_t numbers_size;
    float *tables;
    int64_t tables_size;
} pk_mixing;

int pk_check_experts(const pk_experts *experts, int64_t hidden);
int pk_mix(pk_context *context, pk_mixing *mixing, const pk_experts *experts, int activation, const float *x,
           int64_t tokens, float *out);
void pk_end_mixing(pk_mixing *mixing);

#endif
