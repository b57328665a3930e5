/* Dynamic routing of u [b i p] through W [i j d p], forward and backward (see fused_routing.py).

   Neighbouring children make a tile, one child in each lane of a vector, and 32 children make a row of tiles. Votes,
   agreement, softmax and weighted sum are then the same operation for all lanes, whatever the numbers of parents and
   dimensions are. Lanes that are left over in the last row have a pose of zero, so that they add nothing to any sum.

   The votes û [b row jd tile lane] of a few images at a time are made once and read in every iteration; where those of one
   image are too many for a cache, each iteration makes them again, of one row for FEW images at a time, and W is read once
   for many images. Sums over children are taken chunk by chunk, and the chunks are added up in their order: no number depends on the number of
   threads or on the other images of the batch. */

/* Sums are taken in the order that is written here, whatever the other loops are compiled with: with another order for
   every block of images, an answer would depend on the batch it came in, and the two parts of ln 2 would become one. */
#if defined(__clang__)
#pragma clang fp reassociate(off)
#elif defined(__GNUC__)
#pragma GCC optimize("no-associative-math")
#endif

#include "eight.h"
#include <math.h>
#include <stddef.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_get_num_threads(void) { return 1; }
#endif

#if defined(__ARM_FEATURE_FMA) && defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#define ROW 2     /* tiles that lie side by side and are read together: V is loaded once for all of them */
#define AT_ONCE 4 /* rows of a product whose sums registers have room for, four of each */
#define FEW 8     /* images whose votes of one row are made at a time, if they are not kept */
#else
#define LANES 8
#define ROW 4
#define AT_ONCE 2
#define FEW 4
#endif
#define CHUNK 4   /* rows whose sum is taken at once */
#define IMAGES 16 /* images whose products with one parent's weights stay in the nearest cache */
#define EPSILON 1e-12f

typedef float vec __attribute__((vector_size(4 * LANES), may_alias));
typedef int ivec __attribute__((vector_size(4 * LANES), may_alias));

#define EACH for (long x = 0; x < ROW; x++)

/* `sharpness` multiplies the agreement. `group`: images whose votes are kept at a time. `span`: images between two
   additions to the gradient of W. Either `outer` threads take a group each, or `inner` threads share one: one of the two
   is 1. `again`: votes are not kept, but made again in every iteration; only where `inner` is 1. */
typedef struct {
    long batch, children, parents, dim, child_dim, iterations, leaky, full, priors, group, span, outer, inner, again;
    float sharpness;
} Sizes;

INLINE long least(long a, long b) { return a < b ? a : b; }
INLINE long parts(long whole, long part) { return (whole + part - 1) / part; }
INLINE long rows(Sizes n) { return parts(n.children, LANES * ROW); }
INLINE long poses(Sizes n) { return n.parents * n.dim; }

/* The first iteration that has a gradient, and the first of those whose couplings are not all equal. */
INLINE long lowest(Sizes n) { return n.full ? 0 : n.iterations - 1; }
INLINE long begin(Sizes n) { return n.priors || lowest(n) > 0 ? lowest(n) : 1; }

/* Vectors from one image's votes to the next's. Images that lay a multiple of 4096 bytes apart would share a few places
   of the nearest cache. Of votes that are not kept there is one row. */
INLINE long image_step(Sizes n) { return parts((n.again ? 1 : rows(n)) * ROW * poses(n), 128) * 128 + 16; }
INLINE long row_step(Sizes n) { return n.again ? 0 : ROW * poses(n); }
/* Images whose votes there is room for, of all in a group. */
INLINE long at_a_time(Sizes n, long count) { return n.again ? least(FEW, count) : count; }

INLINE vec all(float x) { return (vec){0} + x; }

/* a b + c. Left to itself, gcc rounds the product in some loops and not in others. */
INLINE vec fma_(vec a, vec b, vec c) {
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return __builtin_ia32_vfmaddps256(a, b, c);
#elif defined(__ARM_FEATURE_FMA) && defined(__ARM_NEON)
    // Left to the compiler, some loops round once and others twice, and numbers would depend on the batch.
    union { vec whole; float32x4_t part[LANES / 4]; } x = {a}, y = {b}, sum = {c};
    for (long k = 0; k < LANES / 4; k++) sum.part[k] = vfmaq_f32(sum.part[k], x.part[k], y.part[k]);
    return sum.whole;
#else
    return a * b + c;
#endif
}

/* a > b ? a : b in every lane: b where one of them is not a number. */
INLINE vec larger(vec a, vec b) {
    vec c;
    for (long l = 0; l < LANES; l++) c[l] = a[l] > b[l] ? a[l] : b[l];
    return c;
}

