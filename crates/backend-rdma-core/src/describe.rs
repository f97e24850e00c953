//! Queries of a device and its port.

use std::ffi::CStr;
use std::fmt;

use feroce_abi::*;
use feroce_train::GidEntry;
use feroce_wire::{Gid, Pkey};

use crate::open::Open;
use crate::{Error, checked, failed};

/// The one port that is used.
pub(crate) const PORT: u8 = 1;

/// Most entries of a GID table that are asked for.
const MAX_GIDS: usize = 1024;

/// A C structure that the library fills in.
///
/// # Safety
/// The structure consists of numbers, of pointers that may be NULL, and of unions of these, so that
/// zero bytes are a value of it.
pub(crate) unsafe trait Plain: Sized {
    /// All zeros.
    fn zeroed() -> Self {
        // SAFETY: the implementation promises that zero bytes are a value of the type.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! plain {
    ($($name:ty),* $(,)?) => {
        // SAFETY: a structure of a C header, which has numbers, pointers and unions of them only.
        $(unsafe impl Plain for $name {})*
    };
}

plain! {
    ibv_device_attr, _compat_ibv_port_attr, ibv_gid_entry, ibv_ah_attr, ibv_qp_attr,
    ibv_qp_init_attr, ibv_srq_attr, ibv_srq_init_attr, ibv_async_event, ibv_wc, ibv_send_wr,
    ibv_recv_wr, ibv_mw_bind,
}

/// What the library says of a device.
#[derive(Clone)]
pub struct DeviceInfo {
    /// Limits and identity.
    pub attr: ibv_device_attr,
    /// Version of its firmware.
    pub fw_ver: String,
    /// Longest message in bytes.
    pub max_msg_size: u64,
    /// Completion vectors.
    pub comp_vectors: u32,
    /// It speaks iWARP.
    pub is_iwarp: bool,
}

/// What the library says of the port of a device.
#[derive(Clone)]
pub struct PortInfo {
    /// State and limits.
    pub attr: _compat_ibv_port_attr,
    /// GIDs by index; those of RoCE v1, which the engine does not speak, are zero.
    pub gids: Vec<GidEntry>,
    /// Partition keys by index.
    pub pkeys: Vec<Pkey>,
}

impl fmt::Debug for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceInfo").field("fw_ver", &self.fw_ver).finish_non_exhaustive()
    }
}

impl fmt::Debug for PortInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_struct("PortInfo");
        all.field("gids", &self.gids).field("pkeys", &self.pkeys).finish_non_exhaustive()
    }
}

/// A device that the library lists.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Name.
    pub name: String,
    /// Node GUID.
    pub guid: u64,
    /// Indices of the network interfaces of its GIDs, in the order of the GIDs.
    pub interfaces: Vec<u32>,
    /// Its port.
    pub port: PortInfo,
}

/// A device in a list.
pub(crate) fn listed(open: &Open, name: &str) -> Result<Listed, Error> {
    let port = port_info(open)?;
    let entries = gid_entries(open)?;
    let interfaces = entries.iter().map(|entry| entry.ndev_ifindex).filter(|index| *index != 0);
    Ok(Listed { name: name.to_owned(), guid: open.guid(), interfaces: interfaces.collect(), port })
}

/// Limits and identity.
pub(crate) fn device_info(open: &Open) -> Result<DeviceInfo, Error> {
    let mut attr = ibv_device_attr::zeroed();
    // SAFETY: an open context, and a valid place for the answer.
    let code = unsafe { (open.verbs.ibv_query_device)(open.as_ptr(), &raw mut attr) };
    checked("ibv_query_device", code)?;
    // SAFETY: the array was all zeros, and the library terminates what it writes with a zero.
    let fw_ver = unsafe { CStr::from_ptr(attr.fw_ver.as_ptr()) };
    // SAFETY: the context is open.
    let vectors = unsafe { (*open.as_ptr()).num_comp_vectors };
    Ok(DeviceInfo {
        fw_ver: fw_ver.to_string_lossy().into_owned(),
        max_msg_size: query_port(open)?.max_msg_sz.into(),
        comp_vectors: u32::try_from(vectors).unwrap_or(0),
        is_iwarp: open.is_iwarp(),
        attr,
    })
}

fn query_port(open: &Open) -> Result<_compat_ibv_port_attr, Error> {
    let mut attr = _compat_ibv_port_attr::zeroed();
    // SAFETY: an open context, and a place for the answer of the size that this function knows.
    let code = unsafe { (open.verbs.ibv_query_port)(open.as_ptr(), PORT, &raw mut attr) };
    checked("ibv_query_port", code)?;
    Ok(attr)
}

/// The port.
pub(crate) fn port_info(open: &Open) -> Result<PortInfo, Error> {
    let attr = query_port(open)?;
    let pkeys = (0..attr.pkey_tbl_len).map(|index| pkey(open, index)).collect::<Result<_, _>>()?;
    Ok(PortInfo { attr, gids: gids(&gid_entries(open)?), pkeys })
}

fn pkey(open: &Open, index: u16) -> Result<Pkey, Error> {
    let mut key: be16 = 0;
    // SAFETY: an open context, and a place for the answer.
    let code =
        unsafe { (open.verbs.ibv_query_pkey)(open.as_ptr(), PORT, index.into(), &raw mut key) };
    checked("ibv_query_pkey", code)?;
    Ok(Pkey(u16::from_be(key)))
}

/// Entries of the GID table of the port that are in use.
fn gid_entries(open: &Open) -> Result<Vec<ibv_gid_entry>, Error> {
    let mut entries = vec![ibv_gid_entry::zeroed(); MAX_GIDS];
    // SAFETY: an open context, and room for as many entries of this size as it says.
    let found = unsafe {
        (open.verbs._ibv_query_gid_table)(
            open.as_ptr(),
            entries.as_mut_ptr(),
            entries.len(),
            0,
            size_of::<ibv_gid_entry>(),
        )
    };
    let found = usize::try_from(found).map_err(|_| failed("ibv_query_gid_table"))?;
    entries.truncate(found);
    entries.retain(|entry| entry.port_num == PORT.into());
    Ok(entries)
}

/// Addresses by index. Those of RoCE v1, which no peer of ours can reach, are holes.
fn gids(entries: &[ibv_gid_entry]) -> Vec<GidEntry> {
    let mut gids = Vec::new();
    for entry in entries.iter().filter(|entry| entry.gid_type != IBV_GID_TYPE_ROCE_V1) {
        let index = entry.gid_index as usize;
        if gids.len() <= index {
            gids.resize(index + 1, GidEntry::default());
        }
        // SAFETY: every bit pattern is an address.
        let gid = Gid(unsafe { entry.gid.raw });
        let framing = convert::gid_type_of(entry.gid_type).unwrap_or_default();
        gids[index] = GidEntry { gid, framing };
    }
    gids
}
