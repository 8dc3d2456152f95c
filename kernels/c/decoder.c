/* A whole decoder: embedding, layers of attention and gated feed-forward networks, last norm. */
#include "context.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(pk_kv) == 7 * 8, "the binding writes its fields as numbers of 64 bits");

enum { TOKENS_A_CHUNK = 8 }; /* of work that is done token by token */

/* What the tokens of a step have at each stage, [tokens, size] each. */
typedef struct states {
    float *hidden, *normed, *queries, *keys, *values, *attended, *gate, *up;
    float *cosines, *sines; /* [ropes, tokens, head_dim / 2] */
} states;

struct pk_decoder {
    pk_context *context;
    pk_shape shape;
    pk_layer *layers;
    pk_rope *ropes;
    float *memory; /* of all states */
    int64_t memory_size;
    int64_t *positions;
    int64_t positions_size;
};

/* Checks */

static int has_shape(const pk_matrix *matrix, int64_t rows, int64_t columns)
{
    if (pk_check(matrix) != PK_OK)
        return 0;
    if (matrix->rows == rows && matrix->columns == columns)
        return 1;
    pk_refuse("A matrix does not have the shape that the architecture gives it.");
    return 0;
}

static int check_layer(const pk_shape *shape, const pk_layer *layer)
{
    const int64_t queries = (int64_t)shape->heads * shape->head_dim, keys = (int64_t)shape->kv_heads * shape->head_dim;
    if (!has_shape(&layer->query, queries, shape->hidden) || !has_shape(&layer->key, keys, shape->hidden) ||
        !has_shape(&layer->value, keys, shape->hidden) || !has_shape(&layer->output, shape->hidden, queries) ||
        !has_shape(&layer->gate, shape->intermediate, shape->hidden) ||
        !has_shape(&layer->up, shape->intermediate, shape->hidden) ||
        !has_shape(&layer->down, shape->hidden, shape->intermediate))
        return PK_REFUSED;
    if (layer->input_norm == NULL || layer->mlp_norm == NULL)
        return pk_refuse("A layer lacks a norm.");
    if (layer->rope < -1 || layer->rope >= shape->rope_count || layer->window < 0)
        return pk_refuse("A layer names a rotary embedding or a window that is not possible.");
    return PK_OK;
}

static int check_shape(const pk_shape *shape)
{
    if (shape->hidden < 1 || shape->intermediate < 1 || shape->heads < 1 || shape->kv_heads < 1 ||
        shape->layer_count < 1 || shape->rope_count < 0 || shape->head_dim < 1 || shape->head_dim > PK_MOST_DIM ||
        shape->heads % shape->kv_heads != 0 || shape->heads / shape->kv_heads > PK_QUERIES)
        return pk_refuse("The decoder has a size that is not possible.");
    if (shape->activation < PK_SILU || shape->activation > PK_GELU || shape->final_norm == NULL)
        return pk_refuse("The decoder lacks its last norm or a known activation.");
    if (!has_shape(&shape->embedding, shape->embedding.rows, shape->hidden))
        return PK_REFUSED;
    for (int index = 0; index < shape->rope_count; index++)
        if (shape->ropes[index].dims < 2 || shape->ropes[index].dims % 2 ||
            shape->ropes[index].dims > shape->head_dim || shape->ropes[index].inverse_frequencies == NULL)
            return pk_refuse("A rotary embedding does not fit the heads.");
    for (int index = 0; index < shape->layer_count; index++)
        if (check_layer(shape, &shape->layers[index]) != PK_OK)
            return PK_REFUSED;
    return PK_OK;
}

static void *copied(const void *source, size_t count, size_t size)
{
    void *copy = calloc(count + 1, size);
    if (copy != NULL && count > 0)
        memcpy(copy, source, count * size);
    return copy;
}

