//! Ladders of the tutorial, each drawn from a capture of the program that its page is about.
//!
//! In a page, a comment in front of the block says what is drawn:
//!
//! ```text
//! <!-- ladder: example rc_write; device feroce@127.80.1.1 -->
//! ```
//!
//! | part | |
//! |---|---|
//! | `example NAME` | a program of `crates/feroce/examples` |
//! | `feroce ARGS` | a command |
//! | `demo SCENE` | a scene of `feroce demo`, which draws the ladder itself |
//! | `fabric` | two hosts of the fabric in the page's TOML block send to the third |
//! | `device NAME` | whose capture |
//! | `fault FAULT` | the setting `fault` |
//! | `from TEXT` | begin with the first packet that has this in its line |
//! | `before N` | and show so many before it |
//! | `take N` | show so many packets |
//! | `skip N` | begin behind so many |
//! | `without TEXT` | leave out packets that have this in their lines |
//! | `one flow` | show requests to the queue pair of the first one, and their answers |
//! | `any order` | the program is free to send these in another order, and others between them |

use core::time::Duration;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::{failed, read, write};
use crate::shell::{cargo, limited, root, run, target_dir};
use crate::{Failure, Outcome};

const MARK: &str = "<!-- ladder: ";
const FENCE: &str = "```text\n";

/// The longest that one program may take.
const LIMIT: Duration = Duration::from_mins(1);

/// What a comment asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Picture {
    source: String,
    device: String,
    fault: Option<String>,
    from: Option<String>,
    before: usize,
    skip: usize,
    without: Option<String>,
    take: Option<usize>,
    is_one_flow: bool,
    is_any_order: bool,
}

impl Picture {
    fn parse(text: &str) -> Result<Self, String> {
        let mut picture = Self::default();
        for part in text.split(';').map(str::trim) {
            let (key, value) = part.split_once(' ').unwrap_or((part, ""));
            let number = || value.parse().map_err(|_| format!("`{part}`: not a number"));
            match key {
                "example" | "feroce" | "demo" | "fabric" => picture.source = part.to_owned(),
                "device" => picture.device = value.to_owned(),
                "fault" => picture.fault = Some(value.to_owned()),
                "from" => picture.from = Some(value.to_owned()),
                "before" => picture.before = number()?,
                "skip" => picture.skip = number()?,
                "without" => picture.without = Some(value.to_owned()),
                "take" => picture.take = Some(number()?),
                "one" => picture.is_one_flow = true,
                "any" => picture.is_any_order = true,
                _ => return Err(format!("`{part}` is no part of a picture")),
            }
        }
        if picture.source.is_empty() {
            return Err("it does not say which program".to_owned());
        }
        Ok(picture)
    }

    /// The head of a ladder, and those of its packets that are not left out.
    fn rungs(&self, ladder: &str) -> (String, Vec<String>) {
        let (head, mut rungs) = rungs(ladder);
        rungs.retain(|rung| self.without.as_ref().is_none_or(|text| !rung.contains(text.as_str())));
        if self.is_one_flow {
            let first =
                rungs.first().and_then(|rung| word_after(rung, "to QP ").map(str::to_owned));
            let is_request = |rung: &String| word_after(rung, "to QP ") == first.as_deref();
            // An answer has the number of its request.
            let psn = |rung: &String| word_after(rung, "PSN ").map(str::to_owned);
            let asked: Vec<_> = rungs.iter().filter(|rung| is_request(rung)).map(psn).collect();
            rungs.retain(|rung| asked.contains(&psn(rung)));
        }
        (head, rungs)
    }

    /// The packets of a ladder that are shown, with its head.
    fn pick(&self, ladder: &str) -> Result<String, String> {
        let (head, rungs) = self.rungs(ladder);
        let found = match &self.from {
            None => Some(self.skip),
            Some(from) => rungs.iter().position(|rung| rung.contains(from.as_str())),
        };
        let begin = found.ok_or("no packet to begin with")?.saturating_sub(self.before);
        let rest = rungs.get(begin..).ok_or("too few packets")?;
        let shown = rest.get(..self.take.unwrap_or(rest.len())).ok_or("too few packets")?;
        Ok(head + &shown.concat())
    }

