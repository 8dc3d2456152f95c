/* Runs every kernel of every instruction set that this machine has, on memory of exactly the size that it needs, for the
 * sanitizers to watch; what the instruction sets compute must agree. `python kernels/tests/sanitize.py` runs it. */
#include "made.h"

enum { THREADS = 4, MOST_SETS = 8 };

static int failures = 0;

static void compare(const char *what, const char *name, const float *a, const float *b, int64_t count)
{
    float worst = 0.0f, largest = 1e-30f;
    for (int64_t index = 0; index < count; index++) {
        worst = fmaxf(worst, fabsf(a[index] - b[index]));
        largest = fmaxf(largest, fabsf(a[index]));
    }
    if (!(worst <= 1e-5f * largest)) {
        fprintf(stderr, "%s differs with %s by %g of %g\n", what, name, (double)worst, (double)largest);
        failures++;
    }
}

static pk_context *contexts[MOST_SETS];
static int sets = 0;

static void try_products(pk_matrix m, int64_t tokens)
{
    const int64_t rows = m.rows, columns = m.columns;
    const char *name;
    float *x = filled(tokens * columns, PK_F32), *first = malloc((size_t)(tokens * rows) * 4);
    for (int set = 0; set < sets; set++) {
        float *out = malloc((size_t)(tokens * rows) * 4);
        if (pk_product(contexts[set], &m, x, columns, tokens, out, rows) != PK_OK) {
            fprintf(stderr, "refused: %s\n", pk_refusal());
            failures++;
        }
        if (set == 0)
            memcpy(first, out, (size_t)(tokens * rows) * 4);
        compare("a product", pk_used(contexts[set]), first, out, tokens * rows);
        free(out);
    }
    pk_context *whole = pk_open(THREADS, NULL);
    for (int set = 0; (name = pk_int8_set(set)) != NULL; set++) {
        float *out = malloc((size_t)(tokens * rows) * 4);
        if (pk_whole_numbers(whole, name) == PK_OK) {
            failures += pk_product(whole, &m, x, columns, tokens, out, rows) != PK_OK;
            compare("a product in whole numbers", name, first, out, tokens * rows);
        }
        free(out);
    }
    pk_close(whole);
    int32_t last = (int32_t)rows - 1;
    float *row = malloc((size_t)columns * 4);
    failures += pk_rows(&m, &last, 1, row) != PK_OK;
    free(row);
    free(x);
    free(first);
    release(&m);
}

/* In every way of multiplying int8, which must agree, and be near to what float32 gives. */
static void try_int8(pk_matrix m, int64_t tokens)
{
    const int64_t rows = m.rows, columns = m.columns;
    float *x = filled(tokens * columns, PK_F32), *first = malloc((size_t)(tokens * rows) * 4);
    float *out = malloc((size_t)(tokens * rows) * 4);
    const char *name;
    for (int set = 0; (name = pk_int8_set(set)) != NULL; set++) {
        pk_context *context = pk_open(THREADS, NULL);
        failures += pk_round_activations(context, name) != PK_OK;
        if (pk_product(context, &m, x, columns, tokens, out, rows) != PK_OK) {
            fprintf(stderr, "refused: %s\n", pk_refusal());
            failures++;
        }
        if (set == 0)
            memcpy(first, out, (size_t)(tokens * rows) * 4);
        compare("a product of int8", name, first, out, tokens * rows);
        pk_close(context);
    }
    free(out);
    free(x);
    free(first);
    release(&m);
}

/* Norms, activations and rotary positions by themselves. */
static void try_functions(int64_t count, int64_t size)
{
    const int64_t all = count * size;
    float *x = filled(all, PK_F32), *weight = filled(size, PK_F32), *first = malloc((size_t)all * 4);
    float *out = malloc((size_t)all * 4);
    for (int what = -2; what <= PK_SWIGLU_OAI; what++) {
        for (int set = 0; set < sets; set++) {
            if (what == -2)
                pk_rms_norm(contexts[set], x, NULL, 1e-5f, count, size, out);
            else if (what == -1)
                pk_layer_norm(contexts[set], x, weight, weight, 1e-5f, count, size, out);
            else
                pk_gated(contexts[set], what, x, x, all, out);
            if (set == 0)
                memcpy(first, out, (size_t)all * 4);
            compare("a function", pk_used(contexts[set]), first, out, all);
        }
    }
    float *frequencies = filled(size / 2, PK_F32);
    int64_t *positions = calloc((size_t)count, sizeof *positions);
    pk_rope rope = {frequencies, (int32_t)(size / 2 * 2), 0, 1.0f, 1.0f};
    failures += pk_rotate(&rope, x, count, 1, size, positions) != PK_OK;
    rope.dims = (int32_t)(size + 2);
    failures += pk_rotate(&rope, x, count, 1, size, positions) != PK_REFUSED;
    void *memory[] = {x, weight, first, out, frequencies, positions};
    for (size_t index = 0; index < sizeof memory / sizeof *memory; index++)
        free(memory[index]);
}

