/* Holds every kernel of every instruction set that this machine has against a plain reference: loops over numbers of double
 * precision, written from what `pippin_kernels.h` says. `python kernels/tests/check.py` runs it, for other processors too. */
#include "made.h"

enum { THREADS = 2 };

static int failures = 0, checks = 0;

/* `found` is within `tolerance` of the largest expected number; `doubt` NULL, or by how much each may be off beyond that. */
static void near_to(const char *what, const char *name, const float *found, const double *expected, const double *doubt,
                    int64_t count, double tolerance)
{
    double worst = 0.0, largest = 1e-30;
    for (int64_t index = 0; index < count; index++) {
        const double off = fabs((double)found[index] - expected[index]) - (doubt == NULL ? 0.0 : doubt[index]);
        worst = isnan(off) || off > worst ? off : worst;
        largest = fmax(largest, fabs(expected[index]));
    }
    checks++;
    if (!(worst <= tolerance * largest)) {
        fprintf(stderr, "%s with %s is off by %g of %g\n", what, name, worst, largest);
        failures++;
    }
}

static void must(const char *what, const char *name, int result)
{
    if (result == PK_OK)
        return;
    fprintf(stderr, "%s with %s is refused: %s\n", what, name, pk_refusal());
    failures++;
}

/* What is stored, as numbers */

static double half(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -size : size;
}

static double stored(int type, const void *memory, int64_t index)
{
    if (type == PK_F32)
        return (double)((const float *)memory)[index];
    const uint16_t bits = ((const uint16_t *)memory)[index];
    if (type == PK_F16)
        return half(bits);
    const uint32_t wide = (uint32_t)bits << 16;
    float number;
    memcpy(&number, &wide, sizeof number);
    return (double)number;
}

static double e2m1(uint32_t bits)
{
    const int exponent = bits >> 1 & 3, fraction = bits & 1;
    const double size = exponent == 0 ? 0.5 * fraction : ldexp(1.0 + 0.5 * fraction, exponent - 1);
    return bits & 8 ? -size : size;
}

static double e4m3(uint8_t bits)
{
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    const double size = exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);
    return bits & 0x80 ? -size : size;
}

/* Row `row` of words that lie `stride` words apart. */
static uint32_t field_of(const uint32_t *words, int64_t stride, int bits, int64_t column)
{
    uint32_t found = 0;
    for (int64_t bit = 0; bit < bits; bit++) {
        const int64_t at = column * bits + bit;
        found |= (words[at / 32 * stride] >> (at % 32) & 1) << bit;
    }
    return found;
}

static double weight(const pk_matrix *m, int64_t row, int64_t column)
{
    const int64_t block = row / PK_BLOCK, lane = row % PK_BLOCK;
    if (m->format == PK_DENSE)
        return stored(m->type, m->weights, (block * m->columns + column) * PK_BLOCK + lane);
    const uint32_t *words = (const uint32_t *)m->weights + block * (m->columns * m->bits / 32) * PK_BLOCK + lane;
    const uint32_t found = field_of(words, PK_BLOCK, m->bits, column);
    const int64_t at = (block * (m->columns / m->group) + column / m->group) * PK_BLOCK + lane;
    if (m->format == PK_AFFINE)
        return found * stored(m->type, m->scales, at) + stored(m->type, m->biases, at);
    const uint8_t scale = ((const uint8_t *)m->scales)[at];
    return e2m1(found) * (m->format == PK_MXFP4 ? ldexp(1.0, scale - 127) : e4m3(scale));
}

/* Matrices as the reference has them, [rows, columns], and the bias of a linear layer. */
typedef struct plain {
    double *weights, *addend;
    int64_t rows, columns;
} plain;

static plain plain_of(const pk_matrix *m)
{
    plain found = {malloc((size_t)(m->rows * m->columns) * 8), calloc((size_t)m->rows, 8), m->rows, m->columns};
    for (int64_t row = 0; row < m->rows; row++) {
        found.addend[row] = m->addend == NULL ? 0.0 : (double)m->addend[row];
        for (int64_t column = 0; column < m->columns; column++)
            found.weights[row * m->columns + column] = weight(m, row, column);
    }
    return found;
}

static void release_plain(plain *m)
{
    free(m->weights);
    free(m->addend);
}

static void multiply(const plain *m, const double *x, double *out)
{
    for (int64_t row = 0; row < m->rows; row++) {
        out[row] = m->addend[row];
        for (int64_t column = 0; column < m->columns; column++)
            out[row] += m->weights[row * m->columns + column] * x[column];
    }
}

static double *doubles(const float *x, int64_t count)
{
    double *wide = malloc((size_t)count * 8);
    for (int64_t index = 0; index < count; index++)
        wide[index] = (double)x[index];
    return wide;
}

