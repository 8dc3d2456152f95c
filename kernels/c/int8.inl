/* Products with vectors of whole numbers: dots of 4 columns at a time, exact in integers, and one multiplication for each
 * group. A file of an instruction set defines LANES, WIDEST and PRODUCTS, includes this, and puts INT8_FUNCTIONS into its
 * `pk_int8`, EXACT_FUNCTIONS into another. PRODUCTS is PK_VNNI, PK_MADD, PK_DOT, PK_USDOT or PK_PLAIN; SUMS is how many sums of
 * integers the registers hold beside what they are made of, and DEEP, where there are 32 registers, how many beside the bytes of
 * a whole group. */
#ifndef DEEP
#define DEEP 0
#endif
#define PK_PLAIN 0
#define PK_MADD 1
#define PK_VNNI 2
#define PK_DOT 3
#define PK_USDOT 4

#include "int8_panels.inl"

/* sum + four products of a lane's bytes: weights from 0 to 255 with numbers from -127 to 127. */
INLINE I add_products(I sum, U weights, uint32_t x, const int bits)
{
    (void)bits;
#if PRODUCTS == PK_VNNI && LANES == 16
    return (I)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, _mm512_set1_epi32((int)x));
#elif PRODUCTS == PK_VNNI
    return (I)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, _mm256_set1_epi32((int)x));
#elif PRODUCTS == PK_MADD
    /* Two products of 8 bits are more than 16 bits hold, so such weights are multiplied in halves. */
    const __m256i numbers = _mm256_set1_epi32((int)x), ones = _mm256_set1_epi16(1);
    if (bits < 8)
        return sum + (I)_mm256_madd_epi16(_mm256_maddubs_epi16((__m256i)weights, numbers), ones);
    const __m256i low = (__m256i)(weights & 0x0f0f0f0f), high = (__m256i)((weights >> 4) & 0x0f0f0f0f);
    sum += (I)_mm256_madd_epi16(_mm256_maddubs_epi16(low, numbers), ones);
    return sum + (I)_mm256_madd_epi16(_mm256_maddubs_epi16(high, numbers), _mm256_set1_epi16(16));
#elif PRODUCTS == PK_USDOT
    return (I)vusdotq_s32((int32x4_t)sum, (uint8x16_t)weights, vreinterpretq_s8_u32(vdupq_n_u32(x)));
#elif PRODUCTS == PK_DOT
    /* Both factors have a sign: the highest bit of 8 would be one, so it is multiplied by itself. */
    const int8x16_t numbers = vreinterpretq_s8_u32(vdupq_n_u32(x));
    if (bits < 8)
        return (I)vdotq_s32((int32x4_t)sum, (int8x16_t)weights, numbers);
    sum = (I)vdotq_s32((int32x4_t)sum, (int8x16_t)(weights & 0x7f7f7f7f), numbers);
    return sum + ((I)vdotq_s32((int32x4_t){0}, (int8x16_t)((weights >> 7) & 0x01010101), numbers) << 7);
#else
    for (int byte = 0; byte < 4; byte++)
        sum += (I)((weights >> (8 * byte)) & 0xff) * (int8_t)(x >> (8 * byte));
    return sum;
#endif
}

/* Whether 16 bits hold the sums of a run's products in pairs, and so they become 32 bits once for a run: 16 products of a byte
 * from -128 on with weights up to 15 are -30720 at least, and 8 with those of fp4, up to 24, -24576. */
INLINE int in_pairs(const int format, const int bits)
{
    return PRODUCTS == PK_MADD && (format == PK_AFFINE ? bits <= 4 : format == PK_NVFP4);
}

/* The two sums of 16 bits in each of a register's lanes, and to each two of four products. */
INLINE I add_pairs(I pairs, U weights, uint32_t x)
{
#if PRODUCTS == PK_MADD
    pairs = (I)_mm256_add_epi16((__m256i)pairs, _mm256_maddubs_epi16((__m256i)weights, _mm256_set1_epi32((int)x)));
    /* GCC would change the order of the additions, and keep the products of a whole run in memory. */
    __asm__("" : "+x"(pairs));
#else
    (void)weights, (void)x;
#endif
    return pairs;
}

