//! `cvt`: between integers and floating point of every width.
use super::lanes::{AluFn, Row, lanes};
use super::mnemonic::Mnemonic;
use super::num::{self, Round};
use crate::ptx::{Result, Ty};

/// A conversion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Convert {
    from: Ty,
    to: Ty,
    round: Round,
    /// Rounded to an integer, whatever the type of the result.
    integral: bool,
    sat: bool,
    ftz: bool,
    /// Those that kernels are full of have a function of their own.
    fast: Option<AluFn>,
}

fn is_float(ty: Ty) -> bool {
    matches!(ty, Ty::F16 | Ty::Bf16 | Ty::F32 | Ty::F64)
}

impl Convert {
    /// The conversion of this name, whose types are the result's and the source's.
    pub(crate) fn select(m: &mut Mnemonic<'_>) -> Result<Self> {
        let &[to, from] = m.types.as_slice() else { return Err(m.unknown()) };
        let known = |ty| is_float(ty) || matches!(ty, Ty::S(_) | Ty::U(_));
        if !known(to) || !known(from) {
            return Err(m.unknown());
        }
        let (round, integral) = match m.any(&["rni", "rzi", "rmi", "rpi"]) {
            Some("rni") => (Round::Near, true),
            Some("rmi") => (Round::Down, true),
            Some("rpi") => (Round::Up, true),
            Some(_) => (Round::Zero, true),
            None => (m.round(), false),
        };
        // A u64 or s64 as f64 in a direction is not needed by what compilers emit.
        if to == Ty::F64 && round != Round::Near && !integral {
            return Err(m.unknown());
        }
        let (sat, ftz) = (m.take("sat"), m.take("ftz"));
        m.finish()?;
        let rounds = is_float(to) && (integral || round != Round::Near);
        let plain = !(sat || ftz || rounds);
        let fast = if plain { fast(to, from, round) } else { None };
        Ok(Self { from, to, round, integral, sat, ftz, fast })
    }

    /// All lanes.
    pub(crate) fn run(&self, rows: &[Row], src: u32, out: &mut [Row; 2]) {
        if let Some(fast) = self.fast {
            return fast(rows, &[src, 0, 0, 0], out);
        }
        for lane in 0..32 {
            let low = u64::from(rows[src as usize][lane]);
            let high = if self.from.bits() == 64 { u64::from(rows[src as usize + 1][lane]) << 32 } else { 0 };
            let result = self.one(low | high);
            out[0][lane] = result as u32;
            out[1][lane] = (result >> 32) as u32;
        }
    }

    fn one(&self, bits: u64) -> u64 {
        if !is_float(self.from) {
            let value = match self.from {
                Ty::S(8) => i128::from(bits as i8),
                Ty::S(16) => i128::from(bits as i16),
                Ty::S(32) => i128::from(bits as i32),
                Ty::S(_) => i128::from(bits as i64),
                other => i128::from(bits) & ((1 << other.bits()) - 1),
            };
            return if is_float(self.to) { self.integer_to_float(value) } else { self.integer(value, self.sat) };
        }
        let value = match self.from {
            Ty::F16 => f64::from(num::f16(bits as u16)),
            Ty::Bf16 => f64::from(num::bf16(bits as u16)),
            Ty::F32 if self.ftz => f64::from(num::flush(f32::from_bits(bits as u32))),
            Ty::F32 => f64::from(f32::from_bits(bits as u32)),
            _ => f64::from_bits(bits),
        };
        if is_float(self.to) { self.float(value) } else { self.float_to_integer(value) }
    }

