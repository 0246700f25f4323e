//! Where lanes that part at a branch come together again: at its immediate post-dominator (Cooper, Harvey and Kennedy, "A simple, fast
//! dominance algorithm", 2001, on the graph with its edges turned round).
use super::op::{Instr, Op};
use std::collections::BTreeSet;

/// The join of a branch whose lanes meet no more before they end.
pub(crate) const NEVER: u32 = u32::MAX;

/// Where control goes from an instruction; `None` is the end of the lane.
fn targets(code: &[Instr], at: usize) -> Vec<Option<u32>> {
    let mut found = match &code[at].op {
        Op::Branch { to, .. } => vec![Some(*to)],
        Op::Switch { to, .. } => to.iter().map(|t| Some(*t)).collect(),
        Op::Exit | Op::Trap => vec![None],
        _ => return vec![Some(at as u32 + 1)],
    };
    if code[at].guard.is_some() {
        found.push(Some(at as u32 + 1));
    }
    found
}

fn ends_block(op: &Op) -> bool {
    matches!(op, Op::Branch { .. } | Op::Switch { .. } | Op::Exit | Op::Trap)
}

/// First instructions of the basic blocks.
fn leaders(code: &[Instr]) -> Vec<u32> {
    let mut found = BTreeSet::from([0]);
    for at in (0..code.len()).filter(|at| ends_block(&code[*at].op)) {
        found.extend(targets(code, at).into_iter().flatten());
        if at + 1 < code.len() {
            found.insert(at as u32 + 1);
        }
    }
    found.into_iter().collect()
}

/// Fills in the joins of all branches.
pub(super) fn joins(code: &mut [Instr]) {
    let leaders = leaders(code);
    let count = leaders.len();
    let block_of = |at: u32| leaders.partition_point(|l| *l <= at) - 1;
    let length = code.len();
    let end_of = |block: usize| leaders.get(block + 1).map_or(length, |l| *l as usize) - 1;
    // Node `count` is the end of every lane.
    let after: Vec<Vec<usize>> =
        (0..count).map(|b| targets(code, end_of(b)).into_iter().map(|t| t.map_or(count, block_of)).collect()).collect();
    let dominator = post_dominators(&after);
    let join: Vec<u32> =
        (0..count).map(|b| dominator[b].and_then(|d| leaders.get(d)).copied().unwrap_or(NEVER)).collect();
    for block in 0..count {
        if let Op::Branch { join: at, .. } | Op::Switch { join: at, .. } = &mut code[end_of(block)].op {
            *at = join[block];
        }
    }
}

/// The immediate post-dominator of every block; `None` for those that never end.
fn post_dominators(after: &[Vec<usize>]) -> Vec<Option<usize>> {
    let end = after.len();
    let mut before = vec![Vec::new(); end + 1];
    for (block, nexts) in after.iter().enumerate() {
        for next in nexts {
            before[*next].push(block);
        }
    }
    let order = order_from(end, &before);
    let mut rank = vec![usize::MAX; end + 1];
    for (i, block) in order.iter().enumerate() {
        rank[*block] = i;
    }
    let mut dominator: Vec<Option<usize>> = vec![None; end + 1];
    dominator[end] = Some(end);
    let mut changed = true;
    while changed {
        changed = false;
        for &block in order.iter().skip(1) {
            let known = after[block].iter().copied().filter(|n| dominator[*n].is_some());
            let new = known.reduce(|a, b| common(a, b, &dominator, &rank));
            if new != dominator[block] {
                dominator[block] = new;
                changed = true;
            }
        }
    }
    dominator
}

/// The nearest block that dominates both.
fn common(mut a: usize, mut b: usize, dominator: &[Option<usize>], rank: &[usize]) -> usize {
    while a != b {
        if rank[a] > rank[b] {
            a = dominator[a].unwrap_or(b);
        } else {
            b = dominator[b].unwrap_or(a);
        }
    }
    a
}

/// Blocks in reverse postorder of a walk against the edges.
fn order_from(start: usize, before: &[Vec<usize>]) -> Vec<usize> {
    let mut seen = vec![false; before.len()];
    let (mut order, mut stack) = (Vec::new(), vec![(start, 0)]);
    seen[start] = true;
    while let Some((block, next)) = stack.pop() {
        match before[block].get(next) {
            Some(&to) => {
                stack.push((block, next + 1));
                if !std::mem::replace(&mut seen[to], true) {
                    stack.push((to, 0));
                }
            }
            None => order.push(block),
        }
    }
    order.reverse();
    order
}
