//! What a launch costs, by counting: instructions of warps by kind, sectors of 32 bytes, bank conflicts, bytes.

/// Kinds of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Integers: arithmetic, comparisons, selections.
    Integer = 0,
    /// f32 that the multiply-add units do.
    Float = 1,
    /// f16 and bf16.
    Half = 2,
    /// f64.
    Double = 3,
    /// Roots, quotients, sines and the like.
    Special = 4,
    /// Between types.
    Convert = 5,
    /// Copies of registers, and parameters read.
    Move = 6,
    /// dp4a.
    Dot = 7,
    /// Matrix products.
    Mma = 8,
    /// Loads.
    Load = 9,
    /// Stores.
    Store = 10,
    /// ldmatrix.
    LoadMatrix = 11,
    /// cp.async, its groups and waits.
    CopyAsync = 12,
    /// Atomics.
    Atomic = 13,
    /// Barriers of a block or a warp.
    Barrier = 14,
    /// Values of other lanes.
    Shuffle = 15,
    /// Votes and matches.
    Vote = 16,
    /// Branches and ends.
    Control = 17,
    /// Fences and hints.
    Other = 18,
}

/// Kinds of instructions there are.
pub const KINDS: usize = 19;

/// What one launch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counts {
    /// Instructions of warps, by [`Kind`].
    pub instructions: [u64; KINDS],
    /// Loads of global memory that warps made (cp.async, too).
    pub load_requests: u64,
    /// Sectors of 32 bytes that they touched.
    pub load_sectors: u64,
    /// Bytes of those sectors that a lane wanted, each counted once in a request.
    pub load_bytes: u64,
    /// Stores to global memory.
    pub store_requests: u64,
    /// Sectors that they touched.
    pub store_sectors: u64,
    /// Bytes that they wrote.
    pub store_bytes: u64,
    /// Atomics on global memory, by lane.
    pub atomic_lanes: u64,
    /// Accesses of shared memory by warps; ldmatrix is one for each of its matrices.
    pub shared_requests: u64,
    /// Passes through the banks that they needed beyond the fewest for their width.
    pub bank_conflicts: u64,
    /// Accesses of local memory by warps: spills and arrays.
    pub local_requests: u64,
    /// Multiply-adds of matrix instructions.
    pub mma_products: u64,
}

impl Counts {
    /// Instructions of warps, all kinds.
    pub fn total(&self) -> u64 {
        self.instructions.iter().sum()
    }

    /// Instructions of one kind.
    pub fn of(&self, kind: Kind) -> u64 {
        self.instructions[kind as usize]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in self.instructions.iter_mut().zip(other.instructions) {
            *sum += more;
        }
        self.load_requests += other.load_requests;
        self.load_sectors += other.load_sectors;
        self.load_bytes += other.load_bytes;
        self.store_requests += other.store_requests;
        self.store_sectors += other.store_sectors;
        self.store_bytes += other.store_bytes;
        self.atomic_lanes += other.atomic_lanes;
        self.shared_requests += other.shared_requests;
        self.bank_conflicts += other.bank_conflicts;
        self.local_requests += other.local_requests;
        self.mma_products += other.mma_products;
    }

    /// A request for global memory: where each lane reads or writes its bytes (a power of two, aligned).
    pub(crate) fn global(&mut self, addresses: &[u64; 32], mask: u32, bytes: u64, store: bool) {
        let mut sorted = [0; 32];
        let mut count = 0;
        let mut ordered = true;
        for lane in (0..32).filter(|l| mask >> l & 1 == 1) {
            ordered &= count == 0 || sorted[count - 1] <= addresses[lane];
            sorted[count] = addresses[lane];
            count += 1;
        }
        let sorted = &mut sorted[..count];
        if !ordered {
            sorted.sort_unstable();
        }
        let (mut sectors, mut used, mut last) = (0, 0, None);
        for &address in sorted.iter() {
            if last != Some(address) {
                used += bytes;
            }
            if last.is_none_or(|l: u64| l / 32 != address / 32) {
                sectors += 1;
            }
            last = Some(address);
        }
        if store {
            self.store_requests += 1;
            self.store_sectors += sectors;
            self.store_bytes += used;
        } else {
            self.load_requests += 1;
            self.load_sectors += sectors;
            self.load_bytes += used;
        }
    }

    /// A request for shared memory. Accesses of 8 bytes go by half warps, of 16 bytes by quarters; a pass serves every bank once.
    pub(crate) fn shared(&mut self, addresses: &[u64; 32], mask: u32, bytes: u64) {
        self.shared_requests += 1;
        let group = match bytes {
            16.. => 8,
            8 => 16,
            _ => 32,
        };
        for first in (0..32).step_by(group) {
            let passes = passes(addresses, mask, first..first + group, bytes);
            self.bank_conflicts += passes.saturating_sub(1);
        }
    }
}

/// How often the banks are asked: as many different words as the fullest bank is to give.
fn passes(addresses: &[u64; 32], mask: u32, lanes: std::ops::Range<usize>, bytes: u64) -> u64 {
    // Words that a bank has been asked for: one most often, so the rest is looked for only in a conflict.
    let mut first = [u64::MAX; 32];
    let mut more: Vec<(u64, u64)> = Vec::new();
    for lane in lanes.filter(|l| mask >> l & 1 == 1) {
        for word in addresses[lane] / 4..=addresses[lane].wrapping_add(bytes - 1) / 4 {
            let bank = word % 32;
            let known = &mut first[bank as usize];
            if *known == u64::MAX {
                *known = word;
            } else if *known != word && !more.contains(&(bank, word)) {
                more.push((bank, word));
            }
        }
    }
    if first.iter().all(|w| *w == u64::MAX) {
        return 0;
    }
    let fullest = (0..32).map(|bank| more.iter().filter(|(b, _)| *b == bank).count()).max();
    1 + fullest.unwrap_or(0) as u64
}
