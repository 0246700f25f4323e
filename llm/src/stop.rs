//! Stop strings in a stream of text.

/// Passes text on as it comes, but holds back what may be the beginning of a stop string, and cuts at the first one.
#[derive(Clone, Debug, Default)]
pub struct StopFilter {
    stops: Vec<String>,
    held: String,
    found: bool,
}

impl StopFilter {
    /// A filter for these strings; empty ones are ignored.
    pub fn new(stops: &[String]) -> StopFilter {
        StopFilter { stops: stops.iter().filter(|s| !s.is_empty()).cloned().collect(), ..StopFilter::default() }
    }

    /// Whether a stop string has come. Nothing is passed on after it.
    pub fn found(&self) -> bool {
        self.found
    }

    /// Takes the next piece and gives the text that is certain to stand before any stop string.
    pub fn push(&mut self, piece: &str) -> String {
        if self.found {
            return String::new();
        }
        self.held.push_str(piece);
        if let Some(at) = self.stops.iter().filter_map(|s| self.held.find(s.as_str())).min() {
            self.found = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let keep = self.stops.iter().map(|s| longest_overlap(&self.held, s)).max().unwrap_or(0);
        let tail = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, tail)
    }

    /// The end of the text: what was held back after all.
    pub fn finish(&mut self) -> String {
        if self.found { String::new() } else { std::mem::take(&mut self.held) }
    }
}

/// Bytes of the longest end of `text` that is a beginning of `stop`, but not all of it.
pub fn longest_overlap(text: &str, stop: &str) -> usize {
    (1..stop.len().min(text.len() + 1))
        .rev()
        .find(|&n| stop.is_char_boundary(n) && text.ends_with(&stop[..n]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let mut f = StopFilter::new(&stops.iter().map(|s| s.to_string()).collect::<Vec<_>>());
        let mut out: Vec<String> = pieces.iter().map(|p| f.push(p)).collect();
        out.push(f.finish());
        (out, f.found())
    }

    #[test]
    fn cuts_inside_and_across_pieces() {
        assert_eq!(run(&["END"], &["abE", "N", "Dxyz"]), (vec!["ab".into(), "".into(), "".into(), "".into()], true));
        assert_eq!(run(&["END"], &["abE", "Nx"]), (vec!["ab".into(), "ENx".into(), "".into()], false));
        assert_eq!(run(&["\n\n"], &["a\n", "b\n"]), (vec!["a".into(), "\nb".into(), "\n".into()], false));
    }

    #[test]
    fn the_first_of_several_wins() {
        assert_eq!(run(&["yz", "x"], &["wxyz"]), (vec!["w".into(), "".into()], true));
        assert_eq!(run(&["é!"], &["caf", "é", "?"]), (vec!["caf".into(), "".into(), "é?".into(), "".into()], false));
        assert_eq!(run(&[""], &["a"]), (vec!["a".into(), "".into()], false));
    }
}
