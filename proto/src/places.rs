//! Where the tensors of a graph lie, on the wire.

use crate::limits::MAX_PLACES;
use crate::v1;
use bytes::Bytes;
use outboard_core::{Error, Graph, Placement, Result, Slice, TensorId};
use prost::Message;

/// Numbers of each place.
const COLUMNS: usize = 4;
/// Places that a graph need not have for them to be decoded, to say better what is wrong; and keys and lengths of fields.
const SLACK: usize = 64;

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
    // A number ends with a byte of less than 128, so that there are no more numbers than such bytes. Decoded, each takes 4 or 8.
    let numbers = bytes.iter().filter(|&&byte| byte < 128).count();
    if numbers > COLUMNS * (tensors + SLACK) {
        return wrong(format!("there are more than {tensors}, which is how many the graph has"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_counted_before_they_take_memory() {
        let slice = |_: v1::Slice| Err(Error::Request("no buffer".into()));
        let column = vec![1; MAX_PLACES / 8];
        for places in [
            v1::Places { lens: column.clone(), ..Default::default() },
            v1::Places { tensors: vec![0; 1 << 16], ..Default::default() },
            v1::Places { buffers: column.clone(), offsets: column, ..Default::default() },
        ] {
            let error = decode(&places.encode_to_vec(), 3, slice).unwrap_err().to_string();
            assert!(error.contains("more than 3"), "{error}");
        }
        // A few too many are decoded, and what is wrong is said as before.
        let two = v1::Places { tensors: vec![5], buffers: vec![1], offsets: vec![0], lens: vec![4] };
        let error = decode(&two.encode_to_vec(), 3, slice).unwrap_err().to_string();
        assert!(error.contains("is not in the graph"), "{error}");
        let most = v1::Places {
            tensors: (0..1 << 16).collect(),
            buffers: vec![u64::MAX; 1 << 16],
            offsets: vec![1 << 40; 1 << 16],
            lens: vec![1 << 20; 1 << 16],
        };
        let error = decode(&most.encode_to_vec(), 1 << 16, slice).unwrap_err().to_string();
        assert!(error.contains("no buffer"), "{error}");
    }
}
