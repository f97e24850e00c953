//! The matrix. A row is a program and its options; a cell is a row with feroce in one of its two
//! forms at one end, the kernel's driver at the other, and a network between them.

use core::fmt;
use std::path::{Path, PathBuf};

use super::driver::Driver;
use super::lab::{Side, in_guest};
use super::ready;
pub(super) use super::rows::{Ending, ROWS, Row};
use super::rows::{SWARM, tool};
use super::siw_rows::SIW_ROWS;
use crate::shell::{packed, target_dir};

/// Our own programs, which are compiled from `interop/`, and what each is linked with.
pub(super) const OWN: [(&str, &[&str]); 7] = [
    ("probe", &["-libverbs"]),
    ("random", &["-libverbs"]),
    (SWARM, &["-libverbs"]),
    ("group", &["-libverbs"]),
    ("caller", &["-lrdmacm", "-libverbs"]),
    (LATE, &["-shared", "-fPIC"]),
    (LINGER, &["-shared", "-fPIC"]),
];

/// What makes a client of ours wait, as some servers of the guest need it.
const LATE: &str = "late";

/// What makes a program of ours wait before it ends a connection, as Soft-iWARP needs it.
const LINGER: &str = "linger";

/// What is at our end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// A command of feroce that does the same.
    Tool,
    /// The same program, with our library in place of the system's.
    DropIn,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Network {
    V4,
    V6,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tool => "command",
            Self::DropIn => "drop-in",
        })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) row: &'static Row,
    pub(super) form: Form,
    pub(super) network: Network,
    /// Who is the server.
    pub(super) server: Side,
}

/// Every form, network and role that a row may have, in the order of the columns of the table.
pub(super) const COLUMNS: [(Form, Network, Side); 8] = [
    (Form::Tool, Network::V4, Side::Kernel),
    (Form::Tool, Network::V4, Side::Ours),
    (Form::Tool, Network::V6, Side::Kernel),
    (Form::Tool, Network::V6, Side::Ours),
    (Form::DropIn, Network::V4, Side::Kernel),
    (Form::DropIn, Network::V4, Side::Ours),
    (Form::DropIn, Network::V6, Side::Kernel),
    (Form::DropIn, Network::V6, Side::Ours),
];

impl Cell {
    /// The cell of a row in a column, if the row has it.
    pub(super) fn at(
        row: &'static Row,
        (form, network, server): (Form, Network, Side),
    ) -> Option<Self> {
        let is_there = row.forms.contains(&form)
            && row.networks.contains(&network)
            && row.servers.contains(&server);
        is_there.then_some(Self { row, form, network, server })
    }

    /// Says which one it is; `--only` looks for a part of it.
    pub(super) fn name(&self) -> String {
        let (options, remark) = (self.row.options, self.row.remark());
        let server = match self.server {
            Side::Kernel => "kernel serves",
            Side::Ours => "kernel calls",
        };
        let name = self.row.name();
        format!("{name} {options}{remark}, {}, {}, {server}", self.form, self.network)
    }

    /// What to run at a side.
    pub(super) fn command(&self, side: Side, port: u16) -> Vec<String> {
        let Row { family, programs, options, .. } = self.row;
        let role = usize::from(side != self.server);
        let program = match OWN.iter().any(|(own, _)| *own == programs[role]) {
            true => own_path(programs[role]),
            false => programs[role].into(),
        };
        let feroce = packed("feroce");
        let waits = role == 1 && family.hasty_client == Some(side);
        let lingers = side == Side::Ours && family.lingers;
        let before = |there: fn(&Path) -> String| {
            let ahead = [waits.then_some(LATE), lingers.then_some(LINGER)];
            let ahead = ahead.into_iter().flatten().map(|one| there(&own_path(one)));
            match ahead.collect::<Vec<_>>().join(":") {
                none if none.is_empty() => none,
                ahead => format!("env LD_PRELOAD={ahead}"),
            }
        };
        let start = match (side, self.form) {
            (Side::Kernel, _) if self.row.is_ours_there => {
                let there = format!("{} --backend rdma-core", in_guest(&feroce));
                format!("{there} {} {}", tool(programs[role]), family.tool)
            }
            (Side::Kernel, _) if program.is_absolute() => in_guest(&program),
            (Side::Kernel, _) => format!("{} {}", before(in_guest), program.display()),
            (Side::Ours, Form::Tool) => {
                format!("{} {} {}", feroce.display(), tool(programs[role]), family.tool)
            }
            (Side::Ours, Form::DropIn) => {
                let before = before(|path| path.display().to_string());
                format!("{} run -- {before} {}", feroce.display(), program.display())
            }
        };
        let words = format!("{} {options} {}", family.both, family.roles[role]);
        let line = format!("{start} {}", self.filled_in(&words, side, port));
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// The words of a family, with what they stand for.
    fn filled_in(&self, words: &str, side: Side, port: u16) -> String {
        let device = match side {
            Side::Kernel => self.row.driver.device(),
            Side::Ours => "feroce0",
        };
        words
            .replace("%s", self.server.address(self.network))
            .replace("%c", self.server.other().address(self.network))
            .replace("%m", self.server.address(Network::V4))
            .replace("%p", &port.to_string())
            .replace("%d", device)
            .replace("%g", &self.gid_index(side).to_string())
            .replace("%G", &ready::group(self.network, port))
    }

    /// Where the address is in the table of the device. That of the kernel begins with an address
    /// that it makes from the one of the interface.
    fn gid_index(&self, side: Side) -> u8 {
        let ours = match self.network {
            Network::V4 => 0,
            Network::V6 => 1,
        };
        if side == Side::Kernel { ours + 1 } else { ours }
    }
}

/// Where a program of our own is built.
pub(super) fn own_path(program: &str) -> PathBuf {
    target_dir().join("interop").join(program)
}

/// The seeds whose programs are run.
pub(super) fn seeds() -> impl Iterator<Item = &'static str> {
    ROWS.iter().filter(|row| row.programs[0] == SWARM).map(|row| row.options)
}

