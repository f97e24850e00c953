//! Programs that use RDMA for something of their own, and those below which others use it.

use super::tables::{Package, Program, Ready, alone, endless, roles, unlike};

/// Without `-cm1` it names no address on the path of a queue pair, which RoCE needs.
pub(crate) const QPERF: Package = Package {
    name: "qperf",
    version: "0.4.11",
    environment: &[],
    programs: &[endless(unlike(roles(
        "qperf",
        ["qperf", "qperf 10.9.0.1"],
        Ready::Port(19765),
        &["-t 1 -cm1 rc_bw rc_lat rc_bi_bw rc_rdma_write_bw rc_rdma_write_lat \
           rc_rdma_write_poll_lat rc_rdma_read_bw rc_rdma_read_lat rc_compare_swap_mr \
           ver_rc_fetch_add"],
        "ver_rc_fetch_add: msg_rate = ",
    )))],
};

/// The taker has a receive for each of the 50 messages of `--verb=send`. fio requests no RNR
/// retries, and its giver waits for ever after a completion with an error, so a taker with fewer
/// receives stalls both where it gets no processor for a moment. Linux Soft-RoCE stalls them, too.
pub(crate) const FIO: Package = Package {
    name: "fio",
    version: "3.33",
    environment: &[],
    programs: &[roles(
        "fio",
        [
            "fio --name=taker --ioengine=rdma --port=5555 --rw=read --iodepth=64",
            "fio --name=giver --ioengine=rdma --hostname=10.9.0.1 --port=5555 --rw=write \
             --iodepth_batch_complete=1",
        ],
        Ready::Soon,
        &[
            "--bs=4k --size=200k --verb=write",
            "--bs=4k --size=200k --verb=read",
            "--bs=4k --size=200k --verb=send",
        ],
        "io=200KiB",
    )],
};

/// Two ranks on one machine, which have nothing but UCX and it nothing but verbs.
const RANKS: &[(&str, &str)] = &[("UCX_TLS", "rc_v,ud_v,self"), ("UCX_NET_DEVICES", "feroce0:1")];

/// Messages of up to 4 KiB, three of each length.
const fn net_pipe(name: &'static str, options: &'static [&'static str]) -> Program {
    alone(name, options, "4096 bytes 3 times -->")
}

pub(crate) const OPEN_MPI: Package = Package {
    name: "netpipe-openmpi",
    version: "3.7.2",
    environment: RANKS,
    programs: &[net_pipe(
        "mpirun",
        &["--allow-run-as-root --oversubscribe -n 2 --mca pml ucx --mca osc ucx \
           NPopenmpi -n 3 -u 4096 -p 0"],
    )],
};

pub(crate) const MPICH: Package = Package {
    name: "netpipe-mpich2",
    version: "3.7.2",
    environment: RANKS,
    programs: &[net_pipe("mpiexec.mpich", &["-n 2 NPmpich2 -n 3 -u 4096 -p 0"])],
};
