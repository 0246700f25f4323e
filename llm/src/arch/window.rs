//! Which layers see no more than some tokens back, as files say it.

use super::refuse;
use crate::error::{Error, Result};
use crate::hparams::{Hparams, MAX_CTX, MAX_LAYERS, ModelFile, Window};

/// Which layers see all tokens where the file does not say it of each.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pattern {
    /// None: all have the window.
    None,
    /// The last one of so many.
    LastOf(u64),
}

/// The window of `attention.sliding_window` tokens; none if there is no such number or it is 0. Layers with it that rotate otherwise than the
/// others do it by `rope.freq_base_swa`, or `freq_base`.
pub(super) fn read(file: &dyn ModelFile, h: &Hparams, pattern: Pattern, freq_base: f32) -> Result<Option<Window>> {
    let arch = &h.arch;
    let key = format!("{arch}.attention.sliding_window");
    let size = match file.int(&key) {
        None | Some(0) => return Ok(None),
        Some(size) => usize::try_from(size).ok().filter(|&size| size <= MAX_CTX),
    };
    let size = size.ok_or_else(|| Error::Model(format!("{key} is too large")))?;
    for (key, plain) in [
        ("attention.key_length_swa", h.head_dim_k),
        ("attention.value_length_swa", h.head_dim_v),
        ("rope.dimension_count_swa", h.n_rot),
    ] {
        if file.int(&format!("{arch}.{key}")).is_some_and(|v| v != plain as u64) {
            return refuse(format!("{arch}.{key} is not {plain} as in other layers: not supported"));
        }
    }
    let given = file.float(&format!("{arch}.rope.freq_base_swa")).filter(|v| v.is_finite() && *v > 0.0);
    Ok(Some(Window { size, layers: layers(file, h, pattern)?, freq_base: given.unwrap_or(freq_base) }))
}

/// [`read`] of a family that always has one.
pub(super) fn read_required(
    file: &dyn ModelFile,
    h: &Hparams,
    pattern: Pattern,
    freq_base: f32,
) -> Result<Option<Window>> {
    match read(file, h, pattern, freq_base)? {
        None => refuse(format!("{}.attention.sliding_window is missing or 0", h.arch)),
        window => Ok(window),
    }
}

/// Whether each layer has the window: the file may say it of each, or how many layers there are to one that has none.
fn layers(file: &dyn ModelFile, h: &Hparams, pattern: Pattern) -> Result<Vec<bool>> {
    let key = format!("{}.attention.sliding_window_pattern", h.arch);
    if let Some(layers) = file.ints(&key, MAX_LAYERS)? {
        return if layers.len() >= h.n_layer {
            Ok(layers.into_iter().map(|has| has != 0).collect())
        } else {
            refuse(format!("{key} is of {} layers, there are {}", layers.len(), h.n_layer))
        };
    }
    let every = match (file.int(&key), pattern) {
        (Some(every), _) | (None, Pattern::LastOf(every)) => every,
        (None, Pattern::None) => 0,
    };
    // 0: all of them have one.
    Ok((1..=h.n_layer as u64).map(|il| every == 0 || il % every != 0).collect())
}
