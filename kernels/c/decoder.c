/* A whole decoder: embedding, layers of attention and gated feed-forward networks, last norm. */
#include "decoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(pk_kv) == 17 * 8, "the binding writes its fields as numbers of 64 bits");

enum { TOKENS_A_CHUNK = 8 }; /* of work that is done token by token */

/* Checks */

int pk_has_shape(const pk_matrix *matrix, int64_t rows, int64_t columns)
{
    if (pk_check(matrix) != PK_OK)
        return 0;
    if (matrix->rows == rows && matrix->columns == columns)
        return 1;
    pk_refuse("A matrix does not have the shape that the architecture gives it.");
    return 0;
}

static int check_network(const pk_shape *shape, const pk_layer *layer)
{
    if (layer->experts != NULL && layer->experts->router.rows == 0)
        return pk_refuse("A mixture of experts has no router.");
    if (layer->experts != NULL)
        return pk_check_experts(layer->experts, shape->hidden);
    const int64_t inner = layer->gate.rows;
    if (!pk_has_shape(&layer->gate, inner, shape->hidden) || !pk_has_shape(&layer->up, inner, shape->hidden) ||
        !pk_has_shape(&layer->down, shape->hidden, inner))
        return PK_REFUSED;
    return PK_OK;
}

/* `input`: numbers that its queries, keys and values are made of. */
static int check_layer(const pk_shape *shape, const pk_layer *layer)
{
    const int64_t queries = (int64_t)shape->heads * shape->head_dim, keys = (int64_t)shape->kv_heads * shape->head_dim;
    if (!pk_has_shape(&layer->query, queries, shape->hidden) || !pk_has_shape(&layer->key, keys, shape->hidden) ||
        !pk_has_shape(&layer->value, keys, shape->hidden) || !pk_has_shape(&layer->output, shape->hidden, queries) ||
        check_network(shape, layer) != PK_OK)
        return PK_REFUSED;
    if (layer->input_norm == NULL || layer->mlp_norm == NULL)
        return pk_refuse("A layer lacks a norm.");
    if (layer->rope < -1 || layer->rope >= shape->rope_count || layer->window < 0)
        return pk_refuse("A layer names a rotary embedding or a window that is not possible.");
    return PK_OK;
}

