//! Where the tensors of a graph lie, on the wire.

use crate::limits::MAX_PLACES;
use crate::v1;
use bytes::Bytes;
use outboard_core::{Error, Graph, Placement, Result, Slice, TensorId};
use prost::Message;

/// Encodes a placement; `handle` gives the handle of a slice's buffer.
pub fn encode(graph: &Graph, placement: &Placement, handle: impl Fn(&Slice) -> Result<u64>) -> Result<Bytes> {
    let mut places = v1::Places::default();
    for id in graph.ids() {
        if graph.tensor(id).root() != id {
            continue;
        }
        let Some(slice) = placement.get(id) else { continue };
        places.tensors.push(u32::try_from(id.index()).map_err(|_| Error::Misuse("a tensor id out of range".into()))?);
        places.buffers.push(handle(slice)?);
        places.offsets.push(slice.offset());
        places.lens.push(slice.len());
    }
    Ok(places.encode_to_vec().into())
}

/// Decodes places for a graph of `tensors` tensors; `slice` finds a buffer by its handle and cuts it. What the slices are
/// good for, [`Placement::new`] checks.
pub fn decode(bytes: &[u8], tensors: usize, slice: impl Fn(v1::Slice) -> Result<Slice>) -> Result<Vec<Option<Slice>>> {
    let wrong = |why: String| Err(Error::Request(format!("places of tensors: {why}")));
    if bytes.len() > MAX_PLACES {
        return wrong(format!("{} bytes, {MAX_PLACES} at most", bytes.len()));
    }
    let places = match v1::Places::decode(bytes) {
        Ok(places) => places,
        Err(e) => return wrong(e.to_string()),
    };
    let n = places.tensors.len();
    if places.buffers.len() != n || places.offsets.len() != n || places.lens.len() != n {
        return wrong("columns of different lengths".into());
    }
    let mut out = vec![None; tensors];
    let columns = places.tensors.iter().zip(&places.buffers).zip(places.offsets.iter().zip(&places.lens));
    for ((&tensor, &buffer), (&offset, &len)) in columns {
        let id = TensorId::from_index(tensor as usize);
        match out.get_mut(id.index()) {
            Some(place @ None) => *place = Some(slice(v1::Slice { buffer, offset, len })?),
            Some(_) => return wrong(format!("tensor {id:?} has two")),
            None => return wrong(format!("tensor {id:?} is not in the graph")),
        }
    }
    Ok(out)
}
