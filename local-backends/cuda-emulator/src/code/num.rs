//! Numbers narrower than f64, rounded once, and sums that a later rounding finds exact enough.
//!
//! A value is computed in f64 and rounded to odd where it is not exact (Boldo and Melquiond, "Emulation of a FMA and correctly rounded
//! sums", 2008): a second rounding to at most 51 bits is then as if there had been one.

/// How a result is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// To the nearest, ties to even.
    Near,
    Zero,
    Down,
    Up,
}

/// A format of binary floating point: bits of the fraction, largest exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    fraction: u32,
    max: i32,
}

pub(crate) const F16: Format = Format { fraction: 10, max: 15 };
pub(crate) const BF16: Format = Format { fraction: 7, max: 127 };
pub(crate) const F32: Format = Format { fraction: 23, max: 127 };

/// The sum rounded to odd.
pub(crate) fn add_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    if !sum.is_finite() {
        return sum;
    }
    let t = sum - a;
    let error = (a - (sum - t)) + (b - t);
    if error == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    // The neighbour on the side of the error has an odd last bit.
    let away = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if away { sum.to_bits() + 1 } else { sum.to_bits() - 1 })
}

fn integer(x: f64, round: Round) -> f64 {
    match round {
        Round::Near => x.round_ties_even(),
        Round::Zero => x.trunc(),
        Round::Down => x.floor(),
        Round::Up => x.ceil(),
    }
}

/// 2 to the power of `n`, which is a normal number.
fn power(n: i32) -> f64 {
    f64::from_bits(((n + 1023) as u64) << 52)
}

/// A value rounded to a format, as f64. What is too large becomes infinite, or the largest number where the rounding says so.
pub(crate) fn round_to(x: f64, format: Format, round: Round) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let exponent = (((x.to_bits() >> 52) & 0x7ff) as i32 - 1023).max(1 - format.max);
    let unit = power(exponent - format.fraction as i32);
    let rounded = integer(x / unit, round) * unit;
    let largest = (2.0 - power(-(format.fraction as i32))) * power(format.max);
    if rounded.abs() <= largest {
        return rounded.copysign(x);
    }
    let inward = match round {
        Round::Near => false,
        Round::Zero => true,
        Round::Down => x > 0.0,
        Round::Up => x < 0.0,
    };
    (if inward { largest } else { f64::INFINITY }).copysign(x)
}

/// The bits of a value that is exact in 16-bit format.
fn narrow_bits(x: f64, format: Format) -> u16 {
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    if x.is_nan() {
        return 0x7fff;
    }
    let infinite = ((2 * format.max as u16 + 1) << format.fraction) | sign;
    if x.is_infinite() {
        return infinite;
    }
    let a = x.abs();
    let exponent = ((a.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    if exponent < 1 - format.max {
        let unit = power(1 - format.max - format.fraction as i32);
        return (a / unit) as u16 | sign;
    }
    let fraction = (a.to_bits() >> (52 - format.fraction)) as u16 & ((1 << format.fraction) - 1);
    (((exponent + format.max) as u16) << format.fraction) | fraction | sign
}

/// A value as f16, rounded once.
pub(crate) fn to_f16(x: f64, round: Round) -> u16 {
    narrow_bits(round_to(x, F16, round), F16)
}

/// A value as bf16, rounded once.
pub(crate) fn to_bf16(x: f64, round: Round) -> u16 {
    narrow_bits(round_to(x, BF16, round), BF16)
}

/// A value as f32, rounded once.
pub(crate) fn to_f32(x: f64, round: Round) -> f32 {
    if round == Round::Near { x as f32 } else { round_to(x, F32, round) as f32 }
}

/// The value of an f16.
#[inline(always)]
pub(crate) fn f16(bits: u16) -> f32 {
    // The exponent moves by a multiplication, so that numbers below the smallest normal one come right.
    let (magnitude, sign) = (u32::from(bits & 0x7fff), u32::from(bits & 0x8000) << 16);
    let value = if magnitude >= 0x7c00 {
        f32::from_bits(magnitude << 13 | 0x7f80_0000)
    } else {
        f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23)
    };
    f32::from_bits(value.to_bits() | sign)
}

/// The value of a bf16.
#[inline(always)]
pub(crate) fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Zero of the same sign where the number is below the smallest normal one (`.ftz`).
#[inline(always)]
pub(crate) fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// Between 0 and 1, and 0 for NaN (`.sat`).
#[inline(always)]
pub(crate) fn saturate(x: f32) -> f32 {
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}

#[inline(always)]
pub(crate) fn saturate64(x: f64) -> f64 {
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}
