//! Kernels in CUDA C, compiled for four architectures, against the same in Rust.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]
mod common;

use common::{Card, floats, numbers};
use outboard_cuda_emulator::Kind;

const BASIC: [&str; 4] = ["basic.sm_61", "basic.sm_75", "basic.sm_80", "basic.sm_90"];

fn near(a: f32, b: f32, by: f32) -> bool {
    (a - b).abs() <= by * b.abs().max(1.0)
}

/// Round to nearest even, by trying the neighbours.
fn half(x: f32) -> u16 {
    let value = |bits: u16| {
        let (e, m) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
        let v = if e == 0 { m * 2f64.powi(-24) } else { (1.0 + m / 1024.0) * 2f64.powi(e - 15) };
        if bits >> 15 == 1 { -v } else { v }
    };
    let distance = |bits: u16| (value(bits) - f64::from(x)).abs();
    (0..0x7c00u16)
        .map(|bits| bits | if x.is_sign_negative() { 0x8000 } else { 0 })
        .min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1))))
        .unwrap()
}

#[test]
fn sums_by_shuffles_and_shared_memory() {
    for name in BASIC {
        let card = Card::with(0, name);
        let x: Vec<f32> = (0..5000).map(|i| (i % 17) as f32).collect();
        let (dx, dy) = (card.put(&x), card.empty::<f32>(4));
        let counts = card.run("reduce", 4, (256, 1), 0, &[&dx, &dy, &5000i32]);
        let sums: Vec<f32> = card.get(dy, 4).unwrap();
        assert_eq!(sums.iter().sum::<f32>(), x.iter().sum::<f32>());
        assert_eq!(counts.load_bytes, 5000 * 4);
        assert_eq!(counts.of(Kind::Shuffle), 4 * (8 + 1) * 5);
        assert_eq!(counts.bank_conflicts, 0);
    }
}

#[test]
fn a_block_of_values_the_other_way_round() {
    let card = Card::with(0, "basic.sm_80");
    let x: Vec<i32> = (0..192).collect();
    let (dx, dy) = (card.put(&x), card.empty::<i32>(192));
    card.run("reverse", 2, (96, 1), 96 * 4, &[&dx, &dy]);
    let y: Vec<i32> = card.get(dy, 192).unwrap();
    assert_eq!(y, (0..96).rev().chain((96..192).rev()).collect::<Vec<_>>());
}

#[test]
fn bank_conflicts_are_counted() {
    let card = Card::with(0, "basic.sm_80");
    let x: Vec<f32> = (0..1024).map(|i| i as f32).collect();
    let (dx, dy) = (card.put(&x), card.empty::<f32>(1024));
    for (name, conflicts) in [("transpose", 0), ("transpose_conflicts", 31 * 32)] {
        let counts = card.run(name, 1, (32, 32), 0, &[&dx, &dy]);
        assert_eq!(counts.bank_conflicts, conflicts, "{name}");
        let y: Vec<f32> = card.get(dy, 1024).unwrap();
        assert!((0..1024).all(|i| y[i] == x[i % 32 * 32 + i / 32]));
    }
}

#[test]
fn products_of_bytes_by_dp4a() {
    for name in BASIC {
        let card = Card::with(0, name);
        // As many words for every lane, so that no lane leaves the loop early.
        let (rows, words) = (7, 128);
        let a: Vec<i8> = numbers(rows * words * 4, 1).map(|n| n as i8).collect();
        let b: Vec<i8> = numbers(words * 4, 2).map(|n| n as i8).collect();
        let (da, db, dy) = (card.put(&a), card.put(&b), card.empty::<i32>(rows));
        let counts = card.run("dot", rows as u32, (32, 1), 0, &[&da, &db, &dy, &(words as i32)]);
        let wanted: Vec<i32> = a
            .chunks(words * 4)
            .map(|row| row.iter().zip(&b).map(|(x, y)| i32::from(*x) * i32::from(*y)).sum())
            .collect();
        assert_eq!(card.get::<i32>(dy, rows).unwrap(), wanted);
        assert_eq!(counts.of(Kind::Dot), 7 * 4);
    }
}

#[test]
fn lanes_part_and_come_together() {
    let card = Card::with(0, "basic.sm_75");
    let x: Vec<u32> = (1..=100).collect();
    let (dx, dy) = (card.put(&x), card.empty::<u32>(100));
    card.run("collatz", 2, (64, 1), 0, &[&dx, &dy, &100i32]);
    let steps = |mut v: u64| {
        (0..)
            .find(|_| {
                let end = v == 1;
                v = if v % 2 == 1 { 3 * v + 1 } else { v / 2 };
                end
            })
            .unwrap()
    };
    assert_eq!(card.get::<u32>(dy, 100).unwrap(), x.iter().map(|v| steps(u64::from(*v))).collect::<Vec<u32>>());
}

