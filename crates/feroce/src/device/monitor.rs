//! Following what a device stands on: an interface, or a port of an InfiniBand fabric.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use feroce_engine::Engine;
use feroce_link::{Carrier, Logger};

use super::interface_monitor::{Interface, InterfaceMonitor};
use crate::subnet_port::{SubnetMonitor, SubnetState};

/// Hears of changes.
#[derive(Debug)]
pub(crate) enum Monitor {
    /// Of an interface.
    Interface(InterfaceMonitor),
    /// Of a port of an InfiniBand fabric.
    Subnet(SubnetMonitor),
}

/// What a device stands on, as it is now.
#[derive(Debug)]
pub(crate) enum Ground {
    Interface(Interface),
    Subnet(Arc<SubnetState>),
    /// An InfiniBand fabric that has ended.
    Ended,
}

impl Monitor {
    /// Readable when something may have changed.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Interface(monitor) => monitor.fd(),
            Self::Subnet(monitor) => monitor.fd(),
        }
    }

    /// The port of an InfiniBand fabric, when the device was opened.
    pub(crate) fn subnet(&self) -> Option<&Arc<SubnetState>> {
        match self {
            Self::Interface(_) => None,
            Self::Subnet(monitor) => Some(monitor.first()),
        }
    }

    /// Looks; `None` if nothing has changed.
    pub(crate) fn look(&self) -> io::Result<Option<Ground>> {
        match self {
            Self::Interface(monitor) => monitor.look().map(Ground::Interface).map(Some),
            Self::Subnet(monitor) => match monitor.look() {
                Ok(port) => Ok(port.map(Arc::new).map(Ground::Subnet)),
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Ok(Some(Ground::Ended)),
                Err(e) => Err(e),
            },
        }
    }
}

/// What the driver knows of the ground of its device, beside what the engine knows.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    /// Packets can pass.
    pub(crate) is_up: &'a mut bool,
    /// The port, if it is one of an InfiniBand fabric.
    pub(crate) subnet: &'a mut Option<Arc<SubnetState>>,
}

impl Ground {
    /// Applies it to the engine and the link. Returns false if the caller should look again soon.
    pub(crate) fn apply(
        &self,
        engine: &mut Engine,
        link: &mut dyn Carrier,
        known: Known<'_>,
        log: &Logger,
    ) -> bool {
        let Known { is_up, subnet } = known;
        let port = match self {
            Self::Interface(interface) => return interface.apply(engine, link, is_up, log),
            Self::Subnet(port) => Some(Arc::clone(port)),
            Self::Ended => subnet.as_deref().map(SubnetState::ended).map(Arc::new),
        };
        if let Some(port) = port {
            port.apply(engine, subnet.as_deref());
            *is_up = port.is_active();
            *subnet = Some(port);
        }
        true
    }
}
