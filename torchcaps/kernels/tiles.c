/* Winograd's tiles of a convolution: from pixels to the factors that are multiplied, and back (see winograd.py).

   A tile of size x size pixels t becomes n x n factors f = M t M'; the adjoint map, t = M' f M, is what results and
   gradients take. A pixel's channels lie side by side in memory. With a stride, the pixels (stride y + p, stride x + q) of
   each phase (p, q) are an image of their own, and its channels are just more channels. Pixels outside of the image are
   zero. Factors of a block of tiles are [n n, tile, phase and channel]; they are multiplied with weights that lie as the
   products read them, and transformed back, before the next block begins. No number depends on how many threads there
   are. */

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

#define PANEL (2 * WIDTH) /* results that are multiplied at a time, */
#if defined(__AVX512F__)
#define ROWS 8 /* of as many tiles: their sums fill the registers */
#else
#define ROWS 6
#endif
#define GAP 16
#define CACHED 163840 /* numbers of a gradient of weights that stay in cache from one block of tiles to the next */
#define PARTIAL_SUMS 16 /* a fixed number, so that sums do not depend on how many threads there are */

/* Something that has pixels: how many, and how far apart they are in memory. An image of the weights is an output. */
typedef struct {
    long rows, columns, channels, by_image, by_row, by_column, by_channel;
} Map;

typedef struct {
    Map x, y, weight;
    long images, down, across;     /* tiles of an image */
    long stride, padding, factors; /* factors of a tile */
    long block, shares;            /* tiles in cache at a time, whole ROWS; threads */
} Sizes;

typedef const float Matrix[MOST][MOST]; /* constants: a zero costs nothing, as the loops over entries unroll */
typedef float Half __attribute__((vector_size(2 * LANES), aligned(4), may_alias));
typedef union {
    Vector part[PARTS];
    Half half[2];
    float lane[LANES];
} Channels;

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

/* out[r] = sum over c of M[r][c] in[c], or of M[c][r]: of one line of a tile, in registers. */
INLINE void product(Matrix M, int adjoint, int rows, int columns, const Vector *in, Vector *out) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        Vector sum = {0};
#pragma GCC unroll 8
        for (int c = 0; c < columns; c++) {
            float entry = adjoint ? M[c][r] : M[r][c];
            if (entry != 0) sum += entry * in[c];
        }
        out[r] = sum;
    }
}

/* Channels that lie side by side are taken as vectors if there are LANES of them, or half as many, as in a layer of 40. */
INLINE void read(Channels *to, const float *from, long step, long count) {
    if (count == LANES && step == 1)
        for (int part = 0; part < PARTS; part++) to->part[part] = ((const Anywhere *)from)[part];
    else if (count == LANES / 2 && step == 1) {
        to->half[0] = *(const Half *)from;
        to->half[1] = (Half){0};
    } else
        for (int l = 0; l < LANES; l++) to->lane[l] = l < count ? from[l * step] : 0;
}

INLINE void write(float *to, long step, const Channels *from, long count) {
    if (count == LANES && step == 1)
        for (int part = 0; part < PARTS; part++) ((Anywhere *)to)[part] = from->part[part];
    else if (count == LANES / 2 && step == 1)
        *(Half *)to = from->half[0];
    else
        for (int l = 0; l < count; l++) to[l * step] = from->lane[l];
}

INLINE void add(float *to, const Channels *from, long count) {
    if (count == LANES)
        for (int part = 0; part < PARTS; part++) ((Anywhere *)to)[part] += from->part[part];
    else if (count == LANES / 2)
        *(Half *)to += from->half[0];
    else
        for (int l = 0; l < count; l++) to[l] += from->lane[l];
}

INLINE long least(long a, long b) { return a < b ? a : b; }
INLINE long whole(long count, long unit) { return (count + unit - 1) / unit; }