INLINE I sum_of_pairs(I pairs, const int factor)
{
#if PRODUCTS == PK_MADD
    return (I)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16((short)factor));
#else
    return pairs * factor;
#endif
}

/* Products */

enum { MOST_BYTES = WIDEST > 4 * DIGITS ? WIDEST : 4 * DIGITS, MOST_PARTS = PK_BLOCK / LANES };

/* Registers of rows that are multiplied side by side, so that each byte of a vector is read once for all of them and no sum
 * waits for the one before it: all rows of a block, if their sums find room beside the words. */
INLINE int parts_for(int bits, int bytes)
{
    const int crosses = bits & (bits - 1); /* words are cut in more steps, which need registers too */
    int parts = MOST_PARTS;
    while (parts > 1 && parts * bytes > (crosses ? SUMS / 2 : SUMS))
        parts /= 2;
    return parts;
}

/* As many rows as `parts_for` says, from `row` on. */
INLINE void products(const pk_tile *tile, int64_t which, int64_t row, int64_t last, const int format, const int bits,
                     const int width, const int digits)
{
    (void)last; /* those are of one block */
    const pk_matrix *matrix = tile->matrix;
    const int64_t block = row / PK_BLOCK, lane = row % PK_BLOCK, columns = matrix->columns;
    const int run = run_of(format), words_a_run = bits * run / 32;
    const int64_t runs = columns / run, runs_a_group = matrix->group / run, groups = runs / runs_a_group;
    const uint32_t *words = (const uint32_t *)matrix->weights + block * (columns * bits / 32) * PK_BLOCK + lane;
    const panel x = panel_at(tile->panels + which * size_of_panel(columns, width, digits), columns, width, digits);
    const int bytes = width * digits; /* for each column */
    const int parts = parts_for(bits, bytes), pairs = in_pairs(format, bits);
    const uint32_t *dwords = x.dwords;
    F sums[WIDEST][MOST_PARTS], scale[MOST_PARTS] = {{0}}, bias[MOST_PARTS] = {{0}};
#pragma GCC unroll 16
    for (int token = 0; token < width; token++)
#pragma GCC unroll 4
        for (int part = 0; part < parts; part++)
            sums[token][part] = beginning(tile, which * width + token, row + part * LANES, 0);
    for (int64_t place = 0; place < runs; place++) {
        if (place % runs_a_group == 0)
#pragma GCC unroll 4
            for (int part = 0; part < parts; part++)
                load_group(matrix, format, (block * groups + place / runs_a_group) * PK_BLOCK + lane + part * LANES,
                           &scale[part], &bias[part]);
        U held[MOST_PARTS][9];
#pragma GCC unroll 4
        for (int part = 0; part < parts; part++) {
            for (int word = 0; word < words_a_run; word++)
                held[part][word] = load_words(words + word * PK_BLOCK + part * LANES);
            if (bits & (bits - 1)) /* fields cross words, but for the last */
                held[part][words_a_run] = held[part][0];
        }
        fetch_ahead(words, words_a_run * PK_BLOCK * 4);
        words += words_a_run * PK_BLOCK;
        I dots[MOST_BYTES][MOST_PARTS];
#pragma GCC unroll 16
        for (int byte = 0; byte < bytes; byte++)
#pragma GCC unroll 4
            for (int part = 0; part < parts; part++)
                dots[byte][part] = (I){0};
#pragma GCC unroll 8
        for (int index = 0; index < run / 4; index++) {
#pragma GCC unroll 4
            for (int part = 0; part < parts; part++) {
                const U weights = quad(held[part], format, bits, index);
#pragma GCC unroll 16
                for (int byte = 0; byte < bytes; byte++) {
                    const uint32_t numbers = dwords[index * bytes + byte];
                    dots[byte][part] = pairs ? add_pairs(dots[byte][part], weights, numbers)
                                             : add_products(dots[byte][part], weights, numbers, bits);
                }
            }
        }
        if (pairs)
#pragma GCC unroll 16
            for (int byte = 0; byte < bytes; byte++)
#pragma GCC unroll 4
                for (int part = 0; part < parts; part++)
                    dots[byte][part] = sum_of_pairs(dots[byte][part], 1);
        dwords += run / 4 * bytes;
        const float *factors = x.factors + place * run / PK_QUANTISED * width, *totals = x.sums + place * width;
#pragma GCC unroll 16
        for (int token = 0; token < width; token++)
#pragma GCC unroll 4
            for (int part = 0; part < parts; part++) {
                F dot = __builtin_convertvector(dots[token * digits][part], F);
                for (int digit = 1; digit < digits; digit++)
                    dot = dot * 256.0f + __builtin_convertvector(dots[token * digits + digit][part], F);
                sums[token][part] += dot * (scale[part] * factors[token]);
                sums[token][part] += bias[part] * totals[token];
            }
    }
#pragma GCC unroll 16
    for (int token = 0; token < width; token++)
#pragma GCC unroll 4
        for (int part = 0; part < parts; part++)
            finish(tile, which * width + token, row + part * LANES, sums[token][part]);
}

