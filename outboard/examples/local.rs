//! A model on this machine: `cargo run --release -p outboard --example local -- model.gguf "Once upon a time"`
use outboard::{Model, PlaceOptions, Request, Sampler, devices};
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(file), Some(prompt)) = (args.next(), args.next()) else { return Err("usage: local MODEL PROMPT".into()) };
    let model = Model::open(file)?;
    let runner = model.place(&devices::local(None)?, &PlaceOptions::default())?.run()?;
    let sampler = Sampler { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, seed: 1 };
    for piece in runner.generate(Request::new(prompt).max_tokens(128).sampler(sampler))? {
        print!("{}", piece?.text);
        std::io::stdout().flush()?;
    }
    println!();
    Ok(())
}