/* How far the pixel of a tile that begins at (top, left) is from the first of its image, or -1 outside of it. */
INLINE long place(const Map *m, long top, long left, long step, int y, int x) {
    const long row = top + y * step, column = left + x * step;
    return row < 0 || row >= m->rows || column < 0 || column >= m->columns ? -1 : row * m->by_row + column * m->by_column;
}

/* Whole vectors of channels are read and written where they lie; others through a copy. */
INLINE int in_place(const Map *m, long count) { return count == LANES && m->by_channel == 1; }
INLINE Map map_of_copy(int size) { return (Map){size, size, LANES, 0, MOST * LANES, LANES, 1}; }

/* Factors [n n], `apart` from each other, of `count` channels of one tile. What is read and written next, the same channels
   of the next image and the factors `next` further on, is brought into cache meanwhile: a processor foresees a few places
   that are read or written in turn, not 64. */
INLINE void to_factors(Matrix M, int side, int size, const Map *m, const float *from, long top, long left, long step,
                       long count, float *factors, long apart, long next) {
    Channels copy[MOST * MOST], made[MOST * MOST];
    const Map of_copy = map_of_copy(size);
    const int direct = in_place(m, count);
    float *to = direct ? factors : made[0].lane;
    const long pitch = direct ? apart : LANES;
    for (int k = 0; k < side * side; k++) __builtin_prefetch(factors + k * apart + next, 1);
    if (!direct) {
        for (int y = 0; y < size; y++)
            for (int x = 0; x < size; x++) {
                const long at = place(m, top, left, step, y, x);
                if (at < 0)
                    copy[y * MOST + x] = (Channels){0};
                else {
                    read(&copy[y * MOST + x], from + at, m->by_channel, count);
                    __builtin_prefetch(from + at + m->by_image, 0, 2);
                }
            }
        m = &of_copy, from = copy[0].lane, top = left = 0, step = 1;
    }
    for (int part = 0; part < PARTS; part++) {
        Vector half[MOST][MOST], in[MOST], out[MOST];
        for (int x = 0; x < size; x++) {
#pragma GCC unroll 8
            for (int y = 0; y < size; y++) {
                const long at = place(m, top, left, step, y, x);
                in[y] = (Vector){0};
                if (at >= 0) {
                    in[y] = ((const Anywhere *)(from + at))[part];
                    __builtin_prefetch(from + at + m->by_image, 0, 2);
                }
            }
            product(M, 0, side, size, in, half[x]);
        }
        for (int k = 0; k < side; k++) {
#pragma GCC unroll 8
            for (int x = 0; x < size; x++) in[x] = half[x][k];
            product(M, 0, side, size, in, out);
#pragma GCC unroll 8
            for (int r = 0; r < side; r++) ((Anywhere *)(to + (k * side + r) * pitch))[part] = out[r];
        }
    }
    if (!direct)
        for (int k = 0; k < side * side; k++) write(factors + k * apart, 1, &made[k], count);
}

/* The adjoint; adds to the pixels where tiles overlap. */
INLINE void from_factors(Matrix M, int side, int size, const Map *m, float *to, long top, long left, long step,
                         long count, const float *factors, long apart, int overlap) {
    Channels copy[MOST * MOST], made[MOST * MOST];
    const int direct = in_place(m, count);
    const float *from = direct ? factors : copy[0].lane;
    const long pitch = direct ? apart : LANES;
    for (int k = 0; k < side * side; k++) __builtin_prefetch(factors + k * apart + LANES, 0);
    if (!direct)
        for (int k = 0; k < side * side; k++) read(&copy[k], factors + k * apart, 1, count);
    for (int part = 0; part < PARTS; part++) {
        Vector half[MOST][MOST], in[MOST], out[MOST];
        for (int k = 0; k < side; k++) {
#pragma GCC unroll 8
            for (int r = 0; r < side; r++) in[r] = ((const Anywhere *)(from + (r * side + k) * pitch))[part];
            product(M, 1, size, side, in, half[k]);
        }
        for (int y = 0; y < size; y++) {
#pragma GCC unroll 8
            for (int k = 0; k < side; k++) in[k] = half[k][y];
            product(M, 1, size, side, in, out);
#pragma GCC unroll 8
            for (int x = 0; x < size; x++) {
                const long at = place(m, top, left, step, y, x);
                if (!direct)
                    made[y * MOST + x].part[part] = out[x];
                else if (at >= 0 && overlap)
                    ((Anywhere *)(to + at))[part] += out[x];
                else if (at >= 0)
                    ((Anywhere *)(to + at))[part] = out[x];
            }
        }
    }
    for (int y = 0; !direct && y < size; y++)
        for (int x = 0; x < size; x++) {
            const long at = place(m, top, left, step, y, x);
            if (at >= 0 && overlap) add(to + at, &made[y * MOST + x], count);
            if (at >= 0 && !overlap) write(to + at, m->by_channel, &made[y * MOST + x], count);
        }
}

