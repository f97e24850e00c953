//! The picture.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row as TableRow, Sparkline, Table, TableState};

use super::ladder;
use super::model::{Column, Model, Row};
use crate::inside::units::{bytes, duration, scaled_rate};
use crate::inside::{peer, qp_state, qp_type};

/// Rows of the graph.
const GRAPH: u16 = 4;

/// Columns of the terminal that all columns of queue pairs need, and those that are left out in a
/// narrower one.
const WIDE: u16 = 129;
const WIDE_ONLY: [&str; 3] = ["PROGRAM", "TYPE", "WINDOW"];

/// A column: heading, width, what it sorts by, and what a row has there.
struct Shown {
    name: &'static str,
    width: Constraint,
    sort: Option<Column>,
    cell: fn(&Row) -> String,
}

const fn column(
    name: &'static str,
    width: Constraint,
    sort: Option<Column>,
    cell: fn(&Row) -> String,
) -> Shown {
    Shown { name, width, sort, cell }
}

const DEVICES: [Shown; 11] = [
    column("PID", Constraint::Length(8), Some(Column::Pid), |row| row.pid.to_string()),
    column("PROGRAM", Constraint::Length(16), None, |row| row.program.clone()),
    column("DEVICE", Constraint::Min(10), None, |row| row.device.clone()),
    column("QPS", Constraint::Length(6), None, |row| row.count.to_string()),
    OUT_BITS,
    OUT_MESSAGES,
    column("DIRECT/s", Constraint::Length(9), None, |row| scaled_rate(row.direct)),
    IN_BITS,
    IN_MESSAGES,
    RETRANSMISSIONS,
    column("FAULTS", Constraint::Fill(1), None, |row| row.fault.clone().unwrap_or_default()),
];

const QPS: [Shown; 13] = [
    column("PID", Constraint::Length(8), Some(Column::Pid), |row| row.pid.to_string()),
    column("PROGRAM", Constraint::Length(12), None, |row| row.program.clone()),
    column("QP", Constraint::Length(9), None, |row| {
        row.qp.map_or_else(String::new, |qp| format!("{:#08x}", qp.qpn.get()))
    }),
    column("TYPE", Constraint::Length(7), None, |row| {
        row.qp.as_ref().map_or("", qp_type).to_owned()
    }),
    column("STATE", Constraint::Length(6), None, |row| {
        row.qp.as_ref().map_or_else(String::new, qp_state)
    }),
    column("PEER", Constraint::Min(18), None, |row| row.qp.as_ref().map_or_else(String::new, peer)),
    OUT_BITS,
    OUT_MESSAGES,
    IN_BITS,
    IN_MESSAGES,
    RETRANSMISSIONS,
    column("RTT", Constraint::Length(7), Some(Column::RoundTrip), |row| {
        row.qp.map_or_else(String::new, |qp| duration(qp.rtt_ns))
    }),
    column("WINDOW", Constraint::Length(7), None, |row| {
        row.qp.filter(|qp| qp.window > 0).map_or_else(|| "-".to_owned(), |qp| bytes(qp.window))
    }),
];

const OUT_BITS: Shown = column("OUT-bit/s", Constraint::Length(10), Some(Column::OutBits), |row| {
    scaled_rate(row.out_bits)
});
const OUT_MESSAGES: Shown =
    column("OUT/s", Constraint::Length(7), Some(Column::OutMessages), |row| {
        scaled_rate(row.out_messages)
    });
const IN_BITS: Shown =
    column("IN-bit/s", Constraint::Length(9), Some(Column::InBits), |row| scaled_rate(row.in_bits));
