/* EM routing of whole images, forward and backward (the plain twin is routing/em.py; see fused_em.py).

   Parents are taken 8 at a time: a "vec" holds one number of 8 parents, and arrays of vecs are written [block ...],
   where a block is 8 parents. A tile is one block of one window: its votes are made, used and forgotten while they are
   in cache.

   A pose has `rows` rows of `inner` numbers and a transform is [inner columns], so that a vote is [rows columns]:
       matrix poses   rows = inner = columns = side         vote = pose W
       vector poses   rows = 1, inner = p, columns = d      vote = W pose

   places [window member]  which child of the map is a member of a window
   owners [member]         the transforms of this member
   added  [member d]       what is added to its votes, or NULL

   All parents that a child reaches share it out: a "slot" is one child of the map, or with `local` one member of one
   window.

   Each image is computed by one thread, in one order. The gradients that images have in common are summed in fixed
   groups of images. So no number depends on how many threads there are. */

/* Sums are in the order in which they are written: every product is then added in one instruction. Vectors are written
   out below, so that more than O2 only takes longer to compile. */
#if defined(__clang__)
#pragma clang fp reassociate(off)
#else
#pragma GCC optimize("O2", "no-associative-math")
#endif

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#define LANES 8
#define HALF 4
#define CHUNK 8 /* members whose votes are used while they are in the nearest cache */
#define LOG_2PI 1.8378770664f
/* Loops that GCC would turn inside out or leave as loops, with all sums in memory. */
#define UNROLL _Pragma("GCC unroll 8")
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int mask __attribute__((vector_size(4 * LANES)));

typedef struct {
    long images, children, windows, members, parents, transforms, rows, inner, columns, iterations, local;
    long threads, groups;
    float variance_floor, no_data;
} Sizes;

typedef struct {
    const int *places, *owners;
    const float *added, *inverse_temperature, *density_scale;
} Tables;

/* Numbers of a parent that the backward pass needs: mean [d], variance [d], and these. */
enum { DATA, PRICE, ACTIVATION, OFFSET, SCALARS };

INLINE long blocks_of(const Sizes *n) { return (n->parents + LANES - 1) / LANES; }
INLINE long tiles_of(const Sizes *n) { return blocks_of(n) * n->windows; }
INLINE long slots_of(const Sizes *n) { return n->local ? n->windows * n->members : n->children; }
INLINE long slot_of(const Sizes *n, const Tables *tables, long member) {
    return n->local ? member : tables->places[member];
}
INLINE long least(long a, long b) { return a < b ? a : b; }
INLINE int four_by_four(const Sizes *n) { return n->rows == 4 && n->inner == 4 && n->columns == 4; }
INLINE vec vec_of(float x) { return x - (vec){0}; }
INLINE vec where(mask m, vec yes, vec no) { return (vec)(((mask)yes & m) | ((mask)no & ~m)); }

/* Lanes of a block that are parents: 1, the others 0. */
INLINE vec present(const Sizes *n, long block) {
    vec result;
    for (int l = 0; l < LANES; l++) result[l] = block * LANES + l < n->parents;
    return result;
}

INLINE float sum_of(vec x) {
    float total = 0;
    for (int l = 0; l < LANES; l++) total += x[l];
    return total;
}

INLINE float most_of(vec x) {
    float most = x[0];
    for (int l = 1; l < LANES; l++) most = x[l] > most ? x[l] : most;
    return most;
}

/* For x <= 0, to a few units in the last place, and 0 where the result would be too small for a normal number. */
INLINE vec exp_(vec x) {
    const vec kept = where(x < -87, vec_of(-87), x);
    const mask n = __builtin_convertvector(kept * 1.44269504f - 0.5f, mask);
    const vec r = kept - __builtin_convertvector(n, vec) * 0.693147181f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return where(x < -87, vec_of(0), (p * r * r + r + 1) * (vec)((n + 127) << 23));
}

/* For normal numbers above zero (Cephes' logf). */
INLINE vec log_(vec x) {
    const mask bits = (mask)x;
    mask exponent = (bits >> 23) - 126;
    vec m = (vec)((bits & 0x007fffff) | 0x3f000000);
    const mask small = m < 0.707106781f;
    exponent += small;
    m = m - 1 + where(small, m, vec_of(0));
    const vec e = __builtin_convertvector(exponent, vec), square = m * m;
    vec p = m * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    p = p * m * square - e * 2.12194440e-4f - square * 0.5f;
    const vec result = m + p + e * 0.693359375f;
    return where(x < INFINITY, result, x);
}

