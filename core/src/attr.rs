//! Parameters of ops as named values, the form in which they travel.
//!
//! An op writes its parameters to [`Attrs`] and reads them back through an [`AttrReader`], so that a new op needs no
//! change in the wire. A parameter that the reader's op does not know is an error: ignoring it would compute something
//! else than was asked for.

use std::collections::BTreeMap;

/// One parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// A whole number: a dimension, a count, an offset in bytes.
    Int(i64),
    /// A real number.
    Float(f32),
    /// Whole numbers: a shape, strides, a permutation.
    Ints(Vec<i64>),
    /// A name: a dtype.
    Text(String),
}

/// Most parameters that one op may carry on the wire.
pub const MAX_ATTRS: usize = 32;
/// Most numbers in one [`Attr::Ints`].
pub const MAX_ATTR_INTS: usize = 16;
/// Longest name of a parameter, and longest [`Attr::Text`], in bytes.
pub const MAX_ATTR_NAME: usize = 32;

/// The parameters of one op.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attrs(BTreeMap<String, Attr>);

impl Attrs {
    /// Sets a whole number; values are below 2^63 by construction of shapes.
    pub fn int(&mut self, name: &str, value: usize) -> &mut Self {
        self.set(name, Attr::Int(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    /// Sets a real number.
    pub fn float(&mut self, name: &str, value: f32) -> &mut Self {
        self.set(name, Attr::Float(value))
    }

    /// Sets a list of whole numbers.
    pub fn ints(&mut self, name: &str, values: &[usize]) -> &mut Self {
        self.set(name, Attr::Ints(values.iter().map(|&v| i64::try_from(v).unwrap_or(i64::MAX)).collect()))
    }

    /// Sets a name.
    pub fn text(&mut self, name: &str, value: &str) -> &mut Self {
        self.set(name, Attr::Text(value.to_owned()))
    }

    /// Sets any parameter.
    pub fn set(&mut self, name: &str, value: Attr) -> &mut Self {
        self.0.insert(name.to_owned(), value);
        self
    }

    /// Parameters in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Attr)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// Number of parameters.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Takes parameters out of [`Attrs`]; what is left over at the end is an error.
#[derive(Debug)]
pub struct AttrReader(BTreeMap<String, Attr>);

impl AttrReader {
    /// Reads `attrs`.
    pub fn new(attrs: Attrs) -> Self {
        AttrReader(attrs.0)
    }

    /// A whole number that is not negative.
    pub fn int(&mut self, name: &str) -> Result<usize, String> {
        match self.take(name)? {
            Attr::Int(v) => usize::try_from(v).map_err(|_| format!("parameter {name} is negative: {v}")),
            other => Err(format!("parameter {name} must be a whole number, not {other:?}")),
        }
    }

    /// A real number; NaN is refused.
    pub fn float(&mut self, name: &str) -> Result<f32, String> {
        match self.take(name)? {
            Attr::Float(v) if !v.is_nan() => Ok(v),
            other => Err(format!("parameter {name} must be a number, not {other:?}")),
        }
    }

    /// Exactly `N` whole numbers that are not negative.
    pub fn ints<const N: usize>(&mut self, name: &str) -> Result<[usize; N], String> {
        let Attr::Ints(values) = self.take(name)? else {
            return Err(format!("parameter {name} must be a list of whole numbers"));
        };
        let values: Result<Vec<usize>, _> = values.into_iter().map(usize::try_from).collect();
        values
            .ok()
            .and_then(|v| v.try_into().ok())
            .ok_or_else(|| format!("parameter {name} must be {N} numbers that are not negative"))
    }

    /// A name.
    pub fn text(&mut self, name: &str) -> Result<String, String> {
        match self.take(name)? {
            Attr::Text(v) => Ok(v),
            other => Err(format!("parameter {name} must be a name, not {other:?}")),
        }
    }

    /// Fails if a parameter was not read.
    pub fn finish(self) -> Result<(), String> {
        match self.0.into_keys().next() {
            None => Ok(()),
            Some(name) => Err(format!("unknown parameter {name}")),
        }
    }

    fn take(&mut self, name: &str) -> Result<Attr, String> {
        self.0.remove(name).ok_or_else(|| format!("parameter {name} is missing"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_are_errors() {
        let mut a = Attrs::default();
        a.int("dim", 3).float("eps", 0.5).ints("ne", &[1, 2]);
        let mut r = AttrReader::new(a);
        assert_eq!(r.int("dim"), Ok(3));
        assert_eq!(r.ints::<2>("ne"), Ok([1, 2]));
        assert!(r.int("nope").is_err());
        assert_eq!(r.finish(), Err("unknown parameter eps".into()));
    }
}
