//! `feroce demo`: shows every RDMA operation on any machine, in a few seconds.

mod code;
mod iwarp;
mod measure;
mod record;
mod scenes;
mod show;
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::ensure;
use feroce::{Direction, Settings, TransportKind};
use serde_json::{Value, json};

use crate::explain::explain;
use crate::style::Style;
use record::Entry;
use scenes::{ALL, Scene};
use show::Screen;
use stage::{Play, Stage};

/// Options.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Skip the measurements.
    #[arg(long)]
    fast: bool,
    /// Play only this scene; may be given several times.
    #[arg(long, value_name = "NAME", value_parser = names())]
    only: Vec<String>,
    /// Capture the packets of the scenes to this file.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Show the code of each scene, in Rust and in C.
    #[arg(long)]
    code: bool,
    /// Draw with ASCII characters only.
    #[arg(long)]
    ascii: bool,
}

fn names() -> clap::builder::PossibleValuesParser {
    ALL.iter().map(|scene| scene.name).collect::<Vec<_>>().into()
}

/// A scene that has been played.
#[derive(Debug)]
struct Outcome {
    scene: &'static Scene,
    entries: Vec<Entry>,
    checks: Vec<(String, bool)>,
    names: [String; 2],
    many_qps: bool,
    error: Option<String>,
}

impl Outcome {
    fn is_right(&self) -> bool {
        self.error.is_none() && self.checks.iter().all(|(_, is_right)| *is_right)
    }

    /// When the first packet was sent.
    fn start(&self) -> Option<Instant> {
        self.entries.iter().find_map(|entry| match entry {
            Entry::Packet { direction: Direction::Sent, wall, .. } => Some(*wall),
            _ => None,
        })
    }
}

/// Runs the command.
#[expect(clippy::disallowed_methods, reason = "says how long it took")]
pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    let settings = Settings::load()?;
    if settings.engine.transport == TransportKind::Iwarp {
        ensure!(!args.code, "--code: the scenes of iWARP have no code to show; those of RoCE do");
        return iwarp::run(args, settings, json);
    }
    let begin = Instant::now();
    let screen = (!json).then(|| Screen::new(Style::for_stdout(args.ascii)));
    let stage = Stage::open(args.pcap.as_deref())?;
    let hosts = json!({ "A": stage.a.addr.to_string(), "B": stage.b.addr.to_string() });
    if let Some(screen) = &screen {
        screen.intro(&stage);
        if args.code {
            screen.legend();
        }
    }
    let is_wanted =
        |scene: &&Scene| args.only.is_empty() || args.only.iter().any(|n| n == scene.name);
    let wanted: Vec<&'static Scene> = ALL.iter().filter(is_wanted).collect();
    let mut outcomes = Vec::new();
    for (i, scene) in wanted.iter().enumerate() {
        let outcome = play(&stage, scene);
        if let Some(screen) = &screen {
            screen.scene(i + 1, wanted.len(), &outcome, &stage);
            if args.code {
                screen.code(scene);
            }
        }
        outcomes.push(outcome);
    }
    drop(stage);
    let rows = match args.fast || !args.only.is_empty() {
        true => Vec::new(),
        false => measure::measure(show::progress)?,
    };
    let is_right = outcomes.iter().all(Outcome::is_right);
    let seconds = begin.elapsed().as_secs_f64();
    match screen {
        Some(screen) => {
            if !rows.is_empty() {
                screen.table(&rows);
            }
            screen.outro(&outcomes, seconds);
        }
        None => {
            let scenes = outcomes.iter().map(|outcome| show::scene_json(outcome, args.code));
            let scenes: Vec<Value> = scenes.collect();
            let rows: Vec<Value> = rows.iter().map(measure::Measured::json).collect();
            let all = json!({
                "hosts": hosts, "scenes": scenes, "measurements": rows, "ok": is_right,
                "seconds": seconds });
            println!("{}", serde_json::to_string_pretty(&all)?);
        }
    }
    Ok(ExitCode::from(u8::from(!is_right)))
}

/// Plays one scene, and keeps the record of it whether or not the scene succeeds.
fn play(stage: &Stage, scene: &'static Scene) -> Outcome {
    // Discards entries that the end of the previous scene may have left in the recorder.
    stage.recorder.take();
    let mut play = Play::new(stage);
    let result = (scene.play)(&mut play);
    let Play { checks, names, many_qps, .. } = play;
    let error = result.err().map(|e| explain(&e));
    Outcome { scene, entries: stage.recorder.take(), checks, names, many_qps, error }
}