/* [m j x c], or [m j c x] where poses are vectors, as [block m x c] vecs; lanes past the last parent hold zeros. */
static void pack(const Sizes *n, const float *weight, float *packed) {
    const long X = n->inner, C = n->columns;
#pragma omp parallel for collapse(2) num_threads(n->threads)
    for (long block = 0; block < blocks_of(n); block++)
        for (long m = 0; m < n->transforms; m++)
            for (long l = 0; l < LANES; l++) {
                const long j = block * LANES + l;
                const float *from = weight + (m * n->parents + j) * X * C;
                float *to = packed + (block * n->transforms + m) * X * C * LANES + l;
                for (long x = 0; x < X; x++)
                    for (long c = 0; c < C; c++) {
                        const long at = n->rows == 1 ? c * X + x : x * C + c;
                        to[(x * C + c) * LANES] = j < n->parents ? from[at] : 0;
                    }
            }
}

static void unpack(const Sizes *n, const float *packed, long groups, long step, float *weight) {
    const long X = n->inner, C = n->columns;
#pragma omp parallel for num_threads(n->threads)
    for (long m = 0; m < n->transforms; m++)
        for (long j = 0; j < n->parents; j++)
            for (long x = 0; x < X; x++)
                for (long c = 0; c < C; c++) {
                    const long block = j / LANES, lane = j % LANES;
                    const float *from = packed + (((block * n->transforms + m) * X + x) * C + c) * LANES + lane;
                    float total = 0;
                    for (long g = 0; g < groups; g++) total += from[g * step];
                    weight[(m * n->parents + j) * X * C + (n->rows == 1 ? c * X + x : x * C + c)] = total;
                }
}

/* What one thread works on. Arrays of vecs are [tile ...], a tile being (block, window). */
typedef struct {
    const Sizes *n;
    const Tables *tables;
    const vec *weights;     /* [block m x c] */
    const float *u, *a;     /* poses [child rows inner] and activations [child] of the image */
    const float *even;      /* [window]: data of a parent whose children are fully active and evenly assigned */
    const float *share;     /* [slot]: an even assignment */
    const vec *beta_u, *beta_a;
    vec *votes;             /* [member d] of the tile at hand */
    vec *r;                 /* [member] of the tile at hand */
} Image;

#define PLACE(w, i) (image->tables->places[(w) * n->members + (i)])
#define SLOT(w, i) slot_of(n, image->tables, (w) * n->members + (i))
#define FOR_MEMBERS(step) \
    for (long start = 0, width; width = least(n->members - start, step), start < n->members; start += step)

/* The loops over votes, for chunks of `width` members. Most poses have 16 numbers: with constants, the compiler keeps
   all sums in registers. What is left over after the last full chunk is taken one by one. */
#define USUAL 16
#define IN_CHUNKS(usual, any, one)                                   \
    do {                                                             \
        if (D == USUAL && width == CHUNK) usual;                     \
        else if (width == CHUNK) any;                                \
        else for (long k = 0; k < width; k++) one;                   \
    } while (0)

/* vote = pose W */
INLINE void vote_4x4(const float *restrict u, const vec *restrict w, vec *restrict out) {
    UNROLL for (long row = 0; row < 4; row += 2)
        UNROLL for (long c = 0; c < 4; c++) {
            vec first = u[row * 4] * w[c], second = u[row * 4 + 4] * w[c];
            UNROLL for (long x = 1; x < 4; x++) {
                first += u[row * 4 + x] * w[x * 4 + c];
                second += u[row * 4 + 4 + x] * w[x * 4 + c];
            }
            out[row * 4 + c] = first;
            out[row * 4 + 4 + c] = second;
        }
}

INLINE void vote(const float *restrict u, const vec *restrict w, vec *restrict out, long rows, long X, long C) {
    for (long row = 0; row < rows; row++)
        for (long c = 0; c < C; c++) {
            vec total = u[row * X] * w[c];
            for (long x = 1; x < X; x++) total += u[row * X + x] * w[x * C + c];
            out[row * C + c] = total;
        }
}

static void votes(const Image *image, long block, long window, long start, long width) {
    const Sizes *n = image->n;
    const long D = n->rows * n->columns, K = n->inner * n->columns, P = n->rows * n->inner;
    for (long i = start; i < start + width; i++) {
        const vec *w = image->weights + (block * n->transforms + image->tables->owners[i]) * K;
        const float *u = image->u + PLACE(window, i) * P, *added = image->tables->added;
        vec *out = image->votes + i * D;
        if (four_by_four(n)) vote_4x4(u, w, out);
        else vote(u, w, out, n->rows, n->inner, n->columns);
        if (added)
            for (long d = 0; d < D; d++) out[d] += added[i * D + d];
    }
}

