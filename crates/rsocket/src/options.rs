//! Values of socket options, as bytes of the program.

use core::ffi::c_int;

use feroce::Errno;
use feroce_abi::{RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_ROUTE, RDMA_RQSIZE, RDMA_SQSIZE};

use crate::settings::Settings;

/// The integer in a value: one byte, or the first four.
pub(crate) fn integer(value: &[u8]) -> Result<c_int, Errno> {
    match *value {
        [byte] => Ok(byte.into()),
        [a, b, c, d, ..] => Ok(c_int::from_ne_bytes([a, b, c, d])),
        _ => Err(Errno::INVALID),
    }
}

/// The value of an option.
pub(crate) enum Value {
    Integer(c_int),
    /// Whether `SO_LINGER` is on.
    Linger(bool),
    /// State of the connection and window, as `tcp_info` has them.
    TcpInfo {
        state: u8,
        window: u32,
    },
    Empty,
}

impl Value {
    /// Copies as much of the value as fits into `room`; returns how much.
    pub(crate) fn copy_to(&self, room: &mut [u8]) -> usize {
        let mut bytes = [0; size_of::<libc::tcp_info>()];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        let len = match *self {
            Self::Integer(value) => {
                put(0, &value.to_ne_bytes());
                size_of::<c_int>()
            }
            Self::Linger(is_on) => {
                let at = core::mem::offset_of!(libc::linger, l_onoff);
                put(at, &c_int::from(is_on).to_ne_bytes());
                size_of::<libc::linger>()
            }
            Self::TcpInfo { state, window } => {
                put(core::mem::offset_of!(libc::tcp_info, tcpi_state), &[state]);
                let at = core::mem::offset_of!(libc::tcp_info, tcpi_snd_cwnd);
                put(at, &window.to_ne_bytes());
                size_of::<libc::tcp_info>()
            }
            Self::Empty => 0,
        };
        let len = len.min(room.len());
        room[..len].copy_from_slice(&bytes[..len]);
        len
    }
}

/// Sets an option of the level `SOL_RDMA`.
pub(crate) fn set_rdma(settings: &mut Settings, name: c_int, value: c_int) -> Result<(), Errno> {
    let size = value.cast_unsigned();
    match name.cast_unsigned() {
        RDMA_SQSIZE => settings.set_send_depth(size),
        RDMA_RQSIZE => settings.set_recv_depth(size),
        RDMA_INLINE => settings.set_inline(size),
        RDMA_IOMAPSIZE => settings.set_iomaps(size),
        // On Ethernet the kernel's routing table decides.
        RDMA_ROUTE => {}
        _ => return Err(Errno::UNSUPPORTED),
    }
    Ok(())
}

/// Reads an option of the level `SOL_RDMA`.
pub(crate) fn rdma(settings: &Settings, name: c_int) -> Result<Value, Errno> {
    Ok(Value::Integer(match name.cast_unsigned() {
        RDMA_SQSIZE => settings.send_depth.into(),
        RDMA_RQSIZE => settings.recv_depth.into(),
        RDMA_INLINE => c_int::try_from(settings.inline).unwrap_or(c_int::MAX),
        RDMA_IOMAPSIZE => settings.iomaps.into(),
        RDMA_ROUTE => return Ok(Value::Empty),
        _ => return Err(Errno::UNSUPPORTED),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_one_byte_or_four() {
        assert_eq!(integer(&[7]), Ok(7));
        assert_eq!(integer(&(-5_i32).to_ne_bytes()), Ok(-5));
        assert_eq!(integer(&[1, 2]), Err(Errno::INVALID));
        assert_eq!(integer(&[]), Err(Errno::INVALID));
    }

    #[test]
    fn values_are_cut_to_the_room_there_is() {
        let mut room = [0xff; 6];
        assert_eq!(Value::Integer(258).copy_to(&mut room), 4);
        assert_eq!(room[..4], 258_i32.to_ne_bytes());
        assert_eq!(room[4..], [0xff; 2], "beyond the value");
        assert_eq!(Value::Linger(true).copy_to(&mut room), 6);
        assert_eq!(room[..4], 1_i32.to_ne_bytes());
        assert_eq!(Value::Empty.copy_to(&mut room), 0);
    }
}
