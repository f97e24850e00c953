//! Adapters that run in this process.
//!
//! A device may be opened any number of times; all contexts share one adapter, with one set of
//! sockets and one driver thread, which ends with the last object of the last context.

use std::sync::{Mutex, PoisonError};

use feroce::{Backend, Context, Counters, Device, Error, WeakContext};

use crate::log;

/// Adapters by the name of their device. `open` removes the ended adapter of the device it opens.
static RUNNING: Mutex<Vec<(String, WeakContext)>> = Mutex::new(Vec::new());

/// Opens a device, which may be running already.
pub(crate) fn open(device: &Device) -> Result<Context, Error> {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, context) in running.iter() {
        if name == device.name()
            && let Some(context) = context.reopen()?
        {
            return Ok(context);
        }
    }
    log::start();
    let opened = device.open();
    if let Err(e) = &opened {
        log::failure(&format!("cannot open the device {}", device.name()), e);
    }
    let context = opened?;
    running.retain(|(name, _)| name != device.name());
    running.push((device.name().to_owned(), context.downgrade()));
    Ok(context)
}

/// The counters of all running adapters, by the name of their device.
pub(crate) fn counters() -> Vec<(String, Counters)> {
    // The exiting thread may hold the lock itself.
    let Ok(running) = RUNNING.try_lock() else { return Vec::new() };
    let open = running.iter().filter_map(|(name, context)| {
        let context = context.reopen().ok().flatten()?;
        Some((name.clone(), context.counters()))
    });
    open.collect()
}

/// Sends what is queued and ends all connections. A program may exit without closing anything, as
/// the kernel's drivers then end its connections.
pub(crate) fn shut_down() {
    // The exiting thread may hold the lock itself.
    let Ok(running) = RUNNING.try_lock() else { return };
    running.iter().for_each(|(_, context)| context.prepare_exit());
}

/// Selects the software backend, whatever the settings say: the rdma-core backend would load
/// libibverbs and find this library.
extern "C" fn select_backend() {
    Backend::Feroce.choose();
}

/// Called by the dynamic linker when it loads the library.
#[used]
#[unsafe(link_section = ".init_array")]
static SELECT_BACKEND: extern "C" fn() = select_backend;
