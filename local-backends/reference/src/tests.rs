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
            Src::None => {
                ids.push(None);
                continue;
            }
        };
        let id = g.state(&format!("s{i}"), dtype, shape).map_err(|e| e.to_string())?;
        ids.push(Some(id));
        data.push((id, bytes));
    }
    let out = g.push_opt(op, &ids).map_err(|e| e.to_string())?;
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
    for (id, data) in data {
        queue.write(&slice(id), Bytes::from(data)).unwrap();
    }
    let placement = Placement::new(&graph, device.as_ref(), slices.clone()).map_err(|e| e.to_string())?;
    let exe = device.compile(graph.clone(), placement).unwrap();
    queue.execute(&exe).unwrap();
    let bytes = queue.read(&slice(out)).unwrap().wait(Duration::from_secs(10)).map_err(|e| e.to_string())?;
    let words = bytes.as_chunks::<4>().0.iter();
    Ok(match graph.tensor(out).dtype() {
        DType::I32 => words.map(|b| i32::from_le_bytes(*b).into()).collect(),
        DType::F32 => words.map(|b| f32::from_le_bytes(*b).into()).collect(),
        // Other types as their bytes.
        _ => bytes.iter().map(|&b| b.into()).collect(),
    })
}

enum Src {
    F(&'static [usize], &'static [f32]),
    I(&'static [usize], &'static [i32]),
    /// An optional source that is left out.
    None,
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
    let a = F(&[2, 1, 2], &[1., 2., 3., 4.]);
    let b = F(&[2, 3], &[10., 20., 30., 40., 50., 60.]);
    close(run(AddId, &[a, b, I(&[1, 2], &[2, 0])]), &[51., 62., 13., 24.]);
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
fn yarn() {
    // Worked out from section 3 of the paper: pair 0 and 1 are extrapolated, 2 is half mixed, 3 interpolated; the amplitude is
    // 1 + 0.1 ln 4.
    let yarn =
        Rope { freq_scale: 0.25, ext_factor: 1.0, n_ctx_orig: 4096, ..Rope::plain(RopeMode::Normal, 8, 10000.0) };
    let want =
        [-1.127234598, 0.160683395, 1.087774248, 0.336488006, 1.138429292, 0.021348051, 1.138629116, 0.000853972];
    let x = || F(&[8, 1, 1], &[1., 0., 1., 0., 1., 0., 1., 0.]);
    close(run(yarn, &[x(), I(&[1], &[3])]), &want);
    // A factor of 2 halves the frequency.
    let half = F(&[4], &[2., 2., 2., 2.]);
    let turned = run(Rope::plain(RopeMode::Normal, 8, 10000.0), &[x(), I(&[1], &[6]), half]);
    let plain = run(Rope::plain(RopeMode::Normal, 8, 10000.0), &[x(), I(&[1], &[3])]);
    close(turned, &plain.unwrap());
}

#[test]
fn attention() {
    let q = || F(&[1, 2, 1], &[1., 2.]);
    let k = || F(&[1, 4, 1], &[0., 1., -1., 2.]);
    let v = || F(&[1, 4, 1], &[10., 20., 30., 40.]);
    let attn = FlashAttn { scale: 0.5, window: 0, softcap: 0.0, block: 0 };
    let pos = |p| [q(), k(), v(), Src::None, I(&[2], p)];
    close(run(attn, &pos(&[2, 0])), &[18.791278375073492, 10.0]);
    close(run(FlashAttn { window: 2, ..attn }, &pos(&[3, 2])), &[38.17574476193643, 21.192029220221176]);
    assert!(run(attn, &pos(&[0, 4])).unwrap_err().contains("position 4 is outside 0..4"));
    assert!(run(attn, &pos(&[-1, 0])).is_err());
    close(run(FlashAttn { softcap: 0.3, ..attn }, &[q(), k(), v()]), &[25.542681709942016, 25.49788182112397]);
    let sink = [q(), k(), v(), Src::None, Src::None, F(&[1], &[1.5])];
    close(run(attn, &sink), &[16.250406243764708, 23.247881109161998]);
    const NO: f32 = f32::NEG_INFINITY;
    let mask = F(&[4, 2], &[-1., NO, -2., NO, NO, NO, NO, NO]);
    close(run(attn, &[q(), k(), v(), mask]), &[13.648510476127127, 0.0]);
}

#[test]
fn heads_share_keys() {
    // Four query heads over two key heads: 0 and 1 see the first, 2 and 3 the second.
    let q = F(&[1, 1, 4], &[0., 0., 0., 0.]);
    let k = F(&[1, 2, 2], &[0., 0., 0., 0.]);
    let v = F(&[1, 2, 2], &[1., 3., 10., 30.]);
    close(run(FlashAttn { scale: 1.0, window: 0, softcap: 0.0, block: 0 }, &[q, k, v]), &[2., 2., 20., 20.]);
    let a = F(&[1, 1, 2], &[1., 10.]);
    let b = F(&[1, 1, 4], &[1., 2., 3., 4.]);
    close(run(MulMat, &[a, b]), &[1., 2., 30., 40.]);
}

#[test]
fn functions() {
    let table: [(UnaryKind, [f64; 4]); 16] = [
        (UnaryKind::Neg, [2., 0.5, -0.75, -3.]),
        (UnaryKind::Abs, [2., 0.5, 0.75, 3.]),
        (UnaryKind::Sqr, [4., 0.25, 0.5625, 9.]),
        (UnaryKind::Sqrt, [f64::NAN, f64::NAN, 0.866025404, 1.732050808]),
        (UnaryKind::Log, [f64::NAN, f64::NAN, -0.287682072, 1.098612289]),
        (UnaryKind::Relu, [0., 0., 0.75, 3.]),
        (UnaryKind::Exp, [0.135335283, 0.60653066, 2.117000017, 20.085536923]),
        (UnaryKind::Sin, [-0.909297427, -0.479425539, 0.68163876, 0.141120008]),
        (UnaryKind::Cos, [-0.416146837, 0.877582562, 0.731688869, -0.989992497]),
        (UnaryKind::Tanh, [-0.96402758, -0.462117157, 0.635148952, 0.995054754]),
        (UnaryKind::Sigmoid, [0.119202922, 0.377540669, 0.679178699, 0.952574127]),
        (UnaryKind::Silu, [-0.238405844, -0.188770334, 0.509384024, 2.85772238]),
        (UnaryKind::Gelu, [-0.045402306, -0.15428599, 0.579960555, 2.996362608]),
        (UnaryKind::GeluErf, [-0.045500264, -0.154268769, 0.580029486, 2.995950306]),
        (UnaryKind::GeluQuick, [-0.064341377, -0.149611563, 0.586390058, 2.98192869]),
        (UnaryKind::Softplus, [0.126928011, 0.474076984, 1.136871006, 3.048587352]),
    ];
    assert_eq!(table.len(), UnaryKind::ALL.len());
    let x = || F(&[4], &[-2., -0.5, 0.75, 3.]);
    for (kind, want) in table {
        let got = run(Unary { kind }, &[x()]).unwrap();
        for (g, w) in got.iter().zip(want) {
            assert!((g - w).abs() < 1e-6 * (1.0 + w.abs()) || (g.is_nan() && w.is_nan()), "{kind:?} {got:?} {want:?}");
        }
    }
    let up = || F(&[4], &[1., 2., 3., -1.]);
    close(run(Glu { kind: GluKind::Reglu }, &[x(), up()]), &[0., 0., 2.25, -3.]);
    close(run(Glu { kind: GluKind::Swiglu }, &[x(), up()]), &[-0.238405844, -0.377540668, 1.528152072, -2.85772238]);
    close(run(Glu { kind: GluKind::Geglu }, &[x(), up()]), &[-0.045402306, -0.30857198, 1.739881665, -2.996362608]);
    // Of -2 and 1, -0.5 and 2 held at 1.5, 0.75 and 3 held at 1.5, 3 held at 1.5 and -1.
    let oai = GluKind::SwigluOai { alpha: 2.0, limit: 1.5 };
    close(run(Glu { kind: oai }, &[x(), up()]), &[-0.0719448398, -0.336176777, 1.53295214, 0.]);
    let e = run(Glu { kind: GluKind::SwigluOai { alpha: 1.0, limit: -1.0 } }, &[x(), up()]).unwrap_err();
    assert!(e.contains("limit -1 is negative"), "{e}");
    close(run(Scale { scale: 2.0, bias: 1.0 }, &[x()]), &[-3., 0., 2.5, 7.]);
    close(run(Clamp { min: -1.0, max: 1.0 }, &[x()]), &[-1., -0.5, 0.75, 1.]);
    for (kind, want) in [(BinaryKind::Add, [4., 7.]), (BinaryKind::Mul, [3., 10.]), (BinaryKind::Div, [3., 2.5])] {
        close(run(Binary { kind }, &[F(&[2], &[3., 5.]), F(&[2], &[1., 2.])]), &want);
    }
}

#[test]
fn types() {
    // 1 is 0x3c00 in F16 and 0x3f80 in BF16, -2 is 0xc000 in both.
    let x = || F(&[2], &[1., -2.]);
    close(run(Cast { dtype: DType::F16 }, &[x()]), &[0., 60., 0., 192.]);
    close(run(Cast { dtype: DType::BF16 }, &[x()]), &[128., 63., 0., 192.]);
    // Q8_0: scale 1 (127 / 127) as F16, then the numbers themselves.
    static ROW: [f32; 32] = {
        let mut row = [0.0; 32];
        row[0] = 127.0;
        row[1] = -3.0;
        row
    };
    let mut want = vec![0.0; 34];
    (want[1], want[2], want[3]) = (60.0, 127.0, 253.0);
    close(run(Cast { dtype: DType::Q8_0 }, &[F(&[32], &ROW)]), &want);
    close(run(Cpy, &[F(&[2, 2], &[1., 2., 3., 4.]), F(&[4], &[0.; 4])]), &[1., 2., 3., 4.]);
}

#[test]
fn wrong_indices_fail() {
    let a = || F(&[1, 1, 2], &[1., 2.]);
    let e = run(MulMatId, &[a(), F(&[1, 1, 1], &[1.]), I(&[1, 1], &[2])]).unwrap_err();
    assert!(e.contains("MUL_MAT_ID") && e.contains("expert 2 is outside 0..2"), "{e}");
    let e = run(AddId, &[F(&[1, 1, 1], &[1.]), F(&[1, 2], &[1., 2.]), I(&[1, 1], &[2])]).unwrap_err();
    assert!(e.contains("ADD_ID") && e.contains("expert 2 is outside 0..2"), "{e}");
    let e = run(LogProb, &[F(&[3, 1], &[1., 2., 3.]), I(&[1], &[-1])]).unwrap_err();
    assert!(e.contains("LOG_PROB") && e.contains("id -1 is outside 0..3"), "{e}");
}

#[test]
fn sampling() {
    let logits = || F(&[4, 2], &[0., 9., 1., 2., 5., 0., 7., 6.]);
    // Temperature, top_k, top_p, min_p: greedy, or nothing but the most probable.
    let draws = || I(&[3, 2], &[1, 0, 0, 1, 0, 1]);
    close(run(Sample, &[logits(), F(&[4, 2], &[0., 0., 1., 0., 0., 0., 1., 0.]), draws()]), &[1., 2.]);
    close(run(Sample, &[logits(), F(&[4, 2], &[3., 0., 0., 0., 3., 1., 1., 0.]), draws()]), &[1., 2.]);
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
