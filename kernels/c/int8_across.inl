/* Products with many vectors, of which ACROSS lie side by side in a register, where a register is no wider than half of a block
 * of rows. Weights become bytes once for all vectors, and each four of a row are then spread over a register: a tile of four
 * rows reads ten registers for twelve products, where one of rows with four vectors reads thirteen. The sums are those that
 * `products` has, of the same numbers in the same order, so a vector gets the same bits in any company. */
enum {
    TILE = 4,    /* rows whose sums the registers hold */
    HELD = 2,    /* digits of the vectors that find room beside them */
    PIECE = 768, /* columns whose bytes, and those of a panel, stay near: 12 KiB and 18 KiB */
};

/* Columns of one block of rows: bytes, and what each run of them is multiplied by. */
typedef struct bytes {
    uint32_t quads[PIECE / 4][PK_BLOCK];
    float scales[PIECE / PK_QUANTISED][PK_BLOCK], biases[PIECE / PK_QUANTISED][PK_BLOCK];
} bytes;

INLINE void unpack_bytes(const pk_matrix *matrix, int64_t block, int64_t from, int64_t to, const int bits, bytes *out)
{
    const int64_t groups = matrix->columns / matrix->group;
    const uint32_t *words =
        (const uint32_t *)matrix->weights + (block * (matrix->columns * bits / 32) + from * bits / 32) * PK_BLOCK;
    for (int64_t column = from; column < to; column += PK_QUANTISED, words += bits * PK_BLOCK) {
        const int64_t run = (column - from) / PK_QUANTISED, at = (block * groups + column / matrix->group) * PK_BLOCK;
        fetch_ahead(words, bits * PK_BLOCK * 4);
#pragma GCC unroll 4
        for (int lane = 0; lane < PK_BLOCK; lane += LANES) {
            F scale, bias;
            load_group(matrix, PK_AFFINE, at + lane, &scale, &bias);
            store(&out->scales[run][lane], scale);
            store(&out->biases[run][lane], bias);
            U held[8];
#pragma GCC unroll 8
            for (int word = 0; word < bits; word++)
                held[word] = load_words(words + word * PK_BLOCK + lane);
#pragma GCC unroll 8
            for (int index = 0; index < PK_QUANTISED / 4; index++)
                store((float *)&out->quads[run * (PK_QUANTISED / 4) + index][lane], (F)quad(held, PK_AFFINE, bits, index));
        }
    }
}

/* As `add_pairs`, of one dword of weights with those of all vectors. */
INLINE I add_vector(I pairs, U weights, U numbers)
{
    pairs = (I)_mm256_add_epi16((__m256i)pairs, _mm256_maddubs_epi16((__m256i)weights, (__m256i)numbers));
    __asm__("" : "+x"(pairs));
    return pairs;
}

/* The sums of whole numbers whose digits have sums in pairs; no more than 32 times 15 times the largest number. */
INLINE I whole_sums(const I *digits)
{
    const I upper = sum_of_pairs(digits[0], 256) + sum_of_pairs(digits[1], 1);
    return (upper << 8) + sum_of_pairs(digits[2], 1);
}

/* Adds to the sums of TILE rows, those of `weights` from `row` on, their products with `runs` runs of a panel. */
INLINE void add_tile(const bytes *weights, int row, panel x, int64_t runs, F *sums)
{
    const uint32_t *dwords = x.dwords;
    for (int64_t run = 0; run < runs; run++) {
        I dots[TILE][DIGITS];
#pragma GCC unroll 4
        for (int place = 0; place < TILE; place++)
#pragma GCC unroll 4
            for (int digit = 0; digit < DIGITS; digit++)
                dots[place][digit] = (I){0};
#pragma GCC unroll 8
        for (int index = 0; index < PK_QUANTISED / 4; index++, dwords += DIGITS * ACROSS) {
            const uint32_t *quads = &weights->quads[run * (PK_QUANTISED / 4) + index][row];
            U numbers[DIGITS];
#pragma GCC unroll 4
            for (int digit = 0; digit < DIGITS; digit++) {
                numbers[digit] = load_words(dwords + digit * ACROSS);
                if (digit < HELD)
                    __asm__("" : "+x"(numbers[digit])); /* GCC would read it anew for each row */
            }
#pragma GCC unroll 4
            for (int place = 0; place < TILE; place++) {
                const U quad = quads[place] - (U){0};
#pragma GCC unroll 4
                for (int digit = 0; digit < DIGITS; digit++)
                    dots[place][digit] = add_vector(dots[place][digit], quad, numbers[digit]);
            }
        }
        const F factors = load(x.factors + run * ACROSS), totals = load(x.sums + run * ACROSS);
#pragma GCC unroll 4
        for (int place = 0; place < TILE; place++) {
            const F dot = __builtin_convertvector(whole_sums(dots[place]), F);
            sums[place] += dot * (weights->scales[run][row + place] * factors);
            sums[place] += weights->biases[run][row + place] * totals;
        }
    }
}