/* Products */

static double *products_of(const pk_matrix *m, const float *x, int64_t tokens)
{
    plain matrix = plain_of(m);
    double *wide = doubles(x, tokens * m->columns), *out = malloc((size_t)(tokens * m->rows) * 8);
    for (int64_t token = 0; token < tokens; token++)
        multiply(&matrix, wide + token * m->columns, out + token * m->rows);
    release_plain(&matrix);
    free(wide);
    return out;
}

static void check_product(pk_matrix m, int64_t tokens)
{
    const char *name;
    float *x = filled(tokens * m.columns, PK_F32), *out = malloc((size_t)(tokens * m.rows) * 4);
    double *expected = products_of(&m, x, tokens);
    for (int set = 0; (name = pk_instruction_set(set)) != NULL; set++) {
        pk_context *context = pk_open(THREADS, name);
        must("a product", name, pk_product(context, &m, x, m.columns, tokens, out, m.rows));
        near_to("a product", name, out, expected, NULL, tokens * m.rows, 5e-6);
        const char *whole;
        for (int way = 0; (whole = pk_int8_set(way)) != NULL; way++) {
            if (pk_whole_numbers(context, whole) != PK_OK)
                continue; /* it has no exact products */
            must("a product in whole numbers", whole, pk_product(context, &m, x, m.columns, tokens, out, m.rows));
            near_to("a product in whole numbers", whole, out, expected, NULL, tokens * m.rows, 5e-6);
        }
        pk_whole_numbers(context, NULL);
        must("a product in float32", name, pk_product(context, &m, x, m.columns, tokens, out, m.rows));
        near_to("a product in float32", name, out, expected, NULL, tokens * m.rows, 5e-6);
        pk_close(context);
    }
    float *row = malloc((size_t)m.columns * 4);
    for (int32_t index = 0; index < m.rows; index += 7) {
        double *numbers = malloc((size_t)m.columns * 8);
        for (int64_t column = 0; column < m.columns; column++)
            numbers[column] = weight(&m, index, column);
        must("a row", "pk_rows", pk_rows(&m, &index, 1, row));
        near_to("a row", "pk_rows", row, numbers, NULL, m.columns, 1e-6);
        free(numbers);
    }
    free(row);
    free(x);
    free(out);
    free(expected);
    release(&m);
}

/* A vector as int8 has it, and by how much a number may be off as it lies between two of them. */
static void round_vector(const float *x, int64_t columns, float *rounded, float *between)
{
    for (int64_t first = 0; first < columns; first += 32) {
        const int64_t last = first + 32 < columns ? first + 32 : columns;
        float largest = 0.0f;
        for (int64_t column = first; column < last; column++)
            largest = fmaxf(largest, fabsf(x[column]));
        for (int64_t column = first; column < last; column++) {
            const double exact = largest > 0.0f ? (double)x[column] * 127.0 / (double)largest : 0.0;
            const double factor = (double)largest / 127.0;
            rounded[column] = (float)(rint(exact) * factor);
            between[column] = fabs(fabs(exact - floor(exact)) - 0.5) < 1e-4 ? (float)factor : 0.0f;
        }
    }
}

static void check_int8(pk_matrix m, int64_t tokens)
{
    const char *name;
    const int64_t count = tokens * m.columns, products = tokens * m.rows;
    float *x = filled(count, PK_F32), *rounded = malloc((size_t)count * 4), *between = malloc((size_t)count * 4);
    float *out = malloc((size_t)products * 4);
    for (int64_t token = 0; token < tokens; token++)
        round_vector(x + token * m.columns, m.columns, rounded + token * m.columns, between + token * m.columns);
    double *expected = products_of(&m, rounded, tokens), *doubt = calloc((size_t)products, 8);
    for (int64_t place = 0; place < products; place++)
        for (int64_t column = 0; column < m.columns; column++)
            if (between[place / m.rows * m.columns + column] > 0.0f)
                doubt[place] += (double)between[place / m.rows * m.columns + column] *
                                fabs(weight(&m, place % m.rows, column));
    for (int set = 0; (name = pk_int8_set(set)) != NULL; set++) {
        pk_context *context = pk_open(THREADS, NULL);
        must("int8", name, pk_round_activations(context, name));
        must("a product of int8", name, pk_product(context, &m, x, m.columns, tokens, out, m.rows));
        near_to("a product of int8", name, out, expected, doubt, products, 5e-6);
        pk_close(context);
    }
    void *memory[] = {x, rounded, between, out, expected, doubt};
    for (size_t index = 0; index < sizeof memory / sizeof *memory; index++)
        free(memory[index]);
    release(&m);
}

/* Norms, activations and rotary positions */

