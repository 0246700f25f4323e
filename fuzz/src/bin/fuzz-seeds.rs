//! `fuzz-seeds TARGET DIR` writes the inputs that a target's fuzzing starts from.
#![allow(clippy::expect_used)]

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [target, dir] = &args[..] else {
        eprintln!("usage: fuzz-seeds TARGET DIR");
        std::process::exit(2);
    };
    for (name, bytes) in outboard_fuzz::seeds(target) {
        std::fs::write(std::path::Path::new(dir).join(name), bytes).expect("a file");
    }
}
