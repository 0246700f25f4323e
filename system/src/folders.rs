//! Folders of the user who runs a program.

use std::path::PathBuf;

/// Names the folder of [`cache_dir`].
pub const CACHE_VARIABLE: &str = "OUTBOARD_CACHE";

/// Where models, blobs, digests and compiled pipelines are kept: what [`CACHE_VARIABLE`] names, or else this project's part of the user's cache directory. `None` for a
/// user without a home.
pub fn cache_dir() -> Option<PathBuf> {
    match std::env::var_os(CACHE_VARIABLE).filter(|dir| !dir.is_empty()) {
        Some(dir) => Some(dir.into()),
        None => Some(directories::ProjectDirs::from("", "", "outboard")?.cache_dir().to_owned()),
    }
}
