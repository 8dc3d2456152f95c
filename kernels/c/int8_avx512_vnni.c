/* int8 by AVX-512's VNNI. */
#include "isa.h"
#if defined(__AVX512VNNI__)
#define LANES 16
#define WIDEST 16
#define DEEP 16
#define PRODUCTS PK_VNNI
#define SUMS 16
#include "int8.inl"
#include "processor.h"

const pk_int8 *pk_int8_avx512_vnni(void)
{
    static const pk_int8 exact = {.name = "avx512-vnni", EXACT_FUNCTIONS};
    static const pk_int8 set = {.name = "avx512-vnni", .exact = &exact, INT8_FUNCTIONS};
    return pk_isa_avx512() != NULL && pk_has_leaf_7(0, PK_LEAF_7_ECX_AVX512VNNI) ? &set : NULL;
}
#else
const pk_int8 *pk_int8_avx512_vnni(void) { return NULL; }
#endif
