//! Keys and values in the order of the file.

use crate::Value;
use std::collections::HashMap;

/// Metadata of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metadata {
    entries: Vec<(String, Value)>,
    by_key: HashMap<String, usize>,
}

impl Metadata {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        Some(&self.entries.get(*self.by_key.get(key)?)?.1)
    }

    /// Adds an entry behind the others, or gives the one of this key another value. Returns the value that it had.
    pub(crate) fn set(&mut self, key: String, value: Value) -> Option<Value> {
        if let Some(entry) = self.by_key.get(&key).and_then(|&i| self.entries.get_mut(i)) {
            return Some(std::mem::replace(&mut entry.1, value));
        }
        self.by_key.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        None
    }

    /// The same without some keys.
    pub(crate) fn without(self, keys: &[&str]) -> Metadata {
        let mut rest = Metadata::default();
        for (key, value) in self.entries.into_iter().filter(|(key, _)| !keys.contains(&key.as_str())) {
            rest.set(key, value);
        }
        rest
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }
}
