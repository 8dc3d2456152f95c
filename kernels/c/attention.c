/* Rotary positions, and attention shared out by slots, heads of keys, and pieces of the tokens. */
#include "context.h"

#include <math.h>

enum { MOST_TOKENS = 32 }; /* of a piece */

static void rotate_head(const pk_rope *rope, const float *cosines, const float *sines, float *x)
{
    const int half = rope->dims / 2;
    const int step = rope->interleaved ? 2 : 1, other = rope->interleaved ? 1 : half;
    for (int index = 0; index < half; index++) {
        float *a = x + index * step, *b = a + other;
        const float first = *a, second = *b;
        *a = first * cosines[index] - second * sines[index];
        *b = second * cosines[index] + first * sines[index];
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
            rotate_head(rope, cosines, sines, x);
    }
    return PK_OK;
}

typedef struct attention_job {
    const pk_context *context;
    const pk_kv *kv;
    const float *queries;
    const int64_t *starts;
    const float *sinks;
    float *out;
    int64_t count, heads, kv_heads, head_dim, window;
    int64_t pieces, piece_tokens;
    float scale, softcap;
} attention_job;

static void attend_part(void *argument, int64_t chunk, int thread)
{
    const attention_job *job = argument;
    /* The last tokens see most: their pieces come first, so that no thread is left with one alone. */
    const int64_t piece = job->pieces - 1 - chunk % job->pieces;
    const int64_t head = chunk / job->pieces % job->kv_heads, slot = chunk / job->pieces / job->kv_heads;
    const int64_t group = job->heads / job->kv_heads;
    const int64_t at = (slot * job->count * job->heads + head * group) * job->head_dim;
    const int64_t last = (piece + 1) * job->piece_tokens;
    pk_attend attend = {
        .queries = job->queries + at,
        .out = job->out + at,
        .token_stride = job->heads * job->head_dim,
        .keys = job->kv->keys + slot * job->kv->key_slot_stride + head * job->kv->key_head_stride,
        .values = job->kv->values + slot * job->kv->value_slot_stride + head * job->kv->value_head_stride,
        .capacity = job->kv->capacity,
        .start = job->starts[slot],
        .first = piece * job->piece_tokens,
        .last = last < job->count ? last : job->count,
        .window = job->window,
        .group = (int)group,
        .dim = (int)job->head_dim,
        .scale = job->scale,
        .softcap = job->softcap,
        .sinks = job->sinks == NULL ? NULL : job->sinks + head * group,
    };
    job->context->isa->attend(&attend, pk_scratch_of(job->context, thread));
}

int pk_attend_all(pk_context *context, const pk_kv *kv, const float *queries, int64_t slots, int64_t count,
                  int64_t heads, int64_t kv_heads, int64_t head_dim, const int64_t *starts, int64_t window,
                  const float *sinks, float scale, float softcap, float *out)
{
    int64_t tokens = PK_QUERIES / (heads / kv_heads);
    if (tokens > MOST_TOKENS)
        tokens = MOST_TOKENS;
    attention_job job = {context,  kv,       queries, starts, sinks, out,  count, heads, kv_heads, head_dim, window,
                         .pieces = (count + tokens - 1) / tokens, .piece_tokens = tokens, .scale = scale,
                         .softcap = softcap};
    pk_pool_run(context->pool, attend_part, &job, slots * kv_heads * job.pieces);
    return PK_OK;
}

int pk_attention(pk_context *context, const pk_kv *kv, const float *queries, int64_t slots, int64_t count,
                 int64_t heads, int64_t kv_heads, int64_t head_dim, const int64_t *starts, int64_t window,
                 const float *sinks, float scale, float softcap, float *out)
{
    if (slots < 1 || count < 1 || kv_heads < 1 || heads % kv_heads != 0 || heads / kv_heads > PK_QUERIES ||
        head_dim < 1 || head_dim > PK_MOST_DIM)
        return pk_refuse("Attention of such heads is not possible.");
    for (int64_t slot = 0; slot < slots; slot++) {
        int64_t seen = starts[slot] + count;
        if (starts[slot] < 0 || (seen > kv->capacity && (window < 1 || window + count - 1 > kv->capacity)))
            return pk_refuse("A sequence is longer than its keys and values.");
    }
    return pk_attend_all(context, kv, queries, slots, count, heads, kv_heads, head_dim, starts, window, sinks, scale,
                         softcap, out);
}