/* Attention by itself: a sequence with `count` new tokens behind `start`, and one whose only token is new. */
static void try_attention(int64_t start, int64_t count, int bits)
{
    enum { QUERIES = 6, KEYS = 2, WIDTH = 64, GROUP = 32 };
    const int64_t starts[] = {start, 0}, counts[] = {count, 1}, tokens = count + 1;
    pk_kv kv[2] = {{0}};
    for (int sequence = 0; sequence < 2; sequence++) {
        const int64_t capacity = starts[sequence] + counts[sequence], stride = capacity * (bits ? WIDTH * bits / 32 : WIDTH);
        kv[sequence] = (pk_kv){.keys = filled(KEYS * stride, PK_F32), .values = filled(KEYS * stride, PK_F32),
                               .key_head_stride = stride, .value_head_stride = stride, .capacity = capacity};
        if (bits) {
            float **scales[] = {&kv[sequence].key_scales, &kv[sequence].key_biases, &kv[sequence].value_scales,
                                &kv[sequence].value_biases};
            for (int index = 0; index < 4; index++)
                *scales[index] = filled(KEYS * capacity * WIDTH / GROUP, PK_F32);
            kv[sequence].bits = bits;
            kv[sequence].group = GROUP;
        }
    }
    const pk_step step = {starts, counts, NULL, kv, 2};
    const int64_t size = tokens * QUERIES * WIDTH;
    float *queries = filled(size, PK_F32), *sinks = filled(QUERIES, PK_F32), *first = malloc((size_t)size * 4);
    for (int set = 0; set < sets; set++) {
        float *out = malloc((size_t)size * 4);
        failures += pk_attention(contexts[set], &step, queries, QUERIES, KEYS, WIDTH, 0, sinks, 0.3f, 20.0f, out) != PK_OK;
        if (set == 0)
            memcpy(first, out, (size_t)size * 4);
        compare("attention", pk_used(contexts[set]), first, out, size);
        failures += pk_attention(contexts[set], &step, queries, QUERIES, 4, WIDTH, 0, sinks, 0.3f, 0.0f, out) != PK_REFUSED;
        free(out);
    }
    for (int sequence = 0; sequence < 2; sequence++) {
        void *held[] = {kv[sequence].keys, kv[sequence].values, kv[sequence].key_scales, kv[sequence].key_biases,
                        kv[sequence].value_scales, kv[sequence].value_biases};
        for (int index = 0; index < 6; index++)
            free(held[index]);
    }
    free(queries);
    free(sinks);
    free(first);
}

/* `count` matrices one behind the other: the sizes in bytes are those of all. */
static pk_matrix stack_of(int64_t count, int64_t rows, int64_t columns, int bits, int group)
{
    pk_matrix m = matrix_of(count * rows, columns, bits, group, PK_F32); /* rows is whole blocks */
    m.rows = rows;
    return m;
}

enum { HIDDEN = 96, INNER = 160, HEADS = 6, KV_HEADS = 2, DIM = 32, LAYERS = 2, WORDS = 50, EXPERTS = 3, WINDOW = 7, RANK = 3 };

/* A mixture by itself, whose experts are chosen by its router, by others, and wrongly. */
static void try_mixture(int64_t tokens)
{
    pk_experts experts = {.router = matrix_of(EXPERTS, HIDDEN, 8, 32, PK_F32),
                          .gate = stack_of(EXPERTS, INNER, HIDDEN, 4, 32),
                          .up = stack_of(EXPERTS, INNER, HIDDEN, 8, 32),
                          .down = stack_of(EXPERTS, HIDDEN, INNER, 4, 32),
                          .count = EXPERTS,
                          .chosen = 2};
    const int64_t size = tokens * HIDDEN;
    float *x = filled(size, PK_F32), *first = malloc((size_t)(2 * size) * 4);
    int32_t *chosen = malloc((size_t)(2 * tokens) * 4);
    for (int set = 0; set < sets; set++) {
        float *out = malloc((size_t)(2 * size) * 4);
        failures += pk_mixture(contexts[set], &experts, PK_SILU, x, tokens, NULL, out) != PK_OK;
        for (int64_t index = 0; index < 2 * tokens; index++)
            chosen[index] = (int32_t)(index % EXPERTS);
        failures += pk_mixture(contexts[set], &experts, PK_SILU, x, tokens, chosen, out) != PK_OK;
        if (set == 0)
            memcpy(first, out, (size_t)(2 * size) * 4);
        compare("a mixture", pk_used(contexts[set]), first, out, 2 * size);
        chosen[2 * tokens - 1] = EXPERTS;
        failures += pk_mixture(contexts[set], &experts, PK_SILU, x, tokens, chosen, out) != PK_REFUSED;
        free(out);
    }
    pk_matrix *all[] = {&experts.router, &experts.gate, &experts.up, &experts.down};
    for (int index = 0; index < 4; index++)
        release(all[index]);
    free(x);
    free(first);
    free(chosen);
}

