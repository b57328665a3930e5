/* Dynamic routing of u [b i p] through W [i j d p], forward and backward (see fused_routing.py).

   Eight neighbouring children make a tile, one child in each lane of a vector. Softmax, agreement and weighted sum are
   then the same operation for all lanes, whatever the numbers of parents and dimensions are. The lanes that are left over
   in the last tile have a pose of zero, so that they add nothing to any sum.

   The votes û [b tile jd lane] of a few images at a time are made once and read in every iteration. Sums over
   children are taken chunk by chunk, and the chunks are added up in their order: no number depends on the number of
   threads or on the other images of the batch. */

#include <math.h>
#include <stddef.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
#endif

#define LANES 8
#define CHUNK 16  /* tiles whose sum is taken at once */
#define ROW 4     /* tiles that are read together: V is loaded once for all of them */
#define IMAGES 16 /* images whose products with one parent's weights stay in the nearest cache */
#define EPSILON 1e-12f

#define INLINE static inline __attribute__((always_inline))
#define EACH for (long x = 0; x < row; x++)

typedef float v8 __attribute__((vector_size(32), may_alias));
typedef float loose __attribute__((vector_size(32), aligned(4), may_alias));
typedef int i8 __attribute__((vector_size(32), may_alias));

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (i8){__VA_ARGS__})
#endif

/* `group`: images whose votes are kept at a time. `span`: images between two additions to the gradient of W. Either
   `outer` threads take a group each, or `inner` threads share one: one of the two is 1. */
typedef struct {
    long batch, children, parents, dim, child_dim, iterations, leaky, full, group, span, outer, inner;
} Sizes;

INLINE long least(long a, long b) { return a < b ? a : b; }
INLINE long parts(long whole, long part) { return (whole + part - 1) / part; }
INLINE long tiles(Sizes n) { return parts(n.children, LANES); }
INLINE long poses(Sizes n) { return n.parents * n.dim; }

/* ---- lanes ---- */

INLINE v8 all(float x) { return (v8){x, x, x, x, x, x, x, x}; }

/* a > b ? a : b in every lane: b where one of them is not a number. */
INLINE v8 larger(v8 a, v8 b) {
    const i8 yes = a > b;
    return (v8)(((i8)a & yes) | ((i8)b & ~yes));
}

