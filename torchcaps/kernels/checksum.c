/* A checksum that every change of a number changes, as fast as memory is read (see remembered.py).

   Each of 32 lanes is multiplied by an odd number after every new value, which loses nothing; so are the sums of lanes.
   One result for each chunk, whatever the number of threads. */

#include <stdint.h>

#define LANES 32
#define CHUNK (1L << 15)

void checksum(const uint32_t *values, long count, uint64_t *out) {
#pragma omp parallel for
    for (long start = 0; start < count; start += CHUNK) {
        const long end = count - start < CHUNK ? count : start + CHUNK;
        uint32_t lane[LANES] = {0};
        long i = start;
        for (; i + LANES <= end; i += LANES)
            for (int l = 0; l < LANES; l++) lane[l] = (lane[l] ^ values[i + l]) * 0x9E3779B1u;
        uint64_t sum = 0;
        for (; i < end; i++) sum = (sum ^ values[i]) * 0x9E3779B97F4A7C15u;
        for (int l = 0; l < LANES; l++) sum = (sum ^ lane[l]) * 0x9E3779B97F4A7C15u;
        out[start / CHUNK] = sum;
    }
}
