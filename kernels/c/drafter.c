/* A draft head in one call: it reads the model's states with the tokens that came after them, and says the next ones. */
#include "decoder.h"

#include <stdlib.h>
#include <string.h>

struct pk_drafter {
    pk_decoder *decoder;
    pk_drafting drafting;
    int32_t *words; /* [drafting.head.rows], or NULL */
    float *inputs;  /* states before and after they are reduced, and embeddings */
    int64_t inputs_size;
    float *ends; /* own states of the last tokens, those normed, and their scores */
    int64_t ends_size;
    int64_t *numbers; /* starts and counts of the steps that follow */
    int64_t numbers_size;
};

static int64_t state_size(const pk_drafter *drafter) { return drafter->drafting.reduce.columns; }

static int check_drafting(const pk_shape *shape, const pk_drafting *drafting)
{
    if (drafting->token_norm == NULL || drafting->state_norm == NULL)
        return pk_refuse("A draft head lacks a norm.");
    if (!pk_has_shape(&drafting->reduce, shape->hidden, drafting->reduce.columns) ||
        !pk_has_shape(&drafting->head, drafting->head.rows, shape->hidden))
        return PK_REFUSED;
    for (int64_t row = 0; drafting->words != NULL && row < drafting->head.rows; row++)
        if (drafting->words[row] < 0 || drafting->words[row] >= shape->embedding.rows)
            return pk_refuse("A draft head names a token that the vocabulary does not have.");
    return drafting->words == NULL && drafting->head.rows > shape->embedding.rows
               ? pk_refuse("A draft head has more tokens than the vocabulary.")
               : PK_OK;
}

static int take_drafting(pk_drafter *drafter, const pk_drafting *drafting)
{
    drafter->drafting = *drafting;
    if (drafting->words == NULL)
        return PK_OK;
    const size_t bytes = (size_t)drafting->head.rows * sizeof *drafter->words;
    drafter->words = malloc(bytes);
    if (drafter->words == NULL)
        return pk_refuse("There is no memory left for the draft head.");
    memcpy(drafter->words, drafting->words, bytes);
    drafter->drafting.words = drafter->words;
    return PK_OK;
}

pk_drafter *pk_drafter_open(pk_context *context, const pk_shape *shape, const pk_drafting *drafting)
{
    pk_decoder *decoder = pk_decoder_make(context, shape, 1);
    if (decoder == NULL || check_drafting(shape, drafting) != PK_OK) {
        pk_decoder_close(decoder);
        return NULL;
    }
    pk_drafter *drafter = calloc(1, sizeof *drafter);
    if (drafter == NULL) {
        pk_refuse("There is no memory left for the draft head.");
        pk_decoder_close(decoder);
        return NULL;
    }
    drafter->decoder = decoder;
    if (take_drafting(drafter, drafting) == PK_OK)
        return drafter;
    pk_drafter_close(drafter);
    return NULL;
}

void pk_drafter_close(pk_drafter *drafter)
{
    if (drafter == NULL)
        return;
    pk_decoder_close(drafter->decoder);
    free(drafter->words);
    free(drafter->inputs);
    free(drafter->ends);
    free(drafter->numbers);
    free(drafter);
}

/* The model's states [tokens, state_size] become those that the head begins with [tokens, hidden]. */
static int reduce(pk_drafter *drafter, const float *states, int64_t tokens, float *reduced)
{
    pk_context *context = drafter->decoder->context;
    const pk_drafting *drafting = &drafter->drafting;
    const int64_t size = state_size(drafter), hidden = drafter->decoder->shape.hidden;
    if (drafting->reduce_norm != NULL) {
        if (pk_enlarge(&drafter->inputs, &drafter->inputs_size, size * tokens) != PK_OK)
            return PK_REFUSED;
        pk_rms_norm(context, states, drafting->reduce_norm, drafter->decoder->shape.norm_eps, tokens, size,
                    drafter->inputs);
        states = drafter->inputs;
    }
    pk_products products = {
        .matrices = {&drafting->reduce}, .outs = {reduced}, .out_strides = {hidden}, .count = 1};
    return pk_multiply(context, &products, states, size, tokens);
}

/* Bring into a step, whose hidden states are those that the head begins with, what the first layer looks at: the token's
 * embedding and the state, normed each. */
static int join(pk_drafter *drafter, step *step, const int32_t *tokens)
{
    const pk_shape *shape = &drafter->decoder->shape;
    const pk_drafting *drafting = &drafter->drafting;
    const pk_isa *isa = drafter->decoder->context->isa;
    const int64_t hidden = shape->hidden;
    /* `normed` is not used before the first layer's attention ends. */
    if (pk_rows(&shape->embedding, tokens, step->tokens, step->at.normed) != PK_OK)
        return PK_REFUSED;
    for (int64_t token = 0; token < step->tokens; token++) {
        float *joined = step->at.joined + token * 2 * hidden, *state = step->at.hidden + token * hidden;
        isa->rms_norm(step->at.normed + token * hidden, drafting->token_norm, shape->norm_eps, hidden, joined);
        isa->rms_norm(state, drafting->state_norm, shape->norm_eps, hidden, joined + hidden);
        if (drafting->normed_residual)
            memcpy(state, joined + hidden, (size_t)hidden * sizeof *state);
    }
    return PK_OK;
}

