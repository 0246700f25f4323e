use super::*;
use proptest::prelude::*;

fn parse(writer: GgufWriter) -> Gguf {
    Gguf::parse(writer.finish().unwrap().into()).unwrap()
}

/// For closures that give nothing.
fn done(_: &mut GgufWriter) {}

fn value() -> impl Strategy<Value = Value> {
    let array = prop_oneof![
        any::<Vec<u8>>().prop_map(|v| Array::from(&v[..])),
        any::<Vec<i8>>().prop_map(|v| Array::from(&v[..])),
        any::<Vec<u16>>().prop_map(|v| Array::from(&v[..])),
        any::<Vec<i16>>().prop_map(|v| Array::from(&v[..])),
        any::<Vec<u32>>().prop_map(|v| Array::from(&v[..])),
        any::<Vec<i32>>().prop_map(|v| Array::from(&v[..])),
        any::<Vec<f32>>().prop_map(|v| Array::from(&v[..])),
        any::<Vec<bool>>().prop_map(|v| Array::from(&v[..])),
        any::<Vec<u64>>().prop_map(|v| Array::from(&v[..])),
        any::<Vec<i64>>().prop_map(|v| Array::from(&v[..])),
        any::<Vec<f64>>().prop_map(|v| Array::from(&v[..])),
        prop::collection::vec(any::<String>(), 0..6).prop_map(Array::of_texts),
    ];
    prop_oneof![
        any::<u8>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        any::<u16>().prop_map(Value::from),
        any::<i16>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<f32>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        array.prop_map(Value::from),
    ]
}

/// Name, type, shape and data.
type Given = (String, DType, [usize; 4], Vec<u8>);

