/* int8 by the tiles of AMX, for 16 vectors and more. It was only run as the model in `amx.h`, never on a processor, and so is used
 * where it is named alone. */
#include "amx.h"
#include "isa.h"
#if defined(__AVX512VNNI__) && (defined(__AMX_INT8__) || defined(PK_AMX_MODEL)) && defined(__linux__)
#define LANES 16
#define TILED 1
#include "int8_panels.inl"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    WIDTH = 16,  /* vectors of a panel, and rows of a tile of sums */
    PANELS = 4,  /* that are multiplied with the same bytes of weights */
    FEWEST = 16, /* vectors that pay */
};

/* Tile 0 has weights, tiles 1 and 2 have vectors in turns, and 4 to 7 the sums of each panel. Rows of sums are vectors, and columns
 * are rows of the matrix: a register of weights is one row of their tile. */
static void configure(int run)
{
    amx_config config = {.palette = 1};
    config.rows[0] = (uint8_t)(run / 4);
    config.column_bytes[0] = 4 * LANES;
    for (int tile = 1; tile <= 2; tile++) {
        config.rows[tile] = WIDTH;
        config.column_bytes[tile] = (uint16_t)run;
    }
    for (int tile = 4; tile < 4 + PANELS; tile++) {
        config.rows[tile] = WIDTH;
        config.column_bytes[tile] = 4 * LANES;
    }
    amx_configure(&config);
}

typedef struct tiles {
    _Alignas(64) int32_t dots[PANELS][WIDTH][LANES];
    _Alignas(64) uint32_t weights[PK_QUANTISED / 4][LANES];
} tiles;

#define MULTIPLY_PANEL(INDEX, VECTORS, SUMS)                                                                           \
    if (INDEX < panels) {                                                                                              \
        amx_zero(SUMS);                                                                                                \
        amx_load(VECTORS, dwords + INDEX * panel, run);                                                                \
        amx_dot(SUMS, VECTORS, 0);                                                                                     \
    }
#define STORE_PANEL(INDEX, SUMS)                                                                                       \
    if (INDEX < panels)                                                                                                \
        amx_store(SUMS, memory->dots[INDEX], 4 * LANES);

/* The dots of one run of columns. `panel` is the distance in dwords between two panels. */
INLINE void multiply_run(tiles *memory, const uint32_t *words, const uint32_t *dwords, int64_t panel, int panels,
                         const int format, const int bits)
{
    const int run = run_of(format), words_a_run = bits * run / 32;
    if (bits == 8)
        amx_load(0, words, 4 * PK_BLOCK); /* which the words are already */
    else {
        U held[9];
        for (int word = 0; word < words_a_run; word++)
            held[word] = load_words(words + word * PK_BLOCK);
        held[words_a_run] = held[0]; /* fields cross words, but for the last */
#pragma GCC unroll 8
        for (int place = 0; place < run / 4; place++) {
            const U found = quad(held, format, bits, place);
            memcpy(memory->weights[place], &found, sizeof found);
        }
        amx_load(0, memory->weights, 4 * LANES);
    }
    MULTIPLY_PANEL(0, 1, 4)
    MULTIPLY_PANEL(1, 2, 5)
    MULTIPLY_PANEL(2, 1, 6)
    MULTIPLY_PANEL(3, 2, 7)
    STORE_PANEL(0, 4)
    STORE_PANEL(1, 5)
    STORE_PANEL(2, 6)
    STORE_PANEL(3, 7)
}

