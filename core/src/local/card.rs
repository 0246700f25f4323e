//! What devices whose kernels run on a card have in common: how their errors name nodes, and which nodes a kernel may compute together.

use crate::op::{BinaryKind, Op};
use crate::{DType, Error, Graph, Placement, TensorId};

/// An error of a device while it was at some nodes, with the name of the first; others stay as they are.
pub fn blame(graph: &Graph, first: TensorId, nodes: u64, error: Error) -> Error {
    match error {
        Error::Device { device, op: None, detail } => {
            let detail = match nodes {
                1 => detail,
                more => format!("{detail}; it was at this or one of the {} ops behind", more - 1),
            };
            Error::Device { device, op: Some(graph.label(first)), detail }
        }
        error => error,
    }
}

/// What kernels have found wrong, as an error of the device of that id: one more than the node's number, the reason, the value, and what it must be
/// below. `None` if that number is 0.
pub fn wrong_value(graph: &Graph, id: &str, fault: [u32; 4]) -> Option<Error> {
    let [number, reason, value, limit] = fault;
    let node = TensorId::from_index(usize::try_from(number.checked_sub(1)?).unwrap_or(usize::MAX));
    let what = match reason {
        1 => "row",
        2 => "position",
        3 => "sequence",
        4 => "block",
        5 => "expert",
        6 => "token",
        7 => "step",
        8 => "id",
        _ => "value",
    };
    let op = graph.get(node).map(|_| graph.label(node));
    let detail = format!("{what} {} is outside 0..{limit}", value as i32);
    Some(Error::Device { device: id.to_owned(), op, detail })
}

/// What `sum` adds to `product`, a MUL_MAT, if it is all that is made of it: then one kernel may compute both, if it writes every element of the result once,
/// and has read what is added to that element before. `uses` are those of the graph ([`Graph::uses`]).
pub fn added_to_product(
    graph: &Graph,
    placement: &Placement,
    uses: &[usize],
    product: TensorId,
    sum: TensorId,
) -> Option<TensorId> {
    let (made, result) = (graph.tensor(product), graph.tensor(sum));
    let Some(Op::Binary(binary)) = result.op() else { return None };
    let is_alone = uses[product.index()] == 1 && !made.is_output() && matches!(made.op(), Some(Op::MulMat(_)));
    if binary.kind != BinaryKind::Add || !is_alone || result.ne() != made.ne() {
        return None;
    }
    let added = match *result.srcs() {
        [Some(a), Some(b)] if a == product && b != product => b,
        [Some(a), Some(b)] if b == product && a != product && graph.tensor(a).ne() == made.ne() => a,
        _ => return None,
    };
    // An element may be written where the one that is added was read.
    let (to, from) = (placement.bytes(graph, sum)?, placement.bytes(graph, added)?);
    let is_in_place = from == to && graph.tensor(added).layout().nb() == result.layout().nb();
    let mut read = made.sources().filter_map(|src| placement.bytes(graph, src));
    let is_apart = read.all(|src| !to.meets(&src)) && (!to.meets(&from) || is_in_place);
    is_apart.then_some(added)
}

/// What `product` multiplies each row of a norm with, if it is all that is made of the norm: then one kernel may compute both. `uses` are those of
/// the graph ([`Graph::uses`]).
pub fn scale_of_norm(
    graph: &Graph,
    placement: &Placement,
    uses: &[usize],
    norm: TensorId,
    product: TensorId,
) -> Option<TensorId> {
    let (normed, result) = (graph.tensor(norm), graph.tensor(product));
    let Some(Op::Binary(binary)) = result.op() else { return None };
    let is_alone = uses[norm.index()] == 1 && !normed.is_output();
    if binary.kind != BinaryKind::Mul || !matches!(normed.op(), Some(Op::Norm(_))) || !is_alone {
        return None;
    }
    let scale = match *result.srcs() {
        [Some(a), Some(b)] if a == norm && b != norm => b,
        [Some(a), Some(b)] if b == norm && a != norm => a,
        _ => return None,
    };
    let (weight, x) = (graph.tensor(scale), normed.srcs().first().copied().flatten()?);
    let is_row = weight.dtype() == DType::F32 && weight.ne() == [result.ne()[0], 1, 1, 1];
    // A row may be written where it was read; another one would be spoilt before it is read.
    let (from, to) = (placement.bytes(graph, x)?, placement.bytes(graph, product)?);
    let is_in_place = from == to && graph.tensor(x).layout().nb() == result.layout().nb();
    let is_apart = !to.meets(&from) || is_in_place;
    let keeps_scale = !to.meets(&placement.bytes(graph, scale)?);
    (is_row && result.ne() == normed.ne() && is_apart && keeps_scale).then_some(scale)
}
