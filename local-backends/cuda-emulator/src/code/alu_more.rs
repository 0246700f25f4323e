//! Bits of integers: logic, shifts, fields, permutations, products of bytes.
use super::alu::{Alu, plain};
use super::lanes::{lanes, unsigned};
use super::mnemonic::Mnemonic;
use crate::count::Kind;
use crate::ptx::Ty;

/// Arithmetic on bits, whatever the type says of a sign (but for `shr`, `bfe` and `bfind`).
pub(super) fn select(m: &mut Mnemonic<'_>, ty: Ty) -> Option<Alu> {
    let integer = |run, src: &[Ty]| Some(Alu::new(run, ty, src, Kind::Integer));
    let narrow = |run| Some(Alu::new(run, Ty::U(32), &[ty], Kind::Integer));
    match m.base {
        "mov" => Some(Alu::new(unsigned!(ty, |a| a), ty, &[ty], Kind::Move)),
        "and" => integer(unsigned!(ty, |a, b| a & b), &[ty, ty]),
        "or" => integer(unsigned!(ty, |a, b| a | b), &[ty, ty]),
        "xor" => integer(unsigned!(ty, |a, b| a ^ b), &[ty, ty]),
        "not" => integer(unsigned!(ty, |a| !a), &[ty]),
        "cnot" => integer(unsigned!(ty, |a| (a == 0).into()), &[ty]),
        "shl" | "shr" => shift(m, ty),
        "shf" => funnel(m, ty),
        "bfe" => field(ty),
        "bfi" => insert(ty),
        "lop3" if ty == Ty::B(32) => {
            integer(lanes!(u32 = |a: u32, b: u32, c: u32, lut: u32| lop3(a, b, c, lut)), &[ty; 4])
        }
        "popc" => narrow(match ty {
            Ty::B(32) => lanes!(u32 = |a: u32| a.count_ones()),
            Ty::B(64) => lanes!(u32 = |a: u64| a.count_ones()),
            _ => return None,
        }),
        "clz" => narrow(match ty {
            Ty::B(32) => lanes!(u32 = |a: u32| a.leading_zeros()),
            Ty::B(64) => lanes!(u32 = |a: u64| a.leading_zeros()),
            _ => return None,
        }),
        "brev" => integer(unsigned!(ty, |a| a.reverse_bits()), &[ty]),
        "bfind" => find(m, ty),
        "prmt" if ty == Ty::B(32) => integer(lanes!(u32 = |a: u32, b: u32, c: u32| permute(a, b, c)), &[ty, ty, ty]),
        "dp4a" => dot(m),
        _ => None,
    }
}

fn shift(m: &Mnemonic<'_>, ty: Ty) -> Option<Alu> {
    let run = match (m.base, ty) {
        ("shl", _) => match plain(ty) {
            Ty::U(16) => lanes!(u16 = |a: u16, n: u32| a.checked_shl(n).unwrap_or(0)),
            Ty::U(32) => lanes!(u32 = |a: u32, n: u32| a.checked_shl(n).unwrap_or(0)),
            Ty::U(64) => lanes!(u64 = |a: u64, n: u32| a.checked_shl(n).unwrap_or(0)),
            _ => return None,
        },
        (_, Ty::S(16)) => lanes!(i16 = |a: i16, n: u32| a >> n.min(15)),
        (_, Ty::S(32)) => lanes!(i32 = |a: i32, n: u32| a >> n.min(31)),
        (_, Ty::S(64)) => lanes!(i64 = |a: i64, n: u32| a >> n.min(63)),
        (_, Ty::U(16) | Ty::B(16)) => lanes!(u16 = |a: u16, n: u32| a.checked_shr(n).unwrap_or(0)),
        (_, Ty::U(32) | Ty::B(32)) => lanes!(u32 = |a: u32, n: u32| a.checked_shr(n).unwrap_or(0)),
        (_, Ty::U(64) | Ty::B(64)) => lanes!(u64 = |a: u64, n: u32| a.checked_shr(n).unwrap_or(0)),
        _ => return None,
    };
    Some(Alu::new(run, ty, &[ty, Ty::U(32)], Kind::Integer))
}

/// `shf`: 32 bits out of 64, `a` being the low half.
fn funnel(m: &mut Mnemonic<'_>, ty: Ty) -> Option<Alu> {
    fn joined(a: u32, b: u32) -> u64 {
        u64::from(a) | u64::from(b) << 32
    }
    if ty != Ty::B(32) {
        return None;
    }
    let run = match (m.any(&["l", "r"])?, m.any(&["wrap", "clamp"])?) {
        ("l", "wrap") => lanes!(u32 = |a: u32, b: u32, n: u32| ((joined(a, b) << (n & 31)) >> 32) as u32),
        ("l", _) => lanes!(u32 = |a: u32, b: u32, n: u32| ((joined(a, b) << n.min(32)) >> 32) as u32),
        (_, "wrap") => lanes!(u32 = |a: u32, b: u32, n: u32| (joined(a, b) >> (n & 31)) as u32),
        _ => lanes!(u32 = |a: u32, b: u32, n: u32| (joined(a, b) >> n.min(32)) as u32),
    };
    Some(Alu::new(run, ty, &[ty, ty, Ty::U(32)], Kind::Integer))
}

