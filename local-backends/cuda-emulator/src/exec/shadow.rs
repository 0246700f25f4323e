//! What is known of each byte of shared memory: who wrote and read it last, and whether a barrier lies between.
//!
//! Time goes up at every barrier. `ordered[w][v]` is the time before which everything that warp `v` did is before what warp `w` does
//! now; a barrier raises it for those that take part, and what they knew of others goes along (FastTrack, Flanagan and Freund 2009, with
//! one time for all readers of a byte since it was written). A word has one cell until something smaller touches it.
use crate::finding::Fault;

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// When it was written; before the block began is not at all.
    written: u32,
    read: u32,
    /// Warps that read it since it was written.
    readers: u32,
    writer: u8,
    atomic: bool,
    /// A `cp.async` is on its way here.
    pending: bool,
    /// The bytes have cells of their own.
    split: bool,
}

/// How an access touches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    Atomic,
    /// `cp.async` begins.
    Issue,
    /// `cp.async` is done.
    Arrive,
}

#[derive(Debug)]
pub(crate) struct Shadow {
    words: Vec<Cell>,
    bytes: Vec<Cell>,
    now: u32,
    start: u32,
    ordered: Vec<Vec<u32>>,
}

impl Shadow {
    pub(crate) fn new(bytes: usize, warps: usize) -> Self {
        let ordered = vec![vec![0; warps]; warps];
        Self { words: vec![Cell::default(); bytes.div_ceil(4)], bytes: Vec::new(), now: 1, start: 1, ordered }
    }

    /// Another block begins: nothing is written, everything before is over.
    pub(crate) fn begin(&mut self) {
        self.now += 1;
        self.start = self.now;
        for times in &mut self.ordered {
            times.fill(self.now);
        }
    }

    /// A barrier at which these warps have arrived, of which some go on because of it.
    pub(crate) fn barrier(&mut self, arrived: u32, waiting: u32) {
        self.now += 1;
        let warps = self.ordered.len();
        let known: Vec<u32> = (0..warps)
            .map(|v| {
                let told = (0..warps).filter(|w| arrived >> w & 1 == 1).map(|w| self.ordered[w][v]).max().unwrap_or(0);
                if arrived >> v & 1 == 1 { self.now } else { told }
            })
            .collect();
        for w in (0..warps).filter(|w| waiting >> w & 1 == 1) {
            for (mine, told) in self.ordered[w].iter_mut().zip(&known) {
                *mine = (*mine).max(*told);
            }
        }
    }

    /// An access by a warp to aligned bytes, which are inside. What is wrong with it, and which other warp has to do with it.
    #[inline]
    pub(crate) fn access(&mut self, warp: u32, at: usize, bytes: usize, access: Access) -> Option<(Fault, u32)> {
        let mut found = None;
        if bytes >= 4 {
            for word in at / 4..(at + bytes) / 4 {
                found = found.or(self.word(warp, word, access));
            }
            return found;
        }
        self.split(at / 4);
        for byte in at..at + bytes {
            let (ordered, cell) = (&self.ordered[warp as usize], &mut self.bytes[byte]);
            found = found.or(touch(cell, warp, access, self.now, self.start, ordered));
        }
        found
    }

    fn word(&mut self, warp: u32, word: usize, access: Access) -> Option<(Fault, u32)> {
        let ordered = &self.ordered[warp as usize];
        if !self.is_split(word) {
            return touch(&mut self.words[word], warp, access, self.now, self.start, ordered);
        }
        let mut found = None;
        for cell in &mut self.bytes[word * 4..word * 4 + 4] {
            found = found.or(touch(cell, warp, access, self.now, self.start, ordered));
        }
        found
    }

    fn is_split(&self, word: usize) -> bool {
        self.words[word].split
    }

    fn split(&mut self, word: usize) {
        if self.bytes.is_empty() {
            self.bytes = vec![Cell::default(); self.words.len() * 4];
        }
        let cell = self.words[word];
        if !cell.split {
            self.bytes[word * 4..word * 4 + 4].fill(cell);
            self.words[word].split = true;
        }
    }
}

#[inline]
fn touch(cell: &mut Cell, warp: u32, access: Access, now: u32, start: u32, ordered: &[u32]) -> Option<(Fault, u32)> {
    if cell.written < start && cell.read < start && (cell.pending || cell.readers != 0) {
        *cell = Cell { split: cell.split, ..Cell::default() };
    }
    let is_written = cell.written >= start;
    let mut found = None;
    if cell.pending && access != Access::Arrive {
        found = Some((Fault::MissingWait, u32::from(cell.writer)));
    } else if access != Access::Arrive && is_written && u32::from(cell.writer) != warp {
        let both_atomic = cell.atomic && access == Access::Atomic;
        if !both_atomic && cell.written >= ordered[cell.writer as usize] {
            found = Some((Fault::Race, u32::from(cell.writer)));
        }
    }
    let mut others = cell.readers & !(1 << warp);
    // Reads that are over need not be remembered: what comes behind this access comes behind them.
    if others != 0 {
        for reader in (0..32).filter(|r| cell.readers & !(1 << warp) & (1 << r) != 0) {
            if cell.read < ordered[reader as usize] {
                others &= !(1 << reader);
            }
        }
    }
    if access == Access::Read {
        if !is_written && !cell.pending {
            found = found.or(Some((Fault::Uninitialised, warp)));
        }
        cell.readers = others | 1 << warp;
        cell.read = now;
        return found;
    }
    if others != 0 && access != Access::Arrive {
        found = found.or(Some((Fault::Race, others.trailing_zeros())));
    }
    if access == Access::Atomic && !is_written {
        found = found.or(Some((Fault::Uninitialised, warp)));
    }
    let pending = access == Access::Issue;
    *cell = Cell {
        written: now,
        read: 0,
        readers: 0,
        writer: warp as u8,
        atomic: access == Access::Atomic,
        pending,
        split: cell.split,
    };
    found
}
