//! Frames over TCP: what a program writes that wants calls and no library.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream, tcp};
use tokio::sync::{mpsc, oneshot};

use super::BLOB;

pub(super) const ECHO: u8 = 1;
pub(super) const FETCH: u8 = 2;

/// A length, a number and what to do are in front of the body.
fn frame(number: u32, op: u8, body: &[u8]) -> Result<Vec<u8>> {
    let mut frame = Vec::with_capacity(9 + body.len());
    frame.extend(u32::try_from(body.len())?.to_be_bytes());
    frame.extend(number.to_be_bytes());
    frame.push(op);
    frame.extend(body);
    Ok(frame)
}

async fn read(from: &mut BufReader<tcp::OwnedReadHalf>) -> Result<(u32, u8, Vec<u8>)> {
    let len = from.read_u32().await?;
    let (number, op) = (from.read_u32().await?, from.read_u8().await?);
    let mut body = vec![0; len as usize];
    from.read_exact(&mut body).await?;
    Ok((number, op, body))
}

/// Writes frames; those that wait are written together.
async fn write(mut to: tcp::OwnedWriteHalf, mut frames: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(mut bytes) = frames.recv().await {
        while bytes.len() < 1 << 16
            && let Ok(more) = frames.try_recv()
        {
            bytes.extend(more);
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

pub(super) async fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let blob = vec![1; BLOB];
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    let (from, to) = stream.into_split();
    let (sender, frames) = mpsc::unbounded_channel();
    tokio::spawn(write(to, frames));
    let mut from = BufReader::with_capacity(1 << 16, from);
    // Until the client has gone.
    while let Ok((number, op, body)) = read(&mut from).await {
        let reply = if op == FETCH { &blob } else { &body };
        sender.send(frame(number, op, reply)?)?;
    }
    Ok(())
}

#[derive(Default)]
struct Calls {
    waiting: HashMap<u32, oneshot::Sender<Vec<u8>>>,
    next: u32,
}

#[derive(Clone)]
pub(super) struct Client {
    frames: mpsc::UnboundedSender<Vec<u8>>,
    calls: Arc<Mutex<Calls>>,
}

impl Client {
    pub(super) async fn connect(to: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        let (from, to) = stream.into_split();
        let (frames, receiver) = mpsc::unbounded_channel();
        tokio::spawn(write(to, receiver));
        let calls: Arc<Mutex<Calls>> = Arc::default();
        let there = Arc::clone(&calls);
        tokio::spawn(async move {
            let mut from = BufReader::with_capacity(1 << 16, from);
            while let Ok((number, _, body)) = read(&mut from).await {
                let mut calls = there.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(caller) = calls.waiting.remove(&number) {
                    // A caller that is gone does not want it.
                    let _ = caller.send(body);
                }
            }
        });
        Ok(Self { frames, calls })
    }

    pub(super) async fn call(&self, op: u8, body: &[u8]) -> Result<Vec<u8>> {
        let (sender, receiver) = oneshot::channel();
        let number = {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            calls.next = calls.next.wrapping_add(1);
            let number = calls.next;
            calls.waiting.insert(number, sender);
            number
        };
        self.frames.send(frame(number, op, body)?)?;
        receiver.await.context("the connection has ended")
    }
}
