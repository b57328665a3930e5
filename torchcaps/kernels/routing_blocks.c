/* What lies between the matrix products of dynamic routing, in one pass over a block (see fused_routing.py).

   through [j b p i], or [j 2 b p i] in the backward pass; u [b p i]; prior [j i] or NULL. Everything is contiguous, and
   no number depends on how many threads there are. */

#include <math.h>
#include <stddef.h>

typedef struct {
    long parents, rows, dim, children, leaky;
} Sizes;

/* Children that are taken together: all their numbers, of every parent, stay in the nearest cache. */
#define TILE 64
#define INLINE static inline __attribute__((always_inline))
#define EACH for (long i = 0; i < width; i++)

/* To two units in the last place, for x <= 0; a call of the library's could not be vectorised. */
INLINE float exp_(float x) {
    x = x < -87 ? -87 : x;
    const float n = rintf(x * 1.44269504f), r = x - n * 0.693147181f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const union {
        int i;
        float f;
    } power = {.i = ((int)n + 127) << 23};
    return (p * r * r + r + 1) * power.f;
}

/* out [i] = sum over p of t u */
INLINE void agreement(Sizes n, const float *restrict t, const float *restrict u, float *restrict out, long width) {
    EACH out[i] = t[i] * u[i];
    for (long p = 1; p < n.dim; p++)
        EACH out[i] += t[p * n.children + i] * u[p * n.children + i];
}

/* Logits [j TILE] become couplings (Eq. 3); the leak is one more parent, whose logit is 0. */
INLINE void softmax(Sizes n, float *restrict c, long width) {
    float most[TILE], sum[TILE];
    EACH most[i] = n.leaky ? 0 : c[i];
    for (long j = 0; j < n.parents; j++)
        EACH most[i] = c[j * TILE + i] > most[i] ? c[j * TILE + i] : most[i];
    EACH sum[i] = n.leaky ? exp_(-most[i]) : 0;
    for (long j = 0; j < n.parents; j++)
        EACH sum[i] += c[j * TILE + i] = exp_(c[j * TILE + i] - most[i]);
    EACH sum[i] = 1 / sum[i];
    for (long j = 0; j < n.parents; j++)
        EACH c[j * TILE + i] *= sum[i];
}

INLINE void couplings(Sizes n, const float *t, long step, const float *u, const float *prior, float *c, long width) {
    for (long j = 0; j < n.parents; j++) {
        agreement(n, t + j * step, u, c + j * TILE, width);
        if (prior) EACH c[j * TILE + i] += prior[j * n.children + i];
    }
    softmax(n, c, width);
}

/* through = c u, where c are the couplings that through says */
void share_out(Sizes n, float *through, const float *u, const float *prior) {
    const long row = n.dim * n.children, step = n.rows * row;
#pragma omp parallel for collapse(2)
    for (long b = 0; b < n.rows; b++)
        for (long start = 0; start < n.children; start += TILE) {
            const long width = n.children - start < TILE ? n.children - start : TILE;
            const float *restrict v = u + b * row + start;
            float c[n.parents * TILE];
            couplings(n, through + b * row + start, step, v, prior ? prior + start : NULL, c, width);
            for (long j = 0; j < n.parents; j++) {
                float *restrict t = through + j * step + b * row + start;
                for (long p = 0; p < n.dim; p++)
                    EACH t[p * n.children + i] = c[j * TILE + i] * v[p * n.children + i];
            }
        }
}

/* grad [p i] += f t; t = f u */
INLINE void hand_on(Sizes n, const float *restrict f, float *restrict t, const float *restrict u,
                    float *restrict grad, long width) {
    for (long p = 0; p < n.dim * n.children; p += n.children)
        EACH {
            grad[p + i] += f[i] * t[p + i];
            t[p + i] = f[i] * u[p + i];
        }
}

/* through holds V W and grad_s W for each parent. What they say of logits and of couplings' gradients gives grad_logits
   [j b i], where not NULL, grad_u [b p i] += grad_logits (V W) + c (grad_s W), and through = grad_logits u and c u.
   Without `full`, grad_logits go no further than to the priors. */
void share_out_backward(Sizes n, long full, float *through, const float *u, const float *prior, float *grad_u,
                        float *grad_logits) {
    const long row = n.dim * n.children, copy = n.rows * row, step = 2 * copy;
#pragma omp parallel for
    for (long b = 0; b < n.rows; b++)
        for (long start = 0; start < n.children; start += TILE) {
            const long width = n.children - start < TILE ? n.children - start : TILE, at = b * row + start;
            const float *restrict v = u + at;
            float c[n.parents * TILE], g[n.parents * TILE], mean[TILE];
            couplings(n, through + at, step, v, prior ? prior + start : NULL, c, width);
            EACH mean[i] = 0;
            for (long j = 0; j < n.parents; j++) {
                agreement(n, through + j * step + copy + at, v, g + j * TILE, width);
                EACH mean[i] += c[j * TILE + i] * g[j * TILE + i];
            }
            for (long j = 0; j < n.parents; j++) {
                float *restrict t = through + j * step + at;
                EACH g[j * TILE + i] = c[j * TILE + i] * (g[j * TILE + i] - mean[i]);
                if (grad_logits)
                    EACH grad_logits[(j * n.rows + b) * n.children + start + i] = g[j * TILE + i];
                if (full) hand_on(n, g + j * TILE, t, v, grad_u + at, width);
                hand_on(n, c + j * TILE, t + copy, v, grad_u + at, width);
            }
        }
}
