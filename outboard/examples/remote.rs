//! A model over servers: `cargo run --release -p outboard --example remote -- model.gguf host1,host2 "Once upon a time"`
use outboard::{ConnectOptions, Error, Model, PlaceOptions, Request, RunOptions, devices};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, servers, prompt] = args.as_slice() else { return Err("usage: remote MODEL SERVERS PROMPT".into()) };
    let model = Model::open(file)?;
    let placed = model.place(&devices::connect(servers, &ConnectOptions::default())?, &PlaceOptions::default());
    let placed = placed.inspect_err(|e| {
        if let Error::DoesNotFit { rooms, .. } = e {
            rooms.iter().for_each(|room| eprintln!("free: {room}"));
        }
    })?;
    for device in placed.plan().devices {
        eprintln!("{}: layers {:?}, {} bytes of weights", device.id, device.layers, device.weight_bytes);
    }
    let runner = placed.run_with(RunOptions::default().on_recovery(|recovery| eprintln!("{recovery}")))?;
    let text = runner.generate(Request::new(prompt.as_str()).max_tokens(128))?.complete()?;
    println!("{}", text.text);
    Ok(())
}
