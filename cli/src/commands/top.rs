//! `outboard top`: what the devices of a service hold and do, in a terminal.

mod ask;
mod metrics;
mod seen;
mod view;

use crate::args::usage;
use anyhow::{Context, Result};
use ask::Source;
use outboard_output as output;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use view::View;

/// Between two questions.
const EVERY: Duration = Duration::from_secs(1);
/// How soon a key is noticed, and an answer shown.
const TICK: Duration = Duration::from_millis(50);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where `outboard serve` is, or the metrics of an rpc-server (--metrics)
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// Which of its models [default: the first]
    #[arg(short, long, value_name = "NAME")]
    model: Option<String>,
    /// A file whose first line ends with the key, where one is needed
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// CA of the server (PEM) [default: those of the system]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    if !output::out_is_terminal() {
        return Err(usage(format_args!(
            "outboard top is for a terminal; programs find the same at {url}/cluster, and of an rpc-server at {url}/metrics",
            url = args.url.trim_end_matches('/').trim_end_matches("/metrics")
        )));
    }
    let source = Source::new(&args.url, args.model.as_deref(), args.api_key_file.as_deref(), args.ca.as_deref())?;
    let (sender, answers) = channel();
    std::thread::Builder::new().name("ask".into()).spawn(move || ask(source, &sender)).context("no thread to ask")?;
    #[cfg(unix)]
    end_with_terminal().context("no thread to watch the terminal")?;
    let mut terminal = ratatui::try_init().context("cannot use this terminal")?;
    let shown = show(&mut terminal, &args.url, &answers);
    ratatui::try_restore().context("cannot restore this terminal")?;
    shown.map(|()| ExitCode::SUCCESS)
}

/// Asks until nobody listens.
fn ask(mut source: Source, to: &Sender<ask::Answer>) {
    while to.send(source.ask()).is_ok() {
        std::thread::sleep(EVERY);
    }
}

/// Ends this process when its terminal has gone and SIGHUP is ignored (`nohup`): crossterm then reads end of file for ever (crossterm 0.29,
/// `UnixInternalEventSource::try_read`), so the loop below would not come back.
#[cfg(unix)]
fn end_with_terminal() -> std::io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    let watch = || {
        let out = std::io::stdout();
        // That it has gone is told without being asked for.
        let mut terminal = [PollFd::new(&out, PollFlags::empty())];
        while poll(&mut terminal, None) == Err(rustix::io::Errno::INTR) {}
        // Where a system cannot watch terminals this thread has nothing to do.
        if terminal[0].revents().contains(PollFlags::HUP) {
            std::process::exit(1);
        }
    };
    std::thread::Builder::new().name("terminal".into()).spawn(watch).map(drop)
}

/// Shows answers until somebody has seen enough.
fn show(terminal: &mut DefaultTerminal, url: &str, answers: &Receiver<ask::Answer>) -> Result<()> {
    let mut view = View::new(url);
    loop {
        if let Some(answer) = answers.try_iter().last() {
            view.take(answer);
        }
        terminal.draw(|frame| view.draw(frame)).context("cannot write to this terminal")?;
        if event::poll(TICK).context("cannot read this terminal")?
            && let Event::Key(key) = event::read().context("cannot read this terminal")?
            && !press(&mut view, key)
        {
            return Ok(());
        }
    }
}

/// Does what a key means; gives whether to go on.
fn press(view: &mut View, key: KeyEvent) -> bool {
    if key.kind == KeyEventKind::Release {
        return true;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Down | KeyCode::Char('j') => view.scroll(1),
        KeyCode::Up | KeyCode::Char('k') => view.scroll(-1),
        KeyCode::PageDown | KeyCode::Char(' ') => view.scroll(20),
        KeyCode::PageUp => view.scroll(-20),
        KeyCode::Home => view.scroll(i32::MIN),
        _ => {}
    }
    true
}