/* Blocks of rows that `deep_products` multiplies side by side: two where the sums of one are so few that each waits for itself.
 * With one digit that takes longer, as measured: the weights of two blocks leave the registers, and are needed but once. */
INLINE int blocks_for(int bits, int width, int digits) { return width * 2 <= DEEP && digits > 1 && bits <= 4 ? 2 : 1; }

#if DEEP
/* The same for an even number of vectors up to DEEP, and one block of rows or two: the bytes of a run are made once for all
 * vectors. The digits of a number are added up in one sum, which is multiplied by their base in between; where weights of more
 * than 4 bits would leave 32 bits by that, the lowest digit has a sum of its own. */
INLINE void multiply_blocks(const pk_tile *tile, int64_t which, int64_t row, const int format, const int bits,
                            const int width, const int digits, const int blocks)
{
    const pk_matrix *matrix = tile->matrix;
    const int64_t block = row / PK_BLOCK, columns = matrix->columns;
    const int run = run_of(format), words_a_run = bits * run / 32;
    const int64_t runs = columns / run, runs_a_group = matrix->group / run, groups = runs / runs_a_group;
    const int64_t words_a_block = columns * bits / 32 * PK_BLOCK;
    const uint32_t *words = (const uint32_t *)matrix->weights + block * words_a_block;
    const panel x = panel_at(tile->panels + which * size_of_panel(columns, width, digits), columns, width, digits);
    const int apart = digits > 1 && bits > 4, vectors = apart && width > DEEP / 2 ? width / 2 : width; /* at a time */
    const int bytes = width * digits; /* for each column */
    const uint32_t *dwords = x.dwords;
    F sums[DEEP][2], scale[2] = {{0}}, bias[2] = {{0}};
    for (int token = 0; token < width; token++)
        for (int part = 0; part < blocks; part++)
            sums[token][part] = beginning(tile, which * width + token, row + part * PK_BLOCK, 0);
    for (int64_t place = 0; place < runs; place++) {
        if (place % runs_a_group == 0)
#pragma GCC unroll 2
            for (int part = 0; part < blocks; part++)
                load_group(matrix, format, ((block + part) * groups + place / runs_a_group) * PK_BLOCK, &scale[part],
                           &bias[part]);
        U weights[2][PK_QUANTISED / 4];
#pragma GCC unroll 2
        for (int part = 0; part < blocks; part++) {
            const uint32_t *own = words + part * words_a_block;
            U held[9];
            for (int word = 0; word < words_a_run; word++)
                held[word] = load_words(own + word * PK_BLOCK);
            held[words_a_run] = held[0]; /* fields cross words, but for the last */
            fetch_ahead(own, words_a_run * PK_BLOCK * 4);
#pragma GCC unroll 8
            for (int index = 0; index < run / 4; index++)
                weights[part][index] = quad(held, format, bits, index);
        }
        words += words_a_run * PK_BLOCK;
        const float *factors = x.factors + place * run / PK_QUANTISED * width, *totals = x.sums + place * width;
#pragma GCC unroll 1
        for (int first = 0; first < width; first += vectors) {
            I dots[DEEP][2], lowest[DEEP][2];
#pragma GCC unroll 16
            for (int token = 0; token < vectors; token++)
#pragma GCC unroll 2
                for (int part = 0; part < blocks; part++)
                    dots[token][part] = lowest[token][part] = (I){0};
#pragma GCC unroll 4
            for (int digit = 0; digit < digits; digit++) {
                const int last = apart && digit == digits - 1;
                if (digit > 0 && !last)
#pragma GCC unroll 16
                    for (int token = 0; token < vectors; token++)
#pragma GCC unroll 2
                        for (int part = 0; part < blocks; part++)
                            dots[token][part] <<= 8;
#pragma GCC unroll 8
                for (int index = 0; index < run / 4; index++)
#pragma GCC unroll 16
                    for (int token = 0; token < vectors; token++) {
                        const uint32_t number = dwords[index * bytes + (first + token) * digits + digit];
#pragma GCC unroll 2
                        for (int part = 0; part < blocks; part++) {
                            I *const sum = last ? &lowest[token][part] : &dots[token][part];
                            *sum = add_products(*sum, weights[part][index], number, bits);
                        }
                    }
            }
#pragma GCC unroll 16
            for (int token = 0; token < vectors; token++)
#pragma GCC unroll 2
                for (int part = 0; part < blocks; part++) {
                    F dot = __builtin_convertvector(dots[token][part], F);
                    if (apart)
                        dot = dot * 256.0f + __builtin_convertvector(lowest[token][part], F);
                    F sum = sums[first + token][part] + dot * (scale[part] * factors[first + token]);
                    sums[first + token][part] = sum + bias[part] * totals[first + token];
                }
        }
        dwords += run / 4 * bytes;
    }
    for (int token = 0; token < width; token++)
        for (int part = 0; part < blocks; part++)
            finish(tile, which * width + token, row + part * PK_BLOCK, sums[token][part]);
}