/* sum [d] += s V */
INLINE void weighted_(const vec *restrict V, const vec *restrict s, vec *restrict sum, const long D, const long width) {
    for (long d = 0; d < D; d++) {
        vec total = sum[d];
        UNROLL for (long k = 0; k < width; k++) total += s[k] * V[k * D + d];
        sum[d] = total;
    }
}

static void add_weighted(const vec *V, const vec *s, vec *sum, long D, long width) {
    IN_CHUNKS(weighted_(V, s, sum, USUAL, CHUNK), weighted_(V, s, sum, D, CHUNK),
              weighted_(V + k * D, s + k, sum, D, 1));
}

/* sum [d] += s (V - mean)^2 */
INLINE void spread_(const vec *restrict V, const vec *restrict s, const vec *restrict mean, vec *restrict sum,
                    const long D, const long width) {
    for (long d = 0; d < D; d++) {
        vec total = sum[d];
        UNROLL for (long k = 0; k < width; k++) {
            const vec away = V[k * D + d] - mean[d];
            total += s[k] * away * away;
        }
        sum[d] = total;
    }
}

static void add_spread(const vec *V, const vec *s, const vec *mean, vec *sum, long D, long width) {
    IN_CHUNKS(spread_(V, s, mean, sum, USUAL, CHUNK), spread_(V, s, mean, sum, D, CHUNK),
              spread_(V + k * D, s + k, mean, sum, D, 1));
}

/* first [d] += g (V - mean), second [d] += g (V - mean)^2 */
INLINE void moments_(const vec *restrict V, const vec *restrict g, const vec *restrict mean, vec *restrict first,
                     vec *restrict second, const long D, const long width) {
    for (long d = 0; d < D; d++) {
        vec one = first[d], two = second[d];
        UNROLL for (long k = 0; k < width; k++) {
            const vec away = V[k * D + d] - mean[d], weighted = g[k] * away;
            one += weighted;
            two += weighted * away;
        }
        first[d] = one;
        second[d] = two;
    }
}

static void add_moments(const vec *V, const vec *g, const vec *mean, vec *first, vec *second, long D, long width) {
    IN_CHUNKS(moments_(V, g, mean, first, second, USUAL, CHUNK), moments_(V, g, mean, first, second, D, CHUNK),
              moments_(V + k * D, g + k, mean, first, second, D, 1));
}

/* out = offset + sum over d of (V - mean)^2 quadratic */
INLINE void distances_(const vec *restrict V, const vec *restrict mean, const vec *restrict quadratic, vec offset,
                       vec *restrict out, const long D, const long width) {
    vec total[CHUNK];
    UNROLL for (long k = 0; k < width; k++) total[k] = offset;
    for (long d = 0; d < D; d++)
        UNROLL for (long k = 0; k < width; k++) {
            const vec away = V[k * D + d] - mean[d];
            total[k] += away * quadratic[d] * away;
        }
    UNROLL for (long k = 0; k < width; k++) out[k] = total[k];
}

static void distances(const vec *V, const vec *mean, const vec *quadratic, vec offset, vec *out, long D, long width) {
    IN_CHUNKS(distances_(V, mean, quadratic, offset, out, USUAL, CHUNK),
              distances_(V, mean, quadratic, offset, out, D, CHUNK),
              distances_(V + k * D, mean, quadratic, offset, out + k, D, 1));
}

/* out = sum over d of (V - mean) (linear + (V - mean) quadratic) */
INLINE void slopes_(const vec *restrict V, const vec *restrict mean, const vec *restrict linear,
                    const vec *restrict quadratic, vec *restrict out, const long D, const long width) {
    vec total[CHUNK];
    UNROLL for (long k = 0; k < width; k++) total[k] = (vec){0};
    for (long d = 0; d < D; d++)
        UNROLL for (long k = 0; k < width; k++) {
            const vec away = V[k * D + d] - mean[d];
            total[k] += away * (linear[d] + away * quadratic[d]);
        }
    UNROLL for (long k = 0; k < width; k++) out[k] = total[k];
}

static void slopes(const vec *V, const vec *mean, const vec *linear, const vec *quadratic, vec *out, long D,
                   long width) {
    IN_CHUNKS(slopes_(V, mean, linear, quadratic, out, USUAL, CHUNK),
              slopes_(V, mean, linear, quadratic, out, D, CHUNK),
              slopes_(V + k * D, mean, linear, quadratic, out + k, D, 1));
}

