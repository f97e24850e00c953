//! The setting `congestion`.

use feroce_engine::{
    Config, CongestionConfig, ConnectXConfig, DcqcnConfig, SwiftConfig, TimelyConfig,
};

use super::{SettingError, SettingPlace};

/// The round trip of packets in an idle network, as software at both ends makes it: from 30 to 100
/// microseconds for trains of 64 KiB.
const SOFTWARE_RTT_NS: u64 = 100_000;

/// Why an algorithm cannot run on a real wire.
const NO_TELEMETRY: &str = "HPCC needs telemetry that switches write into packets, and UDP carries \
                            none; use dcqcn, connectx, timely or swift, or HPCC in `feroce sim`";

/// Parses the name of an algorithm.
pub(super) fn algorithm(value: &str) -> Result<CongestionConfig, String> {
    let dcqcn = DcqcnConfig::default();
    Ok(match value {
        "none" => CongestionConfig::None,
        "dcqcn" => CongestionConfig::Dcqcn(dcqcn),
        "connectx" => CongestionConfig::ConnectX(ConnectXConfig::default()),
        "timely" => {
            CongestionConfig::Timely(TimelyConfig::for_path(dcqcn.line_rate_bps, SOFTWARE_RTT_NS))
        }
        "swift" => {
            let packet_bytes = SwiftConfig::default().packet_bytes;
            CongestionConfig::Swift(SwiftConfig::for_path(
                dcqcn.line_rate_bps,
                SOFTWARE_RTT_NS,
                packet_bytes,
            ))
        }
        "hpcc" => return Err(NO_TELEMETRY.into()),
        _ => return Err("expected none, dcqcn, connectx, timely or swift".into()),
    })
}

/// Refuses an algorithm that cannot run on a real wire.
pub(crate) fn check(config: &Config) -> Result<(), SettingError> {
    match config.congestion.needs_telemetry() {
        false => Ok(()),
        true => Err(SettingError::Value {
            name: "congestion".into(),
            value: "hpcc".into(),
            why: NO_TELEMETRY.into(),
            place: SettingPlace::Call,
        }),
    }
}

#[cfg(test)]
mod tests {
    use feroce_engine::HpccConfig;

    use super::*;
    use crate::Settings;

    #[test]
    fn algorithms_have_names_and_one_of_them_needs_other_switches() {
        let mut settings = Settings::default();
        for name in ["none", "dcqcn", "connectx", "timely", "swift"] {
            settings.set("congestion", name).unwrap();
            check(&settings.engine).unwrap();
        }
        assert!(matches!(settings.engine.congestion, CongestionConfig::Swift(_)));
        let refused = settings.set("congestion", "hpcc").unwrap_err().to_string();
        assert!(refused.contains("UDP carries none"), "{refused}");
        let refused = settings.set("congestion", "reno").unwrap_err().to_string();
        assert!(refused.contains("expected none, dcqcn"), "{refused}");
        settings.engine.congestion = CongestionConfig::Hpcc(HpccConfig::default());
        assert!(check(&settings.engine).is_err());
    }
}
