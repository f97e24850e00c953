//! Reads the figure from the output of the two ends.

use anyhow::Context as _;
use serde_json::Value;

/// What the two ends printed.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) client: String,
    pub(crate) server: String,
}

/// What was read, in the unit of the row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    /// What was moved, where the cost of moving it is of interest.
    pub(crate) gigabytes: Option<f64>,
    /// Processor seconds of client and server, if they say; else those of their processes count.
    pub(crate) cpu_s: Option<(f64, f64)>,
}

/// Reads a figure.
pub(crate) type Reader = fn(&Said) -> anyhow::Result<Figure>;

const MIB: f64 = 1_048_576.0;

fn plain(value: f64) -> Figure {
    Figure { value, gigabytes: None, cpu_s: None }
}

fn moved(gbit_per_s: f64, bytes: f64) -> Figure {
    Figure { value: gbit_per_s, gigabytes: Some(bytes / 1e9), cpu_s: None }
}

pub(crate) fn iperf3(said: &Said) -> anyhow::Result<Figure> {
    let report: Value = serde_json::from_str(&said.client)?;
    let sum = &report["end"]["sum_received"];
    Ok(moved(number(sum, "bits_per_second")? / 1e9, number(sum, "bytes")?))
}

/// What arrived counts, not what was sent.
pub(crate) fn udp_bandwidth(said: &Said) -> anyhow::Result<Figure> {
    let report = serde_json::from_str(&said.server)?;
    let bytes = number(&report, "bytes")?;
    Ok(moved(bytes * 8.0 / 1e9 / number(&report, "seconds")?, bytes))
}

pub(crate) fn udp_rate(said: &Said) -> anyhow::Result<Figure> {
    let report = serde_json::from_str(&said.server)?;
    Ok(plain(number(&report, "datagrams")? / number(&report, "seconds")?))
}

pub(crate) fn udp_latency(said: &Said) -> anyhow::Result<Figure> {
    Ok(plain(number(&serde_json::from_str(&said.client)?, "p50_us")?))
}

pub(crate) fn feroce_bandwidth(said: &Said) -> anyhow::Result<Figure> {
    let row = serde_json::from_str(&said.client)?;
    let bytes = number(&row, "iterations")? * number(&row, "size")?;
    let cpu_s = Some((number(&row, "cpu_s")?, number(&row, "peer_cpu_s")?));
    Ok(Figure { cpu_s, ..moved(number(&row, "gbit_per_s")?, bytes) })
}

pub(crate) fn feroce_rate(said: &Said) -> anyhow::Result<Figure> {
    Ok(plain(number(&serde_json::from_str(&said.client)?, "msg_per_s")?))
}

pub(crate) fn feroce_latency(said: &Said) -> anyhow::Result<Figure> {
    Ok(plain(number(&serde_json::from_str(&said.client)?, "p50_us")?))
}

/// The 99th percentile, of plain UDP and feroce alike.
pub(crate) fn slow_latency(said: &Said) -> anyhow::Result<Figure> {
    Ok(plain(number(&serde_json::from_str(&said.client)?, "p99_us")?))
}

/// The mean of all round trips: a median hides how long a message waits for an end that the
/// scheduler does not run.
pub(crate) fn feroce_mean_latency(said: &Said) -> anyhow::Result<Figure> {
    let row = serde_json::from_str(&said.client)?;
    Ok(plain(number(&row, "elapsed_s")? * 1e6 / number(&row, "iterations")? / 2.0))
}

/// The unit follows from `--report_gbits`.
pub(crate) fn perftest_bandwidth(said: &Said) -> anyhow::Result<Figure> {
    let (bytes, count) = (perftest(said, "#bytes")?, perftest(said, "#iterations")?);
    Ok(moved(perftest(said, "average[Gb/sec]")?, bytes * count))
}

/// perftest calls the median typical.
pub(crate) fn perftest_latency(said: &Said) -> anyhow::Result<Figure> {
    Ok(plain(perftest(said, "t_typical[usec]")?))
}

/// Its megabytes are of 2^20 bytes. It does not print the length of messages: `SIZE` bytes each.
pub(crate) fn ucx_bandwidth<const SIZE: u32>(said: &Said) -> anyhow::Result<Figure> {
    let gbit_per_s = ucx(said, "overall_bw")? * MIB * 8.0 / 1e9;
    Ok(moved(gbit_per_s, ucx(said, "iterations")? * f64::from(SIZE)))
}

pub(crate) fn ucx_rate(said: &Said) -> anyhow::Result<Figure> {
    Ok(plain(ucx(said, "overall_mr")?))
}

pub(crate) fn ucx_latency(said: &Said) -> anyhow::Result<Figure> {
    Ok(plain(ucx(said, "50.0_percentile_lat")?))
}

pub(crate) fn ucx_mean_latency(said: &Said) -> anyhow::Result<Figure> {
    Ok(plain(ucx(said, "overall_lat")?))
}

/// The tool prints no percentiles: this is a mean.
pub(crate) fn libfabric_latency(said: &Said) -> anyhow::Result<Figure> {
    Ok(plain(libfabric(said, "usec/xfer")?))
}

/// Its megabytes are of 10^6 bytes.
pub(crate) fn libfabric_bandwidth(said: &Said) -> anyhow::Result<Figure> {
    Ok(plain(libfabric(said, "MB/sec")? * 8.0 / 1e3))
}

/// A field of a JSON object.
fn number(object: &Value, field: &str) -> anyhow::Result<f64> {
    object[field].as_f64().with_context(|| format!("no `{field}` in {object}"))
}

