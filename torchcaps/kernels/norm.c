/* Max pooling of 2x2 pixels (or none), batch normalisation and ReLU, in two passes over memory (see fused_norm.py).

   The map lies in memory as [outer, height, width, inner, channel]: images outermost (channels last) or inside of the
   pixels. Pooled, it is p [outer, height / 2, width / 2, inner, channel]; y = max(0, scale p + shift). A row is what
   lies at one pixel of one image: a number for each channel.

   Sums over all rows are taken block by block, and the blocks added in order: no number depends on how many threads
   there are. A block's variance is about its own mean, so that a large mean costs no digits. */

typedef struct {
    long outer, height, width, inner, channels, pooled;
} Sizes;

#define BLOCK 64 /* rows: they stay in the nearest cache */
/* Loops over channels are functions of their own: the compiler then knows that their operands do not overlap. */
#define ROW static __attribute__((noinline)) void

static long rows_of(Sizes n) {
    return n.pooled ? n.outer * (n.height / 2) * (n.width / 2) * n.inner : n.outer * n.height * n.width * n.inner;
}

long norm_blocks(Sizes n) { return (rows_of(n) + BLOCK - 1) / BLOCK; }

/* Where the first of the four pixels lies that a row of the pooled map is made of. */
static long source(Sizes n, long row) {
    const long across = n.width / 2, down = n.height / 2;
    const long pixel = row / n.inner, column = pixel % across, line = pixel / across % down, outer = pixel / across / down;
    return (((outer * n.height + 2 * line) * n.width + 2 * column) * n.inner + row % n.inner) * n.channels;
}

/* The largest of four, the first one of equals, and which it is: as a number of the same size, for the compiler's sake. */
ROW pool_row(long channels, const float *restrict a, const float *restrict b, const float *restrict c, const float *restrict d, float *restrict p, float *restrict which) {
    for (long k = 0; k < channels; k++) {
        const float top = a[k] >= b[k] ? a[k] : b[k], bottom = c[k] >= d[k] ? c[k] : d[k];
        const float above = a[k] >= b[k] ? 0 : 1, below = c[k] >= d[k] ? 2 : 3;
        p[k] = (top >= bottom ? top : bottom) + 0 * (a[k] + b[k] + c[k] + d[k]); /* what is not a number stays so */
        which[k] = top >= bottom ? above : below;
    }
}

ROW unpool_row(long channels, const float *restrict given, const float *restrict which, float *restrict a, float *restrict b, float *restrict c, float *restrict d) {
    for (long k = 0; k < channels; k++) {
        a[k] = which[k] == 0 ? given[k] : 0;
        b[k] = which[k] == 1 ? given[k] : 0;
        c[k] = which[k] == 2 ? given[k] : 0;
        d[k] = which[k] == 3 ? given[k] : 0;
    }
}

ROW add_row(long channels, const float *restrict value, float *restrict sum) {
    for (long k = 0; k < channels; k++) sum[k] += value[k];
}

ROW add_squares(long channels, const float *restrict value, const float *restrict sum, float share, float *restrict squares) {
    for (long k = 0; k < channels; k++) {
        const float off = value[k] - share * sum[k];
        squares[k] += off * off;
    }
}

ROW apply_row(long channels, const float *restrict p, const float *restrict scale, const float *restrict shift, float *restrict y) {
    for (long k = 0; k < channels; k++) {
        const float value = p[k] * scale[k] + shift[k];
        y[k] = value < 0 ? 0 : value;
    }
}

typedef struct {
    const float *scale, *shift, *mean, *rsqrt, *by_shift, *by_scale;
} Channels;

ROW add_gradients(long channels, const float *restrict p, const float *restrict grad, const Channels *of, float *restrict sum, float *restrict products) {
    const float *restrict scale = of->scale, *restrict shift = of->shift, *restrict mean = of->mean, *restrict rsqrt = of->rsqrt;
    for (long k = 0; k < channels; k++) {
        const float passed = p[k] * scale[k] + shift[k] <= 0 ? 0 : grad[k];
        sum[k] += passed;
        products[k] += passed * ((p[k] - mean[k]) * rsqrt[k]);
    }
}

ROW gradient_row(long channels, const float *restrict p, const float *restrict grad, const Channels *of, float *restrict given) {
    const float *restrict scale = of->scale, *restrict shift = of->shift, *restrict mean = of->mean, *restrict rsqrt = of->rsqrt;
    const float *restrict by_shift = of->by_shift, *restrict by_scale = of->by_scale;
    for (long k = 0; k < channels; k++) {
        const float passed = p[k] * scale[k] + shift[k] <= 0 ? 0 : grad[k];
        given[k] = scale[k] * (passed - by_shift[k] - (p[k] - mean[k]) * rsqrt[k] * by_scale[k]);
    }
}

/* partial [block, 2, channel]: of each block the sum, and the squares about the block's mean. */
static void sums(Sizes n, const float *x, float *p, float *which, float *partial) {
    const long rows = rows_of(n), channels = n.channels, right = n.inner * channels, below = n.width * right;
#pragma omp for
    for (long block = 0; block < norm_blocks(n); block++) {
        const long first = block * BLOCK, last = first + BLOCK < rows ? first + BLOCK : rows;
        float *sum = partial + 2 * block * channels, *squares = sum + channels;
        for (long k = 0; k < 2 * channels; k++) sum[k] = 0;
        for (long r = first; r < last; r++) {
            if (n.pooled) {
                const float *from = x + source(n, r);
                pool_row(channels, from, from + right, from + below, from + below + right, p + r * channels, which + r * channels);
            }
            add_row(channels, p + r * channels, sum);
        }
        for (long r = first; r < last; r++) add_squares(channels, p + r * channels, sum, 1.0f / (last - first), squares);
    }
}

