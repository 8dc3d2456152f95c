/* What all functions of the library share: threads, an instruction set, and each thread's memory. */
#ifndef PK_CONTEXT_H
#define PK_CONTEXT_H

#include "isa.h"
#include "pool.h"

struct pk_context {
    pk_pool *pool;
    const pk_isa *isa;
    const pk_int8 *int8; /* or NULL, where vectors stay float32 */
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

/* Begins `count` attentions, which differ in slots and heads. */
int pk_attend_all(pk_context *context, const pk_kv *kv, const float *queries, int64_t slots, int64_t count,
                  int64_t heads, int64_t kv_heads, int64_t head_dim, const int64_t *starts, int64_t window,
                  const float *sinks, float scale, float softcap, float *out);

#endif
