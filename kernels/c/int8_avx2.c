/* int8 by AVX2: products of 16 bits, added in pairs. */
#include "isa.h"
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define LANES 8
#define WIDEST 4
#define PRODUCTS PK_MADD
#define SUMS 8
#include "int8.inl"

const pk_int8 *pk_int8_avx2(void)
{
    static const pk_int8 words = {.name = "avx2", WORD_FUNCTIONS};
    static const pk_int8 exact = {.name = "avx2", .words = &words, EXACT_FUNCTIONS};
    static const pk_int8 set = {.name = "avx2", .exact = &exact, INT8_FUNCTIONS};
    return pk_isa_avx2() != NULL ? &set : NULL;
}
#else
const pk_int8 *pk_int8_avx2(void) { return NULL; }
#endif
