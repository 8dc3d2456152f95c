/* The layers of an encoder: attention in both directions and a feed-forward network, each normed before or after. */
#include "context.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS_A_CHUNK = 8, /* of work that is done token by token */
    MOST_TOKENS = 32,   /* of a piece of attention */
};

struct pk_encoder {
    pk_context *context;
    pk_encoder_shape shape;
    pk_encoder_layer *layers;
    pk_rope *ropes;
    float *memory; /* of what a step needs beside its states */
    int64_t memory_size;
    int64_t *pieces; /* sequence, first token in it, and first token of the sequence in the batch, of each piece */
    int64_t pieces_size;
};

static int fits(const pk_matrix *matrix, int64_t rows, int64_t columns)
{
    if (pk_check(matrix) != PK_OK)
        return 0;
    if (matrix->rows == rows && matrix->columns == columns)
        return 1;
    pk_refuse("A matrix does not have the shape that the encoder gives it.");
    return 0;
}

static int check_encoder(const pk_encoder_shape *shape)
{
    const int64_t inner = (int64_t)shape->heads * shape->head_dim;
    if (shape->layer_count < 1 || shape->hidden < 1 || shape->intermediate < 1 || shape->heads < 1 ||
        shape->head_dim < 1 || shape->head_dim > PK_MOST_DIM || shape->rope_count < 0 || shape->activation < PK_SILU ||
        shape->activation > PK_GELU)
        return pk_refuse("The encoder has a size or an activation that is not possible.");
    for (int index = 0; index < shape->layer_count; index++) {
        const pk_encoder_layer *layer = &shape->layers[index];
        if (!fits(&layer->query, inner, shape->hidden) || !fits(&layer->key, inner, shape->hidden) ||
            !fits(&layer->value, inner, shape->hidden) || !fits(&layer->output, shape->hidden, inner) ||
            !fits(&layer->up, shape->intermediate, shape->hidden) ||
            !fits(&layer->down, shape->hidden, shape->intermediate) ||
            (layer->gate.rows != 0 && !fits(&layer->gate, shape->intermediate, shape->hidden)))
            return PK_REFUSED;
        if ((layer->attention_norm == NULL && !shape->norms_first) || layer->mlp_norm == NULL)
            return pk_refuse("A layer lacks a norm.");
        if (layer->rope < -1 || layer->rope >= shape->rope_count || layer->window < 0)
            return pk_refuse("A layer names a rotary embedding or a window that is not possible.");
    }
    for (int index = 0; index < shape->rope_count; index++)
        if (shape->ropes[index].dims < 2 || shape->ropes[index].dims % 2 ||
            shape->ropes[index].dims > shape->head_dim || shape->ropes[index].inverse_frequencies == NULL)
            return pk_refuse("A rotary embedding does not fit the heads.");
    return PK_OK;
}

pk_encoder *pk_encoder_open(pk_context *context, const pk_encoder_shape *shape)
{
    if (check_encoder(shape) != PK_OK)
        return NULL;
    const size_t size = (size_t)shape->layer_count * sizeof *shape->layers;
    const size_t ropes_size = (size_t)shape->rope_count * sizeof *shape->ropes;
    pk_encoder *encoder = calloc(1, sizeof *encoder);
    if (encoder != NULL) {
        encoder->layers = malloc(size);
        encoder->ropes = malloc(ropes_size + 1);
    }
    if (encoder == NULL || encoder->layers == NULL || encoder->ropes == NULL) {
        pk_encoder_close(encoder);
        pk_refuse("There is no memory left for the encoder.");
        return NULL;
    }
    memcpy(encoder->layers, shape->layers, size);
    if (ropes_size > 0)
        memcpy(encoder->ropes, shape->ropes, ropes_size);
    encoder->context = context;
    encoder->shape = *shape;
    encoder->shape.layers = encoder->layers;
    encoder->shape.ropes = encoder->ropes;
    return encoder;
}

void pk_encoder_close(pk_encoder *encoder)
{
    if (encoder == NULL)
        return;
    free(encoder->layers);
    free(encoder->ropes);
    free(encoder->memory);
    free(encoder->pieces);
    free(encoder);
}

