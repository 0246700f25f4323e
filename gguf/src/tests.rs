use super::*;
use crate::file::MAGIC;
use outboard_core::DType;
use proptest::prelude::*;

fn sample() -> Vec<u8> {
    let mut w = GgufWriter::new();
    w.text("general.architecture", "llama").u32("llama.block_count", 2).f32("llama.eps", 1e-5).bool("flag", true);
    w.texts("tokens", &["a", "bb", ""]).i32s("types", &[1, 3, -1]);
    w.tensor("a", DType::F32, &[3, 2], &[1; 24]).unwrap();
    w.tensor("b", DType::Q4_0, &[64], &[2; 36]).unwrap();
    w.finish().unwrap()
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
fn weights_are_found_by_file_tensor_and_part() {
    let g = Gguf::parse(sample().into()).unwrap();
    let a = g.weight("a").unwrap();
    assert_eq!((a.file, a.tensor, a.part, g.weight("c")), (0, 0, Part::Whole, None));
    let whole = g.range(a).unwrap();
    assert_eq!(whole, g.tensor("a").unwrap().range());
    let rows = |first, count| g.range(WeightRef { part: Part::Rows { first, count }, ..a });
    assert_eq!(rows(0, 2), Some(whole));
    assert_eq!(rows(1, 1), Some(FileRange { offset: whole.offset + 12, len: 12, ..whole }));
    for (first, count) in [(0, 3), (2, 1), (1, 2), (u64::MAX, 2)] {
        assert_eq!(rows(first, count), None, "{count} rows from {first} on, of two");
    }
    for wrong in [WeightRef { tensor: 2, ..a }, WeightRef { file: 1, ..a }] {
        assert_eq!(g.range(wrong), None);
    }
}

#[test]
fn every_truncation_is_an_error() {
    let file = sample();
    // Behind the last tensor is nothing but padding.
    let end = Gguf::parse(file.clone().into()).unwrap().tensors().iter().map(|t| t.offset + t.layout.span()).max();
    for len in 0..end.unwrap() {
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
    let mut file = w.finish().unwrap();
    // Behind its key and two types.
    let at = 24 + 8 + 1 + 4 + 4;
    file[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(Gguf::parse(file.into()).unwrap_err().to_string().contains("array of 18446744073709551615"));
}

#[test]
fn unsupported_types() {
    let mut w = GgufWriter::new();
    w.tensor("t", DType::F32, &[1], &[0; 4]).unwrap();
    let mut file = w.finish().unwrap();
    let at = 24 + 8 + 1 + 4 + 8;
    file[at..at + 4].copy_from_slice(&16u32.to_le_bytes());
    assert!(Gguf::parse(file.into()).unwrap_err().to_string().contains("tensor t has type IQ2_XXS"));
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
    w.u32("k", 1).u32("l", 2);
    let mut file = w.finish().unwrap();
    let at = file.iter().position(|&b| b == b'l').unwrap();
    file[at] = b'k';
    assert_eq!(Gguf::parse(file.into()).unwrap_err().to_string(), "metadata k is there twice");
    for alignment in [0, 3, u32::MAX] {
        let mut w = GgufWriter::new();
        w.alignment(32);
        let mut file = w.finish().unwrap();
        let at = 24 + 8 + "general.alignment".len() + 4;
        file[at..at + 4].copy_from_slice(&alignment.to_le_bytes());
        assert!(Gguf::parse(file.into()).unwrap_err().to_string().contains("not a power of two"));
    }
}

proptest! {
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
            for (_, value) in g.metadata() {
                if let Value::Array(a) = value {
                    a.texts().map(Iterator::count);
                    a.values().map(Iterator::count);
                }
            }
        }
    }
}
