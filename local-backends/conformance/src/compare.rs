//! Comparing a result with the oracle's.

use crate::case::Check;
use outboard_core::quant::dequantize_row;
use outboard_core::{DType, Layout};

/// What is wrong with a case.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wrong {
    pub(crate) detail: String,
    /// The normalised mean squared error, where that is what is too large.
    pub(crate) nmse: Option<f64>,
}

impl From<String> for Wrong {
    fn from(detail: String) -> Wrong {
        Wrong { detail, nmse: None }
    }
}

/// What differs too much, or the error that is small enough.
pub(crate) fn compare(layout: &Layout, got: &[u8], want: &[u8], check: Check) -> Result<f64, Wrong> {
    if got == want {
        return Ok(0.0);
    }
    let (got, want) = (values(layout, got)?, values(layout, want)?);
    if got.len() != want.len() {
        return Err(format!("{} values instead of {}", got.len(), want.len()).into());
    }
    let (mut error, mut norm) = (0.0, 0.0);
    for (i, (&g, &w)) in got.iter().zip(&want).enumerate() {
        let same = g == w || (g.is_nan() && w.is_nan());
        if same && !w.is_finite() {
            continue;
        }
        if !same && (check == Check::Exact || !g.is_finite() || !w.is_finite()) {
            let [n0, n1, n2, _] = layout.ne();
            let at = [i % n0, i / n0 % n1, i / n0 / n1 % n2, i / n0 / n1 / n2];
            let unwritten = if g.is_nan() { " (not written?)" } else { "" };
            return Err(format!("element {at:?} is {g}{unwritten} instead of {w}").into());
        }
        error += (g - w) * (g - w);
        norm += w * w;
    }
    let nmse = if norm > 0.0 { error / norm } else { error };
    match check {
        Check::Nmse(limit) if nmse > limit => {
            let worst = got.iter().zip(&want).max_by(|a, b| (a.0 - a.1).abs().total_cmp(&(b.0 - b.1).abs()));
            let (g, w) = worst.map_or((0.0, 0.0), |(g, w)| (*g, *w));
            let detail = format!("NMSE {nmse:.1e} is above {limit:.1e}, an element is {g} instead of {w}");
            Err(Wrong { detail, nmse: Some(nmse) })
        }
        _ => Ok(nmse),
    }
}

/// The elements of a contiguous tensor.
fn values(layout: &Layout, bytes: &[u8]) -> Result<Vec<f64>, String> {
    if layout.dtype() == DType::I32 {
        return Ok(bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect());
    }
    let mut out = vec![0.0f32; layout.elements()];
    dequantize_row(layout.dtype(), bytes, &mut out).map_err(|e| e.to_string())?;
    Ok(out.into_iter().map(f64::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f(values: [f32; 3]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn what_passes_and_what_does_not() {
        let l = Layout::contiguous(DType::F32, [3, 1, 1, 1]).unwrap();
        let check = |g, w, c| compare(&l, &f(g), &f(w), c);
        assert_eq!(check([1., 2., 3.], [1., 2., 3.], Check::Exact), Ok(0.0));
        assert_eq!(check([-0., 2., 3.], [0., 2., 3.], Check::Exact), Ok(0.0));
        assert!(check([1., 2., 3.001], [1., 2., 3.], Check::Exact).is_err());
        assert!(check([1., 2., 3.001], [1., 2., 3.], Check::Nmse(1e-6)).is_ok());
        assert!(check([1., 2., 3.1], [1., 2., 3.], Check::Nmse(1e-6)).is_err());
        assert!(check([1., f32::NAN, 3.], [1., 2., 3.], Check::Nmse(1.0)).is_err());
        assert!(check([1., f32::INFINITY, 3.], [1., f32::NEG_INFINITY, 3.], Check::Nmse(1.0)).is_err());
        assert!(check([1.0001, f32::INFINITY, 3.], [1., f32::INFINITY, 3.], Check::Nmse(1e-3)).is_ok());
        assert!(check([1e-3, 0., 0.], [0., 0., 0.], Check::Nmse(1e-7)).is_err());
    }
}
