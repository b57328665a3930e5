/* The pixels that a convolution's weights are multiplied with, side by side: one row for each weight (see columns.py).

   out [c kh kw, b yh yw] = x [b, c, y stride + kh - padding, x stride + kw - padding]; outside of the image it is
   zero. x may lie in memory in any way. */

typedef struct {
    long images, channels, height, width;             /* of x */
    long by_image, by_channel, by_row, by_column;     /* how far apart its numbers are in memory */
    long taps_down, taps_across, down, across, stride, padding; /* of the kernel; of the result */
} Sizes;

#define INLINE static inline __attribute__((always_inline))

/* One row of one image's result: `from` is where its first pixel would be, which may be outside. */
INLINE void run(const float *from, long step, long column, Sizes n, long stride, float *out) {
    for (long x = 0; x < n.across; x++, column += stride)
        out[x] = column < 0 || column >= n.width ? 0 : from[column * step];
}

INLINE void inside(const float *restrict from, long count, long stride, float *restrict out) {
    for (long x = 0; x < count; x++) out[x] = from[x * stride];
}

void columns(Sizes n, const float *x, float *out) {
    const long size = n.images * n.down * n.across;
#pragma omp parallel for collapse(2)
    for (long c = 0; c < n.channels; c++)
        for (long ky = 0; ky < n.taps_down; ky++)
            for (long b = 0; b < n.images; b++)
                for (long y = 0; y < n.down; y++) {
                    const long row = y * n.stride + ky - n.padding;
                    const float *from = x + b * n.by_image + c * n.by_channel + row * n.by_row;
                    float *to = out + (c * n.taps_down + ky) * n.taps_across * size + (b * n.down + y) * n.across;
                    for (long kx = 0; kx < n.taps_across; kx++, to += size) {
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
