//! A device that pads matrices as CUDA does. None of ggml's does so without a card, so two functions of the library are replaced: the one that says how
//! much memory a tensor takes, and the one that gives it its place, which writes zeros behind it.

use crate::devices::devices;
use crate::functions::Object;
use crate::library::Library;
use crate::tensors::kind;
use crate::{VARIABLE, ggml_device, places};
use bytes::Bytes;
use outboard_core::local::LocalDevice;
use outboard_core::op::{MulMat, View};
use outboard_core::quant::quantize_row;
use outboard_core::{
    DType, Device, Graph, GraphBuilder, Host, LeafKind, Placement, Slice, TensorId, Usage, WeightTail,
};
use outboard_host::MemoryBudget;
use outboard_reference::reference_device;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(30);
/// `MATRIX_ROW_PADDING`.
const ROW: usize = 512;
/// What 15 blocks of Q8_0 take.
const TAIL: usize = 510;

type AllocSize = unsafe extern "C" fn(Object, Object) -> usize;
type TensorAlloc = unsafe extern "C" fn(Object, Object, *mut c_void) -> c_int;

/// The library's own functions.
static OWN: OnceLock<(AllocSize, TensorAlloc)> = OnceLock::new();

/// The beginning of `ggml_tensor`.
#[repr(C)]
struct Head {
    kind: c_int,
    buffer: Object,
    ne: [i64; 4],
    nb: [usize; 4],
}

/// Bytes behind the last row that CUDA reads.
unsafe fn padding(tensor: Object) -> usize {
    // SAFETY: a tensor of the library.
    let head = unsafe { &*tensor.cast::<Head>() };
    let blocks = DType::ALL.into_iter().find(|dtype| dtype.is_quantized() && kind(*dtype) == Some(head.kind));
    let rest = (ROW - head.ne[0] as usize % ROW) % ROW;
    blocks.map_or(0, |dtype| rest / dtype.block_len() * dtype.block_bytes())
}

unsafe extern "C" fn padded_size(kind: Object, tensor: Object) -> usize {
    // SAFETY: as the caller promises.
    unsafe { OWN.get().unwrap().0(kind, tensor) + padding(tensor) }
}

unsafe extern "C" fn padded_alloc(buffer: Object, tensor: Object, at: *mut c_void) -> c_int {
    // SAFETY: as the caller promises; that the padding is in the buffer is what is tested here.
    unsafe {
        let head = &*tensor.cast::<Head>();
        let size = head.nb[3] * head.ne[3] as usize;
        at.cast::<u8>().add(size).write_bytes(0, padding(tensor));
        OWN.get().unwrap().1(buffer, tensor, at)
    }
}

/// ggml's CPU device as it is, and one that pads. `None`, with a line, without ggml.
fn cpus() -> Option<[Arc<LocalDevice>; 2]> {
    let Some(folder) = places::told() else {
        println!("skipped: {VARIABLE} does not name ggml's libraries");
        return None;
    };
    let device = |library: Library| {
        let all = devices(&Arc::new(library));
        let cpu = all.iter().find(|device| device.name == "CPU").unwrap();
        ggml_device(&Host::new(), cpu, "CPU", 1, &MemoryBudget::new(Some(1 << 30)))
    };
    let [plain, mut padded] = [(); 2].map(|()| Library::open(&folder, Some("cpu")).unwrap());
    let f = &mut padded.functions;
    OWN.get_or_init(|| (f.ggml_backend_buft_get_alloc_size, f.ggml_backend_tensor_alloc));
    f.ggml_backend_buft_get_alloc_size = padded_size;
    f.ggml_backend_tensor_alloc = padded_alloc;
    Some([plain, padded].map(device))
}

/// A product of a matrix of this kind, of which a part of `columns` columns from `first` is taken.
fn product(leaf: LeafKind, dtype: DType, ne: [usize; 2], first: usize, columns: usize) -> Arc<Graph> {
    let mut g = GraphBuilder::new();
    let w = g.leaf(leaf, "w", dtype, &ne).unwrap();
    let nb = g.tensor(w).unwrap().layout().nb();
    let offset = first / dtype.block_len() * dtype.block_bytes();
    let view = View { ne: [columns, ne[1], 1, 1], nb, offset };
    let w = if columns == ne[0] { w } else { g.push(view, &[w]).unwrap() };
    let x = g.input("x", DType::F32, &[columns, 2]).unwrap();
    let y = g.push(MulMat, &[w, x]).unwrap();
    g.output(y);
    Arc::new(g.finish().unwrap())
}

/// Whether a device computes all of a graph.
fn computes(device: &dyn Device, graph: &Graph) -> bool {
    device.supports(graph).unwrap().flags().iter().all(|&flag| flag)
}

#[test]
fn a_device_says_what_it_wants_behind_weights() {
    let Some([plain, padded]) = cpus() else { return };
    assert_eq!(plain.info().weight_tail, WeightTail::NONE);
    assert_eq!(padded.info().weight_tail, WeightTail(TAIL as u64));
}

