//! Rates of links: codes, multiples of 2.5 Gb/s, and megabits.

use core::ffi::c_int;

use crate::abi::*;

/// A code, the multiple of 2.5 Gb/s if it is a whole one, and megabits per second.
type Rate = (ibv_rate, Option<c_int>, c_int);

/// Every rate there is.
const RATES: &[Rate] = &[
    (IBV_RATE_2_5_GBPS, Some(1), 2500),
    (IBV_RATE_5_GBPS, Some(2), 5000),
    (IBV_RATE_10_GBPS, Some(4), 10_000),
    (IBV_RATE_20_GBPS, Some(8), 20_000),
    (IBV_RATE_30_GBPS, Some(12), 30_000),
    (IBV_RATE_40_GBPS, Some(16), 40_000),
    (IBV_RATE_60_GBPS, Some(24), 60_000),
    (IBV_RATE_80_GBPS, Some(32), 80_000),
    (IBV_RATE_120_GBPS, Some(48), 120_000),
    (IBV_RATE_14_GBPS, None, 14_062),
    (IBV_RATE_56_GBPS, None, 56_250),
    (IBV_RATE_112_GBPS, None, 112_500),
    (IBV_RATE_168_GBPS, None, 168_750),
    (IBV_RATE_25_GBPS, None, 25_781),
    (IBV_RATE_100_GBPS, None, 103_125),
    (IBV_RATE_200_GBPS, None, 206_250),
    (IBV_RATE_300_GBPS, None, 309_375),
    (IBV_RATE_28_GBPS, Some(11), 28_125),
    (IBV_RATE_50_GBPS, Some(20), 53_125),
    (IBV_RATE_400_GBPS, Some(160), 425_000),
    (IBV_RATE_600_GBPS, Some(240), 637_500),
    (IBV_RATE_800_GBPS, Some(320), 850_000),
    (IBV_RATE_1200_GBPS, Some(480), 1_275_000),
];

fn find(wanted: impl Fn(&Rate) -> bool) -> Option<&'static Rate> {
    RATES.iter().find(|rate| wanted(rate))
}

pub(crate) extern "C" fn ibv_rate_to_mult(rate: ibv_rate) -> c_int {
    find(|(code, ..)| *code == rate).and_then(|(_, mult, _)| *mult).unwrap_or(-1)
}

pub(crate) extern "C" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
    find(|(_, known, _)| *known == Some(mult)).map_or(IBV_RATE_MAX, |(code, ..)| *code)
}

pub(crate) extern "C" fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int {
    find(|(code, ..)| *code == rate).map_or(-1, |(.., mbps)| *mbps)
}

pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    find(|(.., known)| *known == mbps).map_or(IBV_RATE_MAX, |(code, ..)| *code)
}
