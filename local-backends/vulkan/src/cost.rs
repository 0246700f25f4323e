//! What a node takes, so that none keeps a driver busy for long.

use crate::attention::keys;
use crate::launch::{ELEMENT_LANES, Fast, MAX_SORTED, Node, PENALTY_PART, Pass, ROW_LANES, lanes_of_row, positions};
use crate::products::{FEW_COLUMNS, TILE};
use outboard_core::DeviceKind;
use outboard_core::op::{Op, Srcs};

/// Operations that a workgroup takes at least, however little it computes: on lavapipe 4 to 12 microseconds. One of attention takes longer.
const WORKGROUP: u64 = 4096;
const WORKGROUP_OF_ATTENTION: u64 = 4 * WORKGROUP;

/// Limits of one node, by the kind of its driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Operations: some seconds of a small card, and about half a minute of a driver on processors.
    pub(crate) work: u64,
    /// Iterations of an invocation's loops, all together: lavapipe ends them without a word after 65,535.
    iterations: u64,
    pub(crate) fast: Fast,
}

impl Bounds {
    /// Those of a card, or of a driver that runs on processors.
    pub(crate) fn of(kind: DeviceKind) -> Bounds {
        match kind {
            DeviceKind::Cpu => Bounds { work: 1 << 34, iterations: 60_000, fast: Fast::default() },
            // The work of a workgroup is not divided: models need less than a tenth of this.
            _ => Bounds { work: 1 << 42, iterations: 1 << 24, fast: Fast::default() },
        }
    }

    /// The same of a device that has this.
    pub(crate) fn with(self, fast: Fast) -> Bounds {
        Bounds { fast, ..self }
    }

    pub(crate) fn allow(&self, cost: &Cost) -> bool {
        cost.work <= self.work && cost.iterations <= self.iterations
    }
}

/// What a node takes.
pub(crate) struct Cost {
    pub(crate) work: u64,
    /// Iterations of an invocation, where they grow with what a client sends.
    iterations: u64,
}

/// What a node takes that is computed by these passes.
pub(crate) fn cost(node: &Node, passes: &[Pass]) -> Option<Cost> {
    let cost = cost_of_op(node)?;
    let of_group = if matches!(node.tensor.op(), Some(Op::FlashAttn(_))) { WORKGROUP_OF_ATTENTION } else { WORKGROUP };
    let groups = passes.iter().fold(0u64, |sum, pass| sum.saturating_add(pass.groups));
    Some(Cost { work: cost.work.max(groups.saturating_mul(of_group)), ..cost })
}

/// The same without what it takes to begin with a workgroup.
fn cost_of_op(node: &Node) -> Option<Cost> {
    let layouts: Vec<_> = (0..node.tensor.srcs().len()).map(|i| node.src(i).map(|src| *src.layout())).collect();
    let op = node.tensor.op()?;
    let flops = op.flops(&Srcs(&layouts), node.tensor.layout());
    let count = |i: usize| node.src(i).map_or(0, |src| src.layout().elements() as u64);
    Some(match op {
        Op::Sample(_) => selection_cost(node)?,
        Op::TopK(_) if node.src(0)?.ne()[0] > MAX_SORTED => selection_cost(node)?,
        Op::Penalty(op) => {
            let positions = positions(node, op)? as u64;
            let parts = (node.src(0)?.ne()[0] as u64).div_ceil(PENALTY_PART as u64);
            let of_row = parts.saturating_mul(positions.saturating_add(2 * PENALTY_PART as u64));
            let rows = node.src(0)?.ne()[1] as u64;
            Cost { work: of_row.saturating_mul(rows), iterations: of_row / 32 }
        }
        Op::Argsort(_) | Op::TopK(_) => {
            let n = node.src(0)?.ne()[0] as u64;
            Cost { work: count(0).saturating_mul(n), iterations: n.div_ceil(256) * n.div_ceil(4) }
        }
        // Every workgroup looks at all indices.
        Op::SetRows(_) => {
            let rows = node.src(1)?.layout().rows() as u64;
            // Each look takes some operations.
            let looks = rows.saturating_mul(count(2)).saturating_mul(4);
            Cost { work: flops.saturating_add(looks), iterations: count(2).div_ceil(32) }
        }
        Op::FlashAttn(op) => {
            let q = node.src(0)?;
            let keys = keys(node, op)? as u64;
            // Short keys and values take the time of whole vectors.
            let lanes = u64::from(ROW_LANES);
            let pair = 2 * (q.ne()[0] as u64).max(lanes) + 2 * (node.tensor.ne()[0] as u64).next_multiple_of(4 * lanes);
            let work = keys.saturating_mul(pair).saturating_mul((q.ne()[1] * q.ne()[2]) as u64);
            // For as many keys as there are lanes: octets of a key, the keys' values, and for each head reductions over subgroups.
            let step = q.ne()[0] as u64 / 8 + lanes + 2 * lanes;
            Cost { work, iterations: keys.div_ceil(lanes).saturating_mul(step) }
        }
        Op::MulMatId(_) if node.tensor.ne()[2] > FEW_COLUMNS => {
            let pairs = (node.tensor.ne()[1] * node.tensor.ne()[2]) as u64;
            let sort = 2 * pairs.div_ceil(ELEMENT_LANES.into()) + pairs / TILE as u64 + 2 * node.src(0)?.ne()[2] as u64;
            Cost { work: flops, iterations: sort.max(node.src(0)?.ne()[0] as u64 / 16) }
        }
        Op::MulMat(_) => Cost { work: flops, iterations: node.src(0)?.ne()[0] as u64 / 16 },
        // Those that go through a row do so three times at most.
        _ => Cost { work: flops, iterations: 3 * node.src(0).map_or(0, |src| src.ne()[0] as u64 / 32) },
    })
}

/// What it takes to find places in rows: three of seven digits each, and three passes for the first of all, the list and the result.
fn selection_cost(node: &Node) -> Option<Cost> {
    let (passes, x) = (24, node.src(0)?.layout());
    let (n, lanes) = (x.ne()[0], u64::from(lanes_of_row(x.ne()[0])));
    let iterations = passes * ((n as u64).div_ceil(lanes) + 64);
    Some(Cost { work: (x.rows() as u64).saturating_mul(iterations.saturating_mul(lanes)), iterations })
}
