/* The kernels, for registers of LANES numbers. A file of an instruction set defines LANES, TABLES (a register of 16
 * numbers can be looked up in), WIDEST, WIDE and MANY, includes this, and puts `functions` into its `pk_isa`. */
#include "isa.h"
#include "tile.h"
#include "vector.h"

#include <math.h>

enum { REGISTERS = 2, ROWS = REGISTERS * LANES }; /* of a tile of unpacked rows */

/* Packed words */

#if TABLES
/* By the low four bits of an index: saves masking what a shift leaves above 2, 3 or 4 bits. */
INLINE F table_of(int bits)
{
    F table;
    for (int index = 0; index < LANES; index++)
        table[index] = (float)(index & ((1 << bits) - 1));
    return table;
}
#else
INLINE F table_of(int bits)
{
    (void)bits;
    return (F){0};
}
#endif

/* What fp4's three bits below the sign stand for, twice, so that a table of 16 has the negative ones behind them. */
INLINE F fp4_table(void)
{
    const float sizes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    F table;
    for (int index = 0; index < LANES; index++)
        table[index] = index < 8 ? sizes[index % 8] : -sizes[index % 8];
    return table;
}

/* Number `index` of the eight of fp4 in a word. */
INLINE F fp4(U word, int index, F table)
{
    const U found = word >> (4 * index);
#if LANES == 16
    return _mm512_permutexvar_ps((__m512i)found, table);
#elif LANES == 8
    const U sign = (word << (28 - 4 * index)) & 0x80000000;
    return (F)((U)_mm256_permutevar8x32_ps(table, (__m256i)found) ^ sign);
#elif defined(__aarch64__)
    /* The highest bytes of the sixteen numbers, and the second ones; the others are zero, as is what lies beyond a table. */
    const uint8x16x2_t bytes = {{{0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                  0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0},
                                 {0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0,
                                  0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0}}};
    (void)table;
    return (F)vqtbl2q_u8(bytes, (uint8x16_t)((found & 15) * 0x01010000 | 0x0010ffff));
#else
    (void)table;
    const I size = (I)(found & 7), negative = -(I)((found >> 3) & 1);
    const I twice = size + ((size > 4) & (size - 4)) + ((size > 6) & 2);
    return __builtin_convertvector((twice ^ negative) - negative, F) * 0.5f;
#endif
}

/* Number `index` of the 32 that `bits` words hold. Bits lie from the lowest to the highest, across words. */
INLINE F field(const U *words, int bits, int index, F table)
{
    int bit = index * bits, word = bit / 32, shift = bit % 32;
    U found = words[word] >> shift;
    if (shift + bits > 32)
        found |= words[word + 1] << (32 - shift);
#if TABLES
    if (bits <= 4)
        return _mm512_permutexvar_ps((__m512i)found, table);
#endif
    (void)table;
    if (shift + bits != 32)
        found &= (1u << bits) - 1;
    return __builtin_convertvector((I)found, F);
}

/* Products straight from the words: LANES rows with one panel */

/* One vector: what a group's numbers have in common is multiplied once. */
INLINE void single_packed(const pk_tile *tile, int64_t row, const int bits)
{
    const pk_matrix *matrix = tile->matrix;
    const int64_t block = row / PK_BLOCK, lane = row % PK_BLOCK, groups = matrix->columns / matrix->group;
    const uint32_t *words = (const uint32_t *)matrix->weights + block * (matrix->columns * bits / 32) * PK_BLOCK + lane;
    int64_t scale = block * groups * PK_BLOCK + lane;
    const float *x = tile->panels;
    const F table = table_of(bits);
    F sum = beginning(tile, 0, row, 0);
    for (int64_t group = 0; group < groups; group++, scale += PK_BLOCK) {
        F parts[4] = {{0}};
        for (int piece = 0; piece < matrix->group / 32; piece++, x += 32, words += bits * PK_BLOCK) {
            U held[9];
            for (int word = 0; word < bits; word++)
                held[word] = load_words(words + word * PK_BLOCK);
            fetch_ahead(words, bits * PK_BLOCK * 4);
            held[bits] = held[0];
#pragma GCC unroll 32
            for (int index = 0; index < 32; index++)
                parts[index % 4] += field(held, bits, index, table) * x[index];
        }
        F dot = (parts[0] + parts[1]) + (parts[2] + parts[3]);
        sum += load_as(matrix->type, matrix->scales, scale) * dot;
        sum += load_as(matrix->type, matrix->biases, scale) * tile->sums[group];
    }
    finish(tile, 0, row, sum);
}

/* fp4, for one vector or a panel: a group is multiplied by its scale once, or each weight is, whichever is less work. */
INLINE void floats4(const pk_tile *tile, int64_t panel, int64_t row, const int format, const int width)
{
    enum { CHAINS = 4 }; /* of additions that do not wait for each other */
    const pk_matrix *matrix = tile->matrix;
    const int group = format == PK_MXFP4 ? 32 : 16;
    const int64_t block = row / PK_BLOCK, lane = row % PK_BLOCK, groups = matrix->columns / group;
    const uint32_t *words = (const uint32_t *)matrix->weights + block * (matrix->columns / 8) * PK_BLOCK + lane;
    int64_t at = block * groups * PK_BLOCK + lane;
    const float *x = tile->panels + panel * matrix->columns * width;
    const F table = fp4_table();
    F sums[WIDEST];
#pragma GCC unroll 16
    for (int token = 0; token < width; token++)
        sums[token] = beginning(tile, panel * width + token, row, 0);
    for (int64_t place = 0; place < groups; place++, at += PK_BLOCK) {
        const F scale = load_scale(format, matrix->scales, at);
        F parts[CHAINS] = {{0}};
        fetch_ahead(words, group / 8 * PK_BLOCK * 4);
        for (int word = 0; word < group / 8; word++, words += PK_BLOCK, x += 8 * width) {
            const U held = load_words(words);
#pragma GCC unroll 8
            for (int index = 0; index < 8; index++) {
                const F weight = fp4(held, index, table);
                if (width == 1) {
                    parts[index % CHAINS] += weight * x[index];
                    continue;
                }
                const F scaled = weight * scale;
#pragma GCC unroll 16
                for (int token = 0; token < width; token++)
                    sums[token] += scaled * x[index * width + token];
            }
        }
        if (width == 1)
            sums[0] += scale * ((parts[0] + parts[1]) + (parts[2] + parts[3]));
    }
#pragma GCC unroll 16
    for (int token = 0; token < width; token++)
        finish(tile, panel * width + token, row, sums[token]);
}