fn tensors() -> impl Strategy<Value = Vec<Given>> {
    let types = prop::sample::select(vec![DType::F32, DType::F16, DType::Q4_0, DType::Q8_0, DType::I32, DType::MXFP4]);
    let tensor = (".{0,20}", types, [0usize..4, 1..4, 0..3, 1..3], any::<u8>());
    prop::collection::vec(tensor, 0..5).prop_map(|mut all| {
        all.dedup_by(|a, b| a.0 == b.0);
        let named = all.into_iter().enumerate().map(|(i, (name, dtype, mut ne, seed))| {
            ne[0] *= dtype.block_len();
            let len = Layout::contiguous(dtype, ne).unwrap().span();
            let data = (0..len).map(|at| seed.wrapping_add((at * 7) as u8)).collect();
            (format!("{name}{i}"), dtype, ne, data)
        });
        named.collect()
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        metadata in prop::collection::btree_map(".{0,20}", value(), 0..8),
        tensors in tensors(),
        alignment in prop::option::of(0u32..8),
    ) {
        let mut w = GgufWriter::new();
        for (key, value) in &metadata {
            w.value(key, value.clone());
        }
        if let Some(power) = alignment {
            w.alignment(1 << power);
        }
        for (i, (name, dtype, ne, data)) in tensors.iter().enumerate() {
            match i % 2 {
                0 => w.tensor(name, *dtype, ne, data).unwrap(),
                _ => w.tensor_from(name, *dtype, ne, &data[..]).unwrap(),
            };
        }
        let file = w.finish().unwrap();
        let multiple = alignment.map_or(32, |power| 1 << power);
        prop_assert_eq!(file.len() % multiple, 0);
        let g = Gguf::parse(file.clone().into()).unwrap();
        let read: Vec<_> = g.metadata().filter(|(key, _)| *key != ALIGNMENT).collect();
        let given: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
        prop_assert_eq!(read, given);
        prop_assert_eq!(g.tensors().len(), tensors.len());
        for (info, (name, dtype, ne, data)) in g.tensors().iter().zip(&tensors) {
            prop_assert_eq!((&info.name, info.layout), (name, Layout::contiguous(*dtype, *ne).unwrap()));
            prop_assert_eq!(info.offset % multiple, 0);
            prop_assert_eq!(&g.data(info)[..], &data[..]);
        }
        prop_assert_eq!(GgufWriter::from(&g).finish().unwrap(), file);
    }
}

#[test]
fn values_keep_their_types() {
    let mut w = GgufWriter::new();
    w.value("a", 7u8).value("a", 7u16).value("nan", f32::from_bits(0x7fc0_1234)).value("big", u64::MAX);
    let g = parse(w);
    assert_eq!(g.get("a"), Some(&Value::U16(7)));
    assert_ne!(g.get("a"), Some(&Value::I16(7)));
    assert_eq!(g.get("nan"), Some(&Value::F32(f32::from_bits(0x7fc0_1234))));
    assert_eq!((g.u64("a"), g.u64("big"), g.u64("nan")), (Some(7), Some(u64::MAX), None));
}

#[test]
fn what_readers_would_refuse_is_not_written() {
    let refused = |edit: &dyn Fn(&mut GgufWriter)| {
        let mut w = GgufWriter::new();
        edit(&mut w);
        let mut out = Vec::new();
        let error = w.write(&mut out).unwrap_err();
        assert!(error.kind() == io::ErrorKind::InvalidInput && out.is_empty(), "{error:?}");
        error.to_string()
    };
    let long = "x".repeat(MAX_TEXT + 1);
    let name = &long[..MAX_NAME + 1];
    assert!(refused(&|w| done(w.alignment(12))).contains("not a power of two"));
    assert!(refused(&|w| done(w.text("k", &long))).contains("the length of k is 16777217"));
    assert!(refused(&|w| done(w.texts("k", &["", &long]))).contains("the length of k is 16777217"));
    assert!(refused(&|w| done(w.u32(name, 1))).contains("is 65537, at most 65536 is possible"));
    assert!(refused(&|w| done(w.tensor(name, DType::F32, &[0], &[]).unwrap())).contains("is 65537"));
    let many = |w: &mut GgufWriter| (0..=MAX_METADATA).for_each(|i| done(w.value(&i.to_string(), 0u8)));
    assert!(refused(&many).contains("number of metadata entries"));
}

#[test]
fn tensors_that_cannot_be_are_named() {
    let mut w = GgufWriter::new();
    w.tensor("t", DType::F32, &[2], &[0; 8]).unwrap();
    let mut fails = |name: &str, dtype, shape: &[usize], len: usize| {
        w.tensor(name, dtype, shape, &vec![0; len]).map(drop).unwrap_err().to_string()
    };
    assert_eq!(fails("t", DType::F32, &[2], 8), "tensor t: it is there already");
    assert!(fails("u", DType::F32, &[2], 7).starts_with("tensor u: 7 bytes do not make"));
    assert!(fails("u", DType::F32, &[1; 5], 4).contains("it has 5 dimensions, at most 4"));
    assert!(fails("u", DType::Q4_0, &[31], 18).contains("multiple of 32"));
    assert!(fails("u", DType::Q8_K, &[256], 292).contains("Q8_K is no type of files"));
}

#[test]
fn data_that_ends_early_is_an_error_and_what_is_more_is_not_read() {
    let mut w = GgufWriter::new();
    w.tensor_from("a", DType::F32, &[2], &[1; 9][..]).unwrap();
    w.tensor_from("b", DType::F32, &[2], io::repeat(2)).unwrap();
    let g = parse(w);
    assert_eq!(g.data(&g.tensors()[0])[..], [1; 8]);
    assert_eq!(g.data(&g.tensors()[1])[..], [2; 8]);
    let mut w = GgufWriter::new();
    w.tensor_from("a", DType::F32, &[2], &[1; 7][..]).unwrap();
    let error = w.finish().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(error.to_string(), "tensor a: its data ends after 7 of 8 bytes");
}

/// Bytes of a file that is small enough to be written by hand.
#[test]
fn the_format_is_that_of_ggml() {
    let mut w = GgufWriter::new();
    w.alignment(8).tensor("t", DType::F32, &[1, 2], &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let mut want = b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
    want.extend(b"\x11\0\0\0\0\0\0\0general.alignment\x04\0\0\0\x08\0\0\0");
    want.extend(b"\x01\0\0\0\0\0\0\0t\x02\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
    // F32, at the start of the data, and padding.
    want.extend([0; 4 + 8]);
    want.resize(want.len().next_multiple_of(8), 0);
    want.extend([1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(w.finish().unwrap(), want);
}
