//! Programs that are run over RoCEv1, and what they put on the cable.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::thread;

use feroce_wire::{Frame, Net};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};

use super::tables::{Package, Program, Ready, pair, roles};
use super::{is_installed, try_package};
use crate::common;
use crate::netns::{Cable, with_cable};

/// Behind the three GIDs of RoCEv2, the cable has those of RoCEv1.
pub(crate) const IBVERBS_V1: Package = Package {
    name: "ibverbs-utils",
    version: "44.0",
    environment: &[],
    programs: &[
        pair(
            "ibv_rc_pingpong",
            &["-g 3 -n 200", "-g 4 -n 200", "-g 5 -n 200 -e", "-g 3 -n 200 -c -s 65536"],
            "200 iters in",
        ),
        pair("ibv_uc_pingpong", &["-g 3 -n 200", "-g 4 -n 200 -e -c"], "200 iters in"),
        pair("ibv_ud_pingpong", &["-g 3 -n 200", "-g 5 -n 200 -e -c"], "200 iters in"),
        pair("ibv_srq_pingpong", &["-g 3 -n 200 -q 4"], "200 iters in"),
    ],
};

/// The service level is the VLAN priority.
pub(crate) const IBVERBS_PRIORITY: Package = Package {
    programs: &[
        pair("ibv_rc_pingpong", &["-g 3 -n 200 -l 5"], "200 iters in"),
        pair("ibv_ud_pingpong", &["-g 4 -n 200 -l 5"], "200 iters in"),
    ],
    ..IBVERBS_V1
};

/// The same in a VLAN.
pub(crate) const IBVERBS_VLAN: Package =
    Package { environment: &[("FEROCE_ROCEV1_VLAN", "100")], ..IBVERBS_PRIORITY };

pub(crate) const PERFTEST_V1: Package = Package {
    name: "perftest",
    version: "4.5+0.17",
    environment: &[],
    programs: &[
        pair(
            "ib_write_bw",
            &["-x 3 -F -n 100 -s 65536 -m 4096", "-x 4 -F -n 10 -s 1048576 -b"],
            "%b %n ",
        ),
        pair("ib_read_bw", &["-x 3 -F -n 100 -s 65536"], "%b %n "),
        pair("ib_send_lat", &["-x 3 -F -n 100 -s 64", "-x 3 -F -n 100 -s 64 -c UD"], "%b %n "),
        pair("ib_atomic_bw", &["-x 5 -F -n 100"], "8 100 "),
    ],
};

const fn connected(
    name: &'static str,
    sides: [&'static str; 2],
    options: &'static [&'static str],
    says: &'static str,
) -> Program {
    roles(name, sides, Ready::Soon, options, says)
}

/// Connections that the connection manager makes.
pub(crate) const RDMACM_V1: Package = Package {
    name: "rdmacm-utils",
    version: "44.0",
    environment: &[("FEROCE_DEFAULT_ROCE_MODE", "v1")],
    programs: &[
        connected(
            "rping",
            ["rping -s", "rping -c -a 10.9.0.1"],
            &["-v -C 5", "-V -v -C 20 -S 1000"],
            "ping data: rdma-ping-4:",
        ),
        connected(
            "rping",
            ["rping -s -a fd09::1", "rping -c -a fd09::1 -I fd09::2"],
            &["-v -C 5 -p 9999"],
            "ping data: rdma-ping-4:",
        ),
        connected(
            "ucmatose",
            ["ucmatose", "ucmatose -s 10.9.0.1"],
            &["-c 20 -C 5 -S 8000"],
            "return status 0",
        ),
        connected(
            "udaddy",
            ["udaddy", "udaddy -s 10.9.0.1"],
            &["-c 5 -C 10 -S 1000"],
            "return status 0",
        ),
        roles(
            "mckey",
            ["mckey -b 10.9.0.1", "mckey -b 10.9.0.2 -s"],
            Ready::Member,
            &["-m 239.1.1.1", "-m 239.1.1.1 -C 20 -S 100"],
            "return status 0",
        ),
    ],
};

/// UCX names no version of RoCE: it takes the GID that it is told.
pub(crate) const UCX_V1: Package = Package {
    name: "ucx-utils",
    version: "1.13.1",
    environment: &[
        ("UCX_IB_GID_INDEX", "3"),
        ("UCX_TLS", "rc_v,ud_v,self"),
        ("UCX_NET_DEVICES", "feroce0:1"),
    ],
    programs: &[roles(
        "ucx_perftest",
        ["ucx_perftest", "ucx_perftest 10.9.0.1"],
        Ready::Port(13337),
        &["-t tag_lat -n 100 -s 1024", "-t ucp_put_bw -n 100 -s 65536"],
        "Final: ",
    )],
};

pub(crate) const LIBFABRIC_V1: Package = Package {
    name: "libfabric-bin",
    version: "1.17.0",
    environment: &[("FEROCE_DEFAULT_ROCE_MODE", "v1")],
    programs: &[roles(
        "fi_pingpong",
        ["fi_pingpong -p verbs", "fi_pingpong -p verbs 10.9.0.1"],
        Ready::Port(47592),
        &["-e msg -c -I 20 -S 1024"],
        "1k 20 =20 ",
    )],
};

