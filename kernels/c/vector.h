/* Vectors of LANES numbers, by the vector extensions of GCC and Clang. A file defines LANES before it includes this;
 * what they cannot say is written with intrinsics of the instruction set that the file is compiled for. */
#ifndef PK_VECTOR_H
#define PK_VECTOR_H

#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float F __attribute__((vector_size(LANES * 4)));
typedef uint32_t U __attribute__((vector_size(LANES * 4)));
typedef int32_t I __attribute__((vector_size(LANES * 4)));
typedef uint16_t H __attribute__((vector_size(LANES * 2)));
typedef uint8_t B __attribute__((vector_size(LANES)));
typedef float F_memory __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t U_memory __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint16_t H_memory __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
typedef uint8_t B_memory __attribute__((vector_size(LANES), aligned(1), may_alias));

INLINE F load(const float *p) { return *(const F_memory *)p; }
INLINE void store(float *p, F v) { *(F_memory *)p = v; }
INLINE U load_words(const uint32_t *p) { return *(const U_memory *)p; }
INLINE F splat(float x) { return x - (F){0}; }
INLINE F choose(I mask, F yes, F no) { return (F)(((I)yes & mask) | ((I)no & ~mask)); }

INLINE F larger(F a, F b)
{
#if LANES == 16
    return _mm512_max_ps(a, b);
#elif LANES == 8
    return _mm256_max_ps(a, b);
#else
    return choose(a > b, a, b);
#endif
}

INLINE F from_bfloat16(H v) { return (F)(__builtin_convertvector(v, U) << 16); }

INLINE F from_float16(H v)
{
#if LANES == 16
    return _mm512_cvtph_ps((__m256i)v);
#elif LANES == 8
    return _mm256_cvtph_ps((__m128i)v);
#elif defined(__aarch64__)
    return (F)vcvt_f32_f16((float16x4_t)v);
#else
    /* Exponent and fraction shifted into place are the number times 2^-112, subnormal ones too; stored weights are
     * finite. */
    U wide = __builtin_convertvector(v, U);
    F size = (F)((wide & 0x7fff) << 13) * 0x1p112f;
    return (F)((U)size | ((wide & 0x8000) << 16));
#endif
}

/* Weights are read once, from the first to the last, and the machine by itself does not look beyond a page of 4 KiB. Brings
 * near what lies that far behind `p`, as many bytes; it need not be there. */
INLINE void fetch_ahead(const void *p, int bytes)
{
    enum { AHEAD = 4096, LINE = 64 };
#pragma GCC unroll 8
    for (int line = 0; line < bytes; line += LINE)
        __builtin_prefetch((const void *)((uintptr_t)p + (uintptr_t)(AHEAD + line)));
}

/* LANES numbers of a stored type, from element `index` on. */
INLINE F load_as(int type, const void *p, int64_t index)
{
    if (type == PK_F32)
        return load((const float *)p + index);
    H v = *(const H_memory *)((const uint16_t *)p + index);
    return type == PK_F16 ? from_float16(v) : from_bfloat16(v);
}

/* LANES scales of fp4, from element `index` on: powers of two less 127 (MXFP4), or numbers of sign, 4 bits of exponent and
 * 3 of fraction (NVFP4), whose places in float16 are 2^8 apart. */
INLINE F load_scale(const int format, const void *p, int64_t index)
{
    U byte = __builtin_convertvector(*(const B_memory *)((const uint8_t *)p + index), U);
    if (format == PK_MXFP4)
        return (F)((byte << 23) | ((U)(byte == 0) & 0x400000));
    return from_float16(__builtin_convertvector(((byte & 0x80) << 8) | ((byte & 0x7f) << 7), H)) * 0x1p8f;
}

INLINE float sum_of(F v)
{
#if LANES == 16
    return _mm512_reduce_add_ps(v);
#elif LANES == 8
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
#else
    return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

#if LANES == 16
INLINE F fold_words(F a, F b) { return _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b); }
INLINE F fold_pairs(F a, F b)
{
    return (F)_mm512_unpacklo_pd((__m512d)a, (__m512d)b) + (F)_mm512_unpackhi_pd((__m512d)a, (__m512d)b);
}
INLINE F fold_quarters(F a, F b) { return _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd); }
#endif

