//! Instructions one by one, on 32 lanes of values that are likely to go wrong, against the same in Rust.
use super::region::{Memory, Region};
use super::{Launch, Random, run};
use crate::code::{Layout, lower, num};
use crate::ptx::parse;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const BASE: u64 = 1 << 40;
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    31,
    32,
    33,
    63,
    64,
    0x7f,
    0x80,
    0x7fff,
    0x8000,
    0x7fff_ffff,
    0x8000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
];

fn class(ty: &str) -> (&str, u32) {
    match ty {
        "f16" | "bf16" => ("b16", 16),
        "f16x2" => ("b32", 32),
        other => (other, other[1..].parse().unwrap()),
    }
}

/// Runs `instruction` with registers %a, %b, %c, %e of these types, and gives %d of every lane.
fn evaluate(instruction: &str, out: &str, types: &[&str], values: &[[u64; 32]]) -> [u64; 32] {
    let mut body = String::new();
    let mut loads = String::new();
    for (i, (ty, name)) in types.iter().zip(["a", "b", "c", "e"]).enumerate() {
        let (ty, _) = class(ty);
        body += &format!(".reg .{ty} %{name};\n");
        loads += &format!("ld.global.{ty} %{name}, [%at+{}];\n", (i + 1) * 256);
    }
    let (out, bits) = class(out);
    let text = format!(
        ".version 8.2\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{\n.reg .b64 %at;\n.reg .b64 %o;\n.reg .u32 %t;\n\
         .reg .pred %p;\n.reg .{out} %d;\n{body}ld.param.u64 %at, [p];\nmov.u32 %t, %tid.x;\nmul.wide.u32 %o, %t, 8;\nadd.s64 %at, %at, %o;\n\
         {loads}{instruction}\nst.global.{out} [%at], %d;\nret;\n}}\n"
    );
    let module = parse(&text).unwrap_or_else(|e| panic!("{instruction}: {e}"));
    let kernel = lower(&module, &module.functions[0], &Layout::new()).unwrap_or_else(|e| panic!("{instruction}: {e}"));
    let region = Region::device(0, BASE, 8192).unwrap();
    for (i, lanes) in values.iter().enumerate() {
        for (lane, value) in lanes.iter().enumerate() {
            region.store(BASE + (i as u64 + 1) * 256 + lane as u64 * 8, 8, u128::from(*value));
        }
    }
    for lane in 0..32 {
        region.store(BASE + lane * 8, 8, 0);
    }
    let region = Arc::new(region);
    let memory = Memory { regions: Arc::new(vec![region.clone()]), devices: vec![true] };
    let params = BASE.to_le_bytes().to_vec();
    let launch =
        Launch { kernel: Arc::new(kernel), grid: [1; 3], block: [32, 1, 1], dynamic_shared: 0, params, seed: 1 };
    let outcome = run(&launch, &memory, 1, &AtomicBool::new(false));
    assert!(outcome.findings.is_empty(), "{instruction}: {:?}", outcome.findings);
    std::array::from_fn(|lane| region.load(BASE + lane as u64 * 8, 8) as u64 & (u64::MAX >> (64 - bits)))
}

/// Rounds of values for an operand: edges against one another first, then whatever comes.
fn values(round: u64, operand: u64, small: bool) -> [u64; 32] {
    let mut random = Random(round * 7 + operand);
    std::array::from_fn(|lane| {
        let edge = EDGES[(lane + (operand * (round + 1)) as usize * 5) % 16];
        let value = match (round, lane % 3) {
            (0 | 1, _) => {
                if lane < 16 {
                    edge
                } else {
                    edge.wrapping_neg()
                }
            }
            (_, 0) => EDGES[(random.next() % 16) as usize],
            _ => random.next() >> (random.next() % 60),
        };
        if small { value % 80 } else { value }
    })
}

