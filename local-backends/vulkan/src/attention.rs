//! How FLASH_ATTN_EXT is launched.

use crate::launch::{Launch, Node, Pass, ROW_LANES, is_whole, number};
use crate::pipelines::Kernel;
use outboard_core::op::FlashAttn;
use outboard_core::{DType, Tensor};

/// Longest key and value of attention, in elements.
const MAX_HEAD: usize = 576;
/// Fours of results that an invocation of attention has, all heads together.
const HEAD_RESULTS: usize = 8;
/// Numbers of queries that a workgroup of attention has in shared memory, of which 16 KiB are sure.
const QUERY_NUMBERS: usize = 2048;
/// Workgroups of attention that keep a large card busy.
const WORKGROUPS: usize = 768;
/// Parts into which keys are divided at most to have them.
pub(crate) const MOST_PARTS: usize = 32;

pub(crate) fn flash_attn(node: &Node, op: &FlashAttn) -> Option<Launch> {
    let [q, k, v] = [node.src(0)?, node.src(1)?, node.src(2)?];
    let mask = node.src(3).map_or(DType::F32, Tensor::dtype);
    let (d, dv) = (q.ne()[0], v.ne()[0]);
    if d > MAX_HEAD || dv > MAX_HEAD {
        return None;
    }
    // Few variants, each of which the driver compiles.
    let length = d.next_multiple_of(64).max(64);
    let fours = dv.div_ceil(4 * ROW_LANES as usize).max(1);
    let most = (HEAD_RESULTS / fours).min(QUERY_NUMBERS / length).max(1);
    let heads = heads_at_once(q.ne()[2] / k.ne()[2].max(1), most);
    let groups = q.ne()[1] * q.ne()[2] / heads;
    let parts = parts_of_keys(groups, keys(node, op)?);
    let [length, fours, heads] = [length, fours, heads].map(|n| n as u32);
    let whole = u32::from(is_whole(k) && is_whole(v));
    let constants = [number(k.dtype()), number(v.dtype()), number(mask), length, fours, heads, whole];
    // Kernels count positions in 32 bits.
    u32::try_from(keys(node, op)?).ok()?;
    let [window, block] = [u32::try_from(op.window).ok()?, u32::try_from(op.block).ok()?];
    let mut launch = Launch::new(Kernel::FlashAttn, ROW_LANES, &constants, groups * parts);
    if parts > 1 {
        let results = q.ne()[1] * q.ne()[2];
        launch.passes.push(Pass::new(Kernel::FlashAttnParts, ROW_LANES, &[], results));
        // Each part has two numbers more than a result.
        launch.scratch = results * parts * (dv + 2).next_multiple_of(4);
    }
    Some(launch.with(&[op.scale.to_bits(), window, op.softcap.to_bits(), block, parts as u32]))
}

/// Keys that a query may see.
pub(crate) fn keys(node: &Node, op: &FlashAttn) -> Option<usize> {
    match op.block {
        0 => Some(node.src(1)?.ne()[1]),
        block => Some(node.src(6)?.ne()[0].saturating_mul(block)),
    }
}

/// Heads that a workgroup of attention takes of those that share keys, so many at most.
fn heads_at_once(sharing: usize, most: usize) -> usize {
    (1..=most).rev().find(|&heads| sharing.is_multiple_of(heads)).unwrap_or(1)
}

/// Parts into which keys are divided, so that a card has enough workgroups where there are few queries.
fn parts_of_keys(groups: usize, keys: usize) -> usize {
    let wanted = WORKGROUPS.div_ceil(groups.max(1));
    wanted.min(keys.div_ceil(2 * ROW_LANES as usize)).clamp(1, MOST_PARTS)
}
