//! The demo on devices that speak iWARP: messages on TCP connections, as a capture shows them.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use feroce::cm::{Connection, Connector, Listener, Manager};
use feroce::{Access, Device, Mr, QpCap, Remote, SendOp, SendWr, Settings, WcStatus};
use serde_json::{Value, json};

use super::Args;
use crate::decode::{self, IwarpView};
use crate::explain::explain;
use crate::style::{Ink, Style, wrap};

/// Bytes of each message.
const LEN: usize = 5000;

/// A scene: one operation on a connection of its own.
struct Scene {
    name: &'static str,
    title: &'static str,
    story: &'static str,
    play: fn(Connection, Connection) -> anyhow::Result<()>,
}

const ALL: &[Scene] = &[
    Scene {
        name: "send",
        title: "SEND and receive",
        story: "A connects: a TCP connection, and a request and a reply of MPA on it. The empty \
                WRITE tells B that it may send. Then A sends a message, which fills a receive \
                of B.",
        play: send,
    },
    Scene {
        name: "write",
        title: "RDMA WRITE",
        story: "A writes into memory of B, which learns of it only from the SEND that follows. A \
                WRITE is complete when TCP has taken it: no acknowledgement of its own exists.",
        play: write,
    },
    Scene {
        name: "read",
        title: "RDMA READ",
        story: "A asks for memory of B, and names its own memory, where the response goes.",
        play: read,
    },
    Scene {
        name: "refused",
        title: "An access that is not allowed",
        story: "A writes to memory that B does not share. B ends the connection with a TERMINATE \
                that says why; A's program hears that it is disconnected.",
        play: refused,
    },
];

/// Plays the scenes, and shows what the capture of A has of each.
pub(super) fn run(args: &Args, settings: Settings, json: bool) -> anyhow::Result<ExitCode> {
    let is_known = |name: &&String| ALL.iter().all(|scene| scene.name != **name);
    if let Some(unknown) = args.only.iter().find(is_known) {
        let names: Vec<&str> = ALL.iter().map(|scene| scene.name).collect();
        bail!("--only {unknown}: iWARP has no such operation; there are {}", names.join(", "));
    }
    let is_wanted =
        |scene: &&Scene| args.only.is_empty() || args.only.iter().any(|name| name == scene.name);
    let scenes: Vec<&Scene> = ALL.iter().filter(is_wanted).collect();
    let capture = Capture::new(args.pcap.as_deref());
    let results = play_all(&scenes, settings, &capture.path)?;
    let connections = decode::connections(&capture.path)?;
    let is_right = results.iter().all(Result::is_ok);
    let style = Style::for_stdout(args.ascii);
    let mut objects: Vec<Value> = Vec::new();
    for (i, (scene, result)) in scenes.iter().zip(&results).enumerate() {
        let messages = connections.get(i).map(Vec::as_slice).unwrap_or_default();
        let error = result.as_ref().err().map(explain);
        if json {
            let messages: Vec<Value> = messages.iter().map(IwarpView::json).collect();
            objects.push(json!({
                "scene": scene.name, "messages": messages, "ok": result.is_ok(), "error": error,
            }));
            continue;
        }
        println!("{}", style.paint(Ink::Bold, &format!("{}. {}", i + 1, scene.title)));
        for line in wrap(scene.story, style.width) {
            println!("{}", style.finish(&line));
        }
        println!();
        for line in decode::ladder(messages, style) {
            println!("{}", style.finish(&line));
        }
        match error {
            None => println!("{}\n", style.paint(Ink::Good, "as it should be")),
            Some(why) => println!("{}\n", style.paint(Ink::Bad, &why)),
        }
    }
    if json {
        let all = json!({ "transport": "iwarp", "scenes": objects, "ok": is_right });
        println!("{}", serde_json::to_string_pretty(&all)?);
    }
    Ok(ExitCode::from(u8::from(!is_right)))
}

/// Where A's capture goes; removed in the end unless the user named it.
struct Capture {
    path: PathBuf,
    is_kept: bool,
}

