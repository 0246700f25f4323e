// A tile of a product on tensor cores: M rows of weights with N columns that halves.cu has made, 32 elements deep at a time, by two threads for
// each row.
//
// Blocks come into shared memory as they are, some of them for each row (a chunk), while those before are used; from there they are unpacked to
// f16. Each row has a power of two that its weights are divided by, so that none is too large for f16 and the largest are far from its smallest
// numbers: it follows what the scales of blocks say, and where it has to grow, the sums are divided, too. Rows of f16 and bf16 come as they are.

// Bytes of shared memory of a block.
const u32 SHARED_128 = 101376, SHARED_64 = 50688;

// How many pieces of 16 bytes there are of a row in a step.
const u32 PIECES = DEPTH / 8;

// Elements of a chunk, and what it takes of a row, wherever it begins.
template <int T>
struct Chunk {
    static constexpr u32 ELEMENTS = is_of_32<T> ? 128 : QK;
    static constexpr u32 STEPS = ELEMENTS / DEPTH;
    static constexpr u32 BLOCKS = is_of_32<T> ? 4 : 1;
    static constexpr u32 BYTES = BLOCKS * block_bytes<T>();
    static constexpr u32 UNIT = BYTES % 4 == 0 && block_bytes<T>() % 4 == 0 ? 4 : block_bytes<T>() % 2 == 0 ? 2 : 1;
    static constexpr u32 PIECES = (BYTES + 16 - UNIT + 15) / 16;
    // An odd number of pieces, so that rows begin in different banks, where there is room for it.
    static constexpr u32 STRIDE = 16 * (T == Q6_K ? PIECES : PIECES | 1);
};

// The largest weight of a block, or more.
template <int T>
INLINE float most_of(const u8* b) {
    if constexpr (T == MXFP4) {
        u32 e = b[0];
        return 12.0f * __uint_as_float(e < 2 ? 0x00200000 << e : (e - 1) << 23);
    } else if constexpr (T == Q4_1 || T == Q5_1) {
        return (T == Q4_1 ? 15.0f : 31.0f) * fabsf(half_at(b)) + fabsf(half_at(b + 2));
    } else if constexpr (T == Q2_K) {
        return 45.0f * fabsf(half_at(b + 80)) + 15.0f * fabsf(half_at(b + 82));
    } else if constexpr (T == Q3_K) {
        return 128.0f * fabsf(half_at(b + 108));
    } else if constexpr (T == Q4_K || T == Q5_K) {
        return (T == Q4_K ? 945.0f : 1953.0f) * fabsf(half_at(b)) + 63.0f * fabsf(half_at(b + 2));
    } else if constexpr (T == Q6_K) {
        return 4096.0f * fabsf(half_at(b + 208));
    } else {
        return (T == Q4_0 ? 8.0f : T == Q5_0 ? 16.0f : T == IQ4_XS ? 4064.0f : 128.0f) * fabsf(half_at(b));
    }
}

template <int T, u32 M, u32 N>
struct MmaTile {
    static constexpr bool UNPACKS = T > I32;
    static constexpr u32 THREADS = 2 * M, STAGES = UNPACKS ? 3 : 4, WEIGHT_STAGES = UNPACKS ? 2 : STAGES;
    // A warp has so many rows and columns, in matrices of 16 and of 8.
    static constexpr u32 DOWN = M / 2, ACROSS = M == 128 ? N / 4 : N / 2, ROWS = DOWN / 16, COLUMNS = ACROSS / 8;
    // Where things lie in shared memory.
    static constexpr u32 INPUTS = WEIGHT_STAGES * M * DEPTH * 2, RAW = INPUTS + STAGES * N * DEPTH * 2;
    static constexpr u32 WEIGHT_STAGE = M * DEPTH * 2, INPUT_STAGE = N * DEPTH * 2;
    static constexpr u32 RAW_SIZE = UNPACKS ? M * Chunk<UNPACKS ? T : Q4_0>::STRIDE : 0, SHIFTS = RAW + 2 * RAW_SIZE;
    static_assert(SHIFTS + M * 4 <= (M == 128 ? SHARED_128 : SHARED_64), "it has room");

    u8* shared;
    u32 shared_at, read_weights, read_inputs, write_weights, write_inputs;
    float sums[ROWS][COLUMNS][4];
    // Of the row that this thread unpacks, and whose weights it brings.
    int top;
    float factor;

    // A piece of a row of a stage. Rows that are used together, and pieces that are written together, lie in different banks.
    static INLINE u32 piece(u32 row, u32 piece) {
        u32 pair = row >> 1 & 3;
        return row * DEPTH * 2 + ((piece ^ pair) << 4);
    }