/* Each transform is a function of its own, whose matrix and sizes are constants. */
typedef void To(const Map *m, const float *from, long top, long left, long step, long count, float *factors, long apart,
                long next);
typedef void From(const Map *m, float *to, long top, long left, long step, long count, const float *factors, long apart,
                  int overlap);
#define TRANSFORM(NAME, SIDE, SIZE)                                                                                    \
    static void NAME##_to(const Map *m, const float *from, long top, long left, long step, long count, float *factors, \
                          long apart, long next) {                                                                     \
        to_factors(NAME, SIDE, SIZE, m, from, top, left, step, count, factors, apart, next);                           \
    }                                                                                                                  \
    static void NAME##_from(const Map *m, float *to, long top, long left, long step, long count, const float *factors, \
                            long apart, int overlap) {                                                                 \
        from_factors(NAME, SIDE, SIZE, m, to, top, left, step, count, factors, apart, overlap);                        \
    }
#define TRANSFORMS(TILE, TAPS)                                                                                         \
    TRANSFORM(INPUT_##TILE##_##TAPS, TILE + TAPS - 1, TILE + TAPS - 1)                                                 \
    TRANSFORM(WEIGHT_##TILE##_##TAPS, TILE + TAPS - 1, TAPS)                                                           \
    TRANSFORM(OUTPUT_##TILE##_##TAPS, TILE + TAPS - 1, TILE)
TRANSFORMS(4, 3)
TRANSFORMS(6, 3)
TRANSFORMS(6, 2)

/* Tiles are taken in blocks, whose factors stay in cache between transform and product. A group is the fewest whole
   images that fill a block, or one image of several blocks: groups are what threads share out. */
typedef struct {
    long tiles, images, blocks, groups; /* of an image; of a group; of a group; in all */
    long inputs, wide_inputs, wide_outputs; /* channels of all phases; numbers between rows of products */
    long x, y, product_x, product_y, weight, weight_back, grad; /* numbers between factors */
    long parts; /* of the images, each with sums of its own for the weights' gradient; 0: one sum, after all images */
} Plan;

static Plan plan_of(const Sizes *n) {
    Plan p;
    p.tiles = n->down * n->across;
    p.images = n->block / p.tiles > 1 ? n->block / p.tiles : 1;
    p.blocks = whole(p.images * p.tiles, n->block);
    p.groups = whole(n->images, p.images);
    p.inputs = n->stride * n->stride * n->x.channels;
    p.wide_inputs = whole(p.inputs, WIDTH) * WIDTH;
    p.wide_outputs = whole(n->y.channels, WIDTH) * WIDTH;
    /* Never a multiple of a cache's size apart: all factors of a tile would meet in one line of it. */
    p.x = n->block * p.inputs + GAP;
    p.y = n->block * n->y.channels + GAP;
    p.product_x = n->block * p.wide_inputs + GAP;
    p.product_y = n->block * p.wide_outputs + GAP;
    p.weight = whole(n->y.channels, PANEL) * PANEL * p.inputs + GAP;
    p.weight_back = whole(p.inputs, PANEL) * PANEL * n->y.channels + GAP;
    p.grad = whole(n->y.channels, ROWS) * ROWS * p.wide_inputs + GAP;
    const int many = p.groups >= PARTIAL_SUMS && p.groups * p.blocks >= 4 * PARTIAL_SUMS;
    p.parts = many && n->factors * p.grad <= CACHED ? PARTIAL_SUMS : 0;
    return p;
}

/* Numbers of: weights for the results, and for the gradient of x; factors of x, and of the gradient; what forward and
   backward need besides. */
void tiles_memory(Sizes n, long *of) {
    const Plan p = plan_of(&n);
    of[0] = n.factors * p.weight;
    of[1] = n.factors * p.weight_back;
    of[2] = n.factors * p.groups * p.blocks * p.x;
    of[3] = n.factors * (p.parts ? p.parts : p.groups * p.blocks) * p.y;
    of[4] = n.factors * n.shares * (p.x + p.product_y);
    const long all_at_once = n.shares * p.product_x > p.grad ? n.shares * p.product_x : p.grad;
    of[5] = n.factors * (p.parts ? p.parts * (p.product_x + p.grad) : all_at_once);
}

long tiles_rows(void) { return ROWS; }

/* The tiles of one block. */
typedef struct {
    long number, first, count;
} Block;

INLINE Block block_of(const Sizes *n, const Plan *p, long group, long piece) {
    const long first = group * p->images * p->tiles + piece * n->block;
    const long end = least(n->images, (group + 1) * p->images) * p->tiles;
    const long count = least(n->block, end - first);
    return (Block){group * p->blocks + piece, first, count < 0 ? 0 : count};
}

INLINE long top_of(const Sizes *n, long tile, long step) { return tile / n->across % n->down * step; }
INLINE long left_of(const Sizes *n, long tile, long step) { return tile % n->across * step; }

/* Of x or of a gradient to [factor, tile, phase and channel]. */
static void block_to_factors(To to, const Sizes *n, const Plan *p, const Map *m, const Block *b, long step, long stride,
                             long first, const float *pixels, float *factors, long apart) {
    const long pitch = stride * stride * m->channels;
    for (long i = b->first; i < b->first + b->count; i++)
        for (long phase = 0; phase < stride * stride; phase++)
            for (long c = 0; c < m->channels; c += LANES)
                to(m, pixels + i / p->tiles * m->by_image + c, first + top_of(n, i, step) * stride + phase / stride,
                   first + left_of(n, i, step) * stride + phase % stride, stride, least(LANES, m->channels - c),
                   factors + (i - b->first) * pitch + phase * m->channels + c, apart, LANES);
    for (long k = 0; k < n->factors; k++)
        for (long l = b->count * pitch; l < n->block * pitch; l++) factors[k * apart + l] = 0;
}

/* sum [ROWS, vectors] += a [ROWS, depth] b [depth, vectors]; all sums stay in registers. */
INLINE void multiply(int vectors, const float *a, long by_row, long by_depth, const float *b, long by_line, long depth,
                     Vector sum[ROWS][2]) {
    for (long k = 0; k < depth; k++) {
        Vector line[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) line[v] = ((const Anywhere *)(b + k * by_line))[v];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[r][v] += a[r * by_row + k * by_depth] * line[v];
    }
}

INLINE void put(int vectors, Vector sum[ROWS][2], float *c, long by_row) {
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) ((Anywhere *)(c + r * by_row))[v] = sum[r][v];
}

/* c [rows, width] = a [rows, depth] panels [width / PANEL, depth, PANEL], of one factor. */
static void block_product(long rows, long depth, long width, const float *a, const float *panels, float *c, long pitch) {
    for (long at = 0; at < width; at += PANEL, panels += depth * PANEL)
        for (long r = 0; r < rows; r += ROWS) {
            Vector sum[ROWS][2] = {0};
            if (width - at > WIDTH) {
                multiply(2, a + r * depth, depth, 1, panels, PANEL, depth, sum);
                put(2, sum, c + r * pitch + at, pitch);
            } else {
                multiply(1, a + r * depth, depth, 1, panels, PANEL, depth, sum);
                put(1, sum, c + r * pitch + at, pitch);
            }
        }
}

/* The gradient of one factor's weights, ROWS outputs by `vectors` of inputs: products of y and x, summed over the tiles of
   some blocks. `add`: to what is there. */
INLINE void weight_panel(int vectors, const Sizes *n, const Plan *p, long first, long last, const float *x, const float *y,
                         long y_by_block, int add, float *grad) {
    Vector sum[ROWS][2] = {0};
    for (int r = 0; add && r < ROWS; r++)
        for (int v = 0; v < vectors; v++) sum[r][v] = ((const Anywhere *)(grad + r * p->wide_inputs))[v];
    for (long number = first; number < last; number++) {
        const Block b = block_of(n, p, number / p->blocks, number % p->blocks);
        multiply(vectors, y + (number - first) * y_by_block, 1, n->y.channels, x + number * n->factors * p->x, p->inputs,
                 b.count, sum);
    }
    put(vectors, sum, grad, p->wide_inputs);
}

/* The same of all outputs and inputs, [output, phase and channel]. */
static void weight_product(const Sizes *n, const Plan *p, long first, long last, const float *x, const float *y,
                           long y_by_block, int add, float *grad) {
    for (long c = 0; c < p->inputs; c += PANEL)
        for (long o = 0; o < n->y.channels; o += ROWS)
            if (p->inputs - c > WIDTH)
                weight_panel(2, n, p, first, last, x + c, y + o, y_by_block, add, grad + o * p->wide_inputs + c);
            else
                weight_panel(1, n, p, first, last, x + c, y + o, y_by_block, add, grad + o * p->wide_inputs + c);
}

/* Weights as the products read them: panels of PANEL results, or, `back`, of PANEL inputs, LANES of which are done here.
   Of a panel one line after the other is written, so that a cache sees what comes next. */
static void weight_factors(To transform, const Sizes *n, const Plan *p, int back, long block, const float *weight,
                           float *factors) {
    const Map *w = &n->weight;
    const long channels = back ? n->x.channels : n->y.channels, lines = back ? n->y.channels : n->x.channels;
    const long blocks = whole(channels, LANES), phase = block / blocks, c = block % blocks * LANES;
    const long top = phase / n->stride, left = phase % n->stride, count = least(LANES, channels - c);
    const long depth = back ? lines : p->inputs, apart = back ? p->weight_back : p->weight;
    const long at = back ? phase * channels + c : c, above = back ? 0 : phase * lines;
    const long width = back ? p->inputs : channels, padded = at + count == width ? whole(width, PANEL) * PANEL - at : count;
    Map m = *w;
    m.by_channel = back ? w->by_channel : w->by_image;
    m.by_image = back ? w->by_image : w->by_channel; /* the next line */
    for (long line = 0; line < lines; line++) {
        const float *from = weight + c * m.by_channel + line * (back ? w->by_image : w->by_channel);
        float *to = factors + (at / PANEL * depth + above + line) * PANEL + at % PANEL;
        if (at % PANEL + count <= PANEL)
            transform(&m, from, top, left, n->stride, count, to, apart, PANEL);
        else { /* Part of it belongs to later panels. */
            float room[MOST * MOST][LANES] __attribute__((aligned(64)));
            transform(&m, from, top, left, n->stride, count, room[0], LANES, 0);
            for (long k = 0; k < n->factors; k++)
                for (long l = 0; l < count; l++)
                    to[k * apart + l + (at % PANEL + l) / PANEL * (depth - 1) * PANEL] = room[k][l];
        }
        for (long k = 0; k < n->factors; k++)
            for (long l = count; l < padded; l++) to[k * apart + l + (at % PANEL + l) / PANEL * (depth - 1) * PANEL] = 0;
    }
}

/* One share of the images: factors of x, kept for the gradients if there is room for them, their products, results. */
static void forward(To input, From output, int tile, const Sizes *n, long share, const float *x, const float *weight,
                    float *x_hat, float *room, float *y) {
    const Plan p = plan_of(n);
    float *own = room + share * n->factors * (p.x + p.product_y), *product = own + n->factors * p.x;
    for (long group = p.groups * share / n->shares; group < p.groups * (share + 1) / n->shares; group++)
        for (long piece = 0; piece < p.blocks; piece++) {
            const Block b = block_of(n, &p, group, piece);
            float *factors = x_hat ? x_hat + b.number * n->factors * p.x : own;
            block_to_factors(input, n, &p, &n->x, &b, tile, n->stride, -n->padding, x, factors, p.x);
            for (long k = 0; k < n->factors; k++)
                block_product(n->block, p.inputs, n->y.channels, factors + k * p.x, weight + k * p.weight,
                              product + k * p.product_y, p.wide_outputs);
            for (long i = b.first; i < b.first + b.count; i++)
                for (long o = 0; o < n->y.channels; o += LANES)
                    output(&n->y, y + i / p.tiles * n->y.by_image + o, top_of(n, i, tile), left_of(n, i, tile), 1,
                           least(LANES, n->y.channels - o), product + (i - b.first) * p.wide_outputs + o, p.product_y, 0);
        }
}

static void clear(const Map *m, float *image) {
    for (long row = 0; row < m->rows; row++)
        for (long column = 0; column < m->columns; column++)
            for (long c = 0; c < m->channels; c++) image[row * m->by_row + column * m->by_column + c] = 0;
}

/* One part of the images: factors of the gradient and, if wanted, the gradient of x. Where the sums of the weights' gradient
   fit into cache, they are added up here; else the factors are kept for them. */
static void backward(From input, To output, int tile, int side, const Sizes *n, long part, const float *grad,
                     const float *weight, const float *x_hat, float *y_hat, float *room, float *grad_x, int summed) {
    const Plan p = plan_of(n);
    const long reach = side * n->stride - n->padding, parts = p.parts ? p.parts : n->shares;
    const int overlap = p.tiles > 1 || reach < n->x.rows || reach < n->x.columns;
    float *product = room + part * n->factors * p.product_x;
    float *sums = room + n->factors * (p.parts * p.product_x + part * p.grad);
    for (long l = 0; summed && l < n->factors * p.grad; l++) sums[l] = 0;
    for (long group = p.groups * part / parts; group < p.groups * (part + 1) / parts; group++) {
        if (grad_x && overlap)
            for (long i = group * p.images; i < least(n->images, (group + 1) * p.images); i++)
                clear(&n->x, grad_x + i * n->x.by_image);
        for (long piece = 0; piece < p.blocks; piece++) {
            const Block b = block_of(n, &p, group, piece);
            float *factors = y_hat + (p.parts ? part : b.number) * n->factors * p.y;
            block_to_factors(output, n, &p, &n->y, &b, tile, 1, 0, grad, factors, p.y);
            for (long k = 0; summed && k < n->factors; k++)
                weight_product(n, &p, b.number, b.number + 1, x_hat + k * p.x, factors + k * p.y, 0, 1,
                               sums + k * p.grad);
            if (!grad_x) continue;
            for (long k = 0; k < n->factors; k++)
                block_product(n->block, n->y.channels, p.inputs, factors + k * p.y, weight + k * p.weight_back,
                              product + k * p.product_x, p.wide_inputs);
            for (long i = b.first; i < b.first + b.count; i++)
                for (long phase = 0; phase < n->stride * n->stride; phase++)
                    for (long c = 0; c < n->x.channels; c += LANES)
                        input(&n->x, grad_x + i / p.tiles * n->x.by_image + c,
                              top_of(n, i, tile) * n->stride + phase / n->stride - n->padding,
                              left_of(n, i, tile) * n->stride + phase % n->stride - n->padding, n->stride,
                              least(LANES, n->x.channels - c),
                              product + (i - b.first) * p.wide_inputs + phase * n->x.channels + c, p.product_x, overlap);
        }
    }
}

/* The sums of one factor's weights, over all tiles or out of those of the parts. */
static void weight_sums(const Sizes *n, const Plan *p, long k, const float *x_hat, const float *y_hat, float *sums) {
    if (!p->parts)
        weight_product(n, p, 0, p->groups * p->blocks, x_hat + k * p->x, y_hat + k * p->y, n->factors * p->y, 0,
                       sums + k * p->grad);
    for (long part = 1; part < p->parts; part++)
        for (long l = k * p->grad; l < (k + 1) * p->grad; l++) sums[l] += sums[part * n->factors * p->grad + l];
}

/* The gradient of one output's weights out of its factors. */
static void weight_gradient(From from, const Sizes *n, const Plan *p, long o, const float *factors, float *grad_w) {
    for (long phase = 0; phase < n->stride * n->stride; phase++)
        for (long c = 0; c < n->x.channels; c += LANES)
            from(&n->weight, grad_w + o * n->weight.by_image + c * n->weight.by_channel, phase / n->stride,
                 phase % n->stride, n->stride, least(LANES, n->x.channels - c),
                 factors + o * p->wide_inputs + phase * n->x.channels + c, p->grad, 0);
}

#define ALL(TILE, TAPS)                                                                                                \
    void weights_##TILE##_##TAPS(Sizes n, const float *weight, float *factors) {                                       \
        const Plan p = plan_of(&n);                                                                                    \
        _Pragma("omp parallel for") for (long block = 0; block < whole(n.y.channels, LANES) * n.stride * n.stride;     \
                                         block++)                                                                      \
            weight_factors(WEIGHT_##TILE##_##TAPS##_to, &n, &p, 0, block, weight, factors);                            \
    }                                                                                                                  \
    void forward_##TILE##_##TAPS(Sizes n, const float *x, const float *weight, float *x_hat, float *room, float *y) {  \
        _Pragma("omp parallel for") for (long share = 0; share < n.shares; share++)                                    \
            forward(INPUT_##TILE##_##TAPS##_to, OUTPUT_##TILE##_##TAPS##_from, TILE, &n, share, x, weight, x_hat,      \
                    room, y);                                                                                          \
    }                                                                                                                  \
    /* One parallel region: threads wait for each other between its parts, but do not end. */                          \
    void backward_##TILE##_##TAPS(Sizes n, const float *grad, const float *weight, const float *x_hat, float *w_hat,   \
                                  float *y_hat, float *room, float *grad_x, float *grad_w) {                           \
        const Plan p = plan_of(&n);                                                                                    \
        const long blocks = grad_x ? n.stride * n.stride * whole(n.x.channels, LANES) : 0;                             \
        const long factors = grad_w ? n.factors : 0, outputs = grad_w ? n.y.channels : 0;                              \
        float *sums = room + n.factors * p.parts * p.product_x;                                                        \
        _Pragma("omp parallel") {                                                                                      \
            _Pragma("omp for") for (long block = 0; block < blocks; block++)                                           \
                weight_factors(WEIGHT_##TILE##_##TAPS##_to, &n, &p, 1, block, weight, w_hat);                          \
            _Pragma("omp for") for (long part = 0; part < (p.parts ? p.parts : n.shares); part++)                      \
                backward(INPUT_##TILE##_##TAPS##_from, OUTPUT_##TILE##_##TAPS##_to, TILE, TILE + TAPS - 1, &n, part,   \
                         grad, w_hat, x_hat, y_hat, room, grad_x, grad_w && p.parts);                                  \
            _Pragma("omp for") for (long k = 0; k < factors; k++) weight_sums(&n, &p, k, x_hat, y_hat, sums);          \
            _Pragma("omp for") for (long o = 0; o < outputs; o++)                                                      \
                weight_gradient(WEIGHT_##TILE##_##TAPS##_from, &n, &p, o, sums, grad_w);                               \
        }                                                                                                              \
    }

ALL(4, 3)
ALL(6, 3)
ALL(6, 2)
