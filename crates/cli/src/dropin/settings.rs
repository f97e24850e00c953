//! Settings of the adapter that `run` and `env` pass to programs through the environment.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use feroce::{Backend, Settings, TransportKind};

/// Options. `docs/CONFIGURATION.md` lists more settings, which the user can set in the environment.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct SettingArgs {
    /// Capture packets to a file; `%d` becomes the device's name, `%p` the process id
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Write a line for every packet, to standard error or to a file
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "-")]
    trace: Option<PathBuf>,
    /// Print likely mistakes of the program in its use of verbs; with `=error`, they make the exit
    /// status 1
    #[arg(long, value_name = "error", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "1", value_parser = ["1", "error"], hide_possible_values = true)]
    lint: Option<String>,
    /// Print what the program's devices did, on standard error, at its end
    #[arg(long)]
    stats: bool,
    /// Lose received packets: `1%`
    #[arg(long, value_name = "P")]
    loss: Option<String>,
    /// Receive packets twice: `0.1%`
    #[arg(long, value_name = "P")]
    dup: Option<String>,
    /// Receive packets late: `1%`, or `1%:3` for after the three that follow
    #[arg(long, value_name = "P[:N]")]
    reorder: Option<String>,
    /// Change bits of received packets: `0.01%`
    #[arg(long, value_name = "P")]
    corrupt: Option<String>,
    /// Delay received packets: `50us`, or `50us~20us` for 30 to 70
    #[arg(long, value_name = "T")]
    delay: Option<String>,
    /// Receive no faster than this: `10Gbit`, or `10Gbit:256KiB` with a queue of that size
    #[arg(long, value_name = "R")]
    rate: Option<String>,
    /// Fix the random seed of faults and of the adapter, so that a run can be repeated
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Name of the first device, for programs that insist on one
    #[arg(long, value_name = "NAME")]
    device_name: Option<String>,
    /// Create a device on an address, or on several separated by commas; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    address: Vec<String>,
}

impl SettingArgs {
    /// The settings, and the environment variables with them. What is wrong with them, with the
    /// environment or with the file of settings is reported here, because programs say only that
    /// they found no device.
    pub(super) fn load(&self) -> anyhow::Result<(Settings, Vec<(String, OsString)>)> {
        let mut chosen: Vec<(&str, OsString)> = Vec::new();
        for (name, file) in [("pcap", &self.pcap), ("trace", &self.trace)] {
            if let Some(file) = file {
                chosen.push((name, absolute(file)?));
            }
        }
        chosen.extend(self.faults().map(|faults| ("fault", faults.into())));
        chosen.extend(self.stats.then(|| ("stats", "1".into())));
        chosen.extend(self.lint.clone().map(|lint| ("lint", lint.into())));
        chosen.extend(self.seed.map(|seed| ("seed", seed.to_string().into())));
        chosen.extend(self.device_name.clone().map(|name| ("device_name", name.into())));
        if !self.address.is_empty() {
            chosen.push(("address", self.address.join(";").into()));
        }
        let mut settings = Settings::load()?;
        // Also if the environment names it: the command line overrides that.
        if settings.engine.transport == TransportKind::Iwarp
            || std::env::var_os("FEROCE_TRANSPORT").is_some()
        {
            chosen.push(("transport", settings.transport_name().into()));
        }
        ensure!(
            settings.backend == Backend::Feroce,
            "programs run on the software adapter here; on the kernel's devices they run without \
             `feroce run`"
        );
        for (name, value) in &chosen {
            let value = value.to_str().with_context(|| format!("{name}: not text"))?;
            settings.set(name, value)?;
        }
        let variable = |(name, value): (&str, _)| (Settings::variable(name), value);
        Ok((settings, chosen.into_iter().map(variable).collect()))
    }

    /// Whether it chooses devices by address.
    pub(crate) fn has_addresses(&self) -> bool {
        !self.address.is_empty()
    }

    /// All faults, as the value of the setting `fault`.
    fn faults(&self) -> Option<String> {
        let faults = [
            ("loss", &self.loss),
            ("dup", &self.dup),
            ("reorder", &self.reorder),
            ("corrupt", &self.corrupt),
            ("delay", &self.delay),
            ("rate", &self.rate),
        ];
        let given = faults.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let mut list: Vec<String> = given.map(|(name, value)| format!("{name}={value}")).collect();
        if list.is_empty() {
            return None;
        }
        list.extend(self.seed.map(|seed| format!("seed={seed}")));
        Some(list.join(","))
    }
}

/// The absolute path, because the program may change its working directory before it opens a
/// device.
fn absolute(file: &PathBuf) -> anyhow::Result<OsString> {
    if file.as_os_str() == "-" {
        return Ok("-".into());
    }
    let path = std::path::absolute(file).with_context(|| file.display().to_string())?;
    Ok(path.into_os_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(args: &SettingArgs) -> String {
        let variables = args.load().unwrap().1.into_iter();
        let text = variables.map(|(name, value)| format!("{name}={}", value.display()));
        text.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn options_become_variables() {
        assert_eq!(text(&SettingArgs::default()), "");
        let args = SettingArgs {
            loss: Some("1%".into()),
            delay: Some("50us".into()),
            seed: Some(7),
            device_name: Some("mlx5_0".into()),
            address: vec!["10.0.0.1,fd00::1".into(), "10.0.0.2".into()],
            trace: Some("-".into()),
            lint: Some("1".into()),
            stats: true,
            ..SettingArgs::default()
        };
        assert_eq!(
            text(&args),
            "FEROCE_TRACE=- FEROCE_FAULT=loss=1%,delay=50us,seed=7 FEROCE_STATS=1 FEROCE_LINT=1 \
             FEROCE_SEED=7 FEROCE_DEVICE_NAME=mlx5_0 FEROCE_ADDRESS=10.0.0.1,fd00::1;10.0.0.2"
        );
    }

    #[test]
    fn mistakes_are_named() {
        let wrong = SettingArgs { loss: Some("often".into()), ..SettingArgs::default() };
        assert!(wrong.load().map(|_| ()).unwrap_err().to_string().contains("loss=often"));
    }
}