/* One step over sequences that lie one behind the other, without padding. */
typedef struct step {
    pk_encoder *encoder;
    const pk_encoder_layer *layer;
    const int64_t *lengths;
    int64_t tokens, longest, piece_count;
    /* [tokens, size] each but for `kept_keys` and `kept_values`, [heads, tokens, head_dim] */
    float *states, *normed, *queries, *keys, *values, *attended, *inner, *ups, *kept_keys, *kept_values;
    float *cosines, *sines; /* [ropes, longest, head_dim / 2] */
    float *positions;       /* [tokens], whole numbers, as lengths are less than 2^24 */
    const float *norm, *norm_bias;
    float *norm_out;
} step;

static int64_t end_of_chunk(const step *step, int64_t chunk)
{
    int64_t end = (chunk + 1) * TOKENS_A_CHUNK;
    return end < step->tokens ? end : step->tokens;
}

static void for_tokens(step *step, pk_work work)
{
    pk_pool_run(step->encoder->context->pool, work, step, (step->tokens + TOKENS_A_CHUNK - 1) / TOKENS_A_CHUNK);
}

static void take_turns(step *step)
{
    const pk_encoder_shape *shape = &step->encoder->shape;
    float *cosines = step->cosines, *sines = step->sines;
    for (int index = 0; index < shape->rope_count; index++) {
        const pk_rope *rope = &shape->ropes[index];
        for (int64_t position = 0; position < step->longest; position++) {
            for (int pair = 0; pair < rope->dims / 2; pair++) {
                const float angle = (float)position * rope->scale * rope->inverse_frequencies[pair];
                cosines[pair] = cosf(angle) * rope->stretch;
                sines[pair] = sinf(angle) * rope->stretch;
            }
            cosines += shape->head_dim / 2;
            sines += shape->head_dim / 2;
        }
    }
}

static void turn(const step *step, int64_t token, float *head)
{
    const int64_t half = step->encoder->shape.head_dim / 2;
    const int64_t at = (step->layer->rope * step->longest + (int64_t)step->positions[token]) * half;
    if (step->layer->rope >= 0)
        pk_turn(&step->encoder->ropes[step->layer->rope], step->cosines + at, step->sines + at, head);
}

/* Queries are turned where they are, keys and values brought together by their heads. */
static void keep_chunk(void *argument, int64_t chunk, int thread)
{
    const step *step = argument;
    const int64_t heads = step->encoder->shape.heads, dim = step->encoder->shape.head_dim;
    (void)thread;
    for (int64_t token = chunk * TOKENS_A_CHUNK; token < end_of_chunk(step, chunk); token++)
        for (int64_t head = 0; head < heads; head++) {
            const int64_t from = (token * heads + head) * dim, to = (head * step->tokens + token) * dim;
            turn(step, token, step->queries + from);
            turn(step, token, step->keys + from);
            memcpy(step->kept_keys + to, step->keys + from, (size_t)dim * sizeof(float));
            memcpy(step->kept_values + to, step->values + from, (size_t)dim * sizeof(float));
        }
}

static void norm_chunk(void *argument, int64_t chunk, int thread)
{
    const step *step = argument;
    const pk_encoder_shape *shape = &step->encoder->shape;
    (void)thread;
    for (int64_t token = chunk * TOKENS_A_CHUNK; token < end_of_chunk(step, chunk); token++) {
        const int64_t at = token * shape->hidden;
        step->encoder->context->isa->layer_norm(step->states + at, step->norm, step->norm_bias, shape->norm_eps,
                                                shape->hidden, step->norm_out + at);
    }
}

static void activate_chunk(void *argument, int64_t chunk, int thread)
{
    const step *step = argument;
    const pk_encoder_shape *shape = &step->encoder->shape;
    (void)thread;
    const int64_t first = chunk * TOKENS_A_CHUNK;
    float *inner = step->inner + first * shape->intermediate;
    step->encoder->context->isa->gated(shape->activation, inner, NULL,
                                       (end_of_chunk(step, chunk) - first) * shape->intermediate, inner);
}