/* The sum of each of LANES vectors: half as many vectors with halves of the sums side by side, again and again. */
INLINE F sums_of(const F *vectors)
{
#if LANES == 16
    F four[4];
#pragma GCC unroll 4
    for (int first = 0; first < 16; first += 4) {
        const F *v = vectors + first;
        /* Each quarter of a register has a part of the sums of four vectors, in their order. */
        four[first / 4] = fold_pairs(fold_words(v[0], v[1]), fold_words(v[2], v[3]));
    }
    return fold_quarters(fold_quarters(four[0], four[1]), fold_quarters(four[2], four[3]));
#else
    F found;
#pragma GCC unroll 8
    for (int lane = 0; lane < LANES; lane++)
        found[lane] = sum_of(vectors[lane]);
    return found;
#endif
}

INLINE float largest_of(F v)
{
#if LANES == 16
    return _mm512_reduce_max_ps(v);
#elif LANES == 8
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
#else
    float found = v[0];
    for (int lane = 1; lane < LANES; lane++)
        found = v[lane] > found ? v[lane] : found;
    return found;
#endif
}

#if defined(__AVX2__)
enum { TURNED = 8 }; /* rows, and numbers of them, that change places in registers */

/* TURNED numbers of as many rows become rows themselves: first words change places, then pairs of them, then halves of
 * registers. */
INLINE void turn(const float *from, int64_t stride, float *out, int64_t out_stride)
{
    __m256 rows[TURNED], words[TURNED];
#pragma GCC unroll 8
    for (int row = 0; row < TURNED; row++)
        rows[row] = _mm256_loadu_ps(from + row * stride);
#pragma GCC unroll 4
    for (int row = 0; row < TURNED; row += 2) {
        words[row] = _mm256_unpacklo_ps(rows[row], rows[row + 1]);
        words[row + 1] = _mm256_unpackhi_ps(rows[row], rows[row + 1]);
    }
#pragma GCC unroll 4
    for (int row = 0; row < TURNED; row += 4)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            rows[row + 2 * half] = _mm256_shuffle_ps(words[row + half], words[row + 2 + half], 0x44);
            rows[row + 2 * half + 1] = _mm256_shuffle_ps(words[row + half], words[row + 2 + half], 0xee);
        }
#pragma GCC unroll 4
    for (int row = 0; row < TURNED / 2; row++) {
        _mm256_storeu_ps(out + row * out_stride, _mm256_permute2f128_ps(rows[row], rows[row + 4], 0x20));
        _mm256_storeu_ps(out + (row + 4) * out_stride, _mm256_permute2f128_ps(rows[row], rows[row + 4], 0x31));
    }
}
#else
enum { TURNED = 1 };
INLINE void turn(const float *from, int64_t stride, float *out, int64_t out_stride)
{
    *out = *from, (void)stride, (void)out_stride;
}
#endif

/* e to the power of x: 0 below what float32 holds without becoming subnormal, and finite above. x = n ln 2 + r, and a
 * polynomial for e^r (the method and factors of Cephes' expf): right to 1.5 units of the last place. */
INLINE F exponential(F x)
{
    const float rounding = 0x1.8p23f; /* leaves the nearest integer in the lowest bits */
    I vanishing = x < -87.3f;
    x = choose(x > 88.0f, splat(88.0f), x);
    x = choose(vanishing, splat(0.0f), x);
    F shifted = x * 1.44269504088896341f + rounding;
    F n = shifted - rounding;
    F r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    F power = r * 1.9875691500e-4f + 1.3981999507e-3f;
    power = power * r + 8.3334519073e-3f;
    power = power * r + 4.1665795894e-2f;
    power = power * r + 1.6666665459e-1f;
    power = power * r + 5.0000001201e-1f;
    power = power * (r * r) + r + 1.0f;
    F whole = (F)((U)power + ((U)shifted << 23));
    return (F)((I)whole & ~vanishing);
}

INLINE F hyperbolic_tangent(F x) { return 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f); }

#endif