    /// What the page and a new drawing must have in common. When the adapter acknowledges depends
    /// on when it looks, so acknowledgements are apart from the others, and each is there once.
    fn shape(&self, ladder: &str) -> Vec<String> {
        let (_, rungs) = self.rungs(ladder);
        let lines = rungs.iter().map(|rung| essence(rung));
        let is_ack = |line: &String| line.split(' ').nth(1) == Some("ACK");
        let (mut acks, mut lines): (Vec<_>, Vec<_>) = lines.partition(is_ack);
        acks.sort_unstable();
        lines.append(&mut acks);
        lines.dedup();
        lines
    }

    /// How the picture of a page differs from a new one, which is a part of a whole ladder.
    fn difference(&self, old: &str, new: &str, whole: &str) -> Option<String> {
        let (was, is) = (self.shape(old), self.shape(new));
        let is_same = match self.is_any_order {
            true => {
                let all: Vec<_> = self.shape(whole).iter().map(|line| kind(line)).collect();
                was.iter().all(|line| all.contains(&kind(line)))
            }
            false => was == is,
        };
        let (was, is) = (was.join("\n  "), is.join("\n  "));
        (!is_same).then(|| format!("the page shows\n  {was}\nbut there is\n  {is}"))
    }
}

/// The word behind a text.
fn word_after<'a>(rung: &'a str, text: &str) -> Option<&'a str> {
    rung.split_once(text)?.1.split([' ', ',']).next()
}

/// The head of a ladder, and its packets and events with what is written below them.
fn rungs(ladder: &str) -> (String, Vec<String>) {
    let (mut head, mut rungs) = (String::new(), Vec::<String>::new());
    for line in ladder.lines().take_while(|line| !line.trim().is_empty()) {
        let line = format!("{}\n", line.trim_end());
        if line.contains(['├', '┤', '●']) {
            rungs.push(line);
        } else if let Some(last) = rungs.last_mut() {
            if line.contains('│') {
                last.push_str(&line);
            }
        } else {
            head.push_str(&line);
        }
    }
    (head, rungs)
}

/// A rung without what differs from run to run: times, addresses, keys, numbers of packets and
/// queue pairs. Lengths stay.
fn essence(rung: &str) -> String {
    let direction = if rung.contains('▶') { "right" } else { "left" };
    let from = rung.find(['├', '│', '●']).unwrap_or(0);
    let mut out = vec![direction];
    let text = rung[from..].replace(['├', '┤', '│', '─', '▶', '◀', '·', ','], " ");
    let words: Vec<&str> = text.split_whitespace().collect();
    for (at, word) in words.iter().enumerate() {
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        let is_length = words.get(at + 1) == Some(&"B");
        out.push(if is_number && !is_length { "#" } else { word });
    }
    out.join(" ").replace("µs", "ms")
}

/// Who sends what, and whether the setting `fault` lost it.
fn kind(essence: &str) -> (String, bool) {
    let end = essence.find(" PSN ").or_else(|| essence.find(" to QP ")).unwrap_or(essence.len());
    (essence[..end].to_owned(), essence.contains("lost by"))
}

/// Draws every picture, and compares it with its page or puts it there.
pub(super) fn check(record: bool) -> Outcome {
    let folder = root().join("docs/tutorial");
    let entries = fs::read_dir(&folder).map_err(|e| failed("cannot list", &folder, &e))?;
    let mut pages: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    pages.retain(|page| page.extension().is_some_and(|end| end == "md"));
    pages.sort_unstable();
    run(&mut cargo(["build", "-q", "-p", "feroce-cli", "--bin", "feroce"]))?;
    run(&mut cargo(["build", "-q", "-p", "feroce", "--examples"]))?;
    let mut wrong = Vec::new();
    for page in &pages {
        let text = read(page)?;
        let drawn = redraw(&text, |picture| {
            println!("{}: {}", page.display(), picture.source);
            draw(picture, &text)
        });
        let (new, different) =
            drawn.map_err(|why| Failure::Failed(format!("{}: {why}", page.display())))?;
        if record {
            write(page, &new)?;
        }
        wrong.extend(different.into_iter().map(|what| format!("{}: {what}", page.display())));
    }
    match wrong.is_empty() || record {
        true => Ok(()),
        false => Err(Failure::Failed(format!(
            "{}\nLook at what has changed, then `cargo xtask book --record`.",
            wrong.join("\n")
        ))),
    }
}

