//! Traffic between queue pairs of one device, and of one host, obeys the settings that concern
//! packets: faults, captures, traces and congestion control.

use std::error::Error;

use feroce::{
    Access, CongestionConfig, Context, Device, EngineConfig, QpCap, SendOp, SendWr, Settings,
    WcStatus,
};

const WRITES: usize = 40;

type Counters = Vec<(&'static str, u64)>;

/// Writes between two queue pairs of one device, and returns what its link counted.
fn write_inside(address: &str, settings: Settings) -> Result<Counters, Box<dyn Error>> {
    write_in(&Device::at([address.parse()?]).open_with(settings)?)
}

fn write_in(device: &Context) -> Result<Counters, Box<dyn Error>> {
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    let cap = QpCap::new(WRITES as u32, 1);
    let mut qp = pd.rc_qp(&cq, &cq, cap).create()?;
    let mut peer = pd.rc_qp(&cq, &cq, cap).create()?;
    qp.connect(&peer.endpoint()?)?;
    peer.connect(&qp.endpoint()?)?;
    let source = pd.alloc_mr(WRITES, Access::LOCAL_WRITE)?;
    let target = pd.alloc_mr(WRITES, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let bytes: Vec<u8> = (1..=WRITES as u8).collect();
    source.write_at(0, &bytes)?;
    for i in 0..WRITES {
        let op = SendOp::Write(target.remote(i));
        qp.post_send([SendWr::new(i as u64, op, source.data(i..i + 1))])?;
        assert_eq!(cq.wait()?.status, WcStatus::Success);
    }
    let mut seen = vec![0; WRITES];
    target.read_at(0, &mut seen)?;
    assert_eq!(seen, bytes);
    Ok(device.link_counters())
}

fn count(counters: &[(&str, u64)], name: &str) -> u64 {
    counters.iter().filter(|(found, _)| *found == name).map(|(_, count)| count).sum()
}

#[test]
fn faults_concern_traffic_inside_a_device() {
    for (shared, address) in [(true, "127.81.1.1"), (false, "127.81.1.2")] {
        let fault = Some("loss=20%,seed=3".parse().unwrap());
        let settings = Settings { fault, shared, ..Settings::default() };
        let counters = write_inside(address, settings).unwrap();
        // A WRITE and its acknowledgement, each lost with a probability of one fifth.
        assert!(count(&counters, "fault_lost") > 0, "shared {shared}: {counters:?}");
    }
}

#[test]
fn captures_and_traces_have_traffic_inside_a_device() {
    let folder = std::env::temp_dir().join(format!("feroce-inside-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (shared, address) in [(true, "127.81.1.3"), (false, "127.81.1.4")] {
        let (pcap, trace) = (folder.join("x.pcapng"), folder.join("x.txt"));
        let settings = Settings {
            pcap: Some(pcap),
            trace: Some(trace.clone()),
            shared,
            ..Settings::default()
        };
        let counters = write_inside(address, settings).unwrap();
        // Sent and received.
        assert!(count(&counters, "pcap_packets") >= 4 * WRITES as u64, "{shared}: {counters:?}");
        let lines = std::fs::read_to_string(&trace).unwrap();
        for direction in [" out ", " in "] {
            let writes = lines.lines().filter(|line| line.contains("RC WRITE Only"));
            assert!(writes.filter(|line| line.contains(direction)).count() >= WRITES, "{lines}");
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn congestion_control_concerns_traffic_inside_a_host() {
    let paced = || {
        let congestion = CongestionConfig::Dcqcn(Default::default());
        Settings { engine: EngineConfig { congestion, ..Default::default() }, ..Default::default() }
    };
    // One device.
    for (settings, address, is_inside) in
        [(Settings::default(), "127.81.1.5", true), (paced(), "127.81.1.6", false)]
    {
        let device = Device::at([address.parse().unwrap()]).open_with(settings).unwrap();
        write_in(&device).unwrap();
        assert_eq!(device.counters().loopback_pkts > 0, is_inside, "{address}");
    }
    // Two, as of two processes.
    for (settings, address, is_copied) in
        [(Settings::default as fn() -> _, "127.81.1.7", true), (paced, "127.81.1.8", false)]
    {
        let open = || Device::at([address.parse().unwrap()]).open_with(settings()).unwrap();
        let (here, there) = (open(), open());
        let end = |context: &Context| {
            let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(8).unwrap());
            let qp = pd.rc_qp(&cq, &cq, QpCap::new(4, 4)).create().unwrap();
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            (qp, pd.alloc_mr(1 << 20, access).unwrap(), cq)
        };
        let ((mut qp, source, cq), (mut peer, target, _cq)) = (end(&here), end(&there));
        qp.connect(&peer.endpoint().unwrap()).unwrap();
        peer.connect(&qp.endpoint().unwrap()).unwrap();
        let write = SendOp::Write(target.remote(0));
        qp.post_send([SendWr::new(1, write, source.data(0..1 << 20))]).unwrap();
        assert_eq!(cq.wait().unwrap().status, WcStatus::Success);
        let is_packets = here.counters().sent_bytes >= 1 << 20;
        let remote = count(&here.link_counters(), "shm_tx_remote_payload");
        assert_eq!(!is_packets || remote > 0, is_copied, "{address}: {remote} remote payloads");
    }
}
