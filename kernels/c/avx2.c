/* AVX2 with FMA and F16C: 8 lanes, 16 registers. */
#include "isa.h"
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(__AVX512F__)
#define LANES 8
#define TABLES 0
#define WIDEST 8
#define WIDE 6
#define MANY 17
#include "kernels.inl"

#include "processor.h"

const pk_isa *pk_isa_avx2(void)
{
    static const pk_isa isa = {.name = "avx2", FUNCTIONS};
    int runs = pk_has_leaf_1(PK_LEAF_1_FMA | PK_LEAF_1_F16C) && pk_has_leaf_7(PK_LEAF_7_AVX2, 0) &&
               pk_keeps_registers(PK_XCR0_AVX);
    return runs ? &isa : NULL;
}
#else
const pk_isa *pk_isa_avx2(void) { return NULL; }
#endif
