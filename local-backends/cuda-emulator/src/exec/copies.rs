//! `cp.async`: the bytes are copied when they are waited for and not before, so that a missing wait is seen.
use super::block::{Block, Step};
use super::shadow::Access;
use super::step::addresses;
use super::warp::{Copy, Warp};
use crate::code::op::{Instr, Op};
use crate::finding::Fault;

impl Block<'_> {
    pub(super) fn copy_async(&mut self, warp: &mut Warp, instr: &Instr, lanes: u32) -> Step {
        let Op::CopyAsync { to, from, bytes, source } = &instr.op else { return Ok(()) };
        let (to, from) = (addresses(warp, to), addresses(warp, from));
        let width = u64::from(*bytes);
        let mut reading = 0;
        for lane in (0..32).filter(|l| lanes >> l & 1 == 1) {
            let source = source.map_or(*bytes, |row| warp.rows[row as usize][lane].min(*bytes));
            let at = self.inside(warp, instr, lane, to[lane], width, self.shared_size())?;
            if source > 0 {
                reading |= 1 << lane;
                self.aligned(warp, instr, lane, from[lane], width)?;
                let region = self.region(warp, instr, lane, from[lane], u64::from(source))?;
                if (0..u64::from(source)).any(|i| !region.is_written(from[lane] + i, 1)) {
                    let what = || format!("cp.async from offset {} of an allocation", from[lane] - region.base);
                    self.note(warp, lane as u32, Fault::Uninitialised, instr.place, what);
                }
            }
            self.touch(warp, instr, lane, at, *bytes as usize, Access::Issue);
            let group = warp.groups[lane];
            warp.copies.push(Copy { lane: lane as u32, to: to[lane], from: from[lane], bytes: *bytes, source, group });
        }
        if reading != 0 {
            self.counts.global(&from, reading, width, false);
        }
        self.counts.shared(&to, lanes, width);
        Ok(())
    }

    /// Copies what lanes wait for: all groups but the last so many, or everything.
    pub(super) fn copy_wait(&mut self, warp: &mut Warp, left: Option<u32>, lanes: u32) {
        let waited = |copy: &Copy| {
            let until = match left {
                Some(left) => warp.groups[copy.lane as usize].saturating_sub(left),
                None => u32::MAX,
            };
            lanes >> copy.lane & 1 == 1 && copy.group < until
        };
        let (done, rest): (Vec<Copy>, Vec<Copy>) = warp.copies.iter().partition(|c| waited(c));
        for copy in done {
            self.perform(warp, copy);
        }
        warp.copies = rest;
    }

    /// What is left when a warp ends.
    pub(super) fn finish_copies(&mut self, warp: &mut Warp) {
        for copy in std::mem::take(&mut warp.copies) {
            self.perform(warp, copy);
        }
    }

    fn perform(&mut self, warp: &Warp, copy: Copy) {
        let memory = self.run.memory;
        let (at, bytes) = (copy.to as usize, copy.bytes as usize);
        self.shared[at..at + bytes].fill(0);
        // Both ends were checked when it was issued, and the regions of a launch do not change.
        if let Some(region) = memory.find(copy.from).map(|i| &memory.regions[i]) {
            if copy.source == copy.bytes {
                let value = region.load(copy.from, u64::from(copy.bytes));
                self.shared[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
            } else {
                for i in 0..copy.source as usize {
                    self.shared[at + i] = region.load(copy.from + i as u64, 1) as u8;
                }
            }
        }
        let _ = self.shadow.access(warp.index, at, bytes, Access::Arrive);
    }
}