/// A field of `len` bits from bit `pos` on; a sign goes up from its last bit, or from the value's where the field reaches beyond it.
fn extract(value: u64, bits: u32, signed: bool, pos: u32, len: u32) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    if len == 0 {
        return 0;
    }
    let sign = signed && value >> (pos + len - 1).min(bits - 1) & 1 == 1;
    let filled = |x: u64, from: u32| if sign && from < 64 { x | u64::MAX << from } else { x };
    let value = filled(value, bits);
    let shifted = if pos < 64 { filled(value >> pos, 64 - pos) } else { filled(0, 0) };
    let kept = if len < 64 { shifted & ((1 << len) - 1) } else { shifted };
    filled(kept, len)
}

fn field(ty: Ty) -> Option<Alu> {
    let run = match ty {
        Ty::U(32) => lanes!(u32 = |a: u32, p: u32, n: u32| extract(u64::from(a), 32, false, p, n) as u32),
        Ty::S(32) => lanes!(u32 = |a: u32, p: u32, n: u32| extract(u64::from(a), 32, true, p, n) as u32),
        Ty::U(64) => lanes!(u64 = |a: u64, p: u32, n: u32| extract(a, 64, false, p, n)),
        Ty::S(64) => lanes!(u64 = |a: u64, p: u32, n: u32| extract(a, 64, true, p, n)),
        _ => return None,
    };
    Some(Alu::new(run, ty, &[ty, Ty::U(32), Ty::U(32)], Kind::Integer))
}

/// `a` put into `b` at a field.
fn inserted(a: u64, b: u64, pos: u32, len: u32) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    let mask = if len >= 64 { u64::MAX } else { (1 << len) - 1 }.checked_shl(pos).unwrap_or(0);
    (a.checked_shl(pos).unwrap_or(0) & mask) | (b & !mask)
}

fn insert(ty: Ty) -> Option<Alu> {
    let run = match ty {
        Ty::B(32) => {
            lanes!(u32 = |a: u32, b: u32, p: u32, n: u32| inserted(u64::from(a), u64::from(b), p, n) as u32)
        }
        Ty::B(64) => lanes!(u64 = |a: u64, b: u64, p: u32, n: u32| inserted(a, b, p, n)),
        _ => return None,
    };
    Some(Alu::new(run, ty, &[ty, ty, Ty::U(32), Ty::U(32)], Kind::Integer))
}

/// Any function of three bits, as a table of 8.
#[inline(always)]
fn lop3(a: u32, b: u32, c: u32, lut: u32) -> u32 {
    let mut result = 0;
    for i in 0..8u32 {
        let chosen = 0u32.wrapping_sub(lut >> i & 1);
        let (x, y, z) =
            (a ^ !0u32.wrapping_sub(i >> 2 & 1), b ^ !0u32.wrapping_sub(i >> 1 & 1), c ^ !0u32.wrapping_sub(i & 1));
        result |= chosen & x & y & z;
    }
    result
}

/// `bfind`: the highest bit that differs from the sign, all ones if there is none.
fn find(m: &mut Mnemonic<'_>, ty: Ty) -> Option<Alu> {
    let run = match (ty, m.take("shiftamt")) {
        (Ty::U(32), false) => lanes!(u32 = |a: u32| 31u32.wrapping_sub(a.leading_zeros())),
        (Ty::U(32), true) => lanes!(u32 = |a: u32| if a == 0 { !0 } else { a.leading_zeros() }),
        (Ty::S(32), false) => lanes!(u32 = |a: u32| 31u32.wrapping_sub((a ^ (a as i32 >> 31) as u32).leading_zeros())),
        (Ty::U(64), false) => lanes!(u32 = |a: u64| 63u32.wrapping_sub(a.leading_zeros())),
        _ => return None,
    };
    Some(Alu::new(run, Ty::U(32), &[ty], Kind::Integer))
}

/// `prmt` without a mode: four bytes of eight, or the sign of one.
#[inline(always)]
fn permute(a: u32, b: u32, select: u32) -> u32 {
    let all = u64::from(a) | u64::from(b) << 32;
    let mut result = 0;
    for i in 0..4 {
        let nibble = select >> (4 * i) & 0xf;
        let byte = (all >> (8 * (nibble & 7))) as u8;
        let byte = if nibble & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 };
        result |= u32::from(byte) << (8 * i);
    }
    result
}

macro_rules! dp4a {
    ($a:ty, $b:ty) => {
        lanes!(
            u32 = |a: u32, b: u32, c: u32| {
                let mut sum = c;
                for i in 0..4 {
                    sum = sum.wrapping_add((i32::from((a >> (8 * i)) as $a) * i32::from((b >> (8 * i)) as $b)) as u32);
                }
                sum
            }
        )
    };
}

fn dot(m: &mut Mnemonic<'_>) -> Option<Alu> {
    let run = match m.types.as_slice() {
        [Ty::S(32), Ty::S(32)] => dp4a!(i8, i8),
        [Ty::S(32), Ty::U(32)] => dp4a!(i8, u8),
        [Ty::U(32), Ty::S(32)] => dp4a!(u8, i8),
        [Ty::U(32), Ty::U(32)] => dp4a!(u8, u8),
        _ => return None,
    };
    Some(Alu::new(run, Ty::S(32), &[Ty::B(32); 3], Kind::Dot))
}
