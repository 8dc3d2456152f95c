/* Products of matrices with vectors, shared out among the threads; and rows of packed matrices as numbers. */
#include "context.h"

#include <math.h>
#include <string.h>

enum { PARTS_A_THREAD = 8 }; /* of a product: small enough that threads end at about the same time */

static int64_t blocks_of(const pk_matrix *matrix) { return (matrix->rows + PK_BLOCK - 1) / PK_BLOCK; }

static int64_t size_of(int type) { return type == PK_F32 ? 4 : 2; }

static int is_affine(const pk_matrix *matrix) { return matrix->format == PK_AFFINE; }

static int64_t words_of(const pk_matrix *m) { return blocks_of(m) * (m->columns * m->bits / 32) * PK_BLOCK; }

static int64_t scales_of(const pk_matrix *m) { return blocks_of(m) * (m->columns / m->group) * PK_BLOCK; }

static int check_affine(const pk_matrix *m)
{
    if (m->bits < 2 || m->bits > 8 || m->bits == 7)
        return pk_refuse("Weights are packed in 2, 3, 4, 5, 6 or 8 bits.");
    if (m->group != 32 && m->group != 64 && m->group != 128)
        return pk_refuse("Groups of packed weights have 32, 64 or 128 columns.");
    if (m->columns % m->group != 0)
        return pk_refuse("The columns of a packed matrix are whole groups.");
    int64_t scales = scales_of(m) * size_of(m->type);
    if (m->scales == NULL || m->biases == NULL || m->scale_bytes < scales || m->bias_bytes < scales)
        return pk_refuse("A packed matrix has too few scales or biases for its shape.");
    if (m->weight_bytes < words_of(m) * 4)
        return pk_refuse("A packed matrix has too few words for its shape.");
    return PK_OK;
}

static int check_fp4(const pk_matrix *m)
{
    if (m->bits != 4 || m->group != (m->format == PK_MXFP4 ? 32 : 16))
        return pk_refuse("MXFP4 has groups of 32 columns, NVFP4 of 16, and both have 4 bits.");
    if (m->columns % m->group != 0)
        return pk_refuse("The columns of a packed matrix are whole groups.");
    if (m->scales == NULL || m->scale_bytes < scales_of(m) || m->weight_bytes < words_of(m) * 4)
        return pk_refuse("A packed matrix has too few scales or words for its shape.");
    return PK_OK;
}

static int check_dense(const pk_matrix *m)
{
    if (m->bits != 8 * size_of(m->type))
        return pk_refuse("Dense weights have the bits of their type.");
    if (m->weight_bytes < blocks_of(m) * m->columns * PK_BLOCK * size_of(m->type))
        return pk_refuse("A matrix has too few weights for its shape.");
    return PK_OK;
}

int pk_check(const pk_matrix *m)
{
    const int64_t most = (int64_t)1 << 31; /* so that no product of sizes overflows */
    if (m->rows < 1 || m->columns < 1 || m->rows >= most || m->columns >= most / 64)
        return pk_refuse("A matrix has a size that is not possible.");
    if (m->type < PK_F32 || m->type > PK_BF16)
        return pk_refuse("Weights are stored as float32, float16 or bfloat16.");
    if (m->weights == NULL)
        return pk_refuse("A matrix has no weights.");
    if (m->addend != NULL && m->addend_bytes < blocks_of(m) * PK_BLOCK * 4)
        return pk_refuse("The bias of a linear layer is too short for its rows.");
    switch (m->format) {
    case PK_AFFINE: return check_affine(m);
    case PK_DENSE: return check_dense(m);
    case PK_MXFP4:
    case PK_NVFP4: return check_fp4(m);
    default: return pk_refuse("A matrix is stored in a way that is not known.");
    }
}

/* One matrix is cut into parts of whole tiles; the parts of all matrices are the chunks of one job. */
typedef struct product_job {
    const pk_context *context;
    const pk_products *products;
    const pk_int8 *int8; /* or NULL: the panels are float32 */
    const float *panels, *sums;
    int64_t tokens;
    int width;
    int64_t part_rows;
    int64_t parts_before[4]; /* parts of the matrices before each */
} product_job;

