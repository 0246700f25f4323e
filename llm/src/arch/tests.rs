//! What architectures make of files: their layers as data, and what they refuse.

use super::*;
use crate::arch::net::{self, Feed, GraphShape, Outputs};
use crate::gguf::{Gguf, GgufWriter, WeightRef};
use outboard_core::op::Op;
use outboard_core::{DType, Layout};

/// A file of six layers of two heads of 32, with what `more` adds to it.
fn file(arch: &str, more: impl Fn(&mut GgufWriter)) -> Gguf {
    let mut file = GgufWriter::new();
    for (key, value) in [("block_count", 6), ("context_length", 4096), ("embedding_length", 64)] {
        file.u32(&format!("{arch}.{key}"), value);
    }
    file.u32(&format!("{arch}.attention.head_count"), 2);
    file.tensor("token_embd.weight", DType::F32, &[64, 1], &[0; 256]).unwrap();
    more(&mut file);
    Gguf::parse(file.finish().unwrap().into()).unwrap()
}

fn read(arch: &str, more: impl Fn(&mut GgufWriter)) -> Result<Hparams> {
    let file = file(arch, more);
    let mut h = Hparams::read(&file, arch)?;
    by_name(arch)?.read(&file, &mut h)?;
    Ok(h)
}

fn attention(h: &Hparams) -> Vec<Attention> {
    let arch = by_name(&h.arch).unwrap();
    (0..h.n_layer).map(|il| arch.layer(h, il).attention).collect()
}

fn windows(h: &Hparams) -> Vec<usize> {
    attention(h).iter().map(|attention| attention.window).collect()
}

#[test]
fn names_are_unique() {
    let names: std::collections::BTreeSet<_> = ALL.iter().map(|arch| arch.name()).collect();
    assert_eq!(names.len(), ALL.len());
    assert!(by_name("mamba").err().unwrap().to_string().contains("gpt-oss"));
}

#[test]
fn layers_with_a_window_are_where_the_family_has_them() {
    let window = |arch: &'static str| {
        move |file: &mut GgufWriter| {
            file.u32(&format!("{arch}.attention.sliding_window"), 128);
            file.f32(&format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-6);
            file.f32(&format!("{arch}.rope.freq_base"), 150_000.0);
            let experts = if arch == "gpt-oss" { 4 } else { 0 };
            file.u32(&format!("{arch}.expert_count"), experts).u32(&format!("{arch}.expert_used_count"), 2);
            file.text(&format!("{arch}.rope.scaling.type"), "yarn").f32(&format!("{arch}.rope.scaling.factor"), 8.0);
        }
    };
    for (arch, want) in [
        ("gemma2", [128, 0, 128, 0, 128, 0]),
        ("gpt-oss", [128, 0, 128, 0, 128, 0]),
        ("olmo2", [128, 128, 128, 0, 128, 128]),
        ("gemma3", [128, 128, 128, 128, 128, 0]),
        ("phi3", [128; 6]),
        ("llama", [0; 6]),
    ] {
        let h = read(arch, window(arch)).unwrap();
        assert_eq!(windows(&h), want, "{arch}");
        // Only these do not stretch the context of layers with a window.
        let own = ["gemma3", "olmo2"].contains(&arch);
        for (il, attention) in attention(&h).iter().enumerate() {
            let stretched = attention.rope.unwrap().freq_scale != 1.0;
            assert_eq!(stretched, !(own && want[il] != 0), "{arch} {il}");
        }
    }
    for arch in ["gemma2", "gpt-oss"] {
        let without = read(arch, |file| {
            window(arch)(file);
            file.u32(&format!("{arch}.attention.sliding_window_pattern"), 0);
        });
        assert_eq!(windows(&without.unwrap()), [128; 6], "{arch}: the file says that all have it");
        let error = read(arch, |_| ()).unwrap_err().to_string();
        assert!(error.contains("is missing"), "{error}");
    }
}

