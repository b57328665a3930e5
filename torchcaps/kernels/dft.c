/* Fourier transforms of small images as products with small matrices, in one pass over memory (see dft.py).

   An image [height, width, channel] is cut into phases: of phase (p, q), the pixels (stride y + p, stride x + q) are an
   image of their own, of down x across pixels; what the image lacks is zero. Its factors are

       rows [g, x] = sum over y of first [g, y] pixel [y, x],    factor [f] = sum over (g, x) of second [f, (g, x)] rows [g, x]

   where the second product is done group by group: a group is one row or two of `first`. Factors are [f, image, phase
   and channel], `apart` numbers from each other. Going back, the transposed matrices are given. Everything between the
   two products stays in the nearest cache. No number depends on how many threads there are. */

#define INLINE static inline __attribute__((always_inline))
#if defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX__)
#define WIDTH 8
#else
#define WIDTH 4
#endif
#define PANEL (2 * WIDTH) /* channels at a time */
#define STREAMS 10 /* factors that are written at a time */
typedef float Vector __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias)); /* at any address */

typedef struct {
    long images, height, width, channels;
    long by_image, by_row, by_column, by_channel; /* how far apart the pixels are in memory */
    long stride, down, across;
    long lines, groups, factors, apart; /* rows of `first`; groups of `second` */
    long shares;
} Sizes;

INLINE long least(long a, long b) { return a < b ? a : b; }