#[test]
fn products_are_computed_where_what_is_read_is_the_matrix_own() {
    let Some([plain, padded]) = cpus() else { return };
    use LeafKind::{State, Weight};
    // A matrix of so many columns, the part that is multiplied, and whether padding behind it is its own.
    for (leaf, columns, first, part, is_inside) in [
        (Weight, 512, 0, 512, true),
        (Weight, 64, 0, 64, true),
        (Weight, 544, 0, 544, true),
        (Weight, 512, 448, 64, true),
        // Nobody says that there is anything behind a state.
        (State, 512, 0, 512, true),
        (State, 64, 0, 64, false),
        (State, 512, 0, 64, true),
        (State, 512, 32, 64, false),
    ] {
        let graph = product(leaf, DType::Q8_0, [columns, 3], first, part);
        assert!(computes(plain.as_ref(), &graph));
        assert_eq!(computes(padded.as_ref(), &graph), is_inside, "{leaf:?} {columns} {first}..{part}");
    }
    // What is not of blocks is not padded.
    assert!(computes(padded.as_ref(), &product(State, DType::F16, [40, 3], 0, 40)));
}

fn floats(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 31 + seed * 17) % 29) as f32 / 14.0 - 1.0).collect()
}

/// What a device makes of a product whose matrix lies at 0 of a buffer of so many bytes, and what then lies in the buffer.
fn run(device: &dyn Device, graph: &Arc<Graph>, size: u64, guard: u8) -> outboard_core::Result<(Bytes, Bytes)> {
    let span = |id: TensorId| graph.tensor(id).layout().span() as u64;
    let whole = Slice::whole(device.alloc(size, Usage::Weights)?);
    let (w, queue) = (whole.part(0, span(graph.ids().next().unwrap()))?, device.queue()?);
    let place = |id: TensorId| match graph.tensor(id).leaf() {
        Some(LeafKind::Weight) => Ok(w.clone()),
        _ => device.alloc(span(id), Usage::Any).map(Slice::whole),
    };
    let places = graph.ids().map(place).collect::<outboard_core::Result<Vec<_>>>()?;
    queue.fill(&whole, guard)?;
    queue.finish(WAIT)?;
    let placement = Placement::new(graph, device, places.iter().cloned().map(Some).collect())?;
    let executable = device.compile(graph.clone(), placement)?;
    let mut matrix = vec![0; w.len() as usize];
    quantize_row(DType::Q8_0, &floats(matrix.len() / 34 * 32, 1), &mut matrix).unwrap();
    queue.write(&w, matrix.into())?;
    queue.write(
        &places[1],
        floats(span(TensorId::from_index(1)) as usize / 4, 2).iter().flat_map(|v| v.to_le_bytes()).collect(),
    )?;
    queue.execute(&executable)?;
    Ok((queue.read(&places[2])?.wait(WAIT)?, queue.read(&whole)?.wait(WAIT)?))
}

#[test]
fn a_weight_with_a_tail_is_multiplied_and_what_lies_behind_the_tail_stays() {
    let Some([_, padded]) = cpus() else { return };
    let reference = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    // As much behind the last row as there can be, and less.
    for columns in [32, 480] {
        let graph = product(LeafKind::Weight, DType::Q8_0, [columns, 3], 0, columns);
        let span = graph.tensor(TensorId::from_index(0)).layout().span();
        let (room, guard) = (span + TAIL, 40);
        let (got, memory) = run(padded.as_ref(), &graph, (room + guard) as u64, 0xff).unwrap();
        let (want, _) = run(reference.as_ref(), &graph, room as u64, 0).unwrap();
        let values =
            |bytes: &[u8]| -> Vec<f32> { bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect() };
        let far = values(&got)
            .into_iter()
            .zip(values(&want))
            .find(|(a, b)| a.is_nan() || (a - b).abs() > 0.1 + 0.01 * b.abs());
        assert_eq!(far, None, "{columns}");
        let read = span + (ROW - columns) / 32 * 34;
        assert!(memory[span..read].iter().all(|&byte| byte == 0) && read <= room, "{columns}");
        assert!(memory[room..].iter().all(|&byte| byte == 0xff), "{columns}");
    }
}

#[test]
fn a_weight_at_the_end_of_its_buffer_is_refused() {
    let Some([plain, padded]) = cpus() else { return };
    let graph = product(LeafKind::Weight, DType::Q8_0, [64, 3], 0, 64);
    let span = graph.tensor(TensorId::from_index(0)).layout().span();
    run(plain.as_ref(), &graph, span as u64, 0).unwrap();
    let error = run(padded.as_ref(), &graph, (span + TAIL - 1) as u64, 0).unwrap_err().to_string();
    let why =
        "placement of leaf w: 509 bytes of its buffer are behind it; leave 510 zeros there, which the device reads";
    assert!(error.contains(why), "{error}");
}