/* Keys and values of a sequence: packed or not in the first layer, a ring in the second; each in memory of its own. */
static pk_kv kv_of(int layer, int64_t capacity, int64_t count, int packed)
{
    if (layer == 1)
        capacity = capacity < WINDOW + count - 1 ? capacity : WINDOW + count - 1;
    if (layer == 1 || !packed) {
        size_t size = (size_t)(KV_HEADS * capacity * DIM) * 4;
        return (pk_kv){.keys = malloc(size), .values = malloc(size), .key_head_stride = capacity * DIM,
                       .value_head_stride = capacity * DIM, .capacity = capacity, .shift = layer == 1 ? capacity / 2 : 0};
    }
    size_t words = (size_t)(KV_HEADS * capacity * DIM / 8) * 4, scales = (size_t)(KV_HEADS * capacity) * 4;
    return (pk_kv){.keys = malloc(words), .values = malloc(words), .key_scales = malloc(scales),
                   .key_biases = malloc(scales), .value_scales = malloc(scales), .value_biases = malloc(scales),
                   .key_head_stride = capacity * DIM / 8, .value_head_stride = capacity * DIM / 8,
                   .capacity = capacity, .bits = 4, .group = 32};
}

static void release_kv(pk_kv *kv)
{
    void *all[] = {kv->keys, kv->values, kv->key_scales, kv->key_biases, kv->value_scales, kv->value_biases};
    for (int index = 0; index < 6; index++)
        free(all[index]);
}

/* Sequences of different lengths and adapters, for some steps; then steps that are to be refused. */
static void run_decoder(pk_decoder *decoder, int64_t sequences, int64_t count, int steps, int packed, float *hidden)
{
    const int64_t capacity = count * steps;
    pk_kv *kv = malloc((size_t)(LAYERS * sequences) * sizeof *kv);
    int64_t *starts = calloc((size_t)sequences, 8), *counts = malloc((size_t)sequences * 8), all = 0;
    int32_t *adapters = malloc((size_t)sequences * 4), *tokens = malloc((size_t)(sequences * count) * 4);
    for (int64_t sequence = 0; sequence < sequences; sequence++) {
        counts[sequence] = count > 1 ? count - sequence % 2 : 1;
        adapters[sequence] = (int32_t)(sequence % 3);
        all += counts[sequence];
    }
    for (int64_t token = 0; token < all; token++)
        tokens[token] = (int32_t)(token * 7 % WORDS);
    for (int64_t index = 0; index < LAYERS * sequences; index++)
        kv[index] = kv_of((int)(index / sequences), capacity, count, packed);
    pk_step step = {starts, counts, adapters, kv, sequences};
    for (int turn = 0; turn < steps; turn++) {
        failures += pk_decoder_run(decoder, &step, tokens, hidden) != PK_OK;
        for (int64_t sequence = 0; sequence < sequences; sequence++)
            starts[sequence] += counts[sequence];
    }
    float *states = filled(all * HIDDEN, PK_F32), *unseen = malloc((size_t)(2 * all * HIDDEN) * 4);
    starts[0] = capacity;
    failures += pk_decoder_run(decoder, &step, tokens, unseen) != PK_REFUSED;
    memset(starts, 0, (size_t)sequences * sizeof *starts);
    failures += pk_decoder_layer(decoder, 0, &step, states) != PK_OK;
    failures += pk_decoder_layer(decoder, LAYERS, &step, states) != PK_REFUSED;
    tokens[0] = WORDS;
    failures += pk_decoder_run(decoder, &step, tokens, unseen) != PK_REFUSED;
    kv[0].group = 16;
    failures += pk_decoder_layer(decoder, 0, &step, states) != (packed ? PK_REFUSED : PK_OK);
    for (int64_t index = 0; index < LAYERS * sequences; index++)
        release_kv(&kv[index]);
    void *memory[] = {kv, starts, counts, adapters, tokens, states, unseen};
    for (size_t index = 0; index < sizeof memory / sizeof *memory; index++)
        free(memory[index]);
}

