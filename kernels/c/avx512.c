/* AVX-512: 16 lanes, 32 registers. */
#include "isa.h"
#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define LANES 16
#define TABLES 1
#define WIDEST 16
#define WIDE 12
#define MANY 33
#include "kernels.inl"

const pk_isa *pk_isa_avx512(void)
{
    static const pk_isa isa = {.name = "avx512", FUNCTIONS};
    __builtin_cpu_init();
    int runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("fma");
    return runs ? &isa : NULL;
}
#else
const pk_isa *pk_isa_avx512(void) { return NULL; }
#endif