pk_decoder *pk_decoder_open(pk_context *context, const pk_shape *shape)
{
    if (check_shape(shape) != PK_OK)
        return NULL;
    pk_decoder *decoder = calloc(1, sizeof *decoder);
    if (decoder != NULL) {
        decoder->context = context;
        decoder->shape = *shape;
        decoder->layers = copied(shape->layers, (size_t)shape->layer_count, sizeof *shape->layers);
        decoder->ropes = copied(shape->ropes, (size_t)shape->rope_count, sizeof *shape->ropes);
        decoder->shape.layers = decoder->layers;
        decoder->shape.ropes = decoder->ropes;
    }
    if (decoder == NULL || decoder->layers == NULL || decoder->ropes == NULL) {
        pk_decoder_close(decoder);
        pk_refuse("There is no memory left for the decoder.");
        return NULL;
    }
    return decoder;
}

void pk_decoder_close(pk_decoder *decoder)
{
    if (decoder == NULL)
        return;
    free(decoder->layers);
    free(decoder->ropes);
    free(decoder->memory);
    free(decoder->positions);
    free(decoder);
}

/* One step */

typedef struct step {
    pk_decoder *decoder;
    states at;
    int64_t slots, count, tokens;
    const int64_t *starts;
    const pk_layer *layer;
    const pk_kv *kv;
    const float *norm, *input; /* of `norm_chunk` */
    float *output;
} step;

static int lay_out(step *step)
{
    pk_decoder *decoder = step->decoder;
    const pk_shape *shape = &decoder->shape;
    const int64_t queries = (int64_t)shape->heads * shape->head_dim, keys = (int64_t)shape->kv_heads * shape->head_dim;
    const int64_t turns = (int64_t)shape->rope_count * (shape->head_dim / 2);
    const int64_t sizes[] = {shape->hidden, shape->hidden,       queries,             keys,  keys,
                             queries,       shape->intermediate, shape->intermediate, turns, turns};
    float **places[] = {&step->at.hidden,   &step->at.normed, &step->at.queries, &step->at.keys,    &step->at.values,
                        &step->at.attended, &step->at.gate,   &step->at.up,      &step->at.cosines, &step->at.sines};
    enum { STATES = sizeof sizes / sizeof *sizes };
    int64_t total = 0;
    for (int index = 0; index < STATES; index++)
        total += (sizes[index] * step->tokens + 15) / 16 * 16;
    if (pk_enlarge(&decoder->memory, &decoder->memory_size, total) != PK_OK)
        return PK_REFUSED;
    float *place = decoder->memory;
    for (int index = 0; index < STATES; index++) {
        *places[index] = place;
        place += (sizes[index] * step->tokens + 15) / 16 * 16;
    }
    return PK_OK;
}

static int64_t position_of(const step *step, int64_t token)
{
    return step->starts[token / step->count] + token % step->count;
}

static void take_turns(step *step)
{
    const pk_shape *shape = &step->decoder->shape;
    float *cosines = step->at.cosines, *sines = step->at.sines;
    for (int index = 0; index < shape->rope_count; index++) {
        const pk_rope *rope = &shape->ropes[index];
        for (int64_t token = 0; token < step->tokens; token++) {
            for (int pair = 0; pair < rope->dims / 2; pair++) {
                float angle = (float)position_of(step, token) * rope->scale * rope->inverse_frequencies[pair];
                cosines[pair] = cosf(angle) * rope->stretch;
                sines[pair] = sinf(angle) * rope->stretch;
            }
            cosines += shape->head_dim / 2;
            sines += shape->head_dim / 2;
        }
    }
}

static void turn(const pk_rope *rope, const float *cosines, const float *sines, float *head)
{
    const int half = rope->dims / 2, stride = rope->interleaved ? 2 : 1, other = rope->interleaved ? 1 : half;
    for (int pair = 0; pair < half; pair++) {
        float *a = head + pair * stride, *b = a + other;
        const float first = *a, second = *b;
        *a = first * cosines[pair] - second * sines[pair];
        *b = second * cosines[pair] + first * sines[pair];
    }
}

