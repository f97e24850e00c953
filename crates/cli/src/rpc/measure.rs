//! The calls, and how long they take.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use feroce::cm::Manager;
use feroce_rpc::patterns::{Caller, Pattern};

use super::report::Row;
use super::store::{CPU, LONGEST};
use super::task::Task;
use crate::perf::{Sample, clock};
use crate::stop;

/// How many calls to make.
#[derive(Clone, Copy, Debug)]
pub(super) enum Amount {
    Calls(u64),
    Time(Duration),
}

/// Connects by a pattern.
pub(super) fn connect(
    manager: &Manager,
    to: SocketAddr,
    pattern: Pattern,
) -> anyhow::Result<Caller> {
    Caller::connect(manager, to, pattern, LONGEST)
        .with_context(|| format!("cannot connect to {to}: start `feroce rpc bench` there first"))
}

/// Processor time of the server so far, in seconds.
fn peer_cpu_s(end: &mut Caller) -> anyhow::Result<f64> {
    let reply = end.call(&[CPU])?;
    let ns = reply.try_into().context("the server does not tell its processor time")?;
    Ok(u64::from_be_bytes(ns) as f64 / 1e9)
}

/// Makes the calls of one task.
pub(super) fn run(
    end: &mut Caller,
    pattern: Pattern,
    task: Task,
    amount: Amount,
) -> anyhow::Result<Row> {
    let mut request = Vec::new();
    let mut call = |end: &mut Caller, i| -> anyhow::Result<Duration> {
        task.request(i, &mut request);
        let begin = clock::now();
        let reply = end.call(&request)?;
        let took = clock::now() - begin;
        ensure!(task.is_answered(i, reply), "{pattern}: the reply to call {i} is wrong");
        Ok(took)
    };
    for i in 0..16 {
        call(end, i)?;
    }
    let peer_before = peer_cpu_s(end)?;
    let (begin, cpu_before) = (clock::now(), clock::cpu_s());
    let mut sample = Sample::new();
    let mut calls = 0;
    let is_over = |calls: u64| match amount {
        Amount::Calls(n) => calls >= n,
        Amount::Time(time) => calls > 0 && clock::now() - begin >= time,
    };
    while !is_over(calls) && !stop::requested() {
        sample.record(clock::nanos(call(end, calls)?));
        calls += 1;
    }
    let elapsed_s = (clock::now() - begin).as_secs_f64();
    let cpu_s = clock::cpu_s() - cpu_before;
    let peer_cpu_s = peer_cpu_s(end)? - peer_before;
    Ok(Row::new(pattern, task, calls, elapsed_s, (cpu_s, peer_cpu_s), &sample))
}
