//! Atomics on global and shared memory, lane by lane.
use super::block::{Block, Step};
use super::shadow::Access;
use super::step::addresses;
use super::warp::Warp;
use crate::code::num::{self, Round};
use crate::code::op::{AtomOp, Instr, Op, Space};
use crate::finding::Fault;
use crate::ptx::Ty;

/// Whether there is such an atomic.
pub(crate) fn is_known(op: AtomOp, ty: Ty) -> bool {
    let bits = |ty| matches!(ty, Ty::B(32 | 64) | Ty::U(32 | 64) | Ty::S(32 | 64));
    match op {
        AtomOp::Add => {
            matches!(ty, Ty::U(_) | Ty::S(32) | Ty::F32 | Ty::F64 | Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2)
                && ty.bits() > 8
        }
        AtomOp::Min | AtomOp::Max => matches!(ty, Ty::U(32 | 64) | Ty::S(32 | 64)),
        AtomOp::Inc | AtomOp::Dec => ty == Ty::U(32),
        AtomOp::Cas => bits(ty) || ty == Ty::B(16),
        _ => bits(ty),
    }
}

/// What an atomic leaves in memory.
pub(super) fn result(op: AtomOp, ty: Ty, old: u64, a: u64, b: u64) -> u64 {
    let signed = |x: u64| if ty.bits() == 64 { x as i64 } else { i64::from(x as i32) };
    match op {
        AtomOp::Add => sum(ty, old, a),
        AtomOp::Min if matches!(ty, Ty::S(_)) => signed(old).min(signed(a)) as u64,
        AtomOp::Max if matches!(ty, Ty::S(_)) => signed(old).max(signed(a)) as u64,
        AtomOp::Min => old.min(a),
        AtomOp::Max => old.max(a),
        AtomOp::And => old & a,
        AtomOp::Or => old | a,
        AtomOp::Xor => old ^ a,
        AtomOp::Exch => a,
        AtomOp::Cas => {
            if old == a {
                b
            } else {
                old
            }
        }
        AtomOp::Inc => {
            if old >= a {
                0
            } else {
                old + 1
            }
        }
        AtomOp::Dec => {
            if old == 0 || old > a {
                a
            } else {
                old - 1
            }
        }
    }
}

fn sum(ty: Ty, a: u64, b: u64) -> u64 {
    let half = |a: u64, b: u64| {
        let of = |x: u64| f64::from(num::f16(x as u16));
        u64::from(num::to_f16(num::add_odd(of(a), of(b)), Round::Near))
    };
    let brain = |a: u64, b: u64| {
        let of = |x: u64| f64::from(num::bf16(x as u16));
        u64::from(num::to_bf16(num::add_odd(of(a), of(b)), Round::Near))
    };
    match ty {
        Ty::F32 => u64::from((f32::from_bits(a as u32) + f32::from_bits(b as u32)).to_bits()),
        Ty::F64 => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        Ty::F16 => half(a, b),
        Ty::F16x2 => half(a, b) | half(a >> 16, b >> 16) << 16,
        Ty::Bf16 => brain(a, b),
        Ty::Bf16x2 => brain(a, b) | brain(a >> 16, b >> 16) << 16,
        _ => a.wrapping_add(b),
    }
}

impl Block<'_> {
    pub(super) fn atomic(&mut self, warp: &mut Warp, instr: &Instr, lanes: u32) -> Step {
        let Op::Atomic { space, ty, op, dst, at, src } = &instr.op else { return Ok(()) };
        let (bits, bytes) = (ty.bits(), u64::from(ty.bytes()));
        let keep = u64::MAX >> (64 - bits);
        let mut at = addresses(warp, at);
        let mut out = [[0; 32]; 2];
        for (space, lanes) in Self::by_space(*space, &mut at, lanes) {
            for lane in (0..32).filter(|l| lanes >> l & 1 == 1) {
                let value =
                    |row: u32| if bits == 64 { warp.wide(row, lane) } else { u64::from(warp.rows[row as usize][lane]) };
                let (a, b) = (value(src[0]) & keep, value(src[1]) & keep);
                let change = |old: u64| result(*op, *ty, old, a, b) & keep;
                let old = match space {
                    Space::Shared => self.shared_atomic(warp, instr, lane, at[lane], bytes, change)?,
                    Space::Local | Space::Param => {
                        let what = "an atomic on memory that only the lane itself has".to_owned();
                        return Err(self.finding(warp, lane as u32, Fault::OutOfBounds, instr.place, what));
                    }
                    _ => self.global_atomic(warp, instr, lane, at[lane], bytes, change)?,
                };
                out[0][lane] = old as u32;
                out[1][lane] = (old >> 32) as u32;
            }
        }
        if let Some(dst) = dst {
            warp.set(*dst, &out, lanes);
        }
        Ok(())
    }

    fn shared_atomic(
        &mut self,
        warp: &Warp,
        instr: &Instr,
        lane: usize,
        address: u64,
        bytes: u64,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, super::block::End> {
        let at = self.inside(warp, instr, lane, address, bytes, self.shared_size())?;
        self.touch(warp, instr, lane, at, bytes as usize, Access::Atomic);
        let place = &mut self.shared[at..at + bytes as usize];
        let old = super::memory::value_of(place) as u64;
        place.copy_from_slice(&change(old).to_le_bytes()[..bytes as usize]);
        Ok(old)
    }

    fn global_atomic(
        &mut self,
        warp: &mut Warp,
        instr: &Instr,
        lane: usize,
        address: u64,
        bytes: u64,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, super::block::End> {
        self.counts.atomic_lanes += 1;
        self.aligned(warp, instr, lane, address, bytes)?;
        let region = self.region(warp, instr, lane, address, bytes)?;
        self.writable(warp, instr, lane, region)?;
        if !region.is_written(address, bytes) {
            let what =
                || format!("an atomic on {bytes} bytes at offset {} that nobody has written", address - region.base);
            self.note(warp, lane as u32, Fault::Uninitialised, instr.place, what);
        }
        Ok(region.update(address, bytes, change))
    }
}
