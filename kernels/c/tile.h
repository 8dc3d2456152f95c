/* What a tile of a product begins with and where it goes, whatever its numbers are. */
#ifndef PK_TILE_H
#define PK_TILE_H

#include "isa.h"
#include "vector.h"

/* Some lanes at the end of a matrix belong to no row. */
INLINE F load_some(const float *p, int64_t count)
{
    if (count >= LANES)
        return load(p);
    float lanes[LANES] = {0};
    for (int64_t lane = 0; lane < count; lane++)
        lanes[lane] = p[lane];
    return load(lanes);
}

INLINE void store_some(float *p, F v, int64_t count)
{
    if (count >= LANES) {
        store(p, v);
        return;
    }
    float lanes[LANES];
    store(lanes, v);
    for (int64_t lane = 0; lane < count; lane++)
        p[lane] = lanes[lane];
}

/* What a sum begins with; `goes_on` where earlier columns are summed up in `out` already. */
INLINE F beginning(const pk_tile *tile, int64_t token, int64_t row, int goes_on)
{
    const pk_matrix *matrix = tile->matrix;
    F sum = {0};
    if (token >= tile->tokens || row >= matrix->rows)
        return sum;
    if (tile->accumulate || goes_on)
        sum = load_some(tile->out + token * tile->out_stride + row, matrix->rows - row);
    if (matrix->addend != NULL && !goes_on)
        sum += load(matrix->addend + row);
    return sum;
}

INLINE void finish(const pk_tile *tile, int64_t token, int64_t row, F sum)
{
    if (token < tile->tokens && row < tile->matrix->rows)
        store_some(tile->out + token * tile->out_stride + row, sum, tile->matrix->rows - row);
}

#endif