/* out [rows] = matrix [rows, depth] in [depth], of PANEL channels each; all sums stay in registers. */
INLINE void part(int rows, const float *matrix, long depth, const float *in, long by_in, float *out, long by_out) {
    Vector sum[rows][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (Vector){0};
    for (long k = 0; k < depth; k++) {
        const Vector *line = (const Vector *)(in + k * by_in);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            sum[r][0] += matrix[r * depth + k] * line[0];
            sum[r][1] += matrix[r * depth + k] * line[1];
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        ((Vector *)(out + r * by_out))[0] = sum[r][0];
        ((Vector *)(out + r * by_out))[1] = sum[r][1];
    }
}

#define PARTS(ROWS)                                                                                                    \
    for (; r + ROWS <= rows; r += ROWS) part(ROWS, matrix + r * depth, depth, in, by_in, out + r * by_out, by_out);

static void product(const float *matrix, long rows, long depth, const float *in, long by_in, float *out, long by_out) {
    long r = 0;
#if defined(__AVX512F__)
    PARTS(10) /* for the paper's images of 10x10 pixels a phase */
#endif
    PARTS(6) PARTS(4) PARTS(2) PARTS(1)
}

/* Channels of all phases, each phase filled up to whole panels. */
INLINE long wide(const Sizes *n) { return n->stride * n->stride * ((n->channels + PANEL - 1) / PANEL) * PANEL; }

/* Numbers that one share needs: pixels of a panel, rows of an image, factors of channels that do not fill a panel. */
long dft_room(Sizes n) { return PANEL * n.down * n.across + wide(&n) * n.lines * n.across + PANEL * n.factors; }

INLINE void read(const float *from, long step, long count, float *to) {
    if (step == 1 && count == PANEL) {
        ((Vector *)to)[0] = ((const Vector *)from)[0];
        ((Vector *)to)[1] = ((const Vector *)from)[1];
    } else
        for (long l = 0; l < PANEL; l++) to[l] = l < count ? from[l * step] : 0;
}

INLINE void write(const float *from, long step, long count, float *to) {
    if (step == 1 && count == PANEL) {
        ((Vector *)to)[0] = ((const Vector *)from)[0];
        ((Vector *)to)[1] = ((const Vector *)from)[1];
    } else
        for (long l = 0; l < count; l++) to[l * step] = from[l];
}

/* Of one image. `heights` and `lines` are the rows of `second` and of `first` that belong to a group. The second product
   goes through all channels of a few factors before it comes to the next ones: memory is written in long runs. */
static void image_to_factors(const Sizes *n, const long *heights, const long *lines, const float *first,
                             const float *second, const float *image, float *room, float *factors) {
    const long width = wide(n), phases = n->stride * n->stride, each = width / phases, line = n->across * PANEL;
    float *pixels = room, *rows = pixels + n->down * line, *rest = rows + n->lines * n->across * width;
    for (long at = 0; at < width; at += PANEL) {
        const long phase = at / each, c = at % each, count = least(PANEL, n->channels - c);
        for (long y = 0; y < n->down; y++)
            for (long x = 0; x < n->across; x++) {
                const long row = y * n->stride + phase / n->stride, column = x * n->stride + phase % n->stride;
                float *to = pixels + y * line + x * PANEL;
                if (row < n->height && column < n->width)
                    read(image + row * n->by_row + column * n->by_column + c * n->by_channel, n->by_channel, count, to);
                else
                    for (long l = 0; l < PANEL; l++) to[l] = 0;
            }
        for (long x = 0; x < n->across; x++)
            product(first, n->lines, n->down, pixels + x * PANEL, line, rows + x * width + at, n->across * width);
    }
    for (long g = 0; g < n->groups; g++) {
        const long depth = lines[g] * n->across;
        for (long f = 0; f < heights[g]; f += STREAMS)
            for (long at = 0; at < width; at += PANEL) {
                const long c = at % each, count = least(PANEL, n->channels - c), some = least(STREAMS, heights[g] - f);
                float *to = factors + f * n->apart + at / each * n->channels + c;
                if (count == PANEL)
                    product(second + f * depth, some, depth, rows + at, width, to, n->apart);
                else {
                    product(second + f * depth, some, depth, rows + at, width, rest, PANEL);
                    for (long i = 0; i < some; i++) write(rest + i * PANEL, 1, count, to + i * n->apart);
                }
            }
        second += heights[g] * depth, rows += depth * width, factors += heights[g] * n->apart;
    }
}

/* The adjoint. */
static void image_from_factors(const Sizes *n, const long *heights, const long *lines, const float *first,
                               const float *second, const float *factors, float *room, float *image) {
    const long width = wide(n), phases = n->stride * n->stride, each = width / phases, line = n->across * PANEL;
    float *pixels = room, *rows = pixels + n->down * line, *rest = rows + n->lines * n->across * width;
    float *to = rows;
    for (long g = 0; g < n->groups; g++) {
        const long height = lines[g] * n->across;
        for (long at = 0; at < width; at += PANEL) {
            const long c = at % each, count = least(PANEL, n->channels - c);
            const float *from = factors + at / each * n->channels + c;
            if (count == PANEL)
                product(second, height, heights[g], from, n->apart, to + at, width);
            else {
                for (long f = 0; f < heights[g]; f++) read(from + f * n->apart, 1, count, rest + f * PANEL);
                product(second, height, heights[g], rest, PANEL, to + at, width);
            }
        }
        second += heights[g] * height, to += height * width, factors += heights[g] * n->apart;
    }
    for (long at = 0; at < width; at += PANEL) {
        const long phase = at / each, c = at % each, count = least(PANEL, n->channels - c);
        for (long x = 0; x < n->across; x++)
            product(first, n->down, n->lines, rows + x * width + at, n->across * width, pixels + x * PANEL, line);
        for (long y = 0; y < n->down; y++)
            for (long x = 0; x < n->across; x++) {
                const long row = y * n->stride + phase / n->stride, column = x * n->stride + phase % n->stride;
                if (row < n->height && column < n->width)
                    write(pixels + y * line + x * PANEL, n->by_channel, count,
                          image + row * n->by_row + column * n->by_column + c * n->by_channel);
            }
    }
}

void dft_to_factors(Sizes n, const long *heights, const long *lines, const float *first, const float *second,
                    const float *pixels, float *room, float *factors) {
#pragma omp parallel for
    for (long share = 0; share < n.shares; share++)
        for (long i = n.images * share / n.shares; i < n.images * (share + 1) / n.shares; i++)
            image_to_factors(&n, heights, lines, first, second, pixels + i * n.by_image, room + share * dft_room(n),
                             factors + i * n.stride * n.stride * n.channels);
}

/* Pixels that no phase reaches are left as they are. */
void dft_from_factors(Sizes n, const long *heights, const long *lines, const float *first, const float *second,
                      const float *factors, float *room, float *pixels) {
#pragma omp parallel for
    for (long share = 0; share < n.shares; share++)
        for (long i = n.images * share / n.shares; i < n.images * (share + 1) / n.shares; i++)
            image_from_factors(&n, heights, lines, first, second, factors + i * n.stride * n.stride * n.channels,
                               room + share * dft_room(n), pixels + i * n.by_image);
}