/// Compares an integer instruction with a function of its operands. A type in capitals has small values (shifts, positions).
fn check(instruction: &str, out: &str, types: &[&str], wanted: impl Fn([u64; 4]) -> u64) {
    let lower: Vec<String> = types.iter().map(|t| t.to_lowercase()).collect();
    let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
    for round in 0..6 {
        let operands: Vec<[u64; 32]> =
            (0u64..).zip(types).map(|(i, t)| values(round, i, t.starts_with(char::is_uppercase))).collect();
        let got = evaluate(instruction, out, &lower, &operands);
        for lane in 0..32 {
            let mut given = [0; 4];
            for (given, (values, ty)) in given.iter_mut().zip(operands.iter().zip(&lower)) {
                *given = values[lane] & (u64::MAX >> (64 - class(ty).1));
            }
            let mask = u64::MAX >> (64 - class(out).1);
            assert_eq!(got[lane], wanted(given) & mask, "{instruction} of {given:x?}: {:#x}", got[lane]);
        }
    }
}

fn s32(x: u64) -> i64 {
    i64::from(x as i32)
}

#[test]
fn sums_and_products_of_integers() {
    check("add.s32 %d, %a, %b;", "b32", &["b32", "b32"], |[a, b, ..]| a.wrapping_add(b));
    check("add.u16 %d, %a, %b;", "b16", &["b16", "b16"], |[a, b, ..]| a + b);
    check("sub.s64 %d, %a, %b;", "b64", &["b64", "b64"], |[a, b, ..]| a.wrapping_sub(b));
    check("add.sat.s32 %d, %a, %b;", "b32", &["b32", "b32"], |[a, b, ..]| {
        (s32(a) + s32(b)).clamp(-0x8000_0000, 0x7fff_ffff) as u64
    });
    check("mul.lo.s32 %d, %a, %b;", "b32", &["b32", "b32"], |[a, b, ..]| a.wrapping_mul(b));
    check("mul.hi.s32 %d, %a, %b;", "b32", &["b32", "b32"], |[a, b, ..]| ((s32(a) * s32(b)) >> 32) as u64);
    check("mul.hi.u32 %d, %a, %b;", "b32", &["b32", "b32"], |[a, b, ..]| (a * b) >> 32);
    check("mul.hi.u64 %d, %a, %b;", "b64", &["b64", "b64"], |[a, b, ..]| {
        ((u128::from(a) * u128::from(b)) >> 64) as u64
    });
    check("mul.hi.s64 %d, %a, %b;", "b64", &["b64", "b64"], |[a, b, ..]| {
        ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64
    });
    check("mul.wide.s32 %d, %a, %b;", "b64", &["b32", "b32"], |[a, b, ..]| (s32(a) * s32(b)) as u64);
    check("mul.wide.u16 %d, %a, %b;", "b32", &["b16", "b16"], |[a, b, ..]| a * b);
    check("mul.wide.s16 %d, %a, %b;", "b32", &["b16", "b16"], |[a, b, ..]| {
        (i64::from(a as i16) * i64::from(b as i16)) as u64
    });
    check("mad.lo.s32 %d, %a, %b, %c;", "b32", &["b32"; 3], |[a, b, c, _]| a.wrapping_mul(b).wrapping_add(c));
    check("mad.wide.u32 %d, %a, %b, %c;", "b64", &["b32", "b32", "b64"], |[a, b, c, _]| (a * b).wrapping_add(c));
    check("mad.hi.u32 %d, %a, %b, %c;", "b32", &["b32"; 3], |[a, b, c, _]| ((a * b) >> 32) + c);
    check(
        "div.s32 %d, %a, %b;",
        "b32",
        &["b32", "b32"],
        |[a, b, ..]| if b == 0 { u64::MAX } else { (s32(a) / s32(b)) as u64 },
    );
    check("rem.u32 %d, %a, %b;", "b32", &["b32", "b32"], |[a, b, ..]| if b == 0 { a } else { a % b });
    check("div.u64 %d, %a, %b;", "b64", &["b64", "b64"], |[a, b, ..]| a.checked_div(b).unwrap_or(u64::MAX));
    check("min.s32 %d, %a, %b;", "b32", &["b32", "b32"], |[a, b, ..]| s32(a).min(s32(b)) as u64);
    check("max.u32 %d, %a, %b;", "b32", &["b32", "b32"], |[a, b, ..]| a.max(b));
    check("max.s64 %d, %a, %b;", "b64", &["b64", "b64"], |[a, b, ..]| (a as i64).max(b as i64) as u64);
    check("abs.s32 %d, %a;", "b32", &["b32"], |[a, ..]| s32(a).unsigned_abs());
    check("neg.s16 %d, %a;", "b16", &["b16"], |[a, ..]| a.wrapping_neg());
}

