//! Speed of the kernels on one thread, beside what the machine can do: GB/s of weights where reading them is the limit,
//! GFLOP/s where arithmetic is. `cargo run --release -p outboard-cpu --example kernels [TYPE... | rows] [k=ELEMENTS] [n=COLUMNS,...]`

use half::f16;
use outboard_core::DType;
use outboard_core::op::{GluKind, NormKind};
use outboard_core::quant::quantize_row;
use outboard_cpu::kernels::act::{ActBlock, act_blocks, quantize_act};
use outboard_cpu::kernels::attn::{self, Heads, Phase, Query, attention};
use outboard_cpu::kernels::float::mul_mat_float;
use outboard_cpu::kernels::mul_mat::{self, Line, Out, Rows, Scratch, is_supported, mul_mat};
use outboard_cpu::kernels::{Isa, rows};
use std::hint::black_box;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Best of several runs, in seconds.
fn best(mut f: impl FnMut()) -> f64 {
    f();
    let start = Instant::now();
    let mut best = f64::INFINITY;
    let mut runs = 0;
    while runs < 3 || start.elapsed().as_secs_f64() < 0.3 {
        let t = Instant::now();
        f();
        best = best.min(t.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}

fn noise(n: usize) -> Vec<f32> {
    let mut s = 1u32;
    (0..n)
        .map(|_| {
            s = s.wrapping_mul(1664525).wrapping_add(1013904223);
            (s >> 8) as f32 / (1 << 24) as f32 - 0.5
        })
        .collect()
}

/// GB/s of adding up a buffer larger than the caches: what a product of one column cannot be faster than.
fn read_speed() -> f64 {
    let data = vec![1u64; 16 << 20];
    let t = best(|| {
        let mut s = [0u64; 16];
        for c in data.chunks_exact(16) {
            for (s, v) in s.iter_mut().zip(c) {
                *s = s.wrapping_add(*v);
            }
        }
        black_box(s);
    });
    (data.len() * 8) as f64 / t / 1e9
}

/// One row of the tables: GB/s for one column, once with weights in memory and once in the caches, GFLOP/s for more.
fn product(dtype: DType, isa: Isa, k: Option<usize>, columns: &[usize]) -> Vec<String> {
    // As SmolLM2's embedding, or whole blocks.
    let k = k.unwrap_or(if dtype.block_len() == 256 { 768 } else { 576 });
    let shapes = [(1, 196_608 * 576 / k), (1, 512)].into_iter().chain(columns.iter().map(|&n| (n, 1536)));
    let mut cells = Vec::new();
    for (n, m) in shapes {
        let stride = dtype.row_bytes(k).unwrap_or(0);
        let mut row = vec![0; stride];
        quantize_row(dtype, &noise(k), &mut row).unwrap_or_else(|e| eprintln!("{e}"));
        let w = row.repeat(m);
        let x = noise(n * k);
        let mut q = vec![ActBlock::ZERO; n * act_blocks(k)];
        for (q, x) in q.chunks_exact_mut(act_blocks(k)).zip(x.chunks_exact(k)) {
            quantize_act(isa, x, q);
        }
        let mut y = vec![0f32; m * n];
        let mut room = Line::room(mul_mat::scratch_floats(isa, dtype, k, n));
        let mut scratch = Scratch::new(&mut room);
        let rows = Rows { data: w.as_ptr(), stride, dtype, k };
        let out = Out { data: y.as_mut_ptr(), stride: m };
        let t = best(|| {
            // SAFETY: w has m rows, x n columns, and y m times n elements.
            unsafe {
                if dtype.is_float() {
                    mul_mat_float(isa, rows, 0..m, x.as_ptr(), k, n, out)
                } else {
                    mul_mat(isa, rows, 0..m, &q, n, out, &mut scratch)
                }
            }
            black_box(out.data);
        });
        let speed = if n == 1 { w.len() as f64 } else { (2 * m * n * k) as f64 };
        cells.push(format!("{:.1}", speed / t / 1e9));
    }
    cells
}

/// GFLOP/s of attention: 3 heads of 64 share keys, `tokens` tokens see 1024 of them.
fn attend(isa: Isa, tokens: usize) -> f64 {
    let (d, n_kv, heads) = (64, 1024, 3);
    let kv: Vec<f16> = noise(n_kv * d).into_iter().map(f16::from_f32).collect();
    let rows = Rows { data: kv.as_ptr().cast(), stride: 2 * d, dtype: DType::F16, k: d };
    let n = tokens * heads;
    let q = noise(n * d);
    let mut out = vec![0f32; n * d];
    let queries: Vec<Query> = (0..n)
        .map(|i| {
            let (q, out) = (q[i * d..].as_ptr(), out[i * d..].as_mut_ptr());
            Query { q, out, keys: 0..n_kv, mask: None, sink: None }
        })
        .collect();
    let never = AtomicBool::new(false);
    let phase = if tokens > 1 { Phase::Prefill } else { Phase::Decode };
    let all = Heads { k: rows, v: rows, scale: 0.125, softcap: 0.0, phase, table: None, abort: &never };
    let mut room = Line::room(attn::scratch_floats(phase, d, d, n));
    let mut scratch = Scratch::new(&mut room);
    // SAFETY: all lengths as above.
    let t = best(|| unsafe { attention(isa, &all, &queries, &mut scratch) });
    (4 * n * n_kv * d) as f64 / t / 1e9
}

fn main() {
    let (numbers, wanted): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|a| a.contains('='));
    let chosen = |name: &str| wanted.is_empty() || wanted.iter().any(|w| w == name);
    let given = |key: &str| -> Option<Vec<usize>> {
        let list = numbers.iter().find_map(|a| a.strip_prefix(key))?;
        let parsed: Option<Vec<usize>> = list.split(',').map(|n| n.parse().ok().filter(|&n| n > 0)).collect();
        parsed.or_else(|| {
            eprintln!("{key}{list}: numbers above 0 are wanted, with commas between them");
            std::process::exit(2)
        })
    };
    let k = given("k=").and_then(|k| k.first().copied());
    let columns = given("n=").unwrap_or(vec![2, 3, 4, 8, 32, 512]);
    println!("reading memory: {:.1} GB/s", read_speed());
    let heads: String = columns.iter().map(|n| format!(" n={n} GFLOP/s |")).collect();
    println!("| type | isa | n=1 GB/s | n=1 in cache GB/s |{heads}");
    println!("|---|---|---|---|{}", "---|".repeat(columns.len()));
    for dtype in DType::ALL.into_iter().filter(|&d| (is_supported(d) || d.is_float()) && chosen(d.name())) {
        if k.is_some_and(|k| k % dtype.block_len() != 0) {
            eprintln!("{dtype} has blocks of {}, which k is no multiple of", dtype.block_len());
            continue;
        }
        for isa in Isa::available() {
            println!("| {dtype} | {} | {} |", isa.name(), product(dtype, isa, k, &columns).join(" | "));
        }
    }
    for isa in Isa::available().into_iter().filter(|_| chosen("rows")) {
        let attention = [1, 2, 4, 64].map(|tokens| format!("{:.1}", attend(isa, tokens))).join(", ");
        let x = noise(1 << 14);
        let mut q = vec![ActBlock::ZERO; act_blocks(x.len())];
        let quantize = best(|| quantize_act(isa, &x, &mut q));
        let (mut a, b) = (x.clone(), x.clone());
        let glu = best(|| rows::glu_gate(isa, GluKind::Swiglu, &mut a, &b));
        let mut a = x.clone();
        let norm = best(|| rows::norm(isa, NormKind::RmsNorm, 1e-5, &mut a));
        let mut a = x.clone();
        let softmax = best(|| rows::softmax(isa, &mut a, 1.0, None));
        let argmax = best(|| _ = black_box(rows::argmax(isa, &x)));
        let rate = |t: f64| x.len() as f64 / t / 1e9;
        println!(
            "{}: attention {attention} GFLOP/s for 1, 2, 4, 64 tokens; elements per ns: quantize {:.2}, \
             swiglu {:.2}, rms_norm {:.2}, softmax {:.2}, argmax {:.2}",
            isa.name(),
            rate(quantize),
            rate(glu),
            rate(norm),
            rate(softmax),
            rate(argmax),
        );
    }
}
