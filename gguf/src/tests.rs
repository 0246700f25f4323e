use super::*;
use proptest::prelude::*;

fn sample() -> Vec<u8> {
    let mut w = GgufWriter::new();
    w.text("general.architecture", "llama").u32("llama.block_count", 2).f32("llama.eps", 1e-5).bool("flag", true);
    w.texts("tokens", &["a", "bb", ""]).i32s("types", &[1, 3, -1]);
    w.tensor("a", DType::F32, &[3, 2], &[1; 24]).unwrap();
    w.tensor("b", DType::Q4_0, &[64], &[2; 36]).unwrap();
    w.finish()
}

#[test]
fn what_is_written_is_read() {
    let g = Gguf::parse(sample().into()).unwrap();
    assert_eq!(g.str("general.architecture"), Some("llama"));
    assert_eq!(g.u64("llama.block_count"), Some(2));
    assert_eq!(g.get("llama.eps").and_then(Value::as_f64), Some(f64::from(1e-5f32)));
    assert_eq!(g.bool("flag"), Some(true));
    let tokens: Vec<_> = g.get("tokens").unwrap().as_array().unwrap().texts().unwrap().collect();
    assert_eq!(tokens, [&b"a"[..], b"bb", b""]);
    let types = g.get("types").unwrap().as_array().unwrap();
    assert_eq!(types.values().unwrap().map(|v| v.as_f64().unwrap()).collect::<Vec<_>>(), [1.0, 3.0, -1.0]);
    assert_eq!(g.tensors().len(), 2);
    assert_eq!(g.data(g.tensor("b").unwrap())[..], [2; 36]);
}

#[test]
fn every_truncation_is_an_error() {
    let file = sample();
    for len in 0..file.len() {
        let e = Gguf::parse(file[..len].to_vec().into()).unwrap_err().to_string();
        assert!(!e.contains('\n') && e.len() < 300, "{e}");
    }
}

#[test]
fn lies_are_named() {
    let parse = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut file = sample();
        edit(&mut file);
        Gguf::parse(file.into()).unwrap_err().to_string()
    };
    assert!(parse(&|f| f[0] = b'X').contains("not a GGUF file"));
    assert!(parse(&|f| f[4] = 9).contains("version 9"));
    assert!(parse(&|f| f[4..8].copy_from_slice(&[0, 0, 0, 3])).contains("big-endian"));
    assert!(parse(&|f| f[8..16].fill(0xff)).contains("number of tensors"));
    assert!(parse(&|f| f[16..24].fill(0xff)).contains("metadata entries"));
    let mut w = GgufWriter::new();
    w.texts::<&str>("x", &[]);
    let mut file = w.finish();
    let at = file.len() - 8;
    file[at..].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(Gguf::parse(file.into()).unwrap_err().to_string().contains("array of 18446744073709551615"));
}

#[test]
fn unsupported_types_and_parts() {
    let mut w = GgufWriter::new();
    w.tensor("t", DType::F32, &[1], &[0; 4]).unwrap();
    let mut file = w.finish();
    let at = 24 + 8 + 1 + 4 + 32;
    file[at..at + 4].copy_from_slice(&16u32.to_le_bytes());
    assert!(Gguf::parse(file.into()).unwrap_err().to_string().contains("tensor t has type IQ2_XXS"));
    let mut w = GgufWriter::new();
    w.u32("split.count", 3);
    assert!(Gguf::parse(w.finish().into()).unwrap_err().to_string().contains("one of 3 parts"));
}

/// A file with one tensor-table entry per argument: name, type number, first extent, offset; 64 bytes of data.
fn with_tensors(tensors: &[(&str, u32, u64, u64)]) -> String {
    let mut file = MAGIC.to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend(0u64.to_le_bytes());
    for (name, kind, extent, offset) in tensors {
        file.extend((name.len() as u64).to_le_bytes());
        file.extend(name.as_bytes());
        file.extend(1u32.to_le_bytes());
        file.extend(extent.to_le_bytes());
        file.extend(kind.to_le_bytes());
        file.extend(offset.to_le_bytes());
    }
    file.resize(file.len().next_multiple_of(32) + 64, 0);
    Gguf::parse(file.into()).map_or_else(|e| e.to_string(), |_| "fine".into())
}

