//! Products of one column that read it together, as one step; the gated unit of two of them with both; and the norm of what a product makes.

use super::{Part, Scratch, Step, Table, Used};
use crate::kernels::{Kernel, Variant};
use crate::launch::{GATED_ROWS, MOST_BLOCKS, PACKED, Pass};
use outboard_core::op::Op;
use outboard_core::{Graph, Placement, TensorId};

/// Products of a step, as in kernels/mul_mat_vec.cuh.
const MOST: usize = 3;
/// Results that become signed bytes together.
const GROUP: usize = 32;
/// Such groups of a gated unit at most: there is a zero for each.
const MOST_GROUPS: usize = 1 << 16;

/// Longest row that the last block of a product norms, with fewer threads than a norm of its own would have: longer ones take it more time than a
/// launch.
const MOST_NORMED: usize = 4096;

/// Joins what belongs together.
pub(super) fn join(graph: &Graph, placement: &Placement, uses: &[usize], steps: &mut Vec<Step>) {
    let mut at = 0;
    while at < steps.len() {
        if let Some(joined) = gated(graph, placement, uses, &steps[at..]) {
            let columns = joined.columns;
            steps.splice(at..at + 3, [joined.step]);
            if let Some(columns) = columns {
                // Those that read what it leaves, until something else is left there.
                let until = steps[at + 1..].iter_mut().take_while(|step| step.scratch != Scratch::Written);
                for reader in until.filter(|step| step.scratch == Scratch::Read) {
                    reader.parts.iter_mut().for_each(|part| part.table = Table::Scratch(columns));
                }
            }
        } else {
            let count = together(graph, placement, &steps[at..]);
            if let Some(joined) = many(&steps[at..at + count]) {
                steps.splice(at..at + count, [joined]);
            } else if let Some(joined) = normed(graph, placement, &steps[at..]) {
                steps.splice(at..at + 2, [joined]);
            }
        }
        at += 1;
    }
}

/// The product with one column that a step computes.
struct Product<'a> {
    id: TensorId,
    pass: &'a Pass,
}

fn product<'a>(graph: &Graph, step: &'a Step) -> Option<Product<'a>> {
    let id = step.only()?;
    let pass = step.launch.passes.last()?;
    // Of one batch: it has a block for some rows then, and no more.
    let is_column = graph.tensor(id).ne()[1..] == [1, 1, 1];
    (is_column && pass.variant.kernel.is_mul_mat_vec()).then_some(Product { id, pass })
}

/// How many steps from the first on are products that may be computed together.
fn together(graph: &Graph, placement: &Placement, steps: &[Step]) -> usize {
    let Some(first) = steps.first().and_then(|step| product(graph, step)) else { return 1 };
    let mut used = Vec::new();
    for (i, step) in steps.iter().take(MOST).enumerate() {
        let mine = Used::of(graph, placement, step);
        let joins = i == 0
            || product(graph, step).is_some_and(|product| product.pass.variant.entry == first.pass.variant.entry)
                && reads_as(step, &steps[0])
                && used.iter().all(|before: &Used| !before.meets(&mine));
        if !joins {
            return i;
        }
        used.push(mine);
    }
    used.len()
}

/// Whether a product has the same column as another one, read in the same way: signed bytes that are there already.
fn reads_as(step: &Step, first: &Step) -> bool {
    let [mine, theirs] = [&step.parts[0], &first.parts[0]];
    mine.srcs.get(1) == theirs.srcs.get(1)
        && mine.params == theirs.params
        && step.launch.passes.len() == 1
        && (step.scratch == Scratch::Read) == (first.scratch != Scratch::Unused)
}

/// Some products as one step.
fn many(steps: &[Step]) -> Option<Step> {
    let [first, _, ..] = steps else { return None };
    let mut parts: Vec<_> = steps.iter().flat_map(|step| &step.parts).cloned().collect();
    // What is behind the last one stands for it.
    parts.resize(MOST, parts.last()?.clone());
    let blocks = steps.iter().map(|step| step.launch.passes.last().map_or(0, |pass| pass.blocks)).sum();
    joined(first, &steps.iter().collect::<Vec<_>>(), parts, "many", blocks)
}

/// A step that does what others do: the passes of the first one, of which the last one is for all of them.
fn joined(first: &Step, steps: &[&Step], parts: Vec<Part>, word: &str, blocks: u64) -> Option<Step> {
    let kernel = first.launch.passes.last()?.variant.kernel;
    let passes = steps.iter().filter_map(|step| step.launch.passes.last());
    // Rows are as long, and as many for a block, in all of them.
    let Pass { variant, lanes, .. } =
        passes.filter(|pass| pass.variant.kernel == kernel).min_by_key(|pass| pass.lanes)?;
    let variant = Variant { entry: format!("{}_{word}", variant.entry), ..variant.clone() };
    let lanes = *lanes;
    if blocks > MOST_BLOCKS {
        return None;
    }
    let mut launch = first.launch.clone();
    launch.passes.pop();
    launch.passes.push(Pass { variant, lanes, blocks });
    launch.work = steps.iter().map(|step| step.launch.work).fold(0, u64::saturating_add);
    Some(Step { parts, launch, functions: Vec::new(), scratch: first.scratch })
}

