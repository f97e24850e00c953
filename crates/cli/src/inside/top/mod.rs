//! `feroce top`: a view of all open devices that follows what they do.

mod ladder;
mod model;
mod view;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::Look;
use super::stat::seconds;
use model::Model;

const EXAMPLES: &str = "\
Examples:
  feroce top              every open device of this user, the busiest first
  feroce top ib_write_bw  those of one program; or of a process number, device or address
  feroce top -i 0.2       five times a second

Keys: Tab devices or queue pairs, Left and Right the column to sort by, r reverse, Up and Down
choose a row, Enter the queue pairs of that device alone, and the packets of that queue pair, Esc
back, Space pause, q quit. OUT is what the program asked for, IN what its adapter executed for
peers. `feroce stat -w` writes the same to a file. The device records packets while they are shown
here, the last 256 of that queue pair; to record all of them there are captures (FEROCE_PCAP).";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Processes, programs, devices or addresses to show [default: all]
    #[arg(value_name = "WHAT")]
    what: Vec<String>,
    /// How often to look
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
}

#[expect(clippy::disallowed_methods, reason = "rates take time")]
pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    ensure!(!json, "--json: for programs there is `feroce stat --json --watch`");
    if !std::io::stdout().is_terminal() {
        bail!(
            "the output is no terminal: `feroce stat --watch` writes the same to files and pipes"
        );
    }
    let mut model = Model::default();
    model.update(Look::quiet(&args.what)?);
    let mut terminal = ratatui::try_init()?;
    let outcome = (|| -> anyhow::Result<()> {
        let mut next = Instant::now() + args.interval;
        loop {
            terminal.draw(|frame| view::draw(frame, &mut model))?;
            let left = next.saturating_duration_since(Instant::now());
            if event::poll(left)? {
                let event = event::read()?;
                if let Event::Key(key) = event
                    && key.kind != KeyEventKind::Release
                    && !press(&mut model, key)
                {
                    return Ok(());
                }
            } else {
                next = Instant::now() + args.interval;
                if !model.is_paused {
                    model.update(Look::quiet(&args.what)?);
                    model.update_ladder();
                }
            }
        }
    })();
    ratatui::restore();
    outcome.map(|()| ExitCode::SUCCESS)
}

/// A key was pressed. False: the user wants to leave.
fn press(model: &mut Model, key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('q') => return false,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Esc if !model.leave() => return false,
        KeyCode::Tab => model.change_view(),
        KeyCode::Left => model.sort_by(-1),
        KeyCode::Right => model.sort_by(1),
        KeyCode::Char('r') => model.is_reversed = !model.is_reversed,
        KeyCode::Char(' ') => model.is_paused = !model.is_paused,
        KeyCode::Up => model.choose(-1),
        KeyCode::Down => model.choose(1),
        KeyCode::Enter => model.enter(),
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_what_the_help_says() {
        let mut model = Model::default();
        let mut type_in = |code| press(&mut model, KeyEvent::from(code));
        assert!(
            type_in(KeyCode::Tab) && type_in(KeyCode::Char(' ')) && type_in(KeyCode::Char('r'))
        );
        assert!(type_in(KeyCode::Enter), "there is no device to enter");
        assert!(!type_in(KeyCode::Esc) && !type_in(KeyCode::Char('q')));
        assert!(model.shows_qps && model.is_paused && model.is_reversed);
        let copy = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(!press(&mut model, copy));
    }
}
