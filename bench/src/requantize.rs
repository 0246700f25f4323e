//! The same model in one type of weights, to compare kernels type by type: llama.cpp's own quantization, with nothing kept back in
//! a better type. What it says is worse than before; how fast it is, is not.
//! `cargo run --release --bin requantize -- FROM.gguf TO.gguf TYPE` in the folder `bench`.

use anyhow::{Context, Result, bail, ensure};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_sys_2 as sys;
use std::ffi::CString;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut next =
        |what: &'static str| args.next().with_context(|| format!("{what} is missing: FROM.gguf TO.gguf TYPE"));
    let (from, to, name) = (next("the model to read")?, next("the file to write")?, next("the type")?);
    ensure!(from != to, "{from} cannot be written while it is read");
    let ftype = match name.to_uppercase().as_str() {
        "Q4_0" => sys::LLAMA_FTYPE_MOSTLY_Q4_0,
        "Q4_1" => sys::LLAMA_FTYPE_MOSTLY_Q4_1,
        "Q5_0" => sys::LLAMA_FTYPE_MOSTLY_Q5_0,
        "Q5_1" => sys::LLAMA_FTYPE_MOSTLY_Q5_1,
        "Q8_0" => sys::LLAMA_FTYPE_MOSTLY_Q8_0,
        "F16" => sys::LLAMA_FTYPE_MOSTLY_F16,
        _ => bail!("{name} is not one of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, F16"),
    };
    let mut backend = LlamaBackend::init()?;
    backend.void_logs();
    let (source, target) = (CString::new(from.as_str())?, CString::new(to.as_str())?);
    // SAFETY: both strings and the parameters live through the call.
    let failed = unsafe {
        let mut params = sys::llama_model_quantize_default_params();
        params.ftype = ftype;
        params.allow_requantize = true;
        params.pure_ = true;
        sys::llama_model_quantize(source.as_ptr(), target.as_ptr(), &params)
    };
    ensure!(failed == 0, "llama.cpp could not make {to} from {from} ({failed})");
    println!("{to}: {from} in {name}");
    Ok(())
}