INLINE void packed(const pk_tile *tile, int64_t panel, int64_t row, const int bits, const int width)
{
    const pk_matrix *matrix = tile->matrix;
    const int64_t block = row / PK_BLOCK, lane = row % PK_BLOCK, groups = matrix->columns / matrix->group;
    const uint32_t *words = (const uint32_t *)matrix->weights + block * (matrix->columns * bits / 32) * PK_BLOCK + lane;
    int64_t scale_index = block * groups * PK_BLOCK + lane;
    const float *x = tile->panels + panel * matrix->columns * width;
    const F table = table_of(bits);
    F sums[WIDEST];
#pragma GCC unroll 16
    for (int token = 0; token < width; token++)
        sums[token] = beginning(tile, panel * width + token, row, 0);
    for (int64_t group = 0; group < groups; group++, scale_index += PK_BLOCK) {
        const F scale = load_as(matrix->type, matrix->scales, scale_index);
        const F bias = load_as(matrix->type, matrix->biases, scale_index);
        for (int piece = 0; piece < matrix->group / 32; piece++, x += 32 * width, words += bits * PK_BLOCK) {
            U held[9];
            for (int word = 0; word < bits; word++)
                held[word] = load_words(words + word * PK_BLOCK);
            fetch_ahead(words, bits * PK_BLOCK * 4);
            held[bits] = held[0];
#pragma GCC unroll 32
            for (int index = 0; index < 32; index++) {
                F weight = field(held, bits, index, table) * scale + bias;
#pragma GCC unroll 16
                for (int token = 0; token < width; token++)
                    sums[token] += weight * x[index * width + token];
            }
        }
    }
#pragma GCC unroll 16
    for (int token = 0; token < width; token++)
        finish(tile, panel * width + token, row, sums[token]);
}

INLINE void dense(const pk_tile *tile, int64_t panel, int64_t row, const int type, const int width)
{
    const pk_matrix *matrix = tile->matrix;
    const int64_t block = row / PK_BLOCK, lane = row % PK_BLOCK;
    const float *x = tile->panels + panel * matrix->columns * width;
    int64_t weight = block * matrix->columns * PK_BLOCK + lane;
    enum { CHAINS = 4 }; /* of additions that do not wait for each other */
    F sums[WIDEST][CHAINS];
#pragma GCC unroll 16
    for (int token = 0; token < width; token++) {
        sums[token][0] = beginning(tile, panel * width + token, row, 0);
        for (int chain = 1; chain < CHAINS; chain++)
            sums[token][chain] = (F){0};
    }
    const int chains = width <= 4 ? CHAINS : 1;
    int64_t column = 0;
    for (; column + chains <= matrix->columns; column += chains) {
#pragma GCC unroll 4
        for (int chain = 0; chain < chains; chain++) {
            F held = load_as(type, matrix->weights, weight + chain * PK_BLOCK);
#pragma GCC unroll 16
            for (int token = 0; token < width; token++)
                sums[token][chain] += held * x[chain * width + token];
        }
        weight += chains * PK_BLOCK;
        x += chains * width;
    }
    for (; column < matrix->columns; column++, weight += PK_BLOCK, x += width)
        for (int token = 0; token < width; token++)
            sums[token][0] += load_as(type, matrix->weights, weight) * x[token];
#pragma GCC unroll 16
    for (int token = 0; token < width; token++) {
        F sum = sums[token][0];
        if (chains > 1)
            sum = (sums[token][0] + sums[token][1]) + (sums[token][2] + sums[token][3]);
        finish(tile, panel * width + token, row, sum);
    }
}

/* One function for each format and width: the numbers of bits and vectors are constants in it. */
#define PACKED(BITS, WIDTH)                                                                                            \
    static void packed_##BITS##_##WIDTH(const pk_tile *tile, int64_t panel, int64_t row)                               \
    {                                                                                                                  \
        if (WIDTH == 1)                                                                                                \
            single_packed(tile, row, BITS);                                                                            \
        else                                                                                                           \
            packed(tile, panel, row, BITS, WIDTH);                                                                     \
    }
#define FLOATS4(FORMAT, WIDTH)                                                                                         \
    static void floats4_##FORMAT##_##WIDTH(const pk_tile *tile, int64_t panel, int64_t row)                            \
    {                                                                                                                  \
        floats4(tile, panel, row, FORMAT, WIDTH);                                                                      \
    }
#define DENSE(TYPE, WIDTH)                                                                                             \
    static void dense_##TYPE##_##WIDTH(const pk_tile *tile, int64_t panel, int64_t row)                                \
    {                                                                                                                  \
        dense(tile, panel, row, TYPE, WIDTH);                                                                          \
    }