static void multiply_rows(const product_job *job, int index, int64_t first, int64_t last, int thread)
{
    const pk_products *products = job->products;
    pk_tile tile = {
        .matrix = products->matrices[index],
        .panels = job->panels,
        .sums = job->sums,
        .tokens = job->tokens,
        .width = job->width,
        .accumulate = products->accumulate,
        .out = products->outs[index],
        .out_stride = products->out_strides[index],
    };
    if (job->int8 != NULL)
        job->int8->multiply(&tile, first, last);
    else
        job->context->isa->multiply(&tile, first, last, pk_scratch_of(job->context, thread));
}

static void multiply_part(void *argument, int64_t chunk, int thread)
{
    const product_job *job = argument;
    const pk_products *products = job->products;
    int index = 0;
    while (chunk >= job->parts_before[index + 1])
        index++;
    int64_t rows = products->matrices[index]->rows, first = (chunk - job->parts_before[index]) * job->part_rows;
    int64_t last = first + job->part_rows < rows ? first + job->part_rows : rows;
    multiply_rows(job, index, first, last, thread);
    if (!products->gate)
        return;
    multiply_rows(job, 1, first, last, thread);
    for (int64_t token = 0; token < job->tokens; token++) {
        float *gate = products->outs[0] + token * products->out_strides[0] + first;
        const float *up = products->outs[1] + token * products->out_strides[1] + first;
        job->context->isa->gated(products->activation, gate, up, last - first, gate);
    }
}

/* Columns of a panel of whole numbers that one thread packs at a time: about NUMBERS_A_CHUNK of all its vectors. These lie side
 * by side, so that threads which shared out the vectors would write into the same lines of the cache. */
enum { NUMBERS_A_CHUNK = 4096 };

static int64_t columns_together(const product_job *job)
{
    const int64_t columns = job->products->matrices[0]->columns;
    const int64_t parts = (columns * job->width + NUMBERS_A_CHUNK - 1) / NUMBERS_A_CHUNK;
    return ((columns + parts - 1) / parts + PK_QUANTISED - 1) / PK_QUANTISED * PK_QUANTISED;
}

typedef struct pack_job {
    const product_job *job;
    const float *x;
    int64_t stride;
    float *panels;
    int64_t parts; /* of each panel */
} pack_job;

/* A panel of float32, or some columns of one of whole numbers, which take longer to make. */
static void pack_panel(void *argument, int64_t chunk, int thread)
{
    const pack_job *packing = argument;
    const product_job *job = packing->job;
    (void)thread;
    const pk_matrix *matrix = job->products->matrices[0];
    if (job->int8 == NULL) {
        const int64_t first = chunk * job->width, left = job->tokens - first;
        job->context->isa->pack(packing->x + first * packing->stride, packing->stride, left < job->width ? left : job->width,
                                matrix->columns, job->width, packing->panels + first * matrix->columns);
        return;
    }
    const int64_t columns = columns_together(job), first = chunk / packing->parts * job->width;
    const int64_t from = chunk % packing->parts * columns;
    const int64_t to = from + columns < matrix->columns ? from + columns : matrix->columns;
    for (int64_t token = first; token < first + job->width; token++)
        job->int8->pack(matrix, token < job->tokens ? packing->x + token * packing->stride : NULL, from, to, job->tokens,
                        token, packing->panels);
}

/* Bring the vectors into panels, or one vector's sums of groups beside it. */
static int prepare(pk_context *context, product_job *job, const pk_products *products, const float *x, int64_t stride)
{
    const pk_matrix *matrix = products->matrices[0];
    const pk_isa *isa = context->isa;
    if (job->width == 1 && job->int8 == NULL) {
        if (pk_enlarge(&context->panels, &context->panels_size, matrix->columns) != PK_OK)
            return PK_REFUSED;
        if (is_affine(matrix))
            isa->sum(x, matrix->columns, matrix->group, context->panels);
        job->panels = x;
        job->sums = context->panels;
        return PK_OK;
    }
    const int64_t panels = (job->tokens + job->width - 1) / job->width;
    const int64_t size = job->int8 != NULL ? job->int8->size(matrix->columns, job->tokens)
                                           : panels * job->width * matrix->columns;
    if (pk_enlarge(&context->panels, &context->panels_size, size) != PK_OK)
        return PK_REFUSED;
    job->panels = context->panels;
    const int64_t together = job->int8 != NULL ? columns_together(job) : matrix->columns;
    pack_job packing = {job, x, stride, context->panels, (matrix->columns + together - 1) / together};
    pk_pool_run(context->pool, pack_panel, &packing, panels * packing.parts);
    return PK_OK;
}

