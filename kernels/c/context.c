/* Opening the library: which instruction set, how many threads, and why something was refused. */
#include "context.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local const char *refusal = "";

int pk_refuse(const char *sentence)
{
    refusal = sentence;
    return PK_REFUSED;
}

const char *pk_refusal(void) { return refusal; }

int pk_abi(void) { return PK_ABI; }

static const pk_isa *nth_isa(int index)
{
    const pk_isa *known[] = {pk_isa_avx512(), pk_isa_avx2(), pk_isa_baseline()};
    for (size_t place = 0; place < sizeof known / sizeof *known; place++)
        if (known[place] != NULL && index-- == 0)
            return known[place];
    return NULL;
}

const char *pk_instruction_set(int index)
{
    const pk_isa *isa = nth_isa(index);
    return isa == NULL ? NULL : isa->name;
}

static const pk_isa *find_isa(const char *name)
{
    const pk_isa *isa = nth_isa(0);
    for (int index = 0; name != NULL && isa != NULL && strcmp(isa->name, name) != 0;)
        isa = nth_isa(++index);
    return isa;
}

static const pk_int8 *nth_int8(int index)
{
    const pk_int8 *known[] = {pk_int8_avx512_vnni(), pk_int8_avx2_vnni(),    pk_int8_avx2(),
                              pk_int8_neon_i8mm(),   pk_int8_neon_dotprod(), pk_int8_baseline()};
    for (size_t place = 0; place < sizeof known / sizeof *known; place++)
        if (known[place] != NULL && index-- == 0)
            return known[place];
    return NULL;
}

const char *pk_int8_set(int index)
{
    const pk_int8 *set = nth_int8(index);
    return set == NULL ? NULL : set->name;
}

static const pk_int8 *find_int8(const char *name)
{
    const pk_int8 *set = nth_int8(0);
    for (int index = 0; name != NULL && set != NULL && strcmp(set->name, name) != 0;)
        set = nth_int8(++index);
    return set;
}

/* The quickest exact products for registers of the width that an instruction set has. */
static const pk_int8 *exact_of(const pk_isa *isa)
{
    const pk_int8 *set = NULL;
    if (isa == pk_isa_avx512())
        set = pk_int8_avx512_vnni();
    else if (isa == pk_isa_avx2())
        set = pk_int8_avx2_vnni() != NULL ? pk_int8_avx2_vnni() : pk_int8_avx2();
    else if (pk_int8_neon_i8mm() != NULL)
        set = pk_int8_neon_i8mm();
    else
        set = pk_int8_neon_dotprod();
    return set == NULL ? NULL : set->exact;
}

static float *allocate(int64_t count)
{
    return aligned_alloc(64, ((size_t)count * sizeof(float) + 63) / 64 * 64);
}

int pk_enlarge(float **memory, int64_t *size, int64_t count)
{
    if (count <= *size)
        return PK_OK;
    float *larger = allocate(count);
    if (larger == NULL)
        return pk_refuse("There is no memory left for a step.");
    free(*memory);
    *memory = larger;
    *size = count;
    return PK_OK;
}

pk_context *pk_open(int threads, const char *instruction_set)
{
    const pk_isa *isa = find_isa(instruction_set);
    if (isa == NULL) {
        pk_refuse("This machine cannot run that instruction set.");
        return NULL;
    }
    pk_context *context = calloc(1, sizeof *context);
    if (context == NULL)
        return NULL;
    context->isa = isa;
    context->exact = exact_of(isa);
    context->pool = pk_pool_open(threads);
    if (context->pool != NULL)
        context->scratch = allocate((int64_t)pk_pool_threads(context->pool) * PK_SCRATCH);
    if (context->scratch == NULL) {
        pk_close(context);
        pk_refuse("There is no memory left for the threads.");
        return NULL;
    }
    return context;
}

void pk_close(pk_context *context)
{
    if (context == NULL)
        return;
    pk_pool_close(context->pool);
    free(context->scratch);
    free(context->panels);
    free(context);
}

const char *pk_used(const pk_context *context) { return context->isa->name; }

int pk_round_activations(pk_context *context, const char *int8_set)
{
    const pk_int8 *set = find_int8(int8_set);
    if (set == NULL)
        return pk_refuse("This machine cannot multiply int8 in that way.");
    context->int8 = set;
    return PK_OK;
}

int pk_whole_numbers(pk_context *context, const char *int8_set)
{
    const pk_int8 *set = int8_set == NULL ? NULL : find_int8(int8_set);
    if (int8_set != NULL && (set == NULL || set->exact == NULL))
        return pk_refuse("This machine has no exact products in that way.");
    context->exact = set == NULL ? NULL : set->exact;
    return PK_OK;
}