#[test]
fn tensor_tables_are_checked() {
    assert_eq!(with_tensors(&[("a", 0, 8, 0), ("b", 0, 8, 32)]), "fine");
    assert_eq!(with_tensors(&[("a", 0, 8, 0), ("a", 0, 8, 32)]), "tensor a is there twice");
    assert_eq!(with_tensors(&[("a", 0, 9, 0), ("b", 0, 8, 32)]), "tensors a and b overlap");
    assert_eq!(with_tensors(&[("a", 0, 8, 4)]), "tensor a starts at 4, not a multiple of 32");
    assert!(with_tensors(&[("a", 0, 17, 0)]).starts_with("the file is cut off: tensor a of 68 bytes should follow"));
    assert!(with_tensors(&[("a", 0, 8, 64)]).starts_with("the file is cut off: tensor a"));
    assert!(with_tensors(&[("a", 0, 8, u64::MAX - 31)]).contains("the offset of tensor a"));
    assert!(with_tensors(&[("a", 0, u64::MAX, 0)]).contains("an extent of tensor a is 18446744073709551615"));
    assert!(with_tensors(&[("a", 0, 1 << 43, 0)]).contains("is larger than"));
    assert!(with_tensors(&[("a", 12, 255, 0)]).contains("tensor a: rows of Q4_K must be a multiple of 256"));
    assert!(with_tensors(&[("a", 99, 1, 0)]).contains("tensor a has type unknown (99 in the file)"));
    let hostile = with_tensors(&[(&"\u{1b}[2J\n".repeat(100), 99, 1, 0)]);
    assert!(hostile.len() < 600 && !hostile.contains(['\u{1b}', '\n']), "{hostile}");
}

#[test]
fn metadata_is_checked() {
    let mut w = GgufWriter::new();
    w.u32("k", 1).u32("k", 2);
    assert_eq!(Gguf::parse(w.finish().into()).unwrap_err().to_string(), "metadata k is there twice");
    for alignment in [0, 3, u32::MAX] {
        let mut w = GgufWriter::new();
        w.u32("general.alignment", alignment);
        assert!(Gguf::parse(w.finish().into()).unwrap_err().to_string().contains("not a power of two"));
    }
}

proptest! {
    #[test]
    fn any_metadata_comes_back(
        numbers in prop::collection::vec(any::<u32>(), 0..5),
        texts in prop::collection::vec(any::<String>(), 0..5),
        data in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut w = GgufWriter::new();
        for (i, n) in numbers.iter().enumerate() {
            w.u32(&format!("n{i}"), *n);
        }
        w.texts("texts", &texts);
        for (i, t) in texts.iter().enumerate() {
            w.text(&format!("t{i}"), t);
        }
        let data = &data[..data.len() / 4 * 4];
        w.tensor("x", DType::F32, &[data.len() / 4], data).unwrap();
        let file = w.finish();
        let g = Gguf::parse(file.clone().into()).unwrap();
        for (i, n) in numbers.iter().enumerate() {
            prop_assert_eq!(g.u64(&format!("n{i}")), Some(u64::from(*n)));
        }
        let indexed = g.get("texts").and_then(Value::as_array).and_then(Array::indexed_texts).unwrap();
        prop_assert_eq!(indexed.len(), texts.len());
        for (i, t) in texts.iter().enumerate() {
            prop_assert_eq!(g.str(&format!("t{i}")), Some(&t[..]));
            prop_assert_eq!(indexed.slice(i).unwrap(), t.as_bytes());
        }
        prop_assert_eq!(&g.data(g.tensor("x").unwrap())[..], data);
        for cut in [file.len() - 1, file.len() / 2] {
            let cut = Gguf::parse(file[..cut].to_vec().into());
            prop_assert!(cut.is_err() || data.is_empty());
        }
    }

    #[test]
    fn flipped_bytes_never_panic(flips in prop::collection::vec((0usize..1000, any::<u8>()), 1..8)) {
        let mut file = sample();
        for (at, value) in flips {
            let at = at % file.len();
            file[at] = value;
        }
        if let Ok(g) = Gguf::parse(file.into()) {
            for t in g.tensors() {
                prop_assert_eq!(g.data(t).len(), t.layout.span());
            }
            for key in g.keys() {
                if let Some(Value::Array(a)) = g.get(key) {
                    a.texts().map(Iterator::count);
                    a.values().map(Iterator::count);
                }
            }
        }
    }
}
