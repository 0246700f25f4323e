//! Where the tensors of a case lie: one stretch of memory with guard bytes between them, written and read as a whole.

use crate::case::Setup;
use crate::fill::{self, Random};
use outboard_core::{DType, Device, LeafKind, Placement, Result, Slice, TensorId, WeightTail};
use std::ops::Range;

/// Bytes before and behind each tensor that nobody may touch.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa5;

/// What a result holds before it is computed: NaN, or an integer that no case has.
fn unwritten(dtype: DType) -> u8 {
    if dtype == DType::I32 { 0x7f } else { 0xff }
}

/// The memory of a case before it runs.
pub(crate) struct Arena {
    pub(crate) image: Vec<u8>,
    /// Where each root lies; `None` for views and empty tensors.
    places: Vec<Option<Range<usize>>>,
    /// Roots that the graph writes.
    pub(crate) written: Vec<TensorId>,
}

impl Arena {
    /// Offsets are multiples of `align`, and behind weights are the zeros that a device wants there.
    pub(crate) fn new(name: &str, setup: &Setup, align: usize, tail: WeightTail) -> std::result::Result<Arena, String> {
        let graph = &setup.graph;
        let align = align.max(GUARD);
        let mut places: Vec<Option<Range<usize>>> = vec![None; graph.tensors().len()];
        let mut tails: Vec<Range<usize>> = Vec::new();
        let mut end = GUARD;
        for id in graph.ids() {
            let t = graph.tensor(id);
            let size = t.layout().span();
            if t.root() != id || size == 0 {
                continue;
            }
            let taken = setup.in_place.iter().find(|(node, _)| *node == id).map(|(_, src)| graph.tensor(*src));
            places[id.index()] = match taken {
                Some(src) => {
                    let root = places[src.root().index()].clone().ok_or("the source in place is empty")?;
                    let start = root.start + src.offset();
                    if src.layout() != t.layout() || start + size > root.end {
                        return Err("the result does not fit the source in place".into());
                    }
                    Some(start..start + size)
                }
                None => {
                    let start = end.next_multiple_of(align);
                    let tail = if t.leaf() == Some(LeafKind::Weight) { tail.of(t.dtype()) as usize } else { 0 };
                    tails.push(start + size..start + size + tail);
                    end = start + size + tail + GUARD;
                    Some(start..start + size)
                }
            };
        }
        let mut image = vec![GUARD_BYTE; end.next_multiple_of(align)];
        tails.into_iter().for_each(|tail| image[tail].fill(0));
        let mut written: Vec<TensorId> = Vec::new();
        for id in graph.ids().filter(|&id| graph.tensor(id).is_compute()) {
            let root = graph.tensor(id).root();
            if let Some(place) = &places[root.index()]
                && !written.contains(&root)
            {
                written.push(root);
                image[place.clone()].fill(unwritten(graph.tensor(root).dtype()));
            }
        }
        for (i, (id, fill)) in setup.fills.iter().enumerate() {
            let mut random = Random::of(&format!("{name} {i}"));
            let bytes = fill::bytes(graph.tensor(*id).layout(), fill, &mut random)?;
            if let Some(place) = &places[id.index()] {
                image[place.clone()].copy_from_slice(&bytes);
            }
        }
        Ok(Arena { image, places, written })
    }

    /// Placement in a part of a buffer that has the image's size.
    pub(crate) fn placement(&self, setup: &Setup, device: &dyn Device, whole: &Slice) -> Result<Placement> {
        let one = |place: &Option<Range<usize>>| {
            place.as_ref().map(|p| whole.part(p.start as u64, p.len() as u64)).transpose()
        };
        Placement::new(&setup.graph, device, self.places.iter().map(one).collect::<Result<_>>()?)
    }

    /// The bytes of a root in a copy of this memory.
    pub(crate) fn bytes<'a>(&self, root: TensorId, memory: &'a [u8]) -> &'a [u8] {
        self.places[root.index()].clone().and_then(|p| memory.get(p)).unwrap_or(&[])
    }

    /// The first byte outside what the graph may write that is not what it was; with `nothing`, outside of nodes' own memory.
    pub(crate) fn touched(&self, setup: &Setup, memory: &[u8], nothing: bool) -> Option<String> {
        if memory.len() != self.image.len() {
            return Some(format!("{} bytes instead of {}", memory.len(), self.image.len()));
        }
        let may = |root: &&TensorId| !nothing || setup.graph.tensor(**root).leaf().is_none();
        let free: Vec<Range<usize>> =
            self.written.iter().filter(may).filter_map(|root| self.places[root.index()].clone()).collect();
        let at =
            (0..memory.len()).find(|&i| memory[i] != self.image[i] && !free.iter().any(|range| range.contains(&i)))?;
        let mut where_ = "between tensors".to_owned();
        for id in setup.graph.ids() {
            if self.places[id.index()].as_ref().is_some_and(|p| p.contains(&at)) {
                where_ = format!("in {}", setup.graph.label(id));
            }
        }
        Some(format!("byte {at} {where_} was changed"))
    }
}
