//! Graphs on the wire: encoded tensor by tensor, decoded the same way through [`GraphBuilder`], with limits.

use crate::limits::{MAX_GRAPH, MAX_TENSOR};
use crate::v1;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use outboard_core::attr::{Attr, Attrs, MAX_ATTR_INTS, MAX_ATTR_NAME, MAX_ATTRS};
use outboard_core::graph::{MAX_NAME, MAX_TENSORS};
use outboard_core::op::{MAX_SRCS, Srcs};
use outboard_core::{DIMS, DType, Error, Graph, GraphBuilder, Layout, LeafKind, Op, Result, Tensor, TensorId};
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};
use v1::attr::Value;

const TENSORS_TAG: u32 = 1;

/// A part of a tensor, or what is wrong with it; the caller adds which tensor it is.
type Checked<T> = std::result::Result<T, String>;

/// Encodes a graph as a `Graph` message.
pub fn encode(graph: &Graph) -> Result<Bytes> {
    let mut out = BytesMut::new();
    for t in graph.tensors() {
        let wire = tensor_to_wire(t);
        let len = wire.encoded_len();
        if len > MAX_TENSOR || out.len() + len > MAX_GRAPH {
            let what = if len > MAX_TENSOR { t.name() } else { "the graph" };
            return Err(Error::Request(format!("{what} is too large to send")));
        }
        encode_key(TENSORS_TAG, WireType::LengthDelimited, &mut out);
        encode_varint(len as u64, &mut out);
        wire.encode_raw(&mut out);
    }
    Ok(out.freeze())
}

fn tensor_to_wire(t: &Tensor) -> v1::Tensor {
    let used = (0..DIMS).rev().find(|&d| t.ne()[d] != 1).map_or(1, |d| d + 1);
    let contiguous = Layout::contiguous(t.dtype(), t.ne()).is_ok_and(|l| l == *t.layout());
    let nb = if contiguous { Vec::new() } else { t.layout().nb().iter().map(|&n| n as u64).collect() };
    let mut wire = v1::Tensor {
        name: t.name().to_owned(),
        dtype: t.dtype().name().to_owned(),
        ne: t.ne().iter().take(used).map(|&n| n as u64).collect(),
        nb,
        output: t.is_output(),
        ..Default::default()
    };
    if let Some(kind) = t.leaf() {
        wire.leaf = leaf_name(kind).to_owned();
    }
    if let Some(op) = t.op() {
        wire.op = op.name().to_owned();
        // Ids are below MAX_TENSORS, so one more fits.
        wire.srcs = t.srcs().iter().map(|s| s.map_or(0, |s| s.index() as u32 + 1)).collect();
        wire.attrs = op.attrs().iter().map(|(name, attr)| attr_to_wire(name, attr)).collect();
    }
    wire
}

fn attr_to_wire(name: &str, attr: &Attr) -> v1::Attr {
    let value = match attr {
        Attr::Int(v) => Value::Int(*v),
        Attr::Float(v) => Value::Float(*v),
        Attr::Ints(v) => Value::Ints(v1::Ints { values: v.clone() }),
        Attr::Text(v) => Value::Text(v.clone()),
    };
    v1::Attr { name: name.to_owned(), value: Some(value) }
}

fn leaf_name(kind: LeafKind) -> &'static str {
    match kind {
        LeafKind::Weight => "WEIGHT",
        LeafKind::Input => "INPUT",
        LeafKind::State => "STATE",
    }
}

fn leaf_kind(name: &str) -> Option<LeafKind> {
    [LeafKind::Weight, LeafKind::Input, LeafKind::State].into_iter().find(|&k| leaf_name(k) == name)
}

/// Decodes a graph that must be known in full. The first node that is not is named in the error.
pub fn decode(bytes: &[u8]) -> Result<Graph> {
    let mut builder = GraphBuilder::new();
    walk(bytes, |index, wire| add(&mut builder, index, &wire))?;
    Ok(builder.finish()?)
}

/// How many tensors an encoded graph has, without decoding them: what it will take in memory can be known before it is taken.
pub fn count(bytes: &[u8]) -> Result<usize> {
    let mut count = 0;
    each(bytes, |_, _| {
        count += 1;
        Ok(())
    })?;
    Ok(count)
}