static void check_finite(const float *numbers, int64_t count)
{
    for (int64_t index = 0; index < count; index++)
        failures += !isfinite(numbers[index]);
}

/* Whose vectors are int8, also those of experts. A rounding that falls otherwise moves what follows, so nothing is compared. */
static void run_rounded(const pk_shape *shape, int64_t sequences, int64_t count, int steps)
{
    const char *name;
    for (int set = 0; (name = pk_int8_set(set)) != NULL; set++) {
        pk_context *context = pk_open(THREADS, NULL);
        failures += pk_round_activations(context, name) != PK_OK;
        pk_decoder *decoder = pk_decoder_open(context, shape);
        float *hidden = calloc((size_t)(sequences * count * HIDDEN), 4);
        run_decoder(decoder, sequences, count, steps, 1, hidden);
        check_finite(hidden, sequences * count * HIDDEN);
        free(hidden);
        pk_decoder_close(decoder);
        pk_close(context);
    }
}

static void try_decoder(int64_t sequences, int64_t count, int steps)
{
    pk_layer layers[LAYERS];
    float *norms = filled(HIDDEN, PK_F32), *sinks = filled(HEADS, PK_F32), frequencies[DIM / 2];
    for (int pair = 0; pair < DIM / 2; pair++)
        frequencies[pair] = powf(10000.0f, -(float)pair / (DIM / 2));
    pk_rope ropes[] = {{frequencies, DIM, 0, 1.0f, 1.0f}};
    pk_experts experts = {.router = matrix_of(EXPERTS, HIDDEN, 8, 32, PK_F32),
                          .gate = stack_of(EXPERTS, INNER, HIDDEN, 4, 32),
                          .up = stack_of(EXPERTS, INNER, HIDDEN, 4, 32),
                          .down = stack_of(EXPERTS, HIDDEN, INNER, 4, 32),
                          .count = EXPERTS,
                          .chosen = 2,
                          .normalized = 1};
    for (int layer = 0; layer < LAYERS; layer++)
        layers[layer] = (pk_layer){.query = matrix_of(HEADS * DIM, HIDDEN, 4, 32, PK_F16),
                                   .key = matrix_of(KV_HEADS * DIM, HIDDEN, 8, 32, PK_BF16),
                                   .value = matrix_of(KV_HEADS * DIM, HIDDEN, 4, 32, PK_F32),
                                   .output = matrix_of(HIDDEN, HEADS * DIM, 16, 0, PK_BF16),
                                   .gate = matrix_of(INNER, HIDDEN, 3, 32, PK_F32),
                                   .up = matrix_of(INNER, HIDDEN, 5, 32, PK_F32),
                                   .down = matrix_of(HIDDEN, INNER, 6, 32, PK_F32),
                                   .input_norm = norms,
                                   .mlp_norm = norms,
                                   .query_norm = norms,
                                   .key_norm = norms,
                                   .sinks = sinks,
                                   .attention_out_norm = layer ? norms : NULL,
                                   .experts = layer ? NULL : &experts,
                                   .window = layer ? WINDOW : 0};
    pk_shape shape = {.embedding = matrix_of(WORDS, HIDDEN, 2, 32, PK_F32),
                      .final_norm = norms,
                      .layers = layers,
                      .ropes = ropes,
                      .layer_count = LAYERS,
                      .rope_count = 1,
                      .hidden = HIDDEN,
                      .heads = HEADS,
                      .kv_heads = KV_HEADS,
                      .head_dim = DIM,
                      .norm_eps = 1e-5f,
                      .attention_scale = 0.2f,
                      .embedding_scale = 1.0f,
                      .residual_scale = 1.0f};
    pk_addition added[2] = {{matrix_of(RANK, HIDDEN, 32, 0, PK_F32), matrix_of(HEADS * DIM, RANK, 32, 0, PK_F32)}};
    pk_addition gates[1] = {{matrix_of(RANK, HIDDEN, 32, 0, PK_F32), matrix_of(INNER, RANK, 32, 0, PK_F32)}};
    const size_t bytes = (size_t)(sequences * count * HIDDEN) * 4;
    float *first = calloc(1, bytes);
    for (int set = 0; set < sets; set++) {
        pk_decoder *decoder = pk_decoder_open(contexts[set], &shape);
        float *hidden = calloc(1, bytes);
        if (decoder == NULL) {
            fprintf(stderr, "refused: %s\n", pk_refusal());
            failures++;
            continue;
        }
        failures += pk_decoder_adapt(decoder, 0, PK_QUERY, added, 2) != PK_OK;
        failures += pk_decoder_adapt(decoder, 1, PK_GATE, gates, 1) != PK_OK;
        failures += pk_decoder_adapt(decoder, 0, PK_GATE, gates, 1) != PK_REFUSED; /* which are experts' */
        failures += pk_decoder_adapt(decoder, 1, PK_UP, added, 1) != PK_REFUSED;
        run_decoder(decoder, sequences, count, steps, 1, hidden);
        check_finite(hidden, sequences * count * HIDDEN); /* packed keys are rounded too */
        run_decoder(decoder, sequences, count, steps, 0, hidden);
        if (set == 0)
            memcpy(first, hidden, bytes);
        compare("a decoder", pk_used(contexts[set]), first, hidden, sequences * count * HIDDEN);
        free(hidden);
        pk_decoder_close(decoder);
    }
    const int32_t captured[] = {0, LAYERS};
    pk_decoder *capturing = pk_decoder_open(contexts[0], &shape);
    float *states = calloc(2, bytes);
    failures += pk_decoder_capture(capturing, captured, 2) != PK_REFUSED;
    failures += pk_decoder_capture(capturing, captured, 1) != PK_OK;
    run_decoder(capturing, sequences, count, steps, 1, states);
    pk_decoder_close(capturing);
    free(states);
    run_rounded(&shape, sequences, count, steps);
    for (int layer = 0; layer < LAYERS; layer++) {
        pk_matrix *all[] = {&layers[layer].query, &layers[layer].key, &layers[layer].value, &layers[layer].output,
                            &layers[layer].gate,  &layers[layer].up,  &layers[layer].down};
        for (int index = 0; index < 7; index++)
            release(all[index]);
    }
    pk_matrix *rest[] = {&experts.router, &experts.gate, &experts.up,    &experts.down, &shape.embedding,
                         &added[0].down,  &added[0].up,  &gates[0].down, &gates[0].up};
    for (int index = 0; index < 9; index++)
        release(rest[index]);
    free(norms);
    free(sinks);
    free(first);
}