static void attend_piece(void *argument, int64_t chunk, int thread)
{
    const step *step = argument;
    const pk_encoder_shape *shape = &step->encoder->shape;
    const int64_t *piece = step->encoder->pieces + chunk / shape->heads * 3, head = chunk % shape->heads;
    const int64_t dim = shape->head_dim, length = step->lengths[piece[0]], first = piece[1];
    const int64_t queries = (piece[2] * shape->heads + head) * dim, keys = (head * step->tokens + piece[2]) * dim;
    const pk_kv kv = {.keys = step->kept_keys + keys, .values = step->kept_values + keys, .capacity = length};
    pk_attend attend = {
        .queries = step->queries + queries,
        .out = step->attended + queries,
        .token_stride = shape->heads * dim,
        .kv = &kv,
        .window = step->layer->window,
        .seen = length,
        .first = first,
        .last = first + MOST_TOKENS < length ? first + MOST_TOKENS : length,
        .group = 1,
        .dim = (int)dim,
        .scale = shape->attention_scale,
    };
    step->encoder->context->isa->attend(&attend, pk_scratch_of(step->encoder->context, thread));
}

static int cut_pieces(step *step, int64_t sequences)
{
    pk_encoder *encoder = step->encoder;
    int64_t count = 0, before = 0;
    for (int64_t sequence = 0; sequence < sequences; sequence++) {
        if (step->lengths[sequence] < 1 || step->lengths[sequence] >= (int64_t)1 << 24)
            return pk_refuse("A sequence of an encoder has at least one token, and less than 2^24.");
        count += (step->lengths[sequence] + MOST_TOKENS - 1) / MOST_TOKENS;
        step->longest = step->lengths[sequence] > step->longest ? step->lengths[sequence] : step->longest;
    }
    if (count > encoder->pieces_size) {
        int64_t *larger = realloc(encoder->pieces, (size_t)count * 3 * sizeof *larger);
        if (larger == NULL)
            return pk_refuse("There is no memory left for a step.");
        encoder->pieces = larger;
        encoder->pieces_size = count;
    }
    int64_t *piece = encoder->pieces;
    for (int64_t sequence = 0; sequence < sequences; before += step->lengths[sequence++])
        for (int64_t first = 0; first < step->lengths[sequence]; first += MOST_TOKENS) {
            *piece++ = sequence;
            *piece++ = first;
            *piece++ = before;
        }
    step->piece_count = count;
    step->tokens = before;
    return PK_OK;
}

static int lay_out(step *step)
{
    const pk_encoder_shape *shape = &step->encoder->shape;
    const int64_t all = step->tokens, heads = (int64_t)shape->heads * shape->head_dim * all;
    const int64_t turns = (int64_t)shape->rope_count * step->longest * (shape->head_dim / 2);
    int64_t gates = 0;
    for (int index = 0; index < shape->layer_count; index++)
        gates |= step->encoder->layers[index].gate.rows;
    const int64_t inner = shape->intermediate * all, ups = gates != 0 ? inner : 0;
    const int64_t normed = shape->norms_first ? shape->hidden * all : 0;
    const int64_t sizes[] = {heads, heads, heads, heads, inner, ups, heads, heads, normed, turns, turns, all};
    float **places[] = {&step->queries,   &step->keys,        &step->values, &step->attended, &step->inner, &step->ups,
                        &step->kept_keys, &step->kept_values, &step->normed, &step->cosines,  &step->sines, &step->positions};
    enum { STATES = sizeof sizes / sizeof *sizes };
    int64_t total = 0;
    for (int index = 0; index < STATES; index++)
        total += (sizes[index] + 15) / 16 * 16;
    if (pk_enlarge(&step->encoder->memory, &step->encoder->memory_size, total) != PK_OK)
        return PK_REFUSED;
    float *place = step->encoder->memory;
    for (int index = 0; index < STATES; index++) {
        *places[index] = place;
        place += (sizes[index] + 15) / 16 * 16;
    }
    for (int64_t token = 0, sequence = 0; token < step->tokens; token += step->lengths[sequence++])
        for (int64_t position = 0; position < step->lengths[sequence]; position++)
            step->positions[token + position] = (float)position;
    take_turns(step);
    return PK_OK;
}

