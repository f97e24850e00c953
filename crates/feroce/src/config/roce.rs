//! Settings of RoCE.

use feroce_train::Framing;

use super::Wrong;

/// The identifier of a VLAN; 0 for none.
pub(super) fn vlan(value: &str) -> Result<u16, Wrong> {
    let parsed = value.parse().ok().filter(|vid: &u16| *vid < 4095);
    parsed.ok_or_else(|| "expected a VLAN, 1 to 4094, or 0 for none".into())
}

/// The framing of connections, as Linux calls it.
pub(super) fn mode(value: &str) -> Result<Framing, Wrong> {
    match value {
        "v1" => Ok(Framing::RoceV1),
        "v2" => Ok(Framing::RoceV2),
        _ => Err("expected v1 or v2".into()),
    }
}
