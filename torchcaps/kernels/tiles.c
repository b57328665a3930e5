/* Winograd's tiles of a convolution: from pixels to the factors that are multiplied, and back (see winograd.py).

   A tile of size x size pixels t becomes n x n factors f = M t M'; the adjoint map, t = M' f M, is what results and
   gradients take. A pixel's channels lie side by side in memory. With a stride, the pixels (stride y + p, stride x + q) of
   each phase (p, q) are an image of their own: factors are [n n, images * tiles, phases * channels]. Pixels outside of
   the image are zero. No number depends on how many threads there are. */

/* Vectors are written out below. To look for more of them takes a compiler twice as long, and finds none. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O2")
#endif

#define LANES 16 /* channels at a time */
#define MOST 8
#define INLINE static inline __attribute__((always_inline))

/* What one instruction computes. Written as a vector, because to find it out for every loop takes a compiler ten times
   as long. */
#if defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX__)
#define WIDTH 8
#else
#define WIDTH 4
#endif
#define PARTS (LANES / WIDTH)
typedef float Vector __attribute__((vector_size(4 * WIDTH)));
typedef float Anywhere __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias)); /* at any address */

typedef struct {
    long images, rows, columns, channels; /* of what has the pixels */
    long by_image, by_row, by_column;     /* how far apart they are in memory */
    long down, across;                    /* tiles of an image */
    long first, step;                     /* where the first tile begins, outside of the image if negative; the next */
    long stride;
} Sizes;

typedef const float Matrix[MOST][MOST]; /* constants: a zero costs nothing, as the loops over entries unroll */
typedef union {
    Vector part[PARTS];
    float lane[LANES];
} Channels;
typedef Channels Tile[MOST][MOST];

/* For results of 4x4 and kernels of 3x3, through the points 0, 1, -1, 2, -2 and infinity. */
static Matrix INPUT_4_3 = {{4, 0, -5, 0, 1},  {0, -4, -4, 1, 1}, {0, 4, -4, -1, 1},
                         {0, -2, -1, 2, 1}, {0, 2, -1, -2, 1}, {0, 4, 0, -5, 0, 1}};
static Matrix WEIGHT_4_3 = {{1. / 4},
                          {-1. / 6, -1. / 6, -1. / 6},
                          {-1. / 6, 1. / 6, -1. / 6},
                          {1. / 24, 1. / 12, 1. / 6},
                          {1. / 24, -1. / 12, 1. / 6},
                          {0, 0, 1}};
static Matrix OUTPUT_4_3 = {{1}, {1, 1, 1, 1}, {1, -1, 1, -1}, {1, 2, 4, 8}, {1, -2, 4, -8}, {0, 0, 0, 1}};

/* For results of 6x6, through 1/2 and -1/2 too. */
static Matrix INPUT_6_3 = {
    {1, 0, -5.25, 0, 5.25, 0, -1},    {0, 1, 1, -4.25, -4.25, 1, 1},     {0, -1, 1, 4.25, -4.25, -1, 1},
    {0, 0.5, 0.25, -2.5, -1.25, 2, 1}, {0, -0.5, 0.25, 2.5, -1.25, -2, 1}, {0, 2, 4, -2.5, -5, 0.5, 1},
    {0, -2, 4, 2.5, -5, -0.5, 1},     {0, -1, 0, 5.25, 0, -5.25, 0, 1}};
static Matrix WEIGHT_6_3 = {{1},
                          {-2. / 9, -2. / 9, -2. / 9},
                          {-2. / 9, 2. / 9, -2. / 9},
                          {1. / 90, 1. / 45, 2. / 45},
                          {1. / 90, -1. / 45, 2. / 45},
                          {32. / 45, 16. / 45, 8. / 45},
                          {32. / 45, -16. / 45, 8. / 45},
                          {0, 0, 1}};
static Matrix OUTPUT_6_3 = {{1},
                          {1, 1, 1, 1, 1, 1},
                          {1, -1, 1, -1, 1, -1},
                          {1, 2, 4, 8, 16, 32},
                          {1, -2, 4, -8, 16, -32},
                          {1, 1. / 2, 1. / 4, 1. / 8, 1. / 16, 1. / 32},
                          {1, -1. / 2, 1. / 4, -1. / 8, 1. / 16, -1. / 32},
                          {0, 0, 0, 0, 0, 1}};

/* For results of 6x6 and kernels of 2x2: without -2. */
static Matrix INPUT_6_2 = {
    {-0.5, 0.25, 2.5, -1.25, -2, 1}, {0, 0.5, 0.25, -2.25, -1, 1}, {0, -0.5, 0.75, 1.75, -3, 1},
    {0, 0.25, 0, -1.25, 0, 1},       {0, 1, 1.5, -2, -1.5, 1},     {0, -1, 2.5, 0, -2.5, 1},
    {0, -0.5, 0.25, 2.5, -1.25, -2, 1}};
static Matrix WEIGHT_6_2 = {{-2},
                            {-2. / 3, -2. / 3},
                            {-2. / 9, 2. / 9},
                            {2. / 45, 4. / 45},
                            {16. / 9, 8. / 9},
                            {16. / 15, -8. / 15},
                            {0, 1}};
static Matrix OUTPUT_6_2 = {{1},
                            {1, 1, 1, 1, 1, 1},
                            {1, -1, 1, -1, 1, -1},
                            {1, 2, 4, 8, 16, 32},
                            {1, 1. / 2, 1. / 4, 1. / 8, 1. / 16, 1. / 32},
                            {1, -1. / 2, 1. / 4, -1. / 8, 1. / 16, -1. / 32},
                            {0, 0, 0, 0, 0, 1}};

