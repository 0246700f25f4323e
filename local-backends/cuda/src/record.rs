//! What a kernel is given of its node, as `Node` in kernels/common.cuh has it.

use crate::launch::PARAMS;
use crate::memory::address;
use crate::steps::Part;
use outboard_core::op::MAX_SRCS;
use outboard_core::{Graph, Placement, Result, TensorId};

/// A tensor: its first byte, extents and strides.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct TensorRecord {
    at: u64,
    ne: [u32; 4],
    nb: [u64; 4],
}

/// The parameter of every kernel.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(crate) struct Record {
    /// The sources, and the result.
    tensors: [TensorRecord; MAX_SRCS + 1],
    params: [u32; PARAMS],
    /// What the host has prepared for it, or what its passes leave for one another.
    pub(crate) table: u64,
    /// Where kernels say that a value is wrong.
    pub(crate) fault: u64,
    number: u32,
    unused: u32,
}

/// Bytes of a fault: the node, the reason, the value, the limit.
pub(crate) const FAULT_BYTES: usize = 16;

impl Record {
    /// That of a part of a step.
    pub(crate) fn new(graph: &Graph, placement: &Placement, part: &Part) -> Result<Record> {
        let mut record = Record { params: part.params, number: part.id.index() as u32, ..Record::default() };
        for (place, src) in record.tensors.iter_mut().zip(&part.srcs) {
            if let Some(src) = *src {
                *place = tensor(graph, placement, src)?;
            }
        }
        record.tensors[MAX_SRCS] = tensor(graph, placement, part.id)?;
        Ok(record)
    }
}

fn tensor(graph: &Graph, placement: &Placement, id: TensorId) -> Result<TensorRecord> {
    let tensor = graph.tensor(id);
    let at = match placement.get(tensor.root()) {
        Some(slice) => address(slice)? + tensor.offset() as u64,
        None => 0,
    };
    // `launch` has seen that extents fit.
    let (ne, nb) = (tensor.ne().map(|n| n as u32), tensor.layout().nb().map(|stride| stride as u64));
    Ok(TensorRecord { at, ne, nb })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_long_as_in_cuda() {
        assert_eq!(size_of::<TensorRecord>(), 56);
        assert_eq!(std::mem::offset_of!(Record, table), 9 * 56 + 18 * 4);
        assert_eq!(size_of::<Record>(), 600);
    }
}