/// A page with its pictures drawn anew, and what is different about them.
fn redraw(
    text: &str,
    mut draw: impl FnMut(&Picture) -> Result<String, String>,
) -> Result<(String, Vec<String>), String> {
    let mut parts = text.split(MARK);
    let mut out = parts.next().unwrap_or_default().to_owned();
    let mut different = Vec::new();
    for part in parts {
        let parsed = part.split_once(" -->\n").and_then(|(spec, rest)| {
            let rest = rest.strip_prefix(FENCE)?;
            let (old, rest) = rest.split_once("```\n")?;
            Some((spec, old, rest))
        });
        let (spec, old, rest) = parsed.ok_or("a comment without a ladder behind it")?;
        let picture = Picture::parse(spec)?;
        let whole = draw(&picture)?;
        let new = picture.pick(&whole).map_err(|why| format!("{spec}: {why}"))?;
        let difference = picture.difference(old, &new, &whole);
        different.extend(difference.map(|what| format!("{spec}\n{what}")));
        out.push_str(&format!("{MARK}{spec} -->\n{FENCE}{new}```\n{rest}"));
    }
    Ok((out, different))
}

/// The command, without the settings of the environment and with a fixed seed.
fn feroce() -> Command {
    with_settings(Command::new(target_dir().join("debug/feroce")))
}

fn with_settings(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FEROCE_") {
            command.env_remove(name);
        }
    }
    command.env("FEROCE_SEED", "1").stdin(Stdio::null());
    command
}

/// The whole ladder that a picture is taken from.
fn draw(picture: &Picture, page: &str) -> Result<String, String> {
    let folder = target_dir().join("book-captures");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let (kind, rest) = picture.source.split_once(' ').unwrap_or((&picture.source, ""));
    let mut command = match kind {
        "demo" => {
            let mut command = feroce();
            command.args(["demo", "--fast", "--only", rest]);
            return ladder_of_demo(&said(command)?);
        }
        "fabric" => return by_fabric(&folder, page),
        "example" => {
            let program = target_dir().join("debug/examples").join(rest);
            let mut command = with_settings(Command::new(program));
            // Otherwise the names of devices depend on the interfaces of this machine.
            command.env("FEROCE_ADDRESS", "127.0.0.1");
            command
        }
        _ => {
            let mut command = feroce();
            command.args(rest.split(' '));
            command
        }
    };
    command.env("FEROCE_PCAP", folder.join("%d.pcapng"));
    command.envs(picture.fault.iter().map(|fault| ("FEROCE_FAULT", fault)));
    said(command)?;
    decoded(&folder.join(format!("{}.pcapng", picture.device)))
}

/// What a command prints, if it succeeds.
fn said(command: Command) -> Result<String, String> {
    let mut command = limited(command, LIMIT);
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(format!("{command:?}: {}\n{why}", output.status))
        }
    }
}

/// Runs a command that may leave a process behind, which would keep a pipe open.
fn done(mut command: Command) -> Result<(), String> {
    let status = command.stdout(Stdio::null()).status().map_err(|e| format!("{command:?}: {e}"))?;
    status.success().then_some(()).ok_or_else(|| format!("{command:?}: {status}"))
}

fn decoded(capture: &Path) -> Result<String, String> {
    let mut command = feroce();
    command.args(["decode", "--ladder"]).arg(capture);
    said(command)
}

/// The ladder in the output of a scene.
fn ladder_of_demo(said: &str) -> Result<String, String> {
    let lines: Vec<&str> = said.lines().collect();
    let is_ladder = |line: &&str| line.contains(['│', '├', '┤']);
    let begin = lines.iter().position(is_ladder).filter(|&at| at > 0).ok_or("no ladder")?;
    let rest = &lines[begin - 1..];
    let end = rest.iter().skip(1).position(|line| !is_ladder(line)).map_or(rest.len(), |n| n + 1);
    Ok(rest[..end].join("\n") + "\n")
}