/// The rows with a driver at the other end.
pub(super) fn rows(driver: Driver) -> &'static [Row] {
    match driver {
        Driver::Rxe => ROWS,
        Driver::Siw => SIW_ROWS,
    }
}

/// Every cell with a driver at the other end, row by row.
pub(super) fn all(driver: Driver) -> Vec<Cell> {
    rows(driver).iter().flat_map(of_row).collect()
}

/// A quarter of them: every row in one or two of its columns, and every column with some rows.
pub(super) fn sample(driver: Driver) -> Vec<Cell> {
    let rows = rows(driver).iter().enumerate();
    rows.flat_map(|(index, row)| {
        let cells = of_row(row);
        let shift = index % cells.len().clamp(1, 4);
        cells.into_iter().skip(shift).step_by(4)
    })
    .collect()
}

fn of_row(row: &'static Row) -> Vec<Cell> {
    COLUMNS.iter().filter_map(|column| Cell::at(row, *column)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_cell_has_a_name_of_its_own() {
        for driver in [Driver::Rxe, Driver::Siw] {
            let cells = all(driver);
            let names: BTreeSet<String> = cells.iter().map(Cell::name).collect();
            assert_eq!(names.len(), cells.len());
        }
    }

    #[test]
    fn a_sample_has_every_row_and_every_column() {
        let cells = sample(Driver::Rxe);
        assert!(cells.len() < all(Driver::Rxe).len() / 3, "{}", cells.len());
        let rows: BTreeSet<String> = cells.iter().map(|cell| cell.row.name()).collect();
        assert!(ROWS.iter().all(|row| rows.contains(&row.name())));
        let is_there = |column: &(Form, Network, Side)| {
            let (form, network, server) = *column;
            let is_it = |cell: &&Cell| {
                cell.form == form && cell.network == network && cell.server == server
            };
            cells.iter().filter(is_it).count() >= 3
        };
        assert!(COLUMNS.iter().all(is_there));
    }

    #[test]
    fn both_ends_agree_on_everything_but_who_calls() {
        let cell =
            Cell { row: &ROWS[0], form: Form::DropIn, network: Network::V6, server: Side::Ours };
        let kernel = cell.command(Side::Kernel, 5).join(" ");
        assert_eq!(kernel, "ibv_rc_pingpong -d rxe0 -g 2 -p 5 -c -n 20 -m 1024 -s 1025 10.91.0.1");
        let ours = cell.command(Side::Ours, 5).join(" ");
        let rest = "feroce run -- ibv_rc_pingpong -d feroce0 -g 1 -p 5 -c -n 20 -m 1024 -s 1025";
        assert!(ours.ends_with(rest), "{ours}");
        assert_eq!(cell.row.says(), "20 iters in");
    }

    #[test]
    fn nothing_is_left_to_be_filled_in() {
        for cell in [all(Driver::Rxe), all(Driver::Siw)].concat() {
            for side in [Side::Kernel, Side::Ours] {
                let line = cell.command(side, 5).join(" ");
                assert!(!line.contains('%'), "{line}");
            }
            assert!(!cell.row.says().contains('%'));
        }
    }

    #[test]
    fn commands_of_ours_are_called_after_their_models() {
        let pairs = [("ibv_rc_pingpong", "rc-pingpong"), ("rdma_client", "client")];
        assert!(pairs.iter().all(|(theirs, ours)| tool(theirs) == *ours));
    }
}
