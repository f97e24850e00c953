//! `--pcap`: captures of ports.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use feroce_fabric::PortName;
use feroce_sim::scenario::{Captured, Run, Scenario, WireLength};

/// Magic number of a file with nanoseconds, its version, and the type of Ethernet.
const MAGIC: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
const ETHERNET: u32 = 1;
/// The longest frame that a reader must expect.
const SNAP_LEN: u32 = 65_535;

const NS_PER_S: u64 = 1_000_000_000;

/// Files of captures, by port.
#[derive(Debug, Default)]
pub(super) struct Pcaps {
    files: Vec<(PortName, PathBuf, BufWriter<File>)>,
}

/// The port and the file of `PORT=FILE`.
pub(super) fn parse(word: &str, scenario: &Scenario) -> Result<(PortName, PathBuf), String> {
    if scenario.wire == WireLength::Infiniband {
        return Err("--pcap: only ports of Ethernet can be captured".into());
    }
    let Some((name, file)) = word.split_once('=').filter(|(_, file)| !file.is_empty()) else {
        return Err(format!("--pcap: {word:?} is not PORT=FILE, such as leaf0:3=out.pcap"));
    };
    let port = scenario.topology.find_port(name);
    let port = port.ok_or_else(|| format!("--pcap: there is no port {name}"))?;
    Ok((port, file.into()))
}

impl Pcaps {
    /// Begins a capture.
    pub(super) fn add(&mut self, port: PortName, path: &Path) -> anyhow::Result<()> {
        let failed = || format!("cannot write {}", path.display());
        let mut file = BufWriter::new(File::create(path).with_context(failed)?);
        let mut header = Vec::new();
        header.extend(MAGIC.to_le_bytes());
        header.extend(VERSION.iter().flat_map(|number| number.to_le_bytes()));
        // The zone of times, and how exact they are: readers ignore them.
        header.extend([0; 8]);
        header.extend(SNAP_LEN.to_le_bytes());
        header.extend(ETHERNET.to_le_bytes());
        file.write_all(&header).with_context(failed)?;
        self.files.push((port, path.to_owned(), file));
        Ok(())
    }

    /// Writes what a run has captured.
    pub(super) fn write(&mut self, run: &mut Run, is_end: bool) -> anyhow::Result<()> {
        if self.files.is_empty() {
            return Ok(());
        }
        for frame in run.take_captured(is_end) {
            for (port, path, file) in &mut self.files {
                if *port == frame.port {
                    let failed = || format!("cannot write {}", path.display());
                    file.write_all(&record(&frame)).with_context(failed)?;
                }
            }
        }
        for (_, path, file) in self.files.iter_mut().filter(|_| is_end) {
            file.flush().with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

fn record(frame: &Captured) -> Vec<u8> {
    let ns = frame.at.as_ns();
    let mut record = Vec::with_capacity(16 + frame.bytes.len());
    for word in
        [(ns / NS_PER_S) as u32, (ns % NS_PER_S) as u32, frame.bytes.len() as u32, frame.len]
    {
        record.extend(word.to_le_bytes());
    }
    record.extend(&frame.bytes);
    record
}
