//! JSON as Python's `json.dumps` writes it: what models have seen of tools and their calls has spaces behind commas and colons, keys in the order in
//! which they were given, and letters as they are.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use std::io::{self, Write};

/// The filter `tojson` of Hugging Face's templates. minijinja's own escapes for HTML.
pub(crate) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let wrong = |e: &dyn std::fmt::Display| Error::new(ErrorKind::InvalidOperation, format!("tojson: {e}"));
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(text) if text.kind() == ValueKind::String => Some(text.to_string()),
        Some(number) if number.kind() == ValueKind::None => None,
        Some(number) => Some(" ".repeat(usize::try_from(number).unwrap_or(0).min(16))),
    };
    let (item, key) = match options.get::<Option<Vec<String>>>("separators")?.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(wrong(&"'separators' are two")),
        None => (if indent.is_some() { "," } else { ", " }.into(), ": ".into()),
    };
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut out = Vec::new();
    let form = Python { item, key, indent, ascii, depth: 0, is_empty: true };
    value.serialize(&mut Serializer::with_formatter(&mut out, form)).map_err(|e| wrong(&e))?;
    String::from_utf8(out).map_err(|e| wrong(&e))
}

/// Lists and objects in one another: whoever writes deeper ones recurses, and what a template builds has no end of its own.
const MOST_DEPTH: usize = 200;

struct Python {
    /// Between values, and between a key and its value.
    item: String,
    key: String,
    indent: Option<String>,
    /// Other letters than ASCII's are escaped.
    ascii: bool,
    depth: usize,
    /// Nothing has come in the list or object that was begun last.
    is_empty: bool,
}

impl Python {
    fn line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        out.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| out.write_all(indent.as_bytes()))
    }

    fn begin<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        if self.depth == MOST_DEPTH {
            return Err(io::Error::other(format!("there are more than {MOST_DEPTH} lists and objects in one another")));
        }
        self.depth += 1;
        self.is_empty = true;
        out.write_all(bracket)
    }

    fn end<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.is_empty {
            self.line(out)?;
        }
        self.is_empty = false;
        out.write_all(bracket)
    }

    fn next<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.item.as_bytes())?;
        }
        self.line(out)
    }
}

impl Formatter for Python {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_empty = false;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_empty = false;
        Ok(())
    }

    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        if !self.ascii {
            return out.write_all(fragment.as_bytes());
        }
        for c in fragment.chars() {
            match c {
                ' '..='~' => write!(out, "{c}")?,
                _ => c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(out, "\\u{unit:04x}"))?,
            }
        }
        Ok(())
    }
}

/// A number as Python's `repr` writes it.
fn float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = value.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::Environment;

    /// What `tojson` with these arguments makes of a JSON text.
    fn dumps(json: &str, arguments: &str) -> String {
        let mut environment = Environment::new();
        environment.add_filter("tojson", to_json);
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        let template = format!("{{{{ x | tojson{arguments} }}}}");
        let value = Value::from(minijinja::value::Serde(value));
        environment.render_str(&template, minijinja::context! { x => value }).unwrap()
    }

    #[test]
    fn is_written_as_by_python() {
        // The right sides are what Python's json.dumps gave, with ensure_ascii=False where nothing is said.
        let text = r#"{"z":1,"a":[true,null,"<é'\u0001\"/\ud83d\ude00\u007f"],"e":{},"l":[],"f":1.0}"#;
        assert_eq!(
            dumps(text, ""),
            "{\"z\": 1, \"a\": [true, null, \"<é'\\u0001\\\"/\u{1f600}\u{7f}\"], \"e\": {}, \"l\": [], \"f\": 1.0}"
        );
        assert_eq!(
            dumps(text, "(ensure_ascii=true)").split_once("\"a\": ").unwrap().1.split_once(", \"e\"").unwrap().0,
            { "[true, null, \"<\\u00e9'\\u0001\\\"/\\ud83d\\ude00\\u007f\"]" }
        );
        assert_eq!(dumps(r#"{"b":[1,{"c":2}],"e":{},"l":[]}"#, "(indent=2)"), {
            "{\n  \"b\": [\n    1,\n    {\n      \"c\": 2\n    }\n  ],\n  \"e\": {},\n  \"l\": []\n}"
        });
        assert_eq!(dumps(r#"[1,{"c":2}]"#, "(separators=(',', ':'))"), r#"[1,{"c":2}]"#);
        assert_eq!(
            dumps("[0.1,1e15,1e16,1.5e300,0.0001,0.00001,-2.5e-7,1e2,18446744073709551615,-3]", ""),
            "[0.1, 1000000000000000.0, 1e+16, 1.5e+300, 0.0001, 1e-05, -2.5e-07, 100.0, 18446744073709551615, -3]"
        );
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        let mut environment = Environment::new();
        environment.add_filter("tojson", to_json);
        let render = |text: &str| environment.render_str(text, ()).map_err(|e| e.to_string());
        assert!(render("{{ [1] | tojson(sort_keys=true) }}").unwrap_err().contains("sort_keys"));
        assert!(render("{{ [1] | tojson(separators=[',']) }}").unwrap_err().contains("two"));
        assert_eq!(render("{{ [1] | tojson(indent=none) }}").unwrap(), "[1]");
        let nested = |n: usize| {
            render(&format!(
                "{{% set x = namespace(v=[]) %}}{{% for i in range({n}) %}}{{% set x.v = [x.v] %}}{{% endfor %}}{{{{ x.v | tojson }}}}"
            ))
        };
        assert!(nested(MOST_DEPTH - 1).is_ok());
        assert!(nested(MOST_DEPTH).unwrap_err().contains("more than 200"));
    }
}