static double activation(int kind, double x)
{
    switch (kind) {
    case PK_SILU: return x / (1.0 + exp(-x));
    case PK_GELU: return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    default: return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    }
}

static double gated(int kind, double gate, double up)
{
    if (kind != PK_SWIGLU_OAI)
        return activation(kind, gate) * up;
    gate = fmin(gate, 7.0);
    return gate / (1.0 + exp(-1.702 * gate)) * (fmax(fmin(up, 7.0), -7.0) + 1.0);
}

static void normed(const double *x, const float *scale, const float *bias, int centred, double eps, int64_t size,
                   double *out)
{
    double mean = 0.0, squares = 0.0;
    for (int64_t index = 0; centred && index < size; index++)
        mean += x[index] / (double)size;
    for (int64_t index = 0; index < size; index++)
        squares += (x[index] - mean) * (x[index] - mean) / (double)size;
    for (int64_t index = 0; index < size; index++)
        out[index] = (x[index] - mean) / sqrt(squares + eps) * (scale == NULL ? 1.0 : (double)scale[index]) +
                     (bias == NULL ? 0.0 : (double)bias[index]);
}

static void rotate(const pk_rope *rope, int64_t position, double *head)
{
    for (int pair = 0; pair < rope->dims / 2; pair++) {
        const float angle = (float)position * rope->scale * rope->inverse_frequencies[pair];
        const double c = cos((double)angle) * (double)rope->stretch, s = sin((double)angle) * (double)rope->stretch;
        double *a = head + (rope->interleaved ? 2 * pair : pair), *b = a + (rope->interleaved ? 1 : rope->dims / 2);
        const double first = *a, second = *b;
        *a = first * c - second * s;
        *b = second * c + first * s;
    }
}

static void check_functions(pk_context *context, int64_t size)
{
    const char *name = pk_used(context);
    float *x = filled(size, PK_F32), *scale = filled(size, PK_F32), *bias = filled(size, PK_F32);
    float *out = malloc((size_t)size * 4);
    for (int64_t index = 0; index < size; index++)
        x[index] *= 100.0f; /* from -10 to 10 */
    double *wide = doubles(x, size), *expected = malloc((size_t)size * 8);
    pk_rms_norm(context, x, scale, 1e-5f, 1, size, out);
    normed(wide, scale, NULL, 0, 1e-5f, size, expected);
    near_to("a norm", name, out, expected, NULL, size, 1e-6);
    pk_layer_norm(context, x, scale, bias, 1e-5f, 1, size, out);
    normed(wide, scale, bias, 1, 1e-5f, size, expected);
    near_to("a layer norm", name, out, expected, NULL, size, 2e-6);
    for (int kind = PK_SILU; kind <= PK_SWIGLU_OAI; kind++) {
        pk_gated(context, kind, x, bias, size, out);
        for (int64_t index = 0; index < size; index++)
            expected[index] = gated(kind, wide[index], (double)bias[index]);
        near_to("an activation", name, out, expected, NULL, size, 1e-6);
    }
    void *memory[] = {x, scale, bias, out, wide, expected};
    for (size_t index = 0; index < sizeof memory / sizeof *memory; index++)
        free(memory[index]);
}

/* Attention of one query: `keys` and `values` [positions, dim] of its head; it sees [from, to). */
static void attend(const double *query, const double *keys, const double *values, int64_t from, int64_t to, int64_t dim,
                   double scale, double softcap, const float *sink, double *out)
{
    double *scores = malloc((size_t)to * 8), largest = sink == NULL ? -INFINITY : (double)*sink, total = 0.0;
    for (int64_t key = from; key < to; key++) {
        scores[key] = 0.0;
        for (int64_t index = 0; index < dim; index++)
            scores[key] += query[index] * keys[key * dim + index];
        scores[key] *= scale;
        if (softcap > 0.0)
            scores[key] = softcap * tanh(scores[key] / softcap);
        largest = fmax(largest, scores[key]);
    }
    if (sink != NULL)
        total = exp((double)*sink - largest);
    memset(out, 0, (size_t)dim * 8);
    for (int64_t key = from; key < to; key++)
        total += exp(scores[key] - largest);
    for (int64_t key = from; key < to; key++)
        for (int64_t index = 0; index < dim; index++)
            out[index] += exp(scores[key] - largest) / total * values[key * dim + index];
    free(scores);
}

typedef struct attention {
    int64_t heads, kv_heads, dim, window, start, count, capacity, shift, bits;
    int sinks;
    float softcap;
} attention;

