//! An opened ggml: its functions, and the registries of the backends beside it.

use crate::functions::{Functions, LogCallback, Missing, Object};
use crate::log;
use crate::places::{self, Part};
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

/// Versions of ggml that were tried: others are opened as well, if they have all functions.
pub const TRIED: [&str; 3] = ["0.19.0", "0.23.0", "0.25.1"];

/// Why a ggml could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No `libggml-base` lies there.
    #[error("{}: {}", .0.display(), no_base(.0))]
    NoBase(PathBuf),
    /// Two versions of it lie there, and nothing says which one the backends are made for.
    #[error("{} and {} are two versions of ggml: keep the one that the backends beside it belong to", one.display(), other.display())]
    TwoBases {
        /// The one.
        one: PathBuf,
        /// The other.
        other: PathBuf,
    },
    /// The system could not load a file.
    #[error("{}: {detail}", file.display())]
    Load {
        /// The file.
        file: PathBuf,
        /// What the system says.
        detail: String,
    },
    /// Functions that this program calls are not in it.
    #[error("{}: it lacks {missing}; tried is ggml {}", file.display(), TRIED.join(", "))]
    Missing {
        /// The file.
        file: PathBuf,
        /// Their names.
        missing: Missing,
    },
    /// There is no backend beside it that works here.
    #[error("{}", no_backend(folder, problems))]
    NoBackend {
        /// The folder.
        folder: PathBuf,
        /// What is wrong with those that are there.
        problems: Vec<String>,
    },
}

/// Why there is no `libggml-base` in it.
fn no_base(folder: &Path) -> &'static str {
    if folder.is_file() {
        "this is a file, not the folder of libggml-base, which llama.cpp installs"
    } else {
        "there is no libggml-base in it, which llama.cpp installs"
    }
}

/// What is wrong with the backends of a folder, or that it has none.
fn no_backend(folder: &Path, problems: &[String]) -> String {
    if problems.is_empty() {
        let folder = folder.display();
        return format!("{folder}: no backend for this machine is beside libggml-base; install one of llama.cpp's");
    }
    format!("{}; what it needs is not installed here, or it is for another machine", problems.join("; "))
}

/// An opened ggml. It stays open as long as the process runs: drivers behind it do not bear being unloaded.
pub struct Library {
    pub(crate) functions: Functions,
    folder: PathBuf,
    version: String,
    registries: Vec<Registry>,
    problems: Vec<String>,
    _base: ManuallyDrop<libloading::Library>,
}

/// A backend's registry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registry(pub(crate) Object);

// SAFETY: ggml's registries and devices are made once and only read; its functions for them may be called from any thread.
unsafe impl Send for Registry {}
// SAFETY: as above.
unsafe impl Sync for Registry {}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("folder", &self.folder).field("version", &self.version).finish_non_exhaustive()
    }
}

impl Library {
    /// Opens the libraries of a folder: all backends, or one by name: `cpu` for the variants of one for processors.
    pub fn open(folder: &Path, only: Option<&str>) -> Result<Library, OpenError> {
        let parts = places::parts(folder).ok_or_else(|| OpenError::NoBase(folder.to_owned()))?;
        if let [one, other, ..] = &places::bases(folder)[..] {
            return Err(OpenError::TwoBases { one: one.clone(), other: other.clone() });
        }
        let mut parts = parts.into_iter();
        let (_, file) = parts.next().ok_or_else(|| OpenError::NoBase(folder.to_owned()))?;
        let base = load(&file)?;
        let functions = Functions::find(&base).map_err(|missing| OpenError::Missing { file, missing })?;
        // SAFETY: the callback is a function of this program and needs no data.
        unsafe { (functions.ggml_log_set)(log::keep as LogCallback, std::ptr::null_mut()) };
        // SAFETY: it takes nothing and returns a text that lives as long as the library.
        let version = unsafe { text((functions.ggml_version)()) };
        let backends = parts.filter_map(|(part, file)| match part {
            Part::Backend(name) if only.is_none_or(|only| backend(&name) == only) => Some((name, file)),
            _ => None,
        });
        let (registries, problems) = registries(backends.collect());
        if registries.is_empty() {
            return Err(OpenError::NoBackend { folder: folder.to_owned(), problems });
        }
        tracing::debug!("ggml {version} of {}: {} backends", folder.display(), registries.len());
        Ok(Library {
            functions,
            folder: folder.to_owned(),
            version,
            registries,
            problems,
            _base: ManuallyDrop::new(base),
        })
    }

