//! Bytes that no host or target sends.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use feroce::cm::{CmError, ConnParam, Connector, RejReason};
use feroce::{Access, Data, InlineBytes, QpCap, Router, SendOp, SendWr, WcStatus};
use feroce_nvme::controller::{Answer, Controller, Identity, disk_command};
use feroce_nvme::wire::{
    CmReject, CmRequest, Command, Completion, ConnectData, DataRange, DiscoveryLog,
    IdentifyController, IdentifyNamespace, RejectStatus, Status, fabrics,
};
use feroce_nvme::{Host, HostOptions, MemoryNamespace, Subsystem};

use crate::together::{Result, manager, nqn, serve};

/// Bytes that look random, always the same.
struct Bytes(u64);

impl Bytes {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = (self.next() >> 24) as u8);
    }
}

#[test]
fn any_bytes_can_be_parsed() {
    let mut random = Bytes(7);
    for round in 0..2000_usize {
        let mut bytes = vec![0; round % 5000];
        random.fill(&mut bytes);
        if let Some(command) = Command::parse(&bytes) {
            assert_eq!(command.emit(), bytes[..64]);
        }
        let _ = (command_parts(&bytes), Completion::parse(&bytes), CmReject::parse(&bytes));
        let _ = (ConnectData::parse(&bytes), CmRequest::parse(&bytes));
        let _ = (IdentifyController::parse(&bytes), IdentifyNamespace::parse(&bytes));
        assert!(DiscoveryLog::parse(&bytes).entries.len() <= bytes.len() / 1024);
        assert_eq!(DataRange::parse_all(&bytes).count(), bytes.len() / 16);
    }
}

fn command_parts(bytes: &[u8]) -> Option<u64> {
    let command = Command::parse(bytes)?;
    let _ = command.sgl.kind();
    Some(command.rw().lba ^ command.log_page().offset)
}

#[test]
fn any_command_is_answered() {
    let host = nqn("host");
    let disks = Subsystem::new(nqn("bad")).disk(MemoryNamespace::new(64));
    let disk = MemoryNamespace::new(64);
    let identity = Identity::Disks(std::sync::Arc::new(disks));
    let mut controller = Controller::new(1, identity, host, [0; 16]);
    let mut enable = Command::fabrics(fabrics::PROPERTY_SET);
    (enable.cdw[1], enable.cdw[2]) = (0x14, 1);
    let mut random = Bytes(99);
    for _ in 0..200_000 {
        let mut bytes = [0; 64];
        random.fill(&mut bytes);
        // Opcodes and small numbers that have a meaning are tried more often than chance would.
        bytes[0] &= 0x1f;
        if random.next().is_multiple_of(2) {
            bytes[40..64].iter_mut().for_each(|byte| *byte &= 0x0f);
        }
        let command = Command::parse(&bytes).expect("64 bytes");
        assert_eq!(controller.handle(&enable), Answer::Done(Status::SUCCESS, 0));
        if let Answer::Data(data) = controller.handle(&command) {
            assert!(data.len() <= 64 << 10);
        }
        if let Ok(found) = disk_command(&command, &disk) {
            assert!(found.lba + found.blocks <= 64 && found.len <= 128 << 10);
        }
    }
}

#[tokio::test]
async fn requests_that_are_not_of_nvme_are_rejected() -> Result<()> {
    let at = serve("127.32.11.1", vec![Subsystem::new(nqn("rej"))])?;
    let here = manager("127.32.11.2")?;
    let good = CmRequest { queue: 0, recv_size: 32, send_size: 31 };
    let mut format = good.emit();
    format[0] = 1;
    let cases = [
        (format, RejectStatus::Format),
        (CmRequest { send_size: 0, ..good }.emit(), RejectStatus::SendSize),
        (CmRequest { send_size: 128, ..good }.emit(), RejectStatus::SendSize),
    ];
    for (bytes, why) in cases {
        let refused = Connector::new(&here).private_data(&bytes).connect_async(at).await;
        let Err(feroce::Error::Cm(CmError::Rejected { reason, private_data })) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!((reason, CmReject::parse(&private_data).0), (RejReason::CONSUMER, why));
    }
    Ok(())
}

/// Sends a capsule on a new connection; the result is the status of the answer, or none if the
/// target ends the connection.
async fn one_capsule(
    here: &feroce::cm::Manager,
    at: std::net::SocketAddr,
    capsule: &[u8],
) -> Result<Option<Status>> {
    let request = CmRequest { queue: 0, recv_size: 32, send_size: 31 };
    let param = ConnParam { private_data: request.emit().to_vec(), ..ConnParam::default() };
    let cap = QpCap { max_inline: 128, ..QpCap::new(8, 8) };
    let connector = Connector::new(here).cap(cap).param(param);
    let mut connection = connector.connect_async(at).await?;
    let (sends, receives) = (Router::new(connection.send_cq()), Router::new(connection.recv_cq()));
    let mr = connection.pd().alloc_mr(64, Access::LOCAL_WRITE)?;
    let received = receives.recv(&mut connection, mr.recv(1, 0..64))?;
    let data = Data::Inline(InlineBytes::new(capsule));
    let _sent = sends.send(&mut connection, SendWr::new(2, SendOp::Send, data))?;
    let (mut received, mut ended) = (pin!(received), pin!(connection.wait_disconnected_async()));
    let received = poll_fn(|cx| match received.as_mut().poll(cx) {
        Poll::Ready(cqe) => Poll::Ready(cqe.status == WcStatus::Success),
        Poll::Pending => ended.as_mut().poll(cx).map(|_| false),
    });
    if !received.await {
        return Ok(None);
    }
    let mut bytes = [0; 16];
    mr.read_at(0, &mut bytes)?;
    Ok(Completion::parse(&bytes).map(|completion| completion.status))
}

#[tokio::test]
async fn a_target_survives_capsules_that_make_no_sense() -> Result<()> {
    let disks = Subsystem::new(nqn("sense")).disk(MemoryNamespace::new(8));
    let at = serve("127.32.12.1", vec![disks])?;
    let here = manager("127.32.12.2")?;
    // Too short for a command: the connection ends.
    assert_eq!(one_capsule(&here, at, &[0; 40]).await?, None);
    // A command before Connect.
    let early = Command::new(0x06).emit();
    assert_eq!(one_capsule(&here, at, &early).await?, Some(Status::SEQUENCE.do_not_retry()));
    // Connect whose data is shorter than it must be, and whose data is not in the capsule.
    let mut connect = Command::fabrics(fabrics::CONNECT);
    connect.sgl = feroce_nvme::wire::Sgl::in_capsule(16);
    let short = Some(Status::SGL_LENGTH.do_not_retry());
    assert_eq!(one_capsule(&here, at, &connect.emit()).await?, short);
    connect.sgl = feroce_nvme::wire::Sgl::in_capsule(1024);
    let absent = Some(Status::SGL_OFFSET.do_not_retry());
    assert_eq!(one_capsule(&here, at, &connect.emit()).await?, absent);
    // Connect with a key that the host does not have: the target cannot read, and the connection
    // ends.
    connect.sgl = feroce_nvme::wire::Sgl::keyed(0x1000, 1024, 0x1234_5678, true);
    assert_eq!(one_capsule(&here, at, &connect.emit()).await?, None);
    let host = Host::connect(&here, at, &nqn("sense"), &HostOptions::default()).await?;
    host.disconnect().await?;
    Ok(())
}