/// A column of the last line of `ucx_perftest -f -v`.
fn ucx(said: &Said, column: &str) -> anyhow::Result<f64> {
    let mut lines = said.client.lines().filter(|line| line.contains(','));
    let (heads, values) = (lines.next(), lines.next_back());
    cell(heads.map(|line| line.split(',')), values.map(|line| line.split(',')), column)
        .with_context(|| format!("no `{column}` in {:?}", said.client))
}

/// A column of what `fi_pingpong` prints for one size.
fn libfabric(said: &Said, column: &str) -> anyhow::Result<f64> {
    let mut lines = said.client.lines();
    let heads = lines.find(|line| line.contains("usec/xfer"));
    let values = lines.next();
    cell(heads.map(str::split_whitespace), values.map(str::split_whitespace), column)
        .with_context(|| format!("no `{column}` in {:?}", said.client))
}

/// A column of what perftest prints for one size.
fn perftest(said: &Said, column: &str) -> anyhow::Result<f64> {
    // Some heads have a space in them.
    let words = |line: &str| line.replace("BW ", "").replace("% ", "%");
    let mut lines = said.client.lines();
    let heads = lines.find(|line| line.contains("#bytes")).map(words);
    let heads = heads.as_deref().map(str::split_whitespace);
    cell(heads, lines.next().map(str::split_whitespace), column)
        .with_context(|| format!("no `{column}` in {:?}", said.client))
}

/// The number under a head.
fn cell<'a>(
    heads: Option<impl Iterator<Item = &'a str>>,
    values: Option<impl Iterator<Item = &'a str>>,
    column: &str,
) -> Option<f64> {
    let at = heads?.position(|head| head == column)?;
    values?.nth(at)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> Said {
        Said { client: text.to_owned(), ..Said::default() }
    }

    #[test]
    fn iperf3_counts_what_was_received() {
        let said = client(
            r#"{"end": {"sum_sent": {"bytes": 4e9, "bits_per_second": 17e9},
                        "sum_received": {"bytes": 2e9, "bits_per_second": 16e9}}}"#,
        );
        assert_eq!(iperf3(&said).unwrap(), moved(16.0, 2e9));
        let failed = client(r#"{"error": "unable to connect"}"#);
        assert!(iperf3(&failed).unwrap_err().to_string().contains("bits_per_second"));
    }

    #[test]
    fn udp_is_read_at_the_receiver() {
        let server = r#"{"bytes": 5000000000, "datagrams": 3000000, "seconds": 2.0}"#.to_owned();
        let said = Said { server, client: r#"{"datagrams": 9}"#.to_owned() };
        assert_eq!(udp_bandwidth(&said).unwrap(), moved(20.0, 5e9));
        assert_eq!(udp_rate(&said).unwrap().value, 1.5e6);
    }

    #[test]
    fn ucx_columns_go_by_their_heads() {
        let said = client(
            "iterations,50.0_percentile_lat,avg_lat,overall_lat,\
             avg_bw,overall_bw,avg_mr,overall_mr\n\
             4000,0.388,6901.348,2515.604,144.90,1000.00,145,2000000\n",
        );
        assert_eq!(ucx_latency(&said).unwrap().value, 0.388);
        assert_eq!(ucx_rate(&said).unwrap().value, 2e6);
        let figure = ucx_bandwidth::<1_048_576>(&said).unwrap();
        assert!((figure.value - 8.388_608).abs() < 1e-9, "{figure:?}");
        assert!((figure.gigabytes.unwrap() - 4.194_304).abs() < 1e-9, "{figure:?}");
        assert!(ucx_latency(&client("Segmentation fault\n")).is_err());
    }

    #[test]
    fn libfabric_columns_go_by_their_heads() {
        let said = client(
            "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
             8       20k     =20k     312k        0.23s      1.42       5.65       0.18\n",
        );
        assert_eq!(libfabric_latency(&said).unwrap().value, 5.65);
        assert!((libfabric_bandwidth(&said).unwrap().value - 0.01136).abs() < 1e-9);
        assert!(libfabric_latency(&client("fi_getinfo(): -61")).is_err());
    }

    #[test]
    fn perftest_columns_go_by_their_heads() {
        let said = client(
            " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n \
             65536      40000            0.00               82.48  \t\t   0.157315\n",
        );
        assert_eq!(perftest_bandwidth(&said).unwrap(), moved(82.48, 65536.0 * 40000.0));
        let said = client(
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
             8       100000          1.23           240074.02      1.80     \t       57.14\n",
        );
        assert_eq!(perftest_latency(&said).unwrap().value, 1.80);
        assert!(perftest_latency(&client("Couldn't connect\n")).is_err());
    }

    #[test]
    fn means_count_all_the_time() {
        let said = client(r#"{"iterations": 50000, "elapsed_s": 2.0, "p50_us": 1.0}"#);
        assert_eq!(feroce_mean_latency(&said).unwrap().value, 20.0);
    }

    #[test]
    fn feroce_says_what_both_ends_cost() {
        let said = client(
            r#"{"size": 1000, "iterations": 2000000, "gbit_per_s": 30.5, "msg_per_s": 1500000.0,
                "p50_us": 7.5, "cpu_s": 1.5, "peer_cpu_s": 0.75}"#,
        );
        let figure = feroce_bandwidth(&said).unwrap();
        assert_eq!(figure, Figure { cpu_s: Some((1.5, 0.75)), ..moved(30.5, 2e9) });
        assert_eq!(feroce_rate(&said).unwrap().value, 1.5e6);
        assert_eq!(feroce_latency(&said).unwrap().value, 7.5);
    }
}
