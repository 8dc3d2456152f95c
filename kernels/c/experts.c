/* Mixtures of experts: each token goes through the few networks that a router chooses for it.
 *
 * Tokens are brought together by the expert that they are for, and the products of all experts are one job. */
#include "context.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS_A_THREAD = 4 };

/* The matrix of one expert. */
static pk_matrix nth(const pk_matrix *all, int64_t count, int64_t index)
{
    pk_matrix one = *all;
    one.weight_bytes /= count;
    one.scale_bytes /= count;
    one.bias_bytes /= count;
    one.addend_bytes /= count;
    one.weights = (const char *)all->weights + index * one.weight_bytes;
    if (all->scales != NULL)
        one.scales = (const char *)all->scales + index * one.scale_bytes;
    if (all->biases != NULL)
        one.biases = (const char *)all->biases + index * one.bias_bytes;
    if (all->addend != NULL)
        one.addend = (const float *)((const char *)all->addend + index * one.addend_bytes);
    return one;
}

static int fits(const pk_matrix *all, int64_t count, int64_t rows, int64_t columns)
{
    pk_matrix one = nth(all, count, 0);
    if (pk_check(&one) != PK_OK)
        return 0;
    if (one.rows == rows && one.columns == columns)
        return 1;
    pk_refuse("A matrix of the experts does not have the shape that the architecture gives it.");
    return 0;
}

int pk_check_experts(const pk_experts *experts, int64_t hidden)
{
    const int64_t inner = experts->gate.rows;
    if (experts->count < 1 || experts->chosen < 1 || experts->chosen > experts->count)
        return pk_refuse("The router cannot choose so many experts.");
    if (experts->router.rows != 0 && pk_check(&experts->router) != PK_OK)
        return PK_REFUSED;
    if (experts->router.rows != 0 && (experts->router.rows != experts->count || experts->router.columns != hidden))
        return pk_refuse("The router does not have the shape that the architecture gives it.");
    if (!fits(&experts->gate, experts->count, inner, hidden) || !fits(&experts->up, experts->count, inner, hidden) ||
        !fits(&experts->down, experts->count, hidden, inner))
        return PK_REFUSED;
    return PK_OK;
}

/* The tokens of one expert: assignments [first, first + count), which are sorted by expert. */
typedef struct group {
    int64_t expert, first, count;
    int width;
    /* As those of `pk_tile`, or of int8; for one vector in float32 the sums of its groups of columns. */
    float *panels;
} group;

typedef struct mixture {
    pk_context *context;
    const pk_experts *experts;
    const float *x;
    float *out, *scores, *weights, *gates, *ups, *downs, *panels;
    int32_t *chosen, *rows, *places; /* [tokens, chosen] expert; [assignments] token; [tokens, chosen] assignment */
    group *groups;
    int64_t tokens, hidden, inner, assignments, group_count;
    int activation;
    /* Of the products under way: */
    const pk_matrix *first, *second; /* of all experts; `second` is joined with `first`, or NULL */
    const pk_int8 *int8;             /* or NULL: panels are float32 */
    const float *source;
    const int32_t *source_rows; /* of each assignment, or NULL where they are the assignments */
    float *target;
    int64_t parts, part_rows;
} mixture;

/* Routing */

/* The chosen experts of a token, best first, and the weights of their outputs. */
static void choose(const mixture *mixture, int64_t token)
{
    const pk_experts *experts = mixture->experts;
    const float *scores = mixture->scores + token * experts->count;
    int32_t *chosen = mixture->chosen + token * experts->chosen;
    float *weights = mixture->weights + token * experts->chosen, total = 0.0f;
    for (int place = 0; place < experts->chosen; place++) {
        int best = -1;
        for (int expert = 0; expert < experts->count; expert++) {
            int taken = 0;
            for (int before = 0; before < place; before++)
                taken |= chosen[before] == expert;
            if (!taken && (best < 0 || scores[expert] > scores[best]))
                best = expert;
        }
        chosen[place] = best;
        weights[place] = expf(scores[best] - scores[chosen[0]]);
        total += weights[place];
    }
    if (!experts->normalized) {
        total = 0.0f;
        for (int expert = 0; expert < experts->count; expert++)
            total += expf(scores[expert] - scores[chosen[0]]);
    }
    for (int place = 0; place < experts->chosen; place++)
        weights[place] /= total;
}

