/* Many products of matrices of one size (see products.py): c [f m n] = Σ_k a [f m k] b [f k n].

   Numbers of a and b may lie in memory in any way, rows of c are n long. A panel of b, DEPTH lines of PANEL numbers, is
   laid out in cache, where all rows of a are multiplied with it, ROWS at a time, with the sums in registers. A thread
   takes whole products. No number depends on how many threads there are. */

#include "eight.h"
#include <string.h>

typedef struct {
    long count, rows, columns, depth;
    long a_by_matrix, a_by_row, a_by_depth; /* how far apart numbers are in memory */
    long b_by_matrix, b_by_depth, b_by_column;
    long threads;
} Sizes;

#if defined(__AVX512F__)
#define WIDTH 16
#define ROWS 8
#else
#define WIDTH 8
#define ROWS 4
#endif
#define VECTORS 3
#define PANEL (VECTORS * WIDTH)
#define DEPTH 256
#define SIDE 8 /* of the blocks that are transposed */

typedef float Vector __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias)); /* at any address */

INLINE long least(long a, long b) { return a < b ? a : b; }

/* panel [depth, PANEL] = `columns` columns of b, and zeros. */
static void lay_out(const Sizes *n, const float *b, long depth, long columns, float *panel) {
    long whole = 0;
    if (n->b_by_depth == 1)
        for (; whole + SIDE <= columns; whole += SIDE) {
            long k = 0;
            for (; k + SIDE <= depth; k += SIDE) {
                v8 r[SIDE];
                for (int i = 0; i < SIDE; i++) r[i] = *(const loose *)(b + (whole + i) * n->b_by_column + k);
                transpose(r);
                for (int i = 0; i < SIDE; i++) *(loose *)(panel + (k + i) * PANEL + whole) = r[i];
            }
            for (; k < depth; k++)
                for (long i = whole; i < whole + SIDE; i++) panel[k * PANEL + i] = b[k + i * n->b_by_column];
        }
    for (long k = 0; k < depth; k++) {
        const float *from = b + k * n->b_by_depth;
        if (whole == 0 && columns == PANEL && n->b_by_column == 1)
            for (int v = 0; v < VECTORS; v++) ((Vector *)(panel + k * PANEL))[v] = ((const Vector *)from)[v];
        else
            for (long i = whole; i < PANEL; i++) panel[k * PANEL + i] = i < columns ? from[i * n->b_by_column] : 0;
    }
}

/* c [rows, PANEL] (+)= a [rows, depth] panel [depth, PANEL] */
INLINE void multiply(int rows, const float *a, long by_row, long by_depth, long depth, const float *panel, int add,
                     float *c, long pitch) {
    Vector sum[rows][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int v = 0; v < VECTORS; v++) sum[r][v] = add ? ((const Vector *)(c + r * pitch))[v] : (Vector){0};
    for (long k = 0; k < depth; k++, a += by_depth, panel += PANEL) {
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
            for (int v = 0; v < VECTORS; v++) sum[r][v] += a[r * by_row] * ((const Vector *)panel)[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int v = 0; v < VECTORS; v++) ((Vector *)(c + r * pitch))[v] = sum[r][v];
}

/* The same of fewer columns than a panel has, through a copy of c. */
static void multiply_edge(int rows, const float *a, const Sizes *n, long depth, const float *panel, int add, float *c,
                          long columns) {
    float copy[ROWS][PANEL] __attribute__((aligned(64))) = {{0}};
    for (int r = 0; add && r < rows; r++) memcpy(copy[r], c + r * n->columns, sizeof(float) * (size_t)columns);
    if (rows == ROWS) multiply(ROWS, a, n->a_by_row, n->a_by_depth, depth, panel, add, copy[0], PANEL);
    else
        for (int r = 0; r < rows; r++)
            multiply(1, a + r * n->a_by_row, 0, n->a_by_depth, depth, panel, add, copy[r], PANEL);
    for (int r = 0; r < rows; r++) memcpy(c + r * n->columns, copy[r], sizeof(float) * (size_t)columns);
}

static void one_product(const Sizes *n, const float *a, const float *b, float *c, float *panel) {
    for (long start = 0; start < n->depth; start += DEPTH)
        for (long at = 0; at < n->columns; at += PANEL) {
            const long depth = least(DEPTH, n->depth - start), columns = least(PANEL, n->columns - at);
            const float *rows = a + start * n->a_by_depth;
            lay_out(n, b + start * n->b_by_depth + at * n->b_by_column, depth, columns, panel);
            for (long r = 0; r < n->rows; r += ROWS)
                if (columns == PANEL && r + ROWS <= n->rows)
                    multiply(ROWS, rows + r * n->a_by_row, n->a_by_row, n->a_by_depth, depth, panel, start > 0,
                             c + r * n->columns + at, n->columns);
                else
                    multiply_edge((int)least(ROWS, n->rows - r), rows + r * n->a_by_row, n, depth, panel, start > 0,
                                  c + r * n->columns + at, columns);
        }
}

void products(Sizes n, const float *a, const float *b, float *c) {
#pragma omp parallel for num_threads(n.threads)
    for (long f = 0; f < n.count; f++) {
        float panel[DEPTH * PANEL] __attribute__((aligned(64)));
        one_product(&n, a + f * n.a_by_matrix, b + f * n.b_by_matrix, c + f * n.rows * n.columns, panel);
    }
}