/* One head's stored numbers of all positions, by position. */
static double *positions_of(const attention *a, const void *memory, const float *scales, const float *biases,
                            int64_t head)
{
    const int64_t end = a->start + a->count, words = a->dim * a->bits / 32, groups = a->dim / 32;
    double *out = calloc((size_t)(end * a->dim), 8);
    for (int64_t position = end > a->capacity ? end - a->capacity : 0; position < end; position++) {
        const int64_t place = head * a->capacity + (position + a->shift) % a->capacity;
        for (int64_t index = 0; index < a->dim; index++) {
            double *number = &out[position * a->dim + index];
            if (a->bits == 0) {
                *number = (double)((const float *)memory)[place * a->dim + index];
                continue;
            }
            const uint32_t found = field_of((const uint32_t *)memory + place * words, 1, (int)a->bits, index);
            *number = found * (double)scales[place * groups + index / 32] + (double)biases[place * groups + index / 32];
        }
    }
    return out;
}

static void check_attention(pk_context *context, attention a)
{
    const int64_t places = a.kv_heads * a.capacity, scales = places * (a.dim / 32), size = a.heads * a.dim;
    pk_kv kv = {.capacity = a.capacity, .shift = a.shift, .bits = a.bits, .group = a.bits ? 32 : 0};
    kv.key_head_stride = kv.value_head_stride = a.capacity * (a.bits ? a.dim * a.bits / 32 : a.dim);
    kv.keys = filled(a.kv_heads * kv.key_head_stride, PK_F32);
    kv.values = filled(a.kv_heads * kv.key_head_stride, PK_F32);
    float **packed[] = {&kv.key_scales, &kv.key_biases, &kv.value_scales, &kv.value_biases};
    for (int index = 0; index < 4; index++)
        *packed[index] = a.bits ? filled(scales, PK_F32) : NULL;
    float *queries = filled(a.count * size, PK_F32), *sinks = filled(a.heads, PK_F32);
    float *out = malloc((size_t)(a.count * size) * 4);
    for (int64_t index = 0; index < a.count * size; index++)
        queries[index] *= 20.0f; /* scores that differ */
    const pk_step step = {&a.start, &a.count, NULL, &kv, 1};
    must("attention", pk_used(context),
         pk_attention(context, &step, queries, a.heads, a.kv_heads, a.dim, a.window, a.sinks ? sinks : NULL, 0.3f,
                      a.softcap, out));
    double *expected = malloc((size_t)(a.count * size) * 8), *wide = doubles(queries, a.count * size);
    for (int64_t head = 0; head < a.heads; head++) {
        const int64_t of_keys = head / (a.heads / a.kv_heads);
        double *keys = positions_of(&a, kv.keys, kv.key_scales, kv.key_biases, of_keys);
        double *values = positions_of(&a, kv.values, kv.value_scales, kv.value_biases, of_keys);
        for (int64_t token = 0; token < a.count; token++) {
            const int64_t to = a.start + token + 1, at = token * size + head * a.dim;
            attend(wide + at, keys, values, a.window > 0 && to > a.window ? to - a.window : 0, to, a.dim, (double)0.3f,
                   (double)a.softcap, a.sinks ? sinks + head : NULL, expected + at);
        }
        free(keys);
        free(values);
    }
    near_to("attention", pk_used(context), out, expected, NULL, a.count * size, 1e-5);
    void *memory[] = {kv.keys, kv.values, kv.key_scales, kv.key_biases, kv.value_scales, kv.value_biases,
                      queries, sinks,     out,           expected,      wide};
    for (size_t index = 0; index < sizeof memory / sizeof *memory; index++)
        free(memory[index]);
}

/* Mixtures of experts */

/* `count` matrices one behind the other: the sizes in bytes are those of all. */
static pk_matrix stack_of(int64_t count, int64_t rows, int64_t columns, int bits)
{
    pk_matrix m = matrix_of(count * rows, columns, bits, 32, PK_F32); /* rows is whole blocks */
    m.rows = rows;
    return m;
}

/* The matrix of one expert. */
static pk_matrix nth_of(const pk_matrix *all, int64_t index)
{
    pk_matrix one = *all;
    const int64_t blocks = index * all->rows / PK_BLOCK, scales = blocks * (all->columns / all->group) * PK_BLOCK;
    one.weights = (const uint32_t *)all->weights + blocks * (all->columns * all->bits / 32) * PK_BLOCK;
    one.scales = (const float *)all->scales + scales;
    one.biases = (const float *)all->biases + scales;
    one.addend = all->addend + index * all->rows;
    return one;
}

/* Matrices of the model that is checked, by where their weights lie; each is read once. */
enum { MOST_KNOWN = 64 };
static struct {
    const void *weights;
    plain numbers;
} known[MOST_KNOWN];
static int known_count = 0;

