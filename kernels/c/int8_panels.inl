/* What products with whole numbers begin with: weights as bytes, and panels of vectors.
 *
 * A vector's number is one byte, or DIGITS of them, the highest first, to the base 256: 23 bits of the largest number of
 * its 32 columns, whose product is as exact as a sum of float32 numbers, in a third of the instructions.
 *
 * A panel holds, for each of its vectors side by side: dwords of 4 bytes [columns / 4, width * digits]; the factors of
 * groups [ceil(columns / 32), width]; and, by which biases are multiplied, the sums [ceil(columns / 16), width] of 32
 * columns, or of 16 in NVFP4, with their factor. Which columns share a dword depends on how the weights are packed: those
 * that one shift and one mask bring into the four bytes of a word. */
#include "isa.h"
#include "tile.h"
#include "vector.h"

#include <float.h>
#include <math.h>

typedef uint8_t Q __attribute__((vector_size(LANES * 4)));
typedef int8_t S __attribute__((vector_size(LANES * 4)));

/* Weights as bytes */

/* Twice a number of fp4, and 12, in each byte: from 0 to 24. */
INLINE U fp4_bytes(U nibbles)
{
#if LANES == 16
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return (U)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), (__m512i)nibbles);
#elif LANES == 8
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    return (U)_mm256_shuffle_epi8(table, (__m256i)nibbles);
#elif defined(__aarch64__)
    const uint8x16_t table = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    return (U)vqtbl1q_u8(table, (uint8x16_t)nibbles);
#else
    const S size = (S)nibbles & 7;
    const S twice = size + ((size > 4) & (size - 4)) + ((size > 6) & 2), negative = ((S)nibbles > 7);
    return (U)(((twice ^ negative) - negative) + 12);
#endif
}

/* Dword `place` of the eight that 32 columns are. */
INLINE U quad(const U *words, const int format, const int bits, int place)
{
    if (bits == 8)
        return words[place];
    if (bits == 4) {
        U nibbles = (words[place / 2] >> (4 * (place % 2))) & 0x0f0f0f0f;
        return format == PK_AFFINE ? nibbles : fp4_bytes(nibbles);
    }
    if (bits == 2)
        return (words[place / 4] >> (2 * (place % 4))) & 0x03030303;
    U found = {0};
    for (int byte = 0; byte < 4; byte++) {
        const int bit = (4 * place + byte) * bits, shift = bit % 32;
        U field = words[bit / 32] >> shift;
        if (shift + bits > 32)
            field |= words[bit / 32 + 1] << (32 - shift);
        found |= (field & ((1u << bits) - 1)) << (8 * byte);
    }
    return found;
}

/* Which of 32 columns is byte `byte` of dword `place`. */
static int column_of(int bits, int place, int byte)
{
    if (bits != 2 && bits != 4)
        return 4 * place + byte;
    const int quads = 8 / bits;
    return place / quads * (32 / bits) + place % quads + byte * quads;
}

/* Panels */

enum { DIGITS = 3 };

/* The largest number of a vector: a byte, or what DIGITS of them hold and `quantise` can round to. */
static int32_t largest_number(int digits) { return digits == 1 ? 127 : 63 * 65536 + 127 * 256 + 127; }

INLINE int64_t size_of_panel(int64_t columns, int width, int digits)
{
    return (columns / 4 * digits + (columns + 31) / 32 + (columns + 15) / 16) * width;
}

INLINE int run_of(int format) { return format == PK_NVFP4 ? 16 : PK_QUANTISED; }

typedef struct panel {
    uint32_t *dwords;
    float *factors, *sums;
    int apart; /* dwords from one digit of a vector to the next */
} panel;

static panel panel_at(const float *memory, int64_t columns, int width, int digits)
{
    float *dwords = (float *)memory, *factors = dwords + columns / 4 * width * digits;
    return (panel){(uint32_t *)dwords, factors, factors + (columns + 31) / 32 * width, 1};
}

/* Whole numbers of 16 or 32 columns, none larger than `most_number`, and their factor. What is not finite gives a factor
 * that is not. */
static float quantise(const float *x, int count, int32_t most_number, int32_t *numbers)
{
    const float rounding = 0x1.8p23f; /* leaves the nearest integer in the lowest bits, up to 2^22 */
    const float end = (float)most_number;
    F most = {0}, wrong = {0};
    for (int index = 0; index < count; index += LANES) {
        const F v = load(x + index);
        most = larger(most, larger(v, -v));
        wrong += v - v;
    }
    const float largest = largest_of(most);
    const int finite = sum_of(wrong) == 0.0f;
    if (!finite || largest <= FLT_MIN * end || count < PK_QUANTISED)
        memset(numbers, 0, PK_QUANTISED * sizeof *numbers);
    if (!finite || largest <= FLT_MIN * end)
        return finite ? 0.0f : NAN;
    for (int index = 0; index < count; index += LANES) {
        const F shifted = load(x + index) * (end / largest) + rounding;
        const U found = (U)shifted - 0x4b400000;
        memcpy(numbers + index, &found, sizeof found);
    }
    return largest / end;
}

/* The bytes of 16 columns in the order in which dwords hold them, `order` of which are below 16. */
INLINE void reorder(const int8_t *bytes, const uint8_t *order, uint32_t *dwords)
{
#if defined(__SSSE3__)
    _mm_storeu_si128((__m128i *)dwords, _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)bytes),
                                                         _mm_loadu_si128((const __m128i *)order)));