/* 8 rows of 8 numbers become 8 columns. */
INLINE void transpose(v8 *r) {
    v8 a[8], b[8];
    for (long k = 0; k < 8; k += 2) {
        a[k] = SHUFFLE(r[k], r[k + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        a[k + 1] = SHUFFLE(r[k], r[k + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (long k = 0; k < 8; k += 4)
        for (long h = 0; h < 2; h++) {
            b[k + 2 * h] = SHUFFLE(a[k + h], a[k + h + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            b[k + 2 * h + 1] = SHUFFLE(a[k + h], a[k + h + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (long k = 0; k < 4; k++) {
        r[k] = SHUFFLE(b[k], b[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        r[k + 4] = SHUFFLE(b[k], b[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* to [count lane] = from [lane count], whose rows are `step` apart; zero beyond the `rows` that there are. */
static void pack(const float *from, long step, long rows, long count, v8 *to) {
    long k = 0;
    if (rows == LANES)
        for (; k + 8 <= count; k += 8) {
            v8 r[8];
            for (long l = 0; l < 8; l++) r[l] = *(const loose *)(from + l * step + k);
            transpose(r);
            for (long l = 0; l < 8; l++) to[k + l] = r[l];
        }
    for (; k < count; k++) {
        to[k] = all(0);
        for (long l = 0; l < rows; l++) to[k][l] = from[l * step + k];
    }
}

/* The inverse of `pack`; with `add`, what was there before is kept. */
static void unpack(const v8 *from, float *to, long step, long rows, long count, long add) {
    long k = 0;
    if (rows == LANES)
        for (; k + 8 <= count; k += 8) {
            v8 r[8];
            for (long l = 0; l < 8; l++) r[l] = from[k + l];
            transpose(r);
            for (long l = 0; l < 8; l++) {
                loose *place = (loose *)(to + l * step + k);
                *place = r[l] + (add ? (v8)*place : all(0));
            }
        }
    for (; k < count; k++)
        for (long l = 0; l < rows; l++) to[l * step + k] = from[k][l] + (add ? to[l * step + k] : 0);
}

/* to [count] = the sums over lanes of from [count lane] */
static void sum_lanes(const v8 *from, long count, float *to) {
    long k = 0;
    for (; k + 8 <= count; k += 8) {
        v8 r[8];
        for (long l = 0; l < 8; l++) r[l] = from[k + l];
        for (long l = 0; l < 4; l++)
            r[l] = SHUFFLE(r[l], r[l + 4], 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLE(r[l], r[l + 4], 4, 5, 6, 7, 12, 13, 14, 15);
        for (long l = 0; l < 4; l += 2)
            r[l] = SHUFFLE(r[l], r[l + 1], 0, 8, 1, 9, 4, 12, 5, 13) + SHUFFLE(r[l], r[l + 1], 2, 10, 3, 11, 6, 14, 7, 15);
        *(loose *)(to + k) = SHUFFLE(r[0], r[2], 0, 1, 8, 9, 4, 5, 12, 13) + SHUFFLE(r[0], r[2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    for (; k < count; k++) {
        to[k] = 0;
        for (long l = 0; l < LANES; l++) to[k] += from[k][l];
    }
}

/* For x <= 0, within two units in the last place; below -87 as at -87, and what is not a number stays so. ln 2 is taken
   in two parts, of which the first times n is exact. */
INLINE v8 exp_(v8 x) {
    const v8 low = all(-87);
    const i8 n = __builtin_convertvector(larger(x, low) * 1.44269504f - 0.5f, i8);
    const v8 f = __builtin_convertvector(n, v8);
    x = larger(low, x);
    const v8 r = (x - f * 0.693359375f) + f * 2.12194440e-4f;
    v8 p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return (p * r * r + r + 1.0f) * (v8)((n + 127) << 23);
}

/* ---- votes ---- */

/* A block of votes, `images` x `dims`, kept in registers: Σ_p w [d p] u [b p]. */
INLINE void vote_block(const long images, const long dims, long p, const v8 *w, const v8 *u, v8 *votes, long step) {
    v8 a[images * dims];
    for (long x = 0; x < images * dims; x++) a[x] = all(0);
    for (long k = 0; k < p; k++)
        for (long b = 0; b < images; b++)
            for (long d = 0; d < dims; d++) a[b * dims + d] += w[d * p + k] * u[b * p + k];
    for (long b = 0; b < images; b++)
        for (long d = 0; d < dims; d++) votes[b * step + d] = a[b * dims + d];
}

/* votes [b jd], whose images are `step` apart, of one tile: w [jd p], u [b p] */
INLINE void vote_tile(long images, long size, const long p, const v8 *w, const v8 *u, v8 *votes, long step) {
    const long fours = images / 4 * 4;
    long d = 0;
    for (; d + 3 <= size; d += 3)
        for (long b = 0; b < fours; b += 4) vote_block(4, 3, p, w + d * p, u + b * p, votes + b * step + d, step);
    for (; d < size; d++)
        for (long b = 0; b < fours; b += 4) vote_block(4, 1, p, w + d * p, u + b * p, votes + b * step + d, step);
    for (long b = fours; b < images; b++) {
        for (d = 0; d + 8 <= size; d += 8) vote_block(1, 8, p, w + d * p, u + b * p, votes + b * step + d, step);
        for (; d < size; d++) vote_block(1, 1, p, w + d * p, u + b * p, votes + b * step + d, step);
    }
}

INLINE long children_of(Sizes n, long t) { return least(LANES, n.children - t * LANES); }

INLINE void pack_weights(Sizes n, const float *W, long t, v8 *to) {
    const long row = poses(n) * n.child_dim;
    pack(W + t * LANES * row, row, children_of(n, t), row, to);
}

INLINE void pack_prior(Sizes n, const float *prior, long t, v8 *to) {
    pack(prior + t * LANES * n.parents, n.parents, children_of(n, t), n.parents, to);
}

/* The votes of `count` images in tile t. The weights are packed already, or here. */
static void make_votes(Sizes n, const float *u, const float *W, const v8 *packed, long count, long t, v8 *votes,
                       v8 *room) {
    const long p = n.child_dim, size = poses(n);
    v8 *poses_ = room, *w = poses_ + count * p;
    for (long b = 0; b < count; b++)
        pack(u + (b * n.children + t * LANES) * p, p, children_of(n, t), p, poses_ + b * p);
    if (packed) packed += t * size * p;
    else pack_weights(n, W, t, w), packed = w;
    if (p == 8) vote_tile(count, size, 8, packed, poses_, votes + t * size, tiles(n) * size);
    else vote_tile(count, size, p, packed, poses_, votes + t * size, tiles(n) * size);
}

/* ---- one iteration ---- */

/* c [j row]: logits become couplings (Eq. 3); the leak is one more parent, whose logit is 0. */
INLINE void softmax(Sizes n, const long row, v8 *c) {
    v8 most[row], sum[row];
    EACH most[x] = n.leaky ? all(0) : c[x];
    for (long j = 0; j < n.parents; j++)
        EACH most[x] = larger(c[j * row + x], most[x]);
    EACH sum[x] = n.leaky ? exp_(-most[x]) : all(0);
    for (long j = 0; j < n.parents; j++)
        EACH sum[x] += c[j * row + x] = exp_(c[j * row + x] - most[x]);
    EACH sum[x] = 1.0f / sum[x];
    for (long j = 0; j < n.parents; j++)
        EACH c[j * row + x] *= sum[x];
}

/* sum [jd] += Σ over the row of û */
INLINE void add_evenly(Sizes n, const long row, const v8 *votes, v8 *sum) {
    for (long d = 0; d < poses(n); d++) {
        v8 a = sum[d];
        EACH a += votes[x * poses(n) + d];
        sum[d] = a;
    }
}

/* sum [jd] += Σ over the row of f [j row] û */
INLINE void add_votes(Sizes n, const long row, const v8 *votes, const v8 *f, v8 *sum) {
    for (long j = 0; j < n.parents; j++) {
        const v8 *u = votes + j * n.dim;
        v8 g[row], *s = sum + j * n.dim;
        EACH g[x] = f[j * row + x];
        for (long d = 0; d < n.dim; d++) {
            v8 a = s[d];
            EACH a += g[x] * u[x * poses(n) + d];
            s[d] = a;
        }
    }
}

INLINE void weigh(Sizes n, const long row, const v8 *votes, const float *V, const v8 *prior, v8 *c, v8 *sum) {
    for (long j = 0; j < n.parents; j++) {
        const v8 *u = votes + j * n.dim;
        v8 a[row];
        EACH a[x] = prior ? prior[x * n.parents + j] : all(0);
        for (long d = 0; d < n.dim; d++)
            EACH a[x] += u[x * poses(n) + d] * V[j * n.dim + d];
        EACH c[j * row + x] = a[x];
    }
    softmax(n, row, c);
    add_votes(n, row, votes, c, sum);
}

/* With c = softmax(û · V): the gradient of the logits, `g = c (û · grad_s - Σ_j c û · grad_s)`, adds Σ_i g û to the
   gradient of V. Both c and g are kept, [tile j 2 lane]. */
INLINE void weigh_backward(Sizes n, const long row, const v8 *votes, const float *V, const float *grad_s,
                           const v8 *prior, v8 *kept, v8 *c, v8 *sum) {
    v8 *g = c + row * n.parents, mean[row];
    for (long j = 0; j < n.parents; j++) {
        const v8 *u = votes + j * n.dim;
        v8 a[row], b[row];
        EACH a[x] = prior ? prior[x * n.parents + j] : all(0);
        EACH b[x] = all(0);
        for (long d = 0; d < n.dim; d++)
            EACH {
                a[x] += u[x * poses(n) + d] * V[j * n.dim + d];
                b[x] += u[x * poses(n) + d] * grad_s[j * n.dim + d];
            }
        EACH c[j * row + x] = a[x];
        EACH g[j * row + x] = b[x];
    }
    softmax(n, row, c);
    EACH mean[x] = all(0);
    for (long j = 0; j < n.parents; j++)
        EACH mean[x] += c[j * row + x] * g[j * row + x];
    for (long j = 0; j < n.parents; j++)
        EACH {
            g[j * row + x] = c[j * row + x] * (g[j * row + x] - mean[x]);
            kept[(x * n.parents + j) * 2] = c[j * row + x];
            kept[(x * n.parents + j) * 2 + 1] = g[j * row + x];
        }
    add_votes(n, row, votes, g, sum);
}

/* What one iteration does with the votes of an image: V NULL while all couplings are equal, grad_s NULL in the forward
   pass, `kept` only in the backward pass. */
typedef struct {
    const float *V, *grad_s;
    v8 *kept;
} Step;

INLINE void take_row(Sizes n, const long row, Step s, long t, const v8 *votes, const v8 *prior, v8 *c, v8 *sum) {
    const v8 *here = votes + t * poses(n), *bias = prior ? prior + t * n.parents : NULL;
    if (!s.V) add_evenly(n, row, here, sum);
    else if (!s.grad_s) weigh(n, row, here, s.V, bias, c, sum);
    else weigh_backward(n, row, here, s.V, s.grad_s, bias, s.kept + 2 * t * n.parents, c, sum);
}

static void take_tiles(Sizes n, Step s, long first, long last, const v8 *votes, const v8 *prior, v8 *c, v8 *sum) {
    if (last - first == ROW) take_row(n, ROW, s, first, votes, prior, c, sum);
    else
        for (long t = first; t < last; t++) take_row(n, 1, s, t, votes, prior, c, sum);
}

/* The children that have votes, and where they are. */
typedef struct {
    const float *u, *W;
    const v8 *packed, *prior; /* W [tile jd p lane] or NULL, priors [tile j lane] or NULL */
    v8 *votes;                /* [b tile jd lane] */
    long count;
} Group;

/* One chunk of one image's votes, which are there already: to [jd] = Σ_i c û, or what it adds to V's gradient. */
static void read_chunk(Sizes n, Group g, Step s, long b, long chunk, float *to, v8 *room) {
    const long size = poses(n), last = least(tiles(n), (chunk + 1) * CHUNK);
    v8 *sum = room, *c = sum + size;
    memset(sum, 0, sizeof(v8) * (size_t)size);
    for (long t = chunk * CHUNK; t < last; t += ROW)
        take_tiles(n, s, t, least(last, t + ROW), g.votes + b * tiles(n) * size, g.prior, c, sum);
    sum_lanes(sum, size, to);
}

/* The same for all images of a group, s [b], while their votes are made. */
static void make_chunk(Sizes n, Group g, const Step *s, long chunk, float *to, v8 *room) {
    const long size = poses(n), last = least(tiles(n), (chunk + 1) * CHUNK);
    v8 *sum = room, *c = sum + g.count * size, *rest = c + 2 * ROW * n.parents;
    memset(sum, 0, sizeof(v8) * (size_t)(g.count * size));
    for (long t = chunk * CHUNK; t < last; t += ROW) {
        const long end = least(last, t + ROW);
        for (long x = t; x < end; x++) make_votes(n, g.u, g.W, g.packed, g.count, x, g.votes, rest);
        for (long b = 0; b < g.count; b++)
            take_tiles(n, s[b], t, end, g.votes + b * tiles(n) * size, g.prior, c, sum + b * size);
    }
    for (long b = 0; b < g.count; b++) sum_lanes(sum + b * size, size, to + b * size);
}

/* ---- parents ---- */

/* Adds squash(s) to V (Eq. 1), for one image. */
static void add_squashed(Sizes n, const float *s, float *V) {
    for (long j = 0; j < n.parents; j++, s += n.dim, V += n.dim) {
        float square = 0;
        for (long d = 0; d < n.dim; d++) square += s[d] * s[d];
        const float f = sqrtf(square + EPSILON) / (1 + square);
        for (long d = 0; d < n.dim; d++) V[d] += f * s[d];
    }
}

/* With n = |s|² and f = √(n + ε) / (1 + n), v = f s: the gradient is `f g + 2 f' (g · s) s`. */
static void squash_backward(Sizes n, const float *s, const float *grad, float *grad_s) {
    for (long j = 0; j < n.parents; j++, s += n.dim, grad += n.dim, grad_s += n.dim) {
        float square = 0, dot = 0;
        for (long d = 0; d < n.dim; d++) square += s[d] * s[d], dot += grad[d] * s[d];
        const float root = sqrtf(square + EPSILON), f = root / (1 + square);
        const float slope = 0.5f / (root * (1 + square)) - f / (1 + square);
        for (long d = 0; d < n.dim; d++) grad_s[d] = f * grad[d] + 2 * slope * dot * s[d];
    }
}

/* to [jd] += the sums of `count` chunks, which are `step` apart */
static void add_up(Sizes n, const float *from, long count, long step, float *to) {
    for (long c = 0; c < count; c++)
        for (long k = 0; k < poses(n); k++) to[k] += from[c * step + k];
}

/* ---- gradients of children and weights ---- */

/* to [a c] += Σ_k x [a k] y [k c] with `as` x `cs` results in registers; a step for each axis. */
INLINE void product(const long as, const long cs, long ks, const v8 *x, long xa, long xk, const v8 *y, long yk, long yc,
                    v8 *to, long ta, long tc) {
    v8 sum[as * cs];
    for (long a = 0; a < as; a++)
        for (long c = 0; c < cs; c++) sum[a * cs + c] = to[a * ta + c * tc];
    for (long k = 0; k < ks; k++)
        for (long a = 0; a < as; a++)
            for (long c = 0; c < cs; c++) sum[a * cs + c] += x[a * xa + k * xk] * y[k * yk + c * yc];
    for (long a = 0; a < as; a++)
        for (long c = 0; c < cs; c++) to[a * ta + c * tc] = sum[a * cs + c];
}

/* to [rows cols] += Σ_k x [rows k] y [k cols]; y and `to` are contiguous. */
static void products(long rows, long cols, long ks, const v8 *x, long xa, long xk, const v8 *y, v8 *to) {
    long a = 0;
    for (; a + 2 <= rows; a += 2) {
        long c = 0;
        for (; c + 4 <= cols; c += 4)
            product(2, 4, ks, x + a * xa, xa, xk, y + c, cols, 1, to + a * cols + c, cols, 1);
        for (; c < cols; c++) product(2, 1, ks, x + a * xa, xa, xk, y + c, cols, 1, to + a * cols + c, cols, 1);
    }
    for (; a < rows; a++)
        for (long c = 0; c < cols; c++)
            product(1, 1, ks, x + a * xa, xa, xk, y + c, cols, 1, to + a * cols + c, cols, 1);
}

/* Everything that the backward pass of a span of images keeps for its end. */
typedef struct {
    long count, passes; /* images; iterations whose couplings are not all equal */
    const v8 *kept;     /* [pass image tile j 2 lane]: couplings and gradients of the logits */
    const float *pairs; /* [pass image 2 jd]: grad_s, and the V that the logits came from */
    const float *even;  /* [image jd]: grad_s of the uniform iteration, divided by the parents; or NULL */
} Span;

/* g [b d lane] = a vote's gradient for parent j, Σ over passes of `c grad_s + g V`. */
static void vote_gradients(Sizes n, Span s, long first, long count, long t, long j, v8 *g) {
    for (long b = first; b < first + count; b++, g += n.dim) {
        const float *even = s.even ? s.even + b * poses(n) + j * n.dim : NULL;
        for (long d = 0; d < n.dim; d++) g[d] = all(even ? even[d] : 0);
        for (long r = 0; r < s.passes; r++) {
            const long image = r * s.count + b;
            const v8 *kept = s.kept + ((image * tiles(n) + t) * n.parents + j) * 2;
            const float *grad_s = s.pairs + image * 2 * poses(n) + j * n.dim, *V = grad_s + poses(n);
            const v8 c = kept[0], l = kept[1];
            if (n.full)
                for (long d = 0; d < n.dim; d++) g[d] += c * grad_s[d] + l * V[d];
            else
                for (long d = 0; d < n.dim; d++) g[d] += c * grad_s[d];
        }
    }
}

/* One tile of children: their gradients in all images of the span, and what the span adds to W's and the priors'. */
static void hand_on(Sizes n, Span s, long t, const float *u, const v8 *W, float *grad_u, float *grad_W,
                    float *grad_prior, long add, v8 *room) {
    const long p = n.child_dim, matrix = n.dim * p, rows = children_of(n, t);
    v8 *grad_w = room, *g = grad_w + matrix, *packed = g + IMAGES * n.dim;
    v8 *grad = packed + s.count * p, *logits = grad + s.count * p;
    for (long b = 0; b < s.count; b++) pack(u + (b * n.children + t * LANES) * p, p, rows, p, packed + b * p);
    memset(grad, 0, sizeof(v8) * (size_t)(s.count * p));
    for (long j = 0; j < n.parents; j++) {
        const long at = (t * LANES * n.parents + j) * matrix;
        memset(grad_w, 0, sizeof(v8) * (size_t)matrix);
        for (long b = 0; b < s.count; b += IMAGES) {
            const long count = least(IMAGES, s.count - b);
            vote_gradients(n, s, b, count, t, j, g);
            products(n.dim, p, count, g, 1, n.dim, packed + b * p, grad_w);
            products(count, p, n.dim, g, n.dim, 1, W + (t * n.parents + j) * matrix, grad + b * p);
        }
        unpack(grad_w, grad_W + at, n.parents * matrix, rows, matrix, add);
    }
    for (long b = 0; b < s.count; b++)
        unpack(grad + b * p, grad_u + (b * n.children + t * LANES) * p, p, rows, p, 0);
    if (grad_prior) {
        memset(logits, 0, sizeof(v8) * (size_t)n.parents);
        for (long image = 0; image < s.passes * s.count; image++)
            for (long j = 0; j < n.parents; j++) logits[j] += s.kept[((image * tiles(n) + t) * n.parents + j) * 2 + 1];
        unpack(logits, grad_prior + t * LANES * n.parents, n.parents, rows, n.parents, add);
    }
}

/* ---- the functions that are called ---- */

/* Where everything lies in the room, in vectors from its beginning. */
typedef struct {
    long prior, weights, pairs, even, kept, groups, threads, end;
    long votes, sums, V, group; /* within what each group in flight has for itself */
    long thread;
} Plan;

static Plan plan(Sizes n, long backward) {
    const long size = poses(n), matrix = n.dim * n.child_dim, passes = backward ? n.iterations : 0;
    const long handing_on = matrix + 2 * n.span * n.child_dim + IMAGES * n.dim + n.parents;
    Plan at = {.thread = n.group * (size + n.child_dim) + 2 * ROW * n.parents + size * n.child_dim};
    if (backward && handing_on > at.thread) at.thread = handing_on;
    at.sums = at.votes + n.group * tiles(n) * size;
    at.V = at.sums + parts(parts(tiles(n), CHUNK) * n.group * size, LANES);
    at.group = at.V + parts(n.group * size, LANES);
    at.weights = at.prior + tiles(n) * n.parents;
    at.pairs = at.weights + (backward || n.batch > n.group ? tiles(n) * size * n.child_dim : 0);
    at.even = at.pairs + parts(passes * n.span * 2 * size, LANES);
    at.kept = at.even + parts(n.span * size, LANES);
    at.groups = at.kept + passes * n.span * tiles(n) * n.parents * 2;
    at.threads = at.groups + n.outer * at.group;
    at.end = at.threads + n.outer * n.inner * at.thread;
    return at;
}

/* How many floats `route` or `route_backward` need as `room`, which begins at a multiple of 32 bytes. */
long room_size(Sizes n, long backward) { return plan(n, backward).end * LANES; }

static void route_group(Sizes n, Group g, const float *bias, float *sums, float *v, float *partial, float *V, v8 *own,
                        long own_step) {
    const long size = poses(n), chunks = parts(tiles(n), CHUNK);
    memset(V, 0, sizeof(float) * (size_t)(g.count * size));
    Step steps[n.group];
    for (long b = 0; b < g.count; b++) steps[b] = (Step){.V = g.prior ? V + b * size : NULL};
#pragma omp parallel num_threads(n.inner)
    {
        v8 *mine = own + omp_get_thread_num() * own_step;
#pragma omp for schedule(dynamic)
        for (long c = 0; c < chunks; c++) make_chunk(n, g, steps, c, partial + c * n.group * size, mine);
        for (long b = 0; b < g.count; b++)
            for (long r = 0; r < n.iterations; r++) {
                if (r > 0) {
#pragma omp for schedule(dynamic)
                    for (long k = 0; k < chunks; k++) {
                        const long c = r % 2 ? chunks - 1 - k : k;
                        read_chunk(n, g, (Step){.V = V + b * size}, b, c, partial + (c * n.group + b) * size, mine);
                    }
                }
#pragma omp single
                {
                    float *s = sums + (r * n.batch + b) * size, *last = v + b * size;
                    memset(s, 0, sizeof(float) * (size_t)size);
                    add_up(n, partial + b * size, chunks, n.group * size, s);
                    for (long k = 0; k < size; k++)
                        s[k] = (r == 0 && !g.prior ? s[k] / (float)(n.parents + n.leaky) : s[k]) + (bias ? bias[k] : 0);
                    if (r < n.iterations - 1) add_squashed(n, s, V + b * size);
                    else memset(last, 0, sizeof(float) * (size_t)size), add_squashed(n, s, last);
                }
            }
    }
}

/* Lays out what all groups read. */
static void pack_all(Sizes n, const float *W, const float *prior, v8 *weights, v8 *priors) {
#pragma omp parallel for num_threads(n.outer * n.inner)
    for (long t = 0; t < tiles(n); t++) {
        if (weights) pack_weights(n, W, t, weights + t * poses(n) * n.child_dim);
        if (prior) pack_prior(n, prior, t, priors + t * n.parents);
    }
}

/* `sums` [r b j d] become s of every iteration, v [b j d] the last squash(s). */
void route(Sizes n, const float *u, const float *W, const float *prior, const float *bias, float *sums, float *v,
           float *room) {
    const Plan at = plan(n, 0);
    const long size = poses(n);
    v8 *start = (v8 *)room, *priors = prior ? start + at.prior : NULL;
    v8 *weights = n.batch > n.group ? start + at.weights : NULL;
    pack_all(n, W, prior, weights, priors);
#pragma omp parallel for num_threads(n.outer) schedule(dynamic)
    for (long first = 0; first < n.batch; first += n.group) {
        const long thread = omp_get_thread_num();
        v8 *here = start + at.groups + thread * at.group;
        const Group g = {u + first * n.children * n.child_dim, W, weights, priors, here + at.votes,
                         least(n.group, n.batch - first)};
        route_group(n, g, bias, sums + first * size, v + first * size, (float *)(here + at.sums), (float *)(here + at.V),
                    start + at.threads + thread * at.thread, at.thread);
    }
}

/* The gradients of one image's s in iteration r: [2 jd] of `pairs`, or `even`. */
typedef struct {
    long lowest, begin; /* the first iteration that has a gradient, and the first whose couplings are not all equal */
    const float *sums, *grad;
    float *grad_s; /* summed over the iterations, or NULL */
} Parents;

/* From the gradient of v in iteration r (in the last one `grad`, before it what V got) to that of s. */
static void parents_backward(Sizes n, Parents p, Span span, long first, long b, long r, const float *grad_V) {
    const long size = poses(n), image = first + b, final = n.iterations - 1;
    float *g = r < p.begin ? (float *)span.even + image * size
                           : (float *)span.pairs + ((r - p.begin) * span.count + image) * 2 * size;
    float *total = p.grad_s ? p.grad_s + image * size : NULL;
    squash_backward(n, p.sums + (r * n.batch + image) * size, r == final ? p.grad + image * size : grad_V, g);
    for (long k = 0; total && k < size; k++) total[k] = g[k] + (r == final ? 0 : total[k]);
    if (r < p.begin) {
        for (long k = 0; k < size; k++) g[k] /= (float)(n.parents + n.leaky);
        return;
    }
    memset(g + size, 0, sizeof(float) * (size_t)size);
    for (long q = 0; q < r; q++) add_squashed(n, p.sums + (q * n.batch + image) * size, g + size);
}

/* All iterations of a group, whose first image is `first` in the span, from the last to the first. */
static void route_group_backward(Sizes n, Group g, Parents p, Span span, long first, float *partial, float *grad_V,
                                 v8 *own, long own_step) {
    const long size = poses(n), chunks = parts(tiles(n), CHUNK), final = n.iterations - 1;
    Step steps[n.group];
    memset(grad_V, 0, sizeof(float) * (size_t)(g.count * size));
    for (long b = 0; b < g.count; b++) {
        parents_backward(n, p, span, first, b, final, NULL);
        const long image = (final - p.begin) * span.count + first + b;
        const float *pair = span.pairs + image * 2 * size;
        steps[b] = (Step){pair + size, pair, (v8 *)span.kept + image * tiles(n) * n.parents * 2};
    }
    if (final < p.begin) return;
#pragma omp parallel num_threads(n.inner)
    {
        v8 *mine = own + omp_get_thread_num() * own_step;
#pragma omp for schedule(dynamic)
        for (long c = 0; c < chunks; c++) make_chunk(n, g, steps, c, partial + c * n.group * size, mine);
        for (long b = 0; b < g.count; b++)
            for (long r = final - 1; r >= p.lowest; r--) {
#pragma omp single
                {
                    add_up(n, partial + b * size, chunks, n.group * size, grad_V + b * size);
                    parents_backward(n, p, span, first, b, r, grad_V + b * size);
                    const long image = (r - p.begin) * span.count + first + b;
                    const float *pair = span.pairs + image * 2 * size;
                    if (r >= p.begin) steps[b] = (Step){pair + size, pair, (v8 *)span.kept + image * tiles(n) * n.parents * 2};
                }
                if (r < p.begin) break;
#pragma omp for schedule(dynamic)
                for (long k = 0; k < chunks; k++) {
                    const long c = (final - r) % 2 ? chunks - 1 - k : k;
                    read_chunk(n, g, steps[b], b, c, partial + (c * n.group + b) * size, mine);
                }
            }
    }
}

/* From grad [b j d] of v: the gradients of u, of W, of the priors (or NULL), and of s, summed over the iterations,
   grad_s [b j d] (or NULL). Without `full`, only the last iteration has a gradient, and gradients of its logits reach
   the priors only. */
void route_backward(Sizes n, const float *u, const float *W, const float *prior, const float *sums, const float *grad,
                    float *grad_u, float *grad_W, float *grad_prior, float *grad_s, float *room) {
    const Plan at = plan(n, 1);
    const long size = poses(n), lowest = n.full ? 0 : n.iterations - 1, begin = prior || lowest > 0 ? lowest : 1;
    v8 *start = (v8 *)room, *priors = prior ? start + at.prior : NULL, *weights = start + at.weights;
    float *pairs = (float *)(start + at.pairs), *even = begin > lowest ? (float *)(start + at.even) : NULL;
    pack_all(n, W, prior, weights, priors);
    for (long from = 0; from < n.batch; from += n.span) {
        const long one = n.children * n.child_dim;
        const Span span = {least(n.span, n.batch - from), n.iterations - begin, start + at.kept, pairs, even};
        const Parents p = {lowest, begin, sums + from * size, grad + from * size, grad_s ? grad_s + from * size : NULL};
#pragma omp parallel for num_threads(n.outer) schedule(dynamic)
        for (long first = 0; first < span.count; first += n.group) {
            const long thread = omp_get_thread_num();
            v8 *here = start + at.groups + thread * at.group;
            const Group g = {u + (from + first) * one, W, weights, priors, here + at.votes,
                             least(n.group, span.count - first)};
            route_group_backward(n, g, p, span, first, (float *)(here + at.sums), (float *)(here + at.V),
                                 start + at.threads + thread * at.thread, at.thread);
        }
#pragma omp parallel for num_threads(n.outer * n.inner) schedule(dynamic)
        for (long t = 0; t < tiles(n); t++)
            hand_on(n, span, t, u + from * one, weights, grad_u + from * one, grad_W, grad_prior, from > 0,
                    start + at.threads + omp_get_thread_num() * at.thread);
    }
}