#[test]
fn factors_of_granite() {
    let h = read("granite", |file| {
        file.f32("granite.attention.scale", 0.015625).f32("granite.embedding_scale", 12.0);
        file.f32("granite.residual_scale", 0.22).f32("granite.logit_scale", 8.0);
    });
    let h = h.unwrap();
    let layer = granite::Granite.layer(&h, 0);
    assert_eq!((layer.attention.scale, layer.residual_scale), (0.015625, 0.22));
    assert_eq!(granite::Granite.frame(&h), Frame { embedding_scale: 12.0, logit_scale: 0.125, ..Frame::PLAIN });
    // Others do not take what they do not know.
    let h = read("llama", |file| {
        file.f32("llama.residual_scale", 0.22).f32("llama.attn_logit_softcapping", 50.0);
    });
    let h = h.unwrap();
    assert_eq!(llama::Llama.layer(&h, 0), Layer::pre_norm(&h, RopeMode::Normal));
    assert_eq!(llama::Llama.layer(&h, 0).attention.softcap, 0.0);
    let without = read("granite", |file| {
        file.bool("granite.rope.scaling.finetuned", false);
    });
    assert!(without.unwrap_err().to_string().contains("without positions"));
}

#[test]
fn gemma2_bends_logits_and_scales_the_largest_model_otherwise() {
    let gemma2 = |n_layer: usize, more: &dyn Fn(&mut GgufWriter)| {
        let h = read("gemma2", |file| {
            file.u32("gemma2.attention.sliding_window", 8).f32("gemma2.attention.layer_norm_rms_epsilon", 1e-6);
            file.u32("gemma2.attention.key_length", 16);
            more(file);
        });
        Hparams { n_layer, ..h.unwrap() }
    };
    let h = gemma2(6, &|_| ());
    let attention = gemma2::Gemma2.layer(&h, 1).attention;
    assert_eq!((attention.softcap, attention.scale), (50.0, 0.25));
    assert_eq!(gemma2::Gemma2.frame(&h), Frame { embedding_scale: 8.0, logit_softcap: 30.0, ..Frame::PLAIN });
    assert_eq!(gemma2::Gemma2.layer(&gemma2(46, &|_| ()), 1).attention.scale, 1.0 / 32f32.sqrt());
    let h = gemma2(6, &|file| {
        file.f32("gemma2.attn_logit_softcapping", 20.0).f32("gemma2.final_logit_softcapping", 10.0);
    });
    assert_eq!((gemma2::Gemma2.layer(&h, 0).attention.softcap, gemma2::Gemma2.frame(&h).logit_softcap), (20.0, 10.0));
}

#[test]
fn every_fourth_layer_of_smollm3_does_not_rotate() {
    let h = read("smollm3", |_| ()).unwrap();
    let rotates: Vec<bool> = attention(&h).iter().map(|attention| attention.rope.is_some()).collect();
    assert_eq!(rotates, [true, true, true, false, true, true]);
}

#[test]
fn families_say_whether_they_have_experts() {
    let with = |arch: &str, n: u32| {
        read(arch, |file| {
            file.u32(&format!("{arch}.expert_count"), n).u32(&format!("{arch}.expert_used_count"), 1);
        })
    };
    for arch in ["qwen2", "qwen3", "granite", "smollm3", "phi3", "olmo2"] {
        assert!(with(arch, 0).is_ok(), "{arch}");
        assert!(with(arch, 4).unwrap_err().to_string().contains("with 4 experts"), "{arch}");
    }
    for arch in ["qwen2moe", "qwen3moe"] {
        assert!(with(arch, 4).is_ok(), "{arch}");
        assert!(with(arch, 0).unwrap_err().to_string().contains("without any"), "{arch}");
    }
}

