/* What a decoder is made of, for the files that run one. */
#ifndef PK_DECODER_H
#define PK_DECODER_H

#include "context.h"

/* What the tokens of a step have at each stage, [tokens, size] each. */
typedef struct states {
    float *hidden, *normed, *queries, *keys, *values, *attended, *gate, *up, *low, *mixed;
    float *cosines, *sines; /* [ropes, tokens, head_dim / 2] */
} states;

/* What adapters add to one matrix. */
typedef struct additions {
    pk_addition *all; /* [count] */
    int count;
} additions;

struct pk_decoder {
    pk_context *context;
    pk_shape shape;
    pk_layer *layers;
    pk_experts *experts; /* of the layers that have such, one after the other */
    pk_rope *ropes;
    int32_t *windows;     /* [layers] */
    uint8_t *captured;    /* [layers], or NULL while the states after no layer are wanted */
    additions *additions; /* [layers, PK_PROJECTIONS], or NULL while there are none */
    int mixes;            /* some layer has experts */
    int64_t widest;       /* inner size of a gated network */
    int64_t most_rank;    /* of an adapter */
    pk_mixing mixing;
    float *memory; /* of all states */
    int64_t memory_size;
    float *tables; /* of the tokens and pieces of a step */
    int64_t tables_size;
};

/* One step */

typedef struct step {
    pk_decoder *decoder;
    const pk_step *given;
    states at;
    int64_t tokens, piece_count;
    int64_t *positions;
    int64_t *sequences; /* [tokens] */
    pk_piece *pieces;
    int adapts; /* some sequence has an adapter */
    int index;  /* of the layer */
    const pk_layer *layer;
    const pk_kv *kv;
    const float *norm, *input; /* of `norm_chunk` and `add_chunk` */
    float *output;
} step;

/* Whether a matrix is sound and has this shape; else why not is told. */
int pk_has_shape(const pk_matrix *matrix, int64_t rows, int64_t columns);

/* Check what is `given`, find room for its tokens, and where each of them stands; `windows` [layers]. */
int pk_step_begin(step *step, int layers, const int32_t *windows);

/* The hidden states of a step that has begun through a layer, where the sequences' keys and values are `kv`. */
int pk_step_layer(step *step, int index, const pk_kv *kv);

/* output = norm(input) of all tokens of a step, [tokens, hidden] each. */
void pk_step_norm(step *step, const float *weight, const float *input, float *output);

#endif