impl Capture {
    fn new(path: Option<&Path>) -> Self {
        let name = format!("feroce-demo-{}.pcapng", std::process::id());
        let own = || std::env::temp_dir().join(name);
        Self { path: path.map_or_else(own, Path::to_owned), is_kept: path.is_some() }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Plays scenes between two devices, of which the first captures.
fn play_all(
    scenes: &[&Scene],
    settings: Settings,
    capture: &Path,
) -> anyhow::Result<Vec<anyhow::Result<()>>> {
    let ip = |n| IpAddr::from(Ipv4Addr::new(127, 0, 0, n));
    let manager = |ip, settings| -> anyhow::Result<Manager> {
        let context = Device::at([ip]).open_with(settings).context("cannot open a device")?;
        Ok(Manager::with([context])?)
    };
    let a = manager(ip(1), Settings { pcap: Some(capture.to_owned()), ..settings.clone() })?;
    let b = manager(ip(2), settings)?;
    let listener = Listener::bind(&b, (ip(2), 0).into())?;
    let cap = QpCap::new(16, 16);
    scenes
        .iter()
        .map(|scene| {
            let (near, far) = std::thread::scope(|scope| -> anyhow::Result<_> {
                let accepts = std::thread::Builder::new()
                    .name("demo-b".to_owned())
                    .spawn_scoped(scope, || listener.accept()?.cap(cap).accept())?;
                let near = Connector::new(&a).cap(cap).connect(listener.local_addr())?;
                match accepts.join() {
                    Ok(far) => Ok((near, far?)),
                    Err(_) => bail!("B has not accepted"),
                }
            })?;
            Ok((scene.play)(near, far))
        })
        .collect()
}

/// Memory of an end, filled with a byte.
fn memory(end: &Connection, access: Access, byte: u8) -> anyhow::Result<Mr> {
    let mr = end.pd().alloc_mr(LEN, Access::LOCAL_WRITE | access)?;
    mr.write_at(0, &[byte; LEN])?;
    Ok(mr)
}

fn remote(mr: &Mr) -> Remote {
    Remote { addr: mr.addr(), rkey: mr.rkey() }
}

fn succeeds(cq: &feroce::Cq) -> anyhow::Result<()> {
    let cqe = cq.wait()?;
    ensure!(cqe.status == WcStatus::Success, "a work request failed: {}", cqe.status);
    Ok(())
}

/// The memory has this byte in all its places.
fn holds(mr: &Mr, byte: u8) -> anyhow::Result<()> {
    let mut bytes = [0; LEN];
    mr.read_at(0, &mut bytes)?;
    ensure!(bytes == [byte; LEN], "other bytes are in memory than should be");
    Ok(())
}

fn send(mut a: Connection, mut b: Connection) -> anyhow::Result<()> {
    let (source, target) = (memory(&a, Access::empty(), 7)?, memory(&b, Access::empty(), 0)?);
    b.post_recv([target.recv(1, 0..LEN)])?;
    a.post_send([SendWr::new(1, SendOp::Send, source.data(0..LEN))])?;
    succeeds(a.send_cq())?;
    succeeds(b.recv_cq())?;
    holds(&target, 7)?;
    end(a, &b)
}

fn write(mut a: Connection, mut b: Connection) -> anyhow::Result<()> {
    let (source, target) = (memory(&a, Access::empty(), 8)?, memory(&b, Access::REMOTE_WRITE, 0)?);
    b.post_recv([target.recv(1, 0..0)])?;
    a.post_send([
        SendWr::new(1, SendOp::Write(remote(&target)), source.data(0..LEN)),
        SendWr::new(2, SendOp::Send, source.data(0..0)),
    ])?;
    succeeds(a.send_cq())?;
    succeeds(a.send_cq())?;
    succeeds(b.recv_cq())?;
    holds(&target, 8)?;
    end(a, &b)
}

fn read(mut a: Connection, b: Connection) -> anyhow::Result<()> {
    let (sink, source) = (memory(&a, Access::empty(), 0)?, memory(&b, Access::REMOTE_READ, 9)?);
    a.post_send([SendWr::new(1, SendOp::Read(remote(&source)), sink.data(0..LEN))])?;
    succeeds(a.send_cq())?;
    holds(&sink, 9)?;
    end(a, &b)
}

fn refused(mut a: Connection, b: Connection) -> anyhow::Result<()> {
    let (source, target) = (memory(&a, Access::empty(), 10)?, memory(&b, Access::empty(), 0)?);
    a.post_send([SendWr::new(1, SendOp::Write(remote(&target)), source.data(0..LEN))])?;
    a.wait_disconnected()?;
    b.wait_disconnected()?;
    holds(&target, 0)
}

fn end(a: Connection, b: &Connection) -> anyhow::Result<()> {
    a.disconnect()?;
    Ok(b.wait_disconnected()?)
}
