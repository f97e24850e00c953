//! `feroce decode`: shows the packets of capture files.

mod analysis;
mod capture;
mod dissect;
mod mad;
mod merge;
mod table;
mod tcp;
mod view;

use std::io::{self, BufWriter, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde_json::json;

use crate::ladder::{Ladder, Rung, Side};
use crate::style::{Ink, Style, columns};
use crate::words;
use analysis::Analysis;
use capture::End;
use dissect::{IcrcState, NotRoce};
use merge::{Merged, Packet, Source};
use table::Table;
use tcp::Flows;
pub(crate) use view::Iwarp as IwarpView;
use view::View;

#[cfg(test)]
mod tests;

/// Options.
///
/// Reads pcap and pcapng files of Ethernet (with VLAN tags), raw IP, and Linux cooked packets, and
/// shows RoCEv2 over IPv4 and IPv6, RoCEv1, and the messages of iWARP on TCP connections whose
/// beginning is in the capture. What was sent again, is missing or was answered twice is marked,
/// and what went wrong is said at the end. The exit status is 1 if an ICRC or a CRC is wrong or the
/// file is damaged.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The capture; `-` is standard input. Several, such as those of both ends of a connection,
    /// are put together by time, and a packet that several have is shown once.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Draw a ladder diagram instead of a table.
    #[arg(long)]
    ladder: bool,
    /// Show no packets, but who sent how much to whom, how fast, and what went wrong.
    #[arg(long, conflicts_with_all = ["ladder", "op", "qp", "limit", "all"])]
    summary: bool,
    /// Only packets to or from this queue pair, such as 17 or 0x11.
    #[arg(long, value_parser = number)]
    qp: Option<u32>,
    /// Only packets whose operation has this in its name, such as SEND, "READ Request" or NAK.
    #[arg(long)]
    op: Option<String>,
    /// Show at most this many packets; the summary still counts all.
    #[arg(long)]
    limit: Option<u64>,
    /// Show packets that are neither RoCE nor the end of an iWARP message, too.
    #[arg(long)]
    all: bool,
    /// Draw with ASCII characters only.
    #[arg(long)]
    ascii: bool,
}

/// A number, decimal or hexadecimal.
fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "not a number: write 17 or 0x11".to_owned())
}

/// Connections whose end the findings tell.
const MOST_ENDS: usize = 20;

/// Number of packets of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counts {
    packets: u64,
    roce: u64,
    bad_icrc: u64,
    cut: u64,
    /// Packets that were marked by congestion.
    marked: u64,
    broken: u64,
    /// Messages of iWARP, and those that are wrong.
    iwarp: u64,
    bad_iwarp: u64,
    shown: u64,
}