/// Decodes a graph for the question what is supported. A node of an op, a dtype or a shape that this release does not know is
/// replaced by an input, and its flag is false.
pub fn decode_known(bytes: &[u8]) -> Result<(Graph, Vec<bool>)> {
    let mut builder = GraphBuilder::new();
    let mut known = Vec::new();
    walk(bytes, |index, wire| {
        let ok = add(&mut builder, index, &wire).is_ok();
        if !ok {
            let layout =
                layout(&wire).or_else(|_| Layout::contiguous(DType::F32, [1; DIMS]).map_err(|e| e.to_string()));
            let layout = layout.ok().filter(Layout::is_disjoint);
            let name = format!("\u{1}unknown {index}");
            match layout {
                Some(layout) => builder.leaf_with_layout(LeafKind::Input, &name, layout)?,
                None => builder.input(&name, DType::F32, &[1])?,
            };
        }
        known.push(ok);
        Ok(())
    })?;
    Ok((builder.finish()?, known))
}

/// Calls `one` with every tensor of an encoded graph; sizes and counts are checked before a tensor is decoded.
fn walk(bytes: &[u8], mut one: impl FnMut(usize, v1::Tensor) -> Result<()>) -> Result<()> {
    each(bytes, |index, bytes| match v1::Tensor::decode(bytes) {
        Ok(tensor) => one(index, tensor),
        Err(e) => Err(Error::Request(format!("graph: tensor {index}: {e}"))),
    })
}

/// Calls `one` with every encoded tensor of an encoded graph.
fn each(mut bytes: &[u8], mut one: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
    let wrong = |why: String| Err(Error::Request(format!("graph: {why}")));
    if bytes.len() > MAX_GRAPH {
        return wrong(format!("{} bytes, {MAX_GRAPH} at most", bytes.len()));
    }
    let mut index = 0;
    while bytes.has_remaining() {
        let key = decode_key(&mut bytes);
        let len = decode_varint(&mut bytes);
        let (Ok((TENSORS_TAG, WireType::LengthDelimited)), Ok(len)) = (key, len) else {
            return wrong(format!("not a list of tensors after tensor {index}"));
        };
        let Some((tensor, rest)) = usize::try_from(len).ok().and_then(|len| bytes.split_at_checked(len)) else {
            return wrong(format!("tensor {index} is cut off"));
        };
        if tensor.len() > MAX_TENSOR || index >= MAX_TENSORS {
            return wrong(format!(
                "tensor {index} has {len} bytes; limits are {MAX_TENSORS} tensors of {MAX_TENSOR} bytes"
            ));
        }
        one(index, tensor)?;
        bytes = rest;
        index += 1;
    }
    Ok(())
}

/// Adds one tensor to the graph, or says what is wrong with it.
fn add(builder: &mut GraphBuilder, index: usize, wire: &v1::Tensor) -> Result<()> {
    let fail = |detail: String| {
        let what = if wire.op.is_empty() { "leaf" } else { wire.op.as_str() };
        let name: String = wire.name.chars().take(MAX_NAME).collect();
        Error::Request(format!("node {index} ({} {name}): {detail}", what.chars().take(MAX_NAME).collect::<String>()))
    };
    if wire.name.len() > MAX_NAME {
        return Err(fail(format!("a name of {} bytes, {MAX_NAME} at most", wire.name.len())));
    }
    let layout = layout(wire).map_err(fail)?;
    let id = match (wire.leaf.as_str(), wire.op.as_str()) {
        (leaf, "") => {
            let kind = leaf_kind(leaf).ok_or_else(|| fail(format!("unknown kind of leaf {leaf:?}")))?;
            builder.leaf_with_layout(kind, &wire.name, layout)?
        }
        ("", name) => {
            let op = Op::from_attrs(name, attrs(&wire.attrs).map_err(fail)?).map_err(fail)?;
            if wire.srcs.len() > MAX_SRCS {
                return Err(fail(format!("{} sources, {MAX_SRCS} at most", wire.srcs.len())));
            }
            let srcs: Vec<_> =
                wire.srcs.iter().map(|&s| s.checked_sub(1).map(|s| TensorId::from_index(s as usize))).collect();
            // Both sides must infer the same. A source that is not there is left to the builder's own check.
            let layouts: Vec<_> = srcs.iter().map(|s| s.and_then(|s| builder.tensor(s)).map(|t| *t.layout())).collect();
            if let Ok(inferred) = op.infer(&Srcs(&layouts))
                && inferred.layout != layout
            {
                return Err(fail(format!(
                    "the client calls it {layout}, this server {}; install the same release on both sides",
                    inferred.layout
                )));
            }
            let id = builder.push_opt(op, &srcs)?;
            builder.name(id, &wire.name)
        }
        _ => return Err(fail("both a leaf and a node".into())),
    };
    if wire.output {
        builder.output(id);
    }
    Ok(())
}

