//! The packets of a queue pair, from top to bottom.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Paragraph, Wrap};

use super::model::{Model, Row};
use crate::inside::units::scaled_rate;
use crate::inside::{packets, peer, qp_state, qp_type};
use crate::ladder::Ladder;
use crate::style::{Ink, Style as Width};

/// Columns that the ladder fills: the fewest that it can, and the most that are easy to read.
const WIDTHS: (u16, u16) = (60, 110);

/// Draws the packets of the queue pair that was chosen, the newest at the bottom.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &mut Model) {
    let row = model.ladder_row().cloned();
    let Some(of) = &mut model.ladder else { return };
    let areas = Layout::vertical([Constraint::Length(2), Constraint::Min(1)]).split(area);
    let name = format!("QP {:#08x} of {}, process {}", of.qpn.get(), of.device, of.pid);
    let qp = row.as_ref().and_then(|row| row.qp);
    let state = qp.map_or_else(String::new, |qp| {
        format!(": {} {}, peer {}", qp_type(&qp), qp_state(&qp), peer(&qp))
    });
    let title = Line::from(format!("{name}{state}")).style(Modifier::BOLD);
    let note = Line::from(note(row.as_ref())).style(Modifier::DIM);
    frame.render_widget(Text::from(vec![title, note]), areas[0]);
    let packets = match &of.packets {
        Ok(packets) => packets,
        Err(why) => return say(frame, areas[1], why),
    };
    if let Some(why) = &packets.refusal {
        return say(frame, areas[1], why);
    }
    if packets.packets.is_empty() {
        return say(frame, areas[1], "waiting for packets");
    }
    let width = areas[1].width.clamp(WIDTHS.0, WIDTHS.1);
    let ladder = Ladder::without_events(Width::plain(width.into()));
    let lines = packets::lines(&ladder, packets);
    let height = usize::from(areas[1].height);
    of.scrolled = of.scrolled.min(lines.len().saturating_sub(height));
    let end = lines.len() - of.scrolled;
    let shown = lines.into_iter().take(end).skip(end.saturating_sub(height));
    let shown = shown.map(|(ink, line)| Line::from(line).style(style(ink)));
    frame.render_widget(Text::from(shown.collect::<Vec<_>>()), areas[1]);
}

fn note(row: Option<&Row>) -> String {
    let direct = row.map_or(0.0, |row| row.direct);
    if direct > 0.0 {
        return format!(
            "{} requests/s are executed in the memory of a process of this host, without packets",
            scaled_rate(direct)
        );
    }
    "this queue pair is on the left; times are since the oldest packet that is remembered"
        .to_owned()
}

fn say(frame: &mut Frame<'_>, area: Rect, text: &str) {
    frame.render_widget(Paragraph::new(text).centered().wrap(Wrap { trim: true }), area);
}

fn style(ink: Ink) -> Style {
    match ink {
        Ink::Request => Style::new().fg(Color::Cyan),
        Ink::Answer => Style::new().fg(Color::Green),
        Ink::Bad => Style::new().fg(Color::Red),
        _ => Style::new(),
    }
}
