//! Where libraries of ggml lie, and which file is what.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Names the folder of the libraries.
pub const VARIABLE: &str = "OUTBOARD_GGML";

/// What a file of a folder is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// `libggml-base`.
    Base,
    /// A backend, by the name behind `libggml-`: `cpu-haswell`, `vulkan`.
    Backend(String),
}

impl Part {
    /// The name of a backend.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Part::Base => None,
            Part::Backend(name) => Some(name),
        }
    }
}

/// What a file of this name is: `libggml-cpu.so.0`, `libggml-metal.dylib`, `ggml-cuda.dll`.
pub(crate) fn part(file: &OsStr) -> Option<Part> {
    let name = file.to_str()?;
    let name = name.strip_prefix("lib").unwrap_or(name).strip_prefix("ggml-")?;
    let end = [".so", ".dylib", ".dll"].iter().find_map(|suffix| name.find(suffix))?;
    let stem = &name[..end];
    // With its version in front of the suffix, as on macOS.
    let stem = stem.split('.').next().filter(|stem| !stem.is_empty())?;
    match stem {
        "base" => Some(Part::Base),
        // It is a way to other hosts, as this program is.
        "rpc" => None,
        backend => Some(Part::Backend(backend.to_owned())),
    }
}

/// The libraries of a folder, each part once: of several names of one file, the shortest. `None` without `libggml-base`.
pub(crate) fn parts(folder: &Path) -> Option<Vec<(Part, PathBuf)>> {
    // Debian has the backends in a folder of their own.
    let below = ["ggml", "ggml/backends0"].map(|below| folder.join(below));
    let folders = std::iter::once(folder).chain(below.iter().map(PathBuf::as_path));
    let files = folders.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let files = files.filter_map(|file| file.ok()?.path().into());
    // What is no file, such as a pipe, would be waited for.
    let mut parts: Vec<(Part, PathBuf)> = files
        .filter_map(|path: PathBuf| Some((part(path.file_name()?)?, path)))
        .filter(|(_, path)| path.is_file())
        .collect();
    parts.sort_by_key(|(part, path)| (part.clone(), path.as_os_str().len()));
    parts.dedup_by(|later, first| later.0 == first.0);
    (parts.first()?.0 == Part::Base).then_some(parts)
}

/// The files of `libggml-base` in a folder, each once whatever its names.
pub(crate) fn bases(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).into_iter().flatten().filter_map(|file| Some(file.ok()?.path()));
    let bases = files.filter(|path| path.file_name().and_then(part) == Some(Part::Base));
    let mut real: Vec<PathBuf> = bases.filter_map(|path| path.canonicalize().ok()).collect();
    real.sort();
    real.dedup();
    real
}

/// The folder that the variable names.
pub(crate) fn told() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The first of the usual places that has the libraries: beside a program of llama.cpp in the path and where that is installed, then
/// where systems have their libraries.
pub(crate) fn usual() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside =
        std::env::split_paths(&path).filter_map(|folder| PROGRAMS.iter().find_map(|p| installed(&folder.join(p))));
    let multiarch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let systems = ["/usr/local/lib", "/usr/lib64", &multiarch, "/usr/lib", "/opt/homebrew/lib"].map(PathBuf::from);
    beside.chain(systems).find(|folder| has_base(folder))
}

/// Programs of llama.cpp.
const PROGRAMS: [&str; 4] = ["llama-server", "llama-cli", "llama-server.exe", "llama-cli.exe"];

/// The folder of the libraries of this program, if it is there.
fn installed(program: &Path) -> Option<PathBuf> {
    let folder = program.canonicalize().ok()?.parent()?.to_owned();
    [folder.clone(), folder.join("../lib")].into_iter().find(|folder| has_base(folder))
}

/// Whether `libggml-base` is there under one of its plain names: a folder of thousands of libraries is not read for that.
fn has_base(folder: &Path) -> bool {
    let (prefix, suffix) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let names = [format!("{prefix}ggml-base{suffix}"), format!("{prefix}ggml-base{suffix}.0")];
    names.iter().any(|name| folder.join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_three_systems() {
        let backend = |name: &str| Some(Part::Backend(name.into()));
        for (file, part_of) in [
            ("libggml-base.so", Some(Part::Base)),
            ("libggml-base.so.0.9.5", Some(Part::Base)),
            ("libggml-base.0.dylib", Some(Part::Base)),
            ("ggml-base.dll", Some(Part::Base)),
            ("libggml-cpu-haswell.so", backend("cpu-haswell")),
            ("ggml-cuda.dll", backend("cuda")),
            ("libggml-metal.so", backend("metal")),
            ("libggml-rpc.so", None),
            ("libggml.so", None),
            ("libggml-.so", None),
            ("libllama.so", None),
            ("ggml-base.lib", None),
        ] {
            assert_eq!(part(OsStr::new(file)), part_of, "{file}");
        }
    }
}