/* to [count lane] = from [lane count], whose rows are `step` apart; zero beyond the `rows` that there are. */
static void pack(const float *from, long step, long rows, long count, vec *to) {
    long k = 0;
    if (rows == LANES)
        for (; k + 8 <= count; k += 8)
            for (long part = 0; part < LANES; part += 8) {
                v8 r[8];
                for (long l = 0; l < 8; l++) r[l] = *(const loose *)(from + (part + l) * step + k);
                transpose(r);
                for (long l = 0; l < 8; l++) *(v8 *)((float *)(to + k + l) + part) = r[l];
            }
    for (; k < count; k++) {
        to[k] = all(0);
        for (long l = 0; l < rows; l++) to[k][l] = from[l * step + k];
    }
}

/* The inverse of `pack`; with `add`, what was there before is kept. */
static void unpack(const vec *from, float *to, long step, long rows, long count, long add) {
    long k = 0;
    if (rows == LANES)
        for (; k + 8 <= count; k += 8)
            for (long part = 0; part < LANES; part += 8) {
                v8 r[8];
                for (long l = 0; l < 8; l++) r[l] = *(const v8 *)((const float *)(from + k + l) + part);
                transpose(r);
                for (long l = 0; l < 8; l++) {
                    loose *place = (loose *)(to + (part + l) * step + k);
                    if (add) r[l] += *place;
                    *place = r[l];
                }
            }
    for (; k < count; k++)
        for (long l = 0; l < rows; l++) to[l * step + k] = from[k][l] + (add ? to[l * step + k] : 0);
}

/* A vector of 8 lanes, or the sum of two halves of 8. */
INLINE v8 folded(const vec *x) {
    v8 sum = *(const v8 *)x;
    if (LANES == 16) sum += ((const v8 *)x)[LANES / 8 - 1];
    return sum;
}