/* Of every channel, out of the blocks: mean, (biased) variance, 1 / deviation, scale and shift. */
static void moments(Sizes n, double eps, const float *weight, const float *bias, const float *partial, float *of) {
    const long rows = rows_of(n), channels = n.channels, blocks = norm_blocks(n);
#pragma omp for
    for (long k = 0; k < channels; k++) {
        double total = 0, squares = 0;
        for (long block = 0; block < blocks; block++) total += partial[2 * block * channels + k];
        const double centre = total / rows;
        for (long block = 0; block < blocks; block++) {
            const double count = block < blocks - 1 ? BLOCK : rows - block * BLOCK;
            const double off = partial[2 * block * channels + k] / count - centre;
            squares += partial[(2 * block + 1) * channels + k] + count * off * off;
        }
        of[k] = centre;
        of[channels + k] = squares / rows;
        of[2 * channels + k] = 1 / __builtin_sqrt(squares / rows + eps);
        of[3 * channels + k] = weight[k] * of[2 * channels + k];
        of[4 * channels + k] = bias[k] - of[k] * of[3 * channels + k];
    }
}

static void apply(Sizes n, const float *p, const float *scale, const float *shift, float *y) {
    const long rows = rows_of(n), channels = n.channels;
#pragma omp for
    for (long r = 0; r < rows; r++) apply_row(channels, p + r * channels, scale, shift, y + r * channels);
}

/* partial [block, 2, channel]: of each block the sum of the gradients that pass the ReLU, and of their products with the
   normalised values. */
static void backward_sums(Sizes n, const float *p, const float *grad, const float *scale, const float *shift, const float *mean,
                        const float *rsqrt, float *partial) {
    const long rows = rows_of(n), channels = n.channels;
    const Channels of = {scale, shift, mean, rsqrt, 0, 0};
#pragma omp for
    for (long block = 0; block < norm_blocks(n); block++) {
        const long first = block * BLOCK, last = first + BLOCK < rows ? first + BLOCK : rows;
        float *sum = partial + 2 * block * channels;
        for (long k = 0; k < 2 * channels; k++) sum[k] = 0;
        for (long r = first; r < last; r++)
            add_gradients(channels, p + r * channels, grad + r * channels, &of, sum, sum + channels);
    }
}

/* The gradients of shift and of scale: the blocks, added in order. */
static void backward_totals(Sizes n, const float *partial, float *of_shift, float *of_scale, float *shares) {
    const long rows = rows_of(n), channels = n.channels, blocks = norm_blocks(n);
#pragma omp for
    for (long k = 0; k < channels; k++) {
        double sum = 0, products = 0;
        for (long block = 0; block < blocks; block++) {
            sum += partial[2 * block * channels + k];
            products += partial[(2 * block + 1) * channels + k];
        }
        of_shift[k] = sum;
        of_scale[k] = products;
        shares[k] = sum / rows;
        shares[channels + k] = products / rows;
    }
}

/* The gradient of x. `by_shift` and `by_scale` are the totals divided by the number of rows; `room` has a row for each
   block. With an odd side the last line belongs to no pool: the caller has set it to zero. */
static void backward(Sizes n, const float *p, const float *which, const float *grad, const float *scale, const float *shift,
                   const float *mean, const float *rsqrt, const float *by_shift, const float *by_scale, float *room, float *of_x) {
    const long rows = rows_of(n), channels = n.channels, right = n.inner * channels, below = n.width * right;
    const Channels of = {scale, shift, mean, rsqrt, by_shift, by_scale};
#pragma omp for
    for (long block = 0; block < norm_blocks(n); block++)
        for (long r = block * BLOCK; r < rows && r < (block + 1) * BLOCK; r++) {
            float *given = n.pooled ? room + block * channels : of_x + r * channels;
            gradient_row(channels, p + r * channels, grad + r * channels, &of, given);
            if (n.pooled) {
                float *to = of_x + source(n, r);
                unpool_row(channels, given, which + r * channels, to, to + right, to + below, to + below + right);
            }
        }
}

/* What a function below does is one parallel region: threads wait for each other between its parts, but do not end. */
void norm_forward(Sizes n, double eps, const float *x, const float *weight, const float *bias, float *p, float *which,
                  float *partial, float *of, float *y) {
#pragma omp parallel
    {
        sums(n, x, p, which, partial);
        moments(n, eps, weight, bias, partial, of);
        apply(n, p, of + 3 * n.channels, of + 4 * n.channels, y);
    }
}

/* `of` is what norm_forward has filled in; `shares` has room for two numbers a channel. */
void norm_backward(Sizes n, const float *p, const float *which, const float *grad, const float *of, float *partial,
                   float *shares, float *of_shift, float *of_scale, float *of_x) {
    const long c = n.channels;
    const float *mean = of, *rsqrt = of + 2 * c, *scale = of + 3 * c, *shift = of + 4 * c;
#pragma omp parallel
    {
        backward_sums(n, p, grad, scale, shift, mean, rsqrt, partial);
        backward_totals(n, partial, of_shift, of_scale, shares);
        backward(n, p, which, grad, scale, shift, mean, rsqrt, shares, shares + c, partial, of_x);
    }
}
