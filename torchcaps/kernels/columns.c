/* A convolution of a few images as one product of matrices, with the weights as they are (see columns.py).

   panel [c kh kw, b yh yw] = x [b, c, yh stride + kh - padding, yw stride + kw - padding], zero outside of the image;
   its rows are in the order in which the weights of an output lie in memory. x may lie in memory in any way. result [o, b yh yw] = bias [o] + weight [o, c kh kw] panel. Rows of panel and result
   are `pitch` numbers long, whole vectors. No number depends on how many threads there are. */

typedef struct {
    long images, channels, height, width;             /* of x */
    long by_image, by_channel, by_row, by_column;     /* how far apart its numbers are in memory */
    long taps_down, taps_across, down, across, stride, padding; /* of the kernel; of the result */
    long row_by_channel, row_by_tap;                            /* how far apart the weights are */
} Sizes;

#define INLINE static inline __attribute__((always_inline))
/* Of the panel, rows and vectors of a row that are multiplied at a time: they stay in the nearest cache. */
#define DEPTH 128
#define MOST 5
#define LINE 16 /* numbers that come from memory together */
#define AHEAD 12 /* rows of weights that are asked for before they are needed */

#if defined(__AVX__)
#define WIDTH 8 /* also with AVX512: rows are filled up to whole vectors, and most have a few only */
#else
#define WIDTH 4
#endif
typedef float Vector __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias)); /* at any address */

/* One row of one image's result: `from` is where its first pixel would be, which may be outside. */
INLINE void run(const float *from, long step, long column, Sizes n, long stride, float *out) {
    for (long x = 0; x < n.across; x++, column += stride)
        out[x] = column < 0 || column >= n.width ? 0 : from[column * step];
}

INLINE void inside(const float *restrict from, long count, long stride, float *restrict out) {
    for (long x = 0; x < count; x++) out[x] = from[x * stride];
}

static void lay_out(Sizes n, long pitch, const float *x, float *panel) {
    const long size = n.images * n.down * n.across;
#pragma omp parallel for collapse(2)
    for (long c = 0; c < n.channels; c++)
        for (long ky = 0; ky < n.taps_down; ky++) {
            const long next = n.row_by_tap * pitch;
            float *rows = panel + c * n.row_by_channel * pitch + ky * n.taps_across * next;
            for (long kx = 0; kx < n.taps_across; kx++)
                for (long i = size; i < pitch; i++) rows[kx * next + i] = 0;
            for (long b = 0; b < n.images; b++)
                for (long y = 0; y < n.down; y++) {
                    const long row = y * n.stride + ky - n.padding;
                    const float *from = x + b * n.by_image + c * n.by_channel + row * n.by_row;
                    float *to = rows + (b * n.down + y) * n.across;
                    for (long kx = 0; kx < n.taps_across; kx++, to += next) {
                        if (row < 0 || row >= n.height)
                            for (long i = 0; i < n.across; i++) to[i] = 0;
                        else if (n.padding || n.by_column != 1)
                            run(from, n.by_column, kx - n.padding, n, n.stride, to);
                        else if (n.stride == 1)
                            inside(from + kx, n.across, 1, to);
                        else if (n.stride == 2)
                            inside(from + kx, n.across, 2, to);
                        else
                            inside(from + kx, n.across, n.stride, to);
                    }
                }
        }
}

/* result [rows, vectors] += weight [rows, depth] part [depth, vectors]; all sums stay in registers. */
INLINE void block(int rows, int vectors, const float *weight, long length, const Vector *part, long depth,
                  float *result, long pitch) {
    Vector sum[rows][vectors];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) sum[r][v] = (Vector){0};
    /* Rows of weights are far apart, so that the processor does not see which come next. */
    for (int r = 0; r < rows; r++)
        for (long k = 0; k < depth; k += LINE) __builtin_prefetch(weight + (r + AHEAD) * length + k);
    for (long k = 0; k < depth; k++) {
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const float entry = weight[r * length + k];
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) sum[r][v] += entry * part[k * vectors + v];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) ((Vector *)(result + r * pitch))[v] += sum[r][v];
}

/* As many rows at a time as registers have room for. */
#define BLOCKS(ROWS, VECTORS)                                                                                          \
    for (; o + ROWS <= end; o += ROWS)                                                                                 \
        block(ROWS, VECTORS, weight + o * length, length, part, depth, result + o * pitch, pitch);                     \
    for (; o < end; o++) block(1, VECTORS, weight + o * length, length, part, depth, result + o * pitch, pitch);

static void multiply(long o, long end, long vectors, const float *weight, long length, const Vector *part, long depth,
                     float *result, long pitch) {
    switch (vectors) {
        case 1: BLOCKS(6, 1) break;
        case 2: BLOCKS(6, 2) break;
#if defined(__AVX512F__) /* has twice as many registers */
        case 3: BLOCKS(6, 3) break;
        case 4: BLOCKS(6, 4) break;
        default: BLOCKS(4, MOST)
#else
        case 3: BLOCKS(4, 3) break;
        case 4: BLOCKS(3, 4) break;
        default: BLOCKS(2, MOST)
#endif
    }
}

void columns(Sizes n, long outputs, long pitch, long threads, const float *x, const float *weight, const float *bias,
             float *panel, float *result) {
    const long length = n.channels * n.taps_down * n.taps_across, vectors = pitch / WIDTH;
    const long share = ((outputs + threads - 1) / threads + 11) / 12 * 12;
    lay_out(n, pitch, x, panel);
#pragma omp parallel for
    for (long first = 0; first < outputs; first += share) {
        const long end = first + share < outputs ? first + share : outputs;
        for (long o = first; o < end; o++)
            for (long i = 0; i < pitch; i++) result[o * pitch + i] = bias ? bias[o] : 0;
        for (long start = 0; start < length; start += DEPTH)
            for (long v = 0; v < vectors; v += MOST) {
                const long depth = length - start < DEPTH ? length - start : DEPTH;
                const long count = vectors - v < MOST ? vectors - v : MOST;
                Vector part[DEPTH * MOST] __attribute__((aligned(64)));
                for (long k = 0; k < depth; k++)
                    for (long i = 0; i < count; i++)
                        part[k * count + i] = ((const Vector *)(panel + (start + k) * pitch))[v + i];
                multiply(first, end, count, weight + start, length, part, depth, result + v * WIDTH, pitch);
            }
    }
}
