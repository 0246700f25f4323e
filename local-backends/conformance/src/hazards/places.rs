//! Where the tensors of such a graph lie: apart, or where others were whose life is over.

use crate::fill::Random;
use outboard_core::{Graph, LeafKind, TensorId};
use std::ops::Range;

/// Tensors begin at multiples of it, and are so far apart.
const GUARD: usize = 256;
/// Places that are tried for a tensor.
const TRIES: usize = 12;

/// The memory of a graph.
pub(super) struct Places {
    /// Of each root its bytes; `None` of views and of what is empty.
    pub(super) of: Vec<Option<Range<usize>>>,
    pub(super) size: usize,
}

/// The first and the last node at which a root's memory is used; the last is beyond all where it is looked at afterwards.
pub(super) fn lives(graph: &Graph) -> Vec<(usize, usize)> {
    let mut lives: Vec<(usize, usize)> = graph.ids().map(|id| (id.index(), id.index())).collect();
    for id in graph.ids() {
        let tensor = graph.tensor(id);
        for used in tensor.sources().map(|src| graph.tensor(src).root()) {
            lives[used.index()].1 = lives[used.index()].1.max(id.index());
        }
        let stays = matches!(tensor.leaf(), Some(LeafKind::State | LeafKind::Weight)) || tensor.is_output();
        if stays {
            lives[tensor.root().index()].1 = usize::MAX;
        }
        if tensor.leaf().is_some() {
            lives[id.index()].0 = 0;
        }
    }
    lives
}

/// Tensors one behind the other.
pub(super) fn apart(graph: &Graph) -> Places {
    let mut end = GUARD;
    let of = graph.ids().map(|id| {
        let size = size_of(graph, id)?;
        let start = end;
        end = (start + size + GUARD).next_multiple_of(GUARD);
        Some(start..start + size)
    });
    Places { of: of.collect(), size: end }
}

fn size_of(graph: &Graph, id: TensorId) -> Option<usize> {
    let tensor = graph.tensor(id);
    Some(tensor.layout().span()).filter(|&size| tensor.root() == id && size > 0)
}

/// Results in the memory of others, where those are not needed any more: on the last source as a whole, or anywhere on what is over.
pub(super) fn shared(graph: &Graph, random: &mut Random) -> Places {
    let (lives, mut places) = (lives(graph), apart(graph));
    for id in graph.nodes() {
        let Some(size) = size_of(graph, id) else { continue };
        for _ in 0..TRIES {
            let Some(place) = candidate(graph, &places, id, size, random) else { continue };
            if is_free(graph, &lives, &places, id, &place) {
                places.of[id.index()] = Some(place);
                break;
            }
        }
    }
    places
}

/// A place that a result could have.
fn candidate(graph: &Graph, places: &Places, id: TensorId, size: usize, random: &mut Random) -> Option<Range<usize>> {
    let sources: Vec<TensorId> = graph.tensor(id).sources().collect();
    let on = if random.chance(2) && !sources.is_empty() {
        graph.tensor(sources[random.below(sources.len())]).root()
    } else {
        TensorId::from_index(random.below(id.index()))
    };
    let place = places.of.get(on.index())?.clone()?;
    let shift = if random.chance(3) { GUARD * random.below(place.len() / GUARD + 1) } else { 0 };
    Some(place.start + shift..place.start + shift + size).filter(|place| place.end <= places.size)
}

/// Whether nothing lies there whose life meets that of the node; a source may end where the result takes it over as a whole.
fn is_free(graph: &Graph, lives: &[(usize, usize)], places: &Places, id: TensorId, place: &Range<usize>) -> bool {
    let node = graph.tensor(id);
    let in_place = |other: TensorId| {
        let Some(op) = node.op() else { return false };
        let taken: Vec<_> = node.sources().filter(|&src| graph.tensor(src).root() == other).collect();
        let is_one = taken.len() == 1 && graph.tensor(taken[0]).layout() == node.layout();
        let at = node.srcs().iter().position(|src| taken.first() == src.as_ref());
        let whole = places.of[other.index()].as_ref() == Some(place);
        is_one && whole && at.is_some_and(|at| op.in_place().contains(&at))
    };
    graph.ids().all(|other| {
        let Some(there) = places.of[other.index()].as_ref().filter(|_| other != id) else { return true };
        let apart = place.end <= there.start || there.end <= place.start;
        let (mine, theirs) = (lives[id.index()], lives[other.index()]);
        let over = theirs.1 < mine.0 || mine.1 < theirs.0 || theirs.1 == mine.0 && in_place(other);
        apart || over
    })
}
