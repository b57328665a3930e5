/* Vectors of eight numbers, and how eight of them are transposed. */

#ifndef EIGHT_H
#define EIGHT_H

#define INLINE static inline __attribute__((always_inline))

typedef float v8 __attribute__((vector_size(32), may_alias));
typedef float loose __attribute__((vector_size(32), aligned(4), may_alias)); /* at any address */
typedef int i8 __attribute__((vector_size(32), may_alias));

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (i8){__VA_ARGS__})
#endif

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

#endif
