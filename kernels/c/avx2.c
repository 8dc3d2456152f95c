/* AVX2 with FMA and F16C: 8 lanes, 16 registers. */
#include "isa.h"
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(__AVX512F__)
#define LANES 8
#define TABLES 0
#define WIDEST 8
#define WIDE 6
#define MANY 17
#include "kernels.inl"

#include <cpuid.h>

static int has_f16c(void) /* which __builtin_cpu_supports of GCC 10 does not know */
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

const pk_isa *pk_isa_avx2(void)
{
    static const pk_isa isa = {.name = "avx2", FUNCTIONS};
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() ? &isa : NULL;
}
#else
const pk_isa *pk_isa_avx2(void) { return NULL; }
#endif