#[test]
fn bits_of_integers() {
    check("and.b32 %d, %a, %b;", "b32", &["b32", "b32"], |[a, b, ..]| a & b);
    check("xor.b64 %d, %a, %b;", "b64", &["b64", "b64"], |[a, b, ..]| a ^ b);
    check("not.b16 %d, %a;", "b16", &["b16"], |[a, ..]| !a);
    check("shl.b32 %d, %a, %b;", "b32", &["b32", "B32"], |[a, b, ..]| if b < 32 { a << b } else { 0 });
    check("shr.u64 %d, %a, %b;", "b64", &["b64", "B32"], |[a, b, ..]| if b < 64 { a >> b } else { 0 });
    check("shr.s32 %d, %a, %b;", "b32", &["b32", "B32"], |[a, b, ..]| (s32(a) >> b.min(31)) as u64);
    check("shf.l.wrap.b32 %d, %a, %b, %c;", "b32", &["b32", "b32", "b32"], |[a, b, c, _]| {
        ((b << 32 | a) << (c % 32)) >> 32
    });
    check("shf.r.clamp.b32 %d, %a, %b, %c;", "b32", &["b32", "b32", "B32"], |[a, b, c, _]| (b << 32 | a) >> c.min(32));
    check("lop3.b32 %d, %a, %b, %c, 0xe8;", "b32", &["b32"; 3], |[a, b, c, _]| (a & b) | (b & c) | (a & c));
    check("lop3.b32 %d, %a, %b, %c, 0x96;", "b32", &["b32"; 3], |[a, b, c, _]| a ^ b ^ c);
    check("lop3.b32 %d, %a, %b, %c, 0x2a;", "b32", &["b32"; 3], |[a, b, c, _]| !(a & b) & c);
    check("popc.b64 %d, %a;", "b32", &["b64"], |[a, ..]| u64::from(a.count_ones()));
    check("clz.b32 %d, %a;", "b32", &["b32"], |[a, ..]| u64::from((a as u32).leading_zeros()));
    check("brev.b32 %d, %a;", "b32", &["b32"], |[a, ..]| (0..32).fold(0, |r, i| r | (a >> i & 1) << (31 - i)));
    check("bfind.u32 %d, %a;", "b32", &["b32"], |[a, ..]| (0..32).rev().find(|i| a >> i & 1 == 1).unwrap_or(u64::MAX));
    // The algorithm that the PTX ISA gives for bfe, bit by bit.
    let bfe = |a: u64, pos: u64, len: u64, bits: u64, signed: bool| {
        let sign = if signed && len > 0 { a >> (pos + len - 1).min(bits - 1) & 1 } else { 0 };
        (0..bits).fold(0, |r, i| r | if i < len && pos + i < bits { a >> (pos + i) & 1 } else { sign } << i)
    };
    check("bfe.u32 %d, %a, %b, %c;", "b32", &["b32", "B32", "B32"], |[a, p, n, _]| bfe(a, p, n, 32, false));
    check("bfe.s32 %d, %a, %b, %c;", "b32", &["b32", "B32", "B32"], |[a, p, n, _]| bfe(a, p, n, 32, true));
    check("bfe.s64 %d, %a, %b, %c;", "b64", &["b64", "B32", "B32"], |[a, p, n, _]| bfe(a, p, n, 64, true));
    let bfi = |a: u64, b: u64, pos: u64, len: u64, bits: u64| {
        (0..bits).fold(0, |r, i| r | if i >= pos && i < pos + len { a >> (i - pos) & 1 } else { b >> i & 1 } << i)
    };
    check("bfi.b32 %d, %a, %b, %c, %e;", "b32", &["b32", "b32", "B32", "B32"], |[a, b, p, n]| bfi(a, b, p, n, 32));
    check("bfi.b64 %d, %a, %b, %c, %e;", "b64", &["b64", "b64", "B32", "B32"], |[a, b, p, n]| bfi(a, b, p, n, 64));
    check("prmt.b32 %d, %a, %b, %c;", "b32", &["b32"; 3], |[a, b, c, _]| {
        let bytes = (b << 32 | a).to_le_bytes();
        (0..4).fold(0, |r, i| {
            let byte = bytes[(c >> (4 * i) & 7) as usize];
            let byte = if c >> (4 * i + 3) & 1 == 0 {
                byte
            } else if byte >= 0x80 {
                0xff
            } else {
                0
            };
            r | u64::from(byte) << (8 * i)
        })
    });
    let byte = |x: u64, i: u32, signed: bool| {
        let byte = (x >> (8 * i)) as u8;
        if signed { i64::from(byte as i8) } else { i64::from(byte) }
    };
    for (name, a_signed, b_signed) in
        [("s32.s32", true, true), ("u32.u32", false, false), ("s32.u32", true, false), ("u32.s32", false, true)]
    {
        check(&format!("dp4a.{name} %d, %a, %b, %c;"), "b32", &["b32"; 3], |[a, b, c, _]| {
            (0..4).map(|i| byte(a, i, a_signed) * byte(b, i, b_signed)).sum::<i64>().wrapping_add(c as i64) as u64
        });
    }
    check("mov.b64 %d, {%a, %b};", "b64", &["b32", "b32"], |[a, b, ..]| b << 32 | a);
    check("{.reg .b32 %low; mov.b64 {%low, %d}, %a;}", "b32", &["b64"], |[a, ..]| a >> 32);
    check("{.reg .b16 %h; mov.b32 {%h, %d}, %a;}", "b16", &["b32"], |[a, ..]| a >> 16);
    check(
        "setp.lt.s32 %p, %a, %b; selp.b32 %d, %c, 7, %p;",
        "b32",
        &["b32"; 3],
        |[a, b, c, _]| if s32(a) < s32(b) { c } else { 7 },
    );
    check(
        "setp.hi.u64 %p, %a, %b; selp.b32 %d, 1, 2, %p;",
        "b32",
        &["b64", "b64"],
        |[a, b, ..]| if a > b { 1 } else { 2 },
    );
}