/* Bring the tokens of each expert together. */
static void sort(mixture *mixture)
{
    const int64_t chosen = mixture->experts->chosen;
    int64_t next = 0;
    mixture->group_count = 0;
    for (int64_t expert = 0; expert < mixture->experts->count; expert++) {
        const int64_t first = next;
        for (int64_t index = 0; index < mixture->assignments; index++)
            if (mixture->chosen[index] == expert) {
                mixture->rows[next] = (int32_t)(index / chosen);
                mixture->places[index] = (int32_t)next++;
            }
        if (next > first)
            mixture->groups[mixture->group_count++] =
                (group){expert, first, next - first, 0, NULL};
    }
}

/* Products of all groups */

static const float *row_of(const mixture *mixture, int64_t assignment)
{
    const int64_t row = mixture->source_rows == NULL ? assignment : mixture->source_rows[assignment];
    return mixture->source + row * mixture->first->columns;
}

static void pack_int8(const mixture *mixture, const group *group)
{
    const pk_matrix *matrix = mixture->first;
    const int64_t whole = (group->count + group->width - 1) / group->width * group->width;
    for (int64_t place = 0; place < whole; place++) {
        const float *x = place < group->count ? row_of(mixture, group->first + place) : NULL;
        mixture->int8->pack(matrix, x, 0, matrix->columns, group->count, place, group->panels);
    }
}

static void pack_group(void *argument, int64_t index, int thread)
{
    const mixture *mixture = argument;
    const group *group = &mixture->groups[index];
    const pk_matrix *matrix = mixture->first;
    float *panel = group->panels;
    (void)thread;
    if (mixture->int8 != NULL) {
        pack_int8(mixture, group);
        return;
    }
    if (group->width == 1) {
        if (matrix->bits <= 8)
            mixture->context->isa->sum(row_of(mixture, group->first), matrix->columns, matrix->group, panel);
        return;
    }
    for (int64_t first = 0; first < group->count; first += group->width, panel += group->width * matrix->columns)
        for (int64_t place = 0; place < group->width; place++) {
            const float *x = first + place < group->count ? row_of(mixture, group->first + first + place) : NULL;
            for (int64_t column = 0; column < matrix->columns; column++)
                panel[column * group->width + place] = x == NULL ? 0.0f : x[column];
        }
}

static void multiply_rows(const mixture *mixture, const pk_matrix *all, const group *group, float *out, int64_t first,
                          int64_t last, int thread)
{
    const pk_matrix matrix = nth(all, mixture->experts->count, group->expert);
    pk_tile tile = {
        .matrix = &matrix,
        .panels = group->width == 1 && mixture->int8 == NULL ? row_of(mixture, group->first) : group->panels,
        .sums = group->panels,
        .tokens = group->count,
        .width = group->width,
        .out = out + group->first * matrix.rows,
        .out_stride = matrix.rows,
    };
    if (mixture->int8 != NULL)
        mixture->int8->multiply(&tile, first, last);
    else
        mixture->context->isa->multiply(&tile, first, last, pk_scratch_of(mixture->context, thread));
}

static void multiply_part(void *argument, int64_t chunk, int thread)
{
    const mixture *mixture = argument;
    const group *group = &mixture->groups[chunk / mixture->parts];
    const int64_t rows = mixture->first->rows, first = chunk % mixture->parts * mixture->part_rows;
    const int64_t last = first + mixture->part_rows < rows ? first + mixture->part_rows : rows;
    if (first >= rows)
        return;
    multiply_rows(mixture, mixture->first, group, mixture->target, first, last, thread);
    if (mixture->second == NULL)
        return;
    multiply_rows(mixture, mixture->second, group, mixture->ups, first, last, thread);
    for (int64_t place = group->first; place < group->first + group->count; place++) {
        float *gate = mixture->target + place * rows + first;
        mixture->context->isa->gated(mixture->activation, gate, mixture->ups + place * rows + first, last - first, gate);
    }
}