/* out[k][r] = sum over c of M[r][c] in[c][k], or of M[c][r]: a product on one side, and the sides change places.
   Only the loops over M's entries unroll: eight times the code would be no faster. */
INLINE void product(Matrix M, int adjoint, int rows, int columns, int width, Tile in, Tile out) {
    for (int k = 0; k < width; k++)
        for (int part = 0; part < PARTS; part++)
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                Vector sum = {0};
#pragma GCC unroll 8
                for (int c = 0; c < columns; c++) {
                    float entry = adjoint ? M[c][r] : M[r][c];
                    if (entry != 0) sum += entry * in[c][k].part[part];
                }
                out[k][r].part[part] = sum;
            }
}

INLINE void read(Channels *to, const float *from, long count) {
    if (count == LANES)
        for (int part = 0; part < PARTS; part++) to->part[part] = ((const Anywhere *)from)[part];
    else
        for (int l = 0; l < LANES; l++) to->lane[l] = l < count ? from[l] : 0;
}

INLINE void write(float *to, const Channels *from, long count) {
    if (count == LANES)
        for (int part = 0; part < PARTS; part++) ((Anywhere *)to)[part] = from->part[part];
    else
        for (int l = 0; l < count; l++) to[l] = from->lane[l];
}

INLINE void add(float *to, const Channels *from, long count) {
    if (count == LANES)
        for (int part = 0; part < PARTS; part++) ((Anywhere *)to)[part] += from->part[part];
    else
        for (int l = 0; l < count; l++) to[l] += from->lane[l];
}

/* Channels are taken in blocks of one phase. */
INLINE long blocks(Sizes n) { return (n.channels + LANES - 1) / LANES; }

/* How far a pixel of tile i is from the image's first, or -1 outside of it. */
INLINE long place(Sizes n, long i, long phase, int row, int column) {
    long y = n.first + (i / n.across % n.down * n.step + row) * n.stride + phase / n.stride;
    long x = n.first + (i % n.across * n.step + column) * n.stride + phase % n.stride;
    return y < 0 || y >= n.rows || x < 0 || x >= n.columns ? -1 : y * n.by_row + x * n.by_column;
}

/* Of tile i and one block of channels. */
INLINE void to_factors(Matrix M, int side, int size, Sizes n, long i, long block, const float *pixels, float *factors) {
    const long tiles = n.down * n.across, all = n.images * tiles, width = n.stride * n.stride * n.channels;
    const long phase = block / blocks(n), c = block % blocks(n) * LANES;
    const long count = n.channels - c < LANES ? n.channels - c : LANES;
    Tile t, half, f;
    for (int y = 0; y < size; y++)
        for (int x = 0; x < size; x++) {
            long at = place(n, i, phase, y, x);
            if (at < 0)
                t[y][x] = (Channels){0};
            else
                read(&t[y][x], pixels + i / tiles * n.by_image + at + c, count);
        }
    product(M, 0, side, size, size, t, half);
    product(M, 0, side, size, side, half, f);
    for (int k = 0; k < side * side; k++)
        write(factors + (k * all + i) * width + phase * n.channels + c, &f[k / side][k % side], count);
}

/* Adds to the pixels, where tiles may overlap. */
INLINE void from_factors(Matrix M, int side, int size, Sizes n, long i, long block, const float *factors, float *pixels) {
    const long tiles = n.down * n.across, all = n.images * tiles, width = n.stride * n.stride * n.channels;
    const long phase = block / blocks(n), c = block % blocks(n) * LANES;
    const long count = n.channels - c < LANES ? n.channels - c : LANES;
    Tile t, half, f;
    for (int k = 0; k < side * side; k++)
        read(&f[k / side][k % side], factors + (k * all + i) * width + phase * n.channels + c, count);
    product(M, 1, size, side, side, f, half);
    product(M, 1, size, side, size, half, t);
    for (int y = 0; y < size; y++)
        for (int x = 0; x < size; x++) {
            long at = place(n, i, phase, y, x);
            if (at >= 0) add(pixels + i / tiles * n.by_image + at + c, &t[y][x], count);
        }
}

/* The loops are written for each matrix: a loop that threads share is a function of its own, which must see constants.
   Threads share out tiles and channels, so that one image keeps all of them busy; where tiles overlap, images and
   channels. */
#define MAPS(KIND, TILE, TAPS, SIZE)                                                                                   \
    void KIND##_to_factors_##TILE##_##TAPS(Sizes n, const float *pixels, float *factors) {                             \
        _Pragma("omp parallel for collapse(2)") for (long i = 0; i < n.images * n.down * n.across; i++)                \
            for (long block = 0; block < n.stride * n.stride * blocks(n); block++)                                     \
                to_factors(KIND##_##TILE##_##TAPS, TILE + TAPS - 1, SIZE, n, i, block, pixels, factors);               \
    }                                                                                                                  \
    void KIND##_from_factors_##TILE##_##TAPS(Sizes n, const float *factors, float *pixels) {                           \
        const long tiles = n.down * n.across;                                                                          \
        _Pragma("omp parallel for collapse(2)") for (long image = 0; image < n.images; image++)                        \
            for (long block = 0; block < n.stride * n.stride * blocks(n); block++)                                     \
                for (long i = image * tiles; i < (image + 1) * tiles; i++)                                             \
                    from_factors(KIND##_##TILE##_##TAPS, TILE + TAPS - 1, SIZE, n, i, block, factors, pixels);         \
    }

#define ALL(TILE, TAPS)                                                                                                \
    MAPS(INPUT, TILE, TAPS, TILE + TAPS - 1)                                                                           \
    MAPS(WEIGHT, TILE, TAPS, TAPS)                                                                                     \
    MAPS(OUTPUT, TILE, TAPS, TILE)

ALL(4, 3)
ALL(6, 3)
ALL(6, 2)
