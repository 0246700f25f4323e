//! Builds the SPIR-V of the Vulkan backend: each `shaders/NAME.comp` becomes `spirv/NAME.spv`. With `--check`, says which are not current, and
//! fails, instead.

use glslang::{
    Compiler, CompilerOptions, ShaderInput, ShaderMessage, ShaderSource, ShaderStage, SourceLanguage, SpirvVersion, Target,
    VulkanVersion,
};
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

/// The text of a shader with the files that it includes.
fn with_includes(path: &Path) -> Result<String, Box<dyn Error>> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut out = String::new();
    for line in text.lines() {
        match line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) {
            Some(name) => out += &with_includes(&path.with_file_name(name))?,
            None => out += line,
        }
        out.push('\n');
    }
    Ok(out)
}

fn compile(compiler: &Compiler, path: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let source = ShaderSource::from(with_includes(path)?);
    let options = CompilerOptions {
        source_language: SourceLanguage::GLSL,
        target: Target::Vulkan { version: VulkanVersion::Vulkan1_2, spirv_version: SpirvVersion::SPIRV1_5 },
        version_profile: None,
        messages: ShaderMessage::DEFAULT,
    };
    let defines: Option<&[(&str, Option<&str>)]> = None;
    let input = ShaderInput::new(&source, ShaderStage::Compute, &options, defines, None);
    let shader = compiler.create_shader(input?).map_err(|e| format!("{}: {e}", path.display()))?;
    let words = shader.compile().map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

fn run() -> Result<bool, Box<dyn Error>> {
    let check = std::env::args().any(|argument| argument == "--check");
    let backend = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../local-backends/vulkan");
    let compiler = Compiler::acquire().ok_or("glslang does not start")?;
    let mut current = true;
    let mut names: Vec<_> = std::fs::read_dir(backend.join("shaders"))?.collect::<Result<Vec<_>, _>>()?.iter().map(|e| e.path()).collect();
    names.retain(|path| path.extension().is_some_and(|e| e == "comp"));
    names.sort();
    for path in names {
        let built = compile(compiler, &path)?;
        let to = backend.join("spirv").join(path.file_name().unwrap_or_default()).with_extension("spv");
        if std::fs::read(&to).is_ok_and(|there| there == built) {
            continue;
        }
        current = false;
        if check {
            eprintln!("{} is not what {} makes", to.display(), path.display());
        } else {
            std::fs::write(&to, built)?;
            eprintln!("wrote {}", to.display());
        }
    }
    Ok(current || !check)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