fn layout(wire: &v1::Tensor) -> Checked<Layout> {
    let dtype = DType::from_name(&wire.dtype).ok_or_else(|| format!("unknown dtype {:?}", wire.dtype))?;
    let mut ne = [1; DIMS];
    if wire.ne.len() > DIMS {
        return Err(format!("{} dimensions, {DIMS} at most", wire.ne.len()));
    }
    for (to, &from) in ne.iter_mut().zip(&wire.ne) {
        *to = usize::try_from(from).map_err(|_| format!("an extent of {from}"))?;
    }
    if wire.nb.is_empty() {
        return Layout::contiguous(dtype, ne).map_err(|e| e.to_string());
    }
    let nb: Vec<usize> = wire.nb.iter().filter_map(|&n| usize::try_from(n).ok()).collect();
    let nb: [usize; DIMS] = nb.try_into().map_err(|_| format!("strides must be {DIMS} sizes"))?;
    Layout::strided(dtype, ne, nb).map_err(|e| e.to_string())
}

fn attrs(wire: &[v1::Attr]) -> Checked<Attrs> {
    if wire.len() > MAX_ATTRS {
        return Err(format!("{} parameters, {MAX_ATTRS} at most", wire.len()));
    }
    let mut attrs = Attrs::default();
    for a in wire {
        if a.name.len() > MAX_ATTR_NAME {
            return Err(format!("a parameter's name of {} bytes", a.name.len()));
        }
        let attr = match &a.value {
            Some(Value::Int(v)) => Attr::Int(*v),
            Some(Value::Float(v)) => Attr::Float(*v),
            Some(Value::Ints(v)) if v.values.len() <= MAX_ATTR_INTS => Attr::Ints(v.values.clone()),
            Some(Value::Text(v)) if v.len() <= MAX_ATTR_NAME => Attr::Text(v.clone()),
            Some(_) => return Err(format!("parameter {} is too long", a.name)),
            None => return Err(format!("parameter {} has no value that this release knows", a.name)),
        };
        attrs.set(&a.name, attr);
    }
    if attrs.len() != wire.len() {
        return Err("a parameter is given twice".into());
    }
    Ok(attrs)
}

/// One bit per flag, the first in the lowest bit of the first byte.
pub fn flags_to_bits(flags: &[bool]) -> Bytes {
    let mut out = BytesMut::with_capacity(flags.len().div_ceil(8));
    for eight in flags.chunks(8) {
        out.put_u8(eight.iter().enumerate().fold(0, |byte, (i, &flag)| byte | u8::from(flag) << i));
    }
    out.freeze()
}