int pk_share_panels(const pk_context *context, const pk_matrix *one, const pk_matrix *other)
{
    if (one->group != other->group || is_affine(one) != is_affine(other))
        return 0;
    return (context->int8 == NULL && context->exact == NULL) || (one->bits == other->bits && one->format == other->format);
}

const pk_int8 *pk_int8_for(const pk_context *context, const pk_matrix *matrix, int64_t tokens)
{
    if (matrix->format == PK_DENSE)
        return NULL;
    const pk_int8 *set = context->int8;
    /* As bytes the numbers of fp4 have an offset, which float32 does not hold for the largest of their scales. */
    if (set == NULL)
        set = is_affine(matrix) ? context->exact : NULL;
    if (set != NULL && set->words != NULL && matrix->bits == 8)
        set = set->words;
    return set != NULL && set->pays(matrix->bits, tokens) ? set : NULL;
}

static int are_alike(const pk_context *context, const pk_products *products)
{
    for (int index = 1; index < products->count; index++)
        if (!pk_share_panels(context, products->matrices[0], products->matrices[index]))
            return 0;
    return 1;
}

static int multiply_apart(pk_context *context, const pk_products *products, const float *x, int64_t stride,
                          int64_t tokens)
{
    for (int index = 0; index < products->count; index++) {
        pk_products one = {.matrices = {products->matrices[index]},
                           .outs = {products->outs[index]},
                           .out_strides = {products->out_strides[index]},
                           .count = 1,
                           .accumulate = products->accumulate};
        if (pk_multiply(context, &one, x, stride, tokens) != PK_OK)
            return PK_REFUSED;
    }
    if (products->gate)
        for (int64_t token = 0; token < tokens; token++) {
            float *gate = products->outs[0] + token * products->out_strides[0];
            context->isa->gated(products->activation, gate, products->outs[1] + token * products->out_strides[1],
                                products->matrices[0]->rows, gate);
        }
    return PK_OK;
}

int pk_multiply(pk_context *context, const pk_products *products, const float *x, int64_t stride, int64_t tokens)
{
    if (!are_alike(context, products))
        return multiply_apart(context, products, x, stride, tokens);
    const pk_int8 *int8 = pk_int8_for(context, products->matrices[0], tokens);
    product_job job = {.context = context,
                       .products = products,
                       .int8 = int8,
                       .tokens = tokens,
                       .width = int8 != NULL ? int8->width(tokens) : context->isa->width(tokens)};
    if (prepare(context, &job, products, x, stride) != PK_OK)
        return PK_REFUSED;
    int shared = products->gate ? 1 : products->count;
    int64_t rows = 0, unit = tokens >= context->isa->many ? context->isa->unpacked : PK_BLOCK;
    for (int index = 0; index < shared; index++)
        rows += products->matrices[index]->rows;
    int64_t part = rows / ((int64_t)pk_pool_threads(context->pool) * PARTS_A_THREAD);
    job.part_rows = part / unit * unit + unit;
    for (int index = 0; index < shared; index++)
        job.parts_before[index + 1] =
            job.parts_before[index] + (products->matrices[index]->rows + job.part_rows - 1) / job.part_rows;
    pk_pool_run(context->pool, multiply_part, &job, job.parts_before[shared]);
    return PK_OK;
}

int pk_product(pk_context *context, const pk_matrix *matrix, const float *x, int64_t x_stride, int64_t tokens,
               float *out, int64_t out_stride)
{
    if (pk_check(matrix) != PK_OK)
        return PK_REFUSED;
    if (tokens < 1 || x_stride < matrix->columns || out_stride < matrix->rows)
        return pk_refuse("The vectors of a product do not have the size of its matrix.");
    pk_products products = {.matrices = {matrix}, .outs = {out}, .out_strides = {out_stride}, .count = 1};
    return pk_multiply(context, &products, x, x_stride, tokens);
}

