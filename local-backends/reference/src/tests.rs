//! Values worked out by hand: the oracle is not only tested against itself.

use super::*;
use bytes::Bytes;
use outboard_core::op::*;
use outboard_core::*;
use std::time::Duration;

/// Runs one op on F32 or I32 sources given as (shape, values) and gives the result's values.
fn run(op: impl Into<Op>, srcs: &[Src]) -> std::result::Result<Vec<f64>, String> {
    let device = reference_device(&Host::new(), "REF", &MemoryBudget::new(None));
    let mut g = GraphBuilder::new();
    let mut ids = Vec::new();
    let mut data = Vec::new();
    for (i, src) in srcs.iter().enumerate() {
        let (dtype, shape, bytes) = match src {
            F(shape, v) => (DType::F32, *shape, v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()),
            I(shape, v) => (DType::I32, *shape, v.iter().flat_map(|v| v.to_le_bytes()).collect()),
        };
        ids.push(g.state(&format!("s{i}"), dtype, shape).map_err(|e| e.to_string())?);
        data.push(bytes);
    }
    let out = g.push(op, &ids).map_err(|e| e.to_string())?;
    let graph = Arc::new(g.finish().map_err(|e| e.to_string())?);
    let mut slices = Vec::new();
    for t in graph.tensors() {
        let size = t.layout().span().max(1) as u64;
        slices.push(Some(Slice::whole(device.alloc(size, Usage::Any).unwrap())));
    }
    let slice = |id: TensorId| {
        let t = graph.tensor(id);
        let root = slices[t.root().index()].as_ref().unwrap();
        root.part(t.offset() as u64, t.layout().span() as u64).unwrap()
    };
    let queue = device.queue().unwrap();
    for (id, data) in ids.iter().zip(data) {
        queue.write(&slice(*id), Bytes::from(data)).unwrap();
    }
    let placement = Placement::new(&graph, device.as_ref(), slices.clone()).map_err(|e| e.to_string())?;
    let exe = device.compile(graph.clone(), placement).unwrap();
    queue.execute(&exe).unwrap();
    let bytes = queue.read(&slice(out)).unwrap().wait(Duration::from_secs(10)).map_err(|e| e.to_string())?;
    let words = bytes.as_chunks::<4>().0.iter();
    Ok(match graph.tensor(out).dtype() {
        DType::I32 => words.map(|b| i32::from_le_bytes(*b).into()).collect(),
        _ => words.map(|b| f32::from_le_bytes(*b).into()).collect(),
    })
}

enum Src {
    F(&'static [usize], &'static [f32]),
    I(&'static [usize], &'static [i32]),
}
use Src::{F, I};

fn close(got: std::result::Result<Vec<f64>, String>, want: &[f64]) {
    let got = got.unwrap();
    assert_eq!(got.len(), want.len(), "{got:?} {want:?}");
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() < 1e-6 * (1.0 + w.abs()), "{got:?} {want:?}");
    }
}