/* Sums of a block of rows, [PK_BLOCK], and the rows of each vector change places. */
INLINE void begin_block(const pk_tile *tile, int64_t which, int64_t row, int goes_on, F *sums)
{
    float rows[ACROSS][PK_BLOCK];
    if (!tile->accumulate && tile->matrix->addend == NULL && !goes_on) {
        memset(sums, 0, PK_BLOCK * sizeof *sums);
        return;
    }
    for (int vector = 0; vector < ACROSS; vector++)
        for (int lane = 0; lane < PK_BLOCK; lane += LANES)
            store(&rows[vector][lane], beginning(tile, which * ACROSS + vector, row + lane, goes_on));
    for (int lane = 0; lane < PK_BLOCK; lane += LANES)
        turn(&rows[0][lane], PK_BLOCK, (float *)(sums + lane), LANES);
}

INLINE void finish_block(const pk_tile *tile, int64_t which, int64_t row, const F *sums)
{
    float rows[ACROSS][PK_BLOCK];
    for (int lane = 0; lane < PK_BLOCK; lane += LANES)
        turn((const float *)(sums + lane), LANES, &rows[0][lane], PK_BLOCK);
    for (int vector = 0; vector < ACROSS; vector++)
        for (int lane = 0; lane < PK_BLOCK; lane += LANES)
            finish(tile, which * ACROSS + vector, row + lane, load(&rows[vector][lane]));
}

static void multiply_across(const pk_tile *tile, int64_t first, int64_t last)
{
    const pk_matrix *matrix = tile->matrix;
    const int64_t columns = matrix->columns, size = size_of_panel(columns, ACROSS, DIGITS);
    /* A quarter of the panels that may stay near: they are read again for every block, of few instructions for each byte. */
    const int64_t near = panels_near(4 * size), panels = (tile->tokens + ACROSS - 1) / ACROSS;
    for (int64_t some = 0; some < panels; some += near)
        for (int64_t row = first; row < last; row += PK_BLOCK)
            for (int64_t from = 0; from < columns; from += PIECE) {
                const int64_t to = from + PIECE < columns ? from + PIECE : columns;
                bytes weights;
                if (matrix->bits == 4)
                    unpack_bytes(matrix, row / PK_BLOCK, from, to, 4, &weights);
                else
                    unpack_bytes(matrix, row / PK_BLOCK, from, to, 2, &weights);
                for (int64_t which = some; which < some + near && which < panels; which++) {
                    const panel whole = panel_at(tile->panels + which * size, columns, ACROSS, DIGITS);
                    const int64_t runs = from / PK_QUANTISED;
                    const panel x = {whole.dwords + from / 4 * DIGITS * ACROSS, whole.factors + runs * ACROSS,
                                     whole.sums + runs * ACROSS, ACROSS};
                    F sums[PK_BLOCK];
                    begin_block(tile, which, row, from > 0, sums);
                    for (int lane = 0; lane < PK_BLOCK; lane += TILE)
                        add_tile(&weights, lane, x, (to - from) / PK_QUANTISED, sums + lane);
                    finish_block(tile, which, row, sums);
                }
            }
}
