/* The C ABI of Pippin's kernels for CPUs: products with MLX's packed weights, and decoders made of them.
 *
 * Everything is computed in float32 from weights as they are stored. Sizes count elements unless they say bytes.
 * Functions that can refuse give NULL or PK_OK; `pk_refusal` tells why, in a sentence, for the calling thread.
 *
 * Weights lie in blocks of 16 rows ("blocked"): an array of rows [rows, n] becomes [ceil(rows / 16), n, 16], the
 * missing rows of the last block zero. A vector register then holds the same column of neighbouring rows, and MLX's
 * packed words stay as they are.
 */
#ifndef PIPPIN_KERNELS_H
#define PIPPIN_KERNELS_H

#include <stdint.h>

#define PK_ABI 7
#define PK_BLOCK 16

#if defined(__GNUC__)
#define PK_API __attribute__((visibility("default")))
#else
#define PK_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { PK_OK = 0, PK_REFUSED = -1 };

/* Types of stored numbers. */
enum { PK_F32 = 0, PK_F16 = 1, PK_BF16 = 2 };

/* How a matrix is stored. */
enum { PK_AFFINE = 0, PK_DENSE = 1, PK_MXFP4 = 2, PK_NVFP4 = 3 };

/* Activation functions of the feed-forward network. */
enum {
    PK_SILU = 0,
    PK_GELU_TANH = 1,
    PK_GELU = 2,
    PK_SWIGLU_OAI = 3, /* gpt_oss: g = min(gate, 7), u = clip(up, -7, 7), and g sigmoid(1.702 g) (u + 1) */
};

/* Threads and an instruction set. One caller at a time. */
typedef struct pk_context pk_context;

/* A matrix [rows, columns] that vectors are multiplied with. Its memory belongs to the caller and must outlive it.
 *
 * PK_AFFINE: `weights` are MLX's packed words of 2, 3, 4, 5, 6 or 8 bits, uint32 [blocks, columns * bits / 32, 16];
 * `scales` and `biases` are [blocks, columns / group, 16] of `type`; a weight is its bits * scale + bias.
 * PK_MXFP4, PK_NVFP4: words of 4 bits, which are numbers of sign, 2 bits of exponent and 1 of fraction (E2M1: 0, 0.5, 1,
 * 1.5, 2, 3, 4, 6); `scales` are bytes [blocks, columns / group, 16]: in MXFP4 powers of two (E8M0, 2^(byte - 127)) in
 * groups of 32, in NVFP4 numbers of 8 bits (E4M3) in groups of 16. No `biases`; `type` says nothing.
 * PK_DENSE: `weights` are [blocks, columns, 16] of `type`, whose bits `bits` are, and there is nothing else.
 * `addend` is the bias of a linear layer, float32 [blocks * 16], or NULL. The sizes in bytes are those of the memory, so
 * that it is never read beyond its end. */
typedef struct pk_matrix {
    const void *weights, *scales, *biases;
    const float *addend;
    int64_t rows, columns;
    int64_t weight_bytes, scale_bytes, bias_bytes, addend_bytes;
    int32_t bits, group, type, format;
} pk_matrix;

/* Rotary positions. `inverse_frequencies` has dims / 2 numbers; NULL stands for no rotation. `interleaved` pairs number
 * 2i with 2i + 1, otherwise i goes with i + dims / 2. `scale` multiplies positions, `stretch` the rotated numbers. */
typedef struct pk_rope {
    const float *inverse_frequencies;
    int32_t dims, interleaved;
    float scale, stretch;
} pk_rope;

/* A mixture of experts: of each token, the router chooses `chosen` of `count` networks, whose outputs are weighted with the
 * softmax of the router's scores: over the chosen ones where `normalized`, over all otherwise. `gate`, `up` and `down` are
 * those of the first expert, but for the sizes in bytes, which are those of all; the others lie one behind the other. */
typedef struct pk_experts {
    pk_matrix router, gate, up, down;
    int32_t count, chosen, normalized;
} pk_experts;

/* One layer. Norms are float32 weights, NULL where the architecture has none:
 *   h = x + attention_out_norm(attention(input_norm(x))) * residual_scale
 *   y = h + mlp_out_norm(mlp(mlp_norm(h))) * residual_scale */
typedef struct pk_layer {
    pk_matrix query, key, value, output, gate, up, down;
    const float *input_norm, *attention_out_norm, *mlp_norm, *mlp_out_norm; /* [hidden] */
    const float *query_norm, *key_norm;                                     /* [head_dim] */
    const float *sinks;                                                     /* [heads] */
    const pk_experts *experts; /* in place of gate, up and down, which then are not looked at; or NULL */
    int32_t rope;   /* index into the decoder's ropes, or -1 */
    int32_t window; /* tokens that a query sees, itself among them; 0 for all */
} pk_layer;

typedef struct pk_shape {
    pk_matrix embedding;
    const float *final_norm; /* [hidden] */
    const pk_layer *layers;
    const pk_rope *ropes;
    int32_t layer_count, rope_count;
    int32_t hidden, heads, kv_heads, head_dim, activation;
    float norm_eps, attention_scale, attention_softcap, embedding_scale, residual_scale;
} pk_shape;

typedef struct pk_decoder pk_decoder;

/* Keys and values of one sequence in one layer: one head every `head_stride` elements, and one position after the other.
 * Position p lies at (p + shift) modulo `capacity`: a sequence longer than that must have a window.
 *
 * bits 0: float32 [head_dim] for each position. bits 4 and 8: MLX's packed words, uint32 [head_dim * bits / 32], and
 * float32 scales and biases [head_dim / group], the heads of which lie without gaps, too.
 *
 * The first `shared` positions lie in memory that several sequences begin with and none writes to, position p at p; they
 * are float32, as the rest is then. */
