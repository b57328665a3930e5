/* What EM routing asks of the votes V [i b j d], each question in one pass over them (see fused_em.py).

   All arrays are contiguous: shares [b i j], means and the like [b j d]. Threads share out rows b of the batch where
   children are summed over, else children: no number depends on how many threads there are. */

typedef struct {
    long children, rows, parents, dim;
} Sizes;

#define VOTES(i, b) (V + ((i) * n.rows + (b)) * n.parents * d)
#define SHARES(s, i, b) ((s) + ((b) * n.children + (i)) * n.parents)
#define PARENTS(x, b) ((x) + (b) * n.parents * d)

/* Rows that are summed together: enough to read the votes in long runs, few enough for the sums to stay in cache. */
#define CHUNK 8

/* The usual pose has 16 numbers: a constant lets the compiler keep them in registers. */
#define FOR_DIM(call, ...)                      \
    do {                                        \
        if (n.dim == 16) call(__VA_ARGS__, 16); \
        else call(__VA_ARGS__, n.dim);          \
    } while (0)
#define INLINE static inline __attribute__((always_inline))

/* o [j d] += s x */
INLINE void add_(float *restrict o, const float *restrict share, const float *restrict x, long parents, const long d) {
    for (long j = 0; j < parents; j++) {
        const float s = share[j];
#pragma omp simd
        for (long k = 0; k < d; k++) o[j * d + k] += s * x[j * d + k];
    }
}

/* out [b j d] = sum over i of s V */
INLINE void weighted_(Sizes n, const float *V, const float *s, float *out, const long d) {
#pragma omp parallel for
    for (long start = 0; start < n.rows; start += CHUNK) {
        const long stop = start + CHUNK < n.rows ? start + CHUNK : n.rows;
        for (float *o = PARENTS(out, start); o < PARENTS(out, stop); o++) *o = 0;
        for (long i = 0; i < n.children; i++)
            for (long b = start; b < stop; b++) add_(PARENTS(out, b), SHARES(s, i, b), VOTES(i, b), n.parents, d);
    }
}

/* out [b j d] = sum over i of s (V - mean)^2 */
INLINE void spread_(Sizes n, const float *V, const float *s, const float *mean, float *out, const long d) {
#pragma omp parallel for
    for (long start = 0; start < n.rows; start += CHUNK) {
        const long stop = start + CHUNK < n.rows ? start + CHUNK : n.rows;
        for (float *o = PARENTS(out, start); o < PARENTS(out, stop); o++) *o = 0;
        for (long i = 0; i < n.children; i++)
            for (long b = start; b < stop; b++) {
                const float *restrict v = VOTES(i, b), *restrict w = SHARES(s, i, b), *restrict m = PARENTS(mean, b);
                float *restrict o = PARENTS(out, b);
                for (long j = 0; j < n.parents; j++) {
                    const float share = w[j];
#pragma omp simd
                    for (long k = 0; k < d; k++) {
                        const float away = v[j * d + k] - m[j * d + k];
                        o[j * d + k] += share * away * away;
                    }
                }
            }
    }
}

/* out [b i j] = sum over d of (V - mean)^2 quadratic + V linear */
INLINE void over_pose_(Sizes n, const float *V, const float *mean, const float *quadratic, const float *linear,
                       float *out, const long d) {
#pragma omp parallel for
    for (long i = 0; i < n.children; i++)
        for (long b = 0; b < n.rows; b++) {
            const float *restrict v = VOTES(i, b), *restrict m = PARENTS(mean, b);
            const float *restrict q = PARENTS(quadratic, b), *restrict l = PARENTS(linear, b);
            float *restrict o = SHARES(out, i, b);
            for (long j = 0; j < n.parents; j++) {
                float total = 0;
#pragma omp simd reduction(+ : total)
                for (long k = 0; k < d; k++) {
                    const float away = v[j * d + k] - m[j * d + k];
                    total += away * away * q[j * d + k] + v[j * d + k] * l[j * d + k];
                }
                o[j] = total;
            }
        }
}

/* out [i b j d] = sum over the terms of s (alpha + V beta) */
INLINE void gradient_(Sizes n, const float *V, const float **s, const float **alpha, const float **beta, long terms,
                      float *out, const long d) {
#pragma omp parallel for
    for (long i = 0; i < n.children; i++)
        for (long b = 0; b < n.rows; b++) {
            const float *restrict v = VOTES(i, b);
            float *restrict o = out + (v - V);
            for (long x = 0; x < n.parents * d; x++) o[x] = 0;
            for (long t = 0; t < terms; t++) add_(o, SHARES(s[t], i, b), PARENTS(beta[t], b), n.parents, d);
            for (long x = 0; x < n.parents * d; x++) o[x] *= v[x];
            for (long t = 0; t < terms; t++) add_(o, SHARES(s[t], i, b), PARENTS(alpha[t], b), n.parents, d);
        }
}

void weighted(Sizes n, const float *V, const float *s, float *out) { FOR_DIM(weighted_, n, V, s, out); }

void spread(Sizes n, const float *V, const float *s, const float *mean, float *out) {
    FOR_DIM(spread_, n, V, s, mean, out);
}

void over_pose(Sizes n, const float *V, const float *mean, const float *quadratic, const float *linear, float *out) {
    FOR_DIM(over_pose_, n, V, mean, quadratic, linear, out);
}

void gradient(Sizes n, const float *V, const float **s, const float **alpha, const float **beta, long terms, float *out) {
    FOR_DIM(gradient_, n, V, s, alpha, beta, terms, out);
}