/* grad [member d] (+)= s G_m + (V - mean) (s G_v - g precision), where `pull` is [mean, G_m, G_v, precision] */
INLINE void pulled_(const vec *restrict V, const vec *restrict s, const vec *restrict g, const vec *restrict pull,
                    int more, vec *restrict grad, const long D, const long width) {
    for (long d = 0; d < D; d++)
        UNROLL for (long k = 0; k < width; k++) {
            vec total = s[k] * pull[D + d];
            if (more) total += grad[k * D + d];
            grad[k * D + d] = total + (V[k * D + d] - pull[d]) * (s[k] * pull[2 * D + d] - g[k] * pull[3 * D + d]);
        }
}

static void add_pulled(const vec *V, const vec *s, const vec *g, const vec *pull, int more, vec *grad, long D,
                       long width) {
    if (D == USUAL && width == HALF) pulled_(V, s, g, pull, more, grad, USUAL, HALF);
    else for (long k = 0; k < width; k++) pulled_(V + k * D, s + k, g + k, pull, more, grad + k * D, D, 1);
}

/* A vote's gradient, handed on to its transform [x c] and to its pose [row x], whose lanes are summed later. */
INLINE void hand_on_4x4(const float *restrict u, const vec *restrict w, const vec *restrict grad, vec *restrict grad_w,
                        vec *restrict grad_u) {
    UNROLL for (long x = 0; x < 4; x++)
        UNROLL for (long c = 0; c < 4; c++) {
            vec total = grad_w[x * 4 + c];
            UNROLL for (long row = 0; row < 4; row++) total += u[row * 4 + x] * grad[row * 4 + c];
            grad_w[x * 4 + c] = total;
        }
    UNROLL for (long row = 0; row < 4; row += 2)
        UNROLL for (long x = 0; x < 4; x++) {
            vec first = grad_u[row * 4 + x], second = grad_u[row * 4 + 4 + x];
            UNROLL for (long c = 0; c < 4; c++) {
                first += grad[row * 4 + c] * w[x * 4 + c];
                second += grad[row * 4 + 4 + c] * w[x * 4 + c];
            }
            grad_u[row * 4 + x] = first;
            grad_u[row * 4 + 4 + x] = second;
        }
}

INLINE void hand_on(const float *restrict u, const vec *restrict w, const vec *restrict grad, vec *restrict grad_w,
                    vec *restrict grad_u, long rows, long X, long C) {
    for (long row = 0; row < rows; row++)
        for (long x = 0; x < X; x++) {
            vec total = grad_u[row * X + x];
            for (long c = 0; c < C; c++) {
                grad_w[x * C + c] += u[row * X + x] * grad[row * C + c];
                total += grad[row * C + c] * w[x * C + c];
            }
            grad_u[row * X + x] = total;
        }
}

/* What a squared distance is multiplied with in a logit. */
static void precisions(const vec *parent, float scale, vec *out, long D) {
    for (long d = 0; d < D; d++) out[d] = -0.5f * scale / parent[D + d];
}

/* M-step of a tile: `parent` [mean, variance, scalars] of the data r. */
static void fit(const Image *image, long block, long window, long t, vec *parent) {
    const Sizes *n = image->n;
    const long D = n->rows * n->columns;
    vec *mean = parent, *variance = parent + D, *scalars = parent + 2 * D, data = {0};
    for (long i = 0; i < n->members; i++) data += image->r[i];
    const vec each = 1 / (data + n->no_data);
    for (long i = 0; i < n->members; i++) image->r[i] *= each;
    for (long d = 0; d < D; d++) mean[d] = variance[d] = (vec){0};
    FOR_MEMBERS(CHUNK) {
        votes(image, block, window, start, width);
        add_weighted(image->votes + start * D, image->r + start, mean, D, width);
    }
    FOR_MEMBERS(CHUNK) add_spread(image->votes + start * D, image->r + start, mean, variance, D, width);
    vec logs = {0};
    for (long d = 0; d < D; d++) {
        variance[d] += n->variance_floor;
        logs += 0.5f * log_(variance[d]);
    }
    const vec price = image->beta_u[block] * (float)D + logs;
    const vec cost = price * (data / image->even[window]);
    const vec scaled = image->tables->inverse_temperature[t] * (image->beta_a[block] - cost);
    const vec away = exp_(where(scaled > 0, -scaled, scaled)), log_away = log_(1 + away);
    scalars[DATA] = data;
    scalars[PRICE] = price;
    scalars[ACTIVATION] = where(scaled > 0, vec_of(1), away) / (1 + away);
    const vec offset = where(scaled > 0, -log_away, scaled - log_away) -
                       image->tables->density_scale[t] * (logs + (float)D * LOG_2PI / 2);
    scalars[OFFSET] = where(present(n, block) > 0, offset, vec_of(-FLT_MAX));
}