static int check_shape(const pk_shape *shape)
{
    if (shape->hidden < 1 || shape->heads < 1 || shape->kv_heads < 1 || shape->layer_count < 1 ||
        shape->rope_count < 0 || shape->head_dim < 1 || shape->head_dim > PK_MOST_DIM ||
        shape->heads % shape->kv_heads != 0 || shape->heads / shape->kv_heads > PK_QUERIES)
        return pk_refuse("The decoder has a size that is not possible.");
    if (shape->activation < PK_SILU || shape->activation > PK_SWIGLU_OAI || shape->final_norm == NULL)
        return pk_refuse("The decoder lacks its last norm or a known activation.");
    if (!pk_has_shape(&shape->embedding, shape->embedding.rows, shape->hidden))
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

/* Copies of the tables, and what follows from them. */
static int take_shape(pk_decoder *decoder, const pk_shape *shape)
{
    const size_t count = (size_t)shape->layer_count;
    decoder->shape = *shape;
    decoder->layers = copied(shape->layers, count, sizeof *shape->layers);
    decoder->ropes = copied(shape->ropes, (size_t)shape->rope_count, sizeof *shape->ropes);
    decoder->experts = calloc(count, sizeof *decoder->experts);
    decoder->windows = calloc(count, sizeof *decoder->windows);
    if (decoder->layers == NULL || decoder->ropes == NULL || decoder->experts == NULL || decoder->windows == NULL)
        return pk_refuse("There is no memory left for the decoder.");
    decoder->shape.layers = decoder->layers;
    decoder->shape.ropes = decoder->ropes;
    for (size_t index = 0; index < count; index++) {
        pk_layer *layer = &decoder->layers[index];
        decoder->windows[index] = layer->window;
        if (layer->experts != NULL) {
            decoder->experts[index] = *layer->experts;
            layer->experts = &decoder->experts[index];
            decoder->mixes = 1;
        } else if (layer->gate.rows > decoder->widest)
            decoder->widest = layer->gate.rows;
    }
    return PK_OK;
}

pk_decoder *pk_decoder_open(pk_context *context, const pk_shape *shape)
{
    if (check_shape(shape) != PK_OK)
        return NULL;
    pk_decoder *decoder = calloc(1, sizeof *decoder);
    if (decoder == NULL) {
        pk_refuse("There is no memory left for the decoder.");
        return NULL;
    }
    decoder->context = context;
    if (take_shape(decoder, shape) == PK_OK)
        return decoder;
    pk_decoder_close(decoder);
    return NULL;
}

void pk_decoder_close(pk_decoder *decoder)
{
    if (decoder == NULL)
        return;
    for (int index = 0; decoder->additions != NULL && index < decoder->shape.layer_count * PK_PROJECTIONS; index++)
        free(decoder->additions[index].all);
    free(decoder->additions);
    free(decoder->captured);
    free(decoder->layers);
    free(decoder->experts);
    free(decoder->ropes);
    free(decoder->windows);
    free(decoder->memory);
    free(decoder->tables);
    pk_end_mixing(&decoder->mixing);
    free(decoder);
}

static const pk_matrix *projection_of(const pk_layer *layer, int projection)
{
    const pk_matrix *all[PK_PROJECTIONS] = {&layer->query, &layer->key, &layer->value, &layer->output,
                                            &layer->gate,  &layer->up,  &layer->down};
    const int of_experts = layer->experts != NULL && projection >= PK_GATE;
    return projection < 0 || projection >= PK_PROJECTIONS || of_experts ? NULL : all[projection];
}

int pk_decoder_adapt(pk_decoder *decoder, int layer, int projection, const pk_addition *given, int count)
{
    if (layer < 0 || layer >= decoder->shape.layer_count || count < 1 ||
        projection_of(&decoder->layers[layer], projection) == NULL)
        return pk_refuse("There is no such projection to add to.");
    const pk_matrix *matrix = projection_of(&decoder->layers[layer], projection);
    int64_t rank = decoder->most_rank;
    for (int index = 0; index < count; index++) {
        const pk_matrix *down = &given[index].down, *up = &given[index].up;
        if (down->rows == 0)
            continue;
        if (!pk_has_shape(down, down->rows, matrix->columns) || !pk_has_shape(up, matrix->rows, down->rows))
            return PK_REFUSED;
        rank = down->rows > rank ? down->rows : rank;
    }
    if (decoder->additions == NULL)
        decoder->additions = calloc((size_t)decoder->shape.layer_count * PK_PROJECTIONS, sizeof *decoder->additions);
    pk_addition *all = copied(given, (size_t)count, sizeof *given);
    if (decoder->additions == NULL || all == NULL) {
        free(all);
        return pk_refuse("There is no memory left for an adapter.");
    }
    additions *place = &decoder->additions[layer * PK_PROJECTIONS + projection];
    free(place->all);
    *place = (additions){all, count};
    decoder->most_rank = rank;
    return PK_OK;
}

int pk_decoder_capture(pk_decoder *decoder, const int32_t *layers, int count)
{
    uint8_t *captured = calloc((size_t)decoder->shape.layer_count, 1);
    if (captured == NULL)
        return pk_refuse("There is no memory left for the layers to capture.");
    for (int index = 0; index < count; index++) {
        if (layers[index] < 0 || layers[index] >= decoder->shape.layer_count ||
            (index > 0 && layers[index] <= layers[index - 1])) {
            free(captured);
            return pk_refuse("Captured layers ascend, and the decoder has each of them.");
        }
        captured[layers[index]] = 1;
    }
    free(decoder->captured);
    decoder->captured = captured;
    return PK_OK;
}

/* One step */

static int lay_out(step *step)
{
    pk_decoder *decoder = step->decoder;
    const pk_shape *shape = &decoder->shape;
    const int64_t queries = (int64_t)shape->heads * shape->head_dim, keys = (int64_t)shape->kv_heads * shape->head_dim;
    const int64_t turns = (int64_t)shape->rope_count * (shape->head_dim / 2);
    const int64_t mixed = decoder->mixes ? shape->hidden : 0;
    const int64_t sizes[] = {shape->hidden, shape->hidden,   queries,         keys,               keys, queries,
                             decoder->widest, decoder->widest, decoder->most_rank, mixed, turns, turns};
    float **places[] = {&step->at.hidden,   &step->at.normed, &step->at.queries, &step->at.keys,
                        &step->at.values,   &step->at.attended, &step->at.gate,  &step->at.up,
                        &step->at.low,      &step->at.mixed, &step->at.cosines, &step->at.sines};
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

/* The tables of a step: positions and sequences of its tokens, and the pieces of attention. */
static int make_tables(step *step)
{
    pk_decoder *decoder = step->decoder;
    const pk_step *given = step->given;
    const int64_t group = decoder->shape.heads / decoder->shape.kv_heads;
    const int64_t bytes = 16 * step->tokens + (int64_t)sizeof(pk_piece) * pk_count_pieces(given, group);
    if (pk_enlarge(&decoder->tables, &decoder->tables_size, bytes / 4) != PK_OK)
        return PK_REFUSED;
    step->positions = (int64_t *)decoder->tables;
    step->sequences = step->positions + step->tokens;
    step->pieces = (pk_piece *)(step->sequences + step->tokens);
    step->piece_count = pk_cut_pieces(given, group, step->pieces);
    int64_t token = 0;
    for (int64_t sequence = 0; sequence < given->sequences; sequence++)
        for (int64_t index = 0; index < given->counts[sequence]; index++, token++) {
            step->positions[token] = given->starts[sequence] + index;
            step->sequences[token] = sequence;
        }
    return PK_OK;
}

static void take_turns(step *step)
{
    const pk_shape *shape = &step->decoder->shape;
    float *cosines = step->at.cosines, *sines = step->at.sines;
    for (int index = 0; index < shape->rope_count; index++) {
        const pk_rope *rope = &shape->ropes[index];
        for (int64_t token = 0; token < step->tokens; token++) {
            for (int pair = 0; pair < rope->dims / 2; pair++) {
                float angle = (float)step->positions[token] * rope->scale * rope->inverse_frequencies[pair];
                cosines[pair] = cosf(angle) * rope->stretch;
                sines[pair] = sinf(angle) * rope->stretch;
            }
            cosines += shape->head_dim / 2;
            sines += shape->head_dim / 2;
        }
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
            pk_turn(&shape->ropes[rope], step->at.cosines + at, step->at.sines + at, heads);
    }
}

/* MLX's affine quantisation of one position of a head: each group has its smallest and its largest number at the ends of
 * its scale, and zero exactly on a step of it. */
static void quantize(const float *x, const pk_kv *kv, int64_t dim, uint32_t *words, float *scales, float *biases)
{
    const float most = (float)((1 << kv->bits) - 1);
    memset(words, 0, (size_t)(dim * kv->bits / 8));
    for (int64_t first = 0; first < dim; first += kv->group) {
        float low = x[first], high = x[first];
        for (int64_t index = first; index < first + kv->group; index++) {
            low = fminf(low, x[index]);
            high = fmaxf(high, x[index]);
        }
        float scale = fmaxf((high - low) / most, 1e-7f), bias = 0.0f;
        const int from_low = fabsf(low) > fabsf(high);
        const float edge = from_low ? low : high;
        scale = from_low ? scale : -scale;
        const float steps = rintf(edge / scale);
        if (steps != 0.0f) {
            scale = edge / steps;
            bias = edge;
        }
        for (int64_t index = first; index < first + kv->group; index++) {
            const float step = fminf(fmaxf(rintf((x[index] - bias) / scale), 0.0f), most);
            const int64_t bit = index * kv->bits;
            words[bit / 32] |= (uint32_t)step << (bit % 32);
        }
        *scales++ = scale;
        *biases++ = bias;
    }
}

static void keep_packed(const pk_kv *kv, int64_t head, int64_t place, int64_t dim, const float *key, const float *value)
{
    const int64_t words = dim * kv->bits / 32, groups = dim / kv->group;
    const int64_t scales = (head * kv->capacity + place) * groups;
    quantize(key, kv, dim, (uint32_t *)kv->keys + head * kv->key_head_stride + place * words, kv->key_scales + scales,
             kv->key_biases + scales);
    quantize(value, kv, dim, (uint32_t *)kv->values + head * kv->value_head_stride + place * words,
             kv->value_scales + scales, kv->value_biases + scales);
}

static void keep_heads(const step *step, int64_t token)
{
    const pk_shape *shape = &step->decoder->shape;
    const pk_kv *kv = &step->kv[step->sequences[token]];
    const int64_t place = (step->positions[token] + kv->shift) % kv->capacity;
    const int64_t dim = shape->head_dim, size = (int64_t)shape->kv_heads * dim;
    for (int64_t head = 0; head < shape->kv_heads; head++) {
        const float *key = step->at.keys + token * size + head * dim;
        const float *value = step->at.values + token * size + head * dim;
        if (kv->bits != 0) {
            keep_packed(kv, head, place, dim, key, value);
            continue;
        }
        memcpy((float *)kv->keys + head * kv->key_head_stride + place * dim, key, (size_t)dim * sizeof(float));
        memcpy((float *)kv->values + head * kv->value_head_stride + place * dim, value, (size_t)dim * sizeof(float));
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

void pk_step_norm(step *step, const float *weight, const float *input, float *output)
{
    step->norm = weight;
    step->input = input;
    step->output = output;
    for_tokens(step, norm_chunk);
}

static void add_chunk(void *argument, int64_t chunk, int thread)
{
    const step *step = argument;
    const pk_shape *shape = &step->decoder->shape;
    const int64_t first = chunk * TOKENS_A_CHUNK * shape->hidden, last = end_of_chunk(step, chunk) * shape->hidden;
    (void)thread;
    for (int64_t index = first; index < last; index++)
        step->output[index] += step->input[index] * shape->residual_scale;
}

/* Add what a part of a layer gives to the hidden states. */
static void add_to_hidden(step *step, float *out, const float *out_norm)
{
    if (out_norm != NULL)
        pk_step_norm(step, out_norm, out, out);
    step->input = out;
    step->output = step->at.hidden;
    for_tokens(step, add_chunk);
}

static additions additions_of(const step *step, int projection)
{
    if (!step->adapts || step->decoder->additions == NULL)
        return (additions){NULL, 0};
    return step->decoder->additions[step->index * PK_PROJECTIONS + projection];
}

static int add_low_rank(step *step, const pk_addition *addition, const float *x, int64_t tokens, float *out)
{
    pk_context *context = step->decoder->context;
    const pk_matrix *down = &addition->down, *up = &addition->up;
    pk_products first = {
        .matrices = {down}, .outs = {step->at.low}, .out_strides = {down->rows}, .count = 1};
    pk_products second = {
        .matrices = {up}, .outs = {out}, .out_strides = {up->rows}, .count = 1, .accumulate = 1};
    if (pk_multiply(context, &first, x, down->columns, tokens) != PK_OK)
        return PK_REFUSED;
    return pk_multiply(context, &second, step->at.low, down->rows, tokens);
}

/* Add to `out`, the product of x with a projection, what each sequence's adapter adds. */
static int adapt(step *step, int projection, const float *x, float *out)
{
    const additions found = additions_of(step, projection);
    const pk_step *given = step->given;
    const pk_matrix *matrix = projection_of(step->layer, projection);
    int64_t first = 0;
    for (int64_t sequence = 0; found.count > 0 && sequence < given->sequences;) {
        /* Neighbours with one adapter go together. */
        const int32_t adapter = given->adapters[sequence];
        int64_t tokens = 0;
        for (; sequence < given->sequences && given->adapters[sequence] == adapter; sequence++)
            tokens += given->counts[sequence];
        if (adapter > 0 && adapter <= found.count && found.all[adapter - 1].down.rows > 0 &&
            add_low_rank(step, &found.all[adapter - 1], x + first * matrix->columns, tokens,
                         out + first * matrix->rows) != PK_OK)
            return PK_REFUSED;
        first += tokens;
    }
    return PK_OK;
}

/* Add the product with a matrix to the hidden states, at once where nothing comes between. */
static int add_product(step *step, int projection, const float *x, const float *out_norm)
{
    const pk_shape *shape = &step->decoder->shape;
    const pk_matrix *matrix = projection_of(step->layer, projection);
    const int direct = out_norm == NULL && shape->residual_scale == 1.0f;
    float *out = direct ? step->at.hidden : step->at.normed;
    pk_products products = {.matrices = {matrix},
                            .outs = {out},
                            .out_strides = {shape->hidden},
                            .count = 1,
                            .accumulate = direct};
    if (pk_multiply(step->decoder->context, &products, x, matrix->columns, step->tokens) != PK_OK ||
        adapt(step, projection, x, out) != PK_OK)
        return PK_REFUSED;
    if (!direct)
        add_to_hidden(step, out, out_norm);
    return PK_OK;
}

static int run_attention(step *step)
{
    const pk_shape *shape = &step->decoder->shape;
    const pk_layer *layer = step->layer;
    pk_context *context = step->decoder->context;
    states *at = &step->at;
    pk_step_norm(step, layer->input_norm, at->hidden, at->normed);
    pk_products products = {.matrices = {&layer->query, &layer->key, &layer->value},
                            .outs = {at->queries, at->keys, at->values},
                            .out_strides = {layer->query.rows, layer->key.rows, layer->value.rows},
                            .count = 3};
    if (pk_multiply(context, &products, at->normed, layer->query.columns, step->tokens) != PK_OK)
        return PK_REFUSED;
    for (int projection = PK_QUERY; projection <= PK_VALUE; projection++)
        if (adapt(step, projection, at->normed, products.outs[projection]) != PK_OK)
            return PK_REFUSED;
    for_tokens(step, heads_chunk);
    const pk_heads heads = {shape->heads, shape->kv_heads, shape->head_dim, shape->attention_scale,
                            shape->attention_softcap};
    pk_attend_all(context, &heads, step->given, step->kv, step->pieces, step->piece_count, layer->window, layer->sinks,
                  at->queries, at->attended);
    return add_product(step, PK_OUTPUT, at->attended, layer->attention_out_norm);
}

static void gated_chunk(void *argument, int64_t chunk, int thread)
{
    const step *step = argument;
    const int64_t inner = step->layer->gate.rows, first = chunk * TOKENS_A_CHUNK * inner;
    (void)thread;
    step->decoder->context->isa->gated(step->decoder->shape.activation, step->at.gate + first, step->at.up + first,
                                       end_of_chunk(step, chunk) * inner - first, step->at.gate + first);
}

/* activation(gate) * up into at.gate */
static int run_gates(step *step)
{
    const pk_layer *layer = step->layer;
    states *at = &step->at;
    /* Adapters add to gate and up before they are joined. */
    const int apart = additions_of(step, PK_GATE).count > 0 || additions_of(step, PK_UP).count > 0;
    pk_products products = {.matrices = {&layer->gate, &layer->up},
                            .outs = {at->gate, at->up},
                            .out_strides = {layer->gate.rows, layer->up.rows},
                            .count = 2,
                            .gate = !apart,
                            .activation = step->decoder->shape.activation};
    if (pk_multiply(step->decoder->context, &products, at->normed, layer->gate.columns, step->tokens) != PK_OK)
        return PK_REFUSED;
    if (!apart)
        return PK_OK;
    if (adapt(step, PK_GATE, at->normed, at->gate) != PK_OK || adapt(step, PK_UP, at->normed, at->up) != PK_OK)
        return PK_REFUSED;
    for_tokens(step, gated_chunk);
    return PK_OK;
}

static int run_mlp(step *step)
{
    pk_decoder *decoder = step->decoder;
    const pk_layer *layer = step->layer;
    states *at = &step->at;
    pk_step_norm(step, layer->mlp_norm, at->hidden, at->normed);
    if (layer->experts == NULL)
        return run_gates(step) != PK_OK ? PK_REFUSED : add_product(step, PK_DOWN, at->gate, layer->mlp_out_norm);
    if (pk_mix(decoder->context, &decoder->mixing, layer->experts, decoder->shape.activation, at->normed, step->tokens,
               at->mixed) != PK_OK)
        return PK_REFUSED;
    add_to_hidden(step, at->mixed, layer->mlp_out_norm);
    return PK_OK;
}

int pk_step_begin(step *step, int layers, const int32_t *windows)
{
    const pk_step *given = step->given;
    if (pk_check_step(given, layers, windows, step->decoder->shape.head_dim) != PK_OK)
        return PK_REFUSED;
    for (int64_t sequence = 0; sequence < given->sequences; sequence++) {
        step->tokens += given->counts[sequence];
        step->adapts |= given->adapters != NULL && given->adapters[sequence] > 0;
    }
    if (lay_out(step) != PK_OK || make_tables(step) != PK_OK)
        return PK_REFUSED;
    take_turns(step);
    return PK_OK;
}

int pk_step_layer(step *step, int index, const pk_kv *kv)
{
    step->index = index;
    step->layer = &step->decoder->layers[index];
    step->kv = kv;
    return run_attention(step) != PK_OK ? PK_REFUSED : run_mlp(step);
}

int pk_decoder_run(pk_decoder *decoder, const pk_step *given, const int32_t *tokens, float *hidden)
{
    const pk_shape *shape = &decoder->shape;
    step step = {.decoder = decoder, .given = given};
    if (pk_step_begin(&step, shape->layer_count, decoder->windows) != PK_OK ||
        pk_rows(&shape->embedding, tokens, step.tokens, step.at.hidden) != PK_OK)
        return PK_REFUSED;
    if (shape->embedding_scale != 1.0f)
        for (int64_t index = 0; index < step.tokens * shape->hidden; index++)
            step.at.hidden[index] *= shape->embedding_scale;
    const int64_t size = step.tokens * shape->hidden;
    float *captured = hidden + size;
    for (int index = 0; index < shape->layer_count; index++) {
        if (pk_step_layer(&step, index, given->kv + index * given->sequences) != PK_OK)
            return PK_REFUSED;
        if (decoder->captured != NULL && decoder->captured[index]) {
            memcpy(captured, step.at.hidden, (size_t)size * sizeof *captured);
            captured += size;
        }
    }
    pk_step_norm(&step, shape->final_norm, step.at.hidden, hidden);
    return PK_OK;
}

int pk_decoder_layer(pk_decoder *decoder, int layer, const pk_step *given, float *hidden)
{
    step step = {.decoder = decoder, .given = given};
    if (layer < 0 || layer >= decoder->shape.layer_count)
        return pk_refuse("There is no such layer.");
    if (pk_step_begin(&step, 1, decoder->windows + layer) != PK_OK)
        return PK_REFUSED;
    const size_t bytes = (size_t)(step.tokens * decoder->shape.hidden) * sizeof *hidden;
    memcpy(step.at.hidden, hidden, bytes);
    if (pk_step_layer(&step, layer, given->kv) != PK_OK)
        return PK_REFUSED;
    memcpy(hidden, step.at.hidden, bytes);
    return PK_OK;
}