/* The 16 rows from `row` on with `panels` panels, of which `first` is the first. */
INLINE void multiply_block(const pk_tile *tile, tiles *memory, int64_t first, int panels, int64_t row, const int format,
                           const int bits)
{
    const pk_matrix *matrix = tile->matrix;
    const int64_t block = row / PK_BLOCK, columns = matrix->columns, size = size_of_panel(columns, WIDTH, 1);
    const int run = run_of(format);
    const int64_t runs = columns / run, runs_a_group = matrix->group / run, groups = runs / runs_a_group;
    const uint32_t *words = (const uint32_t *)matrix->weights + block * (columns * bits / 32) * PK_BLOCK;
    const float *const held = tile->panels + first * size;
    F sums[PANELS * WIDTH], scale = {0}, bias = {0};
    for (int token = 0; token < panels * WIDTH; token++)
        sums[token] = beginning(tile, first * WIDTH + token, row, 0);
    for (int64_t place = 0; place < runs; place++, words += bits * run / 32 * PK_BLOCK) {
        if (place % runs_a_group == 0)
            load_group(matrix, format, (block * groups + place / runs_a_group) * PK_BLOCK, &scale, &bias);
        const panel x = panel_at(held, columns, WIDTH, 1);
        multiply_run(memory, words, x.dwords + place * WIDTH * (run / 4), size, panels, format, bits);
        for (int panel = 0; panel < panels; panel++) {
            const float *factors = x.factors + panel * size + place * run / PK_QUANTISED * WIDTH;
            const float *totals = x.sums + panel * size + place * WIDTH;
#pragma GCC unroll 16
            for (int token = 0; token < WIDTH; token++) {
                I dots;
                memcpy(&dots, memory->dots[panel][token], sizeof dots);
                F sum = sums[panel * WIDTH + token];
                sum += __builtin_convertvector(dots, F) * (scale * factors[token]);
                sums[panel * WIDTH + token] = sum + bias * totals[token];
            }
        }
    }
    for (int token = 0; token < panels * WIDTH; token++)
        finish(tile, first * WIDTH + token, row, sums[token]);
}

static void multiply_stored(const pk_tile *tile, tiles *memory, int64_t first, int panels, int64_t row)
{
    switch (tile->matrix->format == PK_AFFINE ? tile->matrix->bits : -tile->matrix->format) {
    case 2: multiply_block(tile, memory, first, panels, row, PK_AFFINE, 2); break;
    case 3: multiply_block(tile, memory, first, panels, row, PK_AFFINE, 3); break;
    case 4: multiply_block(tile, memory, first, panels, row, PK_AFFINE, 4); break;
    case 5: multiply_block(tile, memory, first, panels, row, PK_AFFINE, 5); break;
    case 6: multiply_block(tile, memory, first, panels, row, PK_AFFINE, 6); break;
    case 8: multiply_block(tile, memory, first, panels, row, PK_AFFINE, 8); break;
    case -PK_MXFP4: multiply_block(tile, memory, first, panels, row, PK_MXFP4, 4); break;
    default: multiply_block(tile, memory, first, panels, row, PK_NVFP4, 4);
    }
}

static void multiply(const pk_tile *tile, int64_t first, int64_t last)
{
    tiles memory;
    const int64_t all = (tile->tokens + WIDTH - 1) / WIDTH;
    configure(run_of(tile->matrix->format));
    for (int64_t some = 0; some < all; some += PANELS)
        for (int64_t row = first; row < last; row += PK_BLOCK)
            multiply_stored(tile, &memory, some, (int)(all - some < PANELS ? all - some : PANELS), row);
    amx_release();
}

static int pays(int bits, int64_t tokens)
{
    (void)bits;
    return tokens >= FEWEST;
}

static int width(int64_t tokens)
{
    (void)tokens;
    return WIDTH;
}

#if defined(PK_AMX_MODEL)
static int has_amx(void) { return 1; }

static int permit(void) { return 1; }
#else
/* The processor has tiles and products of int8 on them, and the system keeps the tiles' state. */
static int has_amx(void)
{
    enum { TILES_AND_INT8 = 1 << 24 | 1 << 25, SAVED = 1 << 27, TILE_STATE = 1 << 17 | 1 << 18 };
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & SAVED))
        return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & TILES_AND_INT8) != TILES_AND_INT8)
        return 0;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & TILE_STATE) == TILE_STATE;
}

/* Linux lets a process use tiles once it has asked, as their state makes the frames of signals larger. */
static int permit(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif

const pk_int8 *pk_int8_amx(void)
{
    static const pk_int8 set = {
        .name = "amx", .permit = permit, .few = pk_int8_avx512_vnni, .pays = pays, .width = width, .panel_size = panel_size,
        .pack = pack, .multiply = multiply};
    return pk_int8_avx512_vnni() != NULL && has_amx() ? &set : NULL;
}
#else
const pk_int8 *pk_int8_amx(void) { return NULL; }
#endif
