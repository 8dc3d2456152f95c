/* int8 by AVX-VNNI, which processors without AVX-512 have. */
#include "isa.h"
#if defined(__AVXVNNI__)
#define LANES 8
#define WIDEST 4
#define PRODUCTS PK_VNNI
#define SUMS 8
#include "int8.inl"

#include <cpuid.h>

const pk_int8 *pk_int8_avx2_vnni(void)
{
    static const pk_int8 exact = {.name = "avx2-vnni", EXACT_FUNCTIONS};
    static const pk_int8 set = {.name = "avx2-vnni", .exact = &exact, INT8_FUNCTIONS};
    unsigned a = 0, b, c, d;
    int has_vnni = __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1 << 4);
    return pk_isa_avx2() != NULL && has_vnni ? &set : NULL;
}
#else
const pk_int8 *pk_int8_avx2_vnni(void) { return NULL; }
#endif
