/* int8 by ARM's products of bytes without a sign with bytes that have one (USDOT, of ARMv8.6). */
#include "isa.h"
#if defined(__aarch64__) && defined(__ARM_FEATURE_MATMUL_INT8)
#define LANES 4
#define WIDEST 8
#define PRODUCTS PK_USDOT
#define SUMS 6
#include "int8.inl"

#include <sys/auxv.h>

#ifndef HWCAP2_I8MM /* which older headers lack */
#define HWCAP2_I8MM (1 << 13)
#endif

const pk_int8 *pk_int8_neon_i8mm(void)
{
    static const pk_int8 exact = {.name = "neon-i8mm", EXACT_FUNCTIONS};
    static const pk_int8 set = {.name = "neon-i8mm", .exact = &exact, INT8_FUNCTIONS};
    return getauxval(AT_HWCAP2) & HWCAP2_I8MM ? &set : NULL;
}
#else
const pk_int8 *pk_int8_neon_i8mm(void) { return NULL; }
#endif
