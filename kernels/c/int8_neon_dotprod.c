/* int8 by the dot products of ARMv8.2 (SDOT). */
#include "isa.h"
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#define LANES 4
#define WIDEST 8
#define PRODUCTS PK_DOT
#define SUMS 6
#include "int8.inl"

#include <sys/auxv.h>

#ifndef HWCAP_ASIMDDP /* which older headers lack */
#define HWCAP_ASIMDDP (1 << 20)
#endif

const pk_int8 *pk_int8_neon_dotprod(void)
{
    static const pk_int8 exact = {.name = "neon-dotprod", EXACT_FUNCTIONS};
    static const pk_int8 set = {.name = "neon-dotprod", .exact = &exact, INT8_FUNCTIONS};
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? &set : NULL;
}
#else
const pk_int8 *pk_int8_neon_dotprod(void) { return NULL; }
#endif
