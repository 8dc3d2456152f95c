/* Matrices of random numbers, each in memory of exactly the size that it needs. */
#ifndef PK_MADE_H
#define PK_MADE_H

#include "../c/pippin_kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned state = 1;

static float number(void)
{
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / (float)(1 << 23) - 1.0f;
}

static void *filled(int64_t count, int type)
{
    void *memory = malloc((size_t)count * (type == PK_F32 ? 4 : 2));
    for (int64_t index = 0; index < count; index++) {
        float value = number() * 0.1f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (type == PK_F32)
            ((float *)memory)[index] = value;
        else /* bfloat16, or a small number as float16 */
            ((uint16_t *)memory)[index] = type == PK_BF16 ? (uint16_t)(bits >> 16) : (uint16_t)(0x2000 | (bits & 0x83ff));
    }
    return memory;
}

static pk_matrix matrix_of(int64_t rows, int64_t columns, int bits, int group, int type)
{
    int64_t blocks = (rows + PK_BLOCK - 1) / PK_BLOCK, size = type == PK_F32 ? 4 : 2;
    pk_matrix m = {.rows = rows, .columns = columns, .bits = bits, .group = group, .type = type};
    m.format = bits > 8 ? PK_DENSE : PK_AFFINE;
    if (bits <= 8) {
        m.weight_bytes = blocks * (columns * bits / 32) * PK_BLOCK * 4;
        uint32_t *words = malloc((size_t)m.weight_bytes);
        for (int64_t index = 0; index < m.weight_bytes / 4; index++)
            words[index] = state = state * 1664525u + 1013904223u;
        m.weights = words;
        m.scale_bytes = m.bias_bytes = blocks * (columns / group) * PK_BLOCK * size;
        m.scales = filled(m.scale_bytes / size, type);
        m.biases = filled(m.bias_bytes / size, type);
    } else {
        m.weight_bytes = blocks * columns * PK_BLOCK * size;
        m.weights = filled(blocks * columns * PK_BLOCK, type);
    }
    m.addend = filled(blocks * PK_BLOCK, PK_F32);
    m.addend_bytes = blocks * PK_BLOCK * 4;
    return m;
}

static pk_matrix float4_of(int64_t rows, int64_t columns, int format)
{
    const int group = format == PK_MXFP4 ? 32 : 16;
    pk_matrix m = matrix_of(rows, columns, 4, 32, PK_F32);
    free((void *)m.scales);
    free((void *)m.biases);
    m.format = format;
    m.group = group;
    m.biases = NULL;
    m.bias_bytes = 0;
    m.scale_bytes = (rows + PK_BLOCK - 1) / PK_BLOCK * (columns / group) * PK_BLOCK;
    uint8_t *scales = malloc((size_t)m.scale_bytes);
    for (int64_t index = 0; index < m.scale_bytes; index++)
        scales[index] = (uint8_t)(format == PK_MXFP4 ? 120 + index % 9 : index % 0x7f);
    m.scales = scales;
    return m;
}

static void release(pk_matrix *m)
{
    free((void *)m->weights);
    free((void *)m->scales);
    free((void *)m->biases);
    free((void *)m->addend);
}

#endif