/* A pass over the tokens of a step, from the model's states where `given`, else from the head's own [tokens, hidden]. The
 * states after the last layer stay in the step. */
static int pass(pk_drafter *drafter, step *step, const int32_t *tokens, const float *given, const float *own)
{
    pk_decoder *decoder = drafter->decoder;
    if (pk_step_begin(step, decoder->shape.layer_count, decoder->windows) != PK_OK)
        return PK_REFUSED;
    if (given == NULL)
        memcpy(step->at.hidden, own, (size_t)(step->tokens * decoder->shape.hidden) * sizeof *own);
    else if (reduce(drafter, given, step->tokens, step->at.hidden) != PK_OK)
        return PK_REFUSED;
    if (join(drafter, step, tokens) != PK_OK)
        return PK_REFUSED;
    for (int index = 0; index < decoder->shape.layer_count; index++)
        if (pk_step_layer(step, index, step->given->kv + index * step->given->sequences) != PK_OK)
            return PK_REFUSED;
    return PK_OK;
}

/* The likeliest next tokens by the head's own states after the last ones [sequences, hidden]. */
static int say(pk_drafter *drafter, const float *own, int64_t sequences, float *normed, float *scores, int32_t *said)
{
    const pk_shape *shape = &drafter->decoder->shape;
    const pk_matrix *head = &drafter->drafting.head;
    pk_context *context = drafter->decoder->context;
    pk_rms_norm(context, own, shape->final_norm, shape->norm_eps, sequences, shape->hidden, normed);
    pk_products products = {.matrices = {head}, .outs = {scores}, .out_strides = {head->rows}, .count = 1};
    if (pk_multiply(context, &products, normed, shape->hidden, sequences) != PK_OK)
        return PK_REFUSED;
    for (int64_t sequence = 0; sequence < sequences; sequence++, scores += head->rows) {
        int64_t best = 0;
        for (int64_t row = 1; row < head->rows; row++)
            if (scores[row] > scores[best])
                best = row;
        said[sequence] = drafter->words == NULL ? (int32_t)best : drafter->words[best];
    }
    return PK_OK;
}

static int find_room(pk_drafter *drafter, int64_t sequences)
{
    const int64_t hidden = drafter->decoder->shape.hidden, words = drafter->drafting.head.rows;
    if (pk_enlarge(&drafter->ends, &drafter->ends_size, sequences * (2 * hidden + words + 1)) != PK_OK)
        return PK_REFUSED;
    if (sequences <= drafter->numbers_size)
        return PK_OK;
    int64_t *numbers = realloc(drafter->numbers, (size_t)(2 * sequences) * sizeof *numbers);
    if (numbers == NULL)
        return pk_refuse("There is no memory left for a step.");
    drafter->numbers = numbers;
    drafter->numbers_size = sequences;
    return PK_OK;
}

/* From the own states after the last tokens [sequences, hidden], which lie where `find_room` made it. */
static int draft(pk_drafter *drafter, const pk_step *given, int64_t most, int32_t *drafts)
{
    const int64_t sequences = given->sequences, hidden = drafter->decoder->shape.hidden;
    float *own = drafter->ends, *normed = own + sequences * hidden, *scores = normed + sequences * hidden;
    int32_t *said = (int32_t *)(scores + sequences * drafter->drafting.head.rows);
    int64_t *starts = drafter->numbers, *counts = starts + sequences;
    for (int64_t sequence = 0; sequence < sequences; sequence++) {
        starts[sequence] = given->starts[sequence] + given->counts[sequence];
        counts[sequence] = 1;
    }
    for (int64_t place = 0; place < most; place++) {
        if (say(drafter, own, sequences, normed, scores, said) != PK_OK)
            return PK_REFUSED;
        for (int64_t sequence = 0; sequence < sequences; sequence++)
            drafts[sequence * most + place] = said[sequence];
        if (place + 1 == most)
            break;
        const pk_step one = {.starts = starts, .counts = counts, .kv = given->kv, .sequences = sequences};
        step step = {.decoder = drafter->decoder, .given = &one};
        if (pass(drafter, &step, said, NULL, own) != PK_OK)
            return PK_REFUSED;
        memcpy(own, step.at.hidden, (size_t)(sequences * hidden) * sizeof *own);
        for (int64_t sequence = 0; sequence < sequences; sequence++)
            starts[sequence]++;
    }
    return PK_OK;
}

int pk_drafter_run(pk_drafter *drafter, const pk_step *given, const int32_t *tokens, const float *states, float *own,
                   int64_t most, int32_t *drafts)
{
    step step = {.decoder = drafter->decoder, .given = given};
    const int64_t hidden = drafter->decoder->shape.hidden;
    if (pass(drafter, &step, tokens, states, NULL) != PK_OK)
        return PK_REFUSED;
    if (own != NULL)
        memcpy(own, step.at.hidden, (size_t)(step.tokens * hidden) * sizeof *own);
    if (most < 1)
        return PK_OK;
    if (find_room(drafter, given->sequences) != PK_OK)
        return PK_REFUSED;
    const float *end = step.at.hidden;
    for (int64_t sequence = 0; sequence < given->sequences; sequence++) {
        end += given->counts[sequence] * hidden;
        memcpy(drafter->ends + sequence * hidden, end - hidden, (size_t)hidden * sizeof *end);
    }
    return draft(drafter, given, most, drafts);
}
