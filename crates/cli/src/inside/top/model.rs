//! What `feroce top` shows: rates between two looks, sorted.

use std::collections::VecDeque;

use feroce::watch::{self, Packets, QpSnapshot, Snapshot};
use feroce::{QpCounters, Qpn};

use crate::inside::Look;

/// How many totals are remembered, for the graph.
const HISTORY: usize = 240;

/// The state of the view.
#[derive(Default)]
pub(super) struct Model {
    look: Option<Look>,
    devices: Vec<Row>,
    qps: Vec<Row>,
    /// Bits per second of all devices, out and in, the newest last.
    pub(super) history: VecDeque<u64>,
    pub(super) shows_qps: bool,
    /// Show the queue pairs of this device alone.
    pub(super) device: Option<(u32, String)>,
    pub(super) sort: Column,
    pub(super) is_reversed: bool,
    pub(super) is_paused: bool,
    pub(super) chosen: usize,
    /// The queue pair whose packets are shown.
    pub(super) ladder: Option<LadderOf>,
}

/// The packets of a queue pair.
#[derive(Debug)]
pub(super) struct LadderOf {
    pub(super) pid: u32,
    pub(super) device: String,
    pub(super) qpn: Qpn,
    /// What was found, or why there is nothing.
    pub(super) packets: Result<Packets, String>,
    /// How many lines the picture is above the newest.
    pub(super) scrolled: usize,
}

/// A device or a queue pair.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Row {
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) device: String,
    /// The faults of the device.
    pub(super) fault: Option<String>,
    /// How many queue pairs a device has.
    pub(super) count: usize,
    pub(super) qp: Option<QpSnapshot>,
    /// Per second.
    pub(super) out_bits: f64,
    pub(super) out_messages: f64,
    pub(super) direct: f64,
    pub(super) in_bits: f64,
    pub(super) in_messages: f64,
    pub(super) retransmissions: f64,
}

/// What rows are sorted by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Column {
    Pid,
    #[default]
    OutBits,
    OutMessages,
    InBits,
    InMessages,
    Retransmissions,
    RoundTrip,
}

const COLUMNS: [Column; 7] = [
    Column::Pid,
    Column::OutBits,
    Column::OutMessages,
    Column::InBits,
    Column::InMessages,
    Column::Retransmissions,
    Column::RoundTrip,
];

impl Model {
    /// Takes a new look: rates are since the last one.
    pub(super) fn update(&mut self, look: Look) {
        let before = self.look.take();
        let (mut devices, mut qps) = (Vec::new(), Vec::new());
        let mut bits = 0.0;
        for device in &look.devices {
            let same = |then: &&Snapshot| {
                (then.pid, &then.device) == (device.pid, &device.device)
                    && then.age_ns < device.age_ns
            };
            // The first look at a device shows no rates: the time before it may be long.
            let then = before.as_ref().and_then(|look| look.devices.iter().find(same));
            let seconds = then.map_or(0.0, |then| (device.age_ns - then.age_ns) as f64 / 1e9);
            let base = Row::new(look.program(device), device);
            let row = base.with(&device.totals, then.map(|then| &then.totals), seconds);
            bits += row.out_bits + row.in_bits;
            devices.push(row);
            for qp in &device.qps {
                let was = then.and_then(|then| then.qps.iter().find(|was| was.qpn == qp.qpn));
                let was = was.map(|was| &was.counters);
                // What began since the last look has counted from zero.
                let zero = then.map(|_| QpCounters::default());
                let row = base.with(&qp.counters, was.or(zero.as_ref()), seconds);
                qps.push(Row { qp: Some(*qp), ..row });
            }
        }
        if before.is_some() {
            self.history.push_back(bits as u64);
        }
        while self.history.len() > HISTORY {
            self.history.pop_front();
        }
        (self.devices, self.qps, self.look) = (devices, qps, Some(look));
    }

    /// The rows to show, in order.
    pub(super) fn rows(&self) -> Vec<&Row> {
        let all = if self.shows_qps { &self.qps } else { &self.devices };
        let is_meant = |row: &&Row| {
            let only = self.device.as_ref().filter(|_| self.shows_qps);
            only.is_none_or(|(pid, device)| row.pid == *pid && row.device == *device)
        };
        let mut rows: Vec<&Row> = all.iter().filter(is_meant).collect();
        let key = |row: &Row| match self.sort {
            // The lowest first.
            Column::Pid => -f64::from(row.pid),
            Column::OutBits => row.out_bits,
            Column::OutMessages => row.out_messages,
            Column::InBits => row.in_bits,
            Column::InMessages => row.in_messages,
            Column::Retransmissions => row.retransmissions,
            Column::RoundTrip => row.qp.map_or(0.0, |qp| qp.rtt_ns as f64),
        };
        rows.sort_by(|a, b| key(b).total_cmp(&key(a)));
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }

