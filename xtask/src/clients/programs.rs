//! Clients that Debian has, and that need more than one command.

use std::path::Path;
use std::process::Command;

use super::LIMIT;
use crate::Outcome;
use crate::shell::{limited, root, run};

/// Providers of uDAPL: by the connection manager, and by sockets. The third, `ucm`, finds its peer
/// by its LID, which RoCE does not have.
const PROVIDERS: [&str; 2] = ["cma", "scm"];

/// Two ends of dtest.
pub(super) fn dapl(feroce: &Path, folder: &Path) -> Outcome<String> {
    let mut both = Command::new("unshare");
    both.args(["--map-root-user", "--net", "sh"]).arg(root().join("xtask/src/clients/dapl.sh"));
    both.arg(feroce).arg(folder).args(PROVIDERS);
    run(&mut limited(both, LIMIT))?;
    Ok(format!("dtest of dapl2-utils: passes with {}", PROVIDERS.join(" and ")))
}

/// A Ceph cluster with one storage daemon.
pub(super) fn ceph(feroce: &Path, folder: &Path) -> Outcome<String> {
    let mut cluster = Command::new("sh");
    cluster.arg(root().join("xtask/src/clients/ceph.sh")).arg(feroce).arg(folder);
    run(&mut limited(cluster, LIMIT))?;
    Ok("ceph: objects were written and read with async+rdma".to_owned())
}

/// The migration of a machine.
pub(super) fn qemu(feroce: &Path, _folder: &Path) -> Outcome<String> {
    let mut script = Command::new("python3");
    script.arg(root().join("xtask/src/clients/qemu.py")).arg(feroce);
    run(&mut limited(script, LIMIT))?;
    Ok("qemu-system-x86: a running machine was migrated over RoCEv2 and over iWARP".to_owned())
}
