/* Attention, block scores and selection of one sequence in float32. K and V lie as [side][KV head][cell][256].
   Every function returns 0, or 1 where memory is short. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 24, KV_HEADS = 2, DIM = 256, INDEX_HEADS = 4, INDEX_DIM = 128, RATIO = 4 };

static float *vector(float *kv, int64_t capacity, int side, int head, int64_t cell)
{
    return kv + ((side * KV_HEADS + head) * capacity + cell) * DIM;
}

/* Copies K and V of n cells, [n][KV head][256] each: into the storage, or out of it. */
int qsa_copy(float *kv, int64_t capacity, int64_t n, const int64_t *positions, float *k, float *v, int64_t into)
{
    for (int64_t i = 0; i < n; i++)
        for (int side = 0; side < 2; side++)
            for (int head = 0; head < KV_HEADS; head++) {
                float *stored = vector(kv, capacity, side, head, positions[i]);
                float *given = (side ? v : k) + (i * KV_HEADS + head) * DIM;
                memcpy(into ? stored : given, into ? given : stored, DIM * sizeof(float));
            }
    return 0;
}

/* steps: position, cells seen, complete blocks, selected cells of every row. */
int qsa_attend(const float *q, float *kv, int64_t capacity, const int32_t *ids, int64_t cap, const int32_t *steps,
               int64_t rows, float *out)
{
    float *p = malloc((cap + 1) * sizeof(float));
    if (!p)
        return 1;
    for (int64_t pair = 0; pair < rows * HEADS; pair++) {
        int64_t row = pair / HEADS;
        int head = pair % HEADS / (HEADS / KV_HEADS), width = steps[4 * row + 3];
        float highest = -INFINITY, mass = 0, sum[DIM] = {0};
        for (int i = 0; i < width; i++) {
            const float *k = vector(kv, capacity, 0, head, ids[row * cap + i]);
            p[i] = 0;
            for (int d = 0; d < DIM; d++)
                p[i] += q[pair * DIM + d] * k[d];
            p[i] /= 16;
            highest = fmaxf(highest, p[i]);
        }
        for (int i = 0; i < width; i++) {
            const float *v = vector(kv, capacity, 1, head, ids[row * cap + i]);
            float weight = expf(p[i] - highest);
            mass += weight;
            for (int d = 0; d < DIM; d++)
                sum[d] += weight * v[d];
        }
        for (int d = 0; d < DIM; d++)
            out[pair * DIM + d] = width ? sum[d] / mass : 0;
    }
    free(p);
    return 0;
}

int qsa_block_scores(const float *q, const float *keys, int64_t blocks, int64_t rows, float *out)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t block = 0; block < blocks; block++) {
            float score = 0;
            for (int head = 0; head < INDEX_HEADS; head++) {
                float dot = 0;
                for (int d = 0; d < INDEX_DIM; d++)
                    dot += q[(row * INDEX_HEADS + head) * INDEX_DIM + d] * keys[block * INDEX_DIM + d];
                score += fmaxf(dot, 0);
            }
            out[row * blocks + block] = score;
        }
    return 0;
}

struct scored { float score; int32_t block; };

static int better(const void *one, const void *two)
{
    const struct scored *a = one, *b = two;
    return a->score != b->score ? (a->score < b->score ? 1 : -1) : (a->block > b->block) - (a->block < b->block);
}

/* Writes the row's cells and then -1: the tail first, then the best blocks, the last one cut where width asks it. */
int qsa_select(const float *scores, int64_t stride, const int32_t *steps, int64_t rows, int32_t *ids, int64_t cap)
{
    for (int64_t row = 0; row < rows; row++) {
        int n_kv = steps[4 * row + 1], n_bid = steps[4 * row + 2], width = steps[4 * row + 3], n = 0;
        struct scored *all = malloc((n_bid + 1) * sizeof *all);
        if (!all)
            return 1;
        for (int block = 0; block < n_bid; block++)
            all[block] = (struct scored){scores[row * stride + block], block};
        qsort(all, n_bid, sizeof *all, better);
        for (int cell = n_bid * RATIO; n < width && cell < n_kv; cell++)
            ids[row * cap + n++] = cell;
        for (int i = 0; n < width; n++, i++)
            ids[row * cap + n] = all[i / RATIO].block * RATIO + i % RATIO;
        for (; n < cap; n++)
            ids[row * cap + n] = -1;
        free(all);
    }
    return 0;
}