/* As many blocks as `blocks_for` says, or the last one before row `last`. */
INLINE void deep_products(const pk_tile *tile, int64_t which, int64_t row, int64_t last, const int format, const int bits,
                          const int width, const int digits)
{
    _Static_assert(PK_BLOCK == LANES, "a block is a register of rows");
    if (blocks_for(bits, width, digits) == 2 && row + PK_BLOCK < last)
        multiply_blocks(tile, which, row, format, bits, width, digits, 2);
    else
        multiply_blocks(tile, which, row, format, bits, width, digits, 1);
}
#endif

/* Bytes of panels that stay near while all rows are multiplied with them. */
enum { NEAR = 1 << 20 };

static int64_t panels_near(int64_t size)
{
    const int64_t bytes = size * (int64_t)sizeof(float);
    return bytes < NEAR ? NEAR / bytes : 1;
}

#if PRODUCTS == PK_MADD
#define ACROSS LANES
#include "int8_across.inl"
#else
#define ACROSS 0
#endif

#define PRODUCT(HOW, FORMAT, BITS, WIDTH, DIGITS)                                                                      \
    static void products_##FORMAT##_##BITS##_##WIDTH##_##DIGITS(const pk_tile *tile, int64_t panel, int64_t row,       \
                                                             int64_t last)                                             \
    {                                                                                                                  \
        HOW(tile, panel, row, last, FORMAT, BITS, WIDTH, DIGITS);                                                      \
    }
#define AFFINES(HOW, WIDTH, DIGITS)                                                                                    \
    PRODUCT(HOW, PK_AFFINE, 2, WIDTH, DIGITS)                                                                          \
    PRODUCT(HOW, PK_AFFINE, 3, WIDTH, DIGITS)                                                                          \
    PRODUCT(HOW, PK_AFFINE, 4, WIDTH, DIGITS)                                                                          \
    PRODUCT(HOW, PK_AFFINE, 5, WIDTH, DIGITS)                                                                          \
    PRODUCT(HOW, PK_AFFINE, 6, WIDTH, DIGITS)                                                                          \
    PRODUCT(HOW, PK_AFFINE, 8, WIDTH, DIGITS)
#define NAMES_OF_AFFINES(WIDTH, DIGITS)                                                                                \
    [2] = products_PK_AFFINE_2_##WIDTH##_##DIGITS, [3] = products_PK_AFFINE_3_##WIDTH##_##DIGITS,                      \
    [4] = products_PK_AFFINE_4_##WIDTH##_##DIGITS, [5] = products_PK_AFFINE_5_##WIDTH##_##DIGITS,                      \
    [6] = products_PK_AFFINE_6_##WIDTH##_##DIGITS, [8] = products_PK_AFFINE_8_##WIDTH##_##DIGITS
