//! FLASH_ATTN_EXT.

use super::*;
use outboard_core::TensorId;

/// One case's shape.
#[derive(Clone, Copy)]
struct Shape {
    d: usize,
    dv: usize,
    tokens: usize,
    kv: usize,
    heads: usize,
    heads_kv: usize,
    k: DType,
    v: DType,
}

const USUAL: Shape = Shape { d: 64, dv: 64, tokens: 7, kv: 37, heads: 6, heads_kv: 2, k: DType::F16, v: DType::F16 };
const PLAIN: FlashAttn = FlashAttn { scale: 0.125, window: 0, softcap: 0.0, block: 0 };

impl Shape {
    fn qkv(&self, m: &mut Make) -> Result<[TensorId; 3], outboard_core::GraphError> {
        Ok([
            m.f32(&[self.d, self.tokens, self.heads])?,
            m.input(self.k, &[self.d, self.kv, self.heads_kv], Fill::Uniform(-1.0, 1.0))?,
            m.input(self.v, &[self.dv, self.kv, self.heads_kv], Fill::Uniform(-1.0, 1.0))?,
        ])
    }

    fn name(&self) -> String {
        let Shape { d, dv, tokens, kv, heads, heads_kv, k, v } = self;
        format!("d={d} dv={dv} tokens={tokens} kv={kv} heads={heads}/{heads_kv} k={k} v={v}")
    }
}

/// Attention with what is there of mask, positions and sinks.
fn attention(m: &mut Make, op: FlashAttn, [q, k, v]: [TensorId; 3], more: [Option<TensorId>; 3]) -> Made {
    m.g.push_opt(op, &[Some(q), Some(k), Some(v), more[0], more[1], more[2]])
}

pub(super) fn cases(s: &mut Suite) {
    shapes(s);
    sights(s);
    layouts(s);
    paged(s);
    prompts(s);
    paged_prompts(s);
    for pos in [37, -1, i32::MIN, i32::MAX] {
        for window in [0, 4] {
            s.fails(format!("position {pos} of 37, window {window}"), |m| {
                let shape = Shape { tokens: 3, ..USUAL };
                let qkv = shape.qkv(m)?;
                let pos = m.i32(&[3], Fill::Ints(vec![36, 0, pos]))?;
                attention(m, FlashAttn { window, ..PLAIN }, qkv, [None, Some(pos), None])
            });
        }
    }
}

fn shapes(s: &mut Suite) {
    let types = [DType::F32, DType::F16, DType::BF16, DType::Q8_0];
    for k in types {
        for v in types {
            for (tokens, kv) in [(1, 37), (7, 100)] {
                add(s, Shape { k, v, tokens, kv, ..USUAL });
            }
        }
        for (heads, heads_kv) in [(1, 1), (4, 4), (9, 3), (8, 1)] {
            for tokens in [1, 5, 12] {
                add(s, Shape { k, v: k, heads, heads_kv, tokens, ..USUAL });
            }
            add(s, Shape { k, v: k, d: 128, dv: 128, heads, heads_kv, tokens: 2, kv: 300 });
        }
        for (d, dv) in [(32, 32), (96, 96), (128, 128), (192, 128), (64, 32), (256, 256)] {
            for tokens in [1, 5] {
                add(s, Shape { k, v: k, d, dv, tokens, ..USUAL });
            }
        }
        for (tokens, kv) in [(1, 1), (33, 33), (2, 256), (1, 1000), (64, 129), (3, 0), (0, 5)] {
            add(s, Shape { k, v: k, tokens, kv, heads: 3, heads_kv: 1, ..USUAL });
        }
    }
    for (d, dv) in [(1, 1), (3, 5), (80, 80)] {
        add(s, Shape { k: DType::F32, v: DType::F32, d, dv, ..USUAL });
        add(s, Shape { d, dv, ..USUAL });
    }
}

/// With a mask and with positions.
fn add(s: &mut Suite, shape: Shape) {
    s.add(format!("{} mask", shape.name()), Check::PRODUCT, |m| {
        let qkv = shape.qkv(m)?;
        let mask = m.input(DType::F16, &[shape.kv, shape.tokens], Fill::Mask(0.3))?;
        attention(m, PLAIN, qkv, [Some(mask), None, None])
    });
    if shape.kv > 0 {
        s.add(format!("{} pos", shape.name()), Check::PRODUCT, |m| {
            let qkv = shape.qkv(m)?;
            let pos = m.i32(&[shape.tokens], Fill::Integers(0, shape.kv as i32))?;
            attention(m, PLAIN, qkv, [None, Some(pos), None])
        });
    }
}

