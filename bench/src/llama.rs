//! llama.cpp's side: a context set up as `llama-bench` does by default, on the CPU.

use crate::{Setup, Side};
use anyhow::{Context, Result, ensure};
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use std::ffi::CStr;
use std::num::NonZeroU32;

/// Most tokens of one call, as in `llama-bench`; they are computed in micro-batches.
const N_BATCH: u32 = 2048;

pub(crate) fn init(verbose: bool) -> Result<LlamaBackend> {
    let mut backend = LlamaBackend::init()?;
    if !verbose {
        backend.void_logs();
    }
    Ok(backend)
}

/// What llama.cpp was compiled for, in its own words.
pub(crate) fn system_info() -> String {
    // SAFETY: the function takes nothing and gives a string that ends with 0 and lives in a static.
    let text = unsafe { CStr::from_ptr(llama_cpp_sys_2::llama_print_system_info()) };
    text.to_string_lossy().trim_end_matches([' ', '|']).to_owned()
}

/// Fails if llama.cpp was compiled for less than this processor has: it would not be a fair peer.
pub(crate) fn check_build() -> Result<()> {
    let info = system_info();
    let missing: Vec<&str> = features()
        .into_iter()
        .filter(|(name, has)| *has && !info.split(['|', ':']).any(|f| f.trim() == format!("{name} = 1")))
        .map(|(name, _)| name)
        .collect();
    ensure!(
        missing.is_empty(),
        "llama.cpp was compiled without {}, which this processor has, and would not be a fair peer; in the folder bench, where \
         cargo finds the compiler's flags, run: cargo clean --release -p llama-cpp-sys-2 && cargo build --release",
        missing.join(", ")
    );
    Ok(())
}

/// Features by llama.cpp's name that make its kernels faster, and whether this processor has them.
fn features() -> Vec<(&'static str, bool)> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        vec![
            ("AVX2", has!("avx2")),
            ("FMA", has!("fma")),
            ("F16C", has!("f16c")),
            ("AVX_VNNI", has!("avxvnni")),
            ("AVX512", has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq")),
            ("AVX512_VNNI", has!("avx512vnni")),
            ("AVX512_VBMI", has!("avx512vbmi")),
            ("AVX512_BF16", has!("avx512bf16")),
        ]
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::is_aarch64_feature_detected as has;
        vec![("DOTPROD", has!("dotprod")), ("MATMUL_INT8", has!("i8mm"))]
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        Vec::new()
    }
}

pub(crate) fn load(backend: &LlamaBackend, setup: &Setup) -> Result<LlamaModel> {
    let params = LlamaModelParams::default().with_n_gpu_layers(0).with_use_mmap(true);
    LlamaModel::load_from_file(backend, &setup.model, &params)
        .with_context(|| format!("llama.cpp cannot load {}", setup.model.display()))
}

pub(crate) struct Llama<'a> {
    context: LlamaContext<'a>,
    n_vocab: u32,
}

impl<'a> Llama<'a> {
    /// Flash attention is left to llama.cpp ("auto"), which is its default.
    pub(crate) fn new(backend: &LlamaBackend, model: &'a LlamaModel, setup: &Setup) -> Result<Llama<'a>> {
        let params = LlamaContextParams::default()
            // Of all sequences together.
            .with_n_ctx(NonZeroU32::new(setup.n_ctx.saturating_mul(setup.n_seqs)))
            .with_n_seq_max(setup.n_seqs)
            .with_n_batch(N_BATCH)
            .with_n_ubatch(setup.n_ubatch)
            .with_n_threads(setup.threads.into())
            .with_n_threads_batch(setup.threads.into())
            .with_type_k(KvCacheType::F16)
            .with_type_v(KvCacheType::F16);
        let context = model.new_context(backend, params).context("llama.cpp cannot make a context")?;
        Ok(Llama { context, n_vocab: u32::try_from(model.n_vocab())? })
    }
}

impl Side for Llama<'_> {
    fn n_vocab(&self) -> u32 {
        self.n_vocab
    }

    fn clear(&mut self) {
        self.context.clear_kv_cache();
    }

    fn eval(&mut self, tokens: &[u32]) -> Result<()> {
        for chunk in tokens.chunks(N_BATCH as usize) {
            let chunk = chunk.iter().map(|&t| Ok(LlamaToken(i32::try_from(t)?))).collect::<Result<Vec<_>>>()?;
            // Logits of the last token only, positions behind those in the cache.
            self.context.decode(&mut LlamaBatch::get_one(&chunk)?)?;
        }
        self.context.synchronize();
        Ok(())
    }

    fn next(&self) -> Result<u32> {
        let logits = self.context.get_logits_ith(-1).iter().enumerate();
        let best = logits.max_by(|a, b| a.1.total_cmp(b.1)).context("llama.cpp gave no logits")?;
        Ok(u32::try_from(best.0)?)
    }

    /// As `llama-batched-bench`: the tokens are the same at each step, and nothing is sampled.
    fn side_by_side(&mut self, tokens: &[u32], steps: u32) -> Result<()> {
        let mut batch = LlamaBatch::new(tokens.len(), 1);
        for step in 0..i32::try_from(steps)? {
            batch.clear();
            for (sequence, &token) in (0..).zip(tokens) {
                batch.add(LlamaToken(i32::try_from(token)?), step, &[sequence], true)?;
            }
            self.context.decode(&mut batch)?;
        }
        self.context.synchronize();
        self.context.clear_kv_cache();
        Ok(())
    }
}