static const plain *numbers_of(const pk_matrix *m)
{
    for (int index = 0; index < known_count; index++)
        if (known[index].weights == m->weights)
            return &known[index].numbers;
    known[known_count].weights = m->weights;
    known[known_count].numbers = plain_of(m);
    return &known[known_count++].numbers;
}

static void forget(void)
{
    while (known_count > 0)
        release_plain(&known[--known_count].numbers);
}

static void project(const pk_matrix *m, const double *x, double *out) { multiply(numbers_of(m), x, out); }

/* down(activation(gate x) * (up x)) */
static void network(const pk_matrix *gate, const pk_matrix *up, const pk_matrix *down, int kind, const double *x,
                    double *out)
{
    double *inner = malloc((size_t)gate->rows * 8), *ups = malloc((size_t)gate->rows * 8);
    project(gate, x, inner);
    project(up, x, ups);
    for (int64_t row = 0; row < gate->rows; row++)
        inner[row] = gated(kind, inner[row], ups[row]);
    project(down, inner, out);
    free(inner);
    free(ups);
}

static void mix(const pk_experts *experts, int kind, const double *x, double *out)
{
    const int64_t hidden = experts->router.columns;
    double *scores = malloc((size_t)experts->count * 8), *given = malloc((size_t)hidden * 8), total = 0.0;
    int *taken = calloc((size_t)experts->count, sizeof *taken);
    project(&experts->router, x, scores);
    memset(out, 0, (size_t)hidden * 8);
    for (int place = 0; place < experts->chosen; place++) {
        int best = -1;
        for (int expert = 0; expert < experts->count; expert++)
            if (!taken[expert] && (best < 0 || scores[expert] > scores[best]))
                best = expert;
        taken[best] = 1;
    }
    for (int expert = 0; expert < experts->count; expert++)
        total += taken[expert] || !experts->normalized ? exp(scores[expert]) : 0.0;
    for (int expert = 0; expert < experts->count; expert++) {
        if (!taken[expert])
            continue;
        const pk_matrix gate = nth_of(&experts->gate, expert), up = nth_of(&experts->up, expert);
        const pk_matrix down = nth_of(&experts->down, expert);
        network(&gate, &up, &down, kind, x, given);
        for (int64_t index = 0; index < hidden; index++)
            out[index] += exp(scores[expert]) / total * given[index];
    }
    free(scores);
    free(given);
    free(taken);
}

/* A decoder: every part that a layer can have */

enum { HIDDEN = 96, INNER = 160, HEADS = 6, KV_HEADS = 2, DIM = 32, LAYERS = 2, WORDS = 50, EXPERTS = 3, WINDOW = 7, RANK = 3 };

typedef struct model {
    pk_layer layers[LAYERS];
    pk_experts experts;
    pk_rope ropes[2];
    pk_shape shape;
    pk_addition added; /* by adapter 1 to the queries of layer 1 */
    float frequencies[DIM / 2], *norms, *sinks;
} model;

static model *make_model(void)
{
    model *made = calloc(1, sizeof *made);
    made->norms = filled(HIDDEN, PK_F32);
    made->sinks = filled(HEADS, PK_F32);
    for (int index = 0; index < HIDDEN; index++)
        made->norms[index] += 1.0f;
    for (int pair = 0; pair < DIM / 2; pair++)
        made->frequencies[pair] = powf(10000.0f, -(float)pair / (DIM / 2));
    made->ropes[0] = (pk_rope){made->frequencies, DIM, 0, 1.0f, 1.0f};
    made->ropes[1] = (pk_rope){made->frequencies, DIM / 2, 1, 0.5f, 1.1f};
    made->experts = (pk_experts){.router = matrix_of(EXPERTS, HIDDEN, 8, 32, PK_F32),
                                 .gate = stack_of(EXPERTS, INNER, HIDDEN, 4),
                                 .up = stack_of(EXPERTS, INNER, HIDDEN, 4),
                                 .down = stack_of(EXPERTS, HIDDEN, INNER, 4),
                                 .count = EXPERTS,
                                 .chosen = 2,
                                 .normalized = 1};
    for (int layer = 0; layer < LAYERS; layer++)
        made->layers[layer] = (pk_layer){.query = matrix_of(HEADS * DIM, HIDDEN, 4, 32, PK_F16),
                                         .key = matrix_of(KV_HEADS * DIM, HIDDEN, 8, 32, PK_BF16),
                                         .value = matrix_of(KV_HEADS * DIM, HIDDEN, 4, 32, PK_F32),
                                         .output = matrix_of(HIDDEN, HEADS * DIM, 16, 0, PK_BF16),
                                         .gate = matrix_of(INNER, HIDDEN, 3, 32, PK_F32),
                                         .up = matrix_of(INNER, HIDDEN, 5, 32, PK_F32),
                                         .down = matrix_of(HIDDEN, INNER, 6, 32, PK_F32),
                                         .input_norm = made->norms,
                                         .mlp_norm = made->norms,
                                         .query_norm = made->norms,
                                         .key_norm = layer ? made->norms : NULL,
                                         .sinks = layer ? made->sinks : NULL,
                                         .attention_out_norm = layer ? made->norms : NULL,
                                         .experts = layer ? NULL : &made->experts,
                                         .rope = layer,
                                         .window = layer ? WINDOW : 0};
    made->added = (pk_addition){matrix_of(RANK, HIDDEN, 32, 0, PK_F32), matrix_of(HEADS * DIM, RANK, 32, 0, PK_F32)};
    made->shape = (pk_shape){.embedding = matrix_of(WORDS, HIDDEN, 4, 32, PK_F32),
                             .final_norm = made->norms,
                             .layers = made->layers,
                             .ropes = made->ropes,
                             .layer_count = LAYERS,
                             .rope_count = 2,
                             .hidden = HIDDEN,
                             .heads = HEADS,
                             .kv_heads = KV_HEADS,
                             .head_dim = DIM,
                             .norm_eps = 1e-5f,
                             .attention_scale = 0.2f,
                             .attention_softcap = 30.0f,
                             .embedding_scale = 1.5f,
                             .residual_scale = 0.8f};
    return made;
}

