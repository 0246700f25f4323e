//! One instruction of a warp.
use super::block::{Block, Step};
use super::warp::{State, Warp};
use crate::code::Row;
use crate::code::op::{Address, Instr, Logic, Op, Pred};
use crate::finding::Fault;
use std::time::Instant;

impl Block<'_> {
    pub(super) fn step(&mut self, warp: &mut Warp) -> Step {
        let Some(top) = warp.stack.last().copied() else {
            self.finish_copies(warp);
            warp.state = State::Done;
            return Ok(());
        };
        if top.pc == top.join || top.mask == 0 {
            warp.stack.pop();
            return Ok(());
        }
        let run = self.run;
        let instr = &run.launch.kernel.code[top.pc as usize];
        self.counts.instructions[instr.kind as usize] += 1;
        let lanes = instr.guard.map_or(top.mask, |guard| top.mask & warp.pred(guard));
        match &instr.op {
            Op::Branch { .. } | Op::Switch { .. } | Op::Exit => {
                self.control(warp, instr, top.mask, lanes);
                return Ok(());
            }
            _ if lanes == 0 => {}
            Op::Alu { run, dst, src } => {
                let mut out = [[0; 32]; 2];
                run(&warp.rows, src, &mut out);
                warp.set(*dst, &out, lanes);
            }
            Op::Convert { convert, dst, src } => {
                let mut out = [[0; 32]; 2];
                convert.run(&warp.rows, *src, &mut out);
                warp.set(*dst, &out, lanes);
            }
            Op::Compare { run, dst, not, src, with } => {
                let found = run(&warp.rows, src[0], src[1]);
                let combine = |x| with.map_or(x, |(logic, pred)| joined(logic, x, warp.pred(pred)));
                let (yes, no) = (combine(found), combine(!found));
                warp.set_pred(*dst, yes, lanes);
                if let Some(not) = not {
                    warp.set_pred(*not, no, lanes);
                }
            }
            Op::Select { dst, src, by } => {
                let by = warp.pred(*by);
                let mut out = [[0; 32]; 2];
                for (half, out) in out.iter_mut().enumerate().take(1 + usize::from(dst.wide)) {
                    let rows = src.map(|s| &warp.rows[s as usize + half]);
                    for lane in 0..32 {
                        out[lane] = if by >> lane & 1 == 1 { rows[0][lane] } else { rows[1][lane] };
                    }
                }
                warp.set(*dst, &out, lanes);
            }
            Op::PredMove { dst, src } => {
                let mask = warp.pred(*src);
                warp.set_pred(*dst, mask, lanes);
            }
            Op::PredSet { dst, value } => warp.set_pred(*dst, if *value { u32::MAX } else { 0 }, lanes),
            Op::PredLogic { logic, dst, src } => {
                let mask = joined(*logic, warp.pred(src[0]), warp.pred(src[1]));
                warp.set_pred(*dst, mask, lanes);
            }
            Op::Unpack { .. } | Op::Pack { .. } => pack(warp, &instr.op, lanes),
            Op::Clock { dst } => {
                let now = clock();
                warp.set(*dst, &[[now as u32; 32], [(now >> 32) as u32; 32]], lanes);
            }
            Op::Trap => {
                return Err(self.finding(
                    warp,
                    lanes.trailing_zeros(),
                    Fault::Trap,
                    instr.place,
                    "the kernel gives up".into(),
                ));
            }
            Op::Nop => {}
            Op::Barrier { id, threads, wait } => {
                if lanes != warp.alive() {
                    let what =
                        || format!("lanes {lanes:#010x} of {:#010x} are at a barrier of the block", warp.alive());
                    self.note(warp, lanes.trailing_zeros(), Fault::DivergentBarrier, instr.place, what);
                }
                self.arrive(warp, *id, *threads, *wait);
            }
            _ => self.more(warp, instr, lanes)?,
        }
        warp.advance();
        Ok(())
    }

    fn more(&mut self, warp: &mut Warp, instr: &Instr, lanes: u32) -> Step {
        match &instr.op {
            Op::Load { space, ty, dst, from } => self.load(warp, instr, *space, *ty, dst, from, lanes),
            Op::Store { space, ty, src, to } => self.store(warp, instr, *space, *ty, src, to, lanes),
            Op::Atomic { .. } => self.atomic(warp, instr, lanes),
            Op::LoadMatrix { transposed, dst, from, generic } => {
                self.load_matrix(warp, instr, *transposed, dst, (from, *generic), lanes)
            }
            Op::CopyAsync { .. } => self.copy_async(warp, instr, lanes),
            Op::CopyCommit => {
                for lane in (0..32).filter(|l| lanes >> l & 1 == 1) {
                    warp.groups[lane] += 1;
                }
                Ok(())
            }
            Op::CopyWait { left } => {
                self.copy_wait(warp, *left, lanes);
                Ok(())
            }
            Op::Mma { shape, dst, a, b, c } => {
                self.mma(warp, instr, *shape, (dst, a, b, c), lanes);
                Ok(())
            }
            _ => {
                self.exchange(warp, instr, lanes);
                Ok(())
            }
        }
    }

    fn control(&mut self, warp: &mut Warp, instr: &Instr, active: u32, lanes: u32) {
        let code = &self.run.launch.kernel.code;
        let ends = |pc: u32| code.get(pc as usize).is_some_and(|i| i.guard.is_none() && matches!(i.op, Op::Exit));
        let Some(top) = warp.stack.last_mut() else { return };
        match &instr.op {
            Op::Exit => {
                top.pc += 1;
                warp.exit(lanes);
            }
            Op::Branch { to, .. } if lanes == active => top.pc = *to,
            Op::Branch { .. } if lanes == 0 => top.pc += 1,
            Op::Branch { to, join } => {
                let next = top.pc + 1;
                warp.part(*join, &[(next, active & !lanes), (*to, lanes)], ends);
            }
            Op::Switch { to, index, join } => {
                let next = top.pc + 1;
                let mut groups = vec![(next, active & !lanes)];
                for lane in (0..32).filter(|l| lanes >> l & 1 == 1) {
                    // An index that the table does not have is undefined on the hardware; the last target is as good as any.
                    let i = (warp.rows[*index as usize][lane] as usize).min(to.len() - 1);
                    match groups.iter_mut().find(|(pc, _)| *pc == to[i]) {
                        Some((_, mask)) => *mask |= 1 << lane,
                        None => groups.push((to[i], 1 << lane)),
                    }
                }
                warp.part(*join, &groups, ends);
            }
            _ => {}
        }
    }
}