#[test]
fn conversions_of_integers() {
    check("cvt.s64.s32 %d, %a;", "b64", &["b32"], |[a, ..]| s32(a) as u64);
    check("cvt.u32.u64 %d, %a;", "b32", &["b64"], |[a, ..]| a);
    check("cvt.s32.s8 %d, %a;", "b32", &["b32"], |[a, ..]| i64::from(a as i8) as u64);
    check("cvt.u16.u8 %d, %a;", "b16", &["b16"], |[a, ..]| a & 0xff);
    check("cvt.sat.s8.s32 %d, %a;", "b32", &["b32"], |[a, ..]| s32(a).clamp(-128, 127) as u64);
    check("cvt.sat.u8.s32 %d, %a;", "b32", &["b32"], |[a, ..]| s32(a).clamp(0, 255) as u64);
    check("cvt.rn.f32.s32 %d, %a;", "b32", &["b32"], |[a, ..]| u64::from((s32(a) as f32).to_bits()));
    check("cvt.rn.f32.u64 %d, %a;", "b32", &["b64"], |[a, ..]| u64::from((a as f32).to_bits()));
    check("cvt.rn.f32.s64 %d, %a;", "b32", &["b64"], |[a, ..]| u64::from((a as i64 as f32).to_bits()));
    check("cvt.rn.f64.s64 %d, %a;", "b64", &["b64"], |[a, ..]| (a as i64 as f64).to_bits());
    check("cvt.rz.f32.u32 %d, %a;", "b32", &["b32"], |[a, ..]| {
        let near = a as f32;
        u64::from(near.to_bits()) - u64::from(f64::from(near) > a as f64)
    });
}

fn floats(round: u64, operand: u64) -> [u64; 32] {
    let special = [
        0f32,
        -0.0,
        1.0,
        -1.5,
        0.5,
        2.5,
        3.5,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1e-40,
        3.4e38,
        2147483648.0,
        -3e9,
        65519.0,
        1e-7,
    ];
    let mut random = Random(round * 3 + operand);
    std::array::from_fn(|lane| {
        let value = match round {
            0 => special[(lane + lane / 16 * (operand as usize + 1)) % 16],
            1 => special[(lane * (operand as usize + 1) + operand as usize) % 16],
            2 => (random.next() as i32 as f32) / 1e6,
            _ => f32::from_bits(random.next() as u32),
        };
        u64::from(value.to_bits())
    })
}