/// The graph of a small model with a context of `n_ctx` tokens, and of what its file has besides.
fn factors_of(model: &str, n_ctx: usize, file: &dyn ModelFile, h: &Hparams) -> Result<Vec<String>> {
    let shape = GraphShape {
        n_tokens: 1,
        cache: net::Cache::of_one(n_ctx),
        feed: Feed::Input,
        history: false,
        outputs: Outputs::Logits(1),
    };
    let graph = net::build(by_name(model)?, h, file, shape)?.graph;
    let factors = |id| {
        let rope = matches!(graph.tensor(id).op(), Some(Op::Rope(_)));
        let factors = graph.tensor(id).srcs().get(2).copied().flatten().filter(|_| rope)?;
        graph.tensor(factors).name().split(" (").next().map(str::to_owned)
    };
    let mut names: Vec<String> = graph.nodes().filter_map(factors).collect();
    names.dedup();
    Ok(names)
}

/// The small model's context was 256 before LongRoPE.
#[test]
fn long_contexts_have_their_own_factors() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/arch/phi3-dense.gguf");
    let file = Gguf::parse(std::fs::read(path).unwrap().into()).unwrap();
    let h = Hparams::read(&file, "phi3").unwrap();
    for (n_ctx, want) in [(256, "rope_factors_short.weight"), (257, "rope_factors_long.weight")] {
        assert_eq!(factors_of("phi3", n_ctx, &file, &h).unwrap(), [want]);
    }
    for lacking in ["rope_factors_short.weight", "rope_factors_long.weight"] {
        let error =
            factors_of("phi3", 64, &Changed { file: &file, tensor: lacking, width: None }, &h).unwrap_err().to_string();
        assert!(error.contains(&format!("{lacking} is missing")), "{error}");
    }
}

/// A file with one of its tensors changed: of another width, or not there.
struct Changed<'a> {
    file: &'a Gguf,
    tensor: &'a str,
    width: Option<usize>,
}

impl ModelFile for Changed<'_> {
    fn weight(&self, tensor: &str) -> Option<(WeightRef, Layout)> {
        let (weight, layout) = ModelFile::weight(self.file, tensor)?;
        if tensor != self.tensor {
            return Some((weight, layout));
        }
        Some((weight, Layout::contiguous(DType::F32, [self.width?, 1, 1, 1]).ok()?))
    }

    fn int(&self, key: &str) -> Option<u64> {
        self.file.int(key)
    }

    fn ints(&self, key: &str, most: usize) -> Result<Option<Vec<u64>>> {
        self.file.ints(key, most)
    }

    fn float(&self, key: &str) -> Option<f32> {
        self.file.float(key)
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.file.text(key)
    }
}

#[test]
fn the_context_of_mistral3_ends_where_queries_would_grow() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/arch/mistral3-dense.gguf");
    let file = Gguf::parse(std::fs::read(path).unwrap().into()).unwrap();
    let mut h = Hparams::read(&file, "mistral3").unwrap();
    assert!(factors_of("mistral3", 257, &file, &h).is_ok());
    h.factors.attention_temperature = Some(0.1);
    h.n_ctx_train = 4096;
    mistral3::Mistral3.read(&file, &mut h).unwrap();
    assert_eq!(h.n_ctx_train, 256);
    assert!(factors_of("mistral3", 256, &file, &h).is_ok());
    let error = factors_of("mistral3", 257, &file, &h).unwrap_err().to_string();
    assert!(error.contains("context of 256 tokens"), "{error}");
}

/// Sizes of tensors that do not belong together are errors that name them.
#[test]
fn a_norm_of_another_width_is_refused() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/arch/olmo2-dense.gguf");
    let file = Gguf::parse(std::fs::read(path).unwrap().into()).unwrap();
    let h = Hparams::read(&file, "olmo2").unwrap();
    for name in ["blk.0.attn_q_norm.weight", "blk.1.post_ffw_norm.weight", "output_norm.weight"] {
        let error =
            factors_of("olmo2", 8, &Changed { file: &file, tensor: name, width: Some(2) }, &h).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("normalizes 256"), "{error}");
    }
}