#define ROUNDED(HOW, WIDTH)                                                                                            \
    AFFINES(HOW, WIDTH, 1)                                                                                             \
    PRODUCT(HOW, PK_MXFP4, 4, WIDTH, 1)                                                                                \
    PRODUCT(HOW, PK_NVFP4, 4, WIDTH, 1)                                                                                \
    static const kernel rounded_##WIDTH[] = {NAMES_OF_AFFINES(WIDTH, 1), [9] = products_PK_MXFP4_4_##WIDTH##_1,        \
                                             [10] = products_PK_NVFP4_4_##WIDTH##_1};
#define EXACT(HOW, WIDTH)                                                                                              \
    PRODUCT(HOW, PK_AFFINE, 2, WIDTH, 3)                                                                               \
    PRODUCT(HOW, PK_AFFINE, 4, WIDTH, 3)                                                                               \
    PRODUCT(HOW, PK_AFFINE, 8, WIDTH, 3)                                                                               \
    static const kernel exact_##WIDTH[] = {[2] = products_PK_AFFINE_2_##WIDTH##_3,                                     \
                                           [4] = products_PK_AFFINE_4_##WIDTH##_3,                                     \
                                           [8] = products_PK_AFFINE_8_##WIDTH##_3};

/* Some rows from `row` on, none from `last` on. */
typedef void (*kernel)(const pk_tile *tile, int64_t panel, int64_t row, int64_t last);

ROUNDED(products, 1)
ROUNDED(products, 4)
#if DEEP
ROUNDED(deep_products, 8)
ROUNDED(deep_products, 16)
#elif WIDEST >= 8
ROUNDED(products, 8)
#endif
#if PRODUCTS != PK_PLAIN
EXACT(products, 1)
EXACT(products, 2)
EXACT(products, 3)
EXACT(products, 4)
#if DEEP
EXACT(deep_products, 6)
EXACT(deep_products, 8)
EXACT(deep_products, 12)
EXACT(deep_products, 16)
#endif
#endif

static int width_of(int64_t tokens, int widest)
{
    int width = tokens == 1 ? 1 : 4;
    while (width < widest && width < tokens)
        width *= 2;
    return width;
}

static int width_for(int64_t tokens) { return width_of(tokens, WIDEST); }

static int64_t size_of_panels(int64_t columns, int64_t tokens, int width, int digits)
{
    return (tokens + width - 1) / width * size_of_panel(columns, width, digits);
}

static int64_t size(int64_t columns, int64_t tokens) { return size_of_panels(columns, tokens, width_for(tokens), 1); }

static void pack(const pk_matrix *matrix, const float *x, int64_t from, int64_t to, int64_t tokens, int64_t token,
                 float *panels)
{
    const int width = width_for(tokens);
    float *panel = panels + token / width * size_of_panel(matrix->columns, width, 1);
    pack_one(matrix, x, from, to, width, (int)(token % width), 1, 1, panel);
}

#if PRODUCTS == PK_MADD
#include "int8_words.inl"
#endif

static void multiply_by(const kernel *kernels, const int digits, const pk_tile *tile, int64_t first, int64_t last)
{
    const pk_matrix *matrix = tile->matrix;
    const kernel chosen = kernels[matrix->format == PK_AFFINE ? matrix->bits : matrix->format == PK_MXFP4 ? 9 : 10];
    const int64_t near = panels_near(size_of_panel(matrix->columns, tile->width, digits));
    const int deep = DEEP > 0 && tile->width > 4;
    const int rows = deep ? PK_BLOCK * blocks_for(matrix->bits, tile->width, digits)
                          : LANES * parts_for(matrix->bits, tile->width * digits);
    const int step = rows > PK_BLOCK ? rows : PK_BLOCK;
    const int64_t panels = (tile->tokens + tile->width - 1) / tile->width;
    for (int64_t some = 0; some < panels; some += near)
        for (int64_t row = first; row < last; row += step)
            for (int64_t panel = some; panel < some + near && panel < panels; panel++)
                for (int lane = 0; lane < step; lane += rows)
                    chosen(tile, panel, row + lane, last);
}

