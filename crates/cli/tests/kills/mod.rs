//! Targets and hosts that are killed at any moment, and power that is lost: what a host was told
//! to be written is there afterwards, and nothing else.
//!
//! The targets are `feroce disk serve`, the host is this program again (see `writer`). Seeds decide
//! who is killed and after how much work or time; processes run in real time, so a run with the
//! same seed is similar and not the same. `cargo xtask disks --kills N` runs more of it.

mod blocks;
mod journal;
mod power;
mod writer;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::park_timeout;
use std::time::Duration;

use blocks::{Random, SIZE};
use journal::{End, Journal, Line, Model};
use power::FileSystem;

/// How many processes to kill.
const KILLS: &str = "FEROCE_TEST_DISK_KILLS";

/// How often the power is lost.
const POWER: &str = "FEROCE_TEST_DISK_POWER";

/// First seed.
const SEED: &str = "FEROCE_SEED";

/// Where the targets are.
const TARGETS: [&str; 2] = ["127.33.8.1:4420", "127.33.8.2:4420"];

/// Longest that the host may make no progress.
const LIMIT: Duration = Duration::from_secs(120);

const PAUSE: Duration = Duration::from_millis(1);

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

/// Not a test by itself: the code that host processes run.
#[test]
fn writer_process() {
    if let Ok(role) = std::env::var(writer::ROLE) {
        writer::run(&role);
    }
}

#[test]
fn no_acknowledged_write_is_lost_when_processes_are_killed() {
    let (kills, seed) = (number(KILLS, 10), number(SEED, 1));
    let folder = Folder::make("kills");
    let mut campaign = Campaign::new(&folder.0, &folder.0);
    let mut epochs = 0;
    while campaign.kills < kills {
        campaign.epoch(seed + epochs, End::Killed, None);
        epochs += 1;
    }
    let Campaign { kills, model, .. } = campaign;
    eprintln!("{kills} kills, {epochs} checks: {:?}", model.counts);
    assert!(model.counts.acknowledged > 0 && model.counts.flushes > 0, "{:?}", model.counts);
}

/// Without a number this does nothing: it mounts file systems.
#[test]
fn no_flushed_write_is_lost_when_the_power_is() {
    let (losses, seed) = (number(POWER, 0), number(SEED, 1));
    if losses == 0 {
        return;
    }
    let folder = Folder::make("power");
    let file_system = FileSystem::make(&folder.0);
    let mut campaign = Campaign::new(&folder.0, file_system.folder());
    for epoch in 0..losses {
        campaign.epoch(seed + epoch, End::PowerLoss, Some(&file_system));
    }
    let counts = campaign.model.counts;
    eprintln!("{losses} power losses, {} kills: {counts:?}", campaign.kills);
    // If none is taken back, the power was not lost.
    assert!(counts.flushes > 0 && (losses < 10 || counts.taken_back > 0), "{counts:?}");
}

/// A folder that is removed when this is dropped, unless the test fails.
struct Folder(PathBuf);