/// Like `check` for f32: NaN is NaN whatever its bits.
fn check_float(instruction: &str, count: usize, wanted: impl Fn([f32; 3]) -> f32) {
    for round in 0..8 {
        let operands: Vec<[u64; 32]> = (0..count as u64).map(|i| floats(round, i)).collect();
        let got = evaluate(instruction, "f32", &vec!["f32"; count], &operands);
        for lane in 0..32 {
            let mut given = [0f32; 3];
            given.iter_mut().zip(&operands).for_each(|(g, o)| *g = f32::from_bits(o[lane] as u32));
            let (got, wanted) = (f32::from_bits(got[lane] as u32), wanted(given));
            assert!(
                got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan(),
                "{instruction} of {given:?}: {got:?} for {wanted:?}"
            );
        }
    }
}

#[test]
fn arithmetic_of_f32() {
    check_float("add.f32 %d, %a, %b;", 2, |[a, b, _]| a + b);
    check_float("mul.rn.f32 %d, %a, %b;", 2, |[a, b, _]| a * b);
    check_float("fma.rn.f32 %d, %a, %b, %c;", 3, |[a, b, c]| a.mul_add(b, c));
    check_float("div.rn.f32 %d, %a, %b;", 2, |[a, b, _]| a / b);
    check_float("sqrt.rn.f32 %d, %a;", 1, |[a, ..]| a.sqrt());
    check_float("neg.f32 %d, %a;", 1, |[a, ..]| -a);
    check_float("add.ftz.f32 %d, %a, %b;", 2, |[a, b, _]| num::flush(num::flush(a) + num::flush(b)));
    check_float("mul.sat.f32 %d, %a, %b;", 2, |[a, b, _]| if a * b > 0.0 { (a * b).min(1.0) } else { 0.0 });
    let lower = |a: f32, b: f32| {
        if a.is_nan() {
            b
        } else if b.is_nan() {
            a
        } else if a == 0.0 && b == 0.0 {
            if a.is_sign_negative() { a } else { b }
        } else if a < b {
            a
        } else {
            b
        }
    };
    check_float("min.f32 %d, %a, %b;", 2, |[a, b, _]| lower(a, b));
    check_float("max.f32 %d, %a, %b;", 2, |[a, b, _]| -lower(-a, -b));
    check_float("copysign.f32 %d, %a, %b;", 2, |[a, b, _]| b.copysign(a));
    check_float("cvt.rni.f32.f32 %d, %a;", 1, |[a, ..]| a.round_ties_even());
    check_float("cvt.sat.f32.f32 %d, %a;", 1, |[a, ..]| if a > 0.0 { a.min(1.0) } else { 0.0 });
    check_float(
        "setp.ltu.f32 %p, %a, %b; selp.f32 %d, %a, 0f3F800000, %p;",
        2,
        |[a, b, _]| if a >= b { 1.0 } else { a },
    );
    check_float("setp.eq.ftz.f32 %p, %a, 0f00000000; selp.f32 %d, 0f3F800000, %a, %p;", 1, |[a, ..]| {
        if num::flush(a) == 0.0 { 1.0 } else { a }
    });
    check_float("setp.le.ftz.f32 %p, %a, %b; selp.f32 %d, %a, %b, %p;", 2, |[a, b, _]| {
        if num::flush(a) <= num::flush(b) { a } else { b }
    });
    // Rounded towards zero: the nearest, or what lies before it. What f64 loses of the sum decides if the nearest is the sum.
    check_float("add.rz.f32 %d, %a, %b;", 2, |[a, b, _]| {
        let (near, sum) = (a + b, f64::from(a) + f64::from(b));
        let (large, small) = if a.abs() > b.abs() { (a, b) } else { (b, a) };
        let lost = f64::from(small) - (sum - f64::from(large));
        let exact = f64::from(near) == sum;
        let beyond = if near.is_infinite() {
            sum.is_finite()
        } else {
            f64::from(near).abs() > sum.abs() || exact && lost * sum < 0.0
        };
        if beyond { f32::from_bits(near.to_bits() - 1) } else { near }
    });
}

