//! Adapters that run in this process.
//!
//! A device may be opened any number of times; all contexts share one adapter, with one set of
//! sockets and one driver thread, which ends with the last object of the last context.

use std::sync::{Mutex, PoisonError};

use feroce::{Backend, Context, Counters, Device, Error, WeakContext};

/// Adapters by the name of their device. Those that have ended are swept out now and then.
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
    let context = device.open()?;
    running.retain(|(name, _)| name != device.name());
    running.push((device.name().to_owned(), context.downgrade()));
    Ok(context)
}

/// What the adapters that still run did so far, by the name of their device.
pub(crate) fn counters() -> Vec<(String, Counters)> {
    // As below.
    let Ok(running) = RUNNING.try_lock() else { return Vec::new() };
    let open = running.iter().filter_map(|(name, context)| {
        let context = context.reopen().ok().flatten()?;
        Some((name.clone(), context.counters()))
    });
    open.collect()
}

/// A program that has received all that it wants may exit at once, and its peers shall not be left
/// to wonder. With adapters of the kernel, the kernel tells them.
pub(crate) fn take_leave() {
    // Whoever has the lock may be the thread that exits.
    let Ok(running) = RUNNING.try_lock() else { return };
    running.iter().for_each(|(_, context)| context.take_leave());
}

/// Whatever the user says of backends, this is ours: the other would look for libibverbs and find
/// this library.
extern "C" fn be_the_adapter() {
    Backend::Feroce.choose();
}

/// Called by the dynamic linker when it loads the library.
#[used]
#[unsafe(link_section = ".init_array")]
static BE_THE_ADAPTER: extern "C" fn() = be_the_adapter;