static void multiply(const pk_tile *tile, int64_t first, int64_t last)
{
    static const kernel *const of_width[] = {
        [1] = rounded_1,
        [4] = rounded_4,
#if WIDEST >= 8
        [8] = rounded_8,
#endif
#if DEEP
        [16] = rounded_16,
#endif
    };
    multiply_by(of_width[tile->width], 1, tile, first, last);
}

static int always_pays(int bits, int64_t tokens)
{
    (void)bits;
    (void)tokens;
    return 1;
}

#define INT8_FUNCTIONS                                                                                                 \
    .pays = always_pays, .width = width_for, .size = size, .pack = pack, .multiply = multiply

#if PRODUCTS != PK_PLAIN
enum { WIDEST_EXACT = DEEP ? DEEP : 4 };

/* Two and three vectors have panels of their own: what checks one or two proposed tokens of a sequence computes so many. Where
 * there are deep sums, so have six and twelve. Vectors are shared out evenly to as few panels as hold them; where they can lie
 * across a register, they fill these first. */
static int exact_width_for(int64_t tokens)
{
    if (ACROSS && tokens > 5) /* five take no longer in two narrow panels */
        return ACROSS;
    const int64_t panels = (tokens + WIDEST_EXACT - 1) / WIDEST_EXACT, needed = (tokens + panels - 1) / panels;
    if (needed <= 4)
        return (int)needed;
    return needed <= 6 ? 6 : needed <= 8 ? 8 : needed <= 12 ? 12 : 16;
}

static int64_t exact_size(int64_t columns, int64_t tokens)
{
    return size_of_panels(columns, tokens, exact_width_for(tokens), DIGITS);
}

/* Vectors behind the last whole panel of ACROSS that have a narrow one of their own. */
static int left_over(int64_t tokens)
{
    const int width = exact_width_for(tokens), left = (int)(tokens % width);
    return width == ACROSS && left <= 4 ? left : 0;
}

static void pack_exact(const pk_matrix *matrix, const float *x, int64_t from, int64_t to, int64_t tokens, int64_t token,
                       float *panels)
{
    const int width = exact_width_for(tokens), left = left_over(tokens), place = (int)(token % width);
    float *panel = panels + token / width * size_of_panel(matrix->columns, width, DIGITS);
    if (token < tokens - left || left == 0)
        pack_one(matrix, x, from, to, width, place, DIGITS, width == ACROSS ? ACROSS : 1, panel);
    else if (place < left)
        pack_one(matrix, x, from, to, left, place, DIGITS, 1, panel);
}

static void multiply_exactly(const pk_tile *tile, int64_t first, int64_t last)
{
    static const kernel *const of_width[] = {
        [1] = exact_1,
        [2] = exact_2,
        [3] = exact_3,
        [4] = exact_4,
#if DEEP
        [6] = exact_6,
        [8] = exact_8,
        [12] = exact_12,
        [16] = exact_16,
#endif
    };
    if (!ACROSS || tile->width <= 4) {
        multiply_by(of_width[tile->width], DIGITS, tile, first, last);
        return;
    }
#if ACROSS
    pk_tile whole = *tile, rest = *tile;
    rest.tokens = rest.width = left_over(tile->tokens);
    whole.tokens -= rest.tokens;
    multiply_across(&whole, first, last);
    if (rest.width == 0)
        return;
    rest.panels += size_of_panels(tile->matrix->columns, whole.tokens, ACROSS, DIGITS);
    rest.out += whole.tokens * tile->out_stride;
    multiply_by(of_width[rest.width], DIGITS, &rest, first, last);
#endif
}

/* Measured against float32. Fields that cross words take longer to bring into bytes than they save; 8 bits by AVX2 have words.
 * Without DEEP sums, float32 is quicker for more than four vectors, whose weights it makes once for all of them; than vectors
 * across it is for more than 40, which share out its greater cost of unpacking. */
static int exact_pays(int bits, int64_t tokens)
{
    if (bits & (bits - 1))
        return 0;
    return PRODUCTS == PK_MADD ? bits < 8 && tokens <= 40 : DEEP || tokens <= 4;
}

#define EXACT_FUNCTIONS                                                                                                \
    .pays = exact_pays, .width = exact_width_for, .size = exact_size, .pack = pack_exact, .multiply = multiply_exactly
#endif
