//! How FLASH_ATTN_EXT is launched.

use crate::kernels::{Kernel, Variant};
use crate::launch::{Launch, Node, Pass, is_wide, number};
use crate::tiles::TENSOR_CORES;
use outboard_core::op::FlashAttn;
use outboard_core::{DType, Tensor};

/// Longest key and value of attention, in elements.
const MAX_HEAD: usize = 576;
/// Those that are longer have no kernel for their type.
const LONG_HEAD: usize = 256;
/// Lanes that take a query, some heads and a part of the keys.
const LANES: u32 = 32;
/// Lanes that put the parts of a result together.
const PARTS_LANES: u32 = 256;
/// Warps of attention that keep a large card busy.
const WARPS: usize = 2048;
/// Parts into which keys are divided at most to have them.
const MOST_PARTS: usize = 32;
/// Queries up to which a block takes each, with a part of the keys.
const FEW_QUERIES: usize = 8;
/// Threads of such a block, the heads that it has room for, and the keys that it takes at once.
const FEW_LANES: u32 = 128;
const FEW_HEADS: usize = 4;
const FEW_KEYS: usize = 32;
/// Blocks that a large card has room for at once, and parts at most to have them.
const FEW_BLOCKS: usize = 512;
pub(crate) const MOST_FEW_PARTS: usize = 128;
/// Threads of a block of tensor cores, its rows, and blocks that a multiprocessor has room for.
const TILE_LANES: u32 = 128;
pub(crate) const TILE_ROWS: usize = 64;
const TILE_BLOCKS: usize = 2;
/// Keys of a part of such a block at least.
const TILE_KEYS: usize = 256;

pub(crate) fn flash_attn(node: &Node, op: &FlashAttn) -> Option<Launch> {
    let [q, k, v] = [node.src(0)?, node.src(1)?, node.src(2)?];
    let mask = node.src(3).map_or(DType::F32, Tensor::dtype);
    let (d, dv) = (q.ne()[0], v.ne()[0]);
    if d > MAX_HEAD || dv > MAX_HEAD || q.ne()[3] != 1 {
        return None;
    }
    let of_type = match (k.dtype(), v.dtype()) {
        _ if d.max(dv) > LONG_HEAD => "ANY",
        (DType::F16, DType::F16) => "F16",
        (DType::Q8_0, DType::Q8_0) => "Q8_0",
        _ => "ANY",
    };
    let keys = keys(node, op)?;
    let sharing = q.ne()[2] / k.ne()[2].max(1);
    let are_wide = is_wide(q, 4) && is_wide(k, 8) && is_wide(v, 8);
    let is_usual = of_type == "F16" && d == dv && matches!(d, 64 | 128) && are_wide;
    let (pass, heads, parts) = match (is_usual, q.ne()[1]) {
        (true, ..=FEW_QUERIES) => few(q, k, keys),
        (true, _) if node.card.capability >= TENSOR_CORES => tiles(node, q, k, keys),
        _ => many(q, sharing, keys, (of_type, d.max(dv))),
    };
    let mut launch = Launch { work: work_of_tiles(&pass, parts, keys, d), ..Launch::new(pass) };
    if parts > 1 {
        let results = q.ne()[1] * q.ne()[2];
        let variant = Variant::of(Kernel::FlashAttnParts, &[]);
        launch.passes.push(Pass { variant, lanes: PARTS_LANES, blocks: results as u64 });
        // Each part has two numbers more than a result.
        launch.scratch = results * parts * (dv + 2).next_multiple_of(4);
    }
    let [window, block] = [u32::try_from(op.window).ok()?, u32::try_from(op.block).ok()?];
    let types = [k.dtype(), v.dtype(), mask].map(number);
    let wide = [k, v].map(|cache| u32::from(is_wide(cache, 4)));
    let params = [op.scale.to_bits(), window, op.softcap.to_bits(), block, parts as u32];
    Some(launch.with(&[&params[..], &types, &wide, &[heads as u32]].concat()))
}