static void norm_and_turn(const step *step, int64_t token, float *heads, int count, const float *norm)
{
    const pk_shape *shape = &step->decoder->shape;
    const int rope = step->layer->rope, dim = shape->head_dim;
    const int64_t at = ((int64_t)rope * step->tokens + token) * (dim / 2);
    for (int head = 0; head < count; head++, heads += dim) {
        if (norm != NULL)
            step->decoder->context->isa->rms_norm(heads, norm, shape->norm_eps, dim, heads);
        if (rope >= 0)
            turn(&shape->ropes[rope], step->at.cosines + at, step->at.sines + at, heads);
    }
}

static void keep_heads(const step *step, int64_t token)
{
    const pk_shape *shape = &step->decoder->shape;
    const pk_kv *kv = step->kv;
    const int64_t slot = token / step->count, place = position_of(step, token) % kv->capacity;
    const int64_t dim = shape->head_dim, size = (int64_t)shape->kv_heads * dim;
    for (int64_t head = 0; head < shape->kv_heads; head++) {
        memcpy(kv->keys + slot * kv->key_slot_stride + head * kv->key_head_stride + place * dim,
               step->at.keys + token * size + head * dim, (size_t)dim * sizeof(float));
        memcpy(kv->values + slot * kv->value_slot_stride + head * kv->value_head_stride + place * dim,
               step->at.values + token * size + head * dim, (size_t)dim * sizeof(float));
    }
}

static int64_t end_of_chunk(const step *step, int64_t chunk)
{
    int64_t end = (chunk + 1) * TOKENS_A_CHUNK;
    return end < step->tokens ? end : step->tokens;
}

static void heads_chunk(void *argument, int64_t chunk, int thread)
{
    const step *step = argument;
    const pk_shape *shape = &step->decoder->shape;
    (void)thread;
    for (int64_t token = chunk * TOKENS_A_CHUNK; token < end_of_chunk(step, chunk); token++) {
        float *queries = step->at.queries + token * shape->heads * shape->head_dim;
        float *keys = step->at.keys + token * shape->kv_heads * shape->head_dim;
        norm_and_turn(step, token, queries, shape->heads, step->layer->query_norm);
        norm_and_turn(step, token, keys, shape->kv_heads, step->layer->key_norm);
        keep_heads(step, token);
    }
}

static void norm_chunk(void *argument, int64_t chunk, int thread)
{
    const step *step = argument;
    const pk_shape *shape = &step->decoder->shape;
    (void)thread;
    for (int64_t token = chunk * TOKENS_A_CHUNK; token < end_of_chunk(step, chunk); token++)
        step->decoder->context->isa->rms_norm(step->input + token * shape->hidden, step->norm, shape->norm_eps,
                                              shape->hidden, step->output + token * shape->hidden);
}

static void for_tokens(step *step, pk_work work)
{
    pk_pool_run(step->decoder->context->pool, work, step, (step->tokens + TOKENS_A_CHUNK - 1) / TOKENS_A_CHUNK);
}

static void norm(step *step, const float *weight, const float *input, float *output)
{
    step->norm = weight;
    step->input = input;
    step->output = output;
    for_tokens(step, norm_chunk);
}

/* Add what a part of a layer gives to the hidden states, in the product itself where nothing comes between. */
static int add_product(step *step, const pk_matrix *matrix, const float *x, const float *out_norm)
{
    const pk_shape *shape = &step->decoder->shape;
    pk_context *context = step->decoder->context;
    const int direct = out_norm == NULL && shape->residual_scale == 1.0f;
    float *out = direct ? step->at.hidden : step->at.normed;
    pk_products products = {.matrices = {matrix},
                            .outs = {out},
                            .out_strides = {shape->hidden},
                            .count = 1,
                            .accumulate = direct};
    if (pk_multiply(context, &products, x, matrix->columns, step->tokens) != PK_OK)
        return PK_REFUSED;
    if (direct)
        return PK_OK;
    if (out_norm != NULL)
        norm(step, out_norm, out, out);
    for (int64_t index = 0; index < step->tokens * shape->hidden; index++)
        step->at.hidden[index] += out[index] * shape->residual_scale;
    return PK_OK;
}