/// A gated unit with its products, and where in scratch memory it leaves its result as signed bytes, if it does.
struct GatedUnit {
    step: Step,
    columns: Option<usize>,
}

/// The first three steps as one, if they are two products and the gated unit that is all that is made of them.
fn gated(graph: &Graph, placement: &Placement, uses: &[usize], steps: &[Step]) -> Option<GatedUnit> {
    let [a, b, unit, ..] = steps else { return None };
    if together(graph, placement, &steps[..2]) < 2 {
        return None;
    }
    let (result, made) = (unit.only()?, [product(graph, a)?.id, product(graph, b)?.id]);
    let Some(Op::Glu(_)) = graph.tensor(result).op() else { return None };
    let [Some(gate), Some(up)] = *graph.tensor(result).srcs() else { return None };
    let [gate_step, up_step] = if [gate, up] == made {
        [a, b]
    } else if [up, gate] == made {
        [b, a]
    } else {
        return None;
    };
    let is_all = |id: TensorId| uses[id.index()] == 1 && !graph.tensor(id).is_output();
    // Nothing is added to the products, and all are of the same rows.
    let is_plain = |step: &Step| step.parts[0].srcs.iter().flatten().count() == 2;
    let rows = graph.tensor(result).ne()[0];
    let is_right = made.iter().all(|&id| is_all(id) && graph.tensor(id).ne() == graph.tensor(result).ne())
        && is_plain(a)
        && is_plain(b)
        && graph.tensor(result).layout().is_contiguous()
        && rows / GROUP <= MOST_GROUPS;
    // Its result may lie where their results would be, but not where something is read meanwhile: signed bytes are not where the column is.
    let read = [a, b].into_iter().flat_map(|step| {
        let count = if step.scratch == Scratch::Unused { 2 } else { 1 };
        step.parts[0].srcs.iter().take(count).flatten()
    });
    let bytes = |id| placement.bytes(graph, id);
    let written = bytes(result)?;
    let is_apart = read.into_iter().all(|&src| bytes(src).is_some_and(|src| !src.meets(&written)));
    if is_right && is_apart { step_of_gated(a, [gate_step, up_step, unit], rows) } else { None }
}

fn step_of_gated(first: &Step, [gate, up, unit]: [&Step; 3], rows: usize) -> Option<GatedUnit> {
    let begin = match first.parts[0].table {
        Table::Scratch(at) => at,
        Table::Of(_) | Table::Zeros(_) => 0,
    };
    // Behind the column that it reads.
    let columns = begin + first.launch.scratch;
    let mut parts = [gate, up, unit].map(|step| step.parts[0].clone());
    parts[0].table = first.parts[0].table;
    if parts[2].params[PACKED] != 0 {
        parts[1].table = Table::Zeros(rows / GROUP);
        parts[2].table = Table::Scratch(columns);
    }
    let blocks = rows.div_ceil(GATED_ROWS) as u64;
    let mut step = joined(first, &[first, gate, up, unit], parts.to_vec(), "gated", blocks)?;
    step.launch.scratch = columns + unit.launch.scratch;
    let leaves = unit.launch.scratch > 0;
    if leaves {
        step.scratch = Scratch::Written;
    }
    Some(GatedUnit { step, columns: leaves.then_some(columns) })
}

/// The first two steps as one, if they are a product and the norm of its result, which its last block computes then.
fn normed(graph: &Graph, placement: &Placement, steps: &[Step]) -> Option<Step> {
    let [first, norm, ..] = steps else { return None };
    let (made, _) = (product(graph, first)?, norm.only()?);
    let [Pass { variant, blocks: 1, .. }] = &norm.launch.passes[..] else { return None };
    // RMS_NORM of a row that is read in wide words, as models have it.
    let [_, 0, 1, ..] = norm.parts[0].params else { return None };
    let [x, others @ ..] = &norm.parts[0].srcs[..] else { return None };
    // Of what other blocks write, that block reads the row alone as what it has become.
    let written = placement.bytes(graph, made.id)?;
    let mut others = others.iter().flatten().map(|&src| placement.bytes(graph, src));
    if variant.kernel != Kernel::Norm
        || *x != Some(made.id)
        || graph.tensor(made.id).ne()[0] > MOST_NORMED
        || others.any(|bytes| bytes.is_none_or(|bytes| bytes.meets(&written)))
    {
        return None;
    }
    let [product, norm_part] = [first, norm].map(|step| step.parts[0].clone());
    let count = Part { table: Table::Zeros(1), ..norm_part.clone() };
    let mut step = joined(first, &[first, norm], vec![product, norm_part, count], "normed", made.pass.blocks)?;
    step.launch.scratch = first.launch.scratch.max(norm.launch.scratch);
    step.scratch = Scratch::Written;
    Some(step)
}