/// The same in a VLAN.
pub(crate) const RDMACM_VLAN: Package = Package {
    environment: &[("FEROCE_DEFAULT_ROCE_MODE", "v1"), ("FEROCE_ROCEV1_VLAN", "7")],
    ..RDMACM_V1
};

/// Sees the frames that the host of this thread's namespace sends.
struct Sniffer(OwnedFd);

impl Sniffer {
    fn new() -> Self {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let all = SockProtocol::EthAll;
        let socket =
            socket(AddressFamily::Packet, SockType::Raw, flags, all).expect("a privileged test");
        setsockopt(&socket, sockopt::RcvBuf, &(8 << 20)).expect("a buffer");
        Self(socket)
    }

    /// The RoCE frames that were sent from the first end of the cable, as far as there was room for
    /// them.
    fn frames(self) -> Vec<Vec<u8>> {
        let (mut frames, mut buffer) = (Vec::new(), vec![0; 70_000]);
        loop {
            match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(len) => {
                    let is_sent = buffer[6..12] == [2, 0, 0, 0, 0, 1];
                    if is_sent && Frame::parse_ethernet(&buffer[..len]).is_ok() {
                        frames.push(buffer[..len].to_vec());
                    }
                }
                Err(Errno::EAGAIN) => return frames,
                Err(e) => panic!("{e}"),
            }
        }
    }
}

/// Shows that all of the frames are RoCEv1, and returns the VLAN tags that there are.
fn tags(frames: &[Vec<u8>]) -> BTreeSet<Option<u16>> {
    assert!(frames.len() > 20, "{} frames", frames.len());
    let tag = |bytes: &Vec<u8>| {
        let frame = Frame::parse_ethernet(bytes).expect("a RoCE frame");
        assert!(matches!(frame.net, Net::Grh(_)), "no RoCEv1: {frame:?}");
        assert!(frame.icrc_ok(), "a wrong ICRC: {frame:?}");
        frame.eth.and_then(|ethernet| ethernet.vlan).map(|tag| tag.0)
    };
    frames.iter().map(tag).collect()
}

/// What tshark reads in the first frames: Ethertype, VLAN, priority and the name of the operation.
fn dissected(folder: &Path, frames: &[Vec<u8>]) -> Option<Vec<String>> {
    let mut file = Vec::new();
    // The old format of captures: magic number, version 2.4, no time zone, snap length, Ethernet.
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 1] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames.iter().take(100) {
        let len = frame.len() as u32;
        [0, 0, len, len].iter().for_each(|word| file.extend(word.to_le_bytes()));
        file.extend(frame);
    }
    let path = folder.join("frames.pcap");
    std::fs::write(&path, file).expect("written");
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&path).args(["-T", "fields", "-E", "separator=,"]);
    for field in ["vlan.id", "vlan.priority", "infiniband.grh.ipver", "infiniband.bth.opcode"] {
        tshark.args(["-e", field]);
    }
    let output = common::output(&mut tshark, "tshark")?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Runs a package of which every frame must be RoCEv1 and have one of these VLAN tags.
fn try_v1(package: &Package, cable: &Cable, tags: &[Option<u16>]) {
    let sniffer = cable.in_a(Sniffer::new);
    try_package(package, cable);
    let frames = sniffer.frames();
    assert_eq!(self::tags(&frames).into_iter().collect::<Vec<_>>(), tags);
    let folder = common::scratch(thread::current().name().expect("a name"));
    for line in dissected(&folder, &frames).into_iter().flatten() {
        let fields: Vec<&str> = line.split(',').collect();
        let [vlan, priority, version, opcode] = fields[..] else { panic!("{line}") };
        let tag = vlan.parse().ok().zip(priority.parse::<u16>().ok());
        let tag = tag.map(|(vlan, priority): (u16, u16)| priority << 13 | vlan);
        assert!(tags.contains(&tag), "{line}");
        assert!(version == "6" && opcode.parse::<u8>().is_ok(), "{line}");
    }
}

#[test]
fn programs_choose_rocev1_by_the_index_of_a_gid() {
    if is_installed(&IBVERBS_V1) && is_installed(&PERFTEST_V1) {
        with_cable(9000, |cable| {
            try_v1(&IBVERBS_V1, cable, &[None]);
            try_v1(&PERFTEST_V1, cable, &[None]);
        });
    }
}

#[test]
fn frames_of_rocev1_have_the_vlan_and_the_priority_of_their_path() {
    if is_installed(&IBVERBS_V1) {
        with_cable(9000, |cable| {
            try_v1(&IBVERBS_PRIORITY, cable, &[Some(5 << 13)]);
            try_v1(&IBVERBS_VLAN, cable, &[Some(5 << 13 | 100)]);
        });
    }
}

#[test]
fn programs_connect_over_rocev1() {
    if is_installed(&RDMACM_V1) {
        with_cable(1500, |cable| {
            try_v1(&RDMACM_V1, cable, &[None]);
            try_v1(&RDMACM_VLAN, cable, &[Some(7)]);
        });
    }
}

#[test]
fn ucx_and_libfabric_run_over_rocev1() {
    with_cable(1500, |cable| {
        for package in [UCX_V1, LIBFABRIC_V1].iter().filter(|package| is_installed(package)) {
            try_v1(package, cable, &[None]);
        }
    });
}