static void norm(step *step, const float *weight, const float *bias, float *out)
{
    step->norm = weight;
    step->norm_bias = bias;
    step->norm_out = out;
    for_tokens(step, norm_chunk);
}

/* What goes into a part of the layer, whose norm may come first. */
static const float *input_of(step *step, const float *weight, const float *bias)
{
    if (!step->encoder->shape.norms_first || weight == NULL)
        return step->states;
    norm(step, weight, bias, step->normed);
    return step->normed;
}

/* Add the product with a matrix to the states, and norm them where the norm did not come first. */
static int add_product(step *step, const pk_matrix *matrix, const float *x, const float *weight, const float *bias)
{
    pk_products products = {.matrices = {matrix},
                            .outs = {step->states},
                            .out_strides = {step->encoder->shape.hidden},
                            .count = 1,
                            .accumulate = 1};
    if (pk_multiply(step->encoder->context, &products, x, matrix->columns, step->tokens) != PK_OK)
        return PK_REFUSED;
    if (!step->encoder->shape.norms_first)
        norm(step, weight, bias, step->states);
    return PK_OK;
}

/* activation(up x), or activation(gate x) * (up x), into step->inner. */
static int run_inner(step *step, const float *x)
{
    const pk_encoder_shape *shape = &step->encoder->shape;
    const pk_encoder_layer *layer = step->layer;
    const int gated = layer->gate.rows != 0;
    pk_products products = {.matrices = {gated ? &layer->gate : &layer->up, &layer->up},
                            .outs = {step->inner, step->ups},
                            .out_strides = {shape->intermediate, shape->intermediate},
                            .count = gated ? 2 : 1,
                            .gate = gated,
                            .activation = shape->activation};
    if (pk_multiply(step->encoder->context, &products, x, shape->hidden, step->tokens) != PK_OK)
        return PK_REFUSED;
    if (!gated)
        for_tokens(step, activate_chunk);
    return PK_OK;
}

static int run_layer(step *step, int index)
{
    const pk_encoder_shape *shape = &step->encoder->shape;
    const pk_encoder_layer *layer = step->layer = &step->encoder->layers[index];
    pk_context *context = step->encoder->context;
    pk_products heads = {.matrices = {&layer->query, &layer->key, &layer->value},
                         .outs = {step->queries, step->keys, step->values},
                         .out_strides = {layer->query.rows, layer->key.rows, layer->value.rows},
                         .count = 3};
    const float *x = input_of(step, layer->attention_norm, layer->attention_norm_bias);
    if (pk_multiply(context, &heads, x, shape->hidden, step->tokens) != PK_OK)
        return PK_REFUSED;
    for_tokens(step, keep_chunk);
    pk_pool_run(context->pool, attend_piece, step, step->piece_count * shape->heads);
    if (add_product(step, &layer->output, step->attended, layer->attention_norm, layer->attention_norm_bias) != PK_OK ||
        run_inner(step, input_of(step, layer->mlp_norm, layer->mlp_norm_bias)) != PK_OK)
        return PK_REFUSED;
    return add_product(step, &layer->down, step->inner, layer->mlp_norm, layer->mlp_norm_bias);
}

static int run_layers(pk_encoder *encoder, int first, int last, float *states, int64_t sequences, const int64_t *lengths)
{
    step step = {.encoder = encoder, .lengths = lengths, .states = states};
    if (cut_pieces(&step, sequences) != PK_OK || lay_out(&step) != PK_OK)
        return PK_REFUSED;
    for (int index = first; index < last; index++)
        if (run_layer(&step, index) != PK_OK)
            return PK_REFUSED;
    return PK_OK;
}

int pk_encoder_run(pk_encoder *encoder, float *states, int64_t sequences, const int64_t *lengths)
{
    return run_layers(encoder, 0, encoder->shape.layer_count, states, sequences, lengths);
}

int pk_encoder_layer_run(pk_encoder *encoder, int layer, float *states, int64_t sequences, const int64_t *lengths)
{
    if (layer < 0 || layer >= encoder->shape.layer_count)
        return pk_refuse("There is no such layer.");
    return run_layers(encoder, layer, layer + 1, states, sequences, lengths);
}