/// A warp for a query, some heads and a part of the keys; the heads, and the parts.
fn many(q: &Tensor, sharing: usize, keys: usize, (of_type, length): (&str, usize)) -> (Pass, usize, usize) {
    let (heads, fours, room) = heads_at_once(sharing, length, of_type == "ANY");
    let groups = q.ne()[1] * q.ne()[2] / heads;
    let parts = parts_of_keys(groups, keys);
    let variant = Variant::of(Kernel::FlashAttn, &[of_type, &fours.to_string(), &room.to_string()]);
    (Pass { variant, lanes: LANES, blocks: (groups * parts) as u64 }, heads, parts)
}

/// A block for a query, some heads that share keys and a part of these; the heads, and the parts.
fn few(q: &Tensor, k: &Tensor, keys: usize) -> (Pass, usize, usize) {
    let [d, queries, heads, _] = q.ne();
    let shared = k.ne()[2].max(1);
    let room = if heads > shared { FEW_HEADS } else { 1 };
    let groups = queries * shared * (heads / shared).div_ceil(room);
    let parts = FEW_BLOCKS.div_ceil(groups.max(1)).min(keys.div_ceil(FEW_KEYS)).clamp(1, MOST_FEW_PARTS);
    let variant = Variant::of(Kernel::FlashAttnFew, &[&d.to_string(), &room.to_string()]);
    (Pass { variant, lanes: FEW_LANES, blocks: (groups * parts) as u64 }, room, parts)
}

/// A block for a tile of queries and the heads that share keys, and a part of these, on tensor cores; the heads, and the parts.
fn tiles(node: &Node, q: &Tensor, k: &Tensor, keys: usize) -> (Pass, usize, usize) {
    let [d, queries, heads, _] = q.ne();
    let shared = k.ne()[2].max(1);
    let tiles = (queries * (heads / shared)).div_ceil(TILE_ROWS) * shared;
    let wanted = TILE_BLOCKS * node.card.processors / tiles.max(1);
    let parts = wanted.min(keys.div_ceil(TILE_KEYS)).clamp(1, MOST_FEW_PARTS);
    let variant = Variant::of(Kernel::FlashAttnTiles, &[&d.to_string()]);
    (Pass { variant, lanes: TILE_LANES, blocks: (tiles * parts) as u64 }, heads / shared, parts)
}

/// Operations of tiles, also of rows that are not there.
fn work_of_tiles(pass: &Pass, parts: usize, keys: usize, d: usize) -> u64 {
    match pass.variant.kernel {
        Kernel::FlashAttnTiles => {
            let rows = pass.blocks / parts as u64 * TILE_ROWS as u64;
            rows.saturating_mul(keys as u64).saturating_mul(4 * d as u64)
        }
        _ => 0,
    }
}

/// Keys that a query may see.
pub(crate) fn keys(node: &Node, op: &FlashAttn) -> Option<usize> {
    match op.block {
        0 => Some(node.src(1)?.ne()[1]),
        block => Some(node.src(6)?.ne()[0].saturating_mul(block)),
    }
}

/// Of the heads that share keys: how many a warp takes, for how many fours of a value for each lane, and for how many heads its kernel has room.
fn heads_at_once(sharing: usize, length: usize, any_type: bool) -> (usize, usize, usize) {
    let (fours, rooms): (usize, &[usize]) = match length {
        _ if any_type => (5, &[1]),
        0..=128 => (1, &[1, 4, 8]),
        _ => (2, &[4]),
    };
    let most = rooms.last().copied().unwrap_or(1);
    let heads = (1..=most).rev().find(|&heads| sharing.is_multiple_of(heads)).unwrap_or(1);
    let room = rooms.iter().copied().find(|&room| room >= heads).unwrap_or(1);
    (heads, fours, room)
}

/// Parts into which keys are divided, so that a card has enough warps where there are few queries.
fn parts_of_keys(groups: usize, keys: usize) -> usize {
    let wanted = WARPS.div_ceil(groups.max(1));
    wanted.min(keys.div_ceil(2 * LANES as usize)).clamp(1, MOST_PARTS)
}
