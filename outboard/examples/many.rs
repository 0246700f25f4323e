//! Many texts side by side, in tasks: `cargo run --release -p outboard --example many -- model.gguf "A prompt" "Another" ..`
use outboard::{Model, PlaceOptions, Request, Runner, devices};
use tokio_stream::StreamExt;

async fn answer(runner: Runner, prompt: String) -> outboard::Result<String> {
    let mut text = runner.generate(Request::new(prompt).max_tokens(64))?.stream();
    let mut answer = String::new();
    while let Some(piece) = text.next().await {
        answer += &piece?.text;
    }
    Ok(answer)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let model = Model::open(args.next().ok_or("usage: many MODEL PROMPT..")?)?;
    let options = PlaceOptions { sequences: 4, ..PlaceOptions::default() };
    let runner = model.place(&devices::local(None)?, &options)?.run()?;
    let tasks: Vec<_> = args.map(|prompt| (prompt.clone(), tokio::spawn(answer(runner.clone(), prompt)))).collect();
    for (prompt, task) in tasks {
        println!("--- {prompt}\n{}", task.await??);
    }
    Ok(())
}