/// What a query sees, and what changes its logits.
fn sights(s: &mut Suite) {
    for shape in [
        USUAL,
        Shape { tokens: 1, ..USUAL },
        Shape { k: DType::F32, v: DType::F32, kv: 300, ..USUAL },
        Shape { k: DType::Q8_0, v: DType::Q8_0, ..USUAL },
    ] {
        let Shape { tokens, kv, heads, .. } = shape;
        let name = shape.name();
        s.add(format!("{name} everything"), Check::PRODUCT, |m| {
            let [q, k, v] = shape.qkv(m)?;
            m.push(PLAIN, &[q, k, v])
        });
        for window in [1, 5, 1000] {
            s.add(format!("{name} window {window}"), Check::PRODUCT, |m| {
                let qkv = shape.qkv(m)?;
                let pos = m.i32(&[tokens], Fill::Integers(0, kv as i32))?;
                attention(m, FlashAttn { window, ..PLAIN }, qkv, [None, Some(pos), None])
            });
        }
        s.add(format!("{name} softcap"), Check::PRODUCT, |m| {
            let qkv = shape.qkv(m)?;
            let pos = m.i32(&[tokens], Fill::Integers(0, kv as i32))?;
            attention(m, FlashAttn { softcap: 0.5, scale: 1.0, ..PLAIN }, qkv, [None, Some(pos), None])
        });
        s.add(format!("{name} sharp"), Check::PRODUCT, |m| {
            let [q, k, v] = shape.qkv(m)?;
            m.push(FlashAttn { scale: 40.0, ..PLAIN }, &[q, k, v])
        });
        s.add(format!("{name} sinks"), Check::PRODUCT, |m| {
            let qkv = shape.qkv(m)?;
            let sinks = m.input(DType::F32, &[heads], Fill::Uniform(-2.0, 4.0))?;
            attention(m, PLAIN, qkv, [None, None, Some(sinks)])
        });
        s.add(format!("{name} F32 mask, positions and sinks"), Check::PRODUCT, |m| {
            let qkv = shape.qkv(m)?;
            let mask = m.input(DType::F32, &[kv, tokens], Fill::Uniform(-2.0, 0.0))?;
            let pos = m.i32(&[tokens], Fill::Integers(0, kv as i32))?;
            let sinks = m.input(DType::F32, &[heads], Fill::Uniform(-2.0, 4.0))?;
            attention(m, PLAIN, qkv, [Some(mask), Some(pos), Some(sinks)])
        });
        s.add(format!("{name} nothing is seen"), Check::PRODUCT, |m| {
            let qkv = shape.qkv(m)?;
            let mask = m.input(DType::F16, &[kv, tokens], Fill::Floats(vec![f32::NEG_INFINITY]))?;
            attention(m, PLAIN, qkv, [Some(mask), None, None])
        });
    }
}