    // The same of weights, whose pieces are written by two threads a row.
    static INLINE u32 weight_piece(u32 row, u32 piece) {
        u32 pair = row >> 1 & 3;
        if (UNPACKS && is_of_32<T>) {
            pair = (pair & 1) << 1 | pair >> 1;
        }
        return row * DEPTH * 2 + ((piece ^ pair) << 4);
    }

    // What does not change from step to step: where this lane reads matrices, and where this thread writes, in a stage.
    INLINE void find_places() {
        u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
        u32 m = warp % 2 * DOWN + lane % 16, n = warp / 2 * ACROSS + lane / 16 * 8 + lane % 8;
        read_weights = kept(shared_at + weight_piece(m, lane / 16));
        read_inputs = kept(shared_at + INPUTS + piece(n, lane / 8 % 2));
        write_weights = kept(weight_piece(threadIdx.x / 2, is_of_32<T> ? threadIdx.x % 2 : threadIdx.x % 2 * 2));
        write_inputs = kept(shared_at + INPUTS + piece(threadIdx.x / PIECES, threadIdx.x % PIECES));
    }

    // Multiplies what is in a stage of each: the stages begin so many bytes behind the first. Matrices are loaded while those before are used.
    INLINE void multiply_stage(u32 weights, u32 inputs) {
        u32 a[2][4], b[2][COLUMNS][2];
        weights += read_weights;
        inputs += read_inputs;
        load_inputs(inputs, b[0]);
        load_matrices(weights, a[0][0], a[0][1], a[0][2], a[0][3]);
#pragma unroll
        for (u32 i = 0; i < 2 * ROWS; i++) {
            if (i + 1 < 2 * ROWS) {
                u32 next = (i + 1) % 2, half = (i + 1) / ROWS;
                // The second half is two pieces further.
                load_matrices((weights ^ half << 5) + (i + 1) % ROWS * 16 * DEPTH * 2, a[next][0], a[next][1], a[next][2], a[next][3]);
            }
            if (i + 2 == ROWS) {
                load_inputs(inputs ^ 32, b[1]);
            }
#pragma unroll
            for (u32 j = 0; j < COLUMNS; j++) {
                multiply_add<T>(sums[i % ROWS][j], a[i % 2], b[i / ROWS][j][0], b[i / ROWS][j][1]);
            }
        }
    }

