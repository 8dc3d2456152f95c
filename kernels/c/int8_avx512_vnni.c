/* int8 by AVX-512's VNNI. */
#include "isa.h"
#if defined(__AVX512VNNI__)
#define LANES 16
#define WIDEST 16
#define DEEP 16
#define PRODUCTS PK_VNNI
#define SUMS 16
#include "int8.inl"

const pk_int8 *pk_int8_avx512_vnni(void)
{
    static const pk_int8 exact = {.name = "avx512-vnni", EXACT_FUNCTIONS};
    static const pk_int8 set = {.name = "avx512-vnni", .exact = &exact, INT8_FUNCTIONS};
    __builtin_cpu_init();
    return pk_isa_avx512() != NULL && __builtin_cpu_supports("avx512vnni") ? &set : NULL;
}
#else
const pk_int8 *pk_int8_avx512_vnni(void) { return NULL; }
#endif
