//! Messages of NVMe over Fabrics, and a controller that gets them.

use std::sync::Arc;

use feroce_nvme::controller::{Answer, Controller, Identity, TRANSFER, disk_command};
use feroce_nvme::wire::{
    CAPSULE, CmReject, CmReply, CmRequest, Command, Completion, ConnectData, DataRange,
    DiscoveryLog, IdentifyController, IdentifyNamespace, Nqn, fabrics, property,
};
use feroce_nvme::{MemoryNamespace, Namespace as _, Subsystem};

/// Blocks of the disk.
const BLOCKS: usize = 64;

/// The input as every structure, and as a sequence of commands. What is read as a command is
/// written as it was; what a controller answers is bounded; what a disk gets to do lies on it.
pub fn nvme(bytes: &[u8]) {
    structures(bytes);
    let nqn: Nqn = "nqn.2024-01.com.example:disks".parse().expect("a name");
    let disk = MemoryNamespace::new(BLOCKS);
    let disks = Identity::Disks(Arc::new(Subsystem::new(nqn.clone()).disk(disk)));
    let at = "127.0.0.1:4420".parse().expect("an address");
    let discovery = Identity::Discovery { subsystems: vec![nqn.clone()], at };
    let disk = MemoryNamespace::new(BLOCKS);
    for identity in [disks, discovery] {
        let mut controller = Controller::new(1, identity, nqn.clone(), [1; 16]);
        let mut enable = Command::fabrics(fabrics::PROPERTY_SET);
        (enable.cdw[1], enable.cdw[2]) = (property::CC, property::CC_ENABLE);
        controller.handle(&enable);
        for capsule in bytes.chunks_exact(CAPSULE) {
            let Some(command) = Command::parse(capsule) else { continue };
            assert_eq!(command.emit(), capsule);
            if let Answer::Data(data) = controller.handle(&command) {
                assert!(data.len() <= TRANSFER);
            }
            if let Ok(found) = disk_command(&command, &disk) {
                assert!(found.lba + found.blocks <= disk.blocks() && found.len <= TRANSFER);
            }
        }
        if let Some(data) = ConnectData::parse(bytes) {
            // Whether it may connect depends on the input; that nothing fails does not.
            let _ = controller.connect_queue(data.controller, &data);
        }
    }
}

fn structures(bytes: &[u8]) {
    if let Some(completion) = Completion::parse(bytes) {
        assert_eq!(Completion::parse(&completion.emit()), Some(completion));
    }
    if let Some(data) = ConnectData::parse(bytes) {
        assert_eq!(ConnectData::parse(&data.emit()), Some(data));
    }
    if let Ok(request) = CmRequest::parse(bytes) {
        assert_eq!(CmRequest::parse(&request.emit()), Ok(request));
    }
    if let Some(reply) = CmReply::parse(bytes) {
        assert_eq!(CmReply::parse(&reply.emit()), Some(reply));
    }
    let reject = CmReject::parse(bytes);
    assert_eq!(CmReject::parse(&reject.emit()), reject);
    let namespace = IdentifyNamespace::parse(bytes);
    assert_eq!(IdentifyNamespace::parse(&namespace.emit()), namespace);
    IdentifyController::parse(bytes).emit();
    assert!(DiscoveryLog::parse(bytes).entries.len() <= bytes.len() / 1024);
    DataRange::parse_all(bytes).for_each(|range| {
        assert!(DataRange::parse_all(&range.emit()).eq([range]));
    });
}
