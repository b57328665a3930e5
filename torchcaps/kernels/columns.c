/* A convolution of a few images as one product of matrices, with the weights as they are (see columns.py).

   panel [c kh kw, b yh yw] = x [b, c, yh stride + kh - padding, yw stride + kw - padding], zero outside of the image;
   its rows are in the order in which the weights of an output lie in memory. result [o, b yh yw] = bias [o] +
   weight [o, c kh kw] panel. Rows of panel and result are `pitch` numbers long, whole vectors.

   Threads take different rows of the panel, so that each lays out what it multiplies with: what another processor has
   written comes slowly. The rows are divided into a fixed number of parts, whose products are added up in their order:
   no number depends on how many threads there are. */

#include <stddef.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
#endif

typedef struct {
    long images, channels, height, width;                       /* of x */
    long by_image, by_channel, by_row, by_column;               /* how far apart its numbers are in memory */
    long taps_down, taps_across, down, across, stride, padding; /* of the kernel; of the result */
    long channels_last;                                         /* whether the weights are [o kh kw c] */
    long outputs, pitch, threads;
} Sizes;

#define INLINE static inline __attribute__((always_inline))
#define PARTS 16
/* Of the panel, rows and vectors of a row that are multiplied at a time: they stay in the nearest cache. */
#define DEPTH 128
#define MOST 5
#define LINE 16  /* numbers that come from memory together */
#define AHEAD 16 /* rows of weights that are asked for before they are needed */

#if defined(__AVX__)
#define WIDTH 8
#else
#define WIDTH 4
#endif
/* At any address. Where registers hold pairs of vectors (AVX512), pairs are multiplied, and the one that is left over by
   itself: most rows have a few vectors only. */
typedef float Vector __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef float Pair __attribute__((vector_size(8 * WIDTH), aligned(4), may_alias));

INLINE long least(long a, long b) { return a < b ? a : b; }
INLINE long parts(long whole, long part) { return (whole + part - 1) / part; }

/* Numbers of the images with their borders, [b c row phase column]: column k of phase f is pixel k stride + f, so that a
   row of the result needs neighbours only. Whole vectors are read, also at a row's end. */
INLINE long span(Sizes n) { return parts(n.width + 2 * n.padding, n.stride) + WIDTH; }
INLINE long plane(Sizes n) { return (n.height + 2 * n.padding) * n.stride * span(n); }

static void spread(Sizes n, const float *x, float *to) {
    memset(to, 0, sizeof(float) * (size_t)plane(n));
    for (long y = 0; y < n.height; y++)
        for (long phase = 0; phase < n.stride; phase++) {
            float *row = to + ((y + n.padding) * n.stride + phase) * span(n);
            const long first = parts(n.padding > phase ? n.padding - phase : 0, n.stride);
            const long end = parts(n.width + n.padding - phase, n.stride);
            const float *from = x + y * n.by_row + (phase - n.padding) * n.by_column;
            for (long i = first; i < end; i++) row[i] = from[i * n.stride * n.by_column];
        }
}

/* Rows `start` to `start + depth` of the panel. What is written beyond the end of a row belongs to the next one. */
static void lay_out(Sizes n, const float *images, long start, long depth, float *panel) {
    const long taps = n.taps_down * n.taps_across, size = n.images * n.down * n.across;
    long channel = n.channels_last ? start % n.channels : start / taps;
    long tap = n.channels_last ? start / n.channels : start % taps;
    long ky = tap / n.taps_across, kx = tap % n.taps_across;
    for (long k = 0; k < depth; k++, panel += n.pitch) {
        float *to = panel;
        for (long b = 0; b < n.images; b++) {
            const float *from = images + (b * n.channels + channel) * plane(n) +
                                (ky * n.stride + kx % n.stride) * span(n) + kx / n.stride;
            for (long y = 0; y < n.down; y++, from += n.stride * n.stride * span(n), to += n.across)
                for (long i = 0; i < n.across; i += WIDTH) *(Vector *)(to + i) = *(const Vector *)(from + i);
        }
        for (long i = size; i < n.pitch; i++) panel[i] = 0;
        if (n.channels_last && ++channel < n.channels) continue;
        if (n.channels_last) channel = 0;
        if (++kx == n.taps_across) kx = 0, ky++;
        if (ky == n.taps_down) ky = 0, channel++;
    }
}

