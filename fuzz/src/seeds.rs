//! Where fuzzing starts: inputs made by this project's own encoders.

use crate::messages::kind_of;
use outboard_gguf::GgufWriter;
use outboard_proto::graph;
use std::path::Path;

/// Inputs of a target with names, without those of its folders.
pub fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    match target {
        "messages" => messages(),
        "graph" => graphs().into_iter().map(|(name, bytes)| (name, [&[7][..], &bytes].concat())).collect(),
        "session" => sessions(),
        "gguf" => ggufs(),
        "tokens" => vec![
            ("two".into(), b"# clients\nlaptop 0123456789abcdef\n\n desk\tfedcba9876543210 \r\n".to_vec()),
            ("wrong".into(), b"laptop short\n".to_vec()),
        ],
        _ => Vec::new(),
    }
}

/// One case of every op, the smallest.
fn graphs() -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    for case in outboard_conformance::cases() {
        let Some(bytes) = case.graph().and_then(|g| graph::encode(g).ok()) else { continue };
        let elements = case.graph().map_or(0, |g| g.tensors().iter().map(|t| t.layout().elements()).sum::<usize>());
        if !(4..3000).contains(&elements) {
            continue;
        }
        let nodes = case.graph().map_or(0, |g| g.nodes().count());
        let name = format!("{}-{nodes}", case.op().to_lowercase());
        match all.iter_mut().find(|(n, _)| *n == name) {
            Some((_, smallest)) if smallest.len() > bytes.len() => *smallest = bytes.to_vec(),
            Some(_) => {}
            None => all.push((name, bytes.to_vec())),
        }
    }
    all
}

/// The golden files of `proto`, which has one for each message.
fn messages() -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/tests/golden");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(&dir).expect("golden files").flatten() {
        let path = entry.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let Some(kind) = kind_of(&name) else { continue };
        let hex: Vec<u8> =
            std::fs::read(&path).expect("a golden file").into_iter().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex");
        let bytes: Vec<u8> = hex.chunks(2).map(byte).collect();
        all.push((name, [&[kind][..], &bytes].concat()));
    }
    all.sort();
    all
}

/// Programs that do something sensible, instruction by instruction.
fn sessions() -> Vec<(String, Vec<u8>)> {
    // Two buffers, a queue, a graph, and its run.
    let whole = |b: u8| [1, b, 0, 127];
    let alloc = |b: u8, device: u8| vec![0, b, device, 127];
    let compute = [
        alloc(1, 0),
        alloc(2, 0),
        vec![2, 0, 2, 1, 0, 4, 2, 0, 4, 1, 0],
        vec![5, 0],
        vec![8, 0, 32, 1],
        vec![10, 0, 1],
        [&[9, 0][..], &whole(2), &[0]].concat(),
        vec![18, 0, 1],
    ];
    let copy = [
        alloc(1, 0),
        alloc(2, 1),
        vec![5, 0],
        vec![5, 1],
        [&[13, 0][..], &whole(1), &[5]].concat(),
        [&[16, 0, 1][..], &whole(1), &[1]].concat(),
        [&[17, 1, 1][..], &whole(2), &[1]].concat(),
        vec![15, 0, 1],
        vec![14, 1, 1, 1],
        vec![4, 1, 1, 0],
        [&[19, 1][..], &whole(2), &[1, 127, 0]].concat(),
        vec![18, 1, 1],
    ];
    // Graphs that are right on a queue of each device, one behind the other.
    let graphs = [vec![5, 0, 5, 1], (0..12).flat_map(|n| [24, 0, n, n % 2]).collect(), vec![18, 0, 1]];
    vec![("compute".into(), compute.concat()), ("copy".into(), copy.concat()), ("graphs".into(), graphs.concat())]
}

fn ggufs() -> Vec<(String, Vec<u8>)> {
    let mut w = GgufWriter::new();
    w.text("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
    w.u32("llama.context_length", 64).u32("llama.embedding_length", 4).u32("llama.feed_forward_length", 8);
    w.u32("llama.attention.head_count", 2).u32("llama.attention.head_count_kv", 1).u32("general.alignment", 32);
    w.bool("tokenizer.ggml.add_bos_token", true).text("tokenizer.ggml.model", "llama");
    w.texts("tokenizer.ggml.tokens", &["<unk>", "<s>", "</s>", "\u{2581}a", "a", "b", "<0x0A>"]);
    w.f32s("tokenizer.ggml.scores", &[0.0, 0.0, 0.0, -1.0, -2.0, -3.0, 0.0]);
    w.i32s("tokenizer.ggml.token_type", &[2, 3, 3, 1, 1, 1, 6])
        .text("tokenizer.chat_template", "{{ messages[0].content }}");
    let tensor = |w: &mut GgufWriter, name: &str, shape: &[usize]| {
        let bytes = vec![0; 4 * shape.iter().product::<usize>()];
        w.tensor(name, outboard_core::DType::F32, shape, &bytes).map(drop).expect("a tensor");
    };
    for (name, shape) in [("token_embd.weight", &[4, 7][..]), ("output_norm.weight", &[4])] {
        tensor(&mut w, name, shape);
    }
    for (name, shape) in [
        ("attn_norm", &[4][..]),
        ("attn_q", &[4, 4]),
        ("attn_k", &[4, 2]),
        ("attn_v", &[4, 2]),
        ("attn_output", &[4, 4]),
        ("ffn_norm", &[4]),
        ("ffn_gate", &[4, 8]),
        ("ffn_up", &[4, 8]),
        ("ffn_down", &[8, 4]),
    ] {
        tensor(&mut w, &format!("blk.0.{name}.weight"), shape);
    }
    let model = w.finish().expect("a file");
    let mut small = GgufWriter::new();
    small.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "qwen2");
    small.texts("tokenizer.ggml.tokens", &["a", "b", "ab", "<|im_end|>"]).texts("tokenizer.ggml.merges", &["a b"]);
    small.i32s("tokenizer.ggml.token_type", &[1, 1, 1, 3]).u32("tokenizer.ggml.eos_token_id", 3);
    let mut first = GgufWriter::new();
    first.value("split.no", 0u16).value("split.count", 2u16).value("split.tensors.count", 1i32);
    tensor(&mut first, "a", &[8]);
    let first = first.finish().expect("a file");
    vec![("first-of-two".into(), first), ("model".into(), model), ("tokenizer".into(), small.finish().expect("a file"))]
}