    pub(super) fn sort_by(&mut self, step: isize) {
        let at = COLUMNS.iter().position(|column| *column == self.sort).unwrap_or(0);
        let at = at.saturating_add_signed(step).min(COLUMNS.len() - 1);
        self.sort = COLUMNS[at];
    }

    /// Asks for the packets that are shown, if any are.
    pub(super) fn update_ladder(&mut self) {
        let Some(ladder) = &mut self.ladder else { return };
        let devices = self.look.iter().flat_map(|look| &look.devices);
        let found = devices
            .filter(|device| (device.pid, &device.device) == (ladder.pid, &ladder.device))
            .find(|device| device.qps.iter().any(|qp| qp.qpn == ladder.qpn));
        ladder.packets = match found {
            Some(device) => watch::packets(device, ladder.qpn).map_err(|e| e.to_string()),
            None => Err("the queue pair does not exist any more".to_owned()),
        };
    }

    /// The row of the queue pair whose packets are shown.
    pub(super) fn ladder_row(&self) -> Option<&Row> {
        let of = self.ladder.as_ref()?;
        self.qps.iter().find(|row| {
            (row.pid, &row.device) == (of.pid, &of.device)
                && row.qp.is_some_and(|qp| qp.qpn == of.qpn)
        })
    }

    pub(super) fn choose(&mut self, step: isize) {
        if let Some(ladder) = &mut self.ladder {
            ladder.scrolled = ladder.scrolled.saturating_add_signed(-step);
            return;
        }
        let last = self.rows().len().saturating_sub(1);
        self.chosen = self.chosen.saturating_add_signed(step).min(last);
    }

    pub(super) fn change_view(&mut self) {
        self.ladder = None;
        (self.shows_qps, self.device, self.chosen) = (!self.shows_qps, None, 0);
    }

    /// Shows the queue pairs of the chosen device alone, or the packets of the chosen queue pair.
    pub(super) fn enter(&mut self) {
        let rows = self.rows();
        let Some(&row) = rows.get(self.chosen) else { return };
        let (pid, device) = (row.pid, row.device.clone());
        match row.qp {
            None => (self.shows_qps, self.device, self.chosen) = (true, Some((pid, device)), 0),
            Some(_) if self.ladder.is_some() => {}
            Some(QpSnapshot { qpn, .. }) => {
                let packets = Ok(Packets::default());
                self.ladder = Some(LadderOf { pid, device, qpn, packets, scrolled: 0 });
                // The device begins to record.
                self.update_ladder();
            }
        }
    }

    /// Goes back to where the user came from. False: to leave the program.
    pub(super) fn leave(&mut self) -> bool {
        if self.ladder.take().is_some() {
            return true;
        }
        let was_inside = self.device.take().is_some();
        if was_inside {
            (self.shows_qps, self.chosen) = (false, 0);
        }
        was_inside
    }
}

impl Row {
    fn new(program: &str, device: &Snapshot) -> Self {
        Self {
            pid: device.pid,
            program: program.to_owned(),
            device: device.device.clone(),
            fault: device.fault.clone(),
            count: device.qps.len(),
            qp: None,
            out_bits: 0.0,
            out_messages: 0.0,
            direct: 0.0,
            in_bits: 0.0,
            in_messages: 0.0,
            retransmissions: 0.0,
        }
    }

    /// The same with the rates between two states of its counters.
    fn with(&self, now: &QpCounters, was: Option<&QpCounters>, seconds: f64) -> Self {
        let Some(was) = was.filter(|_| seconds > 0.0) else { return self.clone() };
        let rate = |of: fn(&QpCounters) -> u64| of(now).saturating_sub(of(was)) as f64 / seconds;
        Self {
            out_bits: 8.0 * rate(|c| c.request_bytes),
            out_messages: rate(|c| c.requests),
            direct: rate(|c| c.direct_requests),
            in_bits: 8.0 * rate(|c| c.served_bytes),
            in_messages: rate(|c| c.served),
            retransmissions: rate(|c| c.retransmissions),
            ..self.clone()
        }
    }
}