/// The memory of a real cache.
fn layouts(s: &mut Suite) {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
        for tokens in [1, 6] {
            s.add(format!("{dtype} tokens={tokens} heads between tokens"), Check::PRODUCT, |m| {
                let q = m.permuted(LeafKind::Input, DType::F32, [64, tokens, 6, 1], [0, 2, 1, 3])?;
                let k = m.permuted(LeafKind::Input, dtype, [64, 40, 2, 1], [0, 2, 1, 3])?;
                let v = m.permuted(LeafKind::Input, dtype, [64, 40, 2, 1], [0, 2, 1, 3])?;
                let pos = m.i32(&[tokens], Fill::Integers(20, 40))?;
                attention(m, PLAIN, [q, k, v], [None, Some(pos), None])
            });
            // Rows that were never written may hold anything.
            s.add(format!("{dtype} tokens={tokens} garbage behind the last position"), Check::PRODUCT, |m| {
                let garbage = || if dtype.is_float() { Fill::NanFrom(21) } else { Fill::Uniform(-1.0, 1.0) };
                let q = m.f32(&[64, tokens, 6])?;
                let k = m.input(dtype, &[64, 50, 2], garbage())?;
                let v = m.input(dtype, &[64, 50, 2], garbage())?;
                let pos = m.i32(&[tokens], Fill::Ints(vec![20, 15, 16, 17, 18, 19]))?;
                attention(m, PLAIN, [q, k, v], [None, Some(pos), None])
            });
            s.add(format!("{dtype} tokens={tokens} written to the cache in the same graph"), Check::PRODUCT, |m| {
                let q = m.f32(&[64, tokens, 4])?;
                let old = || Fill::Uniform(-1.0, 1.0);
                let mut caches = Vec::new();
                for _ in 0..2 {
                    let cache = m.state(dtype, &[128, 32], old())?;
                    let new = m.f32(&[128, tokens])?;
                    let ids = m.i32(&[tokens], Fill::Ints((10..10 + tokens as i32).collect()))?;
                    let cache = m.push(SetRows, &[cache, new, ids])?;
                    let row = dtype.row_bytes(128).unwrap_or(0);
                    let ne = [64, 32, 2, 1];
                    let nb = [dtype.block_bytes(), row, row / 2, 32 * row];
                    caches.push(m.push(View { ne, nb, offset: 0 }, &[cache])?);
                }
                let pos = m.i32(&[tokens], Fill::Ints((10..10 + tokens as i32).collect()))?;
                let [k, v] = [caches[0], caches[1]];
                attention(m, PLAIN, [q, k, v], [None, Some(pos), None])
            });
        }
        if dtype.is_float() {
            s.add(format!("{dtype} tokens=70 garbage behind the last position"), Check::PRODUCT, |m| {
                let q = m.f32(&[64, 70, 6])?;
                let k = m.input(dtype, &[64, 90, 2], Fill::NanFrom(71))?;
                let v = m.input(dtype, &[64, 90, 2], Fill::NanFrom(71))?;
                let pos = m.i32(&[70], Fill::Ints((1..71).collect()))?;
                attention(m, PLAIN, [q, k, v], [None, Some(pos), None])
            });
            s.add(format!("{dtype} rows an element apart"), Check::PRODUCT, |m| {
                let q = m.part(LeafKind::Input, DType::F32, [64, 5, 4, 1], [65, 5, 4, 1])?;
                let k = m.part(LeafKind::Input, dtype, [64, 19, 2, 1], [65, 19, 2, 1])?;
                let v = m.part(LeafKind::Input, dtype, [64, 19, 2, 1], [65, 19, 2, 1])?;
                let pos = m.i32(&[5], Fill::Integers(5, 19))?;
                attention(m, PLAIN, [q, k, v], [None, Some(pos), None])
            });
        }
        s.add(format!("{dtype} padded"), Check::PRODUCT, |m| {
            let q = m.padded_f32([64, 5, 4, 1])?;
            let k = m.padded(LeafKind::Input, dtype, [64, 19, 2, 1], Fill::Uniform(-1.0, 1.0))?;
            let v = m.padded(LeafKind::Input, dtype, [64, 19, 2, 1], Fill::Uniform(-1.0, 1.0))?;
            let mask = m.padded(LeafKind::Input, DType::F16, [19, 5, 1, 1], Fill::Mask(0.3))?;
            attention(m, PLAIN, [q, k, v], [Some(mask), None, None])
        });
    }
}