    /// An integer in the width of the result, extended by its sign.
    fn integer(&self, value: i128, sat: bool) -> u64 {
        let bits = self.to.bits();
        let signed = matches!(self.to, Ty::S(_));
        let (low, high) =
            if signed { (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
        let value = if sat { value.clamp(low, high) } else { value };
        let cut = value as u64 & (u64::MAX >> (64 - bits));
        if signed { ((cut << (64 - bits)) as i64 >> (64 - bits)) as u64 } else { cut }
    }

    fn integer_to_float(&self, value: i128) -> u64 {
        if self.to == Ty::F64 {
            return (value as f64).to_bits();
        }
        // Both halves are exact, so the sum is rounded once, to odd.
        let (high, low) = (value >> 32, value & 0xffff_ffff);
        self.float(num::add_odd(high as f64 * 4_294_967_296.0, low as f64))
    }

    fn whole(&self, value: f64) -> f64 {
        match self.round {
            Round::Near => value.round_ties_even(),
            Round::Zero => value.trunc(),
            Round::Down => value.floor(),
            Round::Up => value.ceil(),
        }
    }

    fn float_to_integer(&self, value: f64) -> u64 {
        // What is out of range becomes the nearest end, NaN becomes 0.
        self.integer(self.whole(value) as i128, true)
    }

    fn float(&self, value: f64) -> u64 {
        let (value, round) = if self.integral { (self.whole(value), Round::Near) } else { (value, self.round) };
        let value = if self.sat { num::saturate64(value) } else { value };
        match self.to {
            Ty::F16 => u64::from(num::to_f16(value, round)),
            Ty::Bf16 => u64::from(num::to_bf16(value, round)),
            Ty::F32 => {
                let result = num::to_f32(value, round);
                u64::from((if self.ftz { num::flush(result) } else { result }).to_bits())
            }
            _ => value.to_bits(),
        }
    }
}

fn fast(to: Ty, from: Ty, round: Round) -> Option<AluFn> {
    Some(match (to, from) {
        (Ty::F32, Ty::F16) => lanes!(f32 = |a: u16| num::f16(a)),
        (Ty::F32, Ty::Bf16) => lanes!(f32 = |a: u16| num::bf16(a)),
        (Ty::F32, Ty::S(32)) => lanes!(f32 = |a: i32| a as f32),
        (Ty::F32, Ty::U(32)) => lanes!(f32 = |a: u32| a as f32),
        (Ty::F32, Ty::U(16)) => lanes!(f32 = |a: u16| f32::from(a)),
        (Ty::F32, Ty::S(16)) => lanes!(f32 = |a: i16| f32::from(a)),
        (Ty::F32, Ty::S(8)) => lanes!(f32 = |a: u32| f32::from(a as i8)),
        (Ty::F32, Ty::U(8)) => lanes!(f32 = |a: u32| f32::from(a as u8)),
        (Ty::S(32), Ty::F32) if round == Round::Near => lanes!(i32 = |a: f32| a.round_ties_even() as i32),
        (Ty::S(32), Ty::F32) if round == Round::Zero => lanes!(i32 = |a: f32| a as i32),
        (Ty::U(64), Ty::U(32)) => lanes!(u64 = |a: u32| u64::from(a)),
        (Ty::S(64), Ty::S(32)) => lanes!(i64 = |a: i32| i64::from(a)),
        (Ty::U(32) | Ty::S(32), Ty::U(64) | Ty::S(64)) => lanes!(u32 = |a: u64| a as u32),
        (Ty::U(32) | Ty::S(32), Ty::U(16)) => lanes!(u32 = |a: u16| u32::from(a)),
        (Ty::S(32), Ty::S(16)) => lanes!(i32 = |a: i16| i32::from(a)),
        (Ty::U(16) | Ty::S(16), Ty::U(32) | Ty::S(32)) => lanes!(u16 = |a: u32| a as u16),
        (Ty::S(32), Ty::S(8)) => lanes!(i32 = |a: u32| i32::from(a as i8)),
        (Ty::U(32) | Ty::S(32), Ty::U(8)) => lanes!(u32 = |a: u32| a & 0xff),
        _ => return None,
    })
}

/// `cvt.rn.f16x2.f32` and its like: the first source goes to the high half.
pub(crate) fn pair(m: &mut Mnemonic<'_>) -> Option<AluFn> {
    fn joined(high: u16, low: u16) -> u32 {
        u32::from(low) | u32::from(high) << 16
    }
    let relu = m.take("relu");
    let round = m.round();
    let found = match (m.types.as_slice(), round, relu) {
        ([Ty::F16x2, Ty::F32], Round::Near, false) => {
            lanes!(
                u32 = |a: f32, b: f32| joined(num::to_f16(a.into(), Round::Near), num::to_f16(b.into(), Round::Near))
            )
        }
        ([Ty::Bf16x2, Ty::F32], Round::Near, false) => {
            lanes!(
                u32 = |a: f32, b: f32| joined(num::to_bf16(a.into(), Round::Near), num::to_bf16(b.into(), Round::Near))
            )
        }
        _ => return None,
    };
    m.finish().ok()?;
    Some(found)
}