typedef struct pk_kv {
    void *keys, *values;
    float *key_scales, *key_biases, *value_scales, *value_biases;
    int64_t key_head_stride, value_head_stride, capacity, shift, bits, group;
    const float *shared_keys, *shared_values;
    int64_t shared_key_head_stride, shared_value_head_stride, shared;
} pk_kv;

/* One step: sequence i adds `counts[i]` tokens to the `starts[i]` that it has. Tokens lie one after the other, those of
 * a sequence together. `kv` is [layers, sequences]; `adapters` [sequences] names what each adds to the matrices (0 for
 * nothing), or is NULL. */
typedef struct pk_step {
    const int64_t *starts, *counts;
    const int32_t *adapters;
    const pk_kv *kv;
    int64_t sequences;
} pk_step;

/* What an adapter adds to a product with one matrix: up (down x). A `down` without rows adds nothing. */
typedef struct pk_addition {
    pk_matrix down, up;
} pk_addition;

/* The matrices of a layer that adapters may add to. */
enum { PK_QUERY, PK_KEY, PK_VALUE, PK_OUTPUT, PK_GATE, PK_UP, PK_DOWN, PK_PROJECTIONS };

PK_API int pk_abi(void);
PK_API const char *pk_refusal(void);

/* Names of the instruction sets that this machine can run, best first; NULL beyond the last. */
PK_API const char *pk_instruction_set(int index);

/* `instruction_set` NULL takes the best. `threads` counts the caller. */
PK_API pk_context *pk_open(int threads, const char *instruction_set);
PK_API void pk_close(pk_context *context);
PK_API const char *pk_used(const pk_context *context);

/* Names of the ways in which this machine can multiply int8, best first; NULL beyond the last. */
PK_API const char *pk_int8_set(int index);

/* From here on, vectors that packed weights are multiplied with are rounded to int8, each 32 columns with a factor of
 * their own; `int8_set` NULL takes the best. Dense weights, norms, attention and sums stay in float32. */
PK_API int pk_round_activations(pk_context *context, const char *int8_set);

/* Products of packed weights with a few vectors are computed in whole numbers where the instruction set has those: each 32
 * columns of a vector become numbers of 23 bits with a factor, so that the result is as exact as sums of float32 are.
 * From here on by this one of the ways of int8, or, with NULL, in float32. */
PK_API int pk_whole_numbers(pk_context *context, const char *int8_set);

PK_API int pk_check(const pk_matrix *matrix);

/* out[t] = matrix x[t] for `tokens` vectors; strides from one vector to the next. */
PK_API int pk_product(pk_context *context, const pk_matrix *matrix, const float *x, int64_t x_stride, int64_t tokens,
                      float *out, int64_t out_stride);

/* Rows of the matrix, as numbers: out [count, columns]. */
PK_API int pk_rows(const pk_matrix *matrix, const int32_t *indexes, int64_t count, float *out);

/* Root-mean-square norm of `count` vectors of `size`; `weight` may be NULL. Layer norm subtracts the mean first. */
PK_API void pk_rms_norm(pk_context *context, const float *x, const float *weight, float eps, int64_t count,
                        int64_t size, float *out);
PK_API void pk_layer_norm(pk_context *context, const float *x, const float *weight, const float *bias, float eps,
                          int64_t count, int64_t size, float *out);

/* out = activation(gate) * up. */
PK_API void pk_gated(pk_context *context, int activation, const float *gate, const float *up, int64_t count, float *out);

/* Rotate `count` tokens of `heads` heads of `head_dim` numbers in place; token i stands at `positions[i]`. */
PK_API int pk_rotate(const pk_rope *rope, float *x, int64_t count, int64_t heads, int64_t head_dim,
                     const int64_t *positions);

/* Causal attention of queries [tokens, heads, head_dim] over the `kv` [sequences] of a step of one layer, in which the
 * tokens' own keys and values lie already. out is as the queries. */
PK_API int pk_attention(pk_context *context, const pk_step *step, const float *queries, int64_t heads, int64_t kv_heads,
                        int64_t head_dim, int64_t window, const float *sinks, float scale, float softcap, float *out);

/* A mixture by itself: out [tokens, hidden] of x [tokens, hidden]. Where `chosen` [tokens, experts->chosen] names the
 * experts, no router is needed, and out is [tokens, chosen, hidden], what each of them gives. */
PK_API int pk_mixture(pk_context *context, const pk_experts *experts, int activation, const float *x, int64_t tokens,
                      const int32_t *chosen, float *out);

/* The decoder keeps a copy of `shape` and its tables, not of the weights. */
PK_API pk_decoder *pk_decoder_open(pk_context *context, const pk_shape *shape);
PK_API void pk_decoder_close(pk_decoder *decoder);

/* From now on adapter i + 1 adds `additions[i]` to a projection of a layer. The decoder keeps a copy of the table. */
PK_API int pk_decoder_adapt(pk_decoder *decoder, int layer, int projection, const pk_addition *additions, int count);

/* From now on `pk_decoder_run` also gives the states after each of these layers, which ascend. */
PK_API int pk_decoder_capture(pk_decoder *decoder, const int32_t *layers, int count);

/* Run `tokens` through all layers. Writes their keys and values, and the normed states [tokens, hidden] into `hidden`,
 * behind which those after each captured layer follow: [1 + captured, tokens, hidden]. */
PK_API int pk_decoder_run(pk_decoder *decoder, const pk_step *step, const int32_t *tokens, float *hidden);

/* Run states [tokens, hidden] through one layer, in place. `step->kv` is that layer's alone. */
PK_API int pk_decoder_layer(pk_decoder *decoder, int layer, const pk_step *step, float *states);

#ifdef __cplusplus
}
#endif
#endif