static int run_attention(step *step)
{
    const pk_shape *shape = &step->decoder->shape;
    const pk_layer *layer = step->layer;
    pk_context *context = step->decoder->context;
    states *at = &step->at;
    norm(step, layer->input_norm, at->hidden, at->normed);
    pk_products products = {.matrices = {&layer->query, &layer->key, &layer->value},
                            .outs = {at->queries, at->keys, at->values},
                            .out_strides = {layer->query.rows, layer->key.rows, layer->value.rows},
                            .count = 3};
    if (pk_multiply(context, &products, at->normed, shape->hidden, step->tokens) != PK_OK)
        return PK_REFUSED;
    for_tokens(step, heads_chunk);
    if (pk_attend_all(context, step->kv, at->queries, step->slots, step->count, shape->heads, shape->kv_heads,
                      shape->head_dim, step->starts, layer->window, layer->sinks, shape->attention_scale,
                      shape->attention_softcap, at->attended) != PK_OK)
        return PK_REFUSED;
    return add_product(step, &layer->output, at->attended, layer->attention_out_norm);
}

static int run_mlp(step *step)
{
    const pk_shape *shape = &step->decoder->shape;
    const pk_layer *layer = step->layer;
    states *at = &step->at;
    norm(step, layer->mlp_norm, at->hidden, at->normed);
    pk_products products = {.matrices = {&layer->gate, &layer->up},
                            .outs = {at->gate, at->up},
                            .out_strides = {shape->intermediate, shape->intermediate},
                            .count = 2,
                            .gate = 1,
                            .activation = shape->activation};
    if (pk_multiply(step->decoder->context, &products, at->normed, shape->hidden, step->tokens) != PK_OK)
        return PK_REFUSED;
    return add_product(step, &layer->down, at->gate, layer->mlp_out_norm);
}

static int check_step(const pk_decoder *decoder, int64_t slots, int64_t count, const int64_t *starts, const pk_kv *kv)
{
    if (slots < 1 || count < 1)
        return pk_refuse("A step has at least one token.");
    for (int index = 0; index < decoder->shape.layer_count; index++) {
        const int64_t window = decoder->layers[index].window;
        if (kv[index].keys == NULL || kv[index].values == NULL)
            return pk_refuse("A layer has no keys and values.");
        for (int64_t slot = 0; slot < slots; slot++)
            if (starts[slot] < 0 || (starts[slot] + count > kv[index].capacity &&
                                     (window < 1 || window + count - 1 > kv[index].capacity)))
                return pk_refuse("A sequence is longer than its keys and values.");
    }
    return PK_OK;
}

int pk_decoder_run(pk_decoder *decoder, const int32_t *tokens, int64_t slots, int64_t count, const int64_t *starts,
                   const pk_kv *kv, float *hidden)
{
    const pk_shape *shape = &decoder->shape;
    step step = {.decoder = decoder, .slots = slots, .count = count, .tokens = slots * count, .starts = starts};
    if (check_step(decoder, slots, count, starts, kv) != PK_OK || lay_out(&step) != PK_OK ||
        pk_rows(&shape->embedding, tokens, step.tokens, step.at.hidden) != PK_OK)
        return PK_REFUSED;
    if (shape->embedding_scale != 1.0f)
        for (int64_t index = 0; index < step.tokens * shape->hidden; index++)
            step.at.hidden[index] *= shape->embedding_scale;
    take_turns(&step);
    for (int index = 0; index < shape->layer_count; index++) {
        step.layer = &decoder->layers[index];
        step.kv = &kv[index];
        if (run_attention(&step) != PK_OK || run_mlp(&step) != PK_OK)
            return PK_REFUSED;
    }
    norm(&step, shape->final_norm, step.at.hidden, hidden);
    return PK_OK;
}