fn joined(logic: Logic, a: u32, b: u32) -> u32 {
    match logic {
        Logic::And => a & b,
        Logic::Or => a | b,
        Logic::Xor => a ^ b,
    }
}

/// Nanoseconds since some time.
fn clock() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

fn pack(warp: &mut Warp, op: &Op, lanes: u32) {
    match op {
        Op::Unpack { dst, bits, src, wide } => {
            let values: [u64; 32] =
                std::array::from_fn(|l| if *wide { warp.wide(*src, l) } else { warp.rows[*src as usize][l].into() });
            for (i, dst) in dst.iter().enumerate() {
                let Some(dst) = dst else { continue };
                let part = |l: usize| values[l] >> (i as u32 * bits) & (u64::MAX >> (64 - bits));
                let low: Row = std::array::from_fn(|l| part(l) as u32);
                warp.set(*dst, &[low, [0; 32]], lanes);
            }
        }
        Op::Pack { dst, bits, src } => {
            let value = |lane: usize| {
                let parts = src.iter().map(|row| u64::from(warp.rows[*row as usize][lane]) & (u64::MAX >> (64 - bits)));
                parts.zip(0u32..).fold(0u64, |value, (part, i)| value | part << (i * bits))
            };
            let values: [u64; 32] = std::array::from_fn(value);
            let out = [values.map(|v| v as u32), values.map(|v| (v >> 32) as u32)];
            warp.set(*dst, &out, lanes);
        }
        _ => {}
    }
}

/// Addresses of all lanes.
#[inline]
pub(super) fn addresses(warp: &Warp, address: &Address) -> [u64; 32] {
    match address.base {
        None => [address.offset as u64; 32],
        Some(row) if address.wide => std::array::from_fn(|l| warp.wide(row, l).wrapping_add(address.offset as u64)),
        Some(row) => {
            let row = &warp.rows[row as usize];
            std::array::from_fn(|l| u64::from(row[l]).wrapping_add(address.offset as u64))
        }
    }
}

/// Whether lanes have the predicate.
pub(super) fn held(warp: &Warp, pred: Pred, lanes: u32) -> u32 {
    warp.pred(pred) & lanes
}
