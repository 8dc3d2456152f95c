/* Rotary positions, and attention shared out by slots, heads of keys, and pieces of the tokens. */
#include "context.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_TOKENS = 32 }; /* of a piece */

void pk_turn(const pk_rope *rope, const float *cosines, const float *sines, float *head)
{
    const int half = rope->dims / 2, stride = rope->interleaved ? 2 : 1, other = rope->interleaved ? 1 : half;
    for (int pair = 0; pair < half; pair++) {
        float *a = head + pair * stride, *b = a + other;
        const float first = *a, second = *b;
        *a = first * cosines[pair] - second * sines[pair];
        *b = second * cosines[pair] + first * sines[pair];
    }
}

int pk_rotate(const pk_rope *rope, float *x, int64_t count, int64_t heads, int64_t head_dim, const int64_t *positions)
{
    if (rope->inverse_frequencies == NULL)
        return PK_OK;
    if (rope->dims < 2 || rope->dims % 2 || rope->dims > head_dim || rope->dims > PK_MOST_DIM)
        return pk_refuse("A rotary embedding is larger than a head.");
    float cosines[PK_MOST_DIM / 2], sines[PK_MOST_DIM / 2];
    for (int64_t token = 0; token < count; token++) {
        for (int index = 0; index < rope->dims / 2; index++) {
            float angle = (float)positions[token] * rope->scale * rope->inverse_frequencies[index];
            cosines[index] = cosf(angle) * rope->stretch;
            sines[index] = sinf(angle) * rope->stretch;
        }
        for (int64_t head = 0; head < heads; head++, x += head_dim)
            pk_turn(rope, cosines, sines, x);
    }
    return PK_OK;
}

/* Pieces of a step */

static int64_t tokens_of_a_piece(int64_t group)
{
    int64_t tokens = PK_QUERIES / group;
    return tokens < MOST_TOKENS ? tokens : MOST_TOKENS;
}

int64_t pk_count_pieces(const pk_step *step, int64_t group)
{
    const int64_t tokens = tokens_of_a_piece(group);
    int64_t count = 0;
    for (int64_t sequence = 0; sequence < step->sequences; sequence++)
        count += (step->counts[sequence] + tokens - 1) / tokens;
    return count;
}

static int share(const pk_kv *one, const pk_kv *other)
{
    return one->shared > 0 && one->shared == other->shared && one->shared_keys == other->shared_keys &&
           one->shared_values == other->shared_values;
}

int64_t pk_cut_pieces(const pk_step *step, int64_t group, pk_piece *pieces)
{
    const int64_t tokens = tokens_of_a_piece(group);
    const pk_piece *begin = pieces;
    int64_t token = 0;
    for (int64_t sequence = 0, sequences; sequence < step->sequences; sequence += sequences) {
        int64_t held = step->counts[sequence];
        sequences = 1;
        while (sequence + sequences < step->sequences && held + step->counts[sequence + sequences] <= tokens &&
               share(&step->kv[sequence], &step->kv[sequence + sequences]))
            held += step->counts[sequence + sequences++];
        /* The last tokens see most: their pieces come first, so that no thread is left with one alone. */
        for (int64_t last = step->counts[sequence]; last > 0; pieces++) {
            const int64_t first = (last - 1) / tokens * tokens;
            *pieces = (pk_piece){sequence, first, last, token, sequences};
            last = first;
        }
        token += held;
    }
    return pieces - begin;
}

static int check_kv(const pk_kv *kv, int64_t head_dim, int64_t start, int64_t count, int64_t window)
{
    if (kv->keys == NULL || kv->values == NULL || kv->capacity < 1 || kv->shift < 0)
        return pk_refuse("A layer has no keys and values.");
    if (kv->bits != 0) {
        if ((kv->bits != 4 && kv->bits != 8) || (kv->group != 32 && kv->group != 64 && kv->group != 128))
            return pk_refuse("Keys and values are packed in 4 or 8 bits, in groups of 32, 64 or 128.");
        if (head_dim % kv->group != 0 || kv->key_scales == NULL || kv->key_biases == NULL || kv->value_scales == NULL ||
            kv->value_biases == NULL)
            return pk_refuse("Packed keys and values lack scales, or their heads are no whole groups.");
    }
    if (kv->shared < 0 || (kv->shared > 0 && (kv->shared_keys == NULL || kv->shared_values == NULL || kv->bits != 0)))
        return pk_refuse("Keys and values that sequences share are float32, as their own are.");
    /* What the first query sees is still there when the last one is written. */
    if (start < kv->shared || count < 1 ||
        (start + count - kv->shared > kv->capacity && (window < 1 || window + count - 1 > kv->capacity)))
        return pk_refuse("A sequence is longer than its keys and values.");
    return PK_OK;
}