static int64_t panel_size(const mixture *mixture, const group *group)
{
    const int64_t panels = (group->count + group->width - 1) / group->width, columns = mixture->first->columns;
    return mixture->int8 != NULL ? mixture->int8->size(columns, group->count) : panels * group->width * columns;
}

static void multiply(mixture *mixture)
{
    pk_pool *pool = mixture->context->pool;
    float *panels = mixture->panels;
    int64_t most = 0;
    for (int64_t index = 0; index < mixture->group_count; index++)
        most = mixture->groups[index].count > most ? mixture->groups[index].count : most;
    mixture->int8 = pk_int8_for(mixture->context, mixture->first, most);
    for (int64_t index = 0; index < mixture->group_count; index++) {
        group *group = &mixture->groups[index];
        group->width = mixture->int8 != NULL ? mixture->int8->width(group->count) : mixture->context->isa->width(group->count);
        group->panels = panels;
        panels += panel_size(mixture, group);
    }
    pk_pool_run(pool, pack_group, mixture, mixture->group_count);
    const int64_t unit = mixture->context->isa->unpacked, rows = mixture->first->rows;
    const int64_t wanted = (int64_t)pk_pool_threads(pool) * PARTS_A_THREAD;
    const int64_t parts = (wanted + mixture->group_count - 1) / mixture->group_count;
    mixture->part_rows = (rows + parts - 1) / parts / unit * unit + unit;
    mixture->parts = (rows + mixture->part_rows - 1) / mixture->part_rows;
    pk_pool_run(pool, multiply_part, mixture, mixture->group_count * mixture->parts);
}

static void join_token(void *argument, int64_t token, int thread)
{
    const mixture *mixture = argument;
    const int64_t chosen = mixture->experts->chosen, hidden = mixture->hidden;
    float *out = mixture->out + token * hidden;
    (void)thread;
    memset(out, 0, (size_t)hidden * sizeof *out);
    for (int64_t place = 0; place < chosen; place++) {
        const float weight = mixture->weights[token * chosen + place];
        const float *found = mixture->downs + (int64_t)mixture->places[token * chosen + place] * hidden;
        for (int64_t index = 0; index < hidden; index++)
            out[index] += weight * found[index];
    }
}

/* The memory of a mixture: numbers first, then tables of whole numbers, then the panels, whose size the router decides. */
static int lay_out(mixture *mixture, pk_mixing *mixing)
{
    const int64_t all = mixture->assignments, wide = mixture->context->isa->wide + mixture->context->isa->widest;
    const int64_t groups = all < mixture->experts->count ? all : mixture->experts->count;
    const int64_t columns = mixture->hidden > mixture->inner ? mixture->hidden : mixture->inner;
    const int64_t sizes[] = {
        mixture->tokens * mixture->experts->count, all, all * mixture->inner, all * mixture->inner,
        all * mixture->hidden,                     (all + groups * wide) * columns,
    };
    float **places[] = {&mixture->scores, &mixture->weights, &mixture->gates,
                        &mixture->ups,    &mixture->downs,   &mixture->panels};
    enum { NUMBERS = sizeof sizes / sizeof *sizes };
    int64_t total = 0;
    for (int index = 0; index < NUMBERS; index++)
        total += (sizes[index] + 15) / 16 * 16;
    const int64_t table = (groups * (int64_t)sizeof(group) + 63) / 64 * 16 + 3 * all;
    if (pk_enlarge(&mixing->numbers, &mixing->numbers_size, total) != PK_OK ||
        pk_enlarge(&mixing->tables, &mixing->tables_size, table) != PK_OK)
        return PK_REFUSED;
    float *place = mixing->numbers;
    for (int index = 0; index < NUMBERS; index++) {
        *places[index] = place;
        place += (sizes[index] + 15) / 16 * 16;
    }
    mixture->groups = (group *)mixing->tables;
    mixture->chosen = (int32_t *)mixing->tables + (groups * (int64_t)sizeof(group) + 63) / 64 * 16;
    mixture->rows = mixture->chosen + all;
    mixture->places = mixture->rows + all;
    return PK_OK;
}

