/* Winograd's tiles of a 3x3 convolution: from pixels to the factors that are multiplied, and back (see winograd.py).

   A tile of size x size pixels t becomes 6 x 6 factors f = M t M'; the adjoint map, t = M' f M, is what results and
   gradients take. A pixel's channels lie side by side in memory; factors are [36, images * tiles, channels]. Pixels
   outside of the image are zero. No number depends on how many threads there are. */

#define LANES 16 /* channels at a time */
#define N 6
#define INLINE static inline __attribute__((always_inline))

typedef struct {
    long images, rows, columns, channels; /* of what has the pixels */
    long by_image, by_row, by_column;     /* how far apart they are in memory */
    long down, across;                    /* tiles of an image */
    long first, step;                     /* where the first tile begins, outside of the image if negative; the next */
} Sizes;

typedef const float Matrix[N][N]; /* constants, so that a zero or a one costs nothing: all loops over them unroll */
typedef float Tile[N][N][LANES];

static Matrix INPUT = {{4, 0, -5, 0, 1},  {0, -4, -4, 1, 1}, {0, 4, -4, -1, 1},
                       {0, -2, -1, 2, 1}, {0, 2, -1, -2, 1}, {0, 4, 0, -5, 0, 1}};
static Matrix WEIGHT = {{1. / 4},
                        {-1. / 6, -1. / 6, -1. / 6},
                        {-1. / 6, 1. / 6, -1. / 6},
                        {1. / 24, 1. / 12, 1. / 6},
                        {1. / 24, -1. / 12, 1. / 6},
                        {0, 0, 1}};
static Matrix OUTPUT = {{1}, {1, 1, 1, 1}, {1, -1, 1, -1}, {1, 2, 4, 8}, {1, -2, 4, -8}, {0, 0, 0, 1}};

/* out[k][r] = sum over c of M[r][c] in[c][k], or of M[c][r]: a product on one side, and the sides change places */
INLINE void product(Matrix M, int adjoint, int rows, int columns, int width, Tile in, Tile out) {
#pragma GCC unroll 6
    for (int k = 0; k < width; k++)
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            float sum[LANES] = {0};
#pragma GCC unroll 6
            for (int c = 0; c < columns; c++) {
                float entry = adjoint ? M[c][r] : M[r][c];
                if (entry != 0)
                    for (int l = 0; l < LANES; l++) sum[l] += entry * in[c][k][l];
            }
            for (int l = 0; l < LANES; l++) out[k][r][l] = sum[l];
        }
}

INLINE void copy(float *to, const float *from, long count) {
    if (count == LANES)
        for (int l = 0; l < LANES; l++) to[l] = from[l];
    else
        for (int l = 0; l < count; l++) to[l] = from[l];
}

INLINE void add(float *to, const float *from, long count) {
    if (count == LANES)
        for (int l = 0; l < LANES; l++) to[l] += from[l];
    else
        for (int l = 0; l < count; l++) to[l] += from[l];
}

/* How far a pixel of tile i is from the image's first, or -1 outside of it. */
INLINE long place(Sizes n, long i, int row, int column) {
    long y = n.first + i / n.across % n.down * n.step + row, x = n.first + i % n.across * n.step + column;
    return y < 0 || y >= n.rows || x < 0 || x >= n.columns ? -1 : y * n.by_row + x * n.by_column;
}

INLINE void to_factors(Matrix M, int size, Sizes n, long i, const float *pixels, float *factors) {
    long tiles = n.down * n.across, all = n.images * tiles;
    for (long c = 0; c < n.channels; c += LANES) {
        long count = n.channels - c < LANES ? n.channels - c : LANES;
        Tile t, half, f;
        for (int y = 0; y < size; y++)
            for (int x = 0; x < size; x++) {
                long at = place(n, i, y, x);
                if (at < 0 || count < LANES)
                    for (int l = 0; l < LANES; l++) t[y][x][l] = 0;
                if (at >= 0) copy(t[y][x], pixels + i / tiles * n.by_image + at + c, count);
            }
        product(M, 0, N, size, size, t, half);
        product(M, 0, N, size, N, half, f);
        for (int k = 0; k < N * N; k++) copy(factors + (k * all + i) * n.channels + c, f[k / N][k % N], count);
    }
}

/* Adds to the pixels, where tiles may overlap. */
INLINE void from_factors(Matrix M, int size, Sizes n, long i, const float *factors, float *pixels) {
    long tiles = n.down * n.across, all = n.images * tiles;
    for (long c = 0; c < n.channels; c += LANES) {
        long count = n.channels - c < LANES ? n.channels - c : LANES;
        Tile t, half, f;
        for (int k = 0; k < N * N; k++) copy(f[k / N][k % N], factors + (k * all + i) * n.channels + c, count);
        product(M, 1, size, N, N, f, half);
        product(M, 1, size, N, size, half, t);
        for (int y = 0; y < size; y++)
            for (int x = 0; x < size; x++) {
                long at = place(n, i, y, x);
                if (at >= 0) add(pixels + i / tiles * n.by_image + at + c, t[y][x], count);
            }
    }
}

/* The loops are written for each matrix: a loop that threads share is a function of its own, which must see constants. */
#define MAPS(NAME, MATRIX, SIZE)                                                                                       \
    void NAME##_to_factors(Sizes n, const float *pixels, float *factors) {                                             \
        _Pragma("omp parallel for") for (long i = 0; i < n.images * n.down * n.across; i++)                            \
            to_factors(MATRIX, SIZE, n, i, pixels, factors);                                                           \
    }                                                                                                                  \
    void NAME##_from_factors(Sizes n, const float *factors, float *pixels) {                                           \
        _Pragma("omp parallel for") for (long image = 0; image < n.images; image++)                                    \
            for (long i = 0; i < n.down * n.across; i++)                                                               \
                from_factors(MATRIX, SIZE, n, image * n.down * n.across + i, factors, pixels);                         \
    }

MAPS(input, INPUT, 6)
MAPS(weight, WEIGHT, 3)
MAPS(output, OUTPUT, 4)