int pk_check_step(const pk_step *step, int layers, const int32_t *windows, int64_t head_dim)
{
    if (step->sequences < 1 || step->starts == NULL || step->counts == NULL || step->kv == NULL)
        return pk_refuse("A step has at least one sequence.");
    const pk_kv *kv = step->kv;
    for (int layer = 0; layer < layers; layer++)
        for (int64_t sequence = 0; sequence < step->sequences; sequence++, kv++)
            if (check_kv(kv, head_dim, step->starts[sequence], step->counts[sequence], windows[layer]) != PK_OK)
                return PK_REFUSED;
    return PK_OK;
}

typedef struct attention_job {
    const pk_context *context;
    const pk_heads *shape;
    const pk_step *step;
    const pk_kv *kv;
    const pk_piece *pieces;
    const float *queries, *sinks;
    float *out;
    int64_t window;
} attention_job;

static void attend_part(void *argument, int64_t chunk, int thread)
{
    const attention_job *job = argument;
    const pk_heads *shape = job->shape;
    const pk_piece *piece = &job->pieces[chunk / shape->kv_heads];
    const int64_t head = chunk % shape->kv_heads, group = shape->heads / shape->kv_heads;
    const pk_kv *kv = &job->kv[piece->sequence];
    pk_attend rows[MOST_TOKENS];
    int64_t token = piece->token;
    int held = 0;
    for (int64_t row = 0; row < piece->sequences; row++) {
        const int64_t at = (token * shape->heads + head * group) * shape->head_dim;
        const int64_t count = job->step->counts[piece->sequence + row];
        /* The pieces were cut by what the first layer shares. */
        if (held > 0 && !share(rows[0].kv, &kv[row])) {
            job->context->isa->attend(rows, held, pk_scratch_of(job->context, thread));
            held = 0;
        }
        rows[held++] = (pk_attend){
            .queries = job->queries + at,
            .out = job->out + at,
            .token_stride = shape->heads * shape->head_dim,
            .kv = &kv[row],
            .head = head,
            .start = job->step->starts[piece->sequence + row],
            .first = piece->sequences > 1 ? 0 : piece->first,
            .last = piece->sequences > 1 ? count : piece->last,
            .window = job->window,
            .group = (int)group,
            .dim = (int)shape->head_dim,
            .scale = shape->scale,
            .softcap = shape->softcap,
            .sinks = job->sinks == NULL ? NULL : job->sinks + head * group,
        };
        token += count;
    }
    job->context->isa->attend(rows, held, pk_scratch_of(job->context, thread));
}

void pk_attend_all(pk_context *context, const pk_heads *heads, const pk_step *step, const pk_kv *kv,
                   const pk_piece *pieces, int64_t count, int64_t window, const float *sinks, const float *queries,
                   float *out)
{
    attention_job job = {context, heads, step, kv, pieces, queries, sinks, out, window};
    pk_pool_run(context->pool, attend_part, &job, count * heads->kv_heads);
}

int pk_attention(pk_context *context, const pk_step *step, const float *queries, int64_t heads, int64_t kv_heads,
                 int64_t head_dim, int64_t window, const float *sinks, float scale, float softcap, float *out)
{
    if (kv_heads < 1 || heads % kv_heads != 0 || heads / kv_heads > PK_QUERIES || head_dim < 1 ||
        head_dim > PK_MOST_DIM)
        return pk_refuse("Attention of such heads is not possible.");
    const int32_t windows[] = {(int32_t)window};
    if (pk_check_step(step, 1, windows, head_dim) != PK_OK)
        return PK_REFUSED;
    pk_piece *pieces = malloc((size_t)pk_count_pieces(step, heads / kv_heads) * sizeof *pieces);
    if (pieces == NULL)
        return pk_refuse("There is no memory left for a step.");
    const int64_t count = pk_cut_pieces(step, heads / kv_heads, pieces);
    const pk_heads shape = {heads, kv_heads, head_dim, scale, softcap};
    pk_attend_all(context, &shape, step, step->kv, pieces, count, window, sinks, queries, out);
    free(pieces);
    return PK_OK;
}
