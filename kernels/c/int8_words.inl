/* Products with weights of 8 bits where two products of bytes are more than 16 bits hold: numbers of 23 bits in two words of 16
 * bits, the higher first, to the base 65536. Words are multiplied and added in pairs, so the bytes of a register of weights become
 * those of even and of odd columns. A panel is as in `int8_panels.inl`, with WORDS dwords for each vector and four columns: each
 * word of the even ones, then of the odd ones. */
enum { WORDS = 4, WIDEST_WORDS = 4 };

/* The sums of a run with the higher and the lower words: 32 products of 255 with 64, and with 32768, which is below 2^28. */
INLINE void add_words(I *sums, U even, U odd, const uint32_t *numbers)
{
#pragma GCC unroll 2
    for (int word = 0; word < 2; word++) {
        sums[word] += (I)_mm256_madd_epi16((__m256i)even, _mm256_set1_epi32((int)numbers[2 * word]));
        __asm__("" : "+x"(sums[word])); /* GCC would change the order of the additions, and keep the products in memory */
        sums[word] += (I)_mm256_madd_epi16((__m256i)odd, _mm256_set1_epi32((int)numbers[2 * word + 1]));
        __asm__("" : "+x"(sums[word]));
    }
}

/* `parts` registers of rows from `row` on, with `width` vectors. */
INLINE void multiply_words(const pk_tile *tile, int64_t row, const int width, const int parts)
{
    const pk_matrix *matrix = tile->matrix;
    const int64_t block = row / PK_BLOCK, lane = row % PK_BLOCK, columns = matrix->columns;
    const int64_t runs = columns / PK_QUANTISED, runs_a_group = matrix->group / PK_QUANTISED, groups = runs / runs_a_group;
    const uint32_t *words = (const uint32_t *)matrix->weights + block * (columns / 4) * PK_BLOCK + lane;
    const panel x = panel_at(tile->panels, columns, width, WORDS);
    const uint32_t *numbers = x.dwords;
    F sums[WIDEST_WORDS][MOST_PARTS], scale[MOST_PARTS] = {{0}}, bias[MOST_PARTS] = {{0}};
#pragma GCC unroll 4
    for (int token = 0; token < width; token++)
#pragma GCC unroll 2
        for (int part = 0; part < parts; part++)
            sums[token][part] = beginning(tile, token, row + part * LANES, 0);
    for (int64_t run = 0; run < runs; run++) {
        if (run % runs_a_group == 0)
#pragma GCC unroll 2
            for (int part = 0; part < parts; part++)
                load_group(matrix, PK_AFFINE, (block * groups + run / runs_a_group) * PK_BLOCK + lane + part * LANES,
                           &scale[part], &bias[part]);
        I dots[WIDEST_WORDS][MOST_PARTS][2];
#pragma GCC unroll 4
        for (int token = 0; token < width; token++)
#pragma GCC unroll 2
            for (int part = 0; part < parts; part++)
                dots[token][part][0] = dots[token][part][1] = (I){0};
#pragma GCC unroll 8
        for (int index = 0; index < PK_QUANTISED / 4; index++, words += PK_BLOCK, numbers += WORDS * width) {
            fetch_ahead(words, PK_BLOCK * 4);
#pragma GCC unroll 2
            for (int part = 0; part < parts; part++) {
                const U weights = load_words(words + part * LANES);
                const U even = weights & 0x00ff00ff, odd = (weights >> 8) & 0x00ff00ff;
#pragma GCC unroll 4
                for (int token = 0; token < width; token++)
                    add_words(dots[token][part], even, odd, numbers + WORDS * token);
            }
        }
#pragma GCC unroll 4
        for (int token = 0; token < width; token++)
#pragma GCC unroll 2
            for (int part = 0; part < parts; part++) {
                const F upper = __builtin_convertvector(dots[token][part][0], F);
                const F dot = upper * 65536.0f + __builtin_convertvector(dots[token][part][1], F);
                sums[token][part] += dot * (scale[part] * x.factors[run * width + token]);
                sums[token][part] += bias[part] * x.sums[run * width + token];
            }
    }
#pragma GCC unroll 4
    for (int token = 0; token < width; token++)
#pragma GCC unroll 2
        for (int part = 0; part < parts; part++)
            finish(tile, token, row + part * LANES, sums[token][part]);
}

static void words_1(const pk_tile *tile, int64_t row) { multiply_words(tile, row, 1, MOST_PARTS); }
static void words_2(const pk_tile *tile, int64_t row) { multiply_words(tile, row, 2, MOST_PARTS); }
static void words_3(const pk_tile *tile, int64_t row) { multiply_words(tile, row, 3, 1); }
static void words_4(const pk_tile *tile, int64_t row) { multiply_words(tile, row, 4, 1); }

static void multiply_by_words(const pk_tile *tile, int64_t first, int64_t last)
{
    static void (*const of_width[])(const pk_tile *, int64_t) = {NULL, words_1, words_2, words_3, words_4};
    for (int64_t row = first; row < last; row += tile->width > 2 ? LANES : PK_BLOCK)
        of_width[tile->width](tile, row);
}

/* All vectors are in one panel. */
static int width_of_words(int64_t tokens) { return (int)tokens; }

static int64_t size_of_words(int64_t columns, int64_t tokens) { return size_of_panel(columns, (int)tokens, WORDS); }

static void pack_words(const pk_matrix *matrix, const float *x, int64_t from, int64_t to, int64_t tokens, int64_t token,
                       float *panels)
{
    const panel at = panel_at(panels, matrix->columns, (int)tokens, WORDS);
    for (int64_t column = from; column < to; column += PK_QUANTISED) {
        int32_t numbers[PK_QUANTISED];
        const float factor = quantise(x + column, PK_QUANTISED, largest_number(DIGITS), numbers);
        const int64_t run = column / PK_QUANTISED * tokens + token;
        at.factors[run] = factor;
        at.sums[run] = (float)total_of(numbers, PK_QUANTISED) * factor;
        uint32_t *out = at.dwords + (column / 4 * tokens + token) * WORDS;
        for (int index = 0; index < PK_QUANTISED; index += 4, out += WORDS * tokens)
            for (int odd = 0; odd < 2; odd++) {
                const int32_t left = numbers[index + odd], right = numbers[index + odd + 2];
                out[odd] = (uint32_t)(left + 32768) >> 16 | ((uint32_t)(right + 32768) & 0xffff0000);
                out[2 + odd] = ((uint32_t)left & 0xffff) | (uint32_t)right << 16;
            }
    }
}

/* Measured against float32, which is quicker for more vectors. */
static int words_pay(int bits, int64_t tokens) { return bits == 8 && tokens <= WIDEST_WORDS; }

#define WORD_FUNCTIONS                                                                                                 \
    .pays = words_pay, .width = width_of_words, .size = size_of_words, .pack = pack_words, .multiply = multiply_by_words