/// Blocks of a cache, in any order, that several sequences use.
fn paged(s: &mut Suite) {
    // The third sequence shares the first block of the first one. Blocks that nobody uses hold anything.
    let table = || Fill::Ints(vec![4, 1, 5, 0, 2, 2, 4, 3, 3]);
    let tokens: [(&str, Vec<i32>, Vec<i32>); 5] = [
        ("one of each sequence", vec![2, 0, 1], vec![300, 127, 383]),
        ("one", vec![0], vec![200]),
        ("several of one", vec![1; 5], vec![126, 127, 128, 129, 130]),
        ("some of each", vec![0, 0, 0, 2, 1, 1], vec![9, 10, 11, 383, 255, 256]),
        ("none", vec![], vec![]),
    ];
    let types =
        [(DType::F16, DType::F16), (DType::F32, DType::F32), (DType::BF16, DType::BF16), (DType::Q8_0, DType::Q8_0)];
    for (k, v) in types {
        for (name, seqs, pos) in &tokens {
            for window in [0, 150] {
                let shape = Shape { tokens: seqs.len(), kv: 6 * 128, k, v, ..USUAL };
                s.add(format!("{} paged, {name}, window {window}", shape.name()), Check::PRODUCT, |m| {
                    let [q, k, v] = shape.qkv(m)?;
                    let (table, seqs) = (m.i32(&[3, 3], table())?, m.i32(&[seqs.len()], Fill::Ints(seqs.clone()))?);
                    let pos = m.i32(&[pos.len()], Fill::Ints(pos.clone()))?;
                    let op = FlashAttn { window, block: 128, ..PLAIN };
                    m.g.push_opt(op, &[Some(q), Some(k), Some(v), None, Some(pos), None, Some(table), Some(seqs)])
                });
            }
        }
    }
    s.add("paged, blocks of 256, sinks and a soft cap".to_owned(), Check::PRODUCT, |m| {
        let [q, k, v] = Shape { tokens: 4, kv: 4 * 256, ..USUAL }.qkv(m)?;
        let (table, seqs) = (m.i32(&[2, 2], Fill::Ints(vec![3, 0, 1, 2]))?, m.i32(&[4], Fill::Ints(vec![0, 1, 1, 0]))?);
        let (pos, sinks) =
            (m.i32(&[4], Fill::Ints(vec![511, 3, 4, 256]))?, m.input(DType::F32, &[6], Fill::Uniform(-2.0, 4.0))?);
        let op = FlashAttn { softcap: 0.5, block: 256, ..PLAIN };
        m.g.push_opt(op, &[Some(q), Some(k), Some(v), None, Some(pos), Some(sinks), Some(table), Some(seqs)])
    });
    // Spans that make other pieces than as many tokens of one sequence would.
    for (group, first) in [(8, 64), (1, 512)] {
        s.add(
            format!("paged, {first} tokens of one sequence and one of another, {group} heads"),
            Check::PRODUCT,
            |m| {
                let n = first + 1;
                let shape = Shape { d: 8, dv: 8, tokens: n, kv: 6 * 128, heads: group, heads_kv: 1, ..USUAL };
                let [q, k, v] = shape.qkv(m)?;
                let seqs = (0..n).map(|i| i32::from(i == first)).collect();
                let (table, seqs) = (m.i32(&[3, 3], table())?, m.i32(&[n], Fill::Ints(seqs))?);
                let pos = m.i32(&[n], Fill::Integers(0, 384))?;
                let op = FlashAttn { block: 128, ..PLAIN };
                m.g.push_opt(op, &[Some(q), Some(k), Some(v), None, Some(pos), None, Some(table), Some(seqs)])
            },
        );
    }
    for (pos, seq, block) in
        [(256, 0, 1), (-1, 0, 1), (5, 2, 1), (5, -1, 1), (200, 1, 2), (200, 1, i32::MIN), (200, 1, i32::MAX)]
    {
        s.fails(format!("paged: position {pos}, sequence {seq}, block {block} of 2"), |m| {
            let [q, k, v] = Shape { tokens: 1, kv: 256, ..USUAL }.qkv(m)?;
            let (table, seqs) =
                (m.i32(&[2, 2], Fill::Ints(vec![0, 1, 0, block]))?, m.i32(&[1], Fill::Ints(vec![seq]))?);
            let pos = m.i32(&[1], Fill::Ints(vec![pos]))?;
            let op = FlashAttn { block: 128, ..PLAIN };
            m.g.push_opt(op, &[Some(q), Some(k), Some(v), None, Some(pos), None, Some(table), Some(seqs)])
        });
    }
}