    INLINE void load_inputs(u32 at, u32 (&b)[COLUMNS][2]) {
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j += 2) {
            load_matrices(at + 8 * j * DEPTH * 2, b[j][0], b[j][1], b[j + 1][0], b[j + 1][1]);
        }
    }

    // Unpacks this thread's half of a row's 32 weights of a step.
    INLINE void unpack_step(const u8* chunk, u32 i, u32 stage) {
        u32 h = threadIdx.x % 2;
        const u8* block = chunk + i / (is_of_32<T> ? 1 : 8) * block_bytes<T>();
        u32 begin = is_of_32<T> ? 0 : i % 8 * 32 + 16 * h;
        float scale, offset;
        scale_and_offset<T>(block, begin, scale, offset);
        u32 scales = two_halves(scale * factor, scale * factor), offsets = two_halves(offset * factor, offset * factor);
#pragma unroll
        for (u32 p = 0; p < 2; p++) {
            // Of blocks of 32, elements j and j + 16 share a byte.
            u32 j = is_of_32<T> ? 8 * h + 16 * p : begin + 8 * p, to = write_weights ^ p << (is_of_32<T> ? 5 : 4);
            *(uint4*)(shared + to + stage) = eight_weights<T>(block, j, scales, offsets);
        }
    }

    // Has the chunk that begins at byte `at` of rows copied, by four threads a row: of so many bytes, they take two rows each.
    INLINE void copy_chunk(const u8* (&of)[2], u32 at, u32 row_bytes, u32 to) {
        using C = Chunk<T>;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u8* from = of[i] + at;
            from -= u32(u64(from)) & 15;
            u32 place = shared_at + RAW + to * RAW_SIZE + (threadIdx.x / 4 + i * M / 2) * C::STRIDE;
#pragma unroll
            for (u32 j = 0; j < C::PIECES; j += 4) {
                u32 p = j + threadIdx.x % 4;
                if ((j + 4 <= C::PIECES || p < C::PIECES) && from + 16 * p < of[i] + row_bytes) {
                    copy_16(place + 16 * p, from + 16 * p, true);
                }
            }
        }
    }

    // Where a row of a chunk has larger weights than those before, says by what its sums have to be multiplied.
    INLINE void open_chunk(const u8* chunk, u32 blocks) {
        int above = -126;
#pragma unroll
        for (u32 i = 0; i < Chunk<T>::BLOCKS; i++) {
            if (i < blocks) {
                above = max(above, exponent_above(most_of<T>(chunk + i * block_bytes<T>())));
            }
        }
        // A bit more than is needed, so that this comes seldom.
        int higher = above > top ? max(above + 3, -80) : top;
        ((float*)(shared + SHIFTS))[threadIdx.x / 2] = power_of_two(max(top - higher, -126));
        top = higher;
        factor = power_of_two(15 - top);
    }

    INLINE void shift_sums() {
        const float* shifts = (const float*)(shared + SHIFTS);
        u32 m = threadIdx.x / WARP % 2 * DOWN + threadIdx.x % WARP / 4;
        float of[2 * ROWS], least = 1.0f;
#pragma unroll
        for (u32 i = 0; i < 2 * ROWS; i++) {
            of[i] = shifts[m + 8 * i];
            least = fminf(least, of[i]);
        }
        if (least == 1.0f) {
            return;
        }
#pragma unroll
        for (u32 i = 0; i < 4 * ROWS * COLUMNS; i++) {
            sums[i / 4 / COLUMNS][i / 4 % COLUMNS][i % 4] *= of[i / 4 / COLUMNS * 2 + i % 4 / 2];
        }
    }

    // Has the columns' elements of a step copied.
    INLINE void copy_inputs(const u8* (&columns)[N * PIECES / THREADS], u32 step, u32 stage) {
#pragma unroll
        for (u32 i = 0; i < N * PIECES / THREADS; i++) {
            copy_16(write_inputs + stage + i * THREADS * 16, columns[i] + u64(step) * DEPTH * 2, true);
        }
    }

    // The same of weights that are halves. What is behind a row's end is 0.
    INLINE void copy_weights(const Tensor& a, const u8* base, u32 m, u32 rows, bool wide, u32 step, u32 stage) {
        u32 p = threadIdx.x % PIECES, k = step * DEPTH + 8 * p, n = a.ne[0];
#pragma unroll
        for (u32 r = threadIdx.x / PIECES; r < M; r += THREADS / PIECES) {
            const u8* from = base + min(m + r, rows - 1) * a.nb[1] + u64(k) * 2;
            u32 to = stage + weight_piece(r, p);
            if (wide) {
                copy_16(shared_at + to, k < n ? from : base, k < n);
                continue;
            }
            for (u32 i = 0; i < 8; i++) {
                ((u16*)(shared + to))[i] = k + i < n ? half_word(from + 2 * i) : 0;
            }
        }
    }

    // Sums of weights that are halves.
    INLINE void sum_halves(const Node& node, const u8* base, u32 m, u32 rows, u32 begin, u32 end, const u8* (&columns)[N * PIECES / THREADS]) {
        const Tensor& a = node.t[0];
        bool wide = node.p[1] != 0;
        u32 written = 0, read = 0;
        auto copy = [&](u32 step) {
            if (step < end) {
                copy_weights(a, base, m, rows, wide, step, written * WEIGHT_STAGE);
                copy_inputs(columns, step, written * INPUT_STAGE);
            }
            written = written + 1 == STAGES ? 0 : written + 1;
            end_group();
        };
        for (u32 step = begin; step < begin + STAGES - 1; step++) {
            copy(step);
        }
        for (u32 step = begin; step < end; step++) {
            wait_groups<STAGES - 2>();
            __syncthreads();
            copy(step + STAGES - 1);
            multiply_stage(read * WEIGHT_STAGE, read * INPUT_STAGE);
            read = read + 1 == STAGES ? 0 : read + 1;
        }
    }

    // Sums of weights that are blocks.
    INLINE void sum_blocks(const Node& node, const u8* base, u32 m, u32 rows, u32 begin, u32 end, const u8* (&columns)[N * PIECES / THREADS]) {
        using C = Chunk<T>;
        const Tensor& a = node.t[0];
        u32 row_bytes = a.ne[0] / (is_of_32<T> ? 32 : QK) * block_bytes<T>();
        u32 my_row = threadIdx.x / 2, behind = u32(u64(base + min(m + my_row, rows - 1) * a.nb[1]));
        const u8* of[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            of[i] = base + min(m + threadIdx.x / 4 + i * M / 2, rows - 1) * a.nb[1];
        }
        copy_chunk(of, begin / C::STEPS * C::BYTES, row_bytes, begin / C::STEPS % 2);
        end_group();
        copy_inputs(columns, begin, begin % STAGES * INPUT_STAGE);
        end_group();
        const u8* chunk = nullptr;
        for (u32 step = begin; step <= end; step++) {
            u32 i = step % C::STEPS, number = step / C::STEPS, at = number * C::BYTES;
            wait_groups<1>();
            __syncthreads();
            // All that was unpacked before the weights grew has been multiplied.
            if ((step - 1) % C::STEPS == 0 && step > begin) {
                shift_sums();
            }
            if (i == 0 && step < end) {
                chunk = shared + RAW + number % 2 * RAW_SIZE + my_row * C::STRIDE + (behind + at) % 16;
                open_chunk(chunk, is_of_32<T> ? end - step : 1);
                if (step + C::STEPS < end) {
                    copy_chunk(of, at + C::BYTES, row_bytes, (number + 1) % 2);
                }
            }
            if (step + 1 < end) {
                copy_inputs(columns, step + 1, (step + 1) % STAGES * INPUT_STAGE);
            }
            end_group();
            // What the step before has unpacked.
            if (step > begin) {
                multiply_stage((step - 1) % 2 * WEIGHT_STAGE, (step - 1) % STAGES * INPUT_STAGE);
            }
            if (step < end) {
                unpack_step(chunk, i, step % 2 * WEIGHT_STAGE);
            }
        }
    }

    INLINE void sum(const Node& node, const u8* base, u32 m, u32 rows, u32 begin, u32 end, const u8* (&columns)[N * PIECES / THREADS]) {
        if constexpr (UNPACKS) {
            sum_blocks(node, base, m, rows, begin, end, columns);
        } else {
            sum_halves(node, base, m, rows, begin, end, columns);
        }
    }

    // Hands each result to `write`, with its row and its column in the tile. `scale` is that of a column.
    template <class Scale, class Write>
    INLINE void results(Scale scale, Write write) {
        float* scales = (float*)(shared + SHIFTS);
        if (UNPACKS) {
            __syncthreads();
            scales[threadIdx.x / 2] = power_of_two(top - 15);
            __syncthreads();
        }
        u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
        u32 m = warp % 2 * DOWN + lane / 4, n = warp / 2 * ACROSS + lane % 4 * 2;
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++) {
#pragma unroll
            for (u32 c = 0; c < 2; c++) {
                float of_column = scale(n + 8 * j + c);
#pragma unroll
                for (u32 i = 0; i < 2 * ROWS; i++) {
                    u32 r = m + 8 * i;
                    float sum = sums[i / 2][j][i % 2 * 2 + c];
                    write(r, n + 8 * j + c, (UNPACKS ? sum * scales[r] : sum) * of_column);
                }
            }
        }
    }
};

