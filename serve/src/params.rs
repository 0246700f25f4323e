//! The parameters of a request, taken out one by one: what is left in the end is not known here, and an error.

use crate::error::{ApiError, Result};
use crate::limits::CONTAINERS;
use http::StatusCode;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// Why a parameter is not taken that says how a model is asked.
pub(crate) const BY_TEMPLATE: &str = "models are asked as their template says";

/// An object of parameters. `null` is as if a parameter were not there.
#[derive(Debug, Default)]
pub(crate) struct Params {
    map: Map<String, Value>,
    /// What stands before names in errors, such as `messages[2].`.
    at: String,
}

impl Params {
    /// Those of a body.
    pub(crate) fn parse(body: &[u8]) -> Result<Params> {
        let wrong = |e: serde_json::Error| {
            ApiError::new(StatusCode::BAD_REQUEST, format!("the body is not JSON: {e}")).with_code("invalid_json")
        };
        if containers(body) > CONTAINERS {
            let message = format!("a body has at most {CONTAINERS} lists and objects");
            return Err(ApiError::new(StatusCode::BAD_REQUEST, message).with_code("invalid_json"));
        }
        match serde_json::from_slice(body).map_err(wrong)? {
            Value::Object(map) => Ok(Params { map, at: String::new() }),
            _ => Err(ApiError::new(StatusCode::BAD_REQUEST, "the body must be a JSON object")),
        }
    }

    /// Those of a value within others.
    pub(crate) fn of(value: Value, at: &str) -> Result<Params> {
        match value {
            Value::Object(map) => Ok(Params { map, at: format!("{at}.") }),
            other => Err(ApiError::of_param(at, format!("'{at}' must be an object, not {}", kind(&other)))),
        }
    }

    /// A parameter's name with what is around it.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}{name}", self.at)
    }

    fn wrong(&self, name: &str, expected: &str, found: &Value) -> ApiError {
        if found.is_number() {
            return self.outside(name, expected, found);
        }
        let name = self.name(name);
        let message = format!("'{name}' must be {expected}, not {}", kind(found));
        ApiError::of_param(name, message)
    }

    /// Takes one of any kind.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// Looks at one that is not taken.
    pub(crate) fn seen(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The same, which has to be there.
    pub(crate) fn required(&mut self, name: &str) -> Result<Value> {
        self.take(name).ok_or_else(|| self.missing(name))
    }

    /// An error if one is not there.
    pub(crate) fn check_there(&self, name: &str) -> Result<()> {
        match self.map.get(name) {
            None | Some(Value::Null) => Err(self.missing(name)),
            Some(_) => Ok(()),
        }
    }

    fn missing(&self, name: &str) -> ApiError {
        let name = self.name(name);
        ApiError::of_param(name.clone(), format!("'{name}' is missing")).with_code("missing_required_parameter")
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Result<Option<bool>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong(name, "true or false", &other)),
        }
    }

    pub(crate) fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let expected = || format!("a whole number from {} to {}", range.start(), range.end());
        let found = value.as_i64().or_else(|| whole(&value)).ok_or_else(|| self.wrong(name, &expected(), &value))?;
        if range.contains(&found) { Ok(Some(found)) } else { Err(self.outside(name, &expected(), &value)) }
    }

    /// The same for counts.
    pub(crate) fn count(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<usize>> {
        Ok(self.integer(name, range)?.map(|n| usize::try_from(n).unwrap_or(0)))
    }

    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let expected = || format!("a number from {} to {}", range.start(), range.end());
        let found = value.as_f64().ok_or_else(|| self.wrong(name, &expected(), &value))?;
        if range.contains(&found) { Ok(Some(found as f32)) } else { Err(self.outside(name, &expected(), &value)) }
    }

    fn outside(&self, name: &str, expected: &str, found: &Value) -> ApiError {
        let name = self.name(name);
        let message = format!("'{name}' must be {expected}, not {found}");
        ApiError::of_param(name, message)
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong(name, "a string", &other)),
        }
    }

    /// The same, which has to be there.
    pub(crate) fn required_string(&mut self, name: &str) -> Result<String> {
        self.string(name)?.ok_or_else(|| self.missing(name))
    }

    /// A list, with at most so many values.
    pub(crate) fn list(&mut self, name: &str, most: usize) -> Result<Option<Vec<Value>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) if list.len() <= most => Ok(Some(list)),
            Some(Value::Array(list)) => {
                let name = self.name(name);
                let message = format!("'{name}' has {} values, and at most {most} are taken", list.len());
                Err(ApiError::of_param(name, message))
            }
            Some(other) => Err(self.wrong(name, "a list", &other)),
        }
    }

    /// The same, which has to be there.
    pub(crate) fn required_list(&mut self, name: &str, most: usize) -> Result<Vec<Value>> {
        self.list(name, most)?.ok_or_else(|| self.missing(name))
    }

    /// A string, or a list of at most so many.
    pub(crate) fn strings(&mut self, name: &str, most: usize) -> Result<Vec<String>> {
        if let Some(Value::String(_)) = self.map.get(name) {
            return Ok(self.string(name)?.into_iter().collect());
        }
        let list = self.list(name, most)?.unwrap_or_default();
        let string = |value: Value| match value {
            Value::String(text) => Ok(text),
            other => Err(self.wrong(name, "a string or a list of strings", &other)),
        };
        list.into_iter().map(string).collect()
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Params>> {
        let at = self.name(name);
        self.take(name).map(|value| Params::of(value, &at)).transpose()
    }

    /// Bytes of those that are left, as JSON.
    pub(crate) fn bytes(&self) -> usize {
        serde_json::to_string(&self.map).map_or(usize::MAX, |text| text.len())
    }

    /// The names of those that are left.
    pub(crate) fn names(&self) -> Vec<String> {
        self.map.keys().cloned().collect()
    }

    /// A parameter that this server does not have: an error, unless its value asks for what is done anyway.
    pub(crate) fn absent(&mut self, name: &str, why: &str, is_default: impl Fn(&Value) -> bool) -> Result<()> {
        match self.take(name) {
            Some(value) if !is_default(&value) => Err(ApiError::unsupported(self.name(name), why)),
            _ => Ok(()),
        }
    }

    /// Parameters that change nothing of an answer, such as who asks.
    pub(crate) fn without_effect(&mut self, names: &[&str]) {
        for name in names {
            self.map.remove(*name);
        }
    }

    /// An error if there is a parameter left.
    pub(crate) fn finish(self) -> Result<()> {
        match self.map.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => {
                let name: String = self.name(name).chars().take(100).collect();
                let message = format!("'{name}' is not a parameter that is known here");
                Err(ApiError::of_param(name, message).with_code("unknown_parameter"))
            }
        }
    }
}