/* Logits of all tiles become assignments, but for their sum: `norms` are each slot's largest logit, and one over its
   sum. `lanes` [slot] come with the largest logit of each lane. */
static void compete(const Image *image, vec *logit, vec *lanes, float *norms) {
    const Sizes *n = image->n;
    float *most = norms, *sum = norms + slots_of(n);
    for (long s = 0; s < slots_of(n); s++) most[s] = most_of(lanes[s]), lanes[s] = (vec){0};
    for (long tile = 0; tile < tiles_of(n); tile++)
        for (long i = 0; i < n->members; i++, logit++) {
            const long slot = SLOT(tile % n->windows, i);
            *logit = exp_(*logit - most[slot]);
            lanes[slot] += *logit;
        }
    for (long s = 0; s < slots_of(n); s++) sum[s] = 1 / sum_of(lanes[s]);
}

/* `parents` [t tile (2 d + scalars)], or one t where nothing is kept; `norms` [t 2 slot] likewise. */
static void forward_image(const Image *image, int keep, vec *parents, float *norms, vec *logit, vec *lanes, float *mean,
                          float *activation) {
    const Sizes *n = image->n;
    const long D = n->rows * n->columns, size = 2 * D + SCALARS, T = n->iterations, tiles = tiles_of(n);
    for (long t = 0; t < T; t++) {
        vec *now = parents + (keep ? t * tiles * size : 0);
        float *norm = norms + (keep ? t * 2 * slots_of(n) : 0);
        const float *sums = norms + (keep && t ? (t - 1) * 2 * slots_of(n) : 0) + slots_of(n);
        for (long s = 0; s < slots_of(n); s++) lanes[s] = vec_of(-FLT_MAX);
        for (long tile = 0; tile < tiles; tile++) {
            const long block = tile / n->windows, w = tile % n->windows;
            vec *x = logit + tile * n->members, *parent = now + tile * size, precision[D];
            const vec there = present(n, block);
            for (long i = 0; i < n->members; i++) {
                const float a = image->a[PLACE(w, i)];
                image->r[i] = t ? x[i] * (a * sums[SLOT(w, i)]) : there * (a * image->share[SLOT(w, i)]);
            }
            fit(image, block, w, t, parent);
            if (t == T - 1) continue;
            precisions(parent, image->tables->density_scale[t], precision, D);
            FOR_MEMBERS(CHUNK)
            distances(image->votes + start * D, parent, precision, parent[2 * D + OFFSET], x + start, D, width);
            for (long i = 0; i < n->members; i++) {
                vec *most = lanes + SLOT(w, i);
                *most = where(x[i] <= *most, *most, x[i]);
            }
        }
        if (t < T - 1) compete(image, logit, lanes, norm);
    }
    const vec *last = parents + (keep ? (T - 1) * tiles * size : 0);
    for (long w = 0; w < n->windows; w++)
        for (long j = 0; j < n->parents; j++) {
            const vec *parent = last + (j / LANES * n->windows + w) * size;
            for (long d = 0; d < D; d++) mean[(w * n->parents + j) * D + d] = parent[d][j % LANES];
            activation[w * n->parents + j] = parent[2 * D + ACTIVATION][j % LANES];
        }
}

/* What the backward pass of one image keeps, besides what `Image` has. */
typedef struct {
    vec *R;       /* [t tile member]: assignments */
    vec *g;       /* [t tile member]: gradients of data, which become those of the logits of the iteration before */
    vec *pull;    /* [t tile (4 d + 1)]: mean, G_m, 2 G_v, scale / variance of each number, 1 / data */
    vec *along;   /* [slot]: sum of R times its gradient */
    vec *before;  /* [slot]: the same of the iteration that came after */
    vec *grad_u;  /* [child rows inner] */
    vec *grad_a;  /* [child] */
} Scratch;

/* The gradient of a tile's votes. With s = R a / data, each iteration adds

       s G_m + (V - mean) (2 s G_v - g scale / variance)

   where g is the gradient of the logits that it found. */
