//! A block: its warps, shared memory and barriers, and in which order the warps run.
use super::shadow::Shadow;
use super::warp::{State, Warp};
use super::{Random, Run};
use crate::code::lower::Special;
use crate::count::Counts;
use crate::finding::{Fault, Finding};
use crate::ptx::Place;

/// Instructions of a warp before another may run: between this and twice as many.
const TURN: u64 = 24;
/// Instructions of a warp in one block, at most; a kernel that needs more does not end.
const MAX_STEPS: u64 = 1 << 32;

/// Why a block does not go on: a fault, or the launch was told to end.
pub(super) type End = Option<Box<Finding>>;
pub(super) type Step = Result<(), End>;

#[derive(Clone, Copy, Debug, Default)]
struct Barrier {
    arrived: u32,
    waiting: u32,
    threads: Option<u32>,
}

pub(super) struct Block<'a> {
    pub(super) run: &'a Run<'a>,
    warps: Vec<Warp>,
    pub(super) shared: Vec<u8>,
    pub(super) shadow: Shadow,
    barriers: [Barrier; 16],
    pub(super) counts: Counts,
    pub(super) at: [u32; 3],
}

impl<'a> Block<'a> {
    pub(super) fn new(run: &'a Run<'a>) -> Self {
        let launch = run.launch;
        let threads = launch.block.iter().product::<u32>();
        let count = threads.div_ceil(32);
        let shared = (launch.kernel.shared + launch.dynamic_shared) as usize;
        let warps = (0..count).map(|w| Warp::new(w, (threads - w * 32).min(32), &launch.kernel)).collect();
        let mut block = Self {
            run,
            warps,
            shared: vec![0xcd; shared.next_multiple_of(16)],
            shadow: Shadow::new(shared, count as usize),
            barriers: [Barrier::default(); 16],
            counts: Counts::default(),
            at: [0; 3],
        };
        block.specials(|special| !matches!(special, Special::Block(_)));
        block
    }

    /// Sets the rows that the hardware sets.
    fn specials(&mut self, which: impl Fn(Special) -> bool) {
        let launch = self.run.launch;
        let [x, y, z] = launch.block;
        for &(row, special) in launch.kernel.specials.iter().filter(|(_, s)| which(*s)) {
            for warp in &mut self.warps {
                for lane in 0..32u32 {
                    let thread = warp.index * 32 + lane;
                    warp.rows[row as usize][lane as usize] = match special {
                        Special::Thread(0) => thread % x,
                        Special::Thread(1) => thread / x % y,
                        Special::Thread(_) => thread / x / y,
                        Special::Threads(axis) => launch.block[axis],
                        Special::Block(axis) => self.at[axis],
                        Special::Blocks(axis) => launch.grid[axis],
                        Special::Lane => lane,
                        Special::Warp => warp.index,
                        Special::Warps => (x * y * z).div_ceil(32),
                        Special::LanesBefore => (1 << lane) - 1,
                        Special::LanesUpTo => u32::MAX >> (31 - lane),
                        Special::LanesBehind => !(u32::MAX >> (31 - lane)),
                        Special::LanesFrom => !((1 << lane) - 1),
                        Special::LaneItself => 1 << lane,
                        Special::Zero => 0,
                        Special::One => 1,
                        Special::DynamicShared => launch.dynamic_shared,
                        Special::TotalShared => launch.kernel.shared + launch.dynamic_shared,
                    };
                }
            }
        }
    }

    /// Runs the block at this place of the grid.
    pub(super) fn run(&mut self, at: [u32; 3]) -> Step {
        self.at = at;
        self.shared.fill(0xcd);
        self.shadow.begin();
        self.barriers = [Barrier::default(); 16];
        self.specials(|special| matches!(special, Special::Block(_)));
        self.warps.iter_mut().for_each(Warp::begin);
        let place = u64::from(at[0]) | u64::from(at[1]) << 24 | u64::from(at[2]) << 44;
        let mut random = Random(self.run.launch.seed ^ place.wrapping_mul(0x9e37_79b9));
        let mut ready: Vec<usize> = (0..self.warps.len()).collect();
        while !ready.is_empty() {
            let drawn = random.next();
            let index = ready[(drawn % ready.len() as u64) as usize];
            let turn = TURN + (drawn >> 32) % TURN;
            let mut warp = std::mem::take(&mut self.warps[index]);
            let done = self.turn(&mut warp, turn);
            let state = warp.state;
            self.warps[index] = warp;
            done?;
            if state != State::Ready {
                self.release();
                ready.clear();
                ready.extend((0..self.warps.len()).filter(|w| self.warps[*w].state == State::Ready));
            }
        }
        self.stuck()
    }

    fn turn(&mut self, warp: &mut Warp, turn: u64) -> Step {
        if self.run.is_over() {
            return Err(None);
        }
        for _ in 0..turn {
            if warp.state != State::Ready {
                break;
            }
            self.step(warp)?;
        }
        warp.steps += turn;
        if warp.steps > MAX_STEPS {
            return Err(self.finding(warp, 0, Fault::Endless, Place::default(), "the kernel does not end".into()));
        }
        Ok(())
    }

    /// An error for every warp that waits, once nothing runs.
    fn stuck(&mut self) -> Step {
        let Some(index) = self.warps.iter().position(|w| w.state == State::Waiting) else { return Ok(()) };
        let warp = &self.warps[index];
        let pc = warp.stack.last().map_or(0, |e| e.pc as usize).saturating_sub(1);
        let place = self.run.launch.kernel.code.get(pc).map(|i| i.place).unwrap_or_default();
        let waiting = self.warps.iter().filter(|w| w.state == State::Waiting).count();
        let what = format!("{waiting} of {} warps wait at a barrier that the others do not reach", self.warps.len());
        Err(self.finding(warp, 0, Fault::Deadlock, place, what))
    }

    /// A warp reaches a barrier.
    pub(super) fn arrive(&mut self, warp: &mut Warp, id: u32, threads: Option<u32>, wait: bool) {
        let barrier = &mut self.barriers[id as usize];
        barrier.arrived |= 1 << warp.index;
        barrier.threads = threads;
        if wait {
            barrier.waiting |= 1 << warp.index;
            warp.state = State::Waiting;
        }
    }

    /// Lets go on who waits at a barrier that all have reached.
    fn release(&mut self) {
        let done = self.warps.iter().filter(|w| w.state == State::Done).fold(0, |mask, w| mask | 1u32 << w.index);
        let all = if self.warps.len() == 32 { u32::MAX } else { (1 << self.warps.len()) - 1 };
        for barrier in &mut self.barriers {
            let reached = match barrier.threads {
                Some(threads) => barrier.arrived.count_ones() * 32 >= threads,
                None => barrier.arrived | done == all,
            };
            if barrier.arrived == 0 || !reached {
                continue;
            }
            self.shadow.barrier(barrier.arrived, barrier.waiting);
            for warp in self.warps.iter_mut().filter(|w| barrier.waiting >> w.index & 1 == 1) {
                warp.state = State::Ready;
            }
            *barrier = Barrier::default();
        }
    }

    pub(super) fn finding(&self, warp: &Warp, lane: u32, fault: Fault, place: Place, what: String) -> End {
        Some(Box::new(Finding { fault, place, block: self.at, warp: warp.index, lane, what }))
    }

    /// A fault that the kernel goes on after.
    pub(super) fn note(&self, warp: &Warp, lane: u32, fault: Fault, place: Place, what: impl FnOnce() -> String) {
        if let Some(finding) = self.finding(warp, lane, fault, place, what()) {
            self.run.findings.add(*finding);
        }
    }
}
