//! A port: its state, its settings and its tables.

use alloc::vec;
use alloc::vec::Vec;

use feroce_train::Instant;
use feroce_wire::mad::{PhysicalState, PortInfo, PortState, VlArbitrationBlock, capability};
use feroce_wire::{Gid, Lid, Pkey};

use crate::counters::{Baselines, Counters};
use crate::net::NodeKind;
use crate::packet::PortRef;

/// Entries of a P_Key table.
pub(crate) const PKEYS: usize = 64;
/// Entries of a table of GUIDs.
const GUIDS: usize = 32;
/// The prefix of GIDs until the subnet manager sets another.
const DEFAULT_PREFIX: u64 = 0xfe80_0000_0000_0000;
/// Largest payload, as a code: 2048 bytes.
const MTU: u8 = 4;
/// Lanes 0 to 7, and lane 0 alone, as codes.
const EIGHT_LANES: u8 = 4;
const ONE_LANE: u8 = 1;
/// Entries of each table of VL arbitration.
pub(crate) const VL_WEIGHTS: u8 = 8;
/// 1, 4, 8 and 12 lanes of wires.
const WIDTHS: u8 = 0x0f;
/// 2.5, 5 and 10 Gb/s.
const SPEEDS: u8 = 0x07;
const SPEED_2_5: u8 = 1;

/// Something that a program behind a port wants to know of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Change {
    /// The port is active.
    Active,
    /// The port is not active any more.
    Inactive,
    /// The LID or the number of LIDs.
    Lid,
    /// The LID or the service level of the subnet manager.
    Sm,
    /// The P_Key table.
    Pkey,
    /// The table of GUIDs or the prefix.
    Gid,
    /// Clients should register anew with subnet administration.
    Reregister,
}

/// A port of an adapter or a switch.
#[derive(Clone, Debug)]
pub struct Port {
    pub(crate) info: PortInfo,
    /// The port at the other end of the link, up or down.
    pub(crate) peer: Option<PortRef>,
    /// An operator took the link down.
    pub(crate) is_cut: bool,
    pub(crate) pkeys: Vec<Pkey>,
    pub(crate) guids: Vec<u64>,
    /// The lane of each service level; of a switch, by port of arrival.
    pub(crate) sl_to_vl: Vec<[u8; 16]>,
    /// Low table and high table of VL arbitration, each in two halves.
    pub(crate) vl_arbitration: [VlArbitrationBlock; 4],
    pub(crate) counters: Counters,
    pub(crate) baselines: Baselines,
    /// When the protection by the M_Key ends.
    pub(crate) lease_ends: Option<Instant>,
    /// How often it went down by itself, as far as the other end of a link between parts needs to
    /// know.
    pub(crate) turn: u32,
}