/// A process that ends with the picture.
struct Running {
    child: Child,
    /// What else it says: a pipe takes more than these processes print.
    out: BufReader<ChildStdout>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The ladder of an incast over the fabric that a page describes.
fn by_fabric(folder: &Path, page: &str) -> Result<String, String> {
    const NAME: &str = "book";
    let toml = page.split_once("```toml\n").and_then(|(_, rest)| rest.split_once("```"));
    let (toml, _) = toml.ok_or("the page describes no fabric")?;
    let file = folder.join("three.toml");
    fs::write(&file, toml).map_err(|e| format!("{}: {e}", file.display()))?;
    let mut up = feroce();
    up.args(["fabric", "--name", NAME, "up"]).arg(&file);
    done(up)?;
    let drawn = incast(folder, NAME);
    let mut down = feroce();
    down.args(["fabric", "--name", NAME, "down"]);
    done(down).and(drawn)
}

/// What the third host captures when the two others send to it.
fn incast(folder: &Path, fabric: &str) -> Result<String, String> {
    let capture = folder.join("h2.pcapng");
    let on = |host: &str, port: &str, more: &[&str]| {
        let mut command = feroce();
        command.args(["fabric", "--name", fabric, "run", "-n", host]);
        if port == "18601" && host == "h2" {
            command.arg("--pcap").arg(&capture);
        }
        command.arg("--").arg(target_dir().join("debug/feroce"));
        command.args(["perf", "write", "bw", "-d", "feroce0", "-n", "100", "-p", port]);
        command.args(more);
        command
    };
    let servers =
        ["18600", "18601"].map(|port| start(&mut on("h2", port, &[]), "waiting for a client"));
    let mut other = on("h1", "18600", &["127.0.0.1"]);
    let mut other = other.stdout(Stdio::null()).spawn().map_err(|e| e.to_string())?;
    let measured = said(on("h0", "18601", &["127.0.0.1"]));
    let has_other = other.wait().map_err(|e| e.to_string())?.success();
    measured?;
    for server in servers {
        server?.child.wait().map_err(|e| e.to_string())?;
    }
    if !has_other {
        return Err("the client on h1 failed".to_owned());
    }
    decoded(&capture)
}

/// Starts a process, and waits until it says that it is ready.
fn start(command: &mut Command, ready: &str) -> Result<Running, String> {
    let started = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = started.map_err(|e| format!("{command:?}: {e}"))?;
    let out = child.stdout.take().ok_or("its output is not piped")?;
    let mut running = Running { child, out: BufReader::new(out) };
    let lines = running.out.by_ref().lines().map_while(Result::ok);
    match { lines }.any(|line| line.contains(ready)) {
        true => Ok(running),
        false => Err(format!("{command:?} ended before it was ready")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LADDER: &str = "\
            127.80.1.1                          127.80.1.2
            │                                            │
     0.0 µs ├─ WRITE Only · PSN 15 · 15 B · to QP 0xc7 ─▶│
            │   va 0x7f73 rkey 0x88 len 15               │
   13.71 ms │◀────────────── ACK · PSN 15 · to QP 0xc6 ──┤

2 packets, 2 RoCE, 0 bad ICRC
";

    fn page(ladder: &str) -> String {
        format!("Text.\n\n{MARK}example a; device b -->\n{FENCE}{ladder}```\n\nMore.\n")
    }

    #[test]
    fn numbers_may_differ_and_packets_may_not() {
        let (shown, _) = LADDER.split_once("\n\n").expect("an empty line");
        let old =
            page(&format!("{}\n", shown.replace("0xc7", "0x11").replace("13.71 ms", "1.2 µs")));
        let (new, different) = redraw(&old, |_| Ok(LADDER.to_owned())).expect("well written");
        assert_eq!(different, Vec::<String>::new());
        assert_eq!(new, page(&format!("{shown}\n")));
        for (from, to) in [("WRITE", "SEND"), ("15 B", "16 B"), ("◀", "▶"), (" ACK", " NAK")] {
            let other = LADDER.replace(from, to);
            let (_, different) = redraw(&old, |_| Ok(other.clone())).expect("well written");
            assert_eq!(different.len(), 1, "{from} became {to}");
        }
    }

    #[test]
    fn a_part_of_a_ladder_is_picked() {
        let picture =
            Picture::parse("example a; from ACK; before 1; take 2").expect("well written");
        let whole = LADDER.lines().take(5).count();
        assert_eq!(picture.pick(LADDER).expect("both are there").lines().count(), whole);
        let picture = Picture::parse("example a; from ACK; take 1").expect("well written");
        assert_eq!(picture.pick(LADDER).expect("it is there").lines().count(), 3);
        assert!(Picture::parse("example a; take 9").expect("well written").pick(LADDER).is_err());
        assert!(Picture::parse("example a; from NAK").expect("well written").pick(LADDER).is_err());
        let other = LADDER.replace("PSN 15 · to", "PSN 16 · to");
        let flow = Picture::parse("example a; one flow").expect("well written");
        assert_eq!((flow.rungs(LADDER).1.len(), flow.rungs(&other).1.len()), (2, 1));
        assert!(Picture::parse("example a; colour red").is_err());
        assert!(Picture::parse("device b").is_err());
    }
}
