/* What the compiler makes of 4 lanes for the least machine of its target: SSE2 on x86-64, NEON on arm64, or numbers one
 * by one. */
#include "isa.h"
#define LANES 4
#define TABLES 0
#if defined(__aarch64__) /* with 32 registers */
#define WIDEST 8
#define WIDE 8
#else
#define WIDEST 4
#define WIDE 4
#endif
#define MANY 17
#include "kernels.inl"

const pk_isa *pk_isa_baseline(void)
{
#if defined(__aarch64__)
    static const pk_isa isa = {.name = "neon", FUNCTIONS};
#else
    static const pk_isa isa = {.name = "baseline", FUNCTIONS};
#endif
    return &isa;
}