impl Folder {
    fn make(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("feroce-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // What is left is in the folder of temporary files.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// A process, which is killed when this is dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().expect("it starts"))
    }

    /// Kills it, and waits until it is gone.
    fn kill(mut self) {
        let ended = self.0.try_wait().expect("a state");
        assert!(ended.is_none(), "a process has ended by itself: {ended:?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processes that are killed, time after time, and a disk that is checked between.
struct Campaign {
    image: PathBuf,
    journal: PathBuf,
    copy: PathBuf,
    model: Model,
    kills: u64,
}

/// The processes of a time, and what they note.
struct Running<'a> {
    image: &'a Path,
    path: &'a Path,
    journal: Journal,
    addresses: &'a [&'a str],
    targets: Vec<Option<Process>>,
    host: Option<Process>,
    /// Targets and hosts that were started.
    started: (u64, u64),
    seed: u64,
    end: End,
}

impl Campaign {
    /// A disk in a folder, beside which there is another for notes.
    fn new(folder: &Path, disks: &Path) -> Self {
        let image = disks.join("disk.img");
        std::fs::write(&image, vec![0; SIZE as usize]).expect("an image");
        let this = Self {
            image,
            journal: folder.join("journal"),
            copy: folder.join("copy"),
            model: Model::new(),
            kills: 0,
        };
        this.sync();
        this
    }

    /// What is there now will not be taken back.
    fn sync(&self) {
        File::open(&self.image).and_then(|file| file.sync_all()).expect("an image on its disk");
    }

    /// Some kills, until all processes have ended; then the disk is compared.
    fn epoch(&mut self, seed: u64, end: End, power: Option<&FileSystem>) {
        let mut random = Random::new(seed);
        let _ = std::fs::remove_file(&self.journal);
        let journal = Journal::open(&self.journal);
        self.model.begin(&journal);
        // One target, or two that share the disk.
        let count = if random.below(3) == 0 { 2 } else { 1 };
        let mut running = Running {
            image: &self.image,
            path: &self.journal,
            journal,
            addresses: &TARGETS[..count],
            targets: (0..count).map(|_| None).collect(),
            host: None,
            started: (0, 0),
            seed,
            end,
        };
        (0..count).for_each(|i| running.start_target(i));
        running.start_host();
        for _ in 0..random.below(5) {
            running.wait(&mut random);
            // A target that is not restarted could execute commands of a dead host at any later
            // time. With one target the checker knows until when.
            if count == 1 && random.below(3) == 0 {
                running.kill_host();
                running.start_host();
            } else {
                let which = random.below(count as u64) as usize;
                running.kill_target(which);
                park_timeout(Duration::from_micros(random.below(20_000)));
                running.start_target(which);
            }
            self.kills += 1;
        }
        running.wait(&mut random);
        if let Some(file_system) = power {
            file_system.lose_power();
        }
        self.kills += 1 + count as u64;
        running.end(random.below(2) == 0);
        drop(running);
        power.into_iter().for_each(FileSystem::restore);
        self.check(seed, end);
    }

    fn check(&mut self, seed: u64, end: End) {
        let lines = journal::read(&self.journal);
        let disk = std::fs::read(&self.image).expect("the image");
        if let Err(e) = self.model.check(&lines, &disk, end) {
            panic!("seed {seed}: {e}\nthe journal is {}", self.journal.display());
        }
        self.sync();
        // A new target has the same bytes.
        let target = Process::start(&mut serve(&self.image, TARGETS[0]));
        let mut read = Command::new(env!("CARGO_BIN_EXE_feroce"));
        read.args(["disk", "read", TARGETS[0], "--patience", "120", "-o"]).arg(&self.copy);
        read.args(["--nqn", "nqn.2026-11.feroce:disks"]);
        assert!(read.status().expect("feroce starts").success(), "seed {seed}");
        target.kill();
        let copy = std::fs::read(&self.copy).expect("a copy");
        assert!(copy == disk, "seed {seed}: a target reads other bytes than its file has");
    }
}

fn serve(image: &Path, at: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feroce"));
    command.args(["disk", "serve", "--shared", "--listen", at]).arg(image);
    command.stdout(Stdio::null());
    command
}

impl Running<'_> {
    fn start_target(&mut self, which: usize) {
        self.started.0 += 1;
        self.journal.note(Line::Target(self.started.0));
        let process = Process::start(&mut serve(self.image, self.addresses[which]));
        self.targets[which] = Some(process);
    }

    fn kill_target(&mut self, which: usize) {
        self.targets[which].take().into_iter().for_each(Process::kill);
    }

    fn start_host(&mut self) {
        self.started.1 += 1;
        let number = self.started.1;
        self.journal.note(Line::Host(number));
        let seed = self.seed << 8 | number;
        let role = writer::role(self.addresses, self.path, seed, number == 1);
        let mut command = Command::new(std::env::current_exe().expect("we run"));
        command.args(["--exact", "kills::writer_process", "--nocapture"]);
        command.env(writer::ROLE, role).stdout(Stdio::null());
        if self.end == End::PowerLoss {
            // Commands fail when the power is lost.
            command.stderr(Stdio::null());
        }
        self.host = Some(Process::start(&mut command));
    }

    fn kill_host(&mut self) {
        self.host.take().into_iter().for_each(Process::kill);
        self.journal.note(Line::Dead(self.started.1));
    }

    /// Waits for an amount of work or of time.
    fn wait(&mut self, random: &mut Random) {
        if random.below(3) == 0 {
            return park_timeout(Duration::from_micros(random.below(60_000)));
        }
        let length = || std::fs::metadata(self.path).map_or(0, |file| file.len());
        let goal = length() + random.below(4000);
        for _ in 0..LIMIT.as_millis() {
            if length() >= goal {
                return;
            }
            let host = self.host.as_mut().and_then(|host| host.0.try_wait().expect("a state"));
            assert!(host.is_none(), "seed {}: the host has ended: {host:?}", self.seed);
            park_timeout(PAUSE);
        }
        panic!("seed {}: the host makes no progress", self.seed);
    }

    /// Ends all processes.
    fn end(&mut self, host_first: bool) {
        if self.end == End::PowerLoss {
            // Writes fail now, so the host may have ended by itself.
            drop(self.host.take());
            return self.targets.clear();
        }
        if host_first {
            self.kill_host();
        }
        (0..self.targets.len()).for_each(|which| self.kill_target(which));
        if !host_first {
            self.kill_host();
        }
    }
}