    /// Its version, as it says it: `0.25.1`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Where it lies.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Which of the backends beside it cannot be used, and why: a line for each.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    pub(crate) fn registries(&self) -> &[Registry] {
        &self.registries
    }
}

/// The backends of a folder, one at least, by name: `cpu` for all variants of one for processors, `vulkan`.
pub(crate) fn backends(folder: &Path) -> Result<Vec<String>, OpenError> {
    let parts = places::parts(folder).ok_or_else(|| OpenError::NoBase(folder.to_owned()))?;
    let mut names: Vec<String> = parts.into_iter().filter_map(|(part, _)| part.name().map(backend)).collect();
    names.dedup();
    if names.is_empty() {
        return Err(OpenError::NoBackend { folder: folder.to_owned(), problems: Vec::new() });
    }
    Ok(names)
}

/// The backend that a variant is one of.
fn backend(variant: &str) -> String {
    if variant.starts_with("cpu") { "cpu".to_owned() } else { variant.to_owned() }
}

fn load(file: &Path) -> Result<libloading::Library, OpenError> {
    // SAFETY: the owner of this host has named the folder or installed it: what its initialisers do is trusted as this program is.
    let library = unsafe { libloading::Library::new(file) };
    library.map_err(|e| OpenError::Load { file: file.to_owned(), detail: e.to_string() })
}

/// The registries of all backends that can be used here, and what is wrong with others: of the variants of one for this processor, the one that
/// suits it best.
fn registries(backends: Vec<(String, PathBuf)>) -> (Vec<Registry>, Vec<String>) {
    let (cpus, others): (Vec<_>, Vec<_>) = backends.into_iter().partition(|(name, _)| name.starts_with("cpu"));
    let opened = |(name, file): (String, PathBuf)| load(&file).map(|library| (name, library));
    // Variants that this processor cannot run may not even load: it is no problem as long as one of them does.
    let (variants, unloaded): (Vec<_>, Vec<_>) = cpus.into_iter().map(opened).partition(std::result::Result::is_ok);
    let cpu = variants.into_iter().flatten().max_by_key(|(_, library)| score(library));
    let cpu = cpu.filter(|(_, library)| score(library) > 0).map(Ok);
    let cpu = cpu.or_else(|| unloaded.into_iter().next());
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for backend in cpu.into_iter().chain(others.into_iter().map(opened)) {
        match backend {
            Ok((name, library)) => match registry(&name, library) {
                Some(registry) => found.push(registry),
                None => problems.push(format!("the backend {name} has no list of devices")),
            },
            Err(why) => problems.push(why.to_string()),
        }
    }
    (found, problems)
}

/// How well a backend suits this machine; 0: not at all. 1 where it does not say.
fn score(library: &libloading::Library) -> c_int {
    // SAFETY: the type that ggml declares for a function of this name, which takes nothing and looks at the processor.
    unsafe { library.get::<unsafe extern "C" fn() -> c_int>(b"ggml_backend_score\0").map_or(1, |score| score()) }
}

/// The registry of an opened backend, which stays open.
fn registry(name: &str, library: libloading::Library) -> Option<Registry> {
    // Libraries that are not made to be opened at run time have it under another name.
    let stem = name.split('-').next().unwrap_or(name);
    let short = if stem == "vulkan" { "vk" } else { stem };
    let names = ["ggml_backend_init\0".to_owned(), format!("ggml_backend_{short}_reg\0")];
    // SAFETY: the type that ggml declares for functions of these names.
    let found =
        names.iter().find_map(|name| unsafe { library.get::<unsafe extern "C" fn() -> Object>(name.as_bytes()).ok() });
    let init = found?;
    // SAFETY: it takes nothing, and may be called once the library is loaded.
    let registry = unsafe { init() };
    std::mem::forget(library);
    (!registry.is_null()).then_some(Registry(registry))
}

/// A text of the library; empty for none.
///
/// # Safety
/// The pointer is null or that of a text that ends with 0.
pub(crate) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