#[test]
fn products() {
    let a = F(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
    let b = F(&[2, 2], &[1., 0., 1., -1.]);
    close(run(MulMat, &[a, b]), &[1., 3., 5., -1., -1., -1.]);
    let a = F(&[1, 2, 2], &[1., 2., 10., 20.]);
    let b = F(&[1, 1, 2], &[1., 3.]);
    let ids = I(&[2, 2], &[0, 1, 1, 0]);
    close(run(MulMatId, &[a, b, ids]), &[1., 2., 10., 20., 30., 60., 3., 6.]);
}

#[test]
fn rows() {
    let table = || F(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
    close(run(GetRows, &[table(), I(&[2], &[2, 0])]), &[5., 6., 1., 2.]);
    let e = run(GetRows, &[table(), I(&[1], &[3])]).unwrap_err();
    assert!(e.contains("GET_ROWS") && e.contains("row 3 is outside 0..3"), "{e}");
    assert!(run(GetRows, &[table(), I(&[1], &[-1])]).is_err());
    close(run(SetRows, &[table(), F(&[2, 1], &[9., 8.]), I(&[1], &[1])]), &[1., 2., 9., 8., 5., 6.]);
    assert!(run(SetRows, &[table(), F(&[2, 1], &[9., 8.]), I(&[1], &[7])]).is_err());
}

#[test]
fn norms_and_softmax() {
    let x = || F(&[2], &[3., 4.]);
    close(run(Norm { kind: NormKind::RmsNorm, eps: 0.0 }, &[x()]), &[3. / 12.5f64.sqrt(), 4. / 12.5f64.sqrt()]);
    close(run(Norm { kind: NormKind::Norm, eps: 0.0 }, &[x()]), &[-1., 1.]);
    close(run(Norm { kind: NormKind::L2Norm, eps: 0.0 }, &[x()]), &[0.6, 0.8]);
    let e = 1f64.exp();
    close(run(SoftMax { scale: 1.0 }, &[x()]), &[1. / (1. + e), e / (1. + e)]);
    let mask = F(&[2], &[f32::NEG_INFINITY, 0.0]);
    close(run(SoftMax { scale: 1.0 }, &[x(), mask]), &[0., 1.]);
}

#[test]
fn rope_turns_pairs() {
    let x = || F(&[4, 1, 1], &[1., 0., 0., 1.]);
    let pos = || I(&[1], &[2]);
    let (a, b) = (2f64, 2f64 * 100f64.powf(-0.5));
    close(run(Rope::plain(RopeMode::Normal, 4, 100.0), &[x(), pos()]), &[a.cos(), a.sin(), -b.sin(), b.cos()]);
    close(run(Rope::plain(RopeMode::Neox, 4, 100.0), &[x(), pos()]), &[a.cos(), -b.sin(), a.sin(), b.cos()]);
    close(run(Rope::plain(RopeMode::Normal, 2, 100.0), &[x(), pos()]), &[a.cos(), a.sin(), 0., 1.]);
}

#[test]
fn attention_sees_up_to_its_position() {
    let q = F(&[1, 2, 1], &[1., 1.]);
    let k = F(&[1, 3, 1], &[0., 1., 5.]);
    let v = F(&[1, 3, 1], &[10., 20., 99.]);
    let e = 1f64.exp();
    let attn = FlashAttn { scale: 1.0, window: 0, softcap: 0.0 };
    // No mask: the optional source is left out by a graph; here all keys are seen.
    let all = (10. + 20. * e + 99. * 5f64.exp()) / (1. + e + 5f64.exp());
    close(run(attn, &[q, k, v]), &[all, all]);
}

#[test]
fn order() {
    let x = || F(&[4], &[2., 7., 7., -1.]);
    close(run(Argmax, &[x()]), &[1.]);
    close(run(Argsort { order: Order::Descending }, &[x()]), &[1., 2., 0., 3.]);
    close(run(Argsort { order: Order::Ascending }, &[x()]), &[3., 0., 1., 2.]);
    close(run(TopK { k: 2 }, &[x()]), &[1., 2.]);
    close(run(Reduce { kind: ReduceKind::Cumsum }, &[x()]), &[2., 9., 16., 15.]);
    close(run(Reduce { kind: ReduceKind::Mean }, &[x()]), &[3.75]);
    let third = (1f64 / 3.).ln();
    close(run(LogProb, &[F(&[3, 1], &[5., 5., 5.]), I(&[1], &[1])]), &[third]);
}

#[test]
fn shapes() {
    let a = || F(&[1, 2], &[1., 2.]);
    let b = F(&[2, 2], &[3., 4., 5., 6.]);
    close(run(Concat { dim: 0 }, &[a(), b]), &[1., 3., 4., 2., 5., 6.]);
    close(run(Repeat { ne: [2, 2, 1, 1] }, &[a()]), &[1., 1., 2., 2.]);
    close(
        run(Binary { kind: BinaryKind::Sub }, &[F(&[2, 2], &[1., 2., 3., 4.]), F(&[2], &[1., 2.])]),
        &[0., 0., 2., 2.],
    );
}