/// `len` flags; `None` if there are not as many.
pub fn bits_to_flags(bits: &[u8], len: usize) -> Option<Vec<bool>> {
    if bits.len() != len.div_ceil(8) {
        return None;
    }
    Some(bits.iter().flat_map(|byte| (0..8).map(move |i| byte >> i & 1 == 1)).take(len).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_core::op::*;

    fn graph() -> Graph {
        let mut g = GraphBuilder::new();
        let w = g.weight("w", DType::Q4_0, &[64, 8]).unwrap();
        let x = g.input("x", DType::F32, &[64, 3]).unwrap();
        let cache = g.state("cache", DType::F16, &[8, 16]).unwrap();
        let ids = g.input("ids", DType::I32, &[3]).unwrap();
        let y = g.push(MulMat, &[w, x]).unwrap();
        g.name(y, "y");
        let kept = g.push(SetRows, &[cache, y, ids]).unwrap();
        let v = g.push(View { ne: [4, 3, 1, 1], nb: [2, 16, 48, 48], offset: 18 }, &[kept]).unwrap();
        let c = g.push(Cont, &[v]).unwrap();
        g.output(c);
        g.finish().unwrap()
    }

    #[test]
    fn graphs_round_trip() {
        let graph = graph();
        let bytes = encode(&graph).unwrap();
        assert_eq!(decode(&bytes).unwrap(), graph);
        assert_eq!(count(&bytes).unwrap(), graph.tensors().len());
        assert!(count(&bytes[..bytes.len() - 1]).is_err() && count(&[0x0a; 5]).is_err());
        let (known, flags) = decode_known(&bytes).unwrap();
        assert_eq!(known, graph);
        assert!(flags.iter().all(|&f| f));
    }

    fn with(change: impl Fn(usize, &mut v1::Tensor)) -> Bytes {
        let mut message = v1::Graph::decode(encode(&graph()).unwrap()).unwrap();
        for (i, t) in message.tensors.iter_mut().enumerate() {
            change(i, t);
        }
        message.encode_to_vec().into()
    }

    #[test]
    fn unknown_ops_and_types_are_not_supported_and_not_compiled() {
        let bytes = with(|i, t| match i {
            0 => t.dtype = "Q9_X".into(),
            7 => t.op = "FROBNICATE".into(),
            _ => {}
        });
        let e = decode(&bytes).unwrap_err().to_string();
        assert_eq!(e, "node 0 (leaf w): unknown dtype \"Q9_X\"");
        let (graph, flags) = decode_known(&bytes).unwrap();
        assert_eq!(graph.tensors().len(), 8);
        // The product of the unknown type is unknown, too; SET_ROWS takes what stands for it, as its shape is known.
        assert_eq!(flags, [false, true, true, true, false, true, true, false]);
    }

    #[test]
    fn bad_graphs_are_refused() {
        let cases: [(&str, Bytes); 7] = [
            (
                "source %99 does not come before it",
                with(|i, t| {
                    if i == 4 {
                        t.srcs[0] = 100
                    }
                }),
            ),
            (
                "the client calls it",
                with(|i, t| {
                    if i == 4 {
                        t.ne[0] = 9
                    }
                }),
            ),
            (
                "both a leaf and a node",
                with(|i, t| {
                    if i == 4 {
                        t.leaf = "INPUT".into()
                    }
                }),
            ),
            (
                "a name of 200 bytes",
                with(|i, t| {
                    if i == 4 {
                        t.name = "n".repeat(200)
                    }
                }),
            ),
            (
                "sources",
                with(|i, t| {
                    if i == 4 {
                        t.srcs = vec![1; 99]
                    }
                }),
            ),
            (
                "too long",
                with(|i, t| {
                    if i == 6 {
                        t.attrs[0].value = Some(Value::Ints(v1::Ints { values: vec![0; 99] }))
                    }
                }),
            ),
            (
                "larger than",
                with(|i, t| {
                    if i == 1 {
                        t.ne = vec![u64::MAX, u64::MAX]
                    }
                }),
            ),
        ];
        for (text, bytes) in cases {
            let e = decode(&bytes).unwrap_err().to_string();
            assert!(e.contains(text), "{e}");
            assert!(decode_known(&bytes).is_ok(), "{text}");
        }
    }

    #[test]
    fn anything_is_an_error_and_no_panic() {
        let bytes = encode(&graph()).unwrap();
        for n in 0..bytes.len() {
            let cut = decode(&bytes[..n]);
            assert!(cut.is_err() || cut.unwrap().tensors().len() < 8);
            let mut bent = bytes.to_vec();
            for bit in 0..8 {
                bent[n] ^= 1 << bit;
                let _ = decode(&bent);
                let _ = decode_known(&bent);
                bent[n] ^= 1 << bit;
            }
        }
        // A length that is not there, and tensors of nothing.
        assert!(decode(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f]).is_err());
        assert!(decode(&[0x0a, 0x00].repeat(MAX_TENSORS + 1)).is_err());
        assert!(decode_known(&[0x0a, 0x00].repeat(MAX_TENSORS + 1)).is_err());
    }

    #[test]
    fn bits() {
        let flags = [true, false, false, true, true, false, false, false, true];
        let bits = flags_to_bits(&flags);
        assert_eq!(&bits[..], [0b11001, 1]);
        assert_eq!(bits_to_flags(&bits, 9).unwrap(), flags);
        assert_eq!(bits_to_flags(&bits, 17), None);
    }
}