#elif defined(__aarch64__)
    vst1q_u8((uint8_t *)dwords, vqtbl1q_u8(vld1q_u8((const uint8_t *)bytes), vld1q_u8(order)));
#else
    int8_t ordered[16];
    for (int index = 0; index < 16; index++)
        ordered[index] = bytes[order[index]];
    memcpy(dwords, ordered, sizeof ordered);
#endif
}

typedef int8_t D __attribute__((vector_size(LANES)));

/* The lowest bytes of 32 numbers. */
INLINE void lowest_bytes(const I *numbers, int8_t *bytes)
{
#if LANES == 8
    /* What GCC makes of the conversion takes each number out of its register. Packing works in halves of registers. */
    const I low = (I){0} + 255;
    const __m256i first = _mm256_packus_epi32((__m256i)(numbers[0] & low), (__m256i)(numbers[1] & low));
    const __m256i second = _mm256_packus_epi32((__m256i)(numbers[2] & low), (__m256i)(numbers[3] & low));
    const __m256i turned = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)bytes, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second), turned));
#else
#pragma GCC unroll 8
    for (int part = 0; part < PK_QUANTISED / LANES; part++) {
        const D lowest = __builtin_convertvector(numbers[part], D);
        memcpy(bytes + part * LANES, &lowest, sizeof lowest);
    }
#endif
}

/* The lowest digits of numbers, which they lose. */
INLINE void take_digit(I *numbers, int8_t *digit)
{
    lowest_bytes(numbers, digit);
#pragma GCC unroll 8
    for (int part = 0; part < PK_QUANTISED / LANES; part++)
        numbers[part] = (numbers[part] + 128) >> 8;
}

static int32_t total_of(const int32_t *numbers, int count)
{
    I sums = {0};
    for (int index = 0; index < count; index += LANES)
        sums += (I)load_words((const uint32_t *)numbers + index);
    int32_t total = 0;
    for (int lane = 0; lane < LANES; lane++)
        total += sums[lane];
    return total;
}

/* `order` tells which of 16 columns each byte of their dwords is; no packing takes bytes further. */
INLINE void pack_vector(const pk_matrix *matrix, const float *x, int64_t from, int64_t to, int width, const int digits,
                        const uint8_t *order, panel at)
{
    const int run = run_of(matrix->format);
    float *sums = at.sums + from / run * width;
    for (int64_t column = from; column < to; column += PK_QUANTISED) {
        const int64_t left = to - column;
        const int count = left < PK_QUANTISED ? (int)left : PK_QUANTISED;
        int32_t numbers[PK_QUANTISED];
        const float factor = quantise(x + column, count, largest_number(digits), numbers);
        at.factors[column / PK_QUANTISED * width] = factor;
        for (int start = 0; start < count; start += run, sums += width)
            *sums = (float)total_of(numbers + start, run) * factor;
        I whole[PK_QUANTISED / LANES];
        memcpy(whole, numbers, sizeof whole);
        uint32_t *out = at.dwords + column / 4 * width * digits;
        for (int digit = digits - 1; digit >= 0; digit--) {
            uint32_t dwords[PK_QUANTISED / 4];
            int8_t bytes[PK_QUANTISED];
            take_digit(whole, bytes);
            reorder(bytes, order, dwords);
            reorder(bytes + 16, order, dwords + 4);
            for (int place = 0; place < count / 4; place++)
                out[place * width * digits + digit * at.apart] = dwords[place];
        }
    }
}

/* Nothing is read of a vector that is not there. */
INLINE void pack_nothing(const pk_matrix *matrix, int64_t from, int64_t to, int width, const int digits, panel at)
{
    const int run = run_of(matrix->format);
    for (int64_t place = from / 4; place < to / 4; place++)
        for (int digit = 0; digit < digits; digit++)
            at.dwords[place * width * digits + digit * at.apart] = 0;
    for (int64_t place = from / PK_QUANTISED; place < (to + PK_QUANTISED - 1) / PK_QUANTISED; place++)
        at.factors[place * width] = 0.0f;
    for (int64_t place = from / run; place < to / run; place++)
        at.sums[place * width] = 0.0f;
}

/* Columns [from, to) of vector `place` of a panel, whose digits are so many dwords apart: 1, or as many as there are vectors. */
INLINE void pack_one(const pk_matrix *matrix, const float *x, int64_t from, int64_t to, int width, int place,
                     const int digits, const int apart, float *memory)
{
    const panel first = panel_at(memory, matrix->columns, width, digits);
    const int64_t dword = apart == 1 ? (int64_t)place * digits : place;
    const panel at = {first.dwords + dword, first.factors + place, first.sums + place, apart};
    if (x == NULL) {
        pack_nothing(matrix, from, to, width, digits, at);
        return;
    }
    uint8_t order[16];
    for (int index = 0; index < 16; index++)
        order[index] = (uint8_t)column_of(matrix->bits, index / 4, index % 4);
    pack_vector(matrix, x, from, to, width, digits, order, at);
}

INLINE void load_group(const pk_matrix *matrix, const int format, int64_t at, F *scale, F *bias)
{
    if (format == PK_AFFINE) {
        *scale = load_as(matrix->type, matrix->scales, at);
        *bias = load_as(matrix->type, matrix->biases, at);
        return;
    }
    *scale = load_scale(format, matrix->scales, at) * 0.5f; /* as the bytes of fp4 are twice its numbers, and 12 */
    *bias = *scale * -12.0f;
}