/// Queries of a prompt, which devices may compute together.
fn prompts(s: &mut Suite) {
    let shapes = [(64, 2, 2, 67), (64, 3, 1, 9), (64, 8, 2, 33), (64, 8, 1, 16), (128, 2, 2, 40), (128, 6, 2, 9)];
    for (d, heads, heads_kv, tokens) in shapes {
        add(s, Shape { d, dv: d, heads, heads_kv, tokens, kv: 150, ..USUAL });
    }
    for (d, heads, heads_kv, tokens, kv) in [(64, 2, 1, 200, 300), (128, 8, 1, 70, 600), (128, 4, 1, 17, 64)] {
        let shape = Shape { d, dv: d, tokens, kv, heads, heads_kv, ..USUAL };
        s.add(format!("{} causal", shape.name()), Check::PRODUCT, |m| {
            let qkv = shape.qkv(m)?;
            let last = (kv - tokens) as i32;
            let pos = m.i32(&[tokens], Fill::Ints((0..tokens as i32).map(|i| last + i).collect()))?;
            attention(m, PLAIN, qkv, [None, Some(pos), None])
        });
    }
    let shape = Shape { tokens: 30, kv: 100, heads: 8, ..USUAL };
    let name = shape.name();
    for (window, softcap, scale) in [(1, 0.0, 0.125), (40, 0.0, -0.125), (0, 0.5, 1.0), (0, 30.0, 8.0)] {
        s.add(format!("{name} window {window}, soft cap {softcap}"), Check::PRODUCT, |m| {
            let qkv = shape.qkv(m)?;
            let pos = m.i32(&[30], Fill::Integers(0, 100))?;
            attention(m, FlashAttn { window, softcap, scale, block: 0 }, qkv, [None, Some(pos), None])
        });
    }
    s.add(format!("{name} F32 mask, positions and sinks"), Check::PRODUCT, |m| {
        let qkv = shape.qkv(m)?;
        let mask = m.input(DType::F32, &[100, 30], Fill::Uniform(-2.0, 0.0))?;
        let pos = m.i32(&[30], Fill::Integers(0, 100))?;
        let sinks = m.input(DType::F32, &[8], Fill::Uniform(-2.0, 4.0))?;
        attention(m, PLAIN, qkv, [Some(mask), Some(pos), Some(sinks)])
    });
    s.add(format!("{name} large queries"), Check::PRODUCT, |m| {
        let [_, k, v] = shape.qkv(m)?;
        let q = m.input(DType::F32, &[64, 30, 8], Fill::Uniform(-1e8, 1e8))?;
        m.push(FlashAttn { scale: 1e-9, ..PLAIN }, &[q, k, v])
    });
}

/// The same over blocks of a cache.
fn paged_prompts(s: &mut Suite) {
    let ends = [0, 63, 64, 126, 127, 128, 129, 191, 192, 254, 255, 256, 257, 319, 382, 383];
    let tokens: [(&str, Vec<i32>, Vec<i32>); 4] = [
        ("from one block to the next", vec![1; 70], (90..160).collect()),
        ("three sequences by turns", (0..16).map(|i| i % 3).collect(), ends.to_vec()),
        ("one behind the other", (0..40).map(|i| i / 15).collect(), (0..40).map(|i| i % 15 * 9 + 240).collect()),
        ("far from one another", vec![2; 12], vec![3, 380, 4, 381, 5, 382, 6, 383, 7, 300, 8, 9]),
    ];
    for (d, heads) in [(64, 6), (128, 8)] {
        for (name, seqs, pos) in &tokens {
            for (window, with_sinks) in [(0, true), (60, false)] {
                let shape = Shape { d, dv: d, tokens: seqs.len(), kv: 6 * 128, heads, ..USUAL };
                s.add(format!("{} paged, {name}, window {window}", shape.name()), Check::PRODUCT, |m| {
                    let [q, k, v] = shape.qkv(m)?;
                    let table = m.i32(&[3, 3], Fill::Ints(vec![4, 1, 5, 0, 2, 2, 4, 3, 3]))?;
                    let (n, seqs, pos) = (seqs.len(), Fill::Ints(seqs.clone()), Fill::Ints(pos.clone()));
                    let (seqs, pos) = (m.i32(&[n], seqs)?, m.i32(&[n], pos)?);
                    let sinks = m.input(DType::F32, &[heads], Fill::Uniform(-2.0, 4.0))?;
                    let sinks = with_sinks.then_some(sinks);
                    let op = FlashAttn { window, block: 128, ..PLAIN };
                    m.g.push_opt(op, &[Some(q), Some(k), Some(v), None, Some(pos), sinks, Some(table), Some(seqs)])
                });
            }
        }
    }
    let of_window = |m: &mut Make, block: i32, pos: Vec<i32>| {
        let n = pos.len();
        let [q, k, v] = Shape { tokens: n, kv: 3 * 128, ..USUAL }.qkv(m)?;
        let (table, seqs) = (m.i32(&[3, 1], Fill::Ints(vec![2, block, 0]))?, m.i32(&[n], Fill::Ints(vec![0; n]))?);
        let pos = m.i32(&[n], Fill::Ints(pos))?;
        let op = FlashAttn { window: 10, block: 128, ..PLAIN };
        m.g.push_opt(op, &[Some(q), Some(k), Some(v), None, Some(pos), None, Some(table), Some(seqs)])
    };
    let far = || (0..20).map(|i| if i % 2 == 0 { i } else { 300 + i }).collect::<Vec<_>>();
    s.fails("paged, a block that one of many queries sees is none", |m| of_window(m, 99, [far(), vec![137]].concat()));
    s.fails("paged, one position of many is none", |m| of_window(m, 1, [far(), vec![384]].concat()));
}