/* result [rows, pairs and vectors] += weight [rows, depth] part [depth, pairs and vectors]; sums stay in registers. */
INLINE void block(int rows, int pairs, int vectors, const float *weight, long length, const Vector *part, long depth,
                  float *result, long pitch) {
    Pair pair[rows][pairs + 1];
    Vector sum[rows][vectors + 1];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < pairs; v++) pair[r][v] = (Pair){0};
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) sum[r][v] = (Vector){0};
    }
    /* Rows of weights are far apart, so that the processor does not see which come next. */
    for (int r = 0; r < rows; r++)
        for (long k = 0; k < depth; k += LINE) __builtin_prefetch(weight + (r + AHEAD) * length + k);
    for (long k = 0; k < depth; k++, part += 2 * pairs + vectors) {
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const float entry = weight[r * length + k];
#pragma GCC unroll 8
            for (int v = 0; v < pairs; v++) pair[r][v] += entry * ((const Pair *)part)[v];
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) sum[r][v] += entry * part[2 * pairs + v];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++, result += pitch) {
#pragma GCC unroll 8
        for (int v = 0; v < pairs; v++) ((Pair *)result)[v] += pair[r][v];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) ((Vector *)result)[2 * pairs + v] += sum[r][v];
    }
}

/* As many rows at a time as registers have room for. */
#define BLOCKS(ROWS, PAIRS, VECTORS)                                                                                   \
    for (; o + ROWS <= end; o += ROWS)                                                                                 \
        block(ROWS, PAIRS, VECTORS, weight + o * length, length, part, depth, result + o * pitch, pitch);              \
    for (; o < end; o++)                                                                                               \
        block(1, PAIRS, VECTORS, weight + o * length, length, part, depth, result + o * pitch, pitch);

static void multiply(long end, long vectors, const float *weight, long length, const Vector *part, long depth,
                     float *result, long pitch) {
    long o = 0;
    switch (vectors) {
#if defined(__AVX512F__)
        case 1: BLOCKS(8, 0, 1) break;
        case 2: BLOCKS(8, 1, 0) break;
        case 3: BLOCKS(8, 1, 1) break;
        case 4: BLOCKS(8, 2, 0) break;
        default: BLOCKS(8, 2, 1)
#else
        case 1: BLOCKS(6, 0, 1) break;
        case 2: BLOCKS(6, 0, 2) break;
        case 3: BLOCKS(4, 0, 3) break;
        case 4: BLOCKS(3, 0, 4) break;
        default: BLOCKS(2, 0, MOST)
#endif
    }
}

/* sums [o, b yh yw] = the product of rows `from` to `end`. `room` is for DEPTH rows and what is written beyond them. */
static void multiply_part(Sizes n, const float *images, const float *weight, long length, long from, long end,
                          float *sums, float *room) {
    const long vectors = n.pitch / WIDTH, depth = parts(end - from, parts(end - from, DEPTH));
    Vector part[DEPTH * MOST] __attribute__((aligned(64)));
    memset(sums, 0, sizeof(float) * (size_t)(n.outputs * n.pitch));
    for (long start = from; start < end; start += depth) {
        const long rows = least(depth, end - start);
        lay_out(n, images, start, rows, room);
        for (long v = 0; v < vectors; v += MOST) {
            const long count = least(MOST, vectors - v);
            for (long k = 0; vectors > MOST && k < rows; k++)
                for (long i = 0; i < count; i++) part[k * count + i] = ((const Vector *)(room + k * n.pitch))[v + i];
            multiply(n.outputs, count, weight + start, length, vectors > MOST ? part : (const Vector *)room, rows,
                     sums + v * WIDTH, n.pitch);
        }
    }
}

/* How many floats `columns` needs as `room`. */
long columns_room(Sizes n) {
    return n.images * n.channels * plane(n) + PARTS * n.outputs * n.pitch + n.threads * (DEPTH * n.pitch + WIDTH);
}

void columns(Sizes n, const float *x, const float *weight, const float *bias, float *result, float *room) {
    const long length = n.channels * n.taps_down * n.taps_across, size = n.outputs * n.pitch;
    const long rows = length > PARTS * DEPTH ? parts(length, PARTS) : DEPTH;
    float *images = room, *sums = images + n.images * n.channels * plane(n), *panels = sums + PARTS * size;
#pragma omp parallel num_threads(n.threads)
    {
        float *panel = panels + omp_get_thread_num() * (DEPTH * n.pitch + WIDTH);
#pragma omp for collapse(2)
        for (long b = 0; b < n.images; b++)
            for (long c = 0; c < n.channels; c++)
                spread(n, x + b * n.by_image + c * n.by_channel, images + (b * n.channels + c) * plane(n));
#pragma omp for schedule(dynamic)
        for (long p = 0; p < parts(length, rows); p++)
            multiply_part(n, images, weight, length, p * rows, least(length, (p + 1) * rows), sums + p * size, panel);
#pragma omp for
        for (long o = 0; o < n.outputs; o++)
            for (long i = o * n.pitch; i < (o + 1) * n.pitch; i++) {
                result[i] = bias ? bias[o] : 0;
                for (long p = 0; p < parts(length, rows); p++) result[i] += sums[p * size + i];
            }
    }
}