#[test]
fn lanes_that_return_early_are_not_waited_for() {
    let card = Card::with(0, "basic.sm_80");
    let (dx, dy) = (card.put(&(0..64).collect::<Vec<i32>>()), card.put(&[-1i32; 64]));
    card.run("early", 1, (64, 1), 0, &[&dx, &dy, &50i32]);
    assert_eq!(card.get::<i32>(dy, 64).unwrap(), (0..50).rev().chain([-1; 14]).collect::<Vec<_>>());
}

#[test]
fn calls_and_tables_of_jumps() {
    for name in BASIC {
        let card = Card::with(0, name);
        let ops: Vec<i32> = (0..64).map(|i| i % 9).collect();
        let (a, b) = (floats(64, 3), floats(64, 4));
        let (do_, da, db, dy) = (card.put(&ops), card.put(&a), card.put(&b), card.empty::<f32>(64));
        card.run("calculate", 2, (32, 1), 0, &[&do_, &da, &db, &dy]);
        let y: Vec<f32> = card.get(dy, 64).unwrap();
        for i in 0..64 {
            let (a, b) = (a[i], b[i]);
            let wanted = match ops[i] {
                0 => a + b,
                1 => a * b,
                2 => a / b,
                3 => a.min(b),
                4 => a.abs().sqrt(),
                5 => a.round_ties_even(),
                6 => a - b,
                7 => a % b,
                _ => -1.0,
            };
            assert_eq!(y[i], wanted, "{name} lane {i} op {}", ops[i]);
        }
    }
}

#[test]
fn atomics_on_shared_and_global_memory() {
    let card = Card::with(0, "basic.sm_90");
    let x: Vec<u32> = numbers(3000, 5).map(|n| n as u32).collect();
    let (dx, dy) = (card.put(&x), card.put(&[0u32; 16]));
    card.run("histogram", 3, (128, 1), 0, &[&dx, &dy, &3000i32]);
    let mut wanted = vec![0u32; 16];
    x.iter().for_each(|v| wanted[*v as usize % 16] += 1);
    assert_eq!(card.get::<u32>(dy, 16).unwrap(), wanted);
}

#[test]
fn halves_are_rounded_to_the_nearest() {
    let card = Card::with(0, "basic.sm_61");
    let x: Vec<u16> = (0..256).map(|i| (i * 120) as u16).collect();
    let (dx, dy, dz) = (card.put(&x), card.empty::<u16>(256), card.empty::<f32>(256));
    card.run("halves", 1, (256, 1), 0, &[&dx, &dy, &dz, &256i32]);
    let (y, z): (Vec<u16>, Vec<f32>) = (card.get(dy, 256).unwrap(), card.get(dz, 256).unwrap());
    for i in 0..256 {
        assert_eq!(half(z[i]), x[i]);
        assert_eq!(y[i], half(z[i] * 1.5), "{}", z[i] * 1.5);
    }
}

#[test]
fn functions_of_the_mathematical_library() {
    for name in BASIC {
        let card = Card::with(0, name);
        let x: Vec<f32> = floats(64, 6).iter().enumerate().map(|(i, v)| v * [1.0, 10.0, 1e4, 1e7][i % 4]).collect();
        let (dx, ds, dc, de) = (card.put(&x), card.empty::<f32>(64), card.empty::<f32>(64), card.empty::<f32>(64));
        let counts = card.run("waves", 1, (64, 1), 0, &[&dx, &ds, &dc, &de, &64i32]);
        assert!(counts.local_requests > 0);
        let (s, c, e): (Vec<f32>, Vec<f32>, Vec<f32>) =
            (card.get(ds, 64).unwrap(), card.get(dc, 64).unwrap(), card.get(de, 64).unwrap());
        for i in 0..64 {
            let v = f64::from(x[i]);
            assert!(near(s[i], v.sin() as f32, 1e-6) && near(c[i], v.cos() as f32, 1e-6), "{v}: {} {}", s[i], c[i]);
            let erf = |v: f64| {
                // A series that is long enough for what is not yet 1.
                let series: f64 = (0..60)
                    .map(|n| {
                        (-1f64).powi(n) * v.powi(2 * n + 1)
                            / ((1..=n).map(f64::from).product::<f64>() * f64::from(2 * n + 1))
                    })
                    .sum();
                if v.abs() > 3.0 { v.signum() } else { series * 2.0 / std::f64::consts::PI.sqrt() }
            };
            let wanted = (-v.abs() / 100.0).exp() + v.abs().ln_1p() + v.abs().powf(0.3) + v.tanh() + erf(v);
            assert!(near(e[i], wanted as f32, 1e-5), "{v}: {} for {wanted}", e[i]);
        }
    }
}