static void release_model(model *made)
{
    for (int layer = 0; layer < LAYERS; layer++) {
        pk_layer *l = &made->layers[layer];
        pk_matrix *all[] = {&l->query, &l->key, &l->value, &l->output, &l->gate, &l->up, &l->down};
        for (int index = 0; index < 7; index++)
            release(all[index]);
    }
    pk_matrix *rest[] = {&made->experts.router, &made->experts.gate, &made->experts.up,    &made->experts.down,
                         &made->added.down,     &made->added.up,     &made->shape.embedding};
    for (int index = 0; index < 7; index++)
        release(rest[index]);
    free(made->norms);
    free(made->sinks);
    free(made);
}

static void add(const pk_shape *shape, const double *given, double *state)
{
    for (int64_t index = 0; index < shape->hidden; index++)
        state[index] += given[index] * (double)shape->residual_scale;
}

static void norm_heads(const model *m, const pk_layer *layer, const float *scale, int64_t heads, int64_t position,
                       double *x)
{
    for (int64_t head = 0; head < heads; head++, x += DIM) {
        if (scale != NULL)
            normed(x, scale, NULL, 0, (double)m->shape.norm_eps, DIM, x);
        rotate(&m->ropes[layer->rope], position, x);
    }
}

/* The states [count, HIDDEN] of one whole sequence, through one layer; `joined` [count, 2 HIDDEN], or NULL, is what its
 * queries, keys and values are made of, in place of the normed states. */
static void run_layer(const model *m, const pk_layer *layer, int adapts, int64_t count, const double *joined,
                      double *states)
{
    const double eps = (double)m->shape.norm_eps;
    double x[HIDDEN], out[HIDDEN], low[RANK], more[HEADS * DIM], attended[HEADS * DIM];
    double *queries = malloc((size_t)(count * HEADS * DIM) * 8);
    double *keys = malloc((size_t)(KV_HEADS * count * DIM) * 8), *values = malloc((size_t)(KV_HEADS * count * DIM) * 8);
    double key[KV_HEADS * DIM], value[KV_HEADS * DIM];
    for (int64_t token = 0; token < count; token++) {
        double *query = queries + token * HEADS * DIM;
        normed(states + token * HIDDEN, layer->input_norm, NULL, 0, eps, HIDDEN, x);
        const double *input = joined == NULL ? x : joined + token * 2 * HIDDEN;
        project(&layer->query, input, query);
        project(&layer->key, input, key);
        project(&layer->value, input, value);
        if (adapts && layer == &m->layers[1]) {
            project(&m->added.down, x, low);
            project(&m->added.up, low, more);
            for (int64_t index = 0; index < HEADS * DIM; index++)
                query[index] += more[index];
        }
        norm_heads(m, layer, layer->query_norm, HEADS, token, query);
        norm_heads(m, layer, layer->key_norm, KV_HEADS, token, key);
        for (int64_t head = 0; head < KV_HEADS; head++) {
            memcpy(keys + (head * count + token) * DIM, key + head * DIM, DIM * 8);
            memcpy(values + (head * count + token) * DIM, value + head * DIM, DIM * 8);
        }
    }
    for (int64_t token = 0; token < count; token++) {
        double *state = states + token * HIDDEN;
        const int64_t to = token + 1, from = layer->window > 0 && to > layer->window ? to - layer->window : 0;
        for (int64_t head = 0; head < HEADS; head++) {
            const int64_t at = head / (HEADS / KV_HEADS) * count * DIM;
            attend(queries + (token * HEADS + head) * DIM, keys + at, values + at, from, to, DIM,
                   (double)m->shape.attention_scale, (double)m->shape.attention_softcap,
                   layer->sinks == NULL ? NULL : layer->sinks + head, attended + head * DIM);
        }
        project(&layer->output, attended, out);
        if (layer->attention_out_norm != NULL)
            normed(out, layer->attention_out_norm, NULL, 0, eps, HIDDEN, out);
        add(&m->shape, out, state);
        normed(state, layer->mlp_norm, NULL, 0, eps, HIDDEN, x);
        if (layer->experts != NULL)
            mix(layer->experts, m->shape.activation, x, out);
        else
            network(&layer->gate, &layer->up, &layer->down, m->shape.activation, x, out);
        add(&m->shape, out, state);
    }
    free(queries);
    free(keys);
    free(values);
}