int main(void)
{
    const char *name;
    while ((name = pk_instruction_set(sets)) != NULL) {
        contexts[sets] = pk_open(THREADS, name);
        sets++;
    }
    const int bits[] = {2, 3, 4, 5, 6, 8};
    const int64_t tokens[] = {1, 2, 3, 5, 7, 11, 16, 17, 40};
    enum { COUNTS = sizeof tokens / sizeof *tokens };
    for (int b = 0; b < 6; b++)
        for (int t = 0; t < COUNTS; t++)
            for (int type = PK_F32; type <= PK_BF16; type++)
                try_products(matrix_of(37 + 16 * b, 128 * (1 + t % 3), bits[b], 32 << (t % 3), type), tokens[t]);
    for (int t = 0; t < COUNTS; t++)
        for (int type = PK_F32; type <= PK_BF16; type++)
            try_products(matrix_of(21, 67, type == PK_F32 ? 32 : 16, 0, type), tokens[t]);
    for (int t = 0; t < COUNTS; t++) {
        try_products(float4_of(37, 32 * (1 + 20 * (t % 2)), PK_MXFP4), tokens[t]);
        try_products(float4_of(37, 16 * (1 + 50 * (t % 2)), PK_NVFP4), tokens[t]);
    }
    try_products(matrix_of(33, 1152, 4, 64, PK_F32), 50);
    for (int t = 0; t < COUNTS; t++) {
        for (int b = 0; b < 6; b++)
            try_int8(matrix_of(37, 128 * (1 + t % 2), bits[b], 32 << (t % 3), t % 3), tokens[t]);
        try_int8(float4_of(37, 96, PK_MXFP4), tokens[t]);
        try_int8(float4_of(37, 80, PK_NVFP4), tokens[t]);
    }
    try_functions(1, 64);
    try_functions(9, 67);
    for (int width = 0; width < 3; width++) {
        try_attention(0, 5, width * 4);
        try_attention(300, 1, width * 4);
    }
    try_mixture(1);
    try_mixture(40);
    try_decoder(3, 1, 12);
    try_decoder(3, 5, 4);
    try_decoder(2, 40, 2);
    for (int set = 0; set < sets; set++)
        pk_close(contexts[set]);
    printf("%d instruction sets, %d failures\n", sets, failures);
    return failures != 0;
}
