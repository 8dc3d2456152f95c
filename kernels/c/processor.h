/* Which vector instructions this x86 processor has, and the system keeps the registers of.
 *
 * Intel's Software Developer's Manual, volume 2A (CPUID) and volume 1, chapter 13 (XCR0). The processor is asked directly,
 * because `__builtin_cpu_supports` of GCC 10 does not know F16C, and that of Zig's compiler says no to everything. */
#ifndef PK_PROCESSOR_H
#define PK_PROCESSOR_H

#include <cpuid.h>

enum {
    PK_LEAF_1_FMA = 1 << 12,
    PK_LEAF_1_OSXSAVE = 1 << 27,
    PK_LEAF_1_F16C = 1 << 29,
    PK_LEAF_7_AVX2 = 1 << 5,
    PK_LEAF_7_AVX512F = 1 << 16,
    PK_LEAF_7_AVX512DQ = 1 << 17,
    PK_LEAF_7_AVX512BW = 1 << 30,
    PK_LEAF_7_ECX_AVX512VNNI = 1 << 11,
    PK_XCR0_AVX = 0x6,     /* SSE and AVX registers */
    PK_XCR0_AVX512 = 0xe6, /* these, and masks, upper halves and upper registers */
};
#define PK_LEAF_7_AVX512VL (1u << 31) /* too large for an enum */

/* Whether all bits of `wanted` are set in ecx of leaf 1. */
static inline int pk_has_leaf_1(unsigned wanted)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & wanted) == wanted;
}

/* The same of ebx and ecx of leaf 7. */
static inline int pk_has_leaf_7(unsigned ebx, unsigned ecx)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & ebx) == ebx && (c & ecx) == ecx;
}

/* Whether the system keeps the registers of `wanted` when threads change. */
static inline int pk_keeps_registers(unsigned wanted)
{
    unsigned low, high;
    if (!pk_has_leaf_1(PK_LEAF_1_OSXSAVE))
        return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & wanted) == wanted;
}

#endif