#define FORMATS(WIDTH)                                                                                                 \
    PACKED(2, WIDTH)                                                                                                   \
    PACKED(3, WIDTH)                                                                                                   \
    PACKED(4, WIDTH)                                                                                                   \
    PACKED(5, WIDTH)                                                                                                   \
    PACKED(6, WIDTH)                                                                                                   \
    PACKED(8, WIDTH)                                                                                                   \
    DENSE(0, WIDTH)                                                                                                    \
    DENSE(1, WIDTH)                                                                                                    \
    DENSE(2, WIDTH)                                                                                                    \
    FLOATS4(PK_MXFP4, WIDTH)                                                                                           \
    FLOATS4(PK_NVFP4, WIDTH)
#define NAMES(WIDTH)                                                                                                   \
    {packed_2_##WIDTH, packed_3_##WIDTH, packed_4_##WIDTH, packed_5_##WIDTH, packed_6_##WIDTH,                         \
     packed_8_##WIDTH, dense_0_##WIDTH,  dense_1_##WIDTH,  dense_2_##WIDTH,  floats4_PK_MXFP4_##WIDTH,                 \
     floats4_PK_NVFP4_##WIDTH}

typedef void (*straight)(const pk_tile *tile, int64_t panel, int64_t row);

/* Few widths, as each takes a second to compile: two vectors in a panel of four take as long as four, and no longer than
 * a panel of two would, whose sums would wait for each other. */
FORMATS(1) FORMATS(4)
#if WIDEST >= 8
FORMATS(8)
#endif
#if WIDEST >= 16
FORMATS(16)
#endif
static const int widths[] = {1, 4, 8, 16};
static const straight straights[][11] = {
    NAMES(1),
    NAMES(4),
#if WIDEST >= 8
    NAMES(8),
#endif
#if WIDEST >= 16
    NAMES(16),
#endif
};

enum { WIDTHS = sizeof straights / sizeof *straights };

static int format_of(const pk_matrix *matrix)
{
    static const int of_bits[] = {[2] = 0, [3] = 1, [4] = 2, [5] = 3, [6] = 4, [8] = 5};
    switch (matrix->format) {
    case PK_AFFINE: return of_bits[matrix->bits];
    case PK_DENSE: return 6 + matrix->type;
    case PK_MXFP4: return 9;
    default: return 10;
    }
}

static int width_for(int64_t tokens)
{
    if (tokens >= MANY)
        return WIDE;
    int64_t panels = (tokens + WIDEST - 1) / WIDEST;
    int64_t needed = (tokens + panels - 1) / panels;
    for (int index = 0; index < WIDTHS; index++)
        if (widths[index] >= needed)
            return widths[index];
    return WIDEST;
}

static void multiply_straight(const pk_tile *tile, int64_t first, int64_t last)
{
    int index = 0;
    while (widths[index] != tile->width)
        index++;
    straight kernel = straights[index][format_of(tile->matrix)];
    for (int64_t row = first; row < last; row += PK_BLOCK)
        for (int64_t panel = 0; panel * tile->width < tile->tokens; panel++)
            for (int lane = 0; lane < PK_BLOCK; lane += LANES)
                kernel(tile, panel, row + lane);
}

/* Products of many vectors: ROWS rows become numbers once, for all panels */

INLINE void unpack_packed(const pk_matrix *matrix, int64_t row, int64_t from, int64_t to, const int bits, float *out)
{
    const int64_t block = row / PK_BLOCK, lane = row % PK_BLOCK, groups = matrix->columns / matrix->group;
    const uint32_t *words = (const uint32_t *)matrix->weights + lane +
                            (block * (matrix->columns * bits / 32) + from * bits / 32) * PK_BLOCK;
    const F table = table_of(bits);
    for (int64_t column = from; column < to; column += 32, words += bits * PK_BLOCK) {
        int64_t at = (block * groups + column / matrix->group) * PK_BLOCK + lane;
        const F scale = load_as(matrix->type, matrix->scales, at), bias = load_as(matrix->type, matrix->biases, at);
        U held[9];
        for (int word = 0; word < bits; word++)
            held[word] = load_words(words + word * PK_BLOCK);
        held[bits] = held[0];
#pragma GCC unroll 32
        for (int index = 0; index < 32; index++, out += ROWS)
            store(out, field(held, bits, index, table) * scale + bias);
    }
}

INLINE void unpack_floats4(const pk_matrix *matrix, int64_t row, int64_t from, int64_t to, const int format, float *out)
{
    const int group = format == PK_MXFP4 ? 32 : 16;
    const int64_t block = row / PK_BLOCK, lane = row % PK_BLOCK, groups = matrix->columns / group;
    const uint32_t *words =
        (const uint32_t *)matrix->weights + lane + (block * (matrix->columns / 8) + from / 8) * PK_BLOCK;
    const F table = fp4_table();
    for (int64_t column = from; column < to; column += 8, words += PK_BLOCK) {
        const F scale = load_scale(format, matrix->scales, (block * groups + column / group) * PK_BLOCK + lane);
        const U held = load_words(words);
#pragma GCC unroll 8
        for (int index = 0; index < 8; index++, out += ROWS)
            store(out, fp4(held, index, table) * scale);
    }
}

INLINE void unpack_dense(const pk_matrix *matrix, int64_t row, int64_t from, int64_t to, const int type, float *out)
{
    int64_t at = (row / PK_BLOCK * matrix->columns + from) * PK_BLOCK + row % PK_BLOCK;
    for (int64_t column = from; column < to; column++, at += PK_BLOCK, out += ROWS)
        store(out, load_as(type, matrix->weights, at));
}

static void unpack(const pk_matrix *matrix, int64_t row, int64_t from, int64_t to, float *out)
{
    switch (format_of(matrix)) {
    case 0: unpack_packed(matrix, row, from, to, 2, out); break;
    case 1: unpack_packed(matrix, row, from, to, 3, out); break;
    case 2: unpack_packed(matrix, row, from, to, 4, out); break;
    case 3: unpack_packed(matrix, row, from, to, 5, out); break;
    case 4: unpack_packed(matrix, row, from, to, 6, out); break;
    case 5: unpack_packed(matrix, row, from, to, 8, out); break;
    case 6: unpack_dense(matrix, row, from, to, PK_F32, out); break;
    case 7: unpack_dense(matrix, row, from, to, PK_F16, out); break;
    case 8: unpack_dense(matrix, row, from, to, PK_BF16, out); break;
    case 9: unpack_floats4(matrix, row, from, to, PK_MXFP4, out); break;
    default: unpack_floats4(matrix, row, from, to, PK_NVFP4, out);
    }
}

/* `weights` [depth, ROWS] with `x` [depth, WIDE]. */
static void multiply_unpacked(const pk_tile *tile, int64_t panel, int64_t row, const float *weights, const float *x,
                              int64_t depth, int goes_on)
{
    F sums[WIDE][REGISTERS];
#pragma GCC unroll 16
    for (int token = 0; token < WIDE; token++)
        for (int part = 0; part < REGISTERS; part++)
            sums[token][part] = beginning(tile, panel * WIDE + token, row + part * LANES, goes_on);
    for (int64_t column = 0; column < depth; column++, weights += ROWS, x += WIDE) {
        F held[REGISTERS];
        for (int part = 0; part < REGISTERS; part++)
            held[part] = load(weights + part * LANES);
#pragma GCC unroll 16
        for (int token = 0; token < WIDE; token++)
            for (int part = 0; part < REGISTERS; part++)
                sums[token][part] += held[part] * x[token];
    }
#pragma GCC unroll 16
    for (int token = 0; token < WIDE; token++)
        for (int part = 0; part < REGISTERS; part++)
            finish(tile, panel * WIDE + token, row + part * LANES, sums[token][part]);
}

/* Vectors whose part of PK_DEPTH columns stays near while all rows are multiplied with it: 512 KiB. */
enum { NEAR = 256 / WIDE };

static void multiply_near(const pk_tile *tile, int64_t first, int64_t last, int64_t panel_first, int64_t from,
                          float *scratch)
{
    const pk_matrix *matrix = tile->matrix;
    const int64_t rows = (matrix->rows + PK_BLOCK - 1) / PK_BLOCK * PK_BLOCK;
    const int64_t to = from + PK_DEPTH < matrix->columns ? from + PK_DEPTH : matrix->columns;
    for (int64_t row = first; row < last; row += ROWS) {
        for (int part = 0; part < REGISTERS; part++)
            if (row + part * LANES < rows)
                unpack(matrix, row + part * LANES, from, to, scratch + part * LANES);
        for (int64_t panel = panel_first; panel < panel_first + NEAR && panel * WIDE < tile->tokens; panel++)
            multiply_unpacked(tile, panel, row, scratch, tile->panels + (panel * matrix->columns + from) * WIDE,
                              to - from, from > 0);
    }
}

static void multiply_many(const pk_tile *tile, int64_t first, int64_t last, float *scratch)
{
    for (int64_t panel = 0; panel * WIDE < tile->tokens; panel += NEAR)
        for (int64_t from = 0; from < tile->matrix->columns; from += PK_DEPTH)
            multiply_near(tile, first, last, panel, from, scratch);
}

static void multiply(const pk_tile *tile, int64_t first, int64_t last, float *scratch)
{
    if (tile->tokens >= MANY)
        multiply_many(tile, first, last, scratch);
    else
        multiply_straight(tile, first, last);
}

/* What products are made of */

static void pack(const float *x, int64_t stride, int64_t tokens, int64_t columns, int width, float *panel)
{
    for (int token = 0; token < width; token++)
        for (int64_t column = 0; column < columns; column++)
            panel[column * width + token] = token < tokens ? x[token * stride + column] : 0.0f;
}

static void sum(const float *x, int64_t columns, int group, float *sums)
{
    for (int64_t start = 0; start < columns; start += group) {
        F found = {0};
        for (int index = 0; index < group; index += LANES)
            found += load(x + start + index);
        *sums++ = sum_of(found);
    }
}

/* Norms and activations */

static void rms_norm(const float *x, const float *weight, float eps, int64_t size, float *out)
{
    F squares = {0};
    int64_t index = 0;
    for (; index + LANES <= size; index += LANES)
        squares += load(x + index) * load(x + index);
    float total = sum_of(squares);
    for (; index < size; index++)
        total += x[index] * x[index];
    const float factor = 1.0f / sqrtf(total / (float)size + eps);
    for (index = 0; index + LANES <= size; index += LANES)
        store(out + index, load(x + index) * factor * (weight == NULL ? splat(1.0f) : load(weight + index)));
    for (; index < size; index++)
        out[index] = x[index] * factor * (weight == NULL ? 1.0f : weight[index]);
}

static void layer_norm(const float *x, const float *weight, const float *bias, float eps, int64_t size, float *out)
{
    F sums = {0}, squares = {0};
    int64_t index = 0;
    for (; index + LANES <= size; index += LANES)
        sums += load(x + index);
    float total = sum_of(sums);
    for (; index < size; index++)
        total += x[index];
    const float mean = total / (float)size;
    for (index = 0; index + LANES <= size; index += LANES)
        squares += (load(x + index) - mean) * (load(x + index) - mean);
    total = sum_of(squares);
    for (; index < size; index++)
        total += (x[index] - mean) * (x[index] - mean);
    const float factor = 1.0f / sqrtf(total / (float)size + eps);
    for (index = 0; index + LANES <= size; index += LANES) {
        F normed = (load(x + index) - mean) * factor * (weight == NULL ? splat(1.0f) : load(weight + index));
        store(out + index, bias == NULL ? normed : normed + load(bias + index));
    }
    for (; index < size; index++) {
        float normed = (x[index] - mean) * factor * (weight == NULL ? 1.0f : weight[index]);
        out[index] = bias == NULL ? normed : normed + bias[index];
    }
}

/* The error function, within 2e-7: Abramowitz and Stegun, 7.1.26. */
INLINE F error_function(F x)
{
    const F size = larger(x, -x), t = 1.0f / (1.0f + 0.3275911f * size);
    F sum = t * 1.061405429f - 1.453152027f;
    sum = sum * t + 1.421413741f;
    sum = sum * t - 0.284496736f;
    sum = sum * t + 0.254829592f;
    const F found = 1.0f - sum * t * exponential(-size * size);
    return choose(x < 0.0f, -found, found);
}

/* x and gate clipped at 7, x sigmoid(1.702 x), of gpt_oss. */
enum { OAI_LIMIT = 7 };
static const float OAI_ALPHA = 1.702f;

INLINE F smaller(F a, F b) { return -larger(-a, -b); }

INLINE F activated(const int activation, F x)
{
    if (activation == PK_SILU)
        return x / (1.0f + exponential(-x));
    if (activation == PK_GELU)
        return 0.5f * x * (1.0f + error_function(x * 0.7071067811865476f));
    /* gelu(x) = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 */
    return 0.5f * x * (1.0f + hyperbolic_tangent(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

static float activated_one(int activation, float x)
{
    if (activation == PK_SILU)
        return x / (1.0f + expf(-x));
    if (activation == PK_GELU)
        return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

static float gated_one(int activation, float gate, float up)
{
    if (activation != PK_SWIGLU_OAI)
        return activated_one(activation, gate) * up;
    gate = fminf(gate, OAI_LIMIT);
    return (fminf(fmaxf(up, -OAI_LIMIT), OAI_LIMIT) + 1.0f) * (gate / (1.0f + expf(-OAI_ALPHA * gate)));
}

INLINE void gated_by(const int activation, const float *gate, const float *up, int64_t count, float *out)
{
    int64_t index = 0;
    for (; index + LANES <= count; index += LANES) {
        const F found = activated(activation, load(gate + index));
        store(out + index, up == NULL ? found : found * load(up + index));
    }
    for (; index < count; index++)
        out[index] = activated_one(activation, gate[index]) * (up == NULL ? 1.0f : up[index]);
}

static void gated_oai(const float *gate, const float *up, int64_t count, float *out)
{
    int64_t index = 0;
    for (; index + LANES <= count; index += LANES) {
        F g = smaller(load(gate + index), splat(OAI_LIMIT));
        F u = larger(smaller(load(up + index), splat(OAI_LIMIT)), splat(-OAI_LIMIT));
        store(out + index, (u + 1.0f) * (g / (1.0f + exponential(-OAI_ALPHA * g))));
    }
    for (; index < count; index++)
        out[index] = gated_one(PK_SWIGLU_OAI, gate[index], up[index]);
}

static void gated(int activation, const float *gate, const float *up, int64_t count, float *out)
{
    switch (activation) {
    case PK_SILU: gated_by(PK_SILU, gate, up, count, out); break;
    case PK_GELU_TANH: gated_by(PK_GELU_TANH, gate, up, count, out); break;
    case PK_SWIGLU_OAI: gated_oai(gate, up, count, out); break;
    default: gated_by(PK_GELU, gate, up, count, out);
    }
}

/* Attention: keys are looked at in pieces of PK_KEYS, and the sums of exponentials of a query are rescaled when a piece
 * brings a larger score ("online softmax"). */

typedef struct progress {
    float largest, total;
} progress;

/* Positions [from, to) that the query of a token sees. */
INLINE int64_t sees_from(const pk_attend *a, int64_t token)
{
    int64_t from = a->start + token - a->window + (a->seen == 0);
    return a->window > 0 && from > 0 ? from : 0;
}

INLINE int64_t sees_to(const pk_attend *a, int64_t token)
{
    const int64_t to = a->start + token + a->window + 1;
    if (a->seen == 0)
        return a->start + token + 1;
    return a->window > 0 && to < a->seen ? to : a->seen;
}

static float dot(const float *a, const float *b, int dim)
{
    F sum = {0};
    int index = 0;
    for (; index + LANES <= dim; index += LANES)
        sum += load(a + index) * load(b + index);
    float found = sum_of(sum);
    for (; index < dim; index++)
        found += a[index] * b[index];
    return found;
}

/* The products of one vector with LANES others [LANES, dim], in their order; dim is whole registers. */
INLINE F dots(const float *x, const float *others, int dim)
{
    F sums[LANES];
#pragma GCC unroll 16
    for (int lane = 0; lane < LANES; lane++)
        sums[lane] = (F){0};
    for (int index = 0; index < dim; index += LANES) {
        const F held = load(x + index);
#pragma GCC unroll 16
        for (int lane = 0; lane < LANES; lane++)
            sums[lane] += load(others + (int64_t)lane * dim + index) * held;
    }
    return sums_of(sums);
}

/* Scores become exponentials less the largest so far; gives by what earlier ones are to be multiplied. */
static float soften(float *scores, int count, const pk_attend *a, progress *state)
{
    F most = splat(state->largest);
    for (int index = count; index % LANES; index++)
        scores[index] = -INFINITY;
    for (int index = 0; index < count; index += LANES) {
        F score = load(scores + index) * a->scale;
        if (a->softcap > 0.0f) {
            F capped = a->softcap * hyperbolic_tangent(score / a->softcap);
            score = choose(score < -1e30f, score, capped);
        }
        store(scores + index, score);
        most = larger(most, score);
    }
    const float largest = largest_of(most);
    if (largest == -INFINITY) { /* nothing of this piece is seen, nor was anything before */
        memset(scores, 0, (size_t)count * sizeof *scores);
        return 1.0f;
    }
    F total = {0};
    for (int index = 0; index < count; index += LANES) {
        F power = exponential(load(scores + index) - largest);
        store(scores + index, power);
        total += power;
    }
    const float factor = state->largest == -INFINITY ? 0.0f : expf(state->largest - largest);
    state->total = state->total * factor + sum_of(total);
    state->largest = largest;
    return factor;
}

/* out = out * factor + scores [count] of values [count, dim] */
static void add_values(float *out, float factor, const float *scores, const float *values, int count, int dim)
{
    int index = 0;
    for (; index + 4 * LANES <= dim; index += 4 * LANES) {
        F sums[4];
        for (int part = 0; part < 4; part++)
            sums[part] = load(out + index + part * LANES) * factor;
        for (int key = 0; key < count; key++)
            for (int part = 0; part < 4; part++)
                sums[part] += load(values + (int64_t)key * dim + index + part * LANES) * scores[key];
        for (int part = 0; part < 4; part++)
            store(out + index + part * LANES, sums[part]);
    }
    for (; index + LANES <= dim; index += LANES) {
        F sum = load(out + index) * factor;
        for (int key = 0; key < count; key++)
            sum += load(values + (int64_t)key * dim + index) * scores[key];
        store(out + index, sum);
    }
    for (; index < dim; index++) {
        float sum = out[index] * factor;
        for (int key = 0; key < count; key++)
            sum += values[(int64_t)key * dim + index] * scores[key];
        out[index] = sum;
    }
}

/* Keys [count, dim] become [dim, PK_KEYS]. */
static void transpose(const float *keys, int count, int dim, float *out)
{
    const int whole = dim % TURNED == 0 ? count / TURNED * TURNED : 0;
    for (int key = 0; key < whole; key += TURNED)
        for (int index = 0; index < dim; index += TURNED)
            turn(keys + (int64_t)key * dim + index, dim, out + index * PK_KEYS + key, PK_KEYS);
    for (int key = whole; key < PK_KEYS; key++)
        for (int index = 0; index < dim; index++)
            out[index * PK_KEYS + key] = key < count ? keys[(int64_t)key * dim + index] : 0.0f;
}

/* Queries whose scores, and then whose sums of values, are added up side by side, so that keys and values are read once for
 * all of them, ACROSS registers of each at a time: as many sums as there are registers for, and enough of them that none
 * waits for itself. */
enum {
    TOGETHER = 4,
    HEADS = 4, /* that values are read once for */
    PARTS = PK_KEYS / LANES,
    ACROSS = LANES == 16 ? 4 : 2,
    ALONE = PARTS < 8 ? PARTS : 8 /* registers of a single query */
};

typedef struct query {
    const float *numbers;
    float *out;
    int first, last; /* keys that it sees */
    progress *state;
    float factor; /* by what earlier sums are to be multiplied */
} query;

/* Scores [count, PK_KEYS] of `count` queries for keys that lie side by side. */
INLINE void score_queries(const query *queries, const int count, const float *transposed, int dim, float *scores)
{
    const int across = count == 1 ? ALONE : ACROSS;
    for (int first = 0; first < PARTS; first += across) {
        const float *keys = transposed + first * LANES;
        F sums[TOGETHER][ALONE];
#pragma GCC unroll 4
        for (int place = 0; place < count; place++)
#pragma GCC unroll 8
            for (int part = 0; part < across; part++)
                sums[place][part] = (F){0};
        for (int index = 0; index < dim; index++, keys += PK_KEYS)
#pragma GCC unroll 8
            for (int part = 0; part < across; part++) {
                const F held = load(keys + part * LANES);
#pragma GCC unroll 4
                for (int place = 0; place < count; place++)
                    sums[place][part] += held * queries[place].numbers[index];
            }
#pragma GCC unroll 4
        for (int place = 0; place < count; place++)
#pragma GCC unroll 8
            for (int part = 0; part < across; part++)
                store(scores + place * PK_KEYS + (first + part) * LANES, sums[place][part]);
    }
}

/* As `add_values`, for several queries, whose scores are zero where they see nothing; dim is whole registers. */
INLINE void add_values_together(const query *queries, const int queried, const float *scores, const float *values, int count,
                                int dim)
{
    int index = 0;
    for (; index + ACROSS * LANES <= dim; index += ACROSS * LANES) {
        F sums[HEADS][ACROSS];
#pragma GCC unroll 4
        for (int place = 0; place < queried; place++)
#pragma GCC unroll 4
            for (int part = 0; part < ACROSS; part++)
                sums[place][part] = load(queries[place].out + index + part * LANES) * queries[place].factor;
        for (int key = 0; key < count; key++)
#pragma GCC unroll 4
            for (int part = 0; part < ACROSS; part++) {
                const F held = load(values + (int64_t)key * dim + index + part * LANES);
#pragma GCC unroll 4
                for (int place = 0; place < queried; place++)
                    sums[place][part] += held * scores[place * PK_KEYS + key];
            }
#pragma GCC unroll 4
        for (int place = 0; place < queried; place++)
#pragma GCC unroll 4
            for (int part = 0; part < ACROSS; part++)
                store(queries[place].out + index + part * LANES, sums[place][part]);
    }
    for (; index < dim; index += LANES)
        for (int place = 0; place < queried; place++) {
            F sum = load(queries[place].out + index) * queries[place].factor;
            for (int key = 0; key < count; key++)
                sum += load(values + (int64_t)key * dim + index) * scores[place * PK_KEYS + key];
            store(queries[place].out + index, sum);
        }
}

/* The 8 numbers of 4 bits of a word as bytes, the lowest first. */
INLINE uint64_t spread(uint32_t word)
{
    uint64_t wide = word;
    wide = (wide | wide << 16) & 0x0000ffff0000ffffu;
    wide = (wide | wide << 8) & 0x00ff00ff00ff00ffu;
    return (wide | wide << 4) & 0x0f0f0f0f0f0f0f0fu;
}

/* Packed keys or values [count, dim], from position `at` of one head on, as numbers. */
static void unpack_positions(const pk_kv *kv, const uint32_t *words, const float *scales, const float *biases,
                             int64_t at, int count, int dim, float *out)
{
    const int64_t a_position = dim * kv->bits / 32, groups = dim / kv->group;
    uint8_t bytes[PK_MOST_DIM];
    words += at * a_position;
    scales += at * groups;
    biases += at * groups;
    for (int key = 0; key < count; key++, words += a_position, out += dim) {
        if (kv->bits == 8)
            memcpy(bytes, words, (size_t)dim);
        else
            for (int word = 0; word < a_position; word++) {
                uint64_t eight = spread(words[word]);
                memcpy(bytes + 8 * word, &eight, sizeof eight);
            }
        for (int group = 0; group < groups; group++) {
            const F scale = splat(*scales++), bias = splat(*biases++);
            const int first = group * (int)kv->group;
            for (int index = first; index < first + kv->group; index += LANES) {
                B narrow;
                memcpy(&narrow, bytes + index, sizeof narrow);
                store(out + index, __builtin_convertvector(narrow, F) * scale + bias);
            }
        }
    }
}

/* Keys and values [count, dim] from a place on: in `memory` [2, PK_KEYS, dim] if they are packed. */
INLINE void find_positions(const pk_attend *a, int64_t position, int count, float *memory, const float **keys,
                           const float **values)
{
    const pk_kv *kv = a->kv;
    const int64_t at = (position + kv->shift) % kv->capacity;
    if (position < kv->shared) {
        *keys = kv->shared_keys + a->head * kv->shared_key_head_stride + position * a->dim;
        *values = kv->shared_values + a->head * kv->shared_value_head_stride + position * a->dim;
        return;
    }
    if (kv->bits == 0) {
        *keys = (const float *)kv->keys + a->head * kv->key_head_stride + at * a->dim;
        *values = (const float *)kv->values + a->head * kv->value_head_stride + at * a->dim;
        return;
    }
    const int64_t scales = a->head * kv->capacity * (a->dim / kv->group);
    float *unpacked = memory + PK_KEYS * a->dim;
    unpack_positions(kv, (const uint32_t *)kv->keys + a->head * kv->key_head_stride, kv->key_scales + scales,
                     kv->key_biases + scales, at, count, a->dim, memory);
    unpack_positions(kv, (const uint32_t *)kv->values + a->head * kv->value_head_stride, kv->value_scales + scales,
                     kv->value_biases + scales, at, count, a->dim, unpacked);
    *keys = memory;
    *values = unpacked;
}

/* Scores of one query, from the keys as they lie, become exponentials. */
static void weigh(const pk_attend *a, query *query, const float *keys, float *scores)
{
    int key = query->first;
    for (; key + LANES <= query->last && a->dim % LANES == 0; key += LANES)
        store(scores + key, dots(query->numbers, keys + (int64_t)key * a->dim, a->dim));
    for (; key < query->last; key++)
        scores[key] = dot(query->numbers, keys + (int64_t)key * a->dim, a->dim);
    for (key = 0; key < query->first; key++)
        scores[key] = -INFINITY;
    query->factor = soften(scores, query->last, a, query->state);
}

/* Heads of one token, `held` of them, which see the same keys. */
static void weigh_heads(const pk_attend *a, query *queries, int held, const float *keys, const float *values, float *scores)
{
    for (int place = 0; place < held; place++)
        weigh(a, &queries[place], keys, scores + place * PK_KEYS);
    if (a->dim % LANES == 0 && held > 1)
        switch (held) {
        case 2: add_values_together(queries, 2, scores, values, queries->last, a->dim); return;
        case 3: add_values_together(queries, 3, scores, values, queries->last, a->dim); return;
        default: add_values_together(queries, HEADS, scores, values, queries->last, a->dim); return;
        }
    for (int place = 0; place < held; place++)
        add_values(queries[place].out, queries[place].factor, scores + place * PK_KEYS, values, queries[place].last,
                   a->dim);
}

/* The same of `count` queries, from keys that lie side by side, and their sums of values. */
static void weigh_together(const pk_attend *a, query *queries, const int count, const float *transposed,
                           const float *values, float *scores)
{
    int most = 0;
    if (count == TOGETHER)
        score_queries(queries, TOGETHER, transposed, a->dim, scores);
    for (int place = 0; place < count; place++) {
        query *query = &queries[place];
        float *own = scores + place * PK_KEYS;
        if (count < TOGETHER)
            score_queries(query, 1, transposed, a->dim, own);
        for (int key = 0; key < query->first; key++)
            own[key] = -INFINITY;
        query->factor = soften(own, query->last, a, query->state);
        for (int key = query->last; key < PK_KEYS; key++)
            own[key] = 0.0f;
        most = query->last > most ? query->last : most;
    }
    if (count == TOGETHER && a->dim % LANES == 0) {
        add_values_together(queries, TOGETHER, scores, values, most, a->dim);
        return;
    }
    for (int place = 0; place < count; place++)
        add_values(queries[place].out, queries[place].factor, scores + place * PK_KEYS, values, queries[place].last,
                   a->dim);
}

static int64_t queries_of(const pk_attend *rows, int count)
{
    int64_t queries = 0;
    for (int row = 0; row < count; row++)
        queries += (rows[row].last - rows[row].first) * rows[row].group;
    return queries;
}

/* `count` positions whose keys and values lie in one piece of memory, as `row_count` rows see them. */
static void attend_piece(const pk_attend *rows, int row_count, int64_t position, int count, progress *states, float *scratch)
{
    const pk_attend *a = rows;
    const float *keys, *values;
    float *scores = scratch, *transposed = scratch + HEADS * PK_KEYS;
    find_positions(a, position, count, transposed + PK_KEYS * a->dim, &keys, &values);
    const int many = queries_of(rows, row_count) >= 12;
    query waiting[HEADS];
    int held = 0;
    if (many)
        transpose(keys, count, a->dim, transposed);
    for (const pk_attend *row = rows; row < rows + row_count; row++)
        for (int64_t token = row->first; token < row->last; token++, states += a->group) {
            int64_t from = sees_from(row, token) - position, to = sees_to(row, token) - position;
            if (from >= count || to <= 0)
                continue;
            for (int head = 0; head < a->group; head++) {
                const int64_t at = token * a->token_stride + (int64_t)head * a->dim;
                waiting[held++] = (query){.numbers = row->queries + at,
                                          .out = row->out + at,
                                          .first = from > 0 ? (int)from : 0,
                                          .last = to < count ? (int)to : count,
                                          .state = &states[head]};
                if (many && held == TOGETHER) {
                    weigh_together(a, waiting, held, transposed, values, scores);
                    held = 0;
                } else if (!many && (held == HEADS || head + 1 == a->group)) {
                    weigh_heads(a, waiting, held, keys, values, scores);
                    held = 0;
                }
            }
        }
    if (held > 0)
        weigh_together(a, waiting, held, transposed, values, scores);
}

/* Positions [position, end), which lie at the same places for all rows. */
static void look_at(const pk_attend *rows, int count, int64_t position, int64_t end, progress *states, float *scratch)
{
    const pk_kv *kv = rows->kv;
    while (position < end) {
        const int64_t before_wrap =
            position < kv->shared ? kv->shared - position : kv->capacity - (position + kv->shift) % kv->capacity;
        int64_t keys = end - position < PK_KEYS ? end - position : PK_KEYS;
        keys = keys < before_wrap ? keys : before_wrap;
        attend_piece(rows, count, position, (int)keys, states, scratch);
        position += keys;
    }
}

static void begin_sums(const pk_attend *a, progress *states)
{
    for (int64_t token = a->first; token < a->last; token++, states += a->group)
        for (int head = 0; head < a->group; head++) {
            states[head] = a->sinks == NULL ? (progress){-INFINITY, 0.0f} : (progress){a->sinks[head], 1.0f};
            memset(a->out + token * a->token_stride + (int64_t)head * a->dim, 0, (size_t)a->dim * sizeof(float));
        }
}

static void end_sums(const pk_attend *a, const progress *states)
{
    for (int64_t token = a->first; token < a->last; token++, states += a->group)
        for (int head = 0; head < a->group; head++) {
            float *out = a->out + token * a->token_stride + (int64_t)head * a->dim;
            const float factor = 1.0f / states[head].total;
            for (int index = 0; index < a->dim; index++)
                out[index] *= factor;
        }
}

/* What several rows share is looked at once for all of them. */
static void attend(const pk_attend *rows, int count, float *scratch)
{
    progress all[PK_QUERIES], *states = all;
    const int64_t shared = count > 1 ? rows->kv->shared : 0;
    int64_t first = shared;
    for (const pk_attend *row = rows; row < rows + count; row++) {
        const int64_t from = sees_from(row, row->first);
        begin_sums(row, states);
        states += queries_of(row, 1);
        first = from < first ? from : first;
    }
    look_at(rows, count, first, shared, all, scratch);
    states = all;
    for (const pk_attend *row = rows; row < rows + count; row++) {
        const int64_t from = sees_from(row, row->first);
        look_at(row, 1, from > shared ? from : shared, sees_to(row, row->last - 1), states, scratch);
        end_sums(row, states);
        states += queries_of(row, 1);
    }
}

#define FUNCTIONS                                                                                                      \
    .widest = WIDEST, .wide = WIDE, .many = MANY, .unpacked = ROWS > PK_BLOCK ? ROWS : PK_BLOCK, .width = width_for,   \
    .pack = pack, .sum = sum, .multiply = multiply, .rms_norm = rms_norm, .layer_norm = layer_norm, .gated = gated,    \
    .attend = attend