/* activation(gate) * up of all chosen experts into `gates`. */
static void apply_gates(mixture *mixture)
{
    const pk_matrix *gate = &mixture->experts->gate, *up = &mixture->experts->up;
    const int together = pk_share_panels(mixture->context, gate, up);
    mixture->source = mixture->x;
    mixture->source_rows = mixture->rows;
    mixture->first = gate;
    mixture->second = together ? up : NULL;
    mixture->target = mixture->gates;
    multiply(mixture);
    if (together)
        return;
    mixture->first = up;
    mixture->target = mixture->ups;
    multiply(mixture);
    mixture->context->isa->gated(mixture->activation, mixture->gates, mixture->ups,
                                 mixture->assignments * mixture->inner, mixture->gates);
}

/* Outputs of all chosen experts into `downs`, sorted by expert. */
static void apply(mixture *mixture)
{
    sort(mixture);
    apply_gates(mixture);
    mixture->first = &mixture->experts->down;
    mixture->second = NULL;
    mixture->source = mixture->gates;
    mixture->source_rows = NULL;
    mixture->target = mixture->downs;
    multiply(mixture);
}

static mixture mixture_of(pk_context *context, const pk_experts *experts, int activation, const float *x, int64_t tokens,
                          float *out)
{
    return (mixture){
        .context = context,
        .experts = experts,
        .x = x,
        .out = out,
        .tokens = tokens,
        .hidden = experts->gate.columns,
        .inner = experts->gate.rows,
        .assignments = tokens * experts->chosen,
        .activation = activation,
    };
}

int pk_mix(pk_context *context, pk_mixing *mixing, const pk_experts *experts, int activation, const float *x,
           int64_t tokens, float *out)
{
    mixture mixture = mixture_of(context, experts, activation, x, tokens, out);
    if (lay_out(&mixture, mixing) != PK_OK)
        return PK_REFUSED;
    pk_products routing = {
        .matrices = {&experts->router}, .outs = {mixture.scores}, .out_strides = {experts->count}, .count = 1};
    if (pk_multiply(context, &routing, x, mixture.hidden, tokens) != PK_OK)
        return PK_REFUSED;
    for (int64_t token = 0; token < tokens; token++)
        choose(&mixture, token);
    apply(&mixture);
    pk_pool_run(context->pool, join_token, &mixture, tokens);
    return PK_OK;
}

void pk_end_mixing(pk_mixing *mixing)
{
    free(mixing->numbers);
    free(mixing->tables);
}

int pk_mixture(pk_context *context, const pk_experts *experts, int activation, const float *x, int64_t tokens,
               const int32_t *chosen, float *out)
{
    if (tokens < 1 || activation < PK_SILU || activation > PK_SWIGLU_OAI)
        return pk_refuse("A mixture takes at least one token and a known activation.");
    if (pk_check_experts(experts, experts->gate.columns) != PK_OK)
        return PK_REFUSED;
    const int64_t all = tokens * experts->chosen;
    for (int64_t index = 0; chosen != NULL && index < all; index++)
        if (chosen[index] < 0 || chosen[index] >= experts->count)
            return pk_refuse("There is no such expert.");
    pk_mixing mixing = {0};
    int result = PK_REFUSED;
    mixture mixture = mixture_of(context, experts, activation, x, tokens, out);
    if (chosen == NULL)
        result = experts->router.rows == 0 ? pk_refuse("A mixture without a router is told which experts to take.")
                                           : pk_mix(context, &mixing, experts, activation, x, tokens, out);
    else if (lay_out(&mixture, &mixing) == PK_OK) {
        memcpy(mixture.chosen, chosen, (size_t)all * sizeof *chosen);
        apply(&mixture);
        for (int64_t index = 0; index < all; index++)
            memcpy(out + index * mixture.hidden, mixture.downs + mixture.places[index] * mixture.hidden,
                   (size_t)mixture.hidden * sizeof *out);
        result = PK_OK;
    }
    pk_end_mixing(&mixing);
    return result;
}