impl Counts {
    fn text(&self) -> String {
        let mut text =
            format!("{} packets, {} RoCE, {} bad ICRC", self.packets, self.roce, self.bad_icrc);
        for (count, what) in [
            (self.cut, "cut"),
            (self.marked, "marked by congestion"),
            (self.broken, "malformed"),
            (self.iwarp, "iWARP messages"),
            (self.bad_iwarp, "wrong iWARP messages"),
        ] {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        text
    }

    fn add(&mut self, view: &View) {
        self.packets += u64::from(!matches!(view, View::Iwarp(iwarp) if iwarp.nth > 0));
        match view {
            View::Iwarp(iwarp) => {
                self.iwarp += 1;
                self.bad_iwarp += u64::from(iwarp.message.error.is_some());
            }
            View::Roce(roce) => {
                self.roce += 1;
                self.bad_icrc += u64::from(roce.icrc == IcrcState::Bad);
                self.cut += u64::from(roce.icrc == IcrcState::Unknown);
                self.marked += u64::from(roce.is_marked);
            }
            View::Other { why: NotRoce::Broken(_), .. } => self.broken += 1,
            View::Other { .. } => {}
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    let mut opened = Vec::new();
    for path in &args.files {
        match open(path) {
            Ok(file) => opened.push(file),
            Err(e) => {
                eprintln!("feroce: cannot open the capture {}: {e}", path.display());
                return Ok(ExitCode::from(2));
            }
        }
    }
    if opened.len() > merge::MOST {
        bail!("more than {} captures at once", merge::MOST);
    }
    let style = Style::for_stdout(args.ascii);
    let mut printer = Printer::new(args, json, style);
    let ends = match <[_; 1]>::try_from(opened) {
        Ok([file]) => printer.one(file),
        Err(opened) => printer.several(opened),
    };
    let result = ends.and_then(|ends| printer.finish(&ends).map(|()| ends));
    match result {
        // The reader of standard output (`head`, for example) has closed the pipe: not an error.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(e) => Err(e.into()),
        Ok(ends) => {
            let counts = printer.counts;
            let wrong = counts.bad_icrc + counts.broken + counts.bad_iwarp;
            let is_good = wrong == 0 && ends.iter().all(|end| *end == End::Complete);
            Ok(ExitCode::from(u8::from(!is_good)))
        }
    }
}

/// A capture, while it is read.
type Opened = Box<dyn Read + Send>;

fn open(path: &Path) -> io::Result<Opened> {
    match path.as_os_str() == "-" {
        true => Ok(Box::new(io::stdin())),
        false => Ok(Box::new(std::fs::File::open(path)?)),
    }
}

/// What to call captures: by the names of the files, if those differ, else by their paths.
fn names(paths: &[PathBuf]) -> Vec<String> {
    let full = |path: &PathBuf| match path.as_os_str() == "-" {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    };
    let short = |path: &PathBuf| path.file_name().map(|name| name.display().to_string());
    let is_alone = |path: &PathBuf| {
        paths.len() > 1 && paths.iter().filter(|other| short(other) == short(path)).count() == 1
    };
    let name = |path: &PathBuf| short(path).filter(|_| is_alone(path) && path.as_os_str() != "-");
    paths.iter().map(|path| name(path).unwrap_or_else(|| full(path))).collect()
}

/// The messages of iWARP in a capture, connection by connection in the order of their beginnings.
pub(crate) fn connections(file: &Path) -> anyhow::Result<Vec<Vec<IwarpView>>> {
    let opened = std::fs::File::open(file)
        .with_context(|| format!("cannot open the capture {}", file.display()))?;
    let (mut flows, mut number, mut first_ns) = (Flows::default(), 0, None);
    let mut order: Vec<(SocketAddr, SocketAddr)> = Vec::new();
    let mut all: Vec<Vec<IwarpView>> = Vec::new();
    capture::read(opened, |record| {
        number += 1;
        let first = *first_ns.get_or_insert_with(|| record.time_ns.unwrap_or(0));
        for view in View::all(&record, &mut flows, number, first) {
            let View::Iwarp(iwarp) = view else { continue };
            let (a, b) = iwarp.ends;
            let key = (a.min(b), a.max(b));
            let place = order.iter().position(|known| *known == key).unwrap_or_else(|| {
                order.push(key);
                all.push(Vec::new());
                all.len() - 1
            });
            all[place].push(*iwarp);
        }
        true
    });
    Ok(all)
}

/// The ladder of messages of one connection.
pub(crate) fn ladder(messages: &[IwarpView], style: Style) -> Vec<String> {
    let (ladder, mut pair) = (Ladder::without_events(style), None);
    messages.iter().flat_map(|message| climb_iwarp(&ladder, &mut pair, message)).collect()
}

/// Prints packets in the form that the user chose.
struct Printer<'a> {
    args: &'a Args,
    style: Style,
    out: BufWriter<io::StdoutLock<'static>>,
    form: Form,
    counts: Counts,
    analysis: Analysis,
    flows: Flows,
    /// Connections of iWARP that an end has refused or broken off, up to [`MOST_ENDS`].
    iwarp_ends: Vec<String>,
    /// The captures, if there are several.
    merged: Option<Merged>,
}

/// The form of the output.
enum Form {
    Json,
    Table(Table),
    /// The ladder, and the two sides that the last header named.
    Ladder(Ladder, Option<(String, String)>),
}

impl<'a> Printer<'a> {
    fn new(args: &'a Args, json: bool, style: Style) -> Self {
        let form = match (json, args.ladder) {
            (true, _) => Form::Json,
            (_, true) => Form::Ladder(Ladder::without_events(style), None),
            _ => Form::Table(Table::new(style)),
        };
        let out = BufWriter::new(io::stdout().lock());
        let (counts, analysis) = (Counts::default(), Analysis::default());
        Self {
            args,
            style,
            out,
            form,
            counts,
            analysis,
            flows: Flows::default(),
            iwarp_ends: Vec::new(),
            merged: None,
        }
    }

    /// Prints the packets of a capture while it is read.
    fn one(&mut self, file: Opened) -> io::Result<Vec<End>> {
        let (mut failure, mut first_ns) = (None, None);
        let end = capture::read(file, |record| {
            let first = *first_ns.get_or_insert_with(|| record.time_ns.unwrap_or(0));
            let views = View::all(&record, &mut self.flows, self.counts.packets + 1, first);
            failure = self.packets(views, &[]).err();
            failure.is_none()
        });
        failure.map_or_else(|| Ok(vec![end]), Err)
    }

    /// Prints the packets of several captures in the order of time.
    fn several(&mut self, files: Vec<Opened>) -> io::Result<Vec<End>> {
        let sources = names(&self.args.files).into_iter().zip(files);
        let sources = sources.map(|(name, file)| Source::read(name, file)).collect();
        let mut merged = Merged::new(sources);
        let mut first_ns = None;
        let names: Vec<String> = merged.sources.iter().map(|source| source.name.clone()).collect();
        merged.each(|record, packets, of| {
            let first = *first_ns.get_or_insert_with(|| record.time_ns.unwrap_or(0));
            let number = self.counts.packets + 1;
            let views = View::all(&record, &mut self.flows, number, first);
            // A segment of TCP is one packet, with any number of messages.
            let is_one = of == 1;
            let is_own = |nth: usize| is_one || packets.iter().any(|packet| packet.nth == nth);
            let own = views.into_iter().enumerate().filter(|(nth, _)| is_own(*nth));
            for (at, (_, mut view)) in own.enumerate() {
                let packet = packets[if is_one { 0 } else { at }];
                if !is_one {
                    view.renumber(number + at as u64);
                }
                self.merged_packet(view, packet, &names)?;
            }
            Ok(number)
        })?;
        let ends = merged.sources.iter().map(|source| source.end.clone()).collect();
        self.merged = Some(merged);
        Ok(ends)
    }

    /// Prints a packet that the captures of these names have in part or all.
    fn merged_packet(&mut self, view: View, packet: Packet, names: &[String]) -> io::Result<()> {
        let mut view = view.marked(packet.mark);
        let has = |&(at, _): &(usize, &String)| packet.files >> at & 1 == 1;
        let files = names.iter().enumerate().filter(has).map(|(_, name)| name.as_str());
        let files: Vec<&str> = files.collect();
        if files.len() < names.len() {
            view.found_in(&files);
        }
        self.packets(vec![view], &files)
    }

    /// Prints packets, which these files have if there are several.
    fn packets(&mut self, mut views: Vec<View>, files: &[&str]) -> io::Result<()> {
        views.iter_mut().for_each(|view| analyse(&mut self.analysis, view));
        views.iter().try_for_each(|view| self.packet(view, files))
    }

    /// Counts a packet, and prints it if it passes the filters.
    fn packet(&mut self, view: &View, files: &[&str]) -> io::Result<()> {
        self.counts.add(view);
        if let View::Iwarp(iwarp) = view
            && iwarp.ink() == Ink::Bad
            && self.iwarp_ends.len() < MOST_ENDS
        {
            let IwarpView { number, ends: (src, dst), message, .. } = &**iwarp;
            self.iwarp_ends.push(format!("packet {number}: {src} → {dst} {message}"));
        }
        if !self.wants(view) {
            return Ok(());
        }
        self.counts.shown += 1;
        match &mut self.form {
            Form::Json => {
                let mut object = view.json();
                if !files.is_empty() {
                    object["files"] = json!(files);
                }
                writeln!(self.out, "{object}")
            }
            Form::Table(table) => {
                let lines = table.push(view);
                print(&mut self.out, self.style, &lines)
            }
            Form::Ladder(ladder, pair) => {
                let lines = climb(ladder, pair, view);
                print(&mut self.out, self.style, &lines)
            }
        }
    }

    /// Prints what the packets say together.
    fn conclude(&mut self) -> io::Result<()> {
        if self.args.summary {
            writeln!(self.out)?;
            print(&mut self.out, self.style, &aligned(&self.analysis.table()))?;
            if self.analysis.beyond() > 0 {
                let beyond = self.analysis.beyond();
                writeln!(self.out, "and {beyond} packets to further queue pairs")?;
            }
        }
        let findings = self.findings();
        if !findings.is_empty() {
            writeln!(self.out, "\nwhat went wrong:")?;
            let lines: Vec<String> = findings.iter().map(|found| format!("  {found}")).collect();
            print(&mut self.out, self.style, &lines)?;
        } else if self.args.summary {
            writeln!(self.out, "\nnothing was sent again, refused or left without an answer")?;
        }
        Ok(())
    }

    fn findings(&self) -> Vec<String> {
        let missing = self.merged.iter().flat_map(Merged::missing);
        let ends = self.iwarp_ends.iter().cloned();
        self.analysis.findings().into_iter().chain(missing).chain(ends).collect()
    }

    fn wants(&self, view: &View) -> bool {
        if self.args.summary || self.args.limit.is_some_and(|limit| self.counts.shown >= limit) {
            return false;
        }
        match view {
            View::Roce(roce) => {
                self.args.qp.is_none_or(|qp| roce.involves(qp))
                    && self.args.op.as_deref().is_none_or(|op| roce.is_named(op))
            }
            View::Iwarp(iwarp) => {
                self.args.qp.is_none()
                    && self.args.op.as_deref().is_none_or(|op| iwarp.is_named(op))
            }
            View::Other { why, .. } => {
                let is_broken = matches!(why, NotRoce::Broken(_));
                (self.args.all || is_broken) && self.args.qp.is_none() && self.args.op.is_none()
            }
        }
    }

    /// Prints the remaining lines, and the summary.
    fn finish(&mut self, ends: &[End]) -> io::Result<()> {
        let damaged = names(&self.args.files).into_iter().zip(ends);
        let damaged = damaged.filter_map(|(file, end)| match end {
            End::Damaged(why) => Some((file, why.as_str())),
            End::Complete | End::Stopped => None,
        });
        let damaged: Vec<(String, &str)> = damaged.collect();
        let counts = self.counts;
        match &mut self.form {
            Form::Json => {
                let damage = damaged.first().map(|(_, why)| *why);
                let sources = self.merged.iter().flat_map(|merged| &merged.sources);
                let captures = sources.map(|source| {
                    json!({ "file": source.name, "packets": source.packets,
                            "clock_ahead_ns": source.ahead_ns })
                });
                let captures: Vec<_> = captures.collect();
                let mut summary = json!({ "summary": {
                    "packets": counts.packets, "roce": counts.roce, "bad_icrc": counts.bad_icrc,
                    "cut": counts.cut, "ecn_marked": counts.marked, "malformed": counts.broken,
                    "shown": counts.shown,
                    "iwarp": counts.iwarp, "bad_iwarp": counts.bad_iwarp,
                    "damage": damage, "requests": self.analysis.json(),
                    "findings": self.findings() } });
                if !captures.is_empty() {
                    summary["summary"]["captures"] = json!(captures);
                }
                writeln!(self.out, "{summary}")?;
            }
            Form::Table(table) => {
                let lines = table.finish();
                print(&mut self.out, self.style, &lines)?;
            }
            Form::Ladder(..) => {}
        }
        let is_nothing = !damaged.is_empty() && counts.packets == 0;
        if !matches!(self.form, Form::Json) && !is_nothing {
            writeln!(self.out, "{}", counts.text())?;
            for source in self.merged.iter().flat_map(|merged| &merged.sources) {
                writeln!(self.out, "{}", source.text())?;
            }
            self.conclude()?;
        }
        self.out.flush()?;
        for (file, why) in damaged {
            match is_nothing {
                true => eprintln!("feroce: cannot read {file}: {why}"),
                false => eprintln!("feroce: {file} is damaged: {why}"),
            }
        }
        Ok(())
    }
}

/// The lines of a table whose columns are as wide as they must be.
fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let width = |i: usize| rows.iter().map(|row| columns(&row[i])).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let cells = cells.map(|(cell, width)| {
            format!("{cell}{}", " ".repeat(width.saturating_sub(columns(cell))))
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Lets the analysis see a packet that its receiver takes, and marks the packet.
fn analyse(analysis: &mut Analysis, view: &mut View) {
    if let View::Roce(roce) = view
        && let Some(fact) = roce.fact.filter(|_| roce.icrc != IcrcState::Bad)
        && let Some(what) = analysis.note(&fact)
    {
        roce.mark(what);
    }
}

fn print(out: &mut impl Write, style: Style, lines: &[String]) -> io::Result<()> {
    lines.iter().try_for_each(|line| writeln!(out, "{}", style.finish(line)))
}

/// The lines of one packet in a ladder, with a header whenever the two ends change.
fn climb(ladder: &Ladder, pair: &mut Option<(String, String)>, view: &View) -> Vec<String> {
    match view {
        View::Roce(roce) => {
            let ends = (roce.src.to_string(), roce.dst.to_string());
            let (label, notes, ink) = (roce.label().to_owned(), roce.notes(), roce.ink());
            step(ladder, pair, ends, roce.time_ns, (label, notes, ink))
        }
        View::Iwarp(iwarp) => climb_iwarp(ladder, pair, iwarp),
        View::Other { .. } => Vec::new(),
    }
}

fn climb_iwarp(
    ladder: &Ladder,
    pair: &mut Option<(String, String)>,
    iwarp: &IwarpView,
) -> Vec<String> {
    let ends = (iwarp.ends.0.to_string(), iwarp.ends.1.to_string());
    step(ladder, pair, ends, iwarp.time_ns, (iwarp.label(), iwarp.notes(), iwarp.ink()))
}

fn step(
    ladder: &Ladder,
    pair: &mut Option<(String, String)>,
    (src, dst): (String, String),
    time_ns: Option<u64>,
    (label, notes, ink): (String, Vec<String>, Ink),
) -> Vec<String> {
    let mut lines = Vec::new();
    let is_known = |(l, r): &(String, String)| (*l == src && *r == dst) || (*l == dst && *r == src);
    if !pair.as_ref().is_some_and(is_known) {
        if pair.is_some() {
            lines.push(String::new());
        }
        *pair = Some((src.clone(), dst.clone()));
        lines.extend(ladder.header(&src, &dst));
    }
    let from = match pair {
        Some((left, _)) if *left == src => Side::Left,
        _ => Side::Right,
    };
    lines.extend(ladder.rung(&Rung::Packet {
        time: time_ns.map(words::duration).unwrap_or_default(),
        from,
        label,
        notes,
        ink,
    }));
    lines
}