/* to [count] = the sums over lanes of from [count lane]. Halves, then pairs, then neighbours are added. */
static void sum_lanes(const vec *from, long count, float *to) {
    long k = 0;
    for (; k + 8 <= count; k += 8) {
        v8 f[8], r[4], q[2];
        for (long l = 0; l < 8; l++) f[l] = folded(from + k + l);
        for (long l = 0; l < 4; l++)
            r[l] = SHUFFLE(f[l], f[l + 4], 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLE(f[l], f[l + 4], 4, 5, 6, 7, 12, 13, 14, 15);
        for (long l = 0; l < 2; l++)
            q[l] = SHUFFLE(r[2 * l], r[2 * l + 1], 0, 8, 1, 9, 4, 12, 5, 13) +
                   SHUFFLE(r[2 * l], r[2 * l + 1], 2, 10, 3, 11, 6, 14, 7, 15);
        *(loose *)(to + k) =
            SHUFFLE(q[0], q[1], 0, 1, 8, 9, 4, 5, 12, 13) + SHUFFLE(q[0], q[1], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    for (; k < count; k++) {
        to[k] = 0;
        for (long l = 0; l < LANES; l++) to[k] += from[k][l];
    }
}

/* For x <= 0, within two units in the last place; below -87 as at -87, and what is not a number stays so. ln 2 is taken
   in two parts, of which the first times n is exact. */
INLINE vec exp_(vec x) {
    const vec low = all(-87);
    const ivec n = __builtin_convertvector(larger(x, low) * 1.44269504f - 0.5f, ivec);
    const vec f = __builtin_convertvector(n, vec);
    x = larger(low, x);
    const vec r = fma_(f, all(2.12194440e-4f), fma_(f, all(-0.693359375f), x));
    vec p = fma_(all(1.9875691500e-4f), r, all(1.3981999507e-3f));
    p = fma_(p, r, all(8.3334519073e-3f));
    p = fma_(p, r, all(4.1665795894e-2f));
    p = fma_(p, r, all(1.6666665459e-1f));
    p = fma_(p, r, all(5.0000001201e-1f));
    return (fma_(p, r * r, r) + 1.0f) * (vec)((n + 127) << 23);
}

/* How many children tile x of row r has. */
INLINE long children_of(Sizes n, long r, long x) {
    const long left = n.children - (r * ROW + x) * LANES;
    return left < 0 ? 0 : least(LANES, left);
}

/* W of a row, [tile jd p lane]. */
static void pack_weights(Sizes n, const float *W, long r, vec *to) {
    const long child = poses(n) * n.child_dim;
    EACH pack(W + (r * ROW + x) * LANES * child, child, children_of(n, r, x), child, to + x * child);
}

/* Priors of a row, [j tile lane]. */
static void pack_prior(Sizes n, const float *prior, long r, vec *to) {
    EACH for (long j = 0; j < n.parents; j++)
            pack(prior + (r * ROW + x) * LANES * n.parents + j, n.parents, children_of(n, r, x), 1, to + j * ROW + x);
}

/* A block of votes, `images` x `dims`, kept in registers: Σ_p w [d p] u [b p]. */
INLINE void vote_block(const long images, const long dims, long p, const vec *w, const vec *u, vec *votes, long step) {
    vec a[24];
    for (long k = 0; k < images * dims; k++) a[k] = all(0);
    for (long k = 0; k < p; k++)
        for (long b = 0; b < images; b++)
            for (long d = 0; d < dims; d++) a[b * dims + d] = fma_(w[d * p + k], u[b * p + k], a[b * dims + d]);
    for (long b = 0; b < images; b++)
        for (long d = 0; d < dims; d++) votes[b * step + d * ROW] = a[b * dims + d];
}

/* Votes d to d + dims of a row, [b jd tile], in all its tiles and `times` blocks of `images`. w [tile jd p], u [tile b p].
   The weights of the next dims are asked for before they are needed. */
INLINE void vote_blocks(const long images, const long dims, long times, long size, const long p, long d, const vec *w,
                        const vec *u, long u_step, vec *votes, long step) {
    EACH {
        const vec *here = w + (x * size + d) * p;
        for (long k = 0; k < dims * p; k += 2) __builtin_prefetch(here + dims * p + k);
        for (long b = 0; b < times * images; b += images)
            vote_block(images, dims, p, here, u + x * u_step + b * p, votes + b * step + d * ROW + x, step);
    }
}

INLINE void vote_row(long images, long size, const long p, const vec *w, const vec *u, vec *votes, long step) {
    const long most = images / FEW, fours = images % FEW / 4, ones = images % 4, u_step = images * p;
    long d = 0;
    for (; most && d + 3 <= size; d += 3) vote_blocks(FEW, 3, most, size, p, d, w, u, u_step, votes, step);
    for (; most && d < size; d++) vote_blocks(FEW, 1, most, size, p, d, w, u, u_step, votes, step);
    u += FEW * most * p, votes += FEW * most * step;
    for (d = 0; fours && d + 3 <= size; d += 3) vote_blocks(4, 3, fours, size, p, d, w, u, u_step, votes, step);
    for (; fours && d < size; d++) vote_blocks(4, 1, fours, size, p, d, w, u, u_step, votes, step);
    u += 4 * fours * p, votes += 4 * fours * step;
    for (d = 0; ones && d + 8 <= size; d += 8) vote_blocks(1, 8, ones, size, p, d, w, u, u_step, votes, step);
    for (; ones && d < size; d++) vote_blocks(1, 1, ones, size, p, d, w, u, u_step, votes, step);
}

/* The children of a few images, and where their votes are. */
typedef struct {
    const float *u, *W;
    const vec *packed, *prior; /* W [row tile jd p lane], NULL if it is packed row by row; priors or NULL */
    vec *votes;                /* [b row jd tile lane] */
    long count;
} Group;

static void make_votes(Sizes n, Group g, long r, vec *room) {
    const long p = n.child_dim, size = poses(n), step = image_step(n);
    vec *u = room, *packed = u + ROW * g.count * p, *votes = g.votes + r * row_step(n);
    EACH for (long b = 0; b < g.count; b++) {
        const float *from = g.u + (b * n.children + (r * ROW + x) * LANES) * p;
        pack(from, p, children_of(n, r, x), p, u + (x * g.count + b) * p);
        /* The same place of the next row. */
        for (long k = 0; n.again && k < LANES * p; k += 16) __builtin_prefetch(from + ROW * LANES * p + k);
    }
    const vec *w = g.packed ? g.packed + r * size * ROW * p : packed;
    if (!g.packed) pack_weights(n, g.W, r, packed);
    if (p == 8) vote_row(g.count, size, 8, w, u, votes, step);
    else vote_row(g.count, size, p, w, u, votes, step);
}

/* c [j tile]: logits become couplings (Eq. 3); the leak is one more parent, whose logit is 0. */
INLINE void softmax(Sizes n, vec *c) {
    vec most[ROW], sum[ROW];
    EACH most[x] = n.leaky ? all(0) : c[x];
    for (long j = 0; j < n.parents; j++)
        EACH most[x] = larger(c[j * ROW + x], most[x]);
    EACH sum[x] = n.leaky ? exp_(-most[x]) : all(0);
    for (long j = 0; j < n.parents; j++)
        EACH sum[x] += c[j * ROW + x] = exp_(c[j * ROW + x] - most[x]);
    EACH sum[x] = 1.0f / sum[x];
    for (long j = 0; j < n.parents; j++)
        EACH c[j * ROW + x] *= sum[x];
}

/* sum [jd] += Σ over the tiles of û */
static void add_evenly(Sizes n, const vec *votes, vec *sum) {
    for (long d = 0; d < poses(n); d++, votes += ROW)
        EACH sum[d] += votes[x];
}

/* sum [jd] += Σ over the tiles of f [j tile] û */
INLINE void add_weighted(Sizes n, const vec *votes, const vec *f, vec *sum) {
    for (long j = 0; j < n.parents; j++, f += ROW) {
        vec g[ROW];
        EACH g[x] = f[x];
        for (long d = 0; d < n.dim; d++, votes += ROW) {
            vec a = *sum;
            EACH a = fma_(g[x], votes[x], a);
            *sum++ = a;
        }
    }
}

static void weigh(Sizes n, const vec *votes, const float *V, const vec *prior, vec *c, vec *sum) {
    const vec *u = votes;
    for (long j = 0; j < n.parents; j++) {
        vec a[ROW];
        EACH a[x] = prior ? prior[j * ROW + x] : all(0);
        for (long d = 0; d < n.dim; d++, u += ROW, V++)
            EACH a[x] = fma_(u[x], all(*V), a[x]);
        EACH c[j * ROW + x] = a[x];
    }
    softmax(n, c);
    add_weighted(n, votes, c, sum);
}

/* With c = softmax(û · V): the gradient of the logits, `g = c (û · grad_s - Σ_j c û · grad_s)`, adds Σ_i g û to the
   gradient of V. Both c and g are kept, [tile j], `step` apart. */
static void weigh_backward(Sizes n, const vec *votes, const float *V, const float *grad_s, const vec *prior, vec *kept,
                           long step, vec *c, vec *sum) {
    const vec *u = votes;
    vec *g = c + ROW * n.parents, mean[ROW];
    for (long j = 0; j < n.parents; j++) {
        vec a[ROW], b[ROW];
        EACH a[x] = prior ? prior[j * ROW + x] : all(0);
        EACH b[x] = all(0);
        for (long d = 0; d < n.dim; d++, u += ROW, V++, grad_s++)
            EACH a[x] = fma_(u[x], all(*V), a[x]), b[x] = fma_(u[x], all(*grad_s), b[x]);
        EACH c[j * ROW + x] = a[x];
        EACH g[j * ROW + x] = b[x];
    }
    softmax(n, c);
    EACH mean[x] = all(0);
    for (long j = 0; j < n.parents; j++)
        EACH mean[x] = fma_(c[j * ROW + x], g[j * ROW + x], mean[x]);
    for (long j = 0; j < n.parents; j++)
        EACH {
            g[j * ROW + x] = c[j * ROW + x] * (g[j * ROW + x] - mean[x]);
            kept[(x * n.parents + j) * step] = c[j * ROW + x];
            kept[(x * n.parents + j) * step + 1] = g[j * ROW + x];
        }
    add_weighted(n, votes, g, sum);
}

/* What one iteration does with the votes of an image: V is NULL while all couplings are equal, grad_s in the forward
   pass. */
typedef struct {
    const float *V, *grad_s;
    vec *kept; /* [tile j] couplings and gradients of the logits, `step` apart */
    long step;
} Step;

static void take_row(Sizes n, Group g, Step s, long b, long r, vec *c, vec *sum) {
    const vec *votes = g.votes + b * image_step(n) + r * row_step(n);
    const vec *prior = g.prior ? g.prior + r * n.parents * ROW : NULL;
    if (!s.V) add_evenly(n, votes, sum);
    else if (!s.grad_s) weigh(n, votes, s.V, prior, c, sum);
    else weigh_backward(n, votes, s.V, s.grad_s, prior, s.kept + r * ROW * n.parents * s.step, s.step, c, sum);
}

/* One chunk of one image's votes, which are there already: to [jd] = Σ_i c û, or what it adds to V's gradient. */
static void read_chunk(Sizes n, Group g, Step s, long b, long chunk, float *to, vec *room) {
    const long size = poses(n), last = least(rows(n), (chunk + 1) * CHUNK);
    vec *sum = room, *c = sum + size;
    memset(sum, 0, sizeof(vec) * (size_t)size);
    for (long r = chunk * CHUNK; r < last; r++) take_row(n, g, s, b, r, c, sum);
    sum_lanes(sum, size, to);
}

/* The same for all images of a group, s [b], while their votes are made. */
static void make_chunk(Sizes n, Group g, const Step *s, long chunk, float *to, vec *room) {
    const long size = poses(n), last = least(rows(n), (chunk + 1) * CHUNK), few = at_a_time(n, g.count);
    vec *sum = room, *c = sum + g.count * size, *rest = c + 2 * ROW * n.parents;
    memset(sum, 0, sizeof(vec) * (size_t)(g.count * size));
    for (long r = chunk * CHUNK; r < last; r++)
        for (long first = 0; first < g.count; first += few) {
            Group some = g;
            some.u += first * n.children * n.child_dim, some.count = least(few, g.count - first);
            make_votes(n, some, r, rest);
            for (long b = 0; b < some.count; b++) take_row(n, some, s[first + b], b, r, c, sum + (first + b) * size);
        }
    for (long b = 0; b < g.count; b++) sum_lanes(sum + b * size, size, to + b * size);
}

/* Adds `times` squash(s) to V (Eq. 1), for one image. */
static void add_squashed(Sizes n, const float *s, float times, float *V) {
    for (long j = 0; j < n.parents; j++, s += n.dim, V += n.dim) {
        float square = 0;
        for (long d = 0; d < n.dim; d++) square += s[d] * s[d];
        const float f = times * sqrtf(square + EPSILON) / (1 + square);
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

/* to [a c] += Σ_k x [a k] y [k c] with `as` x `cs` results in registers; numbers of one row are a step of 1 apart. */
INLINE void product(const long as, const long cs, long ks, const vec *x, long xa, long xk, const vec *y, vec *to,
                    long step) {
    vec sum[16];
    for (long a = 0; a < as; a++)
        for (long c = 0; c < cs; c++) sum[a * cs + c] = to[a * step + c];
    for (long k = 0; k < ks; k++)
        for (long a = 0; a < as; a++)
            for (long c = 0; c < cs; c++) sum[a * cs + c] = fma_(x[a * xa + k * xk], y[k * step + c], sum[a * cs + c]);
    for (long a = 0; a < as; a++)
        for (long c = 0; c < cs; c++) to[a * step + c] = sum[a * cs + c];
}

static void products(long as, long cs, long ks, const vec *x, long xa, long xk, const vec *y, vec *to) {
    long a = 0;
    for (; a + AT_ONCE <= as; a += AT_ONCE, x += AT_ONCE * xa, to += AT_ONCE * cs) {
        long c = 0;
        for (; c + 4 <= cs; c += 4) product(AT_ONCE, 4, ks, x, xa, xk, y + c, to + c, cs);
        for (; c < cs; c++) product(AT_ONCE, 1, ks, x, xa, xk, y + c, to + c, cs);
    }
    for (; a < as; a++, x += xa, to += cs)
        for (long c = 0; c < cs; c++) product(1, 1, ks, x, xa, xk, y + c, to + c, cs);
}

/* Everything that the backward pass of a span of images keeps for its end. */
typedef struct {
    long count, passes; /* images; iterations whose couplings are not all equal */
    vec *kept;           /* [pass tile j image 2 lane]: couplings and gradients of the logits */
    float *pairs;       /* [pass image 2 jd]: grad_s, and the V that the logits came from */
    float *even;        /* [image jd]: grad_s of the uniform iteration, divided by the parents; or NULL */
} Span;

INLINE vec *kept_of(Sizes n, Span s, long pass, long t, long j) {
    return s.kept + ((pass * rows(n) * ROW + t) * n.parents + j) * s.count * 2;
}

/* g [d lane] = start [d] (g itself where NULL) + Σ over `terms` of f x [d] */
INLINE void add_terms(const long terms, long dim, const float *start, const vec *f, const float *const *x, vec *g) {
    for (long d = 0; d < dim; d++) {
        vec a = start ? all(start[d]) : g[d];
        for (long k = 0; k < terms; k++) a = fma_(f[k], all(x[k][d]), a);
        g[d] = a;
    }
}

/* g [b d lane] = a vote's gradient for parent j, Σ over passes of `c grad_s + g V`; two passes in one loop over d. */
static void vote_gradients(Sizes n, Span s, long first, long count, long t, long j, vec *g) {
    for (long b = first; b < first + count; b++, g += n.dim) {
        const float *even = s.even ? s.even + b * poses(n) + j * n.dim : NULL;
        if (!s.even || s.passes == 0)
            for (long d = 0; d < n.dim; d++) g[d] = all(even ? even[d] : 0);
        for (long r = 0; r < s.passes; r += 2) {
            const long both = r + 1 < s.passes;
            vec f[4];
            const float *x[4];
            for (long q = 0; q < 1 + both; q++) {
                const vec *kept = kept_of(n, s, r + q, t, j) + 2 * b;
                const float *pair = s.pairs + ((r + q) * s.count + b) * 2 * poses(n) + j * n.dim;
                f[2 * q] = kept[0], f[2 * q + 1] = kept[1];
                x[2 * q] = pair, x[2 * q + 1] = pair + poses(n);
            }
            const float *start = r == 0 ? even : NULL;
            if (!n.full) add_terms(1, n.dim, start, f, x, g);
            else if (both) add_terms(4, n.dim, start, f, x, g);
            else add_terms(2, n.dim, start, f, x, g);
        }
    }
}

/* One tile of children: their gradients in all images of the span, and what the span adds to W's and the priors'. */
static void hand_on(Sizes n, Span s, long t, const float *u, const vec *W, float *grad_u, float *grad_W,
                    float *grad_prior, long add, vec *room) {
    const long p = n.child_dim, matrix = n.dim * p, members = children_of(n, t / ROW, t % ROW);
    vec *grad_w = room, *g = grad_w + matrix, *packed = g + IMAGES * n.dim;
    vec *grad = packed + s.count * p, *logits = grad + s.count * p;
    for (long b = 0; b < s.count; b++) pack(u + (b * n.children + t * LANES) * p, p, members, p, packed + b * p);
    memset(grad, 0, sizeof(vec) * (size_t)(s.count * p));
    for (long j = 0; j < n.parents; j++) {
        const long at = (t * LANES * n.parents + j) * matrix;
        memset(grad_w, 0, sizeof(vec) * (size_t)matrix);
        for (long b = 0; b < s.count; b += IMAGES) {
            const long count = least(IMAGES, s.count - b);
            vote_gradients(n, s, b, count, t, j, g);
            products(n.dim, p, count, g, 1, n.dim, packed + b * p, grad_w);
            products(count, p, n.dim, g, n.dim, 1, W + (t * n.parents + j) * matrix, grad + b * p);
        }
        unpack(grad_w, grad_W + at, n.parents * matrix, members, matrix, add);
    }
    for (long b = 0; b < s.count; b++)
        unpack(grad + b * p, grad_u + (b * n.children + t * LANES) * p, p, members, p, 0);
    if (grad_prior) {
        memset(logits, 0, sizeof(vec) * (size_t)n.parents);
        for (long r = 0; r < s.passes; r++)
            for (long j = 0; j < n.parents; j++)
                for (long b = 0; b < s.count; b++) logits[j] += kept_of(n, s, r, t, j)[2 * b + 1];
        unpack(logits, grad_prior + t * LANES * n.parents, n.parents, members, n.parents, add);
    }
}

/* Where everything lies in the room, in vectors from its beginning. What all threads read comes last: a processor reads
   ahead of them, beyond the end, and would take what lies there away from the thread that writes it. */
typedef struct {
    long groups, threads, pairs, even, kept, prior, weights, end;
    long votes, sums, V, group; /* within what each group that is worked on has for itself */
    long thread;                /* what each thread has for itself */
} Plan;

static Plan plan(Sizes n, long backward) {
    const long size = poses(n), matrix = n.dim * n.child_dim, passes = backward ? n.iterations - begin(n) : 0;
    const long handing_on = matrix + 2 * n.span * n.child_dim + IMAGES * n.dim + n.parents;
    Plan at = {.thread = n.group * (size + ROW * n.child_dim) + ROW * (2 * n.parents + size * n.child_dim)};
    if (backward && handing_on > at.thread) at.thread = handing_on;
    at.sums = at.votes + at_a_time(n, n.group) * image_step(n);
    at.V = at.sums + parts(parts(rows(n), CHUNK) * n.group * size, LANES);
    at.group = at.V + parts(n.group * size, LANES);
    at.threads = at.groups + n.outer * at.group;
    at.pairs = at.threads + n.outer * n.inner * at.thread;
    at.even = at.pairs + parts(passes * n.span * 2 * size, LANES);
    at.kept = at.even + (backward ? parts(n.span * size, LANES) : 0);
    at.prior = at.kept + passes * n.span * rows(n) * ROW * n.parents * 2;
    at.weights = at.prior + (n.priors ? rows(n) * ROW * n.parents : 0);
    at.end = at.weights + (backward || n.batch > n.group ? rows(n) * ROW * size * n.child_dim : 0);
    return at;
}

/* How many floats `route` or `route_backward` need as `room`, which begins at a multiple of 64 bytes. */
long room_size(Sizes n, long backward) { return plan(n, backward).end * LANES; }

/* What one of the `outer` threads works with; `own` is for its `inner` threads, [thread]. */
typedef struct {
    vec *votes, *own;
    float *sums, *V; /* sums [chunk b jd]; V [b jd], in the backward pass its gradient */
    long step;
} Desk;

static Desk desk(Plan at, vec *room) {
    const long thread = omp_get_thread_num();
    vec *here = room + at.groups + thread * at.group;
    return (Desk){here + at.votes, room + at.threads + thread * at.thread, (float *)(here + at.sums),
                  (float *)(here + at.V), at.thread};
}

/* Lays out what all groups read. */
static void pack_all(Sizes n, const float *W, const float *prior, vec *weights, vec *priors) {
#pragma omp parallel for num_threads(n.outer * n.inner)
    for (long r = 0; r < rows(n); r++) {
        if (weights) pack_weights(n, W, r, weights + r * ROW * poses(n) * n.child_dim);
        if (prior) pack_prior(n, prior, r, priors + r * ROW * n.parents);
    }
}

/* Threads that share a group wait for each other. */
INLINE void meet(Sizes n) {
    if (n.inner > 1) {
#pragma omp barrier
    }
}

/* What iteration r makes of the sums of image b's chunks. */
static void end_iteration(Sizes n, Group g, Desk w, const float *bias, float *sums, float *v, long b, long r) {
    const long size = poses(n), chunks = parts(rows(n), CHUNK);
    const float share = r == 0 && !g.prior ? 1.0f / (float)(n.parents + n.leaky) : 1.0f;
    float *s = sums + (r * n.batch + b) * size;
    memset(s, 0, sizeof(float) * (size_t)size);
    add_up(n, w.sums + b * size, chunks, n.group * size, s);
    for (long k = 0; k < size; k++) s[k] = s[k] * share + (bias ? bias[k] : 0);
    if (r < n.iterations - 1) add_squashed(n, s, n.sharpness, w.V + b * size);
    else add_squashed(n, s, 1, v + b * size);
}

/* All iterations of a group, `me` being one of the threads that share it, a team that may be smaller than was asked for.
   Every other iteration begins with the votes that the one before it read last, because these are still in the nearest
   cache. */
static void route_share(Sizes n, Group g, Desk w, const Step *steps, const float *bias, float *sums, float *v, long me,
                        long team) {
    const long size = poses(n), chunks = parts(rows(n), CHUNK);
    vec *own = w.own + me * w.step;
    for (long c = me; c < chunks; c += team) make_chunk(n, g, steps, c, w.sums + c * n.group * size, own);
    meet(n);
    for (long b = 0; b < g.count; b++)
        for (long r = 0; r < n.iterations; r++) {
            if (r > 0) {
                for (long k = me; k < chunks; k += team) {
                    const long c = r % 2 ? chunks - 1 - k : k;
                    read_chunk(n, g, (Step){.V = w.V + b * size}, b, c, w.sums + (c * n.group + b) * size, own);
                }
                meet(n);
            }
            if (me == 0) end_iteration(n, g, w, bias, sums, v, b, r);
            meet(n);
        }
}

/* The same, where every iteration makes the votes again. */
static void route_again(Sizes n, Group g, Desk w, Step *steps, const float *bias, float *sums, float *v) {
    const long size = poses(n), chunks = parts(rows(n), CHUNK);
    for (long r = 0; r < n.iterations; r++) {
        for (long c = 0; c < chunks; c++) make_chunk(n, g, steps, c, w.sums + c * n.group * size, w.own);
        for (long b = 0; b < g.count; b++) {
            end_iteration(n, g, w, bias, sums, v, b, r);
            steps[b].V = w.V + b * size;
        }
    }
}

static void route_group(Sizes n, Group g, Desk w, const float *bias, float *sums, float *v) {
    const long size = poses(n);
    Step steps[n.group];
    memset(w.V, 0, sizeof(float) * (size_t)(g.count * size));
    memset(v, 0, sizeof(float) * (size_t)(g.count * size));
    for (long b = 0; b < g.count; b++) steps[b] = (Step){.V = g.prior ? w.V + b * size : NULL};
    if (n.again) route_again(n, g, w, steps, bias, sums, v);
    else if (n.inner == 1) route_share(n, g, w, steps, bias, sums, v, 0, 1);
    else {
#pragma omp parallel num_threads(n.inner)
        route_share(n, g, w, steps, bias, sums, v, omp_get_thread_num(), omp_get_num_threads());
    }
}

/* Does `WORK` for the first image of each group. Threads that share a group begin a parallel region of their own: inside of
   another one, even of one thread, OpenMP would create new threads at every call. */
#define EACH_GROUP(first, images, WORK)                                                                                \
    if (n.outer == 1)                                                                                                  \
        for (long first = 0; first < (images); first += n.group) WORK;                                                 \
    else {                                                                                                             \
        _Pragma("omp parallel for num_threads(n.outer) schedule(dynamic)") for (long first = 0; first < (images);      \
                                                                                first += n.group) WORK;                \
    }

static void route_images(Sizes n, Desk w, Group g, const float *bias, float *sums, float *v, long first) {
    g.u += first * n.children * n.child_dim, g.votes = w.votes, g.count = least(n.group, n.batch - first);
    route_group(n, g, w, bias, sums + first * poses(n), v + first * poses(n));
}

/* `sums` [r b j d] become s of every iteration, v [b j d] the last squash(s). */
void route(Sizes n, const float *u, const float *W, const float *prior, const float *bias, float *sums, float *v,
           float *room) {
    const Plan at = plan(n, 0);
    vec *start = (vec *)room, *priors = prior ? start + at.prior : NULL;
    vec *weights = n.batch > n.group ? start + at.weights : NULL;
    const Group g = {u, W, weights, priors, NULL, 0};
    if (weights || priors) pack_all(n, W, prior, weights, priors);
    EACH_GROUP(first, n.batch, route_images(n, desk(at, start), g, bias, sums, v, first))
}

/* The parents of a span of images. */
typedef struct {
    const float *sums, *grad; /* s [r b j d], the gradient of v [b j d] */
    float *grad_s;            /* that of s, summed over the iterations, or NULL */
} Parents;

/* The gradient of s in iteration r: from that of v, in the last iteration, and before it from that of V. What the
   iteration then does with the votes. */
static Step parents_backward(Sizes n, Parents p, Span span, long image, long r, const float *grad_V) {
    const long size = poses(n), final = n.iterations - 1, pass = r - begin(n);
    float *g = pass < 0 ? span.even + image * size : span.pairs + (pass * span.count + image) * 2 * size, *V = g + size;
    squash_backward(n, p.sums + (r * n.batch + image) * size, r == final ? p.grad + image * size : grad_V, g);
    if (r != final)
        for (long k = 0; k < size; k++) g[k] *= n.sharpness;
    if (p.grad_s)
        for (long k = 0; k < size; k++) p.grad_s[image * size + k] = g[k] + (r == final ? 0 : p.grad_s[image * size + k]);
    if (pass < 0) {
        for (long k = 0; k < size; k++) g[k] /= (float)(n.parents + n.leaky);
        return (Step){0};
    }
    memset(V, 0, sizeof(float) * (size_t)size);
    for (long q = 0; q < r; q++) add_squashed(n, p.sums + (q * n.batch + image) * size, n.sharpness, V);
    return (Step){V, g, kept_of(n, span, pass, 0, 0) + 2 * image, 2 * span.count};
}

/* All iterations of a group, from the last to the first; `first` is its first image in the span. */
static void backward_share(Sizes n, Group g, Desk w, Parents p, Span span, long first, Step *steps, long me,
                           long team) {
    const long size = poses(n), chunks = parts(rows(n), CHUNK), final = n.iterations - 1;
    vec *own = w.own + me * w.step;
    for (long c = me; c < chunks; c += team) make_chunk(n, g, steps, c, w.sums + c * n.group * size, own);
    meet(n);
    for (long b = 0; b < g.count; b++)
        for (long r = final - 1; r >= lowest(n); r--) {
            if (me == 0) {
                add_up(n, w.sums + b * size, chunks, n.group * size, w.V + b * size);
                steps[b] = parents_backward(n, p, span, first + b, r, w.V + b * size);
            }
            meet(n);
            if (r < begin(n)) break;
            for (long k = me; k < chunks; k += team) {
                const long c = (final - r) % 2 ? chunks - 1 - k : k;
                read_chunk(n, g, steps[b], b, c, w.sums + (c * n.group + b) * size, own);
            }
            meet(n);
        }
}

/* The same, where every iteration makes the votes again. */
static void backward_again(Sizes n, Group g, Desk w, Parents p, Span span, long first, Step *steps) {
    const long size = poses(n), chunks = parts(rows(n), CHUNK);
    for (long r = n.iterations - 1; r >= begin(n); r--) {
        for (long c = 0; c < chunks; c++) make_chunk(n, g, steps, c, w.sums + c * n.group * size, w.own);
        for (long b = 0; r > lowest(n) && b < g.count; b++) {
            add_up(n, w.sums + b * size, chunks, n.group * size, w.V + b * size);
            steps[b] = parents_backward(n, p, span, first + b, r - 1, w.V + b * size);
        }
    }
}

static void route_group_backward(Sizes n, Group g, Desk w, Parents p, Span span, long first) {
    Step steps[n.group];
    memset(w.V, 0, sizeof(float) * (size_t)(g.count * poses(n)));
    for (long b = 0; b < g.count; b++) steps[b] = parents_backward(n, p, span, first + b, n.iterations - 1, NULL);
    if (span.passes == 0) return;
    if (n.again) backward_again(n, g, w, p, span, first, steps);
    else if (n.inner == 1) backward_share(n, g, w, p, span, first, steps, 0, 1);
    else {
#pragma omp parallel num_threads(n.inner)
        backward_share(n, g, w, p, span, first, steps, omp_get_thread_num(), omp_get_num_threads());
    }
}

static void route_images_backward(Sizes n, Desk w, Group g, Parents p, Span span, long first) {
    g.u += first * n.children * n.child_dim, g.votes = w.votes, g.count = least(n.group, span.count - first);
    route_group_backward(n, g, w, p, span, first);
}

/* From grad [b j d] of v: the gradients of u, of W, of the priors (or NULL), and of s, summed over the iterations,
   grad_s [b j d] (or NULL). Without `full`, only the last iteration has a gradient, and gradients of its logits reach
   the priors only. */
void route_backward(Sizes n, const float *u, const float *W, const float *prior, const float *sums, const float *grad,
                    float *grad_u, float *grad_W, float *grad_prior, float *grad_s, float *room) {
    const Plan at = plan(n, 1);
    const long size = poses(n), image = n.children * n.child_dim;
    vec *start = (vec *)room, *priors = prior ? start + at.prior : NULL, *weights = start + at.weights;
    pack_all(n, W, prior, weights, priors);
    for (long from = 0; from < n.batch; from += n.span) {
        const Parents p = {sums + from * size, grad + from * size, grad_s ? grad_s + from * size : NULL};
        const Span span = {least(n.span, n.batch - from), n.iterations - begin(n), start + at.kept,
                           (float *)(start + at.pairs), begin(n) > lowest(n) ? (float *)(start + at.even) : NULL};
        const Group g = {u + from * image, W, weights, priors, NULL, 0};
        EACH_GROUP(first, span.count, route_images_backward(n, desk(at, start), g, p, span, first))
#pragma omp parallel for num_threads(n.outer * n.inner)
        for (long t = 0; t < parts(n.children, LANES); t++)
            hand_on(n, span, t, u + from * image, weights, grad_u + from * image, grad_W, grad_prior, from > 0,
                    start + at.threads + omp_get_thread_num() * at.thread);
    }
}
