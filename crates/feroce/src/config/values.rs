//! The values of single settings.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use feroce_link::parse_size;

use super::{Lint, Wrong};

/// Most shards of a device: each has one of the 255 slots that the processes of a user share.
const MOST_SHARDS: u8 = 16;

/// The last processor that the C library's sets can have.
const LAST_PROCESSOR: u16 = 1023;

/// A device name that is valid as the name of a directory in sysfs.
pub(super) fn name(value: &str) -> Result<String, Wrong> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let is_good = value.len() < 60 && value.starts_with(|c: char| c.is_ascii_alphanumeric());
    if is_good && value.chars().all(fits) {
        return Ok(value.to_owned());
    }
    Err("letters, digits and `_-.`, fewer than 60".into())
}

/// Parses devices separated by semicolons, with the addresses of each separated by commas.
pub(super) fn addresses(value: &str) -> Result<Vec<Vec<IpAddr>>, Wrong> {
    let address = |text: &str| text.trim().parse().map_err(|_| format!("{text:?} is no address"));
    value.split(';').map(|device| device.split(',').map(address).collect()).collect()
}

/// The file of a capture. Standard output is the program's.
pub(super) fn capture(value: &str) -> Result<PathBuf, Wrong> {
    match value {
        "-" => {
            Err("the program writes to standard output: name a file, or a FIFO (`mkfifo`) that \
                    another program reads"
                .to_owned())
        }
        file => Ok(file.into()),
    }
}

/// A number of bytes, with K, M or G for powers of 1024.
pub(super) fn bytes<T: TryFrom<u64>>(value: &str) -> Result<T, Wrong> {
    let bytes = parse_size(&value.replace('_', ""));
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| "expected a number of bytes, such as 262144, 256K or 8M".into())
}

pub(super) fn lint(value: &str) -> Result<Lint, Wrong> {
    match (value, switch(value)) {
        ("error", _) => Ok(Lint::Error),
        (_, Ok(true)) => Ok(Lint::Warn),
        (_, Ok(false)) => Ok(Lint::Off),
        _ => Err("expected 1, 0 or error".into()),
    }
}

pub(super) fn number<T: FromStr>(value: &str) -> Result<T, Wrong> {
    value.replace('_', "").parse().map_err(|_| "expected a number in range".into())
}

pub(super) fn switch(value: &str) -> Result<bool, Wrong> {
    match value {
        "1" | "on" | "yes" | "true" => Ok(true),
        "0" | "off" | "no" | "false" => Ok(false),
        _ => Err("expected 1 or 0".into()),
    }
}

/// How many shards a device has; 0 stands for `auto`.
pub(super) fn shards(value: &str) -> Result<u8, Wrong> {
    if value == "auto" {
        return Ok(0);
    }
    let count = value.parse().ok().filter(|count| (1..=MOST_SHARDS).contains(count));
    count.ok_or_else(|| format!("expected a number from 1 to {MOST_SHARDS}, or auto"))
}

/// The processors on which threads of shards run, in turn; none for `any`.
pub(super) fn affinity(value: &str) -> Result<Vec<u16>, Wrong> {
    if value == "any" {
        return Ok(Vec::new());
    }
    let number = |text: &str| {
        let number = text.trim().parse().ok().filter(|number| *number <= LAST_PROCESSOR);
        number.ok_or_else(|| {
            format!("expected any, or processors from 0 to {LAST_PROCESSOR} such as 2-5 or 0,2")
        })
    };
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Ok((number(first)?..=number(last)?).collect::<Vec<u16>>())
    };
    let ranges = value.split(',').map(range).collect::<Result<Vec<_>, Wrong>>()?;
    match ranges.iter().any(Vec::is_empty) {
        true => Err("expected ranges from a lower number to a higher one, such as 2-5".into()),
        false => Ok(ranges.concat()),
    }
}

/// The users whose portd may receive, beside root and the own user.
pub(super) fn portd(value: &str) -> Result<Option<Vec<u32>>, Wrong> {
    let users =
        |value: &str| value.split(',').map(|user| user.trim().parse()).collect::<Result<_, _>>();
    let why = |_: std::num::ParseIntError| {
        "expected root, off, or numbers of users such as 1001,1002".into()
    };
    match value {
        "off" => Ok(None),
        "root" => Ok(Some(Vec::new())),
        _ => users(value).map(Some).map_err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_may_have_a_suffix() {
        assert_eq!(bytes("262_144"), Ok(262_144_u32));
        assert_eq!(bytes("256K"), Ok(262_144_u32));
        assert_eq!(bytes("8MiB"), Ok(8_usize << 20));
        assert_eq!(bytes("3g"), Ok(3_u64 << 30));
        for wrong in ["", "K", "-1", "1T", "1 K", "4g", "99999999999999999999"] {
            assert!(bytes::<u32>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shards_are_counted_or_automatic() {
        assert_eq!((shards("auto"), shards("1"), shards("16")), (Ok(0), Ok(1), Ok(16)));
        for wrong in ["0", "17", "", "-1", "all"] {
            assert!(shards(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn processors_are_listed_or_any() {
        assert_eq!((affinity("any"), affinity("0")), (Ok(vec![]), Ok(vec![0])));
        assert_eq!(affinity("2-4, 0,1023"), Ok(vec![2, 3, 4, 0, 1023]));
        for wrong in ["", "all", "-1", "1-", "4-2", "1,,2", "1024", "0-1024", "0-70000"] {
            assert!(affinity(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn users_are_numbers() {
        assert_eq!(portd("off"), Ok(None));
        assert_eq!(portd("root"), Ok(Some(Vec::new())));
        assert_eq!(portd("1001, 1002"), Ok(Some(vec![1001, 1002])));
        for wrong in ["alice", "", "-1", "1001;1002"] {
            assert!(portd(wrong).is_err(), "{wrong}");
        }
    }
}