static int32_t token_at(int64_t sequence, int64_t position) { return (int32_t)((sequence * 13 + position * 7) % WORDS); }

/* Normed states of a whole sequence. */
static double *states_of(const model *m, int64_t sequence, int64_t count)
{
    double *states = malloc((size_t)(count * HIDDEN) * 8);
    for (int64_t token = 0; token < count; token++)
        for (int64_t index = 0; index < HIDDEN; index++)
            states[token * HIDDEN + index] =
                weight(&m->shape.embedding, token_at(sequence, token), index) * (double)m->shape.embedding_scale;
    for (int layer = 0; layer < LAYERS; layer++)
        run_layer(m, &m->layers[layer], sequence % 2 == 1, count, NULL, states);
    for (int64_t token = 0; token < count; token++)
        normed(states + token * HIDDEN, m->shape.final_norm, NULL, 0, (double)m->shape.norm_eps, HIDDEN,
               states + token * HIDDEN);
    return states;
}

/* Sequences of different lengths, each of whose tokens come in `steps` parts. */
static void check_decoder(const model *m, int64_t sequences, int64_t count, int steps)
{
    const char *name;
    double **expected = malloc((size_t)sequences * sizeof *expected);
    for (int64_t sequence = 0; sequence < sequences; sequence++)
        expected[sequence] = states_of(m, sequence, count * steps);
    for (int set = 0; (name = pk_instruction_set(set)) != NULL; set++) {
        pk_context *context = pk_open(THREADS, name);
        pk_decoder *decoder = pk_decoder_open(context, &m->shape);
        if (decoder == NULL) {
            must("a decoder", name, PK_REFUSED);
            pk_close(context);
            continue;
        }
        must("an adapter", name, pk_decoder_adapt(decoder, 1, PK_QUERY, &m->added, 1));
        int64_t *starts = calloc((size_t)sequences, 8), *counts = malloc((size_t)sequences * 8);
        int32_t *adapters = malloc((size_t)sequences * 4), *tokens = malloc((size_t)(sequences * count) * 4);
        pk_kv *kv = malloc((size_t)(LAYERS * sequences) * sizeof *kv);
        for (int64_t index = 0; index < LAYERS * sequences; index++) {
            const int64_t ring = WINDOW + count - 1, all = count * steps;
            const int64_t capacity = index / sequences == 1 && ring < all ? ring : all;
            kv[index] = (pk_kv){.keys = malloc((size_t)(KV_HEADS * capacity * DIM) * 4),
                                .values = malloc((size_t)(KV_HEADS * capacity * DIM) * 4),
                                .key_head_stride = capacity * DIM,
                                .value_head_stride = capacity * DIM,
                                .capacity = capacity,
                                .shift = capacity / 2};
        }
        for (int64_t sequence = 0; sequence < sequences; sequence++)
            adapters[sequence] = (int32_t)(sequence % 2);
        const pk_step step = {starts, counts, adapters, kv, sequences};
        float *hidden = malloc((size_t)(sequences * count * HIDDEN) * 4);
        for (int turn = 0; turn < steps; turn++) {
            int64_t all = 0;
            for (int64_t sequence = 0; sequence < sequences; sequence++) {
                counts[sequence] = count > 1 ? count - (sequence + turn) % 2 : 1;
                for (int64_t index = 0; index < counts[sequence]; index++)
                    tokens[all++] = token_at(sequence, starts[sequence] + index);
            }
            must("a decoder", name, pk_decoder_run(decoder, &step, tokens, hidden));
            const float *found = hidden;
            for (int64_t sequence = 0; sequence < sequences; sequence++) {
                near_to("a decoder", name, found, expected[sequence] + starts[sequence] * HIDDEN, NULL,
                        counts[sequence] * HIDDEN, 1e-4);
                found += counts[sequence] * HIDDEN;
                starts[sequence] += counts[sequence];
            }
        }
        for (int64_t index = 0; index < LAYERS * sequences; index++) {
            free(kv[index].keys);
            free(kv[index].values);
        }
        void *memory[] = {starts, counts, adapters, tokens, kv, hidden};
        for (size_t index = 0; index < sizeof memory / sizeof *memory; index++)
            free(memory[index]);
        pk_decoder_close(decoder);
        pk_close(context);
    }
    for (int64_t sequence = 0; sequence < sequences; sequence++)
        free(expected[sequence]);
    free(expected);
}