#[test]
fn sectors_of_wide_loads_and_of_strides() {
    let card = Card::with(0, "basic.sm_80");
    let (x, y) = (floats(1024, 7), floats(1024, 8));
    let (dx, dy, dz) = (card.put(&x), card.put(&y), card.empty::<f32>(64));
    let counts = card.run("axpy", 2, (128, 1), 0, &[&2f32, &dx, &dy]);
    assert_eq!((counts.load_requests, counts.load_sectors, counts.load_bytes), (16, 256, 8192));
    assert_eq!((counts.store_requests, counts.store_sectors, counts.store_bytes), (8, 128, 4096));
    let z: Vec<f32> = card.get(dy, 1024).unwrap();
    assert!((0..1024).all(|i| z[i] == 2f32.mul_add(x[i], y[i])));
    for (stride, sectors) in [(1, 8), (2, 16), (8, 64), (16, 64)] {
        let counts = card.run("strided", 1, (64, 1), 0, &[&dx, &dz, &stride]);
        assert_eq!((counts.load_sectors, counts.load_bytes), (sectors, 256), "stride {stride}");
    }
}

#[test]
fn constants_globals_and_structures() {
    let card = Card::with(0, "basic.sm_80");
    let dy = card.empty::<i32>(32);
    card.run("constants", 1, (32, 1), 0, &[&dy]);
    assert_eq!(card.get::<i32>(dy, 4).unwrap(), [8, 6, 9, 6]);
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Shape([i32; 6], i64);
    let dz = card.empty::<i64>(32);
    card.run("structure", 1, (32, 1), 0, &[&Shape([1, -2, 3, -4, 5, -6], 1 << 33), &dz]);
    assert_eq!(card.get::<i64>(dz, 6).unwrap(), [1, -2, 3, -4, 5, -6].map(|v| v << 33));
}

#[test]
fn votes_of_a_warp() {
    let card = Card::with(0, "basic.sm_80");
    let x: Vec<i32> = (0..32).map(|i| i - 10).collect();
    let (dx, dy) = (card.put(&x), card.empty::<u32>(32));
    card.run("votes", 1, (32, 1), 0, &[&dx, &dy]);
    let ballot = x.iter().enumerate().fold(0u32, |m, (i, v)| m | u32::from(*v > 0) << i);
    let wanted: Vec<u32> = (0..32)
        .map(|i: usize| {
            let up = if i % 8 >= 3 { x[i - 3] } else { x[i] };
            ballot ^ 1 << 1 ^ 1 << 2 ^ (up << 8) as u32
        })
        .collect();
    assert_eq!(card.get::<u32>(dy, 32).unwrap(), wanted);
}

#[test]
fn tensor_cores_with_fragments_from_shared_memory() {
    for name in ["matrix.sm_80", "matrix.sm_90"] {
        let card = Card::with(0, name);
        let k = 64usize;
        // Small numbers, so that every sum is exact.
        let value = |n: u64| n as f32 % 9.0 - 4.0;
        let (a, b): (Vec<f32>, Vec<f32>) =
            (numbers(16 * k, 9).map(value).collect(), numbers(k * 8, 10).map(value).collect());
        let bits = |v: &[f32]| v.iter().map(|x| half(*x)).collect::<Vec<u16>>();
        let (da, db, dc) = (card.put(&bits(&a)), card.put(&bits(&b)), card.empty::<f32>(128));
        let counts = card.run("product_f16", 1, (32, 1), 0, &[&da, &db, &dc, &(k as i32)]);
        let c: Vec<f32> = card.get(dc, 128).unwrap();
        for i in 0..128 {
            assert_eq!(c[i], (0..k).map(|j| a[i / 8 * k + j] * b[j * 8 + i % 8]).sum::<f32>(), "{i}");
        }
        assert_eq!((counts.of(Kind::Mma), counts.mma_products), (4, 16 * 8 * 64));
        let a: Vec<i8> = numbers(16 * k, 11).map(|n| n as i8).collect();
        let b: Vec<i8> = numbers(8 * k, 12).map(|n| n as i8).collect();
        let (da, db) = (card.put(&a), card.put(&b));
        card.run("product_s8", 1, (32, 1), 0, &[&da, &db, &dc, &(k as i32)]);
        let c: Vec<i32> = card.get(dc, 128).unwrap();
        for i in 0..128 {
            let wanted: i32 = (0..k).map(|j| i32::from(a[i / 8 * k + j]) * i32::from(b[i % 8 * k + j])).sum();
            assert_eq!(c[i], wanted, "{i}");
        }
    }
}

