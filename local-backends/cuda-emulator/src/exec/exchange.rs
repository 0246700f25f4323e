//! What lanes tell each other: shuffles, votes, matches, reductions. Each says which lanes it means; others may not be there.
use super::block::Block;
use super::step::held;
use super::warp::Warp;
use crate::code::Row;
use crate::code::op::{AtomOp, Instr, Op, Shuffle, Vote};
use crate::finding::Fault;

impl Block<'_> {
    pub(super) fn exchange(&mut self, warp: &mut Warp, instr: &Instr, lanes: u32) {
        match &instr.op {
            Op::Shuffle { mask, .. } | Op::Vote { mask, .. } | Op::Match { mask, .. } | Op::Reduce { mask, .. } => {
                self.check_lanes(warp, instr, *mask, lanes);
            }
            Op::WarpBarrier { mask } => return self.check_lanes(warp, instr, *mask, lanes),
            Op::ActiveMask { dst } => return warp.set_row(*dst, &[lanes; 32], lanes),
            _ => {}
        }
        match &instr.op {
            Op::Shuffle { .. } => self.shuffle(warp, instr, lanes),
            Op::Vote { vote, dst, src, mask } => {
                let having = held(warp, *src, lanes);
                let masks = warp.rows[*mask as usize];
                let of = |lane: usize| (having & masks[lane], lanes & masks[lane]);
                if *vote == Vote::Ballot {
                    let out: Row = std::array::from_fn(|l| of(l).0);
                    return warp.set_row(*dst, &out, lanes);
                }
                let verdict = (0..32).fold(0, |found, lane| {
                    let (having, all) = of(lane);
                    let yes = match vote {
                        Vote::All => having == all,
                        Vote::Any => having != 0,
                        _ => having == 0 || having == all,
                    };
                    found | u32::from(yes) << lane
                });
                warp.set_pred(*dst, verdict, lanes);
            }
            Op::Match { dst, src, wide, all, mask } => {
                let value = |l: usize| if *wide { warp.wide(*src, l) } else { warp.rows[*src as usize][l].into() };
                let masks = warp.rows[*mask as usize];
                let same: Row = std::array::from_fn(|l| {
                    (0..32)
                        .filter(|o| (masks[l] & lanes) >> o & 1 == 1 && value(*o) == value(l))
                        .fold(0, |m, o| m | 1 << o)
                });
                let Some(pred) = all else { return warp.set_row(*dst, &same, lanes) };
                let everyone = |l: usize| same[l] == masks[l] & lanes;
                let out: Row = std::array::from_fn(|l| if everyone(l) { same[l] } else { 0 });
                let verdict = (0..32).fold(0, |m, l| m | u32::from(everyone(l)) << l);
                warp.set_row(*dst, &out, lanes);
                if let Some(pred) = pred {
                    warp.set_pred(*pred, verdict, lanes);
                }
            }
            Op::Reduce { op, signed, dst, src, mask } => {
                let (values, masks) = (warp.rows[*src as usize], warp.rows[*mask as usize]);
                let out: Row = std::array::from_fn(|l| {
                    let those = (0..32).filter(|o| (masks[l] & lanes) >> o & 1 == 1).map(|o| values[o]);
                    those.reduce(|a, b| reduced(*op, *signed, a, b)).unwrap_or(0)
                });
                warp.set_row(*dst, &out, lanes);
            }
            _ => {}
        }
    }

    /// Finds lanes that a mask names and that are not here, and lanes that are here and not named. Lanes that have ended are let off.
    fn check_lanes(&self, warp: &Warp, instr: &Instr, mask: u32, lanes: u32) {
        let masks = &warp.rows[mask as usize];
        let gone = !warp.alive();
        for lane in (0..32).filter(|l| lanes >> l & 1 == 1) {
            let missing = masks[lane] & !(lanes | gone);
            if missing != 0 {
                let what = || format!("mask {:#010x} names lanes {missing:#010x}, which are elsewhere", masks[lane]);
                return self.note(warp, lane as u32, Fault::MissingLanes, instr.place, what);
            }
            if masks[lane] >> lane & 1 == 0 {
                let what = || format!("mask {:#010x} does not name the lane itself", masks[lane]);
                return self.note(warp, lane as u32, Fault::MissingLanes, instr.place, what);
            }
        }
    }

    fn shuffle(&mut self, warp: &mut Warp, instr: &Instr, lanes: u32) {
        let Op::Shuffle { mode, dst, valid, src, by, clamp, mask } = &instr.op else { return };
        let row = |row: &u32| warp.rows[*row as usize];
        let (values, by, clamp, masks) = (row(src), row(by), row(clamp), row(mask));
        let (mut out, mut inside, mut absent) = ([0; 32], 0u32, None);
        for lane in 0..32u32 {
            let l = lane as usize;
            let (from, is) = source(*mode, lane, by[l], clamp[l]);
            let here = lanes >> lane & 1 == 1;
            if here && is && (lanes & masks[l]) >> from & 1 == 0 {
                absent.get_or_insert((lane, from));
            }
            inside |= u32::from(is) << lane;
            out[l] = if is { values[from as usize] } else { values[l] };
        }
        if let Some((lane, from)) = absent {
            let what = || format!("the value of lane {from} is asked for, which does not take part");
            self.note(warp, lane, Fault::MissingLanes, instr.place, what);
        }
        warp.set_row(*dst, &out, lanes);
        if let Some(valid) = valid {
            warp.set_pred(*valid, inside, lanes);
        }
    }
}

/// The lane that a shuffle reads, and whether it is in range (PTX ISA, `shfl.sync`).
fn source(mode: Shuffle, lane: u32, by: u32, clamp: u32) -> (u32, bool) {
    let (by, clamp, segment) = (by & 31, clamp & 31, clamp >> 8 & 31);
    let last = (lane & segment) | (clamp & !segment);
    let first = lane & segment;
    let (from, inside) = match mode {
        Shuffle::Up => (lane.wrapping_sub(by), lane as i32 - by as i32 >= last as i32),
        Shuffle::Down => (lane + by, lane + by <= last),
        Shuffle::Butterfly => (lane ^ by, lane ^ by <= last),
        Shuffle::Index => (first | (by & !segment), first | (by & !segment) <= last),
    };
    if inside { (from & 31, true) } else { (lane, false) }
}

fn reduced(op: AtomOp, signed: bool, a: u32, b: u32) -> u32 {
    match op {
        AtomOp::Min if signed => (a as i32).min(b as i32) as u32,
        AtomOp::Max if signed => (a as i32).max(b as i32) as u32,
        AtomOp::Min => a.min(b),
        AtomOp::Max => a.max(b),
        AtomOp::And => a & b,
        AtomOp::Or => a | b,
        AtomOp::Xor => a ^ b,
        _ => a.wrapping_add(b),
    }
}