#[test]
fn f32_to_integers_and_halves() {
    for (instruction, wanted) in [
        ("cvt.rni.s32.f32 %d, %a;", (|a| a.round_ties_even() as i32 as u32) as fn(f32) -> u32),
        ("cvt.rzi.s32.f32 %d, %a;", |a| a as i32 as u32),
        ("cvt.rmi.s32.f32 %d, %a;", |a| a.floor() as i32 as u32),
        ("cvt.rpi.u32.f32 %d, %a;", |a| a.ceil() as u32),
        ("cvt.rni.s8.f32 %d, %a;", |a| i32::from(a.round_ties_even() as i8) as u32),
        ("cvt.rzi.u8.f32 %d, %a;", |a| u32::from(a as u8)),
    ] {
        for round in 0..8 {
            let a = floats(round, 0);
            let got = evaluate(instruction, "b32", &["f32"], &[a]);
            for lane in 0..32 {
                let given = f32::from_bits(a[lane] as u32);
                assert_eq!(got[lane] as u32, wanted(given), "{instruction} of {given:?}");
            }
        }
    }
}

/// Every f16: its value by the definition, and back; and the middle of each two goes to the even one.
#[test]
fn halves_by_their_definition() {
    let value = |bits: u16| {
        let (e, m) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
        if e == 0 { m * 2f64.powi(-24) } else { (1.0 + m / 1024.0) * 2f64.powi(e - 15) }
    };
    for bits in 0..0x7c00u16 {
        assert_eq!(f64::from(num::f16(bits)), value(bits));
        assert_eq!(f64::from(num::f16(bits | 0x8000)), -value(bits));
        assert_eq!(num::to_f16(value(bits), num::Round::Near), bits);
        let next = if bits == 0x7bff { 65536.0 } else { value(bits + 1) };
        let middle = (value(bits) + next) / 2.0;
        let even = if bits % 2 == 0 { bits } else { bits + 1 };
        assert_eq!(num::to_f16(middle, num::Round::Near), even, "{bits:#x}");
        assert_eq!(num::to_f16(middle, num::Round::Zero), bits);
        assert_eq!(num::to_f16(-middle, num::Round::Down), (bits + 1) | 0x8000);
        assert_eq!(num::to_f16(f64::from_bits(middle.to_bits() + 1), num::Round::Near), bits + 1);
    }
    assert!(num::f16(0x7c00).is_infinite() && num::f16(0x7c01).is_nan());
    assert_eq!(num::to_f16(f64::NAN, num::Round::Near), 0x7fff);
}

/// A sum that a rounding in between would get wrong: 1 + 2^-11 + 2^-60 is beyond the middle of two f16.
#[test]
fn fused_products_of_halves_are_rounded_once() {
    let tiny = num::to_f16(2f64.powi(-24), num::Round::Near);
    // a b = 2^-11 (2^-13 2^2) + ... : 0x3c00 is 1, and c is 1.
    let a = num::to_f16(2f64.powi(-11), num::Round::Near);
    let one = 0x3c00u16;
    assert_eq!(num::to_f16(num::add_odd(f64::from(num::f16(a)), 1.0), num::Round::Near), one);
    let more = num::add_odd(2f64.powi(-11) + 2f64.powi(-40), 1.0);
    assert_eq!(num::to_f16(more, num::Round::Near), one + 1);
    let far = num::add_odd(num::add_odd(2f64.powi(-11), 2f64.powi(-70)), 1.0);
    assert_eq!(num::to_f16(far, num::Round::Near), one + 1);
    let fused = evaluate(
        "fma.rn.f16 %d, %a, %b, %c;",
        "f16",
        &["f16"; 3],
        &[[u64::from(tiny); 32], [0x3c00; 32], [0x3c00; 32]],
    );
    assert_eq!(fused, [0x3c00; 32]);
    let pairs = evaluate("add.f16x2 %d, %a, %b;", "f16x2", &["f16x2"; 2], &[[0x3c00_4000; 32], [0x3c00_bc00; 32]]);
    assert_eq!(pairs, [0x4000_3c00; 32]);
    let brain = evaluate("fma.rn.bf16 %d, %a, %b, %c;", "bf16", &["bf16"; 3], &[[0x3f81; 32], [0x3f81; 32], [0; 32]]);
    assert_eq!(brain, [0x3f82; 32]);
}
