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

#define PK_ABI 2
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
enum { PK_SILU = 0, PK_GELU_TANH = 1, PK_GELU = 2 };

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

/* One layer. Norms are float32 weights, NULL where the architecture has none:
 *   h = x + attention_out_norm(attention(input_norm(x))) * residual_scale
 *   y = h + mlp_out_norm(mlp(mlp_norm(h))) * residual_scale */
typedef struct pk_layer {
    pk_matrix query, key, value, output, gate, up, down;
    const float *input_norm, *attention_out_norm, *mlp_norm, *mlp_out_norm; /* [hidden] */
    const float *query_norm, *key_norm;                                     /* [head_dim] */
    const float *sinks;                                                     /* [heads] */
    int32_t rope;   /* index into the decoder's ropes, or -1 */
    int32_t window; /* tokens that a query sees, itself among them; 0 for all */
} pk_layer;

typedef struct pk_shape {
    pk_matrix embedding;
    const float *final_norm; /* [hidden] */
    const pk_layer *layers;
    const pk_rope *ropes;
    int32_t layer_count, rope_count;
    int32_t hidden, intermediate, heads, kv_heads, head_dim, activation;
    float norm_eps, attention_scale, attention_softcap, embedding_scale, residual_scale;
} pk_shape;

typedef struct pk_decoder pk_decoder;

/* Keys and values of one layer: float32, one sequence every `slot_stride` numbers, one head every `head_stride`, and one
 * position every head_dim. Position p lies at p modulo `capacity`: a sequence longer than it must have a window. */
typedef struct pk_kv {
    float *keys, *values;
    int64_t key_slot_stride, key_head_stride, value_slot_stride, value_head_stride, capacity;
} pk_kv;

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

/* Causal attention of queries [slots, count, heads, head_dim] over `kv`, in which the tokens' own keys and values lie
 * already; the first query of slot i stands at position starts[i]. out is as the queries. */
PK_API int pk_attention(pk_context *context, const pk_kv *kv, const float *queries, int64_t slots, int64_t count,
                        int64_t heads, int64_t kv_heads, int64_t head_dim, const int64_t *starts, int64_t window,
                        const float *sinks, float scale, float softcap, float *out);

/* The decoder keeps a copy of `shape` and its tables, not of the weights. */
PK_API pk_decoder *pk_decoder_open(pk_context *context, const pk_shape *shape);
PK_API void pk_decoder_close(pk_decoder *decoder);

/* Run tokens [slots, count] through all layers; those of slot i follow starts[i] earlier ones. Writes their keys and
 * values into `kv` [layers], and the normed states [slots, count, hidden] into `hidden`. */
PK_API int pk_decoder_run(pk_decoder *decoder, const int32_t *tokens, int64_t slots, int64_t count,
                          const int64_t *starts, const pk_kv *kv, float *hidden);

/* One layer of an encoder as BERT's: h = norm(x + attention(x)); y = norm(h + down activation(up h)). Norms have their
 * mean subtracted; they are float32 [hidden], and a norm's bias may be NULL. */
typedef struct pk_encoder_layer {
    pk_matrix query, key, value, output, up, down;
    const float *attention_norm, *attention_norm_bias, *mlp_norm, *mlp_norm_bias;
} pk_encoder_layer;

typedef struct pk_encoder_shape {
    const pk_encoder_layer *layers;
    int32_t layer_count, hidden, intermediate, heads, head_dim, activation;
    float norm_eps, attention_scale;
} pk_encoder_shape;

typedef struct pk_encoder pk_encoder;

/* The encoder keeps a copy of `shape` and its layers, not of the weights. */
PK_API pk_encoder *pk_encoder_open(pk_context *context, const pk_encoder_shape *shape);
PK_API void pk_encoder_close(pk_encoder *encoder);

/* Run states [sum of lengths, hidden] of sequences that lie one behind the other through all layers, in place. */
PK_API int pk_encoder_run(pk_encoder *encoder, float *states, int64_t sequences, const int64_t *lengths);

#ifdef __cplusplus
}
#endif
#endif
