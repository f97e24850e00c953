//! Files with secrets.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use feroce_nvme::Secret;
use feroce_nvme::wire::Nqn;

/// What a target knows of a host: its name, its secret, and the secret of the subsystem for it.
type Entry = (Nqn, Secret, Option<Secret>);

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The secret of a host, and the one that the subsystem must prove to have.
pub(super) fn of_host(path: &Path) -> anyhow::Result<(Secret, Option<Secret>)> {
    let text = read(path)?;
    let mut words = text.split_whitespace();
    let wrong = || format!("{} has no secret", path.display());
    let secret = words.next().unwrap_or_default().parse().with_context(wrong)?;
    let own = words.next().map(str::parse).transpose().with_context(wrong)?;
    Ok((secret, own))
}

/// The hosts of a target. Lines that begin with `#` are comments.
pub(super) fn of_target(path: &Path) -> anyhow::Result<Vec<Entry>> {
    let text = read(path)?;
    let lines = (1..).zip(text.lines()).filter(|(_, line)| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#')
    });
    let entry = |(number, line): (usize, &str)| {
        entry(line).with_context(|| format!("{}, line {number}", path.display()))
    };
    lines.map(entry).collect()
}

fn entry(line: &str) -> anyhow::Result<Entry> {
    let mut words = line.split_whitespace();
    let host = words.next().unwrap_or_default().parse()?;
    let secret =
        words.next().context("a secret is missing behind the name of the host")?.parse()?;
    let own = words.next().map(str::parse).transpose()?;
    Ok((host, secret, own))
}
