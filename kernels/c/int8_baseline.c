/* int8 by what the compiler makes of 4 lanes: right on any machine, and slower than float32. */
#include "isa.h"
#define LANES 4
#define WIDEST 4
#define PRODUCTS PK_PLAIN
#define SUMS 4
#include "int8.inl"

const pk_int8 *pk_int8_baseline(void)
{
    static const pk_int8 set = {.name = "baseline", INT8_FUNCTIONS};
    return &set;
}
