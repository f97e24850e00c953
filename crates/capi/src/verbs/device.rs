//! Devices: listing them.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int};
use core::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use feroce::{Device as Facts, TransportKind};

use super::object::Object;
use crate::abi::*;
use crate::errno::{Errno, pointer};
use crate::files;
use crate::log;
use crate::zeroed::Zeroed;

/// A device. There is one for each that was ever listed, and it stays: programs compare pointers
/// of different lists, and may keep a device after its list was freed.
#[repr(C)]
pub(crate) struct Device {
    public: UnsafeCell<verbs_device>,
    /// As it was when it was last listed.
    facts: Mutex<Facts>,
    index: c_int,
}

// SAFETY: the type is `repr(C)`, its first field is the `UnsafeCell` of a `verbs_device`, and that
// begins with its `ibv_device`.
unsafe impl Object for Device {
    type C = ibv_device;
}

// SAFETY: the public part is written once, before the device is listed. All other fields are
// `Sync`.
unsafe impl Sync for Device {}

/// Every device that was ever listed.
static DEVICES: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

/// What libmlx5 and others compare with their own to see whether a device is theirs.
static NOT_A_PROVIDER: u8 = 0;

impl Device {
    /// What it is, as it was when it was last listed.
    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its number, by which `ibv_get_device_index` and netlink call it.
    pub(crate) fn index(&self) -> c_int {
        self.index
    }

    /// The device that was listed with this name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        let known = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().copied().find(|device| device.facts().name() == name)
    }

    /// The device that a program would open to get this one, whether or not it is listed.
    pub(crate) fn of_facts(facts: &Facts) -> &'static Self {
        Self::named(facts.name()).unwrap_or_else(|| {
            let mut known = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
            Self::known(&mut known, facts.clone())
        })
    }

    /// Every device that can be seen now.
    pub(crate) fn list() -> Result<Vec<&'static Self>, Errno> {
        log::start();
        let visible = Facts::list().inspect_err(|e| log::failure("cannot list the devices", e))?;
        let mut known = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(visible.into_iter().map(|facts| Self::known(&mut known, facts)).collect())
    }

    /// The device as programs know it from an earlier list, or a new one.
    fn known(known: &mut Vec<&'static Self>, facts: Facts) -> &'static Self {
        for device in known.iter() {
            let mut old = device.facts();
            if old.name() == facts.name() && old.interface_name() == facts.interface_name() {
                *old = facts;
                return device;
            }
        }
        let index = known.len() as c_int;
        let device: &'static Self = Box::leak(Box::new(Self::new(facts, index)));
        known.push(device);
        device
    }

    fn new(facts: Facts, index: c_int) -> Self {
        let mut public = verbs_device::zeroed();
        let device = &mut public.device;
        (device.node_type, device.transport_type) =
            match facts.attr().is_ok_and(|attr| attr.transport == TransportKind::Iwarp) {
                true => (IBV_NODE_RNIC, IBV_TRANSPORT_IWARP),
                false => (IBV_NODE_CA, IBV_TRANSPORT_IB),
            };
        let path = files::real(&format!("/sys/class/infiniband_verbs/uverbs{index}"));
        let ibdev_path = files::real(&format!("/sys/class/infiniband/{}", facts.name()));
        copy_name(facts.name(), &mut device.name);
        copy_name(&format!("uverbs{index}"), &mut device.dev_name);
        copy_name(&path, &mut device.dev_path);
        copy_name(&ibdev_path, &mut device.ibdev_path);
        public.ops = (&raw const NOT_A_PROVIDER).cast();
        public.refcount = 1;
        Self { public: UnsafeCell::new(public), facts: Mutex::new(facts), index }
    }

    /// As the header declares it.
    fn as_ptr(&self) -> *mut ibv_device {
        self.public.get().cast()
    }
}

/// Copies a name into an array of the header, cut to what fits before the final zero.
fn copy_name(name: &str, into: &mut [c_char]) {
    let room = into.len() - 1;
    for (to, from) in into[..room].iter_mut().zip(name.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
}

pub(crate) unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let devices = Device::list();
    if let Ok(devices) = &devices
        && !count.is_null()
    {
        // SAFETY: ibv_get_device_list(3): `count`, which is not NULL here, points to room for the
        // number.
        unsafe { *count = devices.len() as c_int };
    }
    pointer(devices.and_then(|devices| null_terminated(&devices)))
}

/// An array that `ibv_free_device_list` can free.
fn null_terminated(devices: &[&Device]) -> Result<*mut *mut ibv_device, Errno> {
    // SAFETY: calloc(3) has no preconditions. The memory is zeroed, so the last pointer is NULL.
    let array = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) };
    let array: *mut *mut ibv_device = array.cast();
    if array.is_null() {
        return Err(Errno::NO_MEMORY);
    }
    for (i, device) in devices.iter().enumerate() {
        // SAFETY: `i` is less than the number of devices, and the array has one element more than
        // that.
        let place = unsafe { array.add(i) };
        // SAFETY: `place` points to element `i` of the array.
        unsafe { *place = device.as_ptr() };
    }
    Ok(array)
}

pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: ibv_free_device_list(3): `list` is NULL or the array that ibv_get_device_list(3)
    // allocated with calloc(3).
    unsafe { libc::free(list.cast()) };
}

pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return ptr::null();
    }
    // SAFETY: ibv_get_device_name(3): `device` is a device of a list that this library made; it
    // never frees devices.
    let name = unsafe { &raw const (*device).name };
    name.cast()
}

pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> be64 {
    // SAFETY: ibv_get_device_guid(3): `device` is a device of a list that this library made; it
    // never frees devices.
    let device = unsafe { Device::of(device) };
    device.facts().guid().to_be()
}

pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: ibv_get_device_index(3): `device` is a device of a list that this library made; it
    // never frees devices.
    let device = unsafe { Device::of(device) };
    device.index
}