/* Rows as numbers */

static float from_half(uint16_t half)
{
    uint32_t size = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    float found;
    memcpy(&found, &size, sizeof found);
    found *= 0x1p112f;
    memcpy(&size, &found, sizeof size);
    size |= sign;
    memcpy(&found, &size, sizeof found);
    return found;
}

static float number_at(int type, const void *p, int64_t index)
{
    if (type == PK_F32)
        return ((const float *)p)[index];
    uint16_t half = ((const uint16_t *)p)[index];
    if (type == PK_F16)
        return from_half(half);
    uint32_t bits = (uint32_t)half << 16;
    float found;
    memcpy(&found, &bits, sizeof found);
    return found;
}

/* Numbers of 8 bits: sign, 4 bits of exponent and 3 of fraction; their places in float16 are one exponent apart. */
static float from_e4m3(uint8_t byte)
{
    return from_half((uint16_t)((byte & 0x80) << 8 | (byte & 0x7f) << 7)) * 0x1p8f;
}

static float fp4_scale(const pk_matrix *m, int64_t index)
{
    uint8_t byte = ((const uint8_t *)m->scales)[index];
    return m->format == PK_MXFP4 ? ldexpf(1.0f, byte - 127) : from_e4m3(byte);
}

static float weight_of(const pk_matrix *m, uint32_t found, int64_t at)
{
    static const float sizes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    if (is_affine(m))
        return (float)found * number_at(m->type, m->scales, at) + number_at(m->type, m->biases, at);
    return (found & 8 ? -sizes[found & 7] : sizes[found & 7]) * fp4_scale(m, at);
}

static void packed_row(const pk_matrix *m, int64_t block, int64_t lane, float *out)
{
    const uint32_t *words = (const uint32_t *)m->weights + block * (m->columns * m->bits / 32) * PK_BLOCK + lane;
    const int64_t groups = m->columns / m->group;
    for (int64_t column = 0; column < m->columns; column++) {
        int64_t bit = column * m->bits, word = bit / 32, shift = bit % 32;
        uint32_t found = words[word * PK_BLOCK] >> shift;
        if (shift + m->bits > 32)
            found |= words[(word + 1) * PK_BLOCK] << (32 - shift);
        found &= (1u << m->bits) - 1;
        out[column] = weight_of(m, found, (block * groups + column / m->group) * PK_BLOCK + lane);
    }
}

int pk_rows(const pk_matrix *matrix, const int32_t *indexes, int64_t count, float *out)
{
    if (pk_check(matrix) != PK_OK)
        return PK_REFUSED;
    for (int64_t place = 0; place < count; place++, out += matrix->columns) {
        int64_t row = indexes[place];
        if (row < 0 || row >= matrix->rows)
            return pk_refuse("A token is not one of the vocabulary.");
        int64_t block = row / PK_BLOCK, lane = row % PK_BLOCK;
        if (matrix->format != PK_DENSE)
            packed_row(matrix, block, lane, out);
        else
            for (int64_t column = 0; column < matrix->columns; column++)
                out[column] =
                    number_at(matrix->type, matrix->weights, (block * matrix->columns + column) * PK_BLOCK + lane);
    }
    return PK_OK;
}

/* Norms and activations of whole arrays */

void pk_rms_norm(pk_context *context, const float *x, const float *weight, float eps, int64_t count, int64_t size,
                 float *out)
{
    for (int64_t vector = 0; vector < count; vector++)
        context->isa->rms_norm(x + vector * size, weight, eps, size, out + vector * size);
}

void pk_layer_norm(pk_context *context, const float *x, const float *weight, const float *bias, float eps,
                   int64_t count, int64_t size, float *out)
{
    for (int64_t vector = 0; vector < count; vector++)
        context->isa->layer_norm(x + vector * size, weight, bias, eps, size, out + vector * size);
}

void pk_gated(pk_context *context, int activation, const float *gate, const float *up, int64_t count, float *out)
{
    context->isa->gated(activation, gate, up, count, out);
}