const IN_MESSAGES: Shown = column("IN/s", Constraint::Length(7), Some(Column::InMessages), |row| {
    scaled_rate(row.in_messages)
});
const RETRANSMISSIONS: Shown =
    column("RETRANS/s", Constraint::Length(10), Some(Column::Retransmissions), |row| {
        scaled_rate(row.retransmissions)
    });

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let areas = Layout::vertical([
        Constraint::Length(GRAPH + 1),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .split(frame.area());
    // As many of the newest as there are columns.
    let width = usize::from(areas[0].width);
    let newest = model.history.len().saturating_sub(width);
    let data: Vec<u64> = model.history.iter().skip(newest).copied().collect();
    let now = scaled_rate(data.last().map_or(0.0, |bits| *bits as f64));
    let paused = if model.is_paused { ", paused" } else { "" };
    let title = format!("feroce top: {now}bit/s in and out, all devices{paused}");
    frame.render_widget(Sparkline::default().block(Block::new().title(title)).data(data), areas[0]);
    if model.ladder.is_some() {
        ladder::draw(frame, areas[1], model);
        let keys = "↑↓ older and newer  Esc back  Space pause  q quit";
        frame.render_widget(Line::from(keys).style(Modifier::DIM), areas[2]);
        return;
    }
    model.choose(0);
    let all: &[Shown] = if model.shows_qps { &QPS } else { &DEVICES };
    let is_wide = frame.area().width >= WIDE;
    let fits = |shown: &&Shown| is_wide || !model.shows_qps || !WIDE_ONLY.contains(&shown.name);
    let columns: Vec<&Shown> = all.iter().filter(fits).collect();
    let rows = model.rows();
    let heading = |shown: &&Shown| {
        let is_sorted = shown.sort == Some(model.sort);
        let style = if is_sorted { Modifier::REVERSED } else { Modifier::BOLD };
        Cell::new(shown.name).style(Style::new().add_modifier(style))
    };
    let table = Table::new(
        rows.iter().map(|row| TableRow::new(columns.iter().map(|shown| (shown.cell)(row)))),
        columns.iter().map(|shown| shown.width),
    )
    .header(TableRow::new(columns.iter().map(heading)))
    .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected((!rows.is_empty()).then_some(model.chosen));
    frame.render_stateful_widget(table, areas[1], &mut state);
    if rows.is_empty() {
        let why = if model.shows_qps { "no queue pair" } else { "no open device of this user" };
        let below = areas[1].rows().nth(1).unwrap_or(areas[1]);
        frame.render_widget(Paragraph::new(why).centered(), below);
    }
    let keys =
        "Tab devices/QPs  ←→ sort  r reverse  ↑↓ choose  Enter QPs, packets  Space pause  q quit";
    frame.render_widget(Line::from(keys).style(Modifier::DIM), areas[2]);
}

#[cfg(test)]
mod tests {
    use feroce::watch::Snapshot;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::inside::Look;

    fn look(age_ns: u64, busy: u64) -> Look {
        let device = |pid: u32, bytes: u64| {
            let mut device = Snapshot::default();
            (device.pid, device.device, device.age_ns) = (pid, format!("fe{pid}"), age_ns);
            (device.totals.requests, device.totals.request_bytes) = (bytes / 1000, bytes);
            device
        };
        let programs = [(7, "slow".to_owned()), (8, "busy".to_owned())].into();
        Look { devices: vec![device(7, 1000), device(8, busy)], programs, silent: Vec::new() }
    }

    fn picture(model: &mut Model) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(100, 12)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..100).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..12).map(line).collect()
    }

    #[test]
    fn the_busiest_device_comes_first_and_rates_are_between_looks() {
        let mut model = Model::default();
        model.update(look(1_000_000_000, 4000));
        model.update(look(3_000_000_000, 4000 + 2_500_000));
        let shown = picture(&mut model);
        assert!(shown[0].starts_with("feroce top: 10.0Mbit/s in and out"), "{shown:#?}");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&shown[5])[..3], ["PID", "PROGRAM", "DEVICE"]);
        assert_eq!(words(&shown[6])[..6], ["8", "busy", "fe8", "0", "10.0M", "1250"]);
        assert!(shown[7].starts_with("7        slow"), "{shown:#?}");
        model.sort_by(-1);
        assert!(picture(&mut model)[6].starts_with("7 "), "by process");
        model.is_reversed = true;
        assert!(picture(&mut model)[6].starts_with("8 "), "and reversed");
    }

    #[test]
    fn a_device_can_be_entered_and_left() {
        let mut model = Model::default();
        model.update(look(1, 1));
        model.choose(5);
        model.enter();
        let shown = picture(&mut model);
        assert_eq!(shown[6].trim(), "no queue pair");
        assert!(shown[5].contains("RETRANS/s") && !shown[5].contains("WINDOW"), "{shown:#?}");
        assert_eq!(model.device, Some((8, "fe8".to_owned())));
        assert!(model.leave() && !model.leave());
        assert!(picture(&mut model)[6].starts_with('7'), "equal rates stay in order");
    }
}