static void check_products(void)
{
    const int bits[] = {2, 3, 4, 5, 6, 8};
    /* So that every width of panels is full, filled in part, and more than one. */
    const int64_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17, 24, 36, 40, 70};
    enum { COUNTS = sizeof tokens / sizeof *tokens };
    for (int b = 0; b < 6; b++)
        for (int size = 0; size < 3; size++)
            for (int t = 0; t < COUNTS; t++)
                check_product(matrix_of(37 + 16 * b, 128 * (1 + t % 3), bits[b], 32 << size, (t + size) % 3), tokens[t]);
    for (int t = 0; t < COUNTS; t++) {
        for (int type = PK_F32; type <= PK_BF16; type++)
            check_product(matrix_of(21, 67, type == PK_F32 ? 32 : 16, 0, type), tokens[t]);
        check_product(float4_of(37, 32 * (1 + 20 * (t % 2)), PK_MXFP4), tokens[t]);
        check_product(float4_of(37, 16 * (1 + 50 * (t % 2)), PK_NVFP4), tokens[t]);
        for (int b = 0; b < 6; b++)
            for (int size = 0; size < 3; size++)
                check_int8(matrix_of(37, 128 * (1 + t % 2), bits[b], 32 << size, (t + size) % 3), tokens[t]);
        check_int8(float4_of(37, 96, PK_MXFP4), tokens[t]);
        check_int8(float4_of(37, 80, PK_NVFP4), tokens[t]);
    }
    check_product(matrix_of(33, 1152, 4, 64, PK_F32), 50);
    for (int b = 0; b < 6; b++) /* parts of the rows that are not whole pairs of blocks */
        for (int64_t count = 5; count <= 13; count += 4) {
            check_product(matrix_of(531, 256, bits[b], 128, PK_F16), count);
            check_int8(matrix_of(531, 256, bits[b], 128, PK_BF16), count);
        }
}

static void check_instruction_set(pk_context *context)
{
    check_functions(context, 12);
    check_functions(context, 576);
    check_functions(context, 77);
    const attention all[] = {
        {.heads = 4, .kv_heads = 4, .dim = 12, .start = 5, .count = 1, .capacity = 9},
        {.heads = 9, .kv_heads = 3, .dim = 64, .start = 200, .count = 1, .capacity = 256, .shift = 3},
        {.heads = 9, .kv_heads = 3, .dim = 64, .start = 70, .count = 50, .capacity = 120},
        {.heads = 4, .kv_heads = 1, .dim = 80, .start = 0, .count = 33, .capacity = 40, .softcap = 5.0f},
        {.heads = 8, .kv_heads = 2, .dim = 64, .start = 300, .count = 7, .capacity = 90, .shift = 11, .window = 80, .sinks = 1},
        {.heads = 8, .kv_heads = 2, .dim = 128, .start = 90, .count = 1, .capacity = 96, .bits = 4},
        {.heads = 8, .kv_heads = 2, .dim = 64, .start = 90, .count = 20, .capacity = 128, .bits = 8, .sinks = 1},
        {.heads = 1, .kv_heads = 1, .dim = 512, .start = 10, .count = 3, .capacity = 20},
    };
    for (size_t index = 0; index < sizeof all / sizeof *all; index++)
        check_attention(context, all[index]);
}

int main(void)
{
    const char *name;
    printf("instruction sets:");
    for (int set = 0; (name = pk_instruction_set(set)) != NULL; set++) {
        pk_context *context = pk_open(THREADS, name);
        printf(" %s", name);
        check_instruction_set(context);
        pk_close(context);
    }
    printf("; int8:");
    for (int set = 0; (name = pk_int8_set(set)) != NULL; set++)
        printf(" %s", name);
    check_products();
    model *made = make_model();
    check_decoder(made, 3, 1, 12);
    check_decoder(made, 3, 5, 4);
    check_decoder(made, 2, 40, 2);
    forget();
    release_model(made);
    printf("; %d comparisons, %d failures\n", checks, failures);
    return failures != 0;
}
