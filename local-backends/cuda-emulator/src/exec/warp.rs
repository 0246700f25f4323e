//! A warp: registers of 32 lanes, which of them run, and where those that parted come together again.
use crate::code::op::{Dst, Pred};
use crate::code::{Kernel, Row};

/// Lanes that run together from `pc` to `join`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) pc: u32,
    pub(super) join: u32,
    pub(super) mask: u32,
}

/// A `cp.async` that has not been waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    pub(super) lane: u32,
    pub(super) to: u64,
    pub(super) from: u64,
    pub(super) bytes: u32,
    /// Bytes that are read; the rest is zeros.
    pub(super) source: u32,
    /// Number of its group among the lane's.
    pub(super) group: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    #[default]
    Ready,
    /// At a barrier.
    Waiting,
    Done,
}

#[derive(Debug, Default)]
pub(super) struct Warp {
    pub(super) index: u32,
    pub(super) rows: Vec<Row>,
    pub(super) preds: Vec<u32>,
    /// Lanes that the block has, and those that have ended.
    pub(super) lanes: u32,
    pub(super) exited: u32,
    pub(super) stack: Vec<Entry>,
    pub(super) state: State,
    /// Local memory of every lane, and which of it is written.
    pub(super) local: Vec<u8>,
    pub(super) local_written: Vec<bool>,
    pub(super) copies: Vec<Copy>,
    /// Groups of copies that each lane has committed.
    pub(super) groups: [u32; 32],
    /// Region that was touched last, none at first: one that is here has been found to be allowed.
    pub(super) region: usize,
    pub(super) steps: u64,
}

impl Warp {
    pub(super) fn new(index: u32, lanes: u32, kernel: &Kernel) -> Self {
        let mut warp = Self {
            index,
            rows: vec![[0; 32]; kernel.rows as usize + 1],
            preds: vec![0; kernel.preds as usize],
            lanes: if lanes >= 32 { u32::MAX } else { (1 << lanes) - 1 },
            region: usize::MAX,
            local: vec![0xcd; kernel.local as usize * 32],
            local_written: vec![false; kernel.local as usize * 32],
            ..Self::default()
        };
        for &(row, value, wide) in &kernel.consts {
            warp.rows[row as usize] = [value as u32; 32];
            if wide {
                warp.rows[row as usize + 1] = [(value >> 32) as u32; 32];
            }
        }
        warp
    }

    /// Another block begins.
    pub(super) fn begin(&mut self) {
        self.exited = 0;
        self.stack.clear();
        self.stack.push(Entry { pc: 0, join: u32::MAX, mask: self.lanes });
        self.state = State::Ready;
        self.local_written.fill(false);
        self.copies.clear();
        self.groups = [0; 32];
    }

    /// Lanes that have not ended.
    pub(super) fn alive(&self) -> u32 {
        self.lanes & !self.exited
    }

    #[inline]
    pub(super) fn pred(&self, pred: Pred) -> u32 {
        let mask = self.preds[pred.index as usize];
        if pred.negated { !mask } else { mask }
    }

    #[inline]
    pub(super) fn set_pred(&mut self, index: u32, mask: u32, lanes: u32) {
        let pred = &mut self.preds[index as usize];
        *pred = (*pred & !lanes) | (mask & lanes);
    }

    #[inline]
    pub(super) fn set_row(&mut self, row: u32, values: &Row, lanes: u32) {
        let row = &mut self.rows[row as usize];
        if lanes == u32::MAX {
            *row = *values;
            return;
        }
        for lane in 0..32 {
            let keep = 0u32.wrapping_sub(!lanes >> lane & 1);
            row[lane] = (row[lane] & keep) | (values[lane] & !keep);
        }
    }

    #[inline]
    pub(super) fn set(&mut self, dst: Dst, values: &[Row; 2], lanes: u32) {
        self.set_row(dst.row, &values[0], lanes);
        if dst.wide {
            self.set_row(dst.row + 1, &values[1], lanes);
        }
    }

    /// The 64 bits of a lane in two rows.
    #[inline]
    pub(super) fn wide(&self, row: u32, lane: usize) -> u64 {
        u64::from(self.rows[row as usize][lane]) | u64::from(self.rows[row as usize + 1][lane]) << 32
    }

    /// Goes on with the next instruction.
    #[inline]
    pub(super) fn advance(&mut self) {
        if let Some(top) = self.stack.last_mut() {
            top.pc += 1;
        }
    }

    /// Lanes end.
    pub(super) fn exit(&mut self, lanes: u32) {
        self.exited |= lanes;
        for entry in &mut self.stack {
            entry.mask &= !lanes;
        }
    }

    /// Lanes part for several targets; those at `join` wait for the others there. `ends` says of a target that lanes end there.
    pub(super) fn part(&mut self, join: u32, groups: &[(u32, u32)], ends: impl Fn(u32) -> bool) {
        let Some(top) = self.stack.pop() else { return };
        // Lanes that would only meet to end do not wait for each other; and what waits at the end of an outer branch needs no entry here.
        let meet = join != u32::MAX && !ends(join);
        if meet && join != top.join {
            self.stack.push(Entry { pc: join, ..top });
        }
        let join = if meet { join } else { top.join };
        for &(pc, mask) in groups.iter().filter(|(_, mask)| *mask != 0) {
            if ends(pc) {
                self.exit(mask);
            } else if pc != join {
                self.stack.push(Entry { pc, join, mask });
            }
        }
    }
}
