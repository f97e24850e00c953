//! Active messages of UCX, as `ucx_perftest` measures them: an echo is a message each way.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::{LEN, PATIENCE, Peer, now};

/// Ports of the servers: one of its own for each measurement, because the last one lingers.
const FIRST_PORT: u16 = 18_900;
/// Messages of a measurement.
const MESSAGES: &str = "50000";

/// Microseconds of an echo, the median, over one transport of UCX. `run` numbers the measurements.
#[expect(clippy::disallowed_methods, reason = "it waits for another process")]
pub(crate) fn echo_us(transport: &str, run: u16) -> Result<f64> {
    let port = (FIRST_PORT + run).to_string();
    let command = || {
        let mut command = Command::new("ucx_perftest");
        command.env("UCX_TLS", transport).args(["-p", &port]);
        command.stdin(Stdio::null());
        command
    };
    let quiet = || command().stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let _server = Peer(quiet().context("ucx_perftest is of Debian's ucx-utils")?);
    let begun = now();
    loop {
        let mut client = command();
        client.args(["127.0.0.1", "-t", "ucp_am_lat", "-s", &LEN.to_string()]);
        let output = client.args(["-n", MESSAGES, "-f", "-v"]).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        if let Some(one_way) = column(&said, "50.0_percentile_lat") {
            return Ok(2.0 * one_way);
        }
        ensure!(begun.elapsed() < PATIENCE, "ucx_perftest: {said}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// A column of the last line of `ucx_perftest -f -v`.
fn column(said: &str, name: &str) -> Option<f64> {
    let mut lines = said.lines().filter(|line| line.contains(','));
    let at = lines.next()?.split(',').position(|head| head == name)?;
    lines.next_back()?.split(',').nth(at)?.parse().ok()
}
