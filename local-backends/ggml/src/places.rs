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
    let files = std::fs::read_dir(folder).ok()?.filter_map(|file| file.ok()?.path().into());
    let mut parts: Vec<(Part, PathBuf)> =
        files.filter_map(|path: PathBuf| Some((part(path.file_name()?)?, path))).collect();
    parts.sort_by_key(|(part, path)| (part.clone(), path.as_os_str().len()));
    parts.dedup_by(|later, first| later.0 == first.0);
    (parts.first()?.0 == Part::Base).then_some(parts)
}

/// The folder that the variable names, or the first of the usual places of llama.cpp that has one. `Err` if the variable names a folder
/// without libraries.
pub(crate) fn folder() -> Result<Option<PathBuf>, PathBuf> {
    if let Some(given) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        let given = PathBuf::from(given);
        return if parts(&given).is_some() { Ok(Some(given)) } else { Err(given) };
    }
    Ok(usual().into_iter().find(|place| has_base(place) && parts(place).is_some()))
}

/// Whether a folder, which may have thousands of files, has ggml among them.
fn has_base(folder: &Path) -> bool {
    let names = ["libggml-base.so", "libggml-base.so.0", "libggml-base.dylib", "ggml-base.dll"];
    names.iter().any(|name| folder.join(name).exists())
}

/// Beside `llama-server`, and where systems have libraries.
fn usual() -> Vec<PathBuf> {
    let mut places = Vec::new();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program = format!("llama-server{}", std::env::consts::EXE_SUFFIX);
    for folder in std::env::split_paths(&path).filter(|folder| folder.join(&program).is_file()) {
        // A link leads to the place of the others.
        let real = folder.join(&program).canonicalize().ok().and_then(|file| Some(file.parent()?.to_owned()));
        for folder in real.into_iter().chain([folder]) {
            places.push(folder.join("../lib"));
            places.push(folder);
        }
    }
    let triple = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    places.extend(["/usr/local/lib", "/usr/lib", "/usr/lib64", &triple, "/opt/homebrew/lib"].map(PathBuf::from));
    places
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
