/* AVX-512: 16 lanes, 32 registers. */
#include "isa.h"
#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define LANES 16
#define TABLES 1
#define WIDEST 16
#define WIDE 12
#define MANY 33
#include "kernels.inl"
#include "processor.h"

const pk_isa *pk_isa_avx512(void)
{
    static const pk_isa isa = {.name = "avx512", FUNCTIONS};
    unsigned wanted = PK_LEAF_7_AVX512F | PK_LEAF_7_AVX512DQ | PK_LEAF_7_AVX512BW | PK_LEAF_7_AVX512VL;
    int runs = pk_has_leaf_1(PK_LEAF_1_FMA) && pk_has_leaf_7(wanted, 0) && pk_keeps_registers(PK_XCR0_AVX512);
    return runs ? &isa : NULL;
}
#else
const pk_isa *pk_isa_avx512(void) { return NULL; }
#endif