static void tile_gradient(const Image *image, const Scratch *scratch, long tile, vec *grad_w) {
    const Sizes *n = image->n;
    const long D = n->rows * n->columns, K = n->inner * n->columns, P = n->rows * n->inner;
    const long T = n->iterations, tiles = tiles_of(n), block = tile / n->windows, w = tile % n->windows;
    vec grad[HALF * D], s[HALF];
    const vec none[HALF] = {0};
    FOR_MEMBERS(HALF) {
        for (long t = 0; t < T; t++) {
            const vec *pull = scratch->pull + (t * tiles + tile) * (4 * D + 1), *V = image->votes + start * D;
            const long at = (t * tiles + tile) * n->members + start;
            for (long k = 0; k < width; k++) s[k] = scratch->R[at + k] * image->a[PLACE(w, start + k)] * pull[4 * D];
            add_pulled(V, s, t < T - 1 ? scratch->g + at : none, pull, t > 0, grad, D, width);
        }
        for (long k = 0; k < width; k++) {
            const long place = PLACE(w, start + k), at = (block * n->transforms + image->tables->owners[start + k]) * K;
            const float *u = image->u + place * P;
            vec *grad_u = scratch->grad_u + place * P;
            if (four_by_four(n)) hand_on_4x4(u, image->weights + at, grad + k * D, grad_w + at, grad_u);
            else hand_on(u, image->weights + at, grad + k * D, grad_w + at, grad_u, n->rows, n->inner, n->columns);
        }
    }
}

static void backward_image(const Image *image, const vec *parents, const float *norms,
                           const float *grad_mean, const float *grad_activation, Scratch *scratch,
                           vec *grad_w, vec *grad_beta_u, vec *grad_beta_a) {
    const Sizes *n = image->n;
    const long D = n->rows * n->columns, size = 2 * D + SCALARS, T = n->iterations, tiles = tiles_of(n);
    memset(scratch->grad_u, 0, n->children * n->rows * n->inner * sizeof(vec));
    memset(scratch->grad_a, 0, n->children * sizeof(vec));
    for (long t = T - 1; t >= 0; t--) {
        const float lambda = image->tables->inverse_temperature[t], scale = image->tables->density_scale[t];
        vec *swap = scratch->before;
        scratch->before = scratch->along;
        scratch->along = swap;
        if (t < T - 1)
            for (long s = 0; s < slots_of(n); s++) scratch->before[s] = vec_of(sum_of(scratch->before[s]));
        memset(scratch->along, 0, slots_of(n) * sizeof(vec));
        for (long tile = 0; tile < tiles; tile++) {
            const long block = tile / n->windows, w = tile % n->windows;
            const vec there = present(n, block), *parent = parents + (t * tiles + tile) * size, *variance = parent + D;
            const vec *scalars = parent + 2 * D, *earlier = t ? parent - tiles * size : NULL;
            const float *norm = t ? norms + (t - 1) * 2 * slots_of(n) : NULL;
            vec *R = scratch->R + (t * tiles + tile) * n->members, *g = scratch->g + (t * tiles + tile) * n->members;
            vec first[D], second[D], total = {0}, precision[D];
            for (long d = 0; d < D; d++) first[d] = second[d] = (vec){0};
            if (t) precisions(earlier, image->tables->density_scale[t - 1], precision, D);
            if (t < T - 1)
                for (long i = 0; i < n->members; i++) {
                    g[i] = R[tiles * n->members + i] * (g[i] * image->a[PLACE(w, i)] - scratch->before[SLOT(w, i)]);
                    total += g[i];
                }
            FOR_MEMBERS(CHUNK) {
                votes(image, block, w, start, width);
                const vec *V = image->votes + start * D;
                if (t < T - 1) add_moments(V, g + start, parent, first, second, D, width);
                if (t) distances(V, earlier, precision, earlier[2 * D + OFFSET], R + start, D, width);
                for (long i = start; i < start + width; i++) {
                    const long slot = SLOT(w, i);
                    R[i] = t ? exp_(R[i] - norm[slot]) * norm[slots_of(n) + slot] : there * image->share[slot];
                }
            }
            vec grad_scaled;
            if (t < T - 1) grad_scaled = total * (1 - scalars[ACTIVATION]);
            else {
                grad_scaled = (vec){0};
                for (long l = 0; l < LANES && block * LANES + l < n->parents; l++) {
                    const long j = w * n->parents + block * LANES + l;
                    grad_scaled[l] = grad_activation[j];
                    for (long d = 0; d < D; d++) first[d][l] = grad_mean[j * D + d];
                }
                grad_scaled *= scalars[ACTIVATION] * (1 - scalars[ACTIVATION]);
            }
            const vec grad_cost = -lambda * grad_scaled * there, share = scalars[DATA] / image->even[w];
            const vec each = 1 / (scalars[DATA] + n->no_data), empty = n->no_data * each;
            const vec grad_log = share * grad_cost - (t < T - 1 ? scale * total : (vec){0});
            const vec grad_data = grad_cost * scalars[PRICE] / image->even[w];
            grad_beta_a[block] -= grad_cost;
            grad_beta_u[block] += (float)D * share * grad_cost;
            vec *pull = scratch->pull + (t * tiles + tile) * (4 * D + 1), *linear = pull + D, quadratic[D], level = {0};
            for (long d = 0; d < D; d++) {
                const vec inverse = 1 / variance[d];
                quadratic[d] = (grad_log + scale * second[d] * inverse) * 0.5f * inverse;
                pull[d] = parent[d];
                linear[d] = (t < T - 1 ? scale * first[d] * inverse : first[d]) - 2 * quadratic[d] * parent[d] * empty;
                pull[2 * D + d] = 2 * quadratic[d];
                pull[3 * D + d] = scale * inverse;
                level += (variance[d] - n->variance_floor) * quadratic[d];
            }
            pull[4 * D] = each;
            vec *grad_r = t ? g - tiles * n->members : image->r;
            FOR_MEMBERS(CHUNK) {
                slopes(image->votes + start * D, parent, linear, quadratic, grad_r + start, D, width);
                for (long i = start; i < start + width; i++) {
                    grad_r[i] = (grad_r[i] - level) * each + grad_data;
                    const vec product = R[i] * grad_r[i];
                    scratch->grad_a[PLACE(w, i)] += product;
                    scratch->along[SLOT(w, i)] += product * image->a[PLACE(w, i)];
                }
            }
            if (t == 0) tile_gradient(image, scratch, tile, grad_w);
        }
    }
}