impl Port {
    /// Port `number` of a node that has so many.
    pub(crate) fn new(kind: NodeKind, number: u8, ports: u8, guid: u64) -> Self {
        let is_switch = kind == NodeKind::Switch;
        let is_management = is_switch && number == 0;
        let mut capabilities = capability::TRAP
            | capability::SL_MAPPING
            | capability::SYSTEM_IMAGE_GUID
            | capability::CAPABILITY_MASK_NOTICE
            | capability::CLIENT_REREGISTRATION;
        if !is_switch {
            capabilities |= capability::COMMUNICATION;
        }
        let lanes = if is_management { ONE_LANE } else { EIGHT_LANES };
        let (state, physical_state) = match is_management {
            true => (PortState::ACTIVE, PhysicalState::LINK_UP),
            false => (PortState::DOWN, PhysicalState::POLLING),
        };
        let info = PortInfo {
            gid_prefix: DEFAULT_PREFIX,
            capability_mask: capabilities,
            link_width_enabled: WIDTHS,
            link_width_supported: WIDTHS,
            link_width_active: width_code(4),
            link_speed_supported: SPEEDS,
            state,
            physical_state,
            down_default: PhysicalState::POLLING,
            link_speed_active: SPEED_2_5,
            link_speed_enabled: SPEEDS,
            neighbor_mtu: MTU,
            vl_cap: lanes,
            vl_arb_high_cap: VL_WEIGHTS,
            vl_arb_low_cap: VL_WEIGHTS,
            mtu_cap: MTU,
            operational_vls: lanes,
            guid_cap: GUIDS as u8,
            ..PortInfo::default()
        };
        let mut pkeys = vec![Pkey(0); PKEYS];
        pkeys[0] = Pkey::DEFAULT;
        let mut guids = vec![0; GUIDS];
        guids[0] = guid;
        let identity = core::array::from_fn(|sl| (sl as u8) % 8);
        let inputs = if is_switch { usize::from(ports) + 1 } else { 1 };
        Self {
            info,
            peer: None,
            is_cut: false,
            pkeys,
            guids,
            sl_to_vl: vec![identity; inputs],
            vl_arbitration: [VlArbitrationBlock::default(); 4],
            counters: Counters::default(),
            baselines: Baselines::default(),
            lease_ends: None,
            turn: 0,
        }
    }

    /// State and settings, as the subnet manager sees them.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// The P_Key table.
    pub fn pkeys(&self) -> &[Pkey] {
        &self.pkeys
    }

    /// The GUIDs; zero where there is none.
    pub fn guids(&self) -> &[u64] {
        &self.guids
    }

    /// The GID of an entry of the table of GUIDs.
    pub fn gid(&self, index: usize) -> Option<Gid> {
        let guid = *self.guids.get(index)?;
        let both = (u128::from(self.info.gid_prefix) << 64) | u128::from(guid);
        Some(Gid(both.to_be_bytes()))
    }

    /// The port at the other end of the link, up or down.
    pub fn peer(&self) -> Option<PortRef> {
        self.peer
    }

    /// What the port has counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The lane of a service level for packets that arrived by a port; 15: drop.
    pub fn lane(&self, arrived_by: u8, sl: u8) -> u8 {
        let table = self.sl_to_vl.get(usize::from(arrived_by)).or_else(|| self.sl_to_vl.first());
        table.and_then(|lanes| lanes.get(usize::from(sl))).copied().unwrap_or(15)
    }

    /// Whether the port has a LID, or is one of those that its base LID stands for.
    pub fn has_lid(&self, lid: Lid) -> bool {
        let mask = u16::MAX << self.info.lmc;
        self.info.lid != Lid(0) && lid.0 & mask == self.info.lid.0 & mask
    }

    /// Whether a packet of a partition may pass.
    pub fn admits(&self, pkey: Pkey) -> bool {
        self.pkeys.iter().any(|entry| entry.matches(pkey))
    }

    /// The protection by the M_Key ends, if its owner has been silent for long.
    pub(crate) fn end_lease(&mut self, now: Instant) {
        if self.lease_ends.is_some_and(|at| at <= now) {
            self.lease_ends = None;
            self.info.m_key_protect = 0;
        }
    }

    /// Whether it looks for the other end of its link, or has found it.
    pub(crate) fn is_ready(&self) -> bool {
        let looks = [PhysicalState::POLLING, PhysicalState::SLEEP, PhysicalState::LINK_UP];
        !self.is_cut && looks.contains(&self.info.physical_state)
    }

    /// Whether packets of subnet management pass.
    pub(crate) fn is_up(&self) -> bool {
        self.info.state >= PortState::INIT
    }

    /// Whether all packets pass.
    pub(crate) fn is_active(&self) -> bool {
        self.info.state == PortState::ACTIVE
    }
}

/// The code of a link of so many lanes of wires.
pub(crate) const fn width_code(lanes: u8) -> u8 {
    match lanes {
        1 => 1,
        8 => 4,
        12 => 8,
        _ => 2,
    }
}
