//! A model with all its matrices in one type, to compare the kernels of that type: llama.cpp's own quantization, without the better
//! types that it gives some matrices (rows that are no multiple of 32 become F16). Its texts get worse; its speed is the type's.
//! `cargo run --release --bin requantize -- FROM.gguf TO.gguf TYPE` in the folder `bench`.

use anyhow::{Context, Result, bail, ensure};
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_sys_2 as sys;
use std::ffi::CString;
use std::path::Path;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut next =
        |what: &'static str| args.next().with_context(|| format!("{what} is missing: FROM.gguf TO.gguf TYPE"));
    let (from, to, name) = (next("the model to read")?, next("the file to write")?, next("the type")?);
    ensure!(!Path::new(&to).exists(), "{to} is there already; it is not replaced");
    let ftype = match name.to_uppercase().as_str() {
        "Q4_0" => sys::LLAMA_FTYPE_MOSTLY_Q4_0,
        "Q4_1" => sys::LLAMA_FTYPE_MOSTLY_Q4_1,
        "Q5_0" => sys::LLAMA_FTYPE_MOSTLY_Q5_0,
        "Q5_1" => sys::LLAMA_FTYPE_MOSTLY_Q5_1,
        "Q8_0" => sys::LLAMA_FTYPE_MOSTLY_Q8_0,
        "F16" => sys::LLAMA_FTYPE_MOSTLY_F16,
        _ => bail!("{name} is not one of Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, F16"),
    };
    // Its log tells what becomes of each matrix, and why it stops if it does.
    let _backend = LlamaBackend::init()?;
    let (source, target) = (CString::new(from.as_str())?, CString::new(to.as_str())?);
    // SAFETY: both strings and the parameters live through the call.
    let failed = unsafe {
        let mut params = sys::llama_model_quantize_default_params();
        params.ftype = ftype;
        params.allow_requantize = true;
        params.pure_ = true;
        sys::llama_model_quantize(source.as_ptr(), target.as_ptr(), &params)
    };
    ensure!(failed == 0, "llama.cpp could not make {to} from {from} ({failed}); its log says why");
    println!("{to}: {from} in {name}");
    Ok(())
}
