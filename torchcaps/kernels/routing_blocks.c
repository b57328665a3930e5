/* Sums over a block of dynamic routing, each in one pass over its largest buffer (see fused_routing.py).

   through [c b p i], c running over parents, and over pairs of them in the backward pass; u [b p i]. Everything is
   contiguous, and no number depends on how many threads there are. */

typedef struct {
    long copies, rows, dim, children;
} Sizes;

/* out [c b i] = sum over p of through u */
void agreement(Sizes n, const float *through, const float *u, float *out) {
#pragma omp parallel for collapse(2)
    for (long c = 0; c < n.copies; c++)
        for (long b = 0; b < n.rows; b++) {
            const float *restrict t = through + (c * n.rows + b) * n.dim * n.children;
            const float *restrict v = u + b * n.dim * n.children;
            float *restrict o = out + (c * n.rows + b) * n.children;
            for (long i = 0; i < n.children; i++) o[i] = t[i] * v[i];
            for (long p = 1; p < n.dim; p++)
                for (long i = 0; i < n.children; i++) o[i] += t[p * n.children + i] * v[p * n.children + i];
        }
}

/* grad [b p i] += sum over c of factors [c b i] through */
void towards(Sizes n, const float *through, const float *factors, float *grad) {
#pragma omp parallel for
    for (long b = 0; b < n.rows; b++)
        for (long c = 0; c < n.copies; c++) {
            const float *restrict t = through + (c * n.rows + b) * n.dim * n.children;
            const float *restrict f = factors + (c * n.rows + b) * n.children;
            float *restrict g = grad + b * n.dim * n.children;
            for (long p = 0; p < n.dim; p++)
                for (long i = 0; i < n.children; i++) g[p * n.children + i] += f[i] * t[p * n.children + i];
        }
}