/// Lists and objects of a JSON text, counted by where they begin outside of strings.
pub(crate) fn containers(json: &[u8]) -> usize {
    let (mut count, mut in_string, mut escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

/// Bytes that a JSON text takes at most, about, when it is parsed: its values, and tables of its objects. Values within strings that begin as JSON count, too: some are
/// parsed later. One of too many lists and objects is not parsed.
pub(crate) fn parsed_bytes(json: &[u8]) -> usize {
    const CONTAINER: usize = 400;
    containers(json).min(CONTAINERS) * CONTAINER + commas(json) * size_of::<Value>()
}

/// Commas of a JSON text, outside of strings that are no JSON themselves.
fn commas(json: &[u8]) -> usize {
    /// Where a byte is.
    #[derive(Clone, Copy, PartialEq)]
    enum In {
        Json,
        /// A string of which nothing but blanks has come.
        Blanks,
        StringOfJson,
        Text,
    }
    let (mut count, mut at, mut bytes) = (0, In::Json, json.iter());
    while let Some(byte) = bytes.next() {
        at = match (at, byte) {
            (In::Json, b'"') => In::Blanks,
            (_, b'"') => In::Json,
            (In::Blanks, b'{' | b'[') => In::StringOfJson,
            (In::Blanks, b' ') => In::Blanks,
            (_, b'\\') => match (at, bytes.next()) {
                (In::Blanks, Some(b'n' | b'r' | b't')) => In::Blanks,
                // Any character, a bracket among them.
                (In::Blanks, Some(b'u')) => In::StringOfJson,
                (In::Blanks, _) => In::Text,
                (at, _) => at,
            },
            (In::Blanks, _) => In::Text,
            (at, _) => at,
        };
        count += usize::from(*byte == b',' && at != In::Text);
    }
    count
}

/// What a value is, for people.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "this number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A number that is whole, as some languages write it: `1.0`.
fn whole(value: &Value) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() <= EXACT).map(|number| number as i64)
}

/// Whether a value says no, or nothing.
pub(crate) fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(text: &str) -> Params {
        Params::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |e: ApiError| e.openai()["error"].clone();
        let e = error(params(r#"{"n": 0}"#).count("n", 1..=4).unwrap_err());
        assert_eq!(
            (&e["param"], &e["message"]),
            (&"n".into(), &"'n' must be a whole number from 1 to 4, not 0".into())
        );
        assert!(params(r#"{"n": 1.5}"#).count("n", 1..=4).is_err());
        assert!(params(r#"{"t": 1e999}"#.replace("1e999", "\"hot\"").as_str()).number("t", 0.0..=2.0).is_err());
        let e = error(params(r#"{"x": 1, "y": null}"#).finish().unwrap_err());
        assert_eq!((&e["param"], &e["code"]), (&"x".into(), &"unknown_parameter".into()));
        let mut nested = Params::of(serde_json::json!({"a": []}), "b[0]").unwrap();
        assert_eq!(error(nested.string("a").unwrap_err())["param"], "b[0].a");
        assert!(Params::parse(b"[]").is_err() && Params::parse(b"{").is_err() && Params::parse(b"").is_err());
    }

    #[test]
    fn lists_and_objects_are_counted_outside_of_strings() {
        assert_eq!(containers(br#"{"a[\"{[": [{}, "\\", [1]], "{": "]"}"#), 4);
        assert_eq!(containers(b"1"), 0);
        assert_eq!(commas(br#"["a,b\",c", 1, "\n {\"x\": [1,2]}, \\", "\u005b,", " "]"#), 7);
        let many = |n: usize| format!("{{\"a\":[{}]}}", vec!["{}"; n].join(","));
        assert!(Params::parse(many(CONTAINERS - 2).as_bytes()).is_ok());
        assert!(Params::parse(many(CONTAINERS - 1).as_bytes()).is_err());
    }

    #[test]
    fn null_is_as_if_it_were_not_there() {
        let mut p = params(r#"{"a": null, "b": "x", "c": ["y", "z"], "tools": []}"#);
        assert_eq!(p.string("a"), Ok(None));
        assert!(p.required("a").is_err());
        assert_eq!(
            (p.strings("b", 4).unwrap(), p.strings("c", 4).unwrap()),
            (vec!["x".into()], vec!["y".into(), "z".into()])
        );
        assert_eq!(p.absent("tools", "none", is_nothing), Ok(()));
        assert_eq!(p.finish(), Ok(()));
        assert!(params(r#"{"tools": [1]}"#).absent("tools", "none", is_nothing).is_err());
        assert!(params(r#"{"c": ["y", "z"]}"#).strings("c", 1).is_err());
    }
}