/* An even assignment in each slot, and what it brings to a parent of each window. */
static void even_shares(const Sizes *n, const Tables *tables, float *share, float *even) {
    for (long s = 0; s < slots_of(n); s++) share[s] = 0;
    for (long x = 0; x < n->windows * n->members; x++) share[slot_of(n, tables, x)] += n->parents;
    for (long s = 0; s < slots_of(n); s++) share[s] = share[s] > 0 ? 1 / share[s] : 0;
    for (long w = 0; w < n->windows; w++) {
        even[w] = 0;
        for (long i = 0; i < n->members; i++) even[w] += share[slot_of(n, tables, w * n->members + i)];
    }
}

static void pack_betas(const Sizes *n, const float *beta, vec *packed) {
    for (long j = 0; j < blocks_of(n) * LANES; j++) packed[j / LANES][j % LANES] = j < n->parents ? beta[j] : 0;
}

INLINE long up(long count) { return (count + LANES - 1) / LANES * LANES; }
INLINE long pose_dim(const Sizes *n) { return n->rows * n->columns; }
INLINE long transforms_size(const Sizes *n) { return blocks_of(n) * n->transforms * n->inner * n->columns; }
INLINE long parents_size(const Sizes *n) { return tiles_of(n) * (2 * pose_dim(n) + SCALARS); }
INLINE long tile_size(const Sizes *n) { return n->members * (pose_dim(n) + 1); }

/* Numbers that all threads share: transforms, betas, even shares. */
long shared_room(const Sizes *n) {
    return LANES * (transforms_size(n) + 2 * blocks_of(n)) + up(slots_of(n)) + up(n->windows);
}

INLINE long kept_parents(const Sizes *n) { return LANES * n->iterations * parents_size(n); }
INLINE long kept_norms(const Sizes *n) { return (n->iterations - 1) * 2 * slots_of(n); }

/* Numbers that each thread needs. */
long forward_room(const Sizes *n, int keep) {
    const long own = keep ? 0 : LANES * parents_size(n) + up(2 * slots_of(n));
    return LANES * (tile_size(n) + tiles_of(n) * n->members + slots_of(n)) + own;
}

long backward_room(const Sizes *n) {
    const long T = n->iterations, map = n->children * (n->rows * n->inner + 1);
    const long each_tile = (2 * T - 1) * n->members + T * (4 * pose_dim(n) + 1);
    return LANES * (tile_size(n) + tiles_of(n) * each_tile + 2 * slots_of(n) + map);
}

/* Numbers of a group of images: gradients of transforms and betas. */
long group_room(const Sizes *n) { return LANES * (transforms_size(n) + 2 * blocks_of(n)); }

typedef struct {
    vec *weights, *beta_u, *beta_a;
    float *share, *even;
} Shared;

static Shared prepare(const Sizes *n, const Tables *tables, const float *weight, const float *beta_u,
                      const float *beta_a, float *room) {
    vec *vecs = (vec *)room;
    Shared shared = {vecs, vecs + transforms_size(n), vecs + transforms_size(n) + blocks_of(n), NULL, NULL};
    shared.share = (float *)(shared.beta_a + blocks_of(n));
    shared.even = shared.share + up(slots_of(n));
    pack(n, weight, room);
    pack_betas(n, beta_u, shared.beta_u);
    pack_betas(n, beta_a, shared.beta_a);
    even_shares(n, tables, shared.share, shared.even);
    return shared;
}