// The elements that a part of a product sums, of `parts`: whole chunks.
struct Part {
    u32 index, parts;
};

// Rows from `m` on of weights that begin at `base`, with columns: `source` is the place of a column of the tile among those that halves.cu has
// made, `target` where its results go, or null. Two parts are added to zeros: in which order makes no difference.
template <int T, u32 M, u32 N, class Source, class Target>
INLINE void mma_tile(const Node& node, const u8* base, u32 m, Part part, Source source, Target target) {
    extern __shared__ __align__(128) u8 memory[];
    using Tile = MmaTile<T, M, N>;
    const Tensor& b = node.t[1];
    u32 n = b.ne[0], rows = node.t[RESULT].ne[0];
    Tile tile;
    tile.shared = memory;
    tile.shared_at = shared_address(memory);
    tile.find_places();
    tile.top = -127;
    tile.factor = 1.0f;
#pragma unroll
    for (u32 i = 0; i < Tile::ROWS * Tile::COLUMNS * 4; i++) {
        tile.sums[i / 4 / Tile::COLUMNS][i / 4 % Tile::COLUMNS][i % 4] = 0.0f;
    }
    const u8* columns[N * PIECES / Tile::THREADS];
#pragma unroll
    for (u32 i = 0; i < N * PIECES / Tile::THREADS; i++) {
        u32 place = source(threadIdx.x / PIECES + i * (Tile::THREADS / PIECES));
        columns[i] = node.table + u64(place) * padded_length(n) * 2 + threadIdx.x % PIECES * 16;
    }
    u32 steps = padded_length(n) / DEPTH, whole = QK / DEPTH, of_part = (steps + whole * part.parts - 1) / (whole * part.parts) * whole;
    u32 begin = min(part.index * of_part, steps), end = min(begin + of_part, steps);
    if (begin < end) {
        tile.sum(node, base, m, rows, begin, end, columns);
    }
    const float* scales = column_scales(node, rows_of(b), n);
    tile.results([&](u32 c) { return scales[source(c)]; },
                 [&](u32 r, u32 c, float sum) {
                     u8* to = target(c);
                     if (to == nullptr || m + r >= rows) {
                         return;
                     }
                     float* place = (float*)to + m + r;
                     if (part.parts == 1) {
                         *place = sum;
                     } else {
                         atomicAdd(place, sum);
                     }
                 });
}
