//! The cases, one file per op (with its name in core).

use crate::case::{Case, Check, Made, Make, Suite};
use crate::fill::Fill;
use outboard_core::op::*;
use outboard_core::{DType, LeafKind};

mod add_id;
mod argmax;
mod argsort;
mod binary;
mod cast;
mod concat;
mod flash_attn;
mod get_rows;
mod glu;
mod log_prob;
mod mul_mat;
mod mul_mat_id;
mod norm;
mod penalty;
mod repeat;
mod rope;
mod sample;
mod scale;
mod set_rows;
mod soft_max;
mod sum_rows;
mod top_k;
mod unary;

/// Every case.
pub fn cases() -> Vec<Case> {
    let mut suite = Suite::default();
    let all = [
        add_id::cases,
        argmax::cases,
        argsort::cases,
        binary::cases,
        cast::cases,
        concat::cases,
        flash_attn::cases,
        get_rows::cases,
        glu::cases,
        log_prob::cases,
        mul_mat::cases,
        mul_mat_id::cases,
        norm::cases,
        penalty::cases,
        repeat::cases,
        rope::cases,
        sample::cases,
        scale::cases,
        set_rows::cases,
        soft_max::cases,
        sum_rows::cases,
        top_k::cases,
        unary::cases,
    ];
    all.iter().for_each(|add| add(&mut suite));
    suite.finish()
}

/// Types that may stand on the weights' side of a product.
fn weights() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|d| !matches!(d, DType::I32 | DType::Q8_K))
}

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Shapes for ops on rows: odd lengths, the lengths around vector registers, nothing at all.
const ROWS: [[usize; 4]; 14] = [
    [1, 1, 1, 1],
    [2, 3, 1, 1],
    [7, 5, 2, 1],
    [8, 4, 1, 1],
    [15, 1, 1, 3],
    [16, 2, 2, 2],
    [31, 3, 1, 1],
    [33, 2, 3, 2],
    [64, 7, 1, 1],
    [257, 2, 1, 1],
    [576, 5, 1, 1],
    [4096, 2, 1, 1],
    [0, 3, 1, 1],
    [5, 0, 2, 1],
];

/// An op of one F32 source: every shape, a padded source, and in place.
fn rowwise(s: &mut Suite, name: &str, op: impl Into<Op>, check: Check, fill: Fill) {
    let op: Op = op.into();
    for ne in ROWS {
        let (op, fill) = (op.clone(), fill.clone());
        s.add(format!("{name} {ne:?}"), check, |m| {
            let x = m.input(DType::F32, &ne, fill)?;
            m.push(op, &[x])
        });
    }
    let (padded, fill2) = (op.clone(), fill.clone());
    s.add(format!("{name} padded"), check, |m| {
        let x = m.padded(LeafKind::Input, DType::F32, [37, 3, 2, 2], fill2)?;
        m.push(padded, &[x])
    });
    if op.in_place().contains(&0) {
        s.add(format!("{name} in place"), check, |m| {
            let x = m.input(DType::F32, &[67, 5, 2], fill)?;
            m.push_in_place(op, &[x], 0)
        });
    }
}