INLINE long thread(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

/* u [b child rows inner], a [b child], mean [b window j d], activation [b window j]; parents and norms, with `keep`,
   are what `backward` asks for. */
void forward(const Sizes *n, const Tables *tables, const float *u, const float *a, const float *weight,
             const float *beta_u, const float *beta_a, int keep, float *parents, float *norms, float *room, float *mean,
             float *activation) {
    const Shared shared = prepare(n, tables, weight, beta_u, beta_a, room);
    float *rooms = room + shared_room(n);
#pragma omp parallel for schedule(dynamic) num_threads(n->threads)
    for (long b = 0; b < n->images; b++) {
        vec *mine = (vec *)(rooms + thread() * forward_room(n, keep)), *logit = mine + tile_size(n);
        vec *lanes = logit + tiles_of(n) * n->members, *own = lanes + slots_of(n);
        Image image = {n, tables, shared.weights, u + b * n->children * n->rows * n->inner, a + b * n->children,
                       shared.even, shared.share, shared.beta_u, shared.beta_a, mine, mine + n->members * pose_dim(n)};
        vec *kept = keep ? (vec *)(parents + b * kept_parents(n)) : own;
        float *norm = keep ? norms + b * kept_norms(n) : (float *)(own + parents_size(n));
        float *m = mean + b * n->windows * n->parents * pose_dim(n), *act = activation + b * n->windows * n->parents;
        forward_image(&image, keep, kept, norm, logit, lanes, m, act);
    }
}

static void sum_lanes(const vec *from, long count, float *to) {
    for (long x = 0; x < count; x++) to[x] = sum_of(from[x]);
}

void backward(const Sizes *n, const Tables *tables, const float *u, const float *a, const float *weight,
              const float *beta_u, const float *beta_a, const float *parents, const float *norms,
              const float *grad_mean, const float *grad_activation, float *room, float *grad_u, float *grad_a, float *grad_weight,
              float *grad_beta_u, float *grad_beta_a) {
    const Shared shared = prepare(n, tables, weight, beta_u, beta_a, room);
    const long D = pose_dim(n), pose = n->rows * n->inner, each = n->windows * n->parents;
    const long assigned = tiles_of(n) * n->members;
    float *groups = room + shared_room(n), *rooms = groups + n->groups * group_room(n);
#pragma omp parallel for schedule(dynamic) num_threads(n->threads)
    for (long group = 0; group < n->groups; group++) {
        vec *mine = (vec *)(rooms + thread() * backward_room(n)), *grad = (vec *)(groups + group * group_room(n));
        vec *grad_betas = grad + transforms_size(n);
        memset(grad, 0, group_room(n) * sizeof(float));
        for (long b = group * n->images / n->groups; b < (group + 1) * n->images / n->groups; b++) {
            Image image = {n, tables, shared.weights, u + b * n->children * pose, a + b * n->children, shared.even,
                           shared.share, shared.beta_u, shared.beta_a, mine, mine + n->members * D};
            Scratch s = {.R = mine + tile_size(n)};
            s.g = s.R + n->iterations * assigned;
            s.pull = s.g + (n->iterations - 1) * assigned;
            s.along = s.pull + n->iterations * tiles_of(n) * (4 * D + 1);
            s.before = s.along + slots_of(n);
            s.grad_u = s.before + slots_of(n);
            s.grad_a = s.grad_u + n->children * pose;
            const vec *kept = (const vec *)(parents + b * kept_parents(n));
            const float *norm = norms + b * kept_norms(n);
            const float *gm = grad_mean + b * each * D, *ga = grad_activation + b * each;
            backward_image(&image, kept, norm, gm, ga, &s, grad, grad_betas, grad_betas + blocks_of(n));
            sum_lanes(s.grad_u, n->children * pose, grad_u + b * n->children * pose);
            sum_lanes(s.grad_a, n->children, grad_a + b * n->children);
        }
    }
    unpack(n, groups, n->groups, group_room(n), grad_weight);
    for (long j = 0; j < n->parents; j++) {
        grad_beta_u[j] = grad_beta_a[j] = 0;
        for (long group = 0; group < n->groups; group++) {
            const float *betas = groups + group * group_room(n) + LANES * transforms_size(n);
            grad_beta_u[j] += betas[j];
            grad_beta_a[j] += betas[LANES * blocks_of(n) + j];
        }
    }
}
