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

/// The folder that the variable names. `Err` if it has no libraries. Nothing is looked for elsewhere: a fault in a library ends this process, so
/// whoever wants that says so.
pub(crate) fn folder() -> Result<Option<PathBuf>, PathBuf> {
    let Some(given) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else { return Ok(None) };
    let given = PathBuf::from(given);
    if parts(&given).is_some() { Ok(Some(given)) } else { Err(given) }
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