#[test]
fn tensor_cores_with_bf16_and_those_of_turing() {
    let card = Card::with(0, "matrix.sm_80");
    let small = |count, seed| numbers(count, seed).map(|n| n as f32 % 7.0 - 3.0).collect::<Vec<f32>>();
    let (a, b) = (small(256, 13), small(128, 14));
    let bits = |v: &[f32]| v.iter().map(|x| (x.to_bits() >> 16) as u16).collect::<Vec<u16>>();
    let (da, db, dc) = (card.put(&bits(&a)), card.put(&bits(&b)), card.empty::<f32>(128));
    card.run("product_bf16", 1, (32, 1), 0, &[&da, &db, &dc]);
    let c: Vec<f32> = card.get(dc, 128).unwrap();
    assert!((0..128).all(|i| c[i] == 1.0 + (0..16).map(|j| a[i / 8 * 16 + j] * b[i % 8 * 16 + j]).sum::<f32>()));

    let card = Card::with(0, "turing.sm_75");
    let (a, b): (Vec<i8>, Vec<i8>) =
        (numbers(128, 15).map(|n| n as i8).collect(), numbers(128, 16).map(|n| n as i8).collect());
    let (da, db, dc) = (card.put(&a), card.put(&b), card.empty::<i32>(64));
    card.run("product_s8", 1, (32, 1), 0, &[&da, &db, &dc]);
    let c: Vec<i32> = card.get(dc, 64).unwrap();
    for i in 0..64 {
        assert_eq!(c[i], (0..16).map(|j| i32::from(a[i / 8 * 16 + j]) * i32::from(b[i % 8 * 16 + j])).sum::<i32>());
    }
    let (a, b) = (small(128, 17), small(64, 18));
    let bits = |v: &[f32]| v.iter().map(|x| half(*x)).collect::<Vec<u16>>();
    let (da, db, dc) = (card.put(&bits(&a)), card.put(&bits(&b)), card.empty::<f32>(128));
    card.run("product_f16", 1, (32, 1), 0, &[&da, &db, &dc]);
    let c: Vec<f32> = card.get(dc, 128).unwrap();
    assert!((0..128).all(|i| c[i] == (0..8).map(|j| a[i / 8 * 8 + j] * b[i % 8 * 8 + j]).sum::<f32>()));
}

#[test]
fn copies_under_way_and_pairs_of_halves() {
    let card = Card::with(0, "matrix.sm_80");
    let x: Vec<i32> = (0..256).collect();
    let (dx, dy) = (card.put(&x), card.empty::<i32>(64));
    card.run("pipeline", 1, (32, 1), 0, &[&dx, &dy]);
    let wanted: Vec<i32> = (0..32).map(|i| (31 - i) * 4).chain((0..32).map(|i| (32 + 31 - i) * 4 + 1)).collect();
    assert_eq!(card.get::<i32>(dy, 64).unwrap(), wanted);

    let (a, b) = (floats(64, 19), floats(64, 20));
    let bits = |v: &[f32]| v.iter().map(|x| half(*x)).collect::<Vec<u16>>();
    let (ha, hb) = (bits(&a), bits(&b));
    let p: Vec<u16> = a[..32].iter().map(|x| (x.to_bits() >> 16) as u16).collect();
    let (da, db, dy, dp, dq) =
        (card.put(&ha), card.put(&hb), card.empty::<u16>(64), card.put(&p), card.empty::<u16>(32));
    card.run("pairs", 1, (32, 1), 0, &[&da, &db, &dy, &dp, &dq]);
    let value = |bits: u16| {
        let (e, m) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
        let v = if e == 0 { m * 2f64.powi(-24) } else { (1.0 + m / 1024.0) * 2f64.powi(e - 15) };
        if bits >> 15 == 1 { -v } else { v }
    };
    let y: Vec<u16> = card.get(dy, 64).unwrap();
    for i in 0..64 {
        let sum = value(half((value(ha[i]) + value(hb[i])) as f32));
        // Exact in f64; and no value here lies so close to the middle of two that f32 would round it there.
        assert_eq!(y[i], half((value(ha[i]) * value(hb[i]) + sum) as f32), "{i}");
    }
    let q: Vec<u16> = card.get(dq, 32).unwrap();
    for i in 0..32 {
        let exact = f32::from_bits(u32::from(p[i]) << 16) * 3.0;
        let rounded = (exact.to_bits() + 0x7fff + (exact.to_bits() >> 16 & 1)) >> 16;
        assert_eq!(u32::from(q[i]), rounded);
    }
}
